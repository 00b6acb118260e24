"""What a release adds, drops or changes is noticed by name: on a small engine of our own."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvproof.kernels.catalogue import FAMILIES, Family, Kernel
from kvproof.kernels.inventory import inventory, recorded

SOURCE = '''
import triton


@triton.jit
def _scatter(out, n, BLOCK: tl.constexpr):
    """What it does."""
    tl.store(out + n, 1)  # a cell


@triton.jit(do_not_specialize=["n"])
def _helper(x):
    return x + 1


def wrapper(out):
    _scatter[(1,)](out, 1, BLOCK=2)
'''

FAMILY = Family(
    name="small",
    marker="sglang/ops.py",
    parts={},
    kernels={"scatter": Kernel(launch="sglang.ops:wrapper", jit=("sglang.ops:_scatter",), rule="")},
)


def _engine(folder: Path, source: str) -> Path:
    (folder / "sglang").mkdir(exist_ok=True)
    (folder / "sglang" / "ops.py").write_text(source)
    return folder


def _known(folder: Path) -> dict[str, str]:
    found = inventory(_engine(folder, SOURCE), FAMILY, known={})
    return {one.place: one.fingerprint for one in found}


def test_all_triton_functions_are_listed_with_the_step_that_launches_them(tmp_path: Path) -> None:
    helper, scatter = inventory(_engine(tmp_path, SOURCE), FAMILY, known=_known(tmp_path))
    assert (helper.place, helper.steps) == ("sglang.ops:_helper", ())
    assert (scatter.place, scatter.steps) == ("sglang.ops:_scatter", ("scatter",))
    assert scatter.signature == "out, n, BLOCK: tl.constexpr"
    assert not helper.change
    assert not scatter.change


@pytest.mark.parametrize(
    ("text", "by", "noticed"),
    [
        ("out + n, 1)", "out + n, 2)", {"sglang.ops:_scatter": "changed"}),
        ("(out, n, BLOCK", "(out, n, m, BLOCK", {"sglang.ops:_scatter": "changed"}),
        ("def _helper", "def _other",
         {"sglang.ops:_helper": "gone", "sglang.ops:_other": "new"}),
        ("def _scatter", "def _scatter_2",
         {"sglang.ops:_scatter": "gone", "sglang.ops:_scatter_2": "new"}),
        # neither comments nor the docstring are code
        ("# a cell", "# one cell", {}),
        ("What it does.", "What it did.", {}),
    ],
)  # fmt: skip
def test_a_change_is_noticed_by_name(
    text: str, by: str, noticed: dict[str, str], tmp_path: Path
) -> None:
    known = _known(tmp_path)
    found = inventory(_engine(tmp_path, SOURCE.replace(text, by)), FAMILY, known=known)
    assert {one.place: one.change for one in found if one.change} == noticed


def test_a_module_that_is_gone_takes_its_kernels_along(tmp_path: Path) -> None:
    known = _known(tmp_path)
    (tmp_path / "sglang" / "ops.py").unlink()
    assert {one.change for one in inventory(tmp_path, FAMILY, known=known)} == {"gone"}


def test_every_family_and_catalogued_kernel_is_recorded() -> None:
    for family in FAMILIES:
        places = {place for kernel in family.kernels.values() for place in kernel.jit}
        assert places <= recorded()[family.name].keys()
