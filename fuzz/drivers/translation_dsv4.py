"""Translation in DeepSeek-V4's backend: a resolver at each store.

`init_forward_metadata_in_graph` caches the translation on the forward's metadata, and
`get_swa_out_cache_loc` decides at each store whether to take it: theorems T1 to T4 are about that
function. What is real: the two methods, the metadata classes and how one is copied into another
before a replay, the pool, the allocator and its map, the runner's copies into its buffers. The
backend is made without its constructor, and the rest of its metadata (compressed pages, indexer) is
not built: it takes no part in the translation. Windows are read from pages of 256 tokens there, so
this adapter judges stores alone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.attention.deepseek_v4_backend_hip_radix import (
    DeepseekV4HipRadixBackend,
    DSV4AttnMetadata,
    DSV4Metadata,
)
from sglang.srt.model_executor.forward_batch_info import ForwardBatch, ForwardMode

from kvproof.fuzz.drivers.graph_runners import without_constructor
from kvproof.fuzz.drivers.pool import window_layer_pool
from kvproof.fuzz.drivers.translation import TranslationEngine, Use, dtype_of, watch_return
from kvproof.model import forwards
from kvproof.model.facts import Consumed

_RESOLVER = "get_swa_out_cache_loc"

_STORE_TAKES = ("int32",)
"""What the backend's store kernels are made for; PR #27091 converts where metadata is built."""


def _blank(cls: Any) -> Any:
    """A metadata object of which nothing was built: every field None, as far as it may be."""
    made = object.__new__(cls)
    for each in fields(cls):
        object.__setattr__(made, each.name, None)
    return made


class Engine(TranslationEngine):
    """Adapter of `DeepseekV4HipRadixBackend`'s write resolver."""

    names_rows = False

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._backends = [self._make_backend(step) for step in range(self._steps)]

    @property
    def _steps(self) -> int:
        return max(1, self.geometry.draft_tokens - 2)

    def _make_pool(self) -> Any:
        return window_layer_pool(
            self.geometry,
            swa_tokens=self.geometry.swa_pool_tokens,
            unified=False,
            device=self.device,
        )

    def _make_backend(self, step: int) -> Any:
        return without_constructor(
            DeepseekV4HipRadixBackend, token_to_kv_pool=self.pool, speculative_step_id=step
        )

    def _backend_classes(self) -> dict[str, Any]:
        return {"attention backend": DeepseekV4HipRadixBackend, "metadata": DSV4Metadata}

    def _resolve(self, backend: Any, batch: Any) -> tuple[torch.Tensor, bool, str]:
        """Where a store goes, whether it is the plan's, and the engine's line."""
        found, where = watch_return(_RESOLVER, lambda: getattr(backend, _RESOLVER)(batch))
        core = getattr(backend.forward_metadata, "core_attn_metadata", None)
        return found, core is not None and found is core.swa_out_cache_loc, where

    def _use(self, mode: forwards.ForwardMode) -> list[Any]:
        """The backends of a mode, set to what the runner of that mode gives them."""
        draft = mode == "draft"
        backends = self._backends if draft else self._backends[:1]
        for backend in backends:
            # A target's backend knows no draft steps; a draft's slices by them.
            backend.topk = 1 if draft else 0
            backend.speculative_num_steps = self.geometry.draft_tokens - 1 if draft else 0
        return backends

    # --- forwards -------------------------------------------------------------------------

    def _plan(self, batch: Any, *, in_graph: bool) -> None:
        for backend in self._use(self.mode):
            backend.forward_metadata = blank_metadata()
            if in_graph:
                backend.init_forward_metadata_in_graph(batch)

    def _layer(self, batch: Any) -> None:
        self._run(self.mode, batch)

    def _run(self, mode: forwards.ForwardMode, batch: Any) -> None:
        backends = self._use(mode)
        if mode != "draft":
            self._store(backends[0], batch)
            return
        for step in self.draft_steps(batch, len(backends)):
            self._store(backends[step], batch)

    def _store(self, backend: Any, batch: Any) -> None:
        """What `store_cache` and the model's fused stores begin with."""
        found, cached, where = self._resolve(backend, batch)
        self.uses.append(
            Use(
                store=True,
                step=self.step,
                locs=batch.out_cache_loc.clone(),
                indices=found.clone(),
                dtype=dtype_of(found),
                takes=_STORE_TAKES,
                ring=self.names_rows,
                cached=cached,
                where=where,
            )
        )

    def idle(self, rows: int) -> list[Consumed]:
        """A rank without work stores its padded rows; nobody plans for it."""
        none = self._tensor(())
        batch = ForwardBatch(
            forward_mode=ForwardMode.IDLE,
            batch_size=0,
            input_ids=none,
            req_pool_indices=none,
            seq_lens=none,
            seq_lens_sum=0,
            out_cache_loc=none,
            positions=none,
            lora_ids=[],
        )
        self.pad_batch(batch, tokens=rows, requests=rows)
        self.uses, self.step = [], 0
        self._store(self._use("decode")[0], batch)
        return [use.fact("idle") for use in self.uses]

    # --- graphs ---------------------------------------------------------------------------

    def _graph_backend(self, mode: forwards.ForwardMode) -> Any:
        captured: list[Any] = []

        def prepare(view: Any, in_capture: bool = False) -> None:
            """Plan outside the graph: the captured metadata takes a fresh plan over."""
            fresh = [self._outside(mode, backend, view) for backend in self._use(mode)]
            if in_capture:
                captured[:] = fresh
            for backend, metadata, plan in zip(self._use(mode), captured, fresh, strict=True):
                if plan is not metadata:
                    metadata.core_attn_metadata.copy_(plan.core_attn_metadata)
                backend.forward_metadata = metadata

        return SimpleNamespace(
            init_forward_metadata_out_graph=prepare, shared_read_ends=lambda _mode: None
        )

    def _outside(self, mode: forwards.ForwardMode, backend: Any, view: Any) -> Any:
        """What is planned outside the graph."""
        return blank_metadata()

    def _graph_code(self, mode: forwards.ForwardMode, batch: Any) -> Callable[[], None]:
        self._runners[mode].backend.init_forward_metadata_out_graph(batch, in_capture=True)

        def code() -> None:
            for backend in self._use(mode):
                backend.init_forward_metadata_in_graph(batch)
            self._run(mode, batch)

        return code


def blank_metadata() -> Any:
    """Metadata of a forward that was planned outside the graph alone."""
    metadata = _blank(DSV4Metadata)
    metadata.core_attn_metadata = _blank(DSV4AttnMetadata)
    return metadata
