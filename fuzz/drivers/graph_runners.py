"""The release's graph runners, as far as they copy a batch into their buffers.

A runner copies what its captured graph reads, lets the backend prepare the metadata outside of the
graph, and replays. Those methods are the release's own. The object is made without its constructor,
which would load a model: what is named here is set, and every other option of the runner is off.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.model_executor.cuda_graph_buffer_registry import build_decode_registry
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

FILL = 1
"""Sequence length of a padded row: what the backends under test ask for."""


def without_constructor(cls: Any, **attributes: Any) -> Any:
    """An object of a class with these attributes; any other one is None, which is to say: off."""

    def missing(_self: Any, attribute: str) -> None:
        if attribute.startswith("__"):
            raise AttributeError(attribute)

    stand_in = type(cls.__name__, (cls,), {"__getattr__": missing, "__init__": lambda _self: None})
    made = stand_in()
    for attribute, value in attributes.items():
        setattr(made, attribute, value)
    return made


def _runner(module: str, name: str, **attributes: Any) -> Any:
    return without_constructor(getattr(importlib.import_module(module), name), **attributes)


def _nothing(*_arguments: Any, **_options: Any) -> None:
    """Record an event, prepare a library, ...: nothing that copies."""


def _model_runner() -> Any:
    return SimpleNamespace(
        device_timer=None,
        spec_algorithm=SpeculativeAlgorithm.EAGLE,
        is_draft_worker=False,
        hisparse_coordinator=None,
        lora_manager=None,
        model_config=SimpleNamespace(vocab_size=1 << 30, model_is_mrope=False),
        server_args=SimpleNamespace(
            enable_return_hidden_states=False, speculative_use_rejection_sampling=False
        ),
        shared_read_done_event=None,
        war_fastpath_read_done_event=None,
    )


def _common(*, bs: int, width: int, buffers: Any) -> dict[str, Any]:
    return {
        "buffers": buffers,
        "capture_bs": [bs],
        # Two names of one number, in releases before and after its renaming.
        "num_tokens_per_bs": width,
        "captured_req_width": width,
        "seq_len_fill_value": FILL,
        "deepep_adapter": SimpleNamespace(replay=_nothing),
        "device_module": SimpleNamespace(Event=lambda: SimpleNamespace(record=_nothing)),
        "model_runner": _model_runner(),
        "_publish_read_done": _nothing,
        "require_mlp_tp_gather": False,
        "require_gathered_buffer": False,
    }


class DecodeRunner:
    """`DecodeCudaGraphRunner.load_batch`: decode and verify."""

    def __init__(
        self, *, bs: int, width: int, steps: int, mode: Any, backend: Any, device: str
    ) -> None:
        self.backend = backend
        self.registry = build_decode_registry(
            device=torch.device(device),
            max_bs=bs,
            max_num_token=bs * width,
            seq_len_fill_value=FILL,
            cache_loc_dtype=torch.int64,
            share_pool=False,
        )
        names = self.registry.slot_names()
        self.buffers = SimpleNamespace(
            **{name: self.registry.get_slot(name).buffer for name in names},
            mamba_track_indices=None,
            num_token_non_padded=None,
        )
        self._runner = _runner(
            "sglang.srt.model_executor.runner.decode_cuda_graph_runner",
            "DecodeCudaGraphRunner",
            **_common(bs=bs, width=width, buffers=self.buffers),
            buffer_registry=self.registry,
            capture_forward_mode=mode,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            attn_backend=backend,
            is_encoder_decoder=False,
            enable_two_batch_overlap=False,
            enable_pdmux=False,
            _replay_attn_backend=lambda: backend,
        )

    def replay(self, batch: Any, graph: Callable[[], None]) -> None:
        """Copy, prepare, replay."""
        self._runner.load_batch(batch)
        graph()


class DraftRunner:
    """`EAGLEDraftCudaGraphRunner.execute`: the steps of a multi-step draft, one graph."""

    def __init__(
        self, *, bs: int, width: int, steps: int, mode: Any, backend: Any, device: str
    ) -> None:
        self.backend = backend

        def zeros(*shape: int, dtype: torch.dtype = torch.int64) -> torch.Tensor:
            return torch.zeros(*shape, dtype=dtype, device=device)

        self.buffers = SimpleNamespace(
            input_ids=zeros(bs), req_pool_indices=zeros(bs), positions=zeros(bs),
            out_cache_loc=zeros(bs * steps), seq_lens=torch.full((bs,), FILL, device=device),
            seq_lens_cpu=torch.full((bs,), FILL), rids_int=None, bootstrap_room_ids_int=None,
            topk_p=zeros(bs, 1, dtype=torch.float32), topk_index=zeros(bs, 1), draft_probs=None,
            hidden_states=None, dsa_seed_topk=None, global_num_tokens_gpu=None,
            global_num_tokens_for_logprob_gpu=None, mamba_track_indices=None, sampling_seed=None,
        )  # fmt: skip
        self._runner = _runner(
            "sglang.srt.speculative.eagle_draft_cuda_graph_runner",
            "EAGLEDraftCudaGraphRunner",
            **_common(bs=bs, width=width, buffers=self.buffers),
            speculative_num_steps=steps,
            topk=1,
            draft_attn_backend=backend,
            _sampling_variant=_nothing,
        )

    def replay(self, batch: Any, graph: Callable[[], None]) -> None:
        """Copy, prepare, replay."""

        def run(*_key: Any, **_options: Any) -> tuple[None, ...]:
            graph()
            return (None,) * 4

        self._runner._replay_graph = run
        self._runner.execute(batch)


class DraftExtendRunner:
    """`EAGLEDraftExtendCudaGraphRunner.execute`."""

    def __init__(
        self, *, bs: int, width: int, steps: int, mode: Any, backend: Any, device: str
    ) -> None:
        self.backend = backend
        tokens = bs * width

        def zeros(*shape: int) -> torch.Tensor:
            return torch.zeros(*shape, dtype=torch.int64, device=device)

        self.buffers = SimpleNamespace(
            input_ids=zeros(tokens), req_pool_indices=zeros(bs), positions=zeros(tokens),
            out_cache_loc=zeros(tokens), seq_lens=torch.full((bs,), FILL, device=device),
            seq_lens_cpu=torch.full((bs,), FILL), mrope_positions=zeros(3, tokens),
            hidden_states=None, extend_seq_lens=torch.full((bs,), width, device=device),
            num_correct_drafts=torch.full((bs,), width, device=device),
            num_accept_tokens=torch.full((bs,), width, device=device), select_index=zeros(bs),
            global_num_tokens_gpu=None, global_num_tokens_for_logprob_gpu=None,
            mamba_track_indices=None, dsa_seed_topk_capture=None,
        )  # fmt: skip
        self._out = SimpleNamespace(next_token_logits=zeros(tokens), hidden_states=zeros(tokens))
        self._runner = _runner(
            "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner",
            "EAGLEDraftExtendCudaGraphRunner",
            **_common(bs=bs, width=width, buffers=self.buffers),
            forward_mode=mode,
            draft_extend_attn_backend=backend,
            extend_seq_lens_cpu=[width] * bs,
            select_index=self.buffers.select_index,
        )

    def replay(self, batch: Any, graph: Callable[[], None]) -> None:
        """Copy, prepare, replay."""

        def run(*_key: Any, **_options: Any) -> Any:
            graph()
            return self._out

        self._runner._replay_graph = run
        # The newest release also selects the rows whose logits it needs.
        takes = inspect.signature(self._runner.execute).parameters
        extra = {"select_index": batch.spec_info.select_index} if "select_index" in takes else {}
        self._runner.execute(batch, **extra)
