"""What kvproof uses of a release, and where it lies: a family is one layout.

Places are ``module:name``, as `pkgutil.resolve_name` takes them; resolving one imports the engine,
so do it in an engine's process only.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from kvproof.spec.window import Order


@dataclass(frozen=True, kw_only=True)
class Kernel:
    """One step that runs on the device.

    Attributes:
        launch: the engine's function that launches it; the kernel itself where only long methods of
            attention backends do.
        jit: the Triton kernels that are launched for it.
        rule: what it has to do: a rule of the specification, or a sentence.
    """

    launch: str
    jit: tuple[str, ...]
    rule: str


@dataclass(frozen=True, kw_only=True)
class Native:
    """A C++ kernel that the release ships as source and compiles at run time.

    Attributes:
        sources: below the release's ``csrc/deepseek_v4/``.
        launch: the engine's function or class that launches it.
        left_out: why it is listed and not compared; empty if it is compared.
    """

    sources: tuple[str, ...]
    launch: str
    left_out: str = ""


@dataclass(frozen=True, kw_only=True)
class Family:
    """Releases that keep the same things in the same places.

    Attributes:
        name: the oldest supported release with this layout.
        marker: file below the engine's root that this layout has and older ones have not.
        parts: scheduler, pool and tree classes by role.
        kernels: Triton kernels by what they do.
        verify_order: whether a verify step writes its draft's rows before or after it reads.
        methods: what the recorder listens to, by what happens there: ``module:Class.method``. None
            where nobody has looked yet; the recorder then declines.
        fields: what the recorder reads of a request: attribute paths, the first that it has. A
            length may be a number or a sequence of that many.
        native: C++ kernels that read or write rows of a ring, or compressed rows.
    """

    name: str
    marker: str
    parts: Mapping[str, str]
    kernels: Mapping[str, Kernel]
    verify_order: Order
    methods: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    fields: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    native: Mapping[str, Native] = field(default_factory=dict)

    @property
    def has_ring(self) -> bool:
        """Whether the release knows unified_kv, and so a ring, at all."""
        return "gate" in self.parts

    def part(self, role: str) -> Any:
        """The object of that role; imports it from the engine of this process."""
        return pkgutil.resolve_name(self.parts[role])

    def launcher(self, name: str) -> Any:
        """The engine's function that launches a kernel; imports it."""
        return pkgutil.resolve_name(self.kernels[name].launch)

    def jit(self, name: str) -> tuple[Any, ...]:
        """The Triton kernels behind a step; imports them."""
        return tuple(pkgutil.resolve_name(place) for place in self.kernels[name].jit)
