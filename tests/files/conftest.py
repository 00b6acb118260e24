"""How many mutated files are read: a few hundred, or 10,000 with the profile ``mutations``."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile(
    "mutations",
    max_examples=1_700,  # for each of six readers
    deadline=None,
    suppress_health_check=list(HealthCheck),
)
