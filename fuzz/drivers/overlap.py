"""Overlap scheduling on a release's real objects: launch step t, then take the result of t - 1.

Imported only in an engine's own process, after the shims. What `base.ReleaseEngine` does in the
order of ``Scheduler.event_loop_normal`` is done here in that of ``event_loop_overlap``: a batch is
made, launched and copied into the result queue; its result is taken by the release's own
`SchedulerBatchResultProcessor` one round later; sampled tokens go to the next step through its own
`FutureMap`. The device is left out: steps run in order, so their rows are told at the launch.

The worker's part of a verify is played too: the scenario says how many tokens were accepted, so the
new lengths are in the relay at the launch, where the next step finds them. The host still counts
without them, reserves twice a draft ahead, and commits one round later.

With rings no barrier is played: ``_apply_war_barrier``, which lets the host's writes wait for the
device, is on for CUDA alone unless ``SGLANG_ENABLE_WAR_BARRIER`` asks for it, and unified_kv is
ROCm's. Only a verify depends on it (`OverlapEngine.writes_by_table`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.disaggregation.utils import DisaggregationMode
from sglang.srt.managers import overlap_utils
from sglang.srt.managers.schedule_batch import FINISH_ABORT
from sglang.srt.managers.scheduler_components.batch_result_processor import (
    SchedulerBatchResultProcessor,
)
from sglang.srt.managers.utils import GenerationBatchResult

from kvproof.fuzz.drivers import speculation
from kvproof.fuzz.drivers.base import ReleaseEngine
from kvproof.fuzz.drivers.memory import DEVICE, UNLIMITED
from kvproof.fuzz.drivers.pool import call_with_known
from kvproof.model.facts import Mode
from kvproof.model.player import Chunk, RefusedError

_NO_TOKEN = 0
"""What a lane sampled whose result is dropped."""


class _Unheard:
    """Takes what a scheduler reports to its metrics and its clients; nobody listens here."""

    num_generated_tokens = 0
    forward_ct_decode = 0

    def __getattr__(self, _name: str) -> Any:
        return lambda *_args, **_kwargs: None


class OverlapEngine(ReleaseEngine):
    """`kvproof.model.overlap.OverlapEngine`, over any release's adapter (see `overlapping`)."""

    overlap = True

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.result_queue: deque[Any] = deque()
        self.last_batch: Any = None
        self.newest: Any = None  # the batch that was launched last, as the device sees it
        self.future_map = call_with_known(
            overlap_utils.FutureMap,
            {
                "device": torch.device(DEVICE),
                "spec_algo": self.algorithm,
                "req_to_token_pool": self.requests,
                "needs_cpu_seq_lens": False,
            },
        )
        self.processor = self._make_processor()
        self._stash_due = False
        self._stops: set[str] = set()

    def _make_processor(self) -> Any:
        return call_with_known(
            SchedulerBatchResultProcessor,
            {
                "is_generation": True,
                "disaggregation_mode": DisaggregationMode.NULL,
                "enable_overlap": True,
                "enable_overlap_mlx": False,
                "server_args": self.server_args,
                # Whether the model thinks aloud is asked for each token.
                "model_config": SimpleNamespace(
                    **vars(self.model_config),
                    think_end_id=None,
                    think_end_ids=None,
                    self_opened_think_start_ids=None,
                ),
                "token_to_kv_pool_allocator": self.allocator,
                "tree_cache": self.tree,
                "hisparse_coordinator": None,
                "req_to_token_pool": self.requests,
                "decode_offload_manager": None,
                "metrics_collector": _Unheard(),
                "metrics_reporter": _Unheard(),
                "draft_worker": None,
                "model_worker": _Unheard(),
                "logprob_result_processor": None,
                "output_streamer": _Unheard(),
                "beam_coordinator": None,
                "abort_request": None,
            },
        )

    # --- launching ------------------------------------------------------------------------

    def _begin_round(self) -> None:
        """What Scheduler.get_next_batch_to_run does before it looks for something to run."""
        chunked = [] if self.chunked is None else [self.chunked]
        if self.chunked is not None and self._stash_due:
            self._publish(self.chunked, chunked=True)
            self._stash_due = False
        batch, self.last_batch = self.last_batch, None
        if batch is None or not batch.forward_mode.is_extend():
            return
        if batch.chunked_req is not None:
            chunked.append(batch.chunked_req)
        gone = {id(req) for req in chunked}
        batch.filter_batch(
            keep_indices=[
                at for at, req in enumerate(batch.reqs)
                if not req.finished() and id(req) not in gone
            ]
        )  # fmt: skip
        if batch.is_empty():
            return
        if self.running.is_empty():
            self.running = batch
        else:
            self.running.merge_batch(batch)

    def _run(self, batch: Any) -> None:
        """Scheduler.run_batch, and what the loop keeps of the batch."""
        slots = batch.req_pool_indices
        verifies = self.speculates and not batch.forward_mode.is_extend()
        if not verifies:
            overlap_utils.resolve_forward_inputs(batch, self.future_map)
        # ScheduleBatch lends the device tensors that it replaces, and never writes, later.
        self.newest = SimpleNamespace(
            requests=[req.rid for req in batch.reqs],
            slots=slots,
            lengths=batch.seq_lens,
            # What comes after the first token of a verify is the draft model's.
            input_ids=self.future_map.output_tokens_buf[slots] if verifies else batch.input_ids,
            locs=batch.out_cache_loc,
            verifies=verifies,
            following=_NO_TOKEN,
        )
        batch.input_ids = None
        if self.speculates:
            batch.spec_info = self.newest.handed_back = speculation.draft_input(
                len(batch.reqs), self.algorithm
            )
            batch.spec_info.future_indices = slots
        self.result_queue.append(batch.copy())
        self.last_batch = batch

    def _launch(self, req: Any) -> Chunk:
        chunk = super()._launch(req)
        batch, self.batch = self.batch, None
        self._run(batch)
        self._stash_due = not chunk.last
        if not chunk.last:
            # A tree may keep pairs of neighbouring tokens as keys.
            self.newest.following = [*req.origin_input_ids, *req.output_ids][chunk.end]
        return chunk

    def admit(self, request: str, budget: int | None) -> tuple[Chunk, int]:
        """Launch a waiting request's first chunk; see the base class."""
        self._begin_round()
        chunk = super().admit(request, budget)
        # It ends when the scenario says so. The adder was to reserve one token for it.
        self.held[request].sampling_params.max_new_tokens = UNLIMITED
        return chunk

    def extend(self, request: str, budget: int | None) -> Chunk:
        """Launch the next chunk of the chunked request."""
        self._begin_round()
        return super().extend(request, budget)

    def decode(self, draft_tokens: int) -> Sequence[tuple[str, int, int]]:
        """Launch a step of all running requests, those among them whose end is not known yet."""
        self._begin_round()
        # Scheduler.update_running_batch
        self.running.filter_batch()
        if self.running.is_empty():
            raise RefusedError("no request is running")
        step = super().decode(draft_tokens)
        self._run(self.running)
        return step

    def _resolve_lengths(self) -> None:
        """The device knows how much of a verify it kept: Scheduler.run_batch asks the relay."""
        self.future_map.resolve_seq_lens_cpu(self.running)

    def relayed(self, tokens: Mapping[str, Sequence[int]]) -> None:
        """The newest step sampled: Scheduler.run_batch and _relay_forward_payload.

        A speculative worker publishes the new lengths itself, in its `forward_batch_generation`.
        """
        step = self.newest
        runs = [tokens.get(name, (step.following,)) for name in step.requests]
        # A prefill is one request's; a decode has a token a request, a verify some that are void.
        shape = len(step.requests), -1
        locations, input_ids = step.locs.view(shape).tolist(), step.input_ids.view(shape).tolist()
        for locs, inputs, run in zip(locations, input_ids, runs, strict=True):
            self._note(locs[: len(inputs) + len(run) - 1], [*inputs, *run])
        if step.verifies:
            grown: Any = torch.tensor([len(run) for run in runs])
        else:
            grown = 0 if self.speculates else 1
        lengths = step.lengths + grown
        self.future_map.publish(step.slots, lengths)
        sampled = torch.tensor([run[-1] for run in runs])
        payload = getattr(overlap_utils, "RelayPayload", None)
        if not self.speculates:
            told = sampled if payload is None else payload(bonus_tokens=sampled)
        else:
            told = step.handed_back
            told.bonus_tokens = sampled
            # DFLASH of 0.5.14 takes them from here while its batch stays the same.
            told.new_seq_lens = lengths
            if payload is not None:
                told = payload.from_draft_input(told)
        self.future_map.stash(step.slots, told)

    def table(self, slot: int, start: int, end: int) -> Sequence[int]:
        """The page table now: full-pool locations of positions ``[start, end)`` of a slot."""
        return self.requests.req_to_token[slot, start:end].tolist()  # type: ignore[no-any-return]

    def first_read(self, position: int) -> int:
        """Some layers see all positions."""
        return 0

    def writes_by_table(self, mode: Mode) -> bool:
        """Prefill and decode write at ``out_cache_loc``, a tensor of their own.

        A verify looks its locations up in the page table once its draft is there. The barrier keeps
        the host from the table until then; the release has it on CUDA, and unified_kv is ROCm's.
        """
        return mode == "verify" and self.unified

    # --- taking results -------------------------------------------------------------------

    def prefilled(self, request: str, *, last: bool, token: int) -> None:
        """Take the result of a chunk: SchedulerBatchResultProcessor does."""
        batch: Any = self.result_queue.popleft()
        self._stop_at(batch, {request: [token]})
        self.processor.process_batch_result_prefill(
            batch, GenerationBatchResult(next_token_ids=torch.tensor([token]))
        )
        self._forget_ended(batch)

    def decoded(self, tokens: dict[str, Sequence[int]]) -> None:
        """Take the result of a decode or verify: SchedulerBatchResultProcessor does."""
        batch: Any = self.result_queue.popleft()
        self._stop_at(batch, tokens)
        runs = [tokens.get(req.rid, (_NO_TOKEN,)) for req in batch.reqs]
        self.processor.process_batch_result_decode(
            batch,
            speculation.verified(runs, self.geometry.draft_tokens)
            if self.speculates
            else GenerationBatchResult(next_token_ids=torch.tensor(runs).flatten()),
        )
        self._forget_ended(batch)

    def ends(self, request: str, *, aborted: bool) -> None:
        """The next result of this request ends it."""
        if aborted:
            # Scheduler.abort_request marks a running request.
            self.held[request].to_finish = FINISH_ABORT()
        else:
            self._stops.add(request)

    def _stop_at(self, batch: Any, tokens: Mapping[str, Sequence[int]]) -> None:
        """Make what was sampled a stop token, which nobody can know before it is sampled."""
        for req in batch.reqs:
            if req.rid in self._stops and self._is_held(req):
                self._stops.remove(req.rid)
                req.sampling_params.stop_token_ids = {tokens[req.rid][-1]}

    def _forget_ended(self, batch: Any) -> None:
        for req in batch.reqs:
            if req.finished() and self._is_held(req):
                del self.held[req.rid]

    def _is_held(self, req: Any) -> bool:
        """Whether a request still holds memory; a later one can have its name."""
        return self.held.get(req.rid) is req

    # --- ends with nothing in flight, and of requests that are not waited for ----------------

    def finish(self, request: str) -> None:
        """End a request whose results were all taken."""
        self._begin_round()
        super().finish(request)

    def abort(self, request: str) -> None:
        """Cancel a request in the middle of its prefill, or one whose results were all taken."""
        if self.held[request] is not self.chunked:
            self._begin_round()
        super().abort(request)

    def retract(self, request: str) -> None:
        """Take a running request's memory away; what its step in flight samples is dropped."""
        self._begin_round()
        self._stops.discard(request)
        super().retract(request)
        self.waiting[request].sampling_params.max_new_tokens = 1 + len(
            self.waiting[request].output_ids
        )

    def complaint(self) -> str:
        """What the tree's own check finds wrong; it runs when nothing is in flight."""
        return "" if self.result_queue else super().complaint()

    def flush(self) -> None:
        """Clear the cache; nothing is in flight."""
        self._begin_round()
        super().flush()


def overlapping(adapter: type[ReleaseEngine]) -> type[ReleaseEngine]:
    """A release's adapter with results that are taken later."""
    return type("Engine", (OverlapEngine, adapter), {"__doc__": adapter.__doc__})
