"""The recorder: writes the log of a running SGLang, from inside its scheduler process."""
