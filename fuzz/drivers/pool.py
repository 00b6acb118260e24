"""DeepSeek-V4's pool with one sliding-window layer, as every driver of it builds it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch
from sglang.srt.mem_cache.deepseek_v4_memory_pool import DeepSeekV4TokenToKVPool

from kvproof.model.scenario import Geometry

_HEAD_DIMS = (8, 8)
"""Elements without and with RoPE of a row of the ring. Few, since the interpreter is slow."""

_PAGED_HEAD_DIMS = (448, 64)
"""The same of the pool without a ring (the gate off), whose fp8 layout is fixed."""


def call_with_known(function: Callable[..., Any], arguments: Mapping[str, Any]) -> Any:
    """Call with those of the arguments that the release's own signature names."""
    names = inspect.signature(function).parameters
    return function(**{name: value for name, value in arguments.items() if name in names})


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
