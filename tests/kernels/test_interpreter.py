"""Triton's interpreter computes with the bit patterns of bf16 numbers; the shim does not."""

import subprocess
import sys
import textwrap

RUN = """
    import os, sys
    os.environ["TRITON_INTERPRET"] = "1"
    import torch, triton
    import triton.language as tl
    from kvproof.kernels.engines import shims

    if sys.argv[1] == "shim":
        shims._bfloat16_numbers()

    @triton.jit
    def product(a, b, dots, cells, SIZE: tl.constexpr):
        at = tl.arange(0, SIZE)
        where = at[:, None] * SIZE + at[None, :]
        one, other = tl.load(a + where), tl.load(b + where)
        tl.store(dots + where, tl.dot(one, other))
        tl.store(cells + where, one * other)

    torch.manual_seed(0)
    a, b = torch.randn(2, 16, 16).bfloat16()
    dots, cells = torch.zeros(16, 16), torch.zeros(16, 16, dtype=torch.bfloat16)
    product[(1,)](a, b, dots, cells, SIZE=16)
    print((dots - a.float() @ b.float()).abs().max().item(), torch.equal(cells, a * b))
"""


def run(how: str, tmp_path) -> tuple[float, bool]:
    script = tmp_path / "product.py"  # a kernel is read from its file
    script.write_text(textwrap.dedent(RUN))
    done = subprocess.run([sys.executable, script, how], check=True, capture_output=True, text=True)
    off, same = done.stdout.split()
    return float(off), same == "True"


def test_the_interpreter_is_still_wrong_without_the_shim(tmp_path) -> None:
    """Once it is right, `_bfloat16_numbers` in kernels/engines/shims.py can go."""
    off, same = run("plain", tmp_path)
    assert off > 1e6
    assert not same


def test_with_the_shim_bf16_is_what_torch_computes(tmp_path) -> None:
    off, same = run("shim", tmp_path)
    assert off < 1e-5
    assert same
