"""What the adapters of all releases share: the scheduler's part of an engine, on its real objects.

Imported only in an engine's own process, after the shims. Each method does what the scheduler of
the release does at that point, with the release's own functions; the scheduler's loop around them
(queues, processes, sampling, streaming) is left out. The comments name the scheduler's method.
"""

from __future__ import annotations

import os
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from types import SimpleNamespace
from typing import Any, ClassVar

import sglang
import torch
import triton
from msgspec.structs import replace
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from transformers import PretrainedConfig

from kvproof.fuzz.constructions import BY_FAMILY, CONSTRUCTIONS
from kvproof.fuzz.drivers import speculation
from kvproof.fuzz.drivers.pool import (
    PAGED_HEAD_DIM,
    MapReader,
    call_with_known,
    free_pages,
    full_attention_pool,
    paged_swa_pool,
    window_layer_pool,
)
from kvproof.fuzz.drivers.tree import SeenLock, SeenNode, lock_indices
from kvproof.kernels.engines.shims import engine_family
from kvproof.model.facts import Holding, Locks, Node, Pools, Started, SwaPool
from kvproof.model.player import Chunk, NoMemoryError, RefusedError
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


class ReleaseEngine:
    """Slots, pools, tree and scheduling of one release: `kvproof.model.player.Engine`.

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
        backend: str,
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
        self.backend = backend
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
        self.map_reader = MapReader()
        # The tree as it was read last, and what snapshots tell of it until it reads otherwise.
        self._seen_nodes: tuple[SeenNode, ...] = ()
        self._told_nodes: tuple[Node, ...] = ()
        self._index_of: Mapping[int, int] = {}
        self.tree = self._make_tree()
        if held_back is not None:
            self._hold_back(held_back)
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
            **self.choice.arguments,
            **speculation.server_arguments(self.geometry.draft_tokens),
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

    # --- how a release family differs -----------------------------------------------------

    def _token_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        return array("q", tokens)

    def _slot(self, req: Any) -> int | None:
        raise NotImplementedError

    def _protected_len(self, req: Any) -> int:
        raise NotImplementedError

    def _allocated_len(self, req: Any) -> int:
        raise NotImplementedError

    def _count_middle_chunk(self, req: Any, by: int) -> None:
        req.inflight_middle_chunks += by

    def _update_finish_state(self, req: Any) -> None:
        req.update_finish_state(0)

    def _note(self, locs: torch.Tensor, tokens: Sequence[int]) -> None:
        """``tokens`` but the last were computed at ``locs``; for a tree that cannot be read back.

        The last one is what comes after them.
        """

    def _publish(self, req: Any, *, chunked: bool) -> None:
        raise NotImplementedError

    def _release(self, req: Any, *, insert: bool) -> None:
        raise NotImplementedError

    def _release_for_retract(self, index: int, remaining: int) -> None:
        raise NotImplementedError

    def _nodes(self) -> Iterable[SeenNode]:
        """Nodes of the tree, parents first; asked only where the construction has a tree."""
        raise NotImplementedError

    def _held_lock(self, req: Any) -> SeenLock | None:
        """What a request locks in the tree; None for nothing."""
        raise NotImplementedError

    def _lock(self, req: Any) -> SeenLock | None:
        """What can be told of it."""
        lock = self._held_lock(req)
        if lock is None or self.choice.slides:
            return lock
        return SeenLock(node=lock.node, has_swa=False, boundary=None)

    def _swa_evicted_len(self, req: Any) -> int:
        """The cursor: leading tokens of a request whose SWA locations were given back."""
        raise NotImplementedError

    def _locks(self) -> Locks:
        """What snapshots tell of locks."""
        return "counted" if self.choice.reuses else "untold"

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
            bigram_keys=self._bigram_keys(),
            verify_order=engine_family().verify_order,
            swa_tokens=self.swa_tokens if self.has_swa_pool else 0,
            locks=self._locks(),
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
        req = self.waiting[request] = Req(
            rid=request,
            origin_input_text="",
            origin_input_ids=self._token_ids(tokens),
            sampling_params=params,
            vocab_size=self.model_config.vocab_size,
        )
        if cap := self.request_cap:
            # Req.init_next_round_input asks this for its limit: PR #30339 caps it there.
            limit = req._compute_max_prefix_len
            req._compute_max_prefix_len = lambda length: max(0, min(limit(length), length - cap))

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
            [req], self.requests, self.allocator, self.tree, self.model_config,
            # Up to 0.5.14 the path of EAGLE that allocates ahead is that of overlapped batches.
            self.overlap or (self.speculates and hasattr(ScheduleBatch, "is_spec_v2")),
            self.algorithm, chunked_req=self.chunked,
        )  # fmt: skip
        self._begin_loading(self.batch)
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

    def _begin_loading(self, batch: Any) -> None:
        """Load back what a batch's requests found in a host pool; none here."""

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
            # The adder's other answer is about the budget of the step.
            refused = NoMemoryError if result.name == "NO_TOKEN" else RefusedError
            raise refused(f"the adder refused the request: {result.name}")
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
            raise NoMemoryError("the adder parked the chunk: no memory")
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
        if self.speculates:
            batch.spec_info = speculation.draft_input(len(batch.reqs), self.algorithm)
        if self.running.is_empty():
            self.running = batch
        else:
            self.running.merge_batch(batch)

    @property
    def speculates(self) -> bool:
        """Whether the engine drafts: then every step of running requests is a verify."""
        return self.geometry.draft_tokens > 1

    def decode(self, draft_tokens: int) -> Sequence[tuple[str, int, int]]:
        """Allocate a step of all running requests: (request, slot, first position) each."""
        if draft_tokens != self.geometry.draft_tokens:
            raise RefusedError(
                f"an engine that drafts verifies {self.geometry.draft_tokens} tokens each step"
            )
        # Scheduler.update_running_batch; where it would retract, the scenario decides instead.
        if not self.running.check_decode_mem():
            raise NoMemoryError("no memory for a decode step")
        self.running.prepare_for_decode()
        self._count_forward(self.running)
        if self.speculates:
            self._resolve_lengths()
            self.running.out_cache_loc = speculation.verify_locations(self.running, draft_tokens)
        # A verify's length is that before its tokens, a decode's counts its own.
        own = 0 if self.speculates else 1
        return [
            (req.rid, slot, length - own)
            for req, slot, length in zip(
                self.running.reqs,
                self.running.req_pool_indices.tolist(),
                self.running.seq_lens.tolist(),
                strict=True,
            )
        ]

    def _resolve_lengths(self) -> None:
        """Learn how far each running request has come: the host took all results, so it knows."""
        for req, length in zip(self.running.reqs, self.running.seq_lens.tolist(), strict=True):
            room = self._allocated_len(req) - length
            assert room >= self.geometry.draft_tokens, "a draft has no room"

    def decoded(self, tokens: dict[str, Sequence[int]]) -> None:
        """Append the sampled tokens."""
        # SchedulerBatchResultProcessor.process_batch_result_decode
        runs = [tokens[req.rid] for req in self.running.reqs]
        if self.speculates:
            speculation.commit(self.running, runs, self.geometry.draft_tokens)
            return
        for req, run in zip(self.running.reqs, runs, strict=True):
            req.output_ids.extend(run)

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

    def evict(self, tokens: int, swa_tokens: int) -> None:
        """Ask the tree to give back ``tokens`` tokens, and so many of the SWA pool."""
        self.tree.evict(EvictParams(num_tokens=tokens, swa_num_tokens=swa_tokens))

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
        nodes = tuple(self._nodes()) if self.choice.reuses else ()
        if nodes != self._seen_nodes:
            self._told_nodes = _told(nodes, self._seen_nodes, self._told_nodes)
            self._seen_nodes = nodes
            self._index_of = {node.handle: at for at, node in enumerate(nodes)}
        return Pools(
            free=free_pages(
                self.allocator.full_attn_allocator if self.choice.slides else self.allocator
            ),
            free_slots=tuple(self.requests.free_slots),
            nodes=self._told_nodes,
            holdings=tuple(self._holdings(nodes)),
            counters=self._full_counters(),
            swa=self._swa_pool() if self.has_swa_pool else None,
        )

    def _full_counters(self) -> dict[str, int]:
        # SchedulerInvariantChecker asks by these names, too.
        if not self.choice.slides:
            return {
                "available": int(self.allocator.available_size()),
                "evictable": int(self.tree.evictable_size()),
                "protected": int(self.tree.protected_size()),
            }
        return {
            "available": int(self.allocator.full_available_size()),
            "evictable": int(self.tree.full_evictable_size()),
            "protected": int(self.tree.full_protected_size()),
        }

    def complaint(self) -> str:
        """What the tree's own check finds wrong; empty for nothing."""
        # SchedulerInvariantChecker._check_tree_cache: when idle, since it expects no locks, and
        # of a model that slides
        if self.held or not self.choice.reuses or not self.choice.slides:
            return ""
        try:
            self.tree.sanity_check()
        except Exception as error:  # releases raise various kinds, one of them plain Exception
            return " ".join(str(error).split())
        return ""

    def swa_locs(self, slot: int, start: int, end: int) -> Sequence[int] | None:
        """SWA locations of a slot's positions by the map as it is now; None without such a pool."""
        if not self.has_swa_pool:
            return None
        full = self.requests.req_to_token.numpy()[slot, start:end]
        locs: list[int] = self.allocator.full_to_swa_index_mapping.numpy()[full].tolist()
        return locs

    def _swa_pool(self) -> SwaPool:
        return SwaPool(
            free=free_pages(self.allocator.swa_attn_allocator),
            full_to_swa=self.map_reader.runs(self.allocator.full_to_swa_index_mapping),
            counters={
                "available": int(self.allocator.swa_available_size()),
                "evictable": int(self.tree.swa_evictable_size()),
                "protected": int(self.tree.swa_protected_size()),
            },
        )

    def _holdings(self, nodes: Sequence[SeenNode]) -> Iterator[Holding]:
        table = self.requests.req_to_token.numpy()  # no copy; indexed several times as fast
        for name, req in self.held.items():
            slot = self._slot(req)
            if slot is None:
                continue
            lock = self._lock(req) if nodes else None
            locked, swa_from = (
                (None, None) if lock is None else lock_indices(lock, nodes, self._index_of)
            )
            row = table[slot, : self._allocated_len(req)]
            yield Holding(
                request=name,
                slot=slot,
                protected_len=self._protected_len(req),
                locs=tuple(row.tolist()),
                locked=locked,
                swa_locked_from=swa_from,
                swa_evicted_len=self._swa_evicted_len(req) if self.has_swa_pool else 0,
            )


def _told(
    nodes: Sequence[SeenNode], before: Sequence[SeenNode], told: Sequence[Node]
) -> tuple[Node, ...]:
    """What a snapshot tells of nodes; most are as they were ``before``, and told already."""
    known = dict(zip(before, told, strict=True))
    return tuple([known.get(node) or _tell(node) for node in nodes])


def _tell(node: SeenNode) -> Node:
    return Node(
        parent=node.parent,
        tokens=node.tokens,
        locs=node.locs,
        full_lock=node.full_lock,
        swa_lock=node.swa_lock,
        tombstone=node.tombstone,
        swa_locs=node.swa_locs,
    )


def _class_name(thing: Any) -> str:
    cls = thing if isinstance(thing, type) else type(thing)
    return f"{cls.__module__}.{cls.__qualname__}"
