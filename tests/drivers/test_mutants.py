"""Edits of an engine's functions: they fit or are refused, last as long as a play, and are told."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from kvproof.fuzz.drivers.mutants import prepare
from kvproof.fuzz.drivers.wire import FunctionEdit
from kvproof.fuzz.drivers.worker import with_mutants
from kvproof.kernels.catalogue import family_of
from kvproof.kernels.coverage import gate
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.facts import Started
from kvproof.model.monitor import check
from kvproof.model.scenario import Decode, Finish, Geometry, Piece, Prefill, Scenario, Submit
from kvproof.mutants.engine import engine_mutants

from .conftest import Start

SOURCE = '''
from __future__ import annotations

import functools


def loud(function):
    @functools.wraps(function)
    def wrapper(*args):
        return f"<{function(*args)}>"
    return wrapper


class Base:
    def size(self):
        return 4


class Pool(Base):
    def size(self) -> Unknown:
        """Four more: return super."""
        return super().size() + 4

    @staticmethod
    def page(loc: int, page_size: int = 4) -> int:
        return loc // page_size

    @property
    def half(self):
        return self.size() // 2

    def match(self):
        state = {"len": 1}

        def grow():
            state["len"] = 0
            return state["len"]

        return grow


@loud
def greet(name):
    return "hello " + name


twice = lambda: 1 + 1
'''


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """A module that stands for an engine's."""
    (tmp_path / "an_engine.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("an_engine")
    del sys.modules["an_engine"]


def edit(place: str, text: str, by: str) -> FunctionEdit:
    return FunctionEdit(name="wrong", place=f"an_engine:{place}", text=text, by=by)


def test_an_edit_lasts_as_long_as_it_is_applied(engine: ModuleType) -> None:
    imported = engine.Pool.size
    with prepare(edit("Pool.size", "+ 4", "+ 5")).applied():
        assert engine.Pool().size() == 9
        assert imported is engine.Pool.size
    assert engine.Pool().size() == 8
    with pytest.raises(ZeroDivisionError), prepare(edit("Pool.size", "+ 4", "/ 0")).applied():
        engine.Pool().size()
    assert engine.Pool().size() == 8


def test_methods_of_every_kind_are_found(engine: ModuleType) -> None:
    with prepare(edit("Pool.page", "//", "%")).applied():
        assert engine.Pool.page(9) == 1
    with prepare(edit("Pool.half", "// 2", "// 4")).applied():
        assert engine.Pool().half == 2
    with prepare(edit("Pool.match", 'state["len"] = 0', "pass")).applied():
        assert engine.Pool().match()() == 1
    with prepare(edit("greet", "hello", "bye")).applied():
        assert engine.greet("B") == "<bye B>"
    assert engine.Pool().match()() == 0


@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        ("Pool.size", "- 4", "occurs 0 times"),
        ("Pool.match", 'state["len"]', "occurs 2 times"),
        ("Pool.size", "Four more", "occurs 0 times"),
        ("Pool.shape", "4", "there is no an_engine:Pool.shape"),
        ("Pool", "4", "there is no an_engine:Pool"),
    ],
)
@pytest.mark.usefixtures("engine")
def test_an_edit_that_does_not_fit_is_refused_by_name(place: str, text: str, said: str) -> None:
    with pytest.raises(EngineError, match="the mutant 'wrong' does not fit this engine") as error:
        prepare(edit(place, text, "5"))
    assert said in error.value.cause


@pytest.mark.usefixtures("engine")
def test_a_process_refuses_its_mutants_before_it_plays() -> None:
    with pytest.raises(EngineError, match="the mutant 'wrong' does not fit this engine"):
        with_mutants(lambda _order: pytest.fail("nothing is played"), [edit("greet", "bye", "")])


# On a release

HIT = Scenario(
    geometry=Geometry(window=4, page_size=4, slots=2, pool_tokens=64, swa_tokens=64),
    operations=(
        Submit(request="A", prompt=(Piece("A", 12),)), Prefill(request="A"), Decode(),
        Finish(request="A"),
        Submit(request="B", prompt=(Piece("A", 12), Piece("B", 18))), Prefill(request="B"),
        *[Decode()] * 8, Finish(request="B"),
    ),
)  # fmt: skip

PAGED = tuple(one.edit for one in engine_mutants() if one.target == "0.5.15:paged-swa")


def test_a_mutated_release_says_so_and_the_next_play_is_of_the_release(start: Start) -> None:
    process = start("0.5.15", construction="paged-swa", mutants=PAGED)
    clean = process.play(HIT, timeout=60, backend="rules")
    mutated = process.play(HIT, timeout=60, backend="rules", mutant="map not cleared")
    again = process.play(HIT, timeout=60, backend="rules")
    assert clean == again
    first = mutated[0]
    assert isinstance(first, Started)
    assert first.target == "sglang-0.5.15:paged-swa, mutant 'map not cleared'"
    assert not check(clean).violations
    assert ("MAP", "stale-entry") in check(mutated).violations


def test_no_class_in_play_is_exempt(start: Start) -> None:
    """The gate's file says of no class that nothing plays it while a target does."""
    process = start("0.5.15", construction="paged-swa", mutants=PAGED)
    first = process.play(HIT, timeout=60, backend="rules")[0]
    assert isinstance(first, Started)
    root = EngineStore().find("0.5.15").root
    shipped = {one.name: one.status for one in gate(root, family_of(root)) if one.kind == "class"}
    played = {name.rpartition(".")[2] for name in first.classes.values()} & shipped.keys()
    assert {"SWARadixCache", "SWATokenToKVPoolAllocator", "ReqToTokenPool"} <= played
    assert {shipped[name] for name in played} == {"covered"}
