"""What the adapters of all releases share: the scheduler's part of an engine, on its real objects.

Imported only in an engine's own process, after the shims. Each method does what the scheduler of
the release does at that point, with the release's own functions; the scheduler's loop around them
(queues, processes, sampling, streaming) is left out. The comments name the scheduler's method.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any, ClassVar

import sglang
import torch
import triton
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from transformers import PretrainedConfig

from kvproof.fuzz.drivers.pool import call_with_known, window_layer_pool
from kvproof.kernels.engines.shims import engine_family
from kvproof.model.facts import Holding, Node, Pools, Started
from kvproof.model.player import Chunk, RefusedError
from kvproof.model.scenario import Geometry

UNLIMITED = 1 << 30
"""Stands for "no limit" where the scheduler has a number of tokens."""

DEVICE = "cpu"

_ARCHITECTURE = "DeepseekV4ForCausalLM"

MODEL_CONFIG: Any = SimpleNamespace(
    vocab_size=UNLIMITED,
    is_encoder_decoder=False,
    is_multimodal=False,
    is_draft_model=False,
    is_matryoshka=False,
    linear_attn_registry_result=None,
    hf_config=PretrainedConfig(architectures=[_ARCHITECTURE]),
    _resolved_model_impl=None,
    _resolved_model_arch=_ARCHITECTURE,
)
"""What the scheduler and the cache builder ask of the model's configuration."""


class ReleaseEngine:
    """Slots, pools, tree and scheduling of one release: `kvproof.model.player.Engine`.

    A fresh one is made for each scenario. Subclasses say how a release family differs.
    """

    constructions: ClassVar[tuple[str, ...]] = ("registry",)
    overlap: ClassVar[bool] = False
    _server_args: ClassVar[dict[tuple[tuple[str, Any], ...], Any]] = {}
    _published: ClassVar[tuple[tuple[str, Any], ...] | None] = None

    def __init__(self, *, geometry: Geometry, construction: str, backend: str) -> None:
        if construction not in self.constructions:
            raise ValueError(
                f"{sglang.__version__} has no construction {construction!r}; "
                f"it has {', '.join(self.constructions)}"
            )
        self.geometry = geometry
        self.construction = construction
        self.backend = backend
        self.server_args = self._publish_server_args()
        self.requests = ReqToTokenPool(
            size=geometry.slots,
            # A request never holds more than the whole pool and one step's draft.
            max_context_len=geometry.pool_tokens + geometry.page_size + geometry.draft_tokens,
            device=DEVICE,
            enable_memory_saver=False,
        )
        self.kv_pool = self._make_kv_pool()
        self.allocator = self._make_allocator()
        self.tree = self._make_tree()
        self.waiting: dict[str, Any] = {}
        self.held: dict[str, Any] = {}
        self.chunked: Any = None
        self.batch: Any = None  # the prefill batch whose forward runs now
        self.running = ScheduleBatch(reqs=[])
        self.forward_count = 0

    # --- construction ---------------------------------------------------------------------

    def _server_arguments(self) -> dict[str, Any]:
        return {
            "model_path": "dummy",
            "page_size": self.geometry.page_size,
            "device": DEVICE,
            "disable_overlap_schedule": not self.overlap,
            # Says which of its two ways of writing req_to_token the release takes: the torch loop
            # instead of the Triton kernel.
            "attention_backend": "torch_native",
        }

    def _publish_server_args(self) -> Any:
        """The configuration of this process, as the release's process entry publishes it."""
        arguments = self._server_arguments()
        key = tuple(arguments.items())
        if key not in self._server_args:
            self._server_args[key] = ServerArgs(**arguments)
        if ReleaseEngine._published != key:
            self._publish_to_process(self._server_args[key])
            ReleaseEngine._published = key
        return self._server_args[key]

    def _publish_to_process(self, server_args: Any) -> None:
        set_global_server_args_for_scheduler(server_args)

    @property
    def swa_tokens(self) -> int:
        """Tokens of the SWA pool. As large as the full pool, so that it is never the limit."""
        return self.geometry.pool_tokens

    @property
    def compressed_tokens(self) -> int:
        """Tokens that a page of compressed rows stands for. No layer here has such pages."""
        return self.geometry.page_size

    @property
    def unified(self) -> bool:
        """Whether the sliding window lives in rings; asks the release's own gate."""
        return engine_family().has_ring and bool(engine_family().part("gate")())

    def _make_kv_pool(self) -> Any:
        return window_layer_pool(
            self.geometry,
            swa_tokens=self.swa_tokens,
            unified=self.unified,
            compressed_tokens=self.compressed_tokens,
            device=DEVICE,
        )

    def _make_allocator(self) -> Any:
        return call_with_known(
            engine_family().part("allocator"),
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
        """The tree that the release's own builder makes; the model is DeepSeek-V4."""
        model_runner = SimpleNamespace(
            linear_attn_model_spec=None,
            hybrid_gdn_config=None,
            mamba2_config=None,
            kimi_linear_config=None,
            hybrid_lightning_config=None,
            token_to_kv_pool=self.kv_pool,
            model_config=MODEL_CONFIG,
            mtp_draft_device_pools=(),
            mtp_draft_mamba_pools=(),
        )
        worker = SimpleNamespace(
            is_hybrid_swa=True,
            sliding_window_size=self.geometry.window,
            model_runner=model_runner,
            get_tokens_per_layer_info=lambda: (self.geometry.pool_tokens, self.swa_tokens),
            get_memory_pool=lambda: (self.requests, self.allocator),
        )
        alone = SimpleNamespace(cpu_group=None)
        built = call_with_known(
            engine_family().part("tree builder"),
            {
                "server_args": self.server_args,
                "model_config": MODEL_CONFIG,
                "tp_worker": worker,
                "page_size": self.geometry.page_size,
                "spec_algorithm": SpeculativeAlgorithm.NONE,
                "enable_metrics": False,
                "enable_kv_cache_events": False,
                "enable_hierarchical_cache": False,
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

    # --- how a release family differs -----------------------------------------------------

    def _token_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        return array("q", tokens)

    def _slot(self, req: Any) -> int | None:
        raise NotImplementedError

    def _protected_len(self, req: Any) -> int:
        raise NotImplementedError

    def _allocated_len(self, req: Any) -> int:
        raise NotImplementedError

    def _input_token(self, req: Any) -> int:
        """What a decode of a request starts from: the token that was sampled last."""
        return req.output_ids[-1]  # type: ignore[no-any-return]

    def _count_middle_chunk(self, req: Any, by: int) -> None:
        req.inflight_middle_chunks += by

    def _update_finish_state(self, req: Any) -> None:
        req.update_finish_state(0)

    def _publish(self, req: Any, *, chunked: bool) -> None:
        raise NotImplementedError

    def _release(self, req: Any, *, insert: bool) -> None:
        raise NotImplementedError

    def _release_for_retract(self, index: int, remaining: int) -> None:
        raise NotImplementedError

    def _nodes(self) -> Iterator[tuple[int, Sequence[int], Any, int, int, bool]]:
        """Nodes, parents first: parent's index, tokens, locs, full lock, SWA lock, tombstone."""
        raise NotImplementedError

    def _reprefill_tail(self) -> int:
        """What the tree's own method holds back; 0 where it has none."""
        method = getattr(self.tree, "swa_reprefill_tail_tokens", None)
        return int(method()) if method is not None else 0

    def _tombstones_gate(self) -> bool:
        """Whether a released SWA page ends a match."""
        return True

    def _classes(self) -> dict[str, Any]:
        return {
            "tree": self.tree,
            "allocator": self.allocator,
            "request pool": self.requests,
            "kv pool": self.kv_pool,
            "request": Req,
            "batch": ScheduleBatch,
            "adder": PrefillAdder,
        }

    # --- the engine protocol --------------------------------------------------------------

    def started(self) -> Started:
        """Describe the target."""
        return Started(
            target=f"sglang-{sglang.__version__}:{self.construction}",
            backend=self.backend,
            geometry=self.geometry,
            ring_stride=getattr(self.kv_pool, "unified_swa_ring_size", None),
            reprefill_tail=self._reprefill_tail(),
            tombstones_gate=self._tombstones_gate(),
            verify_order=engine_family().verify_order,
            classes={role: _class_name(thing) for role, thing in self._classes().items()},
            versions={
                "sglang": sglang.__version__,
                "torch": str(torch.__version__),
                "triton": triton.__version__,
            },
        )

    def submit(self, request: str, tokens: Sequence[int]) -> None:
        """Queue a request with its prompt's token ids."""
        # The request ends when the scenario says so; the adder reserves one token for it.
        params = SamplingParams(max_new_tokens=1)
        params.normalize(None)
        self.waiting[request] = Req(
            rid=request,
            origin_input_text="",
            origin_input_ids=self._token_ids(tokens),
            sampling_params=params,
            vocab_size=MODEL_CONFIG.vocab_size,
        )

    def _adder(self, budget: int | None) -> Any:
        # Scheduler._get_new_batch_prefill_raw; nothing is reserved for running requests' answers.
        return PrefillAdder(
            self.geometry.page_size, self.tree, self.allocator, self.running,
            0.0, UNLIMITED, budget,
        )  # fmt: skip

    def _launch(self, req: Any) -> Chunk:
        if self.chunked is not None:
            self._count_middle_chunk(self.chunked, 1)
        self.batch = ScheduleBatch.init_new(
            [req], self.requests, self.allocator, self.tree, MODEL_CONFIG,
            self.overlap, SpeculativeAlgorithm.NONE, chunked_req=self.chunked,
        )  # fmt: skip
        self.batch.prepare_for_extend()
        self._count_forward(self.batch)
        slot = self._slot(req)
        assert slot is not None
        return Chunk(
            slot=slot,
            start=int(self.batch.prefix_lens[0]),
            end=int(self.batch.seq_lens_cpu[0]),
            last=self.chunked is None,
        )

    def _count_forward(self, batch: Any) -> None:
        # Scheduler.run_batch
        self.forward_count += 1
        batch.forward_iter = self.forward_count

    def admit(self, request: str, budget: int | None) -> tuple[Chunk, int]:
        """Match, lock and allocate a waiting request's first chunk; also its matched length."""
        # Scheduler.get_num_allocatable_reqs
        if not self.requests.available_size():
            raise RefusedError("all request slots are taken")
        req = self.waiting[request]
        adder = self._adder(budget)
        req.init_next_round_input(self.tree)
        result = adder.add_one_req(req, has_chunked_req=False, truncation_align_size=None)
        if not adder.can_run_list:
            raise RefusedError(f"the adder refused the request: {result.name}")
        self.chunked = adder.new_chunked_req
        chunk = self._launch(req)
        self.held[request] = self.waiting.pop(request)
        return chunk, chunk.start

    def extend(self, request: str, budget: int | None) -> Chunk:
        """Allocate the next chunk of the chunked request."""
        req = self.held[request]
        page_size = self.geometry.page_size
        # The scheduler's chunk size is a whole number of pages (ServerArgs checks it).
        budget = UNLIMITED if budget is None else budget // page_size * page_size
        if not budget:
            raise RefusedError(f"the chunk's budget is less than a page of {page_size} tokens")
        adder = self._adder(budget)
        req.init_next_round_input()
        rest = adder.add_chunked_req(req)
        if not adder.can_run_list:
            raise RefusedError("the adder parked the chunk: no memory")
        self.chunked = rest
        return self._launch(req)

    def prefilled(self, request: str, *, last: bool, token: int) -> None:
        """Publish a chunk whose forward ran; after the last one ``token`` was sampled."""
        # SchedulerBatchResultProcessor.process_batch_result_prefill
        req = self.held[request]
        batch, self.batch = self.batch, None
        if not last:
            self._count_middle_chunk(req, -1)
            # Scheduler.get_next_batch_to_run stashes the chunk before it schedules the next one.
            self._publish(req, chunked=True)
            return
        req.output_ids.append(token)
        self._publish(req, chunked=False)
        if self.running.is_empty():
            self.running = batch
        else:
            self.running.merge_batch(batch)

    def decode(self, draft_tokens: int) -> Sequence[tuple[str, int, int]]:
        """Allocate a step of all running requests: (request, slot, first position) each."""
        if draft_tokens > 1:
            raise RefusedError("the drivers do not run speculative decoding yet")
        # Scheduler.update_running_batch; where it would retract, the scenario decides instead.
        if not self.running.check_decode_mem():
            raise RefusedError("no memory for a decode step")
        self.running.prepare_for_decode()
        self._count_forward(self.running)
        return [
            (req.rid, slot, length - 1)
            for req, slot, length in zip(
                self.running.reqs,
                self.running.req_pool_indices.tolist(),
                self.running.seq_lens.tolist(),
                strict=True,
            )
        ]

    def decoded(self, accepted: int, tokens: dict[str, Sequence[int]]) -> None:
        """Append the sampled tokens."""
        # SchedulerBatchResultProcessor.process_batch_result_decode
        for req in self.running.reqs:
            req.output_ids.extend(tokens[req.rid][:accepted])

    def finish(self, request: str) -> None:
        """End a running request and publish what it computed."""
        req = self.held.pop(request)
        # It has produced as many tokens as it asked for.
        req.sampling_params.max_new_tokens = len(req.output_ids)
        self._update_finish_state(req)
        self._release(req, insert=True)
        self.running.filter_batch()

    def abort(self, request: str) -> None:
        """Cancel a request that holds memory."""
        req = self.held.pop(request)
        if req is self.chunked:
            # Scheduler.process_pending_chunked_abort
            req.finished_reason = FINISH_ABORT("Aborted")
            self._release(req, insert=False)
            self.chunked = None
            return
        # Scheduler.abort_request marks a running request, and its next result releases it.
        req.to_finish = FINISH_ABORT()
        self._update_finish_state(req)
        self._release(req, insert=True)
        self.running.filter_batch()

    def drop(self, request: str) -> None:
        """Cancel a request that waits."""
        del self.waiting[request]

    def retract(self, request: str) -> None:
        """Take a running request's memory away and queue it again."""
        # ScheduleBatch.retract_decode, with the scenario's choice of the request
        reqs = self.running.reqs
        index = next(at for at, req in enumerate(reqs) if req.rid == request)
        self._release_for_retract(index, len(reqs) - 1)
        self.running.filter_batch(keep_indices=[at for at in range(len(reqs)) if at != index])
        self.waiting[request] = self.held.pop(request)

    def evict(self, tokens: int) -> None:
        """Ask the tree to give back ``tokens`` tokens."""
        self.tree.evict(EvictParams(num_tokens=tokens))

    def flush(self) -> None:
        """Clear the cache; no request holds memory."""
        # Scheduler.flush_cache, which runs only when the engine is fully idle
        if self.waiting:
            raise RefusedError("the engine is not idle: requests wait")
        self.tree.reset()
        self.requests.clear()
        self.allocator.clear()

    def pools(self) -> Pools:
        """Snapshot of pools and tree, read from the real objects."""
        full = self.allocator.full_attn_allocator
        return Pools(
            free=tuple(
                page
                for pages in (full.free_pages, full.release_pages)
                if pages is not None
                for page in pages.tolist()
            ),
            free_slots=tuple(self.requests.free_slots),
            nodes=tuple(
                Node(
                    parent=parent,
                    tokens=tuple(tokens),
                    locs=tuple(locs.tolist()),
                    full_lock=full_lock,
                    swa_lock=swa_lock,
                    tombstone=tombstone,
                )
                for parent, tokens, locs, full_lock, swa_lock, tombstone in self._nodes()
            ),
            holdings=tuple(self._holdings()),
            counters={
                "available": int(self.allocator.full_available_size()),
                "evictable": int(self.tree.full_evictable_size()),
                "protected": int(self.tree.full_protected_size()),
            },
        )

    def _holdings(self) -> Iterator[Holding]:
        for name, req in self.held.items():
            slot = self._slot(req)
            if slot is not None:
                row = self.requests.req_to_token[slot, : self._allocated_len(req)]
                yield Holding(
                    request=name,
                    slot=slot,
                    protected_len=self._protected_len(req),
                    locs=tuple(row.tolist()),
                )


def _class_name(thing: Any) -> str:
    cls = thing if isinstance(thing, type) else type(thing)
    return f"{cls.__module__}.{cls.__qualname__}"
