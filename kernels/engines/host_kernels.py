"""Triton kernels that an engine launches on tensors of the CPU, in a process that compiles.

With a GPU the kernels under test are compiled, while pools, tree and scheduler stay on the CPU, as
on a machine without one. Some of the scheduler's own steps are Triton kernels too (a draft's
entries in ``req_to_token``): compiled ones cannot reach the CPU's memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import torch
from triton import knobs
from triton.runtime import interpreter
from triton.runtime.jit import JITFunction

SCHEDULER = frozenset(
    {
        "alloc_extend_kernel",
        "alloc_decode_kernel",
        "assign_req_to_token_pool",
        "assign_extend_cache_locs",
    }
)
"""Names of such kernels. Of all others a result says that they were compiled, so a launch of one on
the CPU has to fail."""


def interpret_scheduler() -> None:
    """Run the scheduler's kernels on the CPU's tensors in the interpreter; all others compile."""
    compiled = JITFunction.run

    def run(self: Any, *arguments: Any, grid: Any, warmup: bool, **named: Any) -> Any:
        on_cpu = _all_on_cpu([*arguments, *named.values()])
        if not on_cpu or self.fn.__name__ not in SCHEDULER:
            return compiled(self, *arguments, grid=grid, warmup=warmup, **named)
        with knobs.runtime.scope():
            knobs.runtime.interpret = True  # some of the language asks while a kernel runs
            return _interpreted(self.fn).run(*arguments, grid=grid, warmup=warmup, **named)

    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        """A function that an interpreted kernel calls; compiled ones are not called in Python."""
        # As InterpretedFunction does it, which leaves the language patched: this process compiles.
        scope = interpreter._patch_lang(self.fn)
        try:
            return _interpreted(self.fn).rewrite()(*arguments, **named)
        finally:
            scope.restore()

    JITFunction.run, JITFunction.__call__ = run, call


@cache
def _interpreted(function: Callable[..., Any]) -> Any:
    return interpreter.InterpretedFunction(function)


def _all_on_cpu(values: Iterable[Any]) -> bool:
    devices = {value.device.type for value in values if isinstance(value, torch.Tensor)}
    return devices == {"cpu"}
