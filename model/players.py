"""The reference engine for a scenario, whatever its operations are about."""

from __future__ import annotations

from kvproof.model.forward_player import ForwardPlayer
from kvproof.model.forward_reference import forward_player
from kvproof.model.player import Player
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import Scenario, family_of_operations


def model_player(scenario: Scenario, policy: Policy | None = None) -> Player | ForwardPlayer:
    """A player of the scenario's family; ``policy`` is that of a cache."""
    if family_of_operations(scenario.operations) == "translation":
        return forward_player(scenario.geometry)
    return reference_player(scenario.geometry, policy)
