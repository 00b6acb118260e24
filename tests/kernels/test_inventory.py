"""What a release adds, drops or changes is noticed by name: on a small engine of our own."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvproof.cli.app import app
from kvproof.kernels.catalogue import FAMILIES, family_of
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.kernels.family import Kernel
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

FAMILY = replace(
    FAMILIES[0],
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


def test_the_command_lists_a_release_and_fails_on_one_that_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        engine = EngineStore().find("0.5.23")
    except EngineError as error:
        pytest.skip(str(error))
    asked = ["kernels", "list", "--engine", "0.5.23", "--json"]
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 0
    [listed] = json.loads(done.stdout)["engines"].values()
    assert any(one["place"].endswith(":_swa_scatter_kernel") for one in listed)

    # The same release with one kernel less and one more, beside the installed one.
    store = "sglang/kernels/ops/kvcache/triton_store_cache.py"
    text = (engine.root / store).read_text()
    changed = inventory(
        _mirror(engine.root, tmp_path, store, text.replace("def _triton_fused_store_indexer_kernel",
                                                           "def _triton_fused_store_new_kernel")),
        family_of(engine.root),
    )  # fmt: skip
    monkeypatch.setattr("kvproof.cli.kernels.inventory", lambda *_: changed)
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 1
    [listed] = json.loads(done.stdout)["engines"].values()
    assert {one["place"].partition(":")[2]: one["change"] for one in listed if one["change"]} == {
        "_triton_fused_store_indexer_kernel": "gone", "_triton_fused_store_new_kernel": "new",
    }  # fmt: skip


def _mirror(root: Path, folder: Path, file: str, text: str) -> Path:
    """The catalogued modules of an engine, with one file changed."""
    modules = {
        place.partition(":")[0] for kernel in family_of(root).kernels.values()
        for place in kernel.jit
    }  # fmt: skip
    for module in modules:
        path = Path(*module.split(".")).with_suffix(".py")
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text((root / path).read_text())
    (folder / file).write_text(text)
    return folder
