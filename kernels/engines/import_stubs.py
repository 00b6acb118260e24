"""Stubs for third-party modules that an engine names at its top level and that are not installed.

Standard library only, and nothing of kvproof: `kvproof export` puts a copy of this file beside the
test that it makes, so that the test runs where SGLang's serving libraries are missing:

    python import_stubs.py test_case.py
"""

from __future__ import annotations

import dis
import importlib.abc
import importlib.machinery
import importlib.util
import runpy
import sys
import typing
from collections.abc import Sequence
from types import FrameType, FunctionType, ModuleType
from typing import Any

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


def install() -> None:
    """From now on, stub what is missing."""
    finder = _StubFinder()
    sys.meta_path.append(finder)
    # transformers asks once whether these two are there and remembers it. Which module of the
    # engine imports them first must not decide the answer.
    for name in ("PIL", "torchvision"):
        if importlib.util.find_spec(name) is None:
            spec = importlib.machinery.ModuleSpec(name, finder, is_package=True)
            sys.modules[name] = importlib.util.module_from_spec(spec)
            finder.exec_module(sys.modules[name])


if __name__ == "__main__":
    install()
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
