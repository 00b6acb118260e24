"""What the adapters of the translation family share: real pools, and a look at what is used.

Imported only in an engine's own process, after the shims. The pools, the allocator and its map, the
attention backends, their metadata, the graph runners' copies into their buffers: all are the
release's own. Not real are the model runner around them (a namespace with what they ask of it),
the attention kernels (what they are given is what is under test) and, on a CPU, the graph
(`fuzz.drivers.graph`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import PurePath
from types import FrameType, SimpleNamespace
from typing import Any, ClassVar, TypeVar

import sglang
import torch
import triton
from sglang.srt.layers.attention.deepseek_v4_backend_hip_radix import (
    per_step_draft_out_cache_loc,
)
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from sglang.srt.model_executor.forward_batch_info import (
    CaptureHiddenMode,
    ForwardBatch,
    ForwardMode,
)
from sglang.srt.server_args import ServerArgs
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from kvproof.fuzz.drivers import translation_plan
from kvproof.fuzz.drivers.graph import Graph, capture, make_graph
from kvproof.fuzz.drivers.graph_runners import FILL, DecodeRunner, DraftExtendRunner, DraftRunner
from kvproof.model import forwards
from kvproof.model.facts import Consumed, Started
from kvproof.model.forward_player import Tokens
from kvproof.model.player import RefusedError
from kvproof.model.scenario import Geometry
from kvproof.spec.pages import page_ceil

MODES: dict[forwards.ForwardMode, Any] = {
    "extend": ForwardMode.EXTEND,
    "decode": ForwardMode.DECODE,
    "verify": ForwardMode.TARGET_VERIFY,
    "draft": ForwardMode.DECODE,
    "draft_extend": ForwardMode.DRAFT_EXTEND_V2,
}

INTEGERS = ("int32", "int64")
"""What a kernel takes whose pointers carry their own type."""

T = TypeVar("T")

_ENGINE = "/sglang/"
_BACKENDS = "/srt/layers/attention/"


def watch_return(method: str, call: Callable[[], T]) -> tuple[T, str]:
    """A call's result, and the line at which a method of the engine in it returned."""
    line = ""

    def watch(frame: FrameType, event: str, _result: Any) -> None:
        nonlocal line
        if event == "return" and frame.f_code.co_name == method:
            line = _line(frame)

    sys.setprofile(watch)
    try:
        return call(), line
    finally:
        sys.setprofile(None)


def _line(frame: FrameType) -> str:
    path = PurePath(frame.f_code.co_filename).as_posix()
    place = f"sglang/{path.rpartition(_ENGINE)[2]}:{frame.f_lineno}"
    return f"{place} in {frame.f_code.co_name}"


def engine_line() -> str:
    """Line of the backend's public method that is running, as file:line in function."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        path = PurePath(frame.f_code.co_filename).as_posix()
        name = frame.f_code.co_name
        if _BACKENDS in path and not name.startswith("_"):
            return _line(frame)
        frame = frame.f_back
    return ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Use:
    """One use as it was seen: tensors that a graph's replay writes again."""

    store: bool
    step: int
    indices: torch.Tensor | None
    ring: bool = False
    dtype: str
    takes: tuple[str, ...]
    locs: torch.Tensor | None = None
    indptr: torch.Tensor | None = None
    cached: bool | None = None
    where: str = ""

    def fact(self, mode: Any) -> Consumed:
        """What the tensors hold now."""
        counts: tuple[int, ...] = ()
        indices = None if self.indices is None else tuple(self.indices.tolist())
        if self.indptr is not None:
            ends = self.indptr.tolist()
            counts = tuple(end - start for start, end in pairwise(ends))
            # A captured buffer is as long as it may ever be.
            indices = None if indices is None else indices[ends[0] : ends[-1]]
        return Consumed(
            use="store" if self.store else "read",
            mode=mode,
            ring=self.ring,
            step=self.step,
            locs=() if self.locs is None else tuple(self.locs.tolist()),
            counts=counts,
            indices=indices,
            dtype=self.dtype,
            takes=self.takes,
            cached=self.cached,
            where=self.where,
        )


def dtype_of(tensor: torch.Tensor | None) -> str:
    """A tensor's type, e.g. ``int32``."""
    return "none" if tensor is None else str(tensor.dtype).removeprefix("torch.")


class TranslationEngine:
    """Pools, map and one backend of a release: `kvproof.model.forward_player.ForwardEngine`."""

    _published: ClassVar[tuple[Any, ...] | None] = None

    def __init__(
        self, *, geometry: Geometry, construction: str, backend: str, device: str = "cpu"
    ) -> None:
        self.geometry = geometry
        self.construction = construction
        self.backend_name = backend
        self.device = device
        self.max_tokens = geometry.pool_tokens + geometry.page_size
        self.server_args = self._publish()
        self.requests = ReqToTokenPool(
            size=geometry.slots,
            max_context_len=self.max_tokens,
            device=device,
            enable_memory_saver=False,
        )
        self.pool = self._make_pool()
        self.allocator = SWATokenToKVPoolAllocator(
            size=geometry.pool_tokens,
            size_swa=geometry.swa_pool_tokens,
            page_size=geometry.page_size,
            dtype=torch.bfloat16,
            device=device,
            kvcache=self.pool,
            need_sort=False,
            **translation_plan.allocator_arguments(self.requests),
        )
        # One SWA page is lent to nobody, so that no location's entry is the location itself: with
        # such a map a translation that was left out, or made twice, would go unseen.
        self.allocator.swa_attn_allocator.alloc(geometry.page_size)
        self.translator = translation_plan.make_translator(
            self.requests, self.allocator, self.pool, geometry.page_size, device
        )
        self.uses: list[Use] = []
        self.graphs: dict[forwards.ForwardMode, tuple[Graph, list[Use]]] = {}
        self._runners: dict[forwards.ForwardMode, Any] = {}
        self.batch: Any = None
        self.mode: forwards.ForwardMode = "extend"
        self.step = 0
        self.step_rows = 0

    # --- what a backend supplies ----------------------------------------------------------

    def _make_pool(self) -> Any:
        raise NotImplementedError

    def _backend_classes(self) -> dict[str, Any]:
        raise NotImplementedError

    def _plan(self, batch: Any, *, in_graph: bool) -> None:
        raise NotImplementedError

    def _layer(self, batch: Any) -> None:
        """Run a layer; what it uses is appended to ``uses``."""
        raise NotImplementedError

    def _graph_backend(self, mode: forwards.ForwardMode) -> Any:
        """What a runner asks to prepare a replay, its captured storage made."""
        raise NotImplementedError

    def _graph_code(self, mode: forwards.ForwardMode, batch: Any) -> Callable[[], None]:
        """Prepare the capture over the runner's buffers; the code to capture."""
        raise NotImplementedError

    # --- construction ---------------------------------------------------------------------

    def _publish(self) -> Any:
        geometry = self.geometry
        # A draft of n steps: n tokens are drafted, n + 1 verified.
        drafts = geometry.draft_tokens
        key = (geometry.page_size, drafts)
        if TranslationEngine._published == key:
            return translation_plan.published()
        arguments = ServerArgs(
            model_path="dummy",
            page_size=geometry.page_size,
            device="cpu",
            disable_overlap_schedule=True,
            attention_backend="triton",
        )
        # What the resolution of a model's flags would set; there is no model to resolve them from.
        arguments.speculative_num_draft_tokens = drafts
        arguments.speculative_num_steps = max(1, drafts - 1)
        arguments.speculative_eagle_topk = 1
        TranslationEngine._published = key
        return translation_plan.publish(arguments)

    def started(self) -> Started:
        """Describe the target."""
        things = {
            "allocator": self.allocator, "request pool": self.requests, "kv pool": self.pool,
            "translator": self.translator,
        } | self._backend_classes()  # fmt: skip
        return Started(
            target=f"sglang-{sglang.__version__}:{self.construction}",
            backend=self.backend_name,
            geometry=self.geometry,
            ring_stride=getattr(self.pool, "unified_swa_ring_size", None),
            reprefill_tail=0,
            family="translation",
            classes={role: _class_name(thing) for role, thing in things.items() if thing},
            versions={
                "sglang": sglang.__version__,
                "torch": str(torch.__version__),
                "triton": triton.__version__,
            },
        )

    # --- pools ----------------------------------------------------------------------------

    def entries(self) -> tuple[int, ...]:
        """The full-to-SWA map, an entry a location; without its entry for -1."""
        return tuple(self.allocator.full_to_swa_index_mapping[:-1].tolist())

    def lend(self, tokens: Sequence[Tokens]) -> tuple[tuple[int, ...], ...]:
        """Lend locations for the tokens and note them in ``req_to_token``."""
        page = self.geometry.page_size
        total = sum(share.count for share in tokens)
        need = sum(
            page_ceil(share.start + share.count, page) - page_ceil(share.start, page)
            for share in tokens
        )
        # The scheduler asks before it allocates, and evicts or retracts if there is too little.
        if need > self.allocator.full_available_size() or need > self._swa_available():
            raise RefusedError("a pool has too few free pages")
        if any(share.start + share.count > self.max_tokens for share in tokens):
            raise RefusedError("a request would outgrow its row")
        if page == 1:
            locs = self.allocator.alloc(total)
        else:
            starts = torch.tensor([share.start for share in tokens])
            ends = torch.tensor([share.start + share.count for share in tokens])
            last = torch.tensor(
                [self._row(share.slot)[share.start - 1] if share.start else -1 for share in tokens]
            )
            locs = self.allocator.alloc_extend(
                prefix_lens=starts.to(self.device), prefix_lens_cpu=starts,
                seq_lens=ends.to(self.device), seq_lens_cpu=ends,
                last_loc=last.to(self.device), extend_num_tokens=total,
            )  # fmt: skip
        assert locs is not None, "the allocator refused what its pools have room for"
        parts = torch.split(locs, [share.count for share in tokens])
        for share, part in zip(tokens, parts, strict=True):
            self.requests.write(
                (share.slot, slice(share.start, share.start + share.count)), part.to(torch.int32)
            )
        return tuple(tuple(part.tolist()) for part in parts)

    def _swa_available(self) -> int:
        return int(self.allocator.swa_available_size())

    def _row(self, slot: int) -> torch.Tensor:
        return self.requests.req_to_token[slot]  # type: ignore[no-any-return]

    def free_swa(self, slot: int, start: int, end: int) -> None:
        """Give back the SWA pages of positions that no window reaches."""
        self.allocator.free_swa(self._row(slot)[start:end].to(torch.int64))

    def free(self, slot: int, end: int) -> None:
        """Give back all locations of a slot's tokens."""
        self.allocator.free(self._row(slot)[:end].to(torch.int64))

    def remap(self) -> None:
        """Map the SWA pages of the planned forward's locations anew, others than before."""
        page = self.geometry.page_size
        locs = self.batch.out_cache_loc
        locs = locs[locs > 0].to(torch.int64)
        pages = torch.unique(locs // page)
        full = (pages[:, None] * page + torch.arange(page, device=self.device)).reshape(-1)
        if full.numel() > self._swa_available():
            raise RefusedError("the SWA pool has too few free pages")
        swa = self.allocator.swa_attn_allocator.alloc(full.numel())
        self.allocator.free_swa(locs)
        self.allocator.set_full_to_swa_mapping(full, swa)

    # --- forwards -------------------------------------------------------------------------

    def _tensor(self, values: Iterable[int]) -> torch.Tensor:
        return torch.tensor(list(values), dtype=torch.int64, device=self.device)

    def _locs(self, tokens: Sequence[Tokens]) -> torch.Tensor:
        return torch.cat([self._row(t.slot)[t.start : t.start + t.count] for t in tokens]).to(
            torch.int64
        )

    def make_batch(self, mode: forwards.ForwardMode, tokens: Sequence[Tokens]) -> Any:
        """The release's `ForwardBatch` for locations that were lent."""
        locs = self._locs(tokens)
        # A verify and a draft count what is committed; the others what they compute as well.
        committed = mode in ("verify", "draft")
        lengths = [t.start + (0 if committed else t.count) for t in tokens]
        positions = (
            [t.start for t in tokens]
            if mode == "draft"
            else [p for t in tokens for p in range(t.start, t.start + t.count)]
        )
        batch = ForwardBatch(
            forward_mode=MODES[mode],
            batch_size=len(tokens),
            input_ids=self._tensor([0] * len(positions)),
            req_pool_indices=self._tensor(t.slot for t in tokens),
            seq_lens=self._tensor(lengths),
            seq_lens_cpu=torch.tensor(lengths),
            seq_lens_sum=sum(lengths),
            out_cache_loc=locs,
            positions=self._tensor(positions),
            spec_info=self.spec_info(mode, len(tokens)),
            spec_algorithm=SpeculativeAlgorithm.EAGLE,
            capture_hidden_mode=CaptureHiddenMode.NULL,
            lora_ids=[None] * len(tokens),
        )
        if mode in ("extend", "draft_extend"):
            batch.extend_seq_lens = self._tensor(t.count for t in tokens)
            batch.extend_seq_lens_cpu = [t.count for t in tokens]
            batch.extend_prefix_lens = self._tensor(t.start for t in tokens)
            batch.extend_prefix_lens_cpu = [t.start for t in tokens]
        translation_plan.bind(self.translator, batch)
        return batch

    def spec_info(self, mode: forwards.ForwardMode, requests: int) -> Any:
        """What a speculative forward carries; only what the backends ask of it."""
        if mode in ("extend", "decode"):
            return None
        width = self.geometry.draft_tokens
        return SimpleNamespace(
            kv_indptr=None, kv_indices=None, window_kv_indptr=None, window_kv_indices=None,
            custom_mask=None, draft_token_num=width, num_tokens_per_req=width,
            num_correct_drafts=None, num_accept_tokens=None, hidden_states=None,
            extend_seq_lens_tensor=None, extend_seq_lens_cpu=None, dsa_topk_indices=None,
            topk_p=torch.zeros(requests, 1, device=self.device), draft_probs=None,
            topk_index=torch.zeros(requests, 1, dtype=torch.int64, device=self.device),
            capture_hidden_mode=CaptureHiddenMode.NULL, is_draft_input=lambda: False,
            select_index=torch.zeros(requests, dtype=torch.int64, device=self.device),
        )  # fmt: skip

    def plan(self, mode: forwards.ForwardMode, tokens: Sequence[Tokens], *, in_graph: bool) -> None:
        """Make the forward's batch and let the backend plan it."""
        self.mode, self.step_rows = mode, 0
        self.batch = self.make_batch(mode, tokens)
        self._plan(self.batch, in_graph=in_graph)

    def rebind(self, tokens: Sequence[Tokens]) -> None:
        """Give the planned forward other locations, as many."""
        padding = self.batch.out_cache_loc.shape[0] - sum(share.count for share in tokens)
        locs = self._locs(tokens)
        self.batch.out_cache_loc = torch.nn.functional.pad(locs, (0, padding))

    def pad(self, rows: int) -> None:
        """Pad the batch with the release's own code."""
        batch = self.batch
        if self.mode == "draft":
            self.step_rows += rows  # each step's forward is padded, as it comes
            return
        self.pad_batch(
            batch,
            tokens=batch.out_cache_loc.shape[0] + rows,
            # What a batch was padded to before; its batch_size is not.
            requests=batch.seq_lens.shape[0] + (rows if self.mode == "decode" else 0),
        )

    def pad_batch(self, batch: Any, *, tokens: int, requests: int) -> None:
        """`ForwardBatch._pad_inputs_to_size`, as `prepare_mlp_sync_batch` calls it."""
        backend = SimpleNamespace(get_cuda_graph_seq_len_fill_value=lambda: FILL)
        batch._pad_inputs_to_size(SimpleNamespace(attn_backend=backend), tokens, requests)

    def draft_steps(self, batch: Any, steps: int) -> Iterator[int]:
        """Give the batch each step's slice of the window, as `EagleWorkerV2.draft_forward` does."""
        window = batch.out_cache_loc
        slices = per_step_draft_out_cache_loc(
            window, batch.batch_size, 1, self.geometry.draft_tokens - 1
        )
        for self.step in range(steps):
            own = slices[self.step]
            batch.out_cache_loc = batch._pad_tensor_to_size(own, own.shape[0] + self.step_rows)
            yield self.step
            batch.positions.add_(1)
        batch.positions.sub_(steps)  # a captured buffer is filled again before each replay
        batch.out_cache_loc = window

    def layer(self) -> list[Consumed]:
        """Run one sliding-window layer of the planned forward."""
        self.uses, self.step = [], 0
        self._layer(self.batch)
        return [use.fact(self.mode) for use in self.uses]

    # --- graphs ---------------------------------------------------------------------------

    def replay(self, mode: forwards.ForwardMode, tokens: Sequence[Tokens]) -> list[Consumed]:
        """Run the mode's graph for locations just lent; the first time it is captured before."""
        if mode not in self.graphs:
            self.graphs[mode] = self._capture(mode)
        graph, uses = self.graphs[mode]
        self.step_rows = 0
        batch = self.make_batch(mode, tokens)
        self._runners[mode].replay(batch, graph.replay)
        return [use.fact(mode) for use in uses]

    def _capture(self, mode: forwards.ForwardMode) -> tuple[Graph, list[Use]]:
        self.step_rows = 0
        graph = make_graph(self.device)
        code = self._graph_code(mode, self._capture_batch(mode))

        def once() -> None:
            self.uses, self.step = [], 0
            code()

        capture(graph, once)
        return graph, self.uses

    def width(self, mode: forwards.ForwardMode) -> int:
        """Tokens a request of one forward of a graph; a draft's steps have one each."""
        return self.geometry.draft_tokens if mode in ("verify", "draft_extend") else 1

    def _capture_batch(self, mode: forwards.ForwardMode) -> Any:
        """The batch over the runner's buffers, as the runner's own capture makes it."""
        slots, width = self.geometry.slots, self.width(mode)
        make: dict[forwards.ForwardMode, Any] = {
            "draft": DraftRunner,
            "draft_extend": DraftExtendRunner,
        }
        runner = make.get(mode, DecodeRunner)(
            bs=slots,
            width=width,
            steps=self.geometry.draft_tokens - 1,
            mode=MODES[mode],
            backend=self._graph_backend(mode),
            device=self.device,
        )
        self._runners[mode] = runner
        buffers = runner.buffers
        batch = ForwardBatch(
            forward_mode=MODES[mode],
            batch_size=slots,
            input_ids=buffers.input_ids,
            req_pool_indices=buffers.req_pool_indices,
            seq_lens=buffers.seq_lens,
            seq_lens_cpu=buffers.seq_lens_cpu,
            seq_lens_sum=int(buffers.seq_lens.sum()),
            out_cache_loc=buffers.out_cache_loc,
            positions=buffers.positions,
            spec_info=self.spec_info(mode, slots),
            spec_algorithm=SpeculativeAlgorithm.EAGLE,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )
        if mode == "draft_extend":
            batch.extend_seq_lens = buffers.extend_seq_lens
            batch.extend_seq_lens_cpu = [width] * slots
        translation_plan.bind_capture(self.translator, batch)
        return batch


def _class_name(thing: Any) -> str:
    kind = thing if isinstance(thing, type) else type(thing)
    return f"{kind.__module__}.{kind.__qualname__}"
