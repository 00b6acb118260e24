"""The catalogue: one entry a mutant, over all areas, and texts that the releases have."""

from __future__ import annotations

import ast
from collections import Counter
from pathlib import Path
from typing import get_args

import pytest

from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.forward_reference import DEPARTURES
from kvproof.model.policy import RingFault, StreamFault, SwaFault
from kvproof.model.scenario import BadFileError
from kvproof.model.text import parse_scenario
from kvproof.mutants.catalogue import Area, Layer, catalogue
from kvproof.mutants.engine import EngineMutant, engine_mutants
from kvproof.proofs.kernels.mutants import MUTANTS as KERNEL_EDITS
from kvproof.proofs.mutants import MUTANTS as RULE_EDITS
from kvproof.triage.known_defects import ByMutant, load_defects


def of(layer: Layer) -> list[str]:
    return [mutant.name for mutant in catalogue() if mutant.layer == layer]


def test_every_mutant_stands_there_once() -> None:
    assert max(Counter(mutant.key for mutant in catalogue()).values()) == 1
    assert of("specification") == [edit.identifier for edit in RULE_EDITS]
    assert len(of("kernel")) == len(KERNEL_EDITS)
    assert len(of("engine")) == len(engine_mutants()) >= 20
    ways = [way for d in load_defects() for way in d.found if isinstance(way, ByMutant)]
    known = {
        next(iter(way.policy.faults)) if way.policy and way.policy.faults else way.name
        for way in ways
    }
    faults = {*get_args(RingFault), *get_args(SwaFault), *get_args(StreamFault)}
    assert faults | DEPARTURES.keys() - {"none"} <= set(of("model"))
    assert known <= set(of("model"))


def test_the_areas_that_issue_8_names_have_mutants() -> None:
    areas = Counter(mutant.area for mutant in catalogue())
    assert set(areas) == set(get_args(Area))
    asked = ("ring", "cap", "tree", "pools", "translation", "kernels")
    assert min(areas[area] for area in asked) >= 10
    assert areas.total() >= 60


def test_a_mutant_says_what_it_is_and_who_may_notice() -> None:
    for mutant in catalogue():
        assert mutant.where
        assert mutant.change
        assert mutant.oracles
        assert ("kernel proof" in mutant.oracles) == (mutant.layer == "kernel")


def test_results_of_an_edited_mutant_are_not_those_of_the_old_one() -> None:
    assert len({mutant.digest for mutant in catalogue()}) == len(catalogue())


def body(root: Path, place: str) -> str:
    """What stands in a function of an installed release, without its docstring and parameters."""
    module, _, path = place.partition(":")
    source = (root / Path(*module.split(".")).with_suffix(".py")).read_text()
    node: ast.Module | ast.stmt = ast.parse(source)
    for name in path.split("."):
        assert isinstance(node, ast.Module | ast.ClassDef)
        [node] = [
            each
            for each in node.body
            if isinstance(each, ast.ClassDef | ast.FunctionDef) and each.name == name
        ]
    assert isinstance(node, ast.FunctionDef)
    first = node.body[1 if ast.get_docstring(node) is not None else 0].lineno - 1
    return "\n".join(source.splitlines()[first : node.end_lineno])


@pytest.mark.parametrize("mutant", engine_mutants(), ids=lambda one: f"{one.target} {one.name}")
def test_an_engine_mutants_text_is_in_its_release_once(mutant: EngineMutant) -> None:
    try:
        engine = EngineStore().find(mutant.target.partition(":")[0])
    except EngineError as error:
        pytest.skip(str(error))
    assert body(engine.root, mutant.place).count(mutant.text) == 1
    assert mutant.text != mutant.by
    if mutant.scenario:
        assert parse_scenario(mutant.scenario.encode()).operations


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[[mutant]]\nname = "a"\n', "missing required field"),
        ("mutant = [", "not a list of engine mutants"),
    ],
)
def test_a_damaged_list_is_refused_with_its_path(tmp_path: Path, text: str, said: str) -> None:
    path = tmp_path / "engine.toml"
    path.write_text(text)
    with pytest.raises(BadFileError, match=said) as error:
        engine_mutants(path)
    assert str(path) in str(error.value)


def test_a_name_that_stands_twice_on_a_target_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "engine.toml"
    entry = (
        '[[mutant]]\nname = "a"\ntarget = "0.5.15:registry"\narea = "cap"\n'
        'place = "m:f"\ntext = "1"\nby = "2"\n'
    )
    path.write_text(entry * 2)
    with pytest.raises(BadFileError, match=r"'a' of 0[.]5[.]15:registry stands twice"):
        engine_mutants(path)
