"""Differential runs: that they repeat, what is compared, and what is said where none can run."""

from __future__ import annotations

import msgspec
import pytest
import torch

from kvproof.kernels import backends
from kvproof.kernels.backends import KernelBackend
from kvproof.kernels.catalogue import FAMILIES, family_of
from kvproof.kernels.compare import Compared, compare, comparisons_of, launch_seed
from kvproof.kernels.differences import all_of, same_bits, same_lists
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import Engine, EngineStore
from kvproof.kernels.native import missing_compiler

NEWEST = "0.5.23"


@pytest.fixture(scope="module")
def engine() -> Engine:
    try:
        return EngineStore().find(NEWEST)
    except EngineError as error:
        pytest.skip(str(error))


def test_a_launch_is_the_same_whatever_else_is_compared(engine: Engine) -> None:
    def run(*names: str) -> list[Compared]:
        found = compare(
            engine, backend="interpreter", launches=2, seed=7,
            wanted=lambda one: one.name in names,
        )  # fmt: skip
        return [msgspec.structs.replace(one, seconds=0) for one in found]

    alone = run("scatter, bf16")
    assert alone[0].verdict == "holds"
    assert alone == run("decode streams, int32", "scatter, bf16")[:1]
    assert launch_seed(0, "scatter, bf16", 0) != launch_seed(0, "scatter, bf16", 1)


@pytest.mark.parametrize("backend", ["cuda", "hip"])
def test_without_a_gpu_all_is_skipped_with_the_reason(
    engine: Engine, backend: KernelBackend
) -> None:
    if backends.missing(backend) is None:
        pytest.skip("this machine has one")
    found = list(compare(engine, backend=backend, launches=1))
    assert {one.verdict for one in found} == {"skipped"}
    assert {one.name for one in found} == {
        one.name for one in comparisons_of(family_of(engine.root))
    }
    assert all(backend in one.reason for one in found)
    assert {one.launches for one in found} == {0}


def test_cpp_kernels_need_a_gpu_and_its_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "GPU" in str(missing_compiler("interpreter"))
    monkeypatch.setenv("PATH", "")
    assert "nvcc" in str(missing_compiler("cuda"))
    assert "hipcc" in str(missing_compiler("hip"))


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.name)
def test_names_are_unique_and_what_is_left_out_says_why(family) -> None:
    found = comparisons_of(family)
    assert len({one.name for one in found}) == len(found)
    for one in found:
        assert (one.check is None) == bool(
            one.role in family.native and family.native[one.role].left_out
        )


def test_bits_and_lists_are_compared_cell_by_cell() -> None:
    one = torch.tensor([[0.0, 1.0]], dtype=torch.bfloat16)
    assert same_bits(one, one, "x").says == ""
    assert same_bits(-one, one, "x").says  # -0.0 is another cell than 0.0
    flat, starts = torch.tensor([4, 5, 6, 99]), torch.tensor([0, 2, 2, 3])
    assert same_lists(flat, starts, [[4, 5], [], [6]], "x").says == ""
    for expected in ([[4], [5], [6]], [[4, 5], [], [7]], [[4, 5], [6]], [[4, 5], [], []]):
        assert same_lists(flat, starts, expected, "x").says
    both = all_of((same_bits(one, one, "x"), same_bits(one, -one, "y")))
    assert both.cells == 4
    assert both.says.startswith("y")
    assert both.worst > 1
