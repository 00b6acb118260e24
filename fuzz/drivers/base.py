"""What the adapters of all releases share: the scheduler's part of an engine, on its real objects.

Imported only in an engine's own process, after the shims. Each method does what the scheduler of
the release does at that point, with the release's own functions; the scheduler's loop around them
(queues, processes, sampling, streaming) is left out. The comments name the scheduler's method.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from typing import Any

import sglang
import torch
import triton
from sglang.srt.managers.schedule_batch import FINISH_ABORT, Req, ScheduleBatch
from sglang.srt.managers.schedule_policy import PrefillAdder
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.sampling.sampling_params import SamplingParams

from kvproof.fuzz.drivers import speculation
from kvproof.fuzz.drivers.memory import UNLIMITED
from kvproof.fuzz.drivers.snapshots import ReadableMemory
from kvproof.kernels.engines.shims import engine_family
from kvproof.model.facts import Started
from kvproof.model.player import Chunk, NoMemoryError, RefusedError


class ReleaseEngine(ReadableMemory):
    """The scheduling of one release, on its memory: `kvproof.model.player.Engine`.

    A fresh one is made for each scenario. Subclasses say how a release family differs.
    """

    def __init__(self, *, backend: str, **options: Any) -> None:
        super().__init__(**options)
        self.backend = backend
        self.waiting: dict[str, Any] = {}
        self.chunked: Any = None
        self.batch: Any = None  # the prefill batch whose forward runs now
        self.running = ScheduleBatch(reqs=[])
        self.forward_count = 0

    # --- how a release family differs -----------------------------------------------------

    def _token_ids(self, tokens: Sequence[int]) -> Sequence[int]:
        return array("q", tokens)

    def _count_middle_chunk(self, req: Any, by: int) -> None:
        req.inflight_middle_chunks += by

    def _update_finish_state(self, req: Any) -> None:
        req.update_finish_state(0)

    def _note(self, locs: Sequence[int], tokens: Sequence[int]) -> None:
        """``tokens`` but the last were computed at ``locs``; for a tree that cannot be read back.

        The last one is what comes after them.
        """

    def _publish(self, req: Any, *, chunked: bool) -> None:
        raise NotImplementedError

    def _release(self, req: Any, *, insert: bool) -> None:
        raise NotImplementedError

    def _release_for_retract(self, index: int, remaining: int) -> None:
        raise NotImplementedError

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


def _class_name(thing: Any) -> str:
    cls = thing if isinstance(thing, type) else type(thing)
    return f"{cls.__module__}.{cls.__qualname__}"
