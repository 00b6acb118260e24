"""The determinism harness of PR #30339: identical requests, reused prefixes, how many diverge."""
