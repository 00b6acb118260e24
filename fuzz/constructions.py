"""Constructions: what a release's scheduler, pools and tree can be put together as.

A construction is a choice of the model, of the release's own arguments and of its environment
variables; the release's own code then builds what it builds. This table is read on both sides of
an engine's pipe: `targets` offers what a family has, and the driver does as the table says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

REGISTRY = "registry"
"""DeepSeek-V4 as the release's own registry and configuration code build it."""

SWA_TREE = "SWARadixCache"
"""The tree that the registry no longer takes; the fix of PR #30339 is in it (theorem C5)."""

PAGED_SWA = "paged-swa"
"""A hybrid model with an index-addressed SWA pool, as the registry builds its tree."""

UNIFIED = "paged-swa-unified"
"""The same over `UnifiedRadixCache`, where that is an operator's choice."""

PAGED_SWA_TREE = "paged-swa-SWARadixCache"
"""The same over `SWARadixCache`, where the registry no longer takes it."""

PAGED_PYTHON = "paged-swa-python"
"""The same over the Python tree core, where the Rust core is the default."""

EARLY_RELEASE = "paged-swa-early-release"
"""The same, and the lock on a window is given back once the request has decoded past it."""

INTERVAL = "paged-swa-interval"
"""A hybrid model whose running requests give SWA pages back every second time only."""

DFLASH = "paged-swa-dflash"
"""A hybrid model whose drafts are DFLASH's, which prepares its steps by other code than EAGLE."""

COMPACT = "paged-swa-compact"
"""The same, and a match merges nodes that are alone on their path."""

UNIFIED_EARLY_RELEASE = "paged-swa-unified-early-release"
"""`EARLY_RELEASE` over `UnifiedRadixCache`, where that is an operator's choice."""

NO_MARGIN = "paged-swa-no-margin"
"""The same, and a running request gives back all whole SWA pages before its window."""

CHUNK = "chunk"
"""DeepSeek-V4 with ``disable_radix_cache``: nothing is reused, so there is nothing to cap."""

PAGED_CHUNK = "paged-swa-chunk"
"""A hybrid model with ``disable_radix_cache``."""

PAGED_UNCHUNKED = "paged-swa-unchunked"
"""A hybrid model with ``disable_radix_cache``, and with prefills in one piece."""

PAGED_SWA_HICACHE = "paged-swa-hicache"
"""A hybrid model with ``enable_hierarchical_cache``: prefixes and windows have host pools."""

PAGED = "paged"
"""A model with full attention alone, in pages of one pool."""

PAGED_HICACHE = "paged-hicache"
"""The same with ``enable_hierarchical_cache``: that pool has a host pool."""
LATE_COPIES = "paged-swa-hicache-late"
"""The same, and copies to the host are still under way when the next step is scheduled."""

WRITE_BACK = "paged-swa-hicache-write-back"
"""The same, and what is evicted goes to the host then, not when it is published."""

PYTHON_CORE = "python-core"
"""`REGISTRY` over the Python tree core, where the Rust core is the default."""


EAGLE = "EAGLE"


@dataclass(frozen=True, kw_only=True, slots=True)
class Construction:
    """One way to put an engine together.

    Attributes:
        paged: keys live in pages that are looked up by location, also those of a window; else in
            DeepSeek-V4's pool, with its rings if the gate is on.
        slides: whether some layers see a window alone; their keys have a pool of their own.
        tree: a tree that is plugged into the registry by its name here; empty for its own choice.
        reuses: whether there is a tree that keeps prefixes.
        drafter: the speculative algorithm of a geometry that drafts.
        arguments: of the server.
        environment: variables of the engine that an operator may set.
        late_copies: whether copies to the host outlast the next step.
        by_name: whether it is played only where it is asked for by name: a variant of another.
    """

    paged: bool = False
    slides: bool = True
    tree: str = ""
    reuses: bool = True
    drafter: str = EAGLE
    arguments: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, str] = field(default_factory=dict)
    late_copies: bool = False
    by_name: bool = False

    @property
    def has_host_pool(self) -> bool:
        """Whether what leaves the device's pools is kept in the host's memory."""
        return "enable_hierarchical_cache" in self.arguments


# A server on a GPU sets the chunk's size by itself; without one some releases take another class.
_HOST_POOL: dict[str, Any] = {
    "enable_hierarchical_cache": True,
    "hicache_ratio": 2.0,
    # Of the two ways to copy, the one that moves whole pages between layers of a pool.
    "hicache_io_backend": "direct",
    "hicache_mem_layout": "layer_first",
}

_NO_TREE: dict[str, Any] = {"disable_radix_cache": True, "chunked_prefill_size": 8192}
_NO_CHUNKS: dict[str, Any] = {"disable_radix_cache": True}
_PYTHON = {"SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}

_EACH_STEP = {
    # Windows are a few tokens here, not 128 as the default of this interval supposes.
    # Before 0.5.14 it is a window, which will do.
    "SGLANG_SWA_EVICTION_INTERVAL": "1",
}
_UNIFIED_TREE = {"SGLANG_ENABLE_UNIFIED_RADIX_TREE": "1"}
_EARLY_RELEASE = {"SGLANG_OPT_SWA_RELEASE_LEAF_LOCK_AFTER_WINDOW": "1"}

CONSTRUCTIONS: dict[str, Construction] = {
    REGISTRY: Construction(),
    SWA_TREE: Construction(tree=SWA_TREE),
    PYTHON_CORE: Construction(environment=_PYTHON, by_name=True),
    CHUNK: Construction(reuses=False, arguments=_NO_TREE, by_name=True),
    PAGED_SWA: Construction(paged=True, environment=_EACH_STEP),
    UNIFIED: Construction(paged=True, by_name=True, environment=_EACH_STEP | _UNIFIED_TREE),
    PAGED_SWA_TREE: Construction(paged=True, by_name=True, tree=SWA_TREE, environment=_EACH_STEP),
    PAGED_PYTHON: Construction(paged=True, by_name=True, environment=_EACH_STEP | _PYTHON),
    EARLY_RELEASE: Construction(
        paged=True,
        by_name=True,
        environment=_EACH_STEP | _EARLY_RELEASE,
    ),
    COMPACT: Construction(
        paged=True,
        by_name=True,
        environment=_EACH_STEP | {"SGLANG_OPT_SWA_RADIX_CACHE_COMPACT": "1"},
    ),
    UNIFIED_EARLY_RELEASE: Construction(
        paged=True, by_name=True, environment=_EACH_STEP | _UNIFIED_TREE | _EARLY_RELEASE
    ),
    NO_MARGIN: Construction(
        paged=True,
        by_name=True,
        environment=_EACH_STEP | {"SGLANG_OPT_SWA_EVICT_DROP_PAGE_MARGIN": "1"},
    ),
    INTERVAL: Construction(
        paged=True, by_name=True, environment={"SGLANG_SWA_EVICTION_INTERVAL": "2"}
    ),
    DFLASH: Construction(paged=True, by_name=True, drafter="DFLASH", environment=_EACH_STEP),
    PAGED_CHUNK: Construction(
        paged=True, by_name=True, reuses=False, arguments=_NO_TREE, environment=_EACH_STEP
    ),
    PAGED_UNCHUNKED: Construction(
        paged=True, by_name=True, reuses=False, arguments=_NO_CHUNKS, environment=_EACH_STEP
    ),
    PAGED_SWA_HICACHE: Construction(
        paged=True, by_name=True, arguments=_HOST_POOL, environment=_EACH_STEP
    ),
    LATE_COPIES: Construction(
        paged=True,
        by_name=True,
        late_copies=True,
        arguments=_HOST_POOL,
        environment=_EACH_STEP,
    ),
    WRITE_BACK: Construction(
        paged=True,
        by_name=True,
        arguments=_HOST_POOL | {"hicache_write_policy": "write_back"},
        environment=_EACH_STEP,
    ),
    PAGED: Construction(paged=True, slides=False, by_name=True),
    PAGED_HICACHE: Construction(paged=True, slides=False, by_name=True, arguments=_HOST_POOL),
}

_HOST = (PAGED_SWA_HICACHE, LATE_COPIES, WRITE_BACK)
_ALL = (CHUNK, PAGED_SWA, EARLY_RELEASE, PAGED_CHUNK, PAGED_UNCHUNKED, PAGED, PAGED_HICACHE)
_BEFORE_UNIFIED = (REGISTRY, *_ALL, UNIFIED, COMPACT)
_BOTH_TREES = (REGISTRY, SWA_TREE, *_ALL, PAGED_SWA_TREE, INTERVAL, DFLASH, *_HOST)
_BOTH_CORES = (REGISTRY, PYTHON_CORE, *_ALL, PAGED_PYTHON, INTERVAL, DFLASH, *_HOST)

BY_FAMILY: dict[str, tuple[str, ...]] = {
    "0.5.12": _BEFORE_UNIFIED,
    "0.5.13": (*_BEFORE_UNIFIED, NO_MARGIN, *_HOST),
    "0.5.14": (*_BEFORE_UNIFIED, UNIFIED_EARLY_RELEASE, NO_MARGIN, INTERVAL, DFLASH, *_HOST),
    "0.5.16": _BOTH_TREES,
    "0.5.17": _BOTH_TREES,
    "0.5.18": _BOTH_TREES,
    "0.5.19": _BOTH_TREES,
    "0.5.20": _BOTH_TREES,
    "0.5.21": _BOTH_CORES,
    "0.5.22": _BOTH_CORES,
    "0.5.23": _BOTH_CORES,
}
"""Constructions by release family."""


def has_ring(name: str) -> bool:
    """Whether a cache of this construction has rings where its release has any."""
    construction = CONSTRUCTIONS.get(name)
    return construction is not None and not construction.paged


def slides(name: str) -> bool:
    """Whether some layers of the model see a window alone."""
    construction = CONSTRUCTIONS.get(name)
    return construction is None or construction.slides


def has_host_pool(name: str) -> bool:
    """Whether a cache of this construction keeps in the host's memory what it evicts."""
    construction = CONSTRUCTIONS.get(name)
    return construction is not None and construction.has_host_pool


def releases_early(name: str) -> bool:
    """Whether the lock on a window is given up as soon as the window has left it."""
    construction = CONSTRUCTIONS.get(name)
    return construction is not None and _EARLY_RELEASE.items() <= construction.environment.items()


def no_overlap(family: str, name: str) -> str:
    """Why the drivers play no overlap scheduling there; empty where they do."""
    if family == "0.5.12":
        return "0.5.12 takes results in the scheduler itself, which the drivers leave out"
    if has_host_pool(name):
        return "the drivers do not overlap steps of a hierarchical cache"
    return ""
