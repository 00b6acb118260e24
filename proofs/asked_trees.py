"""A release's own tree, asked what the insert of an unfinished request makes of it.

Imported in an engine's process, after the shims. Tree, allocator and pool are the release's own,
with pages of one token; the request is a stand-in with what the tree reads of one.
"""

from __future__ import annotations

import importlib
import inspect
from array import array
from types import SimpleNamespace
from typing import Any, Literal, TypeAlias

import torch

from kvproof.kernels.engines.shims import engine_family

TreeName: TypeAlias = Literal["SWARadixCache", "UnifiedRadixCache"]

_MODULES = {"SWARadixCache": "swa_radix_cache", "UnifiedRadixCache": "unified_radix_cache"}
_CACHE = "sglang.srt.mem_cache"


class _Request(SimpleNamespace):
    """A request's memory, and its tokens, under every name that a release has for them."""

    tokens: array[int]
    extra_key = session = None
    priority = 0

    @property
    def kv(self) -> _Request:
        return self

    @property
    def fill_ids(self) -> list[int]:
        return self.tokens.tolist()

    def get_fill_ids(self) -> array[int]:
        return self.tokens


class _Tree:
    """A tree of this process's release with room for ``requests`` requests of ``length`` tokens."""

    def __init__(self, name: TreeName, *, window: int, requests: int, length: int) -> None:
        size = requests * length
        make: Any = importlib.import_module(f"{_CACHE}.swa_memory_pool").SWAKVPool
        older = {"enable_kvcache_transpose": False}
        known = inspect.signature(make).parameters
        pool = make(
            size=size, size_swa=size, page_size=1, dtype=torch.bfloat16, head_num=1, head_dim=4,
            swa_attention_layer_ids=[0], full_attention_layer_ids=[1], device="cpu",
            **{name: value for name, value in older.items() if name in known},
        )  # fmt: skip
        self.allocator = engine_family().part("allocator")(
            size, size, page_size=1, dtype=torch.bfloat16, device="cpu", kvcache=pool,
            need_sort=False,
        )  # fmt: skip
        self.size = size
        self.table = torch.zeros(requests, length, dtype=torch.int32)
        self.kind = engine_family().part("component type")
        params: Any = importlib.import_module(f"{_CACHE}.cache_init_params")
        module: Any = importlib.import_module(f"{_CACHE}.{_MODULES[name]}")
        self.tree = getattr(module, name)(
            params.CacheInitParams(
                disable=False,
                req_to_token_pool=SimpleNamespace(
                    req_to_token=self.table, write=self.table.__setitem__
                ),
                token_to_kv_pool_allocator=self.allocator,
                page_size=1,
                sliding_window_size=window,
                tree_components=(self.kind.FULL, self.kind.SWA),
            )
        )

    def computed(self, slot: int) -> _Request:
        """A request in that slot whose tokens, the same for all, were all computed."""
        length = self.table.shape[1]
        self.table[slot] = self.allocator.alloc(length)
        return _Request(
            req_pool_idx=slot,
            tokens=array("q", range(length)),
            fill_len=length,
            extend_range=SimpleNamespace(start=0, end=length),
            cache_protected_len=0,
            swa_evicted_seqlen=0,
            swa_uuid_for_lock=None,
            swa_prefix_lock_released=False,
            last_node=self.tree.root_node,
        )


def live_after_insert(
    name: TreeName, *, window: int, computed_len: int, evicted: int
) -> tuple[int, ...]:
    """Tokens that the tree says have a window's half, and those that the SWA pool has lent."""
    asked = _Tree(name, window=window, requests=1, length=computed_len)
    request = asked.computed(0)
    asked.allocator.free_swa(asked.table[0, :evicted].to(torch.int64))
    request.swa_evicted_seqlen = evicted
    asked.tree.cache_unfinished_req(request)
    lent = asked.size - asked.allocator.swa_available_size()
    return asked.tree.swa_evictable_size() + asked.tree.swa_protected_size(), lent


def locks_after_insert(*, window: int) -> tuple[int, ...]:
    """Locks on the window of two requests, after the first gave its up early and was inserted."""
    asked = _Tree("UnifiedRadixCache", window=window, requests=2, length=window)
    first, second = asked.computed(0), asked.computed(1)
    asked.tree.cache_unfinished_req(first)
    asked.tree.cache_unfinished_req(second)
    asked.tree.dec_swa_lock_only(first.last_node, first.swa_uuid_for_lock)
    first.swa_prefix_lock_released = True
    asked.tree.cache_unfinished_req(first)
    return (second.last_node.component_data[asked.kind.SWA].lock_ref,)
