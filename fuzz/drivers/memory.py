"""The memory of an engine: request slots, pools, allocator and tree, built as the release does it.

Imported only in an engine's own process, after the shims. Comments name the release's function that
does the same.
"""

from __future__ import annotations

import os
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import sglang
import torch
from msgspec.structs import replace
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from transformers import PretrainedConfig

from kvproof.fuzz.constructions import BY_FAMILY, CONSTRUCTIONS
from kvproof.fuzz.drivers import speculation
from kvproof.fuzz.drivers.pool import (
    PAGED_HEAD_DIM,
    call_with_known,
    full_attention_pool,
    paged_swa_pool,
    window_layer_pool,
)
from kvproof.kernels.engines.shims import engine_family
from kvproof.model.scenario import Geometry

UNLIMITED = 1 << 30
"""Stands for "no limit" where the scheduler has a number of tokens."""

DEVICE = "cpu"


def _model_config(architecture: str) -> Any:
    """What the scheduler and the cache builder ask of a model's configuration."""
    return SimpleNamespace(
        vocab_size=UNLIMITED,
        is_encoder_decoder=False,
        is_multimodal=False,
        is_draft_model=False,
        is_matryoshka=False,
        linear_attn_registry_result=None,
        hf_config=PretrainedConfig(architectures=[architecture]),
        _resolved_model_impl=None,
        _resolved_model_arch=architecture,
    )


_RING_MODEL = _model_config("DeepseekV4ForCausalLM")
_HYBRID_MODEL = _model_config("GptOssForCausalLM")
"""Layers with full attention and with a window, each kind with a pool of its own."""

_FULL_MODEL = _model_config("LlamaForCausalLM")
"""Layers with full attention alone."""


class ReleaseMemory:
    """What one release keeps keys in, and by which tree it finds them again.

    A fresh one is made for each scenario. Subclasses say how a release family differs.
    """

    overlap: ClassVar[bool] = False
    request_cap: int = 0
    """Tokens held back from the match where the release has no cap of its own."""

    _server_args: ClassVar[dict[tuple[tuple[str, Any], ...], Any]] = {}
    _published: ClassVar[tuple[tuple[str, Any], ...] | None] = None

    def __init__(
        self,
        *,
        geometry: Geometry,
        construction: str,
        rows_short: int = 0,
        held_back: int | None = None,
    ) -> None:
        offered = BY_FAMILY[engine_family().name]
        if construction not in offered:
            raise ValueError(
                f"{sglang.__version__} has no construction {construction!r}; "
                f"it has {', '.join(offered)}"
            )
        self.geometry = geometry
        self.construction = construction
        self.choice = CONSTRUCTIONS[construction]
        # Asked for when they are used, so after the import will do.
        os.environ.update(self.choice.environment)
        paged_model = _HYBRID_MODEL if self.choice.slides else _FULL_MODEL
        self.model_config = paged_model if self.choice.paged else _RING_MODEL
        self.server_args = self._publish_server_args()
        self.algorithm = speculation.algorithm(geometry.draft_tokens, self.choice.drafter)
        self.requests = ReqToTokenPool(
            size=geometry.slots,
            # A request never holds more than the whole pool and one step's draft.
            max_context_len=geometry.pool_tokens + geometry.page_size + geometry.draft_tokens,
            device=DEVICE,
            enable_memory_saver=False,
        )
        self.kv_pool = self._make_kv_pool(rows_short)
        self.allocator = self._make_allocator()
        self.tree = self._make_tree()
        if held_back is not None:
            self._hold_back(held_back)

    def _server_arguments(self) -> dict[str, Any]:
        return {
            "model_path": "dummy",
            "page_size": self.geometry.page_size,
            "device": DEVICE,
            "disable_overlap_schedule": not self.overlap,
            # Says which of its two ways of writing req_to_token the release takes: the torch loop
            # instead of the Triton kernel.
            "attention_backend": "torch_native",
            **self.choice.arguments,
            **speculation.server_arguments(self.geometry.draft_tokens),
        }

    def _publish_server_args(self) -> Any:
        """The configuration of this process, as the release's process entry publishes it."""
        arguments = self._server_arguments()
        key = tuple(arguments.items())
        if key not in self._server_args:
            self._server_args[key] = ServerArgs(**arguments)
        if ReleaseMemory._published != key:
            self._publish_to_process(self._server_args[key])
            ReleaseMemory._published = key
        return self._server_args[key]

    def takes_over(self) -> None:
        """Be the engine whose configuration this process has, after another one was made."""
        self._publish_server_args()

    def _publish_to_process(self, server_args: Any) -> None:
        set_global_server_args_for_scheduler(server_args)

    @property
    def swa_tokens(self) -> int:
        """Tokens of the SWA pool. Behind rings it is never the limit."""
        return self.geometry.pool_tokens if self.unified else self.geometry.swa_pool_tokens

    @property
    def compressed_tokens(self) -> int:
        """Tokens that a page of compressed rows stands for. No layer here has such pages."""
        return self.geometry.page_size

    @cached_property
    def unified(self) -> bool:
        """Whether the sliding window lives in rings; asks the release's own gate."""
        return (
            engine_family().has_ring
            and not self.choice.paged
            and bool(engine_family().part("gate")())
        )

    @property
    def has_swa_pool(self) -> bool:
        """Whether a map leads to the keys of a window, in a pool of their own."""
        return self.choice.slides and not self.unified

    def _make_paged_pool(self, head_dim: int) -> Any:
        if not self.choice.slides:
            return full_attention_pool(self.geometry, head_dim=head_dim, device=DEVICE)
        return paged_swa_pool(
            self.geometry, swa_tokens=self.swa_tokens, head_dim=head_dim, device=DEVICE
        )

    def _make_kv_pool(self, rows_short: int) -> Any:
        if self.choice.paged:
            return self._make_paged_pool(PAGED_HEAD_DIM)
        # A pool for a smaller window has shorter rings; the kernels are told the real one.
        pool = window_layer_pool(
            replace(self.geometry, window=self.geometry.window - rows_short),
            swa_tokens=self.swa_tokens,
            unified=self.unified,
            compressed_tokens=self.compressed_tokens,
            device=DEVICE,
        )
        if rows_short:
            pool.unified_swa_window = self.geometry.window
        return pool

    def _make_allocator(self) -> Any:
        # As the model runner chooses.
        alone = "token allocator" if self.geometry.page_size == 1 else "page allocator"
        return call_with_known(
            engine_family().part("allocator" if self.choice.slides else alone),
            {
                "size": self.geometry.pool_tokens,
                "size_swa": self.swa_tokens,
                "page_size": self.geometry.page_size,
                "dtype": torch.bfloat16,
                "device": DEVICE,
                "kvcache": self.kv_pool,
                "need_sort": False,
                "req_to_token_pool": self.requests,
            },
        )

    def _make_tree(self) -> Any:
        """The tree that the release's own builder makes."""
        model_runner = SimpleNamespace(
            linear_attn_model_spec=None,
            hybrid_gdn_config=None,
            mamba2_config=None,
            kimi_linear_config=None,
            hybrid_lightning_config=None,
            token_to_kv_pool=self.kv_pool,
            model_config=self.model_config,
            mtp_draft_device_pools=(),
            mtp_draft_mamba_pools=(),
        )
        worker = SimpleNamespace(
            is_hybrid_swa=self.choice.slides,
            sliding_window_size=self.geometry.window,
            model_runner=model_runner,
            get_tokens_per_layer_info=lambda: (self.geometry.pool_tokens, self.swa_tokens),
            get_memory_pool=lambda: (self.requests, self.allocator),
            # A layer would wait for its own rows; here they are all there before a forward runs.
            register_hicache_layer_transfer_counter=lambda _counter: None,
        )
        alone = SimpleNamespace(cpu_group=None)
        built = call_with_known(
            engine_family().part("tree builder"),
            {
                "server_args": self.server_args,
                "model_config": self.model_config,
                "tp_worker": worker,
                "page_size": self.geometry.page_size,
                "spec_algorithm": self.algorithm,
                "enable_metrics": False,
                "enable_kv_cache_events": False,
                "enable_hierarchical_cache": "enable_hierarchical_cache" in self.choice.arguments,
                # One rank: the groups exist, and nobody else is in them.
                "attn_tp_cpu_group": None,
                "tp_cpu_group": None,
                "attn_cp_cpu_group": None,
                "ps": SimpleNamespace(
                    pp_rank=0, pp_size=1, tp_size=1, tp_rank=0, attn_cp_rank=0, attn_cp_size=1
                ),
                "tp_group": alone,
                "pp_group": alone,
            },
        )
        return built.tree_cache

    def _reprefill_tail(self) -> int:
        """What the tree's own method holds back, where it has none what was put in its place."""
        method = getattr(self.tree, "swa_reprefill_tail_tokens", None)
        return int(method()) if method is not None else self.request_cap

    def _hold_back(self, tokens: int) -> None:
        """Another policy through the release's own cap, or through the one that the fix adds."""
        if hasattr(self.tree, "swa_reprefill_tail_tokens"):
            self.tree.swa_reprefill_tail_tokens = lambda *_, **__: tokens
        else:
            self.request_cap = tokens

    def _tombstones_gate(self) -> bool:
        """Whether a released SWA page ends a match."""
        return True

    def _bigram_keys(self) -> bool:
        """Whether the tree's keys are pairs of neighbouring tokens, as EAGLE's are."""
        keyed = getattr(self.tree, "tree_core", self.tree)
        return bool(getattr(keyed, "is_eagle", False))  # a chunk cache keeps no keys
