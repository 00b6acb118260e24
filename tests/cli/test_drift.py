"""``kvproof drift`` as a user calls it."""

from __future__ import annotations

import json

import pytest
from click.testing import Result
from typer.testing import CliRunner

from kvproof.cli.app import app
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore


def call(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["drift", *arguments])


@pytest.fixture
def _releases() -> None:
    for name in ("0.5.16", "0.5.23"):
        try:
            EngineStore().find(name)
        except EngineError as error:
            pytest.skip(error.cause)


@pytest.mark.usefixtures("_releases")
def test_changes_are_no_failure_unless_asked() -> None:
    result = call("sglang==0.5.16", "sglang==0.5.23", "--sources-only")
    assert result.exit_code == 0, result.output
    assert "sglang-0.5.16 against sglang-0.5.23" in result.output
    assert "look: it takes req_to_token_pool" in result.output
    asked = call("0.5.16", "0.5.23", "--sources-only", "--exit-code", "--json")
    assert asked.exit_code == 1
    found = json.loads(asked.output[asked.output.index("{") :])
    assert {change["kind"] for change in found["changes"]} >= {"kernel", "signature", "verdict"}


@pytest.mark.usefixtures("_releases")
def test_the_same_release_twice() -> None:
    result = call("0.5.16", "0.5.16", "--sources-only", "--exit-code")
    assert result.exit_code == 0, result.output


def test_a_release_that_is_not_there() -> None:
    result = call("0.5.16", "0.4.0")
    assert result.exit_code == 2
    assert "is not installed" in result.output
