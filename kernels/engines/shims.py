"""What is not real inside an engine's process, all of it, in one place.

The engine's own files are never edited. Everything that this module changes is returned by
`install` with its reason, so that `doctor` can show exactly what is real and what is not.
`install` runs before anything of sglang is imported.
"""

from __future__ import annotations

import dataclasses
import dis
import functools
import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import inspect
import os
import sys
import types
import typing
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType, FunctionType, ModuleType
from typing import Any

from kvproof.kernels.catalogue import Family, family_of
from kvproof.kernels.engines.errors import EngineError


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
    *, rocm_gate: bool, allocator_twins: bool = False, interpret: bool = True
) -> tuple[Shim, ...]:
    """Prepare this process for the engine and say how.

    Args:
        rocm_gate: switch unified_kv on as ROCm does. Off, it is the negative control: the engine
            then has no ring and no cap.
        allocator_twins: allocate pages by the kernels' rule in Python where the release would
            launch a Triton kernel.
        interpret: run kernels in the interpreter. Off, they can be compiled, and a launch fails.

    Raises:
        EngineError: the engine's layout is not a known one.
        ShimError: the gate stays off, or Triton was imported too early.
    """
    shims = [_interpreter(), _stubs()] if interpret else [_stubs()]
    if rocm_gate and engine_family().has_ring:
        shims.append(_rocm_gate())
    if interpret:
        shims.append(_warm_interpreter())
    if allocator_twins:
        shims.extend(_allocator_twins())
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


# --- Missing third-party modules ------------------------------------------------------------

_stubbed: list[str] = []


def stubbed_modules() -> list[str]:
    """Third-party modules that were missing and are stubs now, in order of first import."""
    return list(_stubbed)


class _StubType(type):
    """Class of stub attributes: any attribute of a stub is a stub class again."""

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub_class(name)

    def __call__(cls, *args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and isinstance(args[0], FunctionType | type):
            return args[0]  # used as a decorator, it leaves the engine's own code alone
        return super().__call__(*args, **kwargs)


class _Stub(metaclass=_StubType):
    """Can be subclassed, called, used as a decorator or a type, and does nothing."""

    def __init__(self, *_args: object, **_kwargs: object) -> None:
        """Accept anything."""

    def __call__(self, *args: Any, **_kwargs: object) -> Any:
        return args[0] if args else None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _stub_class(name)


def _stub_class(name: str) -> type:
    return _StubType(name, (_Stub,), {})


def _special(module: str, name: str) -> Any:
    """Stubs that the import chain uses while it is imported, not only names."""
    top = module.partition(".")[0]
    if (module, name) == ("dill", "dumps"):
        return lambda *_args, **_kwargs: b""
    if top == "xgrammar":
        return typing.Any
    if top == "openai":
        if name.endswith("Param"):
            from typing_extensions import TypedDict

            return TypedDict(name, {})  # type: ignore[operator]  # a name made at run time
        from pydantic import BaseModel

        return type(name, (BaseModel,), {"__module__": module})
    return None


class _StubModule(ModuleType):
    # transformers compares the version of what it finds; a stub is newer than any requirement.
    __version__ = "9999"

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        value = _special(self.__name__, name)
        if value is None:
            value = _stub_class(name)
        setattr(self, name, value)
        return value


class _StubFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Last finder of the import system: stubs what a module of sglang imports at its top level.

    An import inside a ``try`` is left to fail: the engine is prepared for that, and a stub
    would make it believe that an accelerator library is there. So is an import inside a
    function: whoever calls that function needs the real thing.
    """

    def find_spec(
        self, fullname: str, _path: Sequence[str] | None, _target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        parent = fullname.rpartition(".")[0]
        if fullname.partition(".")[0] == "sglang":
            return None
        if not (isinstance(sys.modules.get(parent), _StubModule) or _unguarded_engine_import()):
            return None
        return importlib.machinery.ModuleSpec(fullname, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        return _StubModule(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        _stubbed.append(module.__name__)


def _unguarded_engine_import() -> bool:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None and frame.f_globals.get("__name__") == "importlib._bootstrap":
        frame = frame.f_back
    if frame is None or frame.f_code.co_name != "<module>":
        return False
    if str(frame.f_globals.get("__name__")).partition(".")[0] != "sglang":
        return False
    return not any(
        entry.start <= frame.f_lasti < entry.end
        for entry in dis.Bytecode(frame.f_code).exception_entries  # type: ignore[attr-defined]
    )


def _stubs() -> Shim:
    finder = _StubFinder()
    sys.meta_path.append(finder)
    # transformers asks once whether these two are there and remembers it. Which module of the
    # engine imports them first must not decide the answer.
    for name in ("PIL", "torchvision"):
        if importlib.util.find_spec(name) is None:
            spec = importlib.machinery.ModuleSpec(name, finder, is_package=True)
            sys.modules[name] = importlib.util.module_from_spec(spec)
            finder.exec_module(sys.modules[name])
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
