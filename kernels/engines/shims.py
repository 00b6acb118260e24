"""What is not real inside an engine's process, all of it, in one place.

The engine's own files are never edited. Everything that this module changes is returned by
`install` with its reason, so that `doctor` can show exactly what is real and what is not.
`install` runs before anything of sglang is imported.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import inspect
import os
import sys
import types
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvproof.kernels.catalogue import family_of
from kvproof.kernels.engines import import_stubs
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.family import Family


@dataclass(frozen=True, kw_only=True, slots=True)
class Shim:
    """One thing in the engine's process that is not the engine's own.

    Attributes:
        name: short name, stable over releases.
        replaces: what it stands in for.
        reason: why it is needed on a machine without a GPU.
    """

    name: str
    replaces: str
    reason: str


class ShimError(RuntimeError):
    """A shim that cannot do what it is for in this process."""


def install(
    *,
    rocm_gate: bool,
    allocator_twins: bool = False,
    host_pool: bool = False,
    interpret: bool = True,
    scheduler: bool = False,
) -> tuple[Shim, ...]:
    """Prepare this process for the engine and say how.

    Args:
        rocm_gate: switch unified_kv on as ROCm does. Off, it is the negative control: the engine
            then has no ring and no cap.
        allocator_twins: allocate pages by the kernels' rule in Python where the release would
            launch a Triton kernel.
        host_pool: let a hierarchical cache have a host pool without a GPU.
        interpret: run kernels in the interpreter. Off, they are compiled, and a launch needs a GPU.
        scheduler: the engine's scheduler is played, on the CPU. Its own kernels are interpreted
            there in any case.

    Raises:
        EngineError: the engine's layout is not a known one.
        ShimError: the gate stays off, or Triton was imported too early.
    """
    shims = [_interpreter(), _stubs()] if interpret else [_stubs()]
    if scheduler and not interpret:
        shims.append(_host_kernels())
    if _numpy_refuses_one_element():
        shims.append(_one_element_index())
    shims.extend(_no_cuda_engine())
    if rocm_gate and engine_family().has_ring:
        shims.append(_rocm_gate())
    if interpret:
        shims += [_warm_interpreter(), _bfloat16_numbers()]
    if allocator_twins:
        shims.extend(_allocator_twins())
    if host_pool:
        shims.extend(_host_pool())
    return tuple(shims)


# --- Triton ---------------------------------------------------------------------------------


def _interpreter() -> Shim:
    if "triton" in sys.modules and os.environ.get("TRITON_INTERPRET") != "1":
        raise ShimError("triton was imported before its interpreter was switched on")
    os.environ["TRITON_INTERPRET"] = "1"
    return Shim(
        name="interpreter",
        replaces="the GPU that runs Triton kernels",
        reason="TRITON_INTERPRET=1: Triton's own interpreter runs the kernels' source on the CPU",
    )


def _host_kernels() -> Shim:
    from kvproof.kernels.engines.host_kernels import SCHEDULER, interpret_scheduler

    interpret_scheduler()
    return Shim(
        name="host-kernels",
        replaces="the GPU under the scheduler's own Triton kernels: "
        f"{', '.join(sorted(SCHEDULER))}, where their tensors lie on the CPU",
        reason="pools, tree and scheduler stay on the CPU, which compiled kernels cannot reach; "
        "these few are interpreted, and no kernel that is under test",
    )


def _numpy_refuses_one_element() -> bool:
    """Whether NumPy makes no number of an array with one element: from 2.5 on."""
    import numpy as np

    try:
        int(np.zeros(1, dtype=np.int32))
    except TypeError:
        return True
    return False


def _one_element_index() -> Shim:
    """Let the interpreter take a tensor of one element for a bound of a loop."""
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: self.handle.data.item())

    interpreter._patch_lang_tensor = patch_tensor
    return Shim(
        name="one-element-index",
        replaces="how Triton's interpreter makes a number of a tensor with one element",
        reason="that of Triton 3.6 asks NumPy for it, which refuses from 2.5 on",
    )


def _warm_interpreter() -> Shim:
    """Leave out work of the interpreter that changes nothing of what a kernel computes.

    - `triton.language` is patched once for each kernel module, not once for each launch. Triton
      restores its patches so that the same process can also compile; here nothing is compiled.
    - Each 32-bit operation is done a second time in 64 bits for an overflow assertion that is
      dropped unless the builder's debug option is set, which it is not.
    - Pure look-ups (a type's numpy type, a kernel's signature) are remembered.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang
    patched: set[int] = set()

    class _Kept:
        def restore(self) -> None:
            """Keep the patches: nothing else uses the language in this process."""

    kept = _Kept()

    def patch_once(fn: Any) -> _Kept:
        key = id(fn.__globals__)
        if key not in patched:
            patch(fn)
            patched.add(key)
        return kept

    interpreter._patch_lang = patch_once
    look_up = interpreter._get_np_dtype
    numpy_types: dict[str, Any] = {}

    def numpy_type(tensor_type: Any) -> Any:
        name = tensor_type.scalar.name
        if name not in numpy_types:
            numpy_types[name] = look_up(tensor_type)
        return numpy_types[name]

    interpreter._get_np_dtype = numpy_type
    builder = interpreter.interpreter_builder
    if not builder.options.debug:
        builder.options = dataclasses.replace(builder.options, sanitize_overflow=False)
    signature = functools.cache(inspect.getfullargspec)
    interpreter.inspect = types.SimpleNamespace(
        **{name: getattr(inspect, name) for name in inspect.__all__} | {"getfullargspec": signature}
    )
    return Shim(
        name="interpreter-shortcuts",
        replaces="repeated patching and look-ups, and overflow checks whose result is dropped, in "
        "Triton's interpreter",
        reason="speed: what a kernel computes is unchanged",
    )


def _bfloat16_numbers() -> Shim:
    """Compute with bf16 numbers in the interpreter, which computes with their bit patterns.

    It keeps a bf16 tensor as 16-bit integers. `create_dot` multiplies those integers, and so does
    every elementwise operation: wrong without a word (seen in Triton 3.6 and 3.9). Here both widen
    their operands to float32, and an elementwise result is rounded back, to nearest even.
    """
    import numpy as np
    import triton.language as tl
    from triton.runtime import interpreter

    builder, handle = interpreter.InterpreterBuilder, interpreter.TensorHandle
    dot, binary = builder.create_dot, builder.binary_op

    def widened(tensor: Any) -> Any:
        if tensor.dtype.scalar != tl.bfloat16:
            return tensor
        return handle((tensor.data.astype(np.uint32) << 16).view(np.float32), tl.float32)

    def create_dot(self: Any, a: Any, b: Any, *rest: Any) -> Any:
        return dot(self, widened(a), widened(b), *rest)

    def binary_op(self: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        if lhs.dtype.scalar != tl.bfloat16:
            return binary(self, lhs, rhs, op)
        bits = binary(self, widened(lhs), widened(rhs), op).data.view(np.uint32)
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        # Rounding would carry a NaN's bits away.
        rounded = np.where((bits & 0x7FFFFFFF) > 0x7F800000, 0x7FC0, rounded)
        return handle(rounded.astype(np.uint16), tl.bfloat16)

    builder.create_dot, builder.binary_op = create_dot, binary_op
    return Shim(
        name="bf16-numbers",
        replaces="dot products and arithmetic on bf16 in Triton's interpreter",
        reason="it computes with the raw 16-bit patterns: attention would come out as noise",
    )


# --- Missing third-party modules ------------------------------------------------------------


def _stubs() -> Shim:
    import_stubs.install()
    return Shim(
        name="stubs",
        replaces="third-party modules that are named at the top of the engine's modules and are "
        "not installed",
        reason="serving, multi-modal and accelerator libraries; no cache or kernel code calls them",
    )


# --- The engine -----------------------------------------------------------------------------


@functools.cache
def engine_family() -> Family:
    """Layout of the engine that this process imports; raises kernels.engines.errors.EngineError."""
    spec = importlib.util.find_spec("sglang")
    if spec is None or not spec.submodule_search_locations:
        raise EngineError(
            "this process has no engine: sglang is not on its path",
            fix="start it with the environment that engine_env() gives",
        )
    return family_of(Path(next(iter(spec.submodule_search_locations))).parent)


def _no_cuda_engine() -> list[Shim]:
    """Let the engine find no NVIDIA GPU, where there is one, so that it is the same engine.

    On one it would import NVIDIA's serving libraries and choose other code around the caches. Its
    own question is asked once and remembered, so the GPU is hidden for that moment only.
    """
    import torch

    if torch.version.cuda is None or not torch.cuda.is_available():
        return []
    seen = torch.cuda.is_available
    torch.cuda.is_available = lambda: False
    try:
        common = importlib.import_module("sglang.srt.utils.common")
        if common.is_cuda() or common.is_cuda_alike():
            raise ShimError("the engine finds the NVIDIA GPU")
    finally:
        torch.cuda.is_available = seen
    if common.is_cuda():
        raise ShimError("the engine looks for a GPU each time, so none can be hidden from it")
    return [
        Shim(
            name="no-cuda-engine",
            replaces="is_cuda and is_cuda_alike in sglang.srt.utils.common, as remembered",
            reason="caches and scheduler run as on a machine without a GPU; kernels are launched "
            "on it by kvproof",
        )
    ]


def compute_units(count: int) -> Shim:
    """Tell the decode attention's wrapper how many compute units the GPU has.

    It splits a query's keys over the units that would be idle: 0 stands for no split.
    """
    place = engine_family().kernels["decode attention"].launch
    assert place is not None
    importlib.import_module(place.partition(":")[0])._cu_count = lambda: count  # type: ignore[attr-defined]
    return Shim(
        name="compute-units",
        replaces="_cu_count of the paged decode attention",
        reason="it asks aiter, which is ROCm only; the number chooses between the fused kernel and "
        "split-K, so both are played",
    )


def _rocm_gate() -> Shim:
    os.environ["SGLANG_HACK_FLASHMLA_BACKEND"] = "unified_kv_triton"
    gate = importlib.import_module(engine_family().parts["gate"].partition(":")[0])
    gate.is_hip = lambda: True  # type: ignore[attr-defined]
    for name in ("is_unified_kv_triton", "is_unified_kv_fp8"):
        cached = getattr(gate, name, None)
        if cached is not None:
            cached.cache_clear()
    if not gate.is_unified_kv_triton():
        raise ShimError(f"{gate.__name__} stays off with ROCm and the variable set")
    return Shim(
        name="rocm-gate",
        replaces=f"is_hip in {gate.__name__}, nowhere else",
        reason="unified_kv is ROCm only; its caches and kernels need no ROCm to be played",
    )


def _allocator_twins() -> list[Shim]:
    """Python for the page allocator's kernels, where the release itself picks no torch for a CPU.

    Its own `alloc_extend_naive` would do, but takes ten times as long as this.
    """
    import torch

    paged = importlib.import_module(engine_family().parts["page allocator"].partition(":")[0])
    if hasattr(paged, "alloc_decode_naive"):
        return []  # the release takes the torch functions on a CPU by its own choice

    class _Launch:
        """Stands where a kernel is launched as ``kernel[grid](...)``."""

        def __init__(self, run: Any) -> None:
            self.run = run

        def __getitem__(self, _grid: object) -> Any:
            return self.run

    def extend(*arguments: Any) -> None:
        prefix_lens, seq_lens, last_loc, free_pages, out, _, page_size = arguments
        pages = iter(free_pages.tolist())
        locs: list[int] = []
        for start, end, last in zip(
            prefix_lens.tolist(), seq_lens.tolist(), last_loc.tolist(), strict=True
        ):
            # The rest of the last page first, then new pages in the order of the free list.
            page_end = -(-start // page_size) * page_size
            locs += range(last + 1, last + 1 + min(end, page_end) - start)
            for at in range(page_end, end, page_size):
                page = next(pages, 0)  # too few: the caller counts pages and drops the result
                locs += range(page * page_size, page * page_size + min(page_size, end - at))
        out.copy_(torch.tensor(locs))

    def decode(*arguments: Any) -> None:
        seq_lens, last_loc, free_pages, out, _, page_size = arguments
        pages = iter(free_pages.tolist())
        out.copy_(
            torch.tensor(
                [
                    last + 1 if (length - 1) % page_size else next(pages, 0) * page_size
                    for length, last in zip(seq_lens.tolist(), last_loc.tolist(), strict=True)
                ]
            )
        )

    paged.alloc_extend_kernel = _Launch(extend)  # type: ignore[attr-defined]
    paged.alloc_decode_kernel = _Launch(decode)  # type: ignore[attr-defined]
    return [
        Shim(
            name="allocator-twins",
            replaces="alloc_extend_kernel and alloc_decode_kernel of the page allocator",
            reason="speed: the kernels' rule in Python, tested against the kernels; without this "
            "shim the real kernels run in the interpreter",
        )
    ]


_HOST_POOLS = ("memory_pool_host", "pool_host.base", "pool_host.mha", "pool_host.common")
"""Modules of ``mem_cache`` with host pools; not every release has all of them."""


def _unpinned(allocate: Any) -> Any:
    """A host pool's way to get memory, without what pins it."""

    def unpinned(dims: Any, *, pin_memory: bool, **rest: Any) -> Any:
        del pin_memory
        return allocate(dims, pin_memory=False, **rest)

    return unpinned


def _host_pool() -> list[Shim]:
    """What a host pool needs of a GPU: its driver, and the copies between host and device."""
    import torch

    def copy_pages(
        *,
        src_layers: list[torch.Tensor],
        dst_layers: list[torch.Tensor],
        src_indices: torch.Tensor,
        dst_indices: torch.Tensor,
        page_size: int,
    ) -> None:
        """Copy whole pages: the location of each page's first token is looked at, as there."""
        for source, destination in zip(src_layers, dst_layers, strict=True):
            for start in range(0, len(src_indices), page_size):
                at, to = int(src_indices[start]), int(dst_indices[start])
                destination[to : to + page_size] = source[at : at + page_size]

    modules = []
    for name in _HOST_POOLS:
        place = f"sglang.srt.mem_cache.{name}"
        with contextlib.suppress(ModuleNotFoundError):  # a release without it has another of them
            modules.append(importlib.import_module(place))
    if not any(hasattr(module, "MHATokenToKVPoolHost") for module in modules):
        raise ShimError("the engine has no host pools where kvproof looks for them")
    for module in modules:
        for name in ("_cuda_host_register", "_cuda_host_unregister"):
            if hasattr(module, name):
                setattr(module, name, lambda *_: None)
        if hasattr(module, "alloc_with_host_register"):  # up to 0.5.13
            module.alloc_with_host_register = _unpinned(module.alloc_with_host_register)  # type: ignore[attr-defined]
        if hasattr(module, "HICACHE_HOST_MEMORY_RESERVE_BYTES"):
            module.HICACHE_HOST_MEMORY_RESERVE_BYTES = 0  # type: ignore[attr-defined]
        if hasattr(module, "MHATokenToKVPoolHost"):
            module.transfer_kv_direct = copy_pages  # type: ignore[attr-defined]
    if not torch.distributed.is_initialized():
        store = torch.distributed.HashStore()  # type: ignore[attr-defined]
        torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return [
        Shim(
            name="process-group",
            replaces="the process group of a server's ranks: one of a single rank",
            reason="HiRadixCache asks for its size; nothing is sent, since nobody else is in it",
        ),
        Shim(
            name="host-registration",
            replaces="_cuda_host_register and _cuda_host_unregister of host pools, up to 0.5.13 "
            "pin_memory of alloc_with_host_register",
            reason="they pin memory with the CUDA driver, for copies that no CPU makes",
        ),
        Shim(
            name="host-reserve",
            replaces="HICACHE_HOST_MEMORY_RESERVE_BYTES: 0 instead of 10 GiB",
            reason="a host pool of some kilobytes must not need a machine with 10 GiB to spare",
        ),
        Shim(
            name="host-copies",
            replaces="transfer_kv_direct of sgl_kernel",
            reason="the copies between host and device are CUDA code: here torch copies the same "
            "pages at once and in order, so a race with a copy under way is not seen",
        ),
    ]
