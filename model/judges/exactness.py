"""EXACT, PURE and NON-INTERFERENCE: a log followed through a stack of layers (`model.layers`)."""

from __future__ import annotations

from dataclasses import dataclass, field

from kvproof.model.facts import Fact, Ran, Started
from kvproof.model.findings import Findings
from kvproof.model.forward import RuleForward, lane_of
from kvproof.model.layers import Layers, Stack
from kvproof.model.scenario import BadFileError


@dataclass(slots=True)
class Exactness:
    """Judges one log.

    Attributes:
        stack: the layers.
        layers: what is known of them.
    """

    stack: Stack
    layers: Layers = field(init=False)

    def __post_init__(self) -> None:
        """Nothing is known yet."""
        self.layers = Layers(self.stack)

    def feed(self, fact: Fact, rules: RuleForward, findings: Findings) -> None:
        """Take in the next fact; raises BadFileError if the stack does not fit the log."""
        layers = self.layers
        if isinstance(fact, Started):
            self._check_fit(fact)
        if isinstance(fact, Ran):
            for observed in rules.lane(lane_of(fact), fact.mode):
                layers.feed(observed)
        else:
            layers.feed(fact)
        for broken in layers.take():
            findings.broken(
                broken.invariant, broken.cause, broken.sentence, departure=broken.departure
            )
        findings.checked["EXACT"] = findings.checked["NON-INTERFERENCE"] = layers.outputs
        findings.checked["PURE"] = layers.published

    def _check_fit(self, started: Started) -> None:
        if started.geometry.overlap:
            raise BadFileError(
                "the log is of overlapped steps, which are not followed through layers: leave "
                "--layers and --ratios out"
            )
        ratio = self.stack.misfit(started.geometry.page_size)
        if ratio is not None:
            raise BadFileError(
                f"compressed rows of {ratio} tokens do not fill pages of "
                f"{started.geometry.page_size}: give --ratios that divide the page size"
            )
