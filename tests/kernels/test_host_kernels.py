"""In a process that compiles, the scheduler's own kernels run on the CPU, and no others do."""

import subprocess
import sys
import textwrap

HOST = """
    import torch, triton
    import triton.language as tl
    from kvproof.kernels.engines.host_kernels import interpret_scheduler

    def language():
        return [getattr(module, name) for module in (tl, tl.core) for name in ("load", "arange")]

    before = language()
    interpret_scheduler()

    @triton.jit
    def twice(value):
        return value * 2

    @triton.jit
    def assign_req_to_token_pool(starts, out, SIZE: tl.constexpr):
        row = tl.program_id(0)
        start, end = tl.load(starts + row), tl.load(starts + row + 1)
        for at in range(start, end):
            tl.store(out + at, twice(row + 1))
        at = tl.arange(0, SIZE)
        total = tl.sum(tl.load(starts + at, mask=at < 3, other=0))
        tl.store(out + 5, tl.cdiv(total, 3))

    @triton.jit
    def scatter(out):
        tl.store(out, 1)

    out = torch.zeros(6, dtype=torch.int64)
    assign_req_to_token_pool[(2,)](torch.tensor([0, 3, 5]), out, SIZE=4)
    print(out.tolist())
    print(language() == before)
    try:
        scatter[(1,)](out)
    except Exception as error:
        print("refused", type(error).__name__)
    print(out.tolist())
"""

ONE_ELEMENT = """
    import os
    os.environ["TRITON_INTERPRET"] = "1"
    import torch, triton
    import triton.language as tl
    from triton.runtime import interpreter
    from kvproof.kernels.engines import shims

    patch = interpreter._patch_lang_tensor

    def refuse(tensor, scope):
        def index(self):
            raise TypeError("only 0-dimensional arrays can be converted to Python scalars")
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", index)

    interpreter._patch_lang_tensor = refuse  # as Triton 3.6 with NumPy 2.5

    @triton.jit
    def fill(length, out):
        for at in range(tl.load(length)):
            tl.store(out + at, 1)

    out = torch.zeros(4, dtype=torch.int64)
    for shim in (None, shims._one_element_index):
        if shim is not None:
            shim()
        try:
            fill[(1,)](torch.tensor([3]), out)
        except Exception as error:
            print(type(error).__name__)
        print(out.tolist())
"""


def run(script: str, tmp_path) -> list[str]:
    place = tmp_path / "script.py"  # a kernel is read from its file
    place.write_text(textwrap.dedent(script))
    done = subprocess.run([sys.executable, place], check=True, capture_output=True, text=True)
    return done.stdout.splitlines()


def test_a_scheduler_s_kernel_is_interpreted_and_one_under_test_is_not(tmp_path) -> None:
    filled, unpatched, refused, after = run(HOST, tmp_path)
    assert filled == after == "[2, 2, 2, 4, 4, 3]"
    assert unpatched == "True"  # what is compiled afterwards finds the language as it was
    assert refused.startswith("refused")


def test_a_tensor_of_one_element_bounds_a_loop_where_numpy_refuses_it(tmp_path) -> None:
    assert run(ONE_ELEMENT, tmp_path) == ["InterpreterError", "[0, 0, 0, 0]", "[1, 1, 1, 0]"]
