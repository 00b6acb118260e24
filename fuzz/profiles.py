"""How much a campaign does. Each is a Hypothesis profile too: ``pytest --hypothesis-profile``."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import ExampleDatabase


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """Bounds of a campaign on one target.

    Attributes:
        sequences: scenarios that are drawn.
        kernel_share: one of so many scenarios has its rows named by the real kernels, the others
            by the rules. Every counterexample is replayed on the kernels whatever its share.
        play_timeout: seconds that one scenario may take.
        history: operations of each scenario, on one engine that is not restarted; 0 for short
            scenarios, which Hypothesis can shrink.
        swarm: whether each scenario draws which kinds of operations it has; else it has all.
    """

    sequences: int
    kernel_share: int = 8
    play_timeout: float = 20.0
    history: int = 0
    swarm: bool = True


PROFILES = {
    "smoke": Profile(sequences=120),
    "default": Profile(sequences=400),
    "long": Profile(sequences=20_000),
    "kernels": Profile(sequences=300, kernel_share=1),
    "history": Profile(sequences=6, kernel_share=1_000_000, play_timeout=120.0, history=2000),
}


def search_settings(
    sequences: int,
    *,
    phases: tuple[Phase, ...] = (Phase.generate,),
    database: ExampleDatabase | None = None,
) -> settings:
    """How Hypothesis searches for us: at its own pace, one failure at a time, in silence."""
    return settings(
        max_examples=sequences,
        phases=phases,
        database=database,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        report_multiple_bugs=False,
        print_blob=False,
    )


def register_profiles() -> None:
    """Make the profiles known to Hypothesis."""
    for name, profile in PROFILES.items():
        settings.register_profile(
            name,
            max_examples=profile.sequences,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        )
