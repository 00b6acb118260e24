"""Translation in the Triton attention backend, over an `SWAKVPool`.

The backend plans each forward once: where the SWA layers store (``swa_out_cache_loc``) and what
their windows read (``window_kv_indices``). Its real `forward_extend` and `forward_decode` run, up
to the attention kernels, which are replaced by a look at what they are given.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.configs.model_config import AttentionArch
from sglang.srt.layers.attention.triton_backend import (
    TritonAttnBackend,
    TritonMultiStepDraftBackend,
)
from sglang.srt.layers.radix_attention import RadixAttention
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from transformers import PretrainedConfig

from kvproof.fuzz.drivers.pool import PAGED_HEAD_DIM, SWA_LAYER, paged_swa_pool
from kvproof.fuzz.drivers.translation import (
    INTEGERS,
    TranslationEngine,
    Use,
    dtype_of,
    engine_line,
)
from kvproof.model import forwards
from kvproof.model.player import RefusedError


class Engine(TranslationEngine):
    """Adapter of `TritonAttnBackend` and `TritonMultiStepDraftBackend`."""

    def __init__(self, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._target = self._watched(TritonAttnBackend(self._model_runner(draft=False)))
        self._backends: dict[str, Any] = {"target": self._target}
        self._target_has_graphs = False
        self._layer_module = RadixAttention(
            num_heads=1,
            head_dim=PAGED_HEAD_DIM,
            scaling=1.0,
            num_kv_heads=1,
            layer_id=SWA_LAYER,
            sliding_window_size=self.geometry.window,
        )
        self._watch_stores()

    def _make_pool(self) -> Any:
        return paged_swa_pool(
            self.geometry, swa_tokens=self.geometry.swa_pool_tokens, device=self.device
        )

    def _backend_classes(self) -> dict[str, Any]:
        return {"attention backend": TritonAttnBackend, "draft": TritonMultiStepDraftBackend}

    def _model_runner(self, *, draft: bool) -> Any:
        """What the backends ask of a model runner: its pools, and one small model's sizes."""
        return SimpleNamespace(
            req_to_token_pool=self.requests,
            token_to_kv_pool=self.pool,
            token_to_kv_pool_allocator=self.allocator,
            kv_index_translator=self.translator,
            sliding_window_size=self.geometry.window,
            page_size=self.geometry.page_size,
            server_args=self.server_args,
            model_config=SimpleNamespace(
                attention_arch=AttentionArch.MHA,
                num_attention_heads=1,
                get_max_num_attention_heads=lambda: 1,
                get_num_kv_heads=lambda *_sizes: 1,
                head_dim=PAGED_HEAD_DIM,
                v_head_dim=PAGED_HEAD_DIM,
                swa_v_head_dim=PAGED_HEAD_DIM,
                context_len=self.max_tokens,
                is_encoder_decoder=False,
                hf_config=PretrainedConfig(architectures=["Gemma3ForCausalLM"]),
                linear_attn_registry_result=None,
            ),
            hybrid_gdn_config=None,
            kimi_linear_config=None,
            linear_attn_model_spec=None,
            device=self.device,
            gpu_id=0,
            is_draft_worker=draft,
            spec_algorithm=SpeculativeAlgorithm.EAGLE,
            kv_cache_dtype=torch.bfloat16,
            decode_num_tokens_per_req=lambda: self.geometry.draft_tokens,
        )

    def _backend(self, mode: forwards.ForwardMode) -> Any:
        """The backend of a mode; a draft model has its own."""
        if mode not in ("draft", "draft_extend"):
            return self._target
        if mode not in self._backends:
            runner = self._model_runner(draft=True)
            if mode == "draft_extend":
                self._backends[mode] = self._watched(TritonAttnBackend(runner))
            else:
                steps = self.geometry.draft_tokens - 1
                backend = TritonMultiStepDraftBackend(runner, 1, steps)
                for part in backend.attn_backends:
                    self._watched(part)
                self._backends[mode] = backend
        return self._backends[mode]

    # --- looking --------------------------------------------------------------------------

    def _watched(self, backend: Any) -> Any:
        """The backend with its attention kernels replaced by a look at their arguments."""

        def extend(*arguments: Any, **_options: Any) -> None:
            self._read(indptr=arguments[7], indices=arguments[8])

        def decode(*arguments: Any, **_options: Any) -> None:
            self._read(indptr=arguments[4], indices=arguments[5])

        backend.extend_attention_fwd = extend
        backend.decode_attention_fwd = decode
        return backend

    def _read(self, *, indptr: torch.Tensor | None, indices: torch.Tensor | None) -> None:
        self.uses.append(
            Use(
                store=False,
                step=self.step,
                indices=None if indices is None else indices.clone(),
                indptr=None if indptr is None or indices is None else indptr.clone(),
                dtype=dtype_of(indices),
                takes=(*INTEGERS, *(("none",) if indices is None else ())),
                where=engine_line(),
            )
        )

    def _watch_stores(self) -> None:
        """Look at where the pool's `set_kv_buffer` is told to store, and let it."""
        store = self.pool.set_kv_buffer

        def watched(layer: Any, loc_info: Any, *arguments: Any, **options: Any) -> None:
            swa = loc_info.swa_loc
            self.uses.append(
                Use(
                    store=True,
                    step=self.step,
                    locs=loc_info.loc.clone(),
                    indices=None if swa is None else swa.clone(),
                    dtype=dtype_of(swa),
                    takes=(*INTEGERS, *(("none",) if swa is None else ())),
                    where=engine_line(),
                )
            )
            if swa is not None:
                store(layer, loc_info, *arguments, **options)

        self.pool.set_kv_buffer = watched

    # --- forwards -------------------------------------------------------------------------

    def _plan(self, batch: Any, *, in_graph: bool) -> None:
        self._backend(self.mode).init_forward_metadata(batch)

    def _layer(self, batch: Any) -> None:
        self._run(self.mode, batch)

    def _run(self, mode: forwards.ForwardMode, batch: Any) -> None:
        backend = self._backend(mode)
        if mode != "draft":
            self._attend(backend, batch, decodes=mode == "decode")
            return
        for step in self.draft_steps(batch, len(backend.attn_backends)):
            self._attend(backend.attn_backends[step], batch, decodes=True)

    def _attend(self, backend: Any, batch: Any, *, decodes: bool) -> None:
        rows = batch.out_cache_loc.shape[0]
        q, k, v = (
            torch.zeros(rows, 1, PAGED_HEAD_DIM, dtype=torch.bfloat16, device=self.device)
            for _ in range(3)
        )
        run = backend.forward_decode if decodes else backend.forward_extend
        run(q.view(rows, PAGED_HEAD_DIM), k, v, self._layer_module, batch)

    def pad(self, rows: int) -> None:
        """Not played: `ForwardBatch` is padded before this backend plans it."""
        raise RefusedError("the backend plans a batch that is padded already")

    def idle(self, rows: int) -> list[Any]:
        """Not played: a layer of this backend does not run for an idle rank."""
        raise RefusedError("an idle forward runs no layer of this backend")

    # --- graphs ---------------------------------------------------------------------------

    def _graph_backend(self, mode: forwards.ForwardMode) -> Any:
        backend = self._backend(mode)
        slots = self.geometry.slots
        if backend is not self._target:
            backend.init_cuda_graph_state(slots, slots * self.width(mode))
        elif not self._target_has_graphs:
            # A server's target decodes or verifies: one runner, which makes the storage of its
            # graphs once. Here it may do both, and what the first graph captured has to stay.
            backend.init_cuda_graph_state(slots, slots * self.geometry.draft_tokens)
            self._target_has_graphs = True
        return backend

    def _graph_code(self, mode: forwards.ForwardMode, batch: Any) -> Callable[[], None]:
        backend = self._backend(mode)
        backend.init_forward_metadata_out_graph(batch, in_capture=True)

        def code() -> None:
            backend.init_forward_metadata_in_graph(batch)
            self._run(mode, batch)

        return code
