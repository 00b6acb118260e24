"""The real kernels and the engine releases that they come from."""
