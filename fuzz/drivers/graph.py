"""Captured graphs: a real `torch.cuda.CUDAGraph`, and its stand-in where there is no GPU.

What matters of a CUDA graph here: a capture runs the Python code once and records the kernels with
the addresses that they were given. A replay runs the kernels again, on the same addresses, and none
of the Python. So a replay sees what was copied *into* the captured tensors since, and nothing of
what Python has bound to a name since; and intermediate tensors are storage that is written again.

`CpuGraph` does the same with torch's operators on the CPU: it records every operator that the code
dispatches, with its tensors. A replay runs them again and writes each result over the tensor that
the capture made. As on a GPU, a capture launches nothing: what its operators wrote in place is put
back when it ends. And one that reads a value back (``.item()``) fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class CaptureError(RuntimeError):
    """The code cannot be captured: it needs a value on the host, or makes no fixed storage."""


class Graph(Protocol):
    """A captured piece of code that can be run again on the same storage."""

    def capture(self) -> Any:
        """Context in which the code to capture runs once."""

    def replay(self) -> None:
        """Run what was captured, on the captured storage."""


@dataclass(frozen=True, slots=True)
class _Call:
    operator: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    results: tuple[torch.Tensor, ...]


_READS_BACK = frozenset({"aten::_local_scalar_dense", "aten::nonzero", "aten::is_nonzero"})
"""Operators that wait for the device, or whose result's shape depends on values."""


class _Recorder(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's own
    def __init__(self, calls: list[_Call]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own
        self.calls = calls
        self.written: dict[int, tuple[torch.UntypedStorage, torch.UntypedStorage]] = {}

    def put_back(self) -> None:
        """Undo what was written in place."""
        for storage, before in self.written.values():
            storage.copy_(before)

    def _keep(self, tensor: torch.Tensor) -> None:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.written:
            self.written[storage.data_ptr()] = (storage, storage.clone())  # type: ignore[no-untyped-call]  # torch's own

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        name = func._schema.name
        if name in _READS_BACK:
            raise CaptureError(f"{name} needs a value on the host while a graph is captured")
        for at, argument in enumerate(func._schema.arguments):
            if argument.alias_info is not None and argument.alias_info.is_write:
                given = args[at] if at < len(args) else kwargs.get(argument.name)
                for tensor in tree_flatten(given)[0]:
                    if torch.is_tensor(tensor):
                        self._keep(tensor)
        result = func(*args, **kwargs)
        if not func.is_view:
            made = tuple(leaf for leaf in tree_flatten(result)[0] if torch.is_tensor(leaf))
            self.calls.append(_Call(func, args, kwargs, made))
        return result


@dataclass(slots=True)
class CpuGraph:
    """Stand-in for a CUDA graph on the CPU."""

    _calls: list[_Call] = field(default_factory=list)

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Record the operators that run inside."""
        recorder = _Recorder(self._calls)
        try:
            with recorder:
                yield
        finally:
            recorder.put_back()

    def replay(self) -> None:
        """Run the recorded operators again; results go where the capture's went."""
        for call in self._calls:
            again = call.operator(*call.args, **call.kwargs)
            made = [leaf for leaf in tree_flatten(again)[0] if torch.is_tensor(leaf)]
            for old, new in zip(call.results, made, strict=True):
                # An operator that writes in place gives the captured tensor itself back.
                if old.data_ptr() != new.data_ptr() or old.shape != new.shape:
                    old.copy_(new)


class CudaGraph:
    """A real one; needs a GPU."""

    def __init__(self) -> None:
        self._graph = torch.cuda.CUDAGraph()

    @contextmanager
    def capture(self) -> Iterator[None]:
        """Capture what runs inside."""
        torch.cuda.synchronize()
        with torch.cuda.graph(self._graph):
            yield

    def replay(self) -> None:
        """Launch the captured kernels."""
        self._graph.replay()
        torch.cuda.synchronize()


def capture(graph: Graph, code: Callable[[], None]) -> None:
    """Run ``code`` once to warm up, as engines do, and once while it is captured."""
    code()
    with graph.capture():
        code()


def make_graph(device: str) -> Graph:
    """The graph of a device."""
    return CudaGraph() if torch.device(device).type == "cuda" else CpuGraph()
