"""The pools with one sliding-window layer, as every driver builds them, and how they are read."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np
import torch
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool
from sglang.srt.mem_cache.memory_pool import MHATokenToKVPool
from sglang.srt.mem_cache.swa_memory_pool import SWAKVPool

from kvproof.model.facts import MapRun
from kvproof.model.scenario import Geometry

_HEAD_DIMS = (8, 8)
"""Elements without and with RoPE of a row of the ring. Few, since the interpreter is slow."""

_PAGED_HEAD_DIMS = (448, 64)
"""The same of the pool without a ring (the gate off), whose fp8 layout is fixed."""

SWA_LAYER, FULL_LAYER = 0, 1
"""Layers of the hybrid pool."""

PAGED_HEAD_DIM = 4


def call_with_known(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call with those of the arguments that the release's own signature names."""
    names = _parameters(function)
    return function(**{name: value for name, value in arguments.items() if name in names})


@cache
def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Names of a function's parameters; every scenario's engine asks for the same few."""
    return frozenset(inspect.signature(function).parameters)


def window_layer_pool(
    geometry: Geometry,
    *,
    swa_tokens: int,
    unified: bool,
    compressed_tokens: int | None = None,
    device: str = "cpu",
) -> Any:
    """A `DeepSeekV4TokenToKVPool` of this process's release.

    Args:
        geometry: its sizes.
        swa_tokens: tokens of the SWA pool.
        unified: the gate is on, so the window lives in rings.
        compressed_tokens: tokens that a page of compressed rows stands for; a page's by default.
        device: torch's name of where it lies.
    """
    nope, rope = _HEAD_DIMS if unified else _PAGED_HEAD_DIMS
    return call_with_known(
        DeepSeekV4TokenToKVPool,
        {
            "max_num_reqs": geometry.slots,
            "swa_size": swa_tokens,
            "c4_size": 0,
            "c128_size": 1,
            "c4_state_pool_size": 0,
            "c128_state_pool_size": 0,
            "page_size": compressed_tokens or geometry.page_size,
            "swa_page_size": geometry.page_size,
            "dtype": torch.bfloat16 if unified else torch.float8_e4m3fn,
            "state_dtype": torch.float32,
            "c4_state_dtype": torch.float32,
            "c128_state_dtype": torch.float32,
            "qk_nope_head_dim": nope,
            "qk_rope_head_dim": rope,
            "indexer_head_dim": nope + rope,
            "layer_num": 1,
            "device": device,
            "enable_memory_saver": False,
            "compression_ratios": [0],  # a sliding-window layer alone: no compressed pages
            "sliding_window": geometry.window,
        },
    )


def paged_swa_pool(
    geometry: Geometry, *, swa_tokens: int, head_dim: int = PAGED_HEAD_DIM, device: str = "cpu"
) -> Any:
    """An `SWAKVPool` with one layer of each kind, as a hybrid model's runner builds it."""
    return call_with_known(
        SWAKVPool,
        {
            "size": geometry.pool_tokens,
            "size_swa": swa_tokens,
            "page_size": geometry.page_size,
            "dtype": torch.bfloat16,
            "head_num": 1,
            "head_dim": head_dim,
            "swa_attention_layer_ids": [SWA_LAYER],
            "full_attention_layer_ids": [FULL_LAYER],
            "enable_kvcache_transpose": False,
            "device": device,
        },
    )


def full_attention_pool(
    geometry: Geometry, *, head_dim: int = PAGED_HEAD_DIM, device: str = "cpu"
) -> Any:
    """An `MHATokenToKVPool` with one layer, as a runner builds it for full attention alone."""
    return call_with_known(
        MHATokenToKVPool,
        {
            "size": geometry.pool_tokens,
            "page_size": geometry.page_size,
            "dtype": torch.bfloat16,
            "head_num": 1,
            "head_dim": head_dim,
            "layer_num": 1,
            "device": device,
            "enable_memory_saver": False,
        },
    )


def free_pages(allocator: Any) -> tuple[int, ...]:
    """Pages that an allocator of one pool can lend, the list that it sorts only later included."""
    lists = (allocator.free_pages, allocator.release_pages)
    return tuple([page for pages in lists if pages is not None for page in pages.tolist()])


class MapReader:
    """Reads the full-to-SWA map, all of it each time; what it says is spelled out when it changes.

    Few operations change the map, and the runs cost more than the look.
    """

    def __init__(self) -> None:
        self._entries: bytes | None = None
        self._runs: tuple[MapRun, ...] = ()

    def runs(self, full_to_swa: Any) -> tuple[MapRun, ...]:
        """Runs of the map; its last entry, for the location -1, is none of the pool's."""
        entries = full_to_swa.numpy()[:-1]
        read = entries.tobytes()  # a copy: the engine goes on writing into its own
        if read != self._entries:
            self._entries = read
            self._runs = _runs(entries)
        return self._runs


def _runs(entries: Any) -> tuple[MapRun, ...]:
    locs = np.flatnonzero(entries)
    if not len(locs):
        return ()
    swa = entries[locs]
    breaks = np.flatnonzero((np.diff(locs) != 1) | (np.diff(swa) != 1)) + 1
    starts = np.concatenate(([0], breaks))
    lengths = np.diff(np.concatenate((starts, [len(locs)])))
    return tuple(zip(locs[starts].tolist(), swa[starts].tolist(), lengths.tolist(), strict=True))
