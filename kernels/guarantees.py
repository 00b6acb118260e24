"""What the proofs assume of a launch's arguments, checked on every launch in an engine's process.

The assumptions are named as the theorems name them (``proofs/kernels/base.py``). A breach is no
defect of the kernel: it says that what was proved of it does not speak about this launch.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

import msgspec
import numpy as np

from kvproof.spec.indices import PADDING_SLOT


class Breach(msgspec.Struct, frozen=True, kw_only=True):
    """A launch that an assumption does not hold of.

    Attributes:
        assumption: its name, e.g. ``H6``.
        kernel: that was launched.
        message: what is not so.
    """

    assumption: str
    kernel: str
    message: str


Arguments: TypeAlias = Mapping[str, Any]
"""Arguments of a launch by name: numbers, and flat numpy arrays of integers."""

Found: TypeAlias = Iterator[tuple[str, bool, str]]
"""An assumption, whether it holds, and what is not so if it does not."""


def breaches(kernel: str, arguments: Arguments, programs: int) -> list[Breach]:
    """Assumptions that a launch breaks.

    Args:
        kernel: name of the Triton function; one that no theorem is about has no assumptions.
        arguments: of the launch.
        programs: in the first dimension of its grid.
    """
    check = _CHECKS.get(kernel)
    if check is None:
        return []
    return [
        Breach(assumption=name, kernel=kernel, message=message)
        for name, holds, message in check(arguments, programs)
        if not holds
    ]


def watch(found: list[Breach]) -> Callable[[], None]:
    """Check every launch in Triton's interpreter from now on; what is returned ends it."""
    from triton.runtime.interpreter import InterpretedFunction  # noqa: PLC0415

    original = InterpretedFunction.run

    def run(self: Any, *args: Any, grid: Any, warmup: bool, **kwargs: Any) -> Any:
        if self.__name__ in _CHECKS:
            bound = inspect.signature(self.fn).bind(
                *args, **{name: value for name, value in kwargs.items() if name in self.arg_names}
            )
            size = grid(bound.arguments) if callable(grid) else grid
            arguments = {name: _plain(value) for name, value in bound.arguments.items()}
            found.extend(breaches(self.__name__, arguments, int(size[0])))
        return original(self, *args, grid=grid, warmup=warmup, **kwargs)

    InterpretedFunction.run = run

    def undo() -> None:
        InterpretedFunction.run = original

    return undo


def _plain(value: Any) -> Any:
    """A tensor of integers as a flat array; floats are not looked at."""
    if not hasattr(value, "data_ptr"):
        return value
    if value.dtype.is_floating_point:
        return None
    return value.detach().reshape(-1).numpy()


# --- One check a kernel ------------------------------------------------------------------------


def _not_negative(name: str, what: str, values: Any) -> tuple[str, bool, str]:
    return name, bool(np.all(np.asarray(values) >= 0)), f"{what} is negative"


def _segments(starts: Any, lengths: Any) -> tuple[str, bool, str]:
    steps = np.diff(np.asarray(starts)[: len(lengths) + 1])
    return "H5", bool(np.array_equal(steps, lengths)), "a segment is not as long as its lengths say"


def _packed(table: Any, width: int) -> tuple[str, bool, str]:
    """Pages first, then -1."""
    rows = np.asarray(table)[: len(table) // width * width].reshape(-1, width) >= 0
    return "H7", bool(np.all(rows[:, :-1] >= rows[:, 1:])), "a page stands behind a -1"


def _ring(given: Arguments) -> tuple[str, bool, str]:
    win = int(given["win"])
    return "H3", int(given.get("ring_stride", win)) >= win >= 1, "the stride is below the window"


def _scatter(given: Arguments, programs: int) -> Found:
    count = min(programs, int(given["n_rows"]))
    slots, positions, finals = (
        np.asarray(given[name])[:count]
        for name in ("state_slot_ptr", "positions_ptr", "final_pos_ptr")
    )
    yield _not_negative("H1", "a slot", slots)
    yield _not_negative("H2", "a position", positions)
    yield _ring(given)
    yield "H6", bool(np.all(finals >= positions)), "a position passes its request's last one"
    for slot in set(slots.tolist()) - {PADDING_SLOT}:
        mine, last = positions[slots == slot], finals[slots == slot]
        yield "H6", len(set(mine.tolist())) == len(mine), f"slot {slot} has a position twice"
        alike = len(set(last.tolist())) == 1 or int(np.ptp(mine)) < int(given["win"])
        yield "H6", alike, f"tokens of slot {slot} are of requests with different ends"


def _decode_indices(given: Arguments, programs: int) -> Found:
    rows = np.asarray(given["batch_id_per_token_ptr"])[:programs]
    there = np.flatnonzero(rows >= 0)
    positions, win = np.asarray(given["positions_ptr"])[there], int(given["win"])
    yield "H8", bool(np.all(rows[there] == there)), "a program works for another batch row"
    yield _not_negative("H1", "a slot", np.asarray(given["state_slot_per_seq_ptr"])[rows[there]])
    yield _not_negative("H2", "a position", positions)
    yield _ring(given)
    yield "H4", 1 <= win <= int(given["BLOCK_N"]), "the window does not fit its block"
    due = np.minimum(positions + 1, win)
    for stream in ("swa", "csa", "hca"):
        steps = np.diff(np.asarray(given[f"{stream}_indptr_ptr"]))[there]
        enough = np.all(steps == due) if stream == "swa" else np.all(steps >= due)
        yield "H5", bool(enough), f"a segment of {stream} has no room for its ring rows"


def _tail(given: Arguments, programs: int) -> Found:
    prefix, valid = (
        np.asarray(given[name])[:programs] for name in ("prefix_len_ptr", "valid_len_ptr")
    )
    yield _not_negative("H5", "a length", np.minimum(prefix, valid))
    yield _segments(given["indptr_ptr"], prefix + valid)
    yield "H7", bool(np.all(valid <= int(given["Wc"]))), "more pages than the table is wide"


def _lengths(given: Arguments, programs: int) -> Found:
    positions, starts = (
        np.asarray(given[name])[:programs] for name in ("positions_ptr", "chunk_start_ptr")
    )
    yield _not_negative("H2", "a chunk's start", starts)
    yield "H2", bool(np.all(positions >= starts)), "a position lies before its chunk"
    yield "H4", int(given["win"]) >= 1 and int(given["Wc"]) >= 1, "a window or table without width"
    if given["HAS_COMPRESS"]:
        yield _packed(given["page_idx_ptr"], int(given["Wc"]))


def _prefill_indices(given: Arguments, programs: int) -> Found:
    yield from _lengths(given, programs)
    yield _not_negative("H1", "a slot", np.asarray(given["state_slot_ptr"])[:programs])
    yield _ring(given)
    positions, starts = (
        np.asarray(given[name])[:programs] for name in ("positions_ptr", "chunk_start_ptr")
    )
    win = int(given["win"])
    ring = np.clip(starts - np.maximum(positions - win + 1, 0), 0, win)
    pages = np.zeros(programs, dtype=np.int64)
    if given["HAS_COMPRESS"]:
        table = np.asarray(given["page_idx_ptr"]).reshape(-1, int(given["Wc"]))
        pages = (table[:programs] >= 0).sum(axis=1)
    yield _segments(given["pre_indptr_ptr"], ring + pages)
    yield _segments(given["ext_indptr_ptr"], np.minimum(positions - starts + 1, win))


def _verify_streams(given: Arguments, programs: int) -> Found:
    yield _not_negative("H1", "a slot", np.asarray(given["slot_ptr"])[:programs])
    yield _not_negative("H2", "a position", np.asarray(given["pos_ptr"])[:programs])
    tail = np.asarray(given["tail_len_ptr"])[:programs]
    steps = np.diff(np.asarray(given["indptr_ptr"])[: programs + 1])
    yield "H5", bool(np.all(steps >= tail)), "a segment has no room for its tail"
    yield "H7", bool(np.all(tail <= int(given["TAIL_W"]))), "more pages than the table is wide"


def _allocate_extend(given: Arguments, programs: int) -> Found:
    before, after, last = (
        np.asarray(given[name])[:programs]
        for name in ("pre_lens_ptr", "seq_lens_ptr", "last_loc_ptr")
    )
    page = int(given["page_size"])
    yield "H9", programs <= int(given["bs_upper"]), "the batch does not fit its block"
    yield "H11", bool(np.all((before >= 0) & (after >= before))), "a request gets shorter"
    congruent = (last + 1 - before) % page == 0
    yield "H12", bool(np.all(congruent)), "a last location is not congruent to its position"
    yield "H12", bool(np.all(np.where(before == 0, last == -1, last >= 0))), "a prefix has no end"
    yield from _free_list(given, int((-(-after // page) + before // -page).sum()))


def _allocate_decode(given: Arguments, programs: int) -> Found:
    after, last = (np.asarray(given[name])[:programs] for name in ("seq_lens_ptr", "last_loc_ptr"))
    page = int(given["page_size"])
    yield "H9", programs <= int(given["bs_upper"]), "the batch does not fit its block"
    yield "H11", bool(np.all(after >= 1)), "a request without a token"
    yield "H12", bool(np.all((last + 2 - after) % page == 0)), "a last location is not congruent"
    yield from _free_list(given, int(((after - 1) % page == 0).sum()))


def _free_list(given: Arguments, needed: int) -> Found:
    free = np.asarray(given["free_page_ptr"])
    message = f"{needed} pages are taken of a free list of {len(free)}"
    yield "H13", needed <= len(free), message
    yield "H13", len(np.unique(free[:needed])) == len(free[:needed]), "a free page stands twice"


def _write_rows(given: Arguments, programs: int) -> Found:
    rows, before, after, new = (
        np.asarray(given[name])[:programs]
        for name in ("req_pool_indices", "pre_lens", "seq_lens", "extend_lens")
    )
    yield "H11", bool(np.all((before >= 0) & (after >= before))), "a request gets shorter"
    yield "H5", bool(np.array_equal(new, after - before)), "an extend has another length"
    yield from _requests(rows, after, given["req_to_token_ptr_stride"])


def _requests(rows: Any, lengths: Any, width: int) -> Found:
    yield "H14", len(set(rows.tolist())) == len(rows), "a request is in the batch twice"
    yield "H14", bool(np.all(rows >= 0)), "a row of the request table is negative"
    yield "H14", bool(np.all(lengths <= int(width))), "a request is longer than its row"


def _last_location(given: Arguments, _programs: int) -> Found:
    lengths = np.asarray(given["prefix_lens_tensor"])[: int(given["num_tokens"])]
    yield _not_negative("H14", "a length", lengths)
    fits = lengths <= int(given["req_to_token_stride"])
    yield "H14", bool(np.all(fits)), "a request is longer than its row"


def _index_lists(given: Arguments, programs: int) -> Found:
    lengths = np.asarray(given["page_kernel_lens_ptr"])[:programs]
    starts = given.get("kv_start_idx")
    starts = np.zeros_like(lengths) if starts is None else np.asarray(starts)[:programs]
    yield _not_negative("H14", "a start", starts)
    yield _segments(given["kv_indptr"], lengths)
    fits = starts + lengths <= int(given["req_to_token_ptr_stride"])
    yield "H14", bool(np.all(fits)), "a request is longer than its row"


def _extend_locations(given: Arguments, programs: int) -> Found:
    starts, ends = (np.asarray(given[name])[:programs] for name in ("start_offset", "end_offset"))
    yield "H9", programs <= int(given["bs_upper"]), "the batch does not fit its block"
    yield "H11", bool(np.all((starts >= 0) & (ends >= starts))), "a request gets shorter"
    yield "H14", bool(np.all(ends <= int(given["pool_len"]))), "a request is longer than its row"


def _window_ids(given: Arguments, programs: int) -> Found:
    first, lengths, rows = (
        np.asarray(given[name])[:programs]
        for name in ("swa_first_pos_ptr", "swa_gather_lens_ptr", "req_pool_indices_ptr")
    )
    yield _segments(given["swa_offsets_ptr"], lengths)
    yield _not_negative("H14", "a first position", first)
    yield from _requests(rows, first + lengths, given["req_to_token_stride"])


def _clear_pages(given: Arguments, _programs: int) -> Found:
    stride, page = int(given["index_stride"]), int(given["page_size"])
    tokens = np.asarray(given["full_page_representatives"])[::stride][: int(given["num_pages"])]
    pages = tokens // page
    yield "H15", len(np.unique(pages)) == len(pages), "a page is cleared twice"
    inside = (tokens >= 0) & ((pages + 1) * page <= len(given["mapping"]))
    yield "H15", bool(np.all(inside)), "a page lies outside the mapping"


def _paged_store(given: Arguments, programs: int) -> Found:
    locations = np.asarray(given["indices_ptr"])[: min(programs, int(given["N"]))]
    yield "H16", len(np.unique(locations)) == len(locations), "two tokens have one location"
    tokens = len(given["cache_u8_ptr"]) // int(given["BYTES_PER_PAGE"]) * int(given["PAGE_SIZE"])
    inside = (locations >= 0) & (locations < tokens)
    yield "H16", bool(np.all(inside)), "a location is not one of the pool"


def _indexer_store(given: Arguments, programs: int) -> Found:
    locations = np.asarray(given["indices_ptr"])[: min(programs, int(given["N"]))]
    yield "H16", len(np.unique(locations)) == len(locations), "two tokens have one location"
    yield _not_negative("H16", "a location", locations)


def _attention(*streams: tuple[str, str, int]) -> Callable[[Arguments, int], Found]:
    """Segment starts, row numbers and the least of these."""

    def check(given: Arguments, programs: int) -> Found:
        for starts, rows, least in streams:
            edges = np.asarray(given[starts])[: programs + 1]
            yield "H5", bool(np.all(np.diff(edges) >= 0)), "a segment ends before it begins"
            used = np.asarray(given[rows])[int(edges[0]) : int(edges[-1])]
            yield "H17", bool(np.all(used >= least)), f"a row number is below {least}"

    return check


def _pending_keys(given: Arguments, programs: int) -> Found:
    if int(given["MODE"]) != 1:
        return  # K26 is about a verify
    drafts = int(given["extend_len"])
    real = programs // drafts - int(given["num_padding"])
    lengths, slots = (np.asarray(given[name])[:real] for name in ("seq_lens_ptr", "req_pool_ptr"))
    width = int(given["req_to_token_row_stride"])
    yield _not_negative("H1", "a slot", slots)
    yield _not_negative("H2", "a length", lengths)
    yield "H14", bool(np.all(lengths + drafts <= width)), "a request is longer than its row"
    table = np.asarray(given["req_to_token_ptr"])
    rows = [table[slot * width : slot * width + n] for slot, n in zip(slots, lengths, strict=True)]
    yield "H16", all(bool(np.all(row >= 0)) for row in rows), "a location is negative"


def _rejected(given: Arguments, programs: int) -> Found:
    yield _not_negative("H1", "a slot", np.asarray(given["req_pool_indices"])[:programs])
    yield _not_negative("H2", "a length", np.asarray(given["seq_lens"])[:programs])


def _window_queries(given: Arguments, _programs: int) -> Found:
    count = int(given["N"])
    slots, positions, groups, firsts, lasts = (
        np.asarray(given[name])[:count] for name in ("Req", "Pos", "Group", "First", "Last")
    )
    yield _not_negative("H1", "a slot", slots)
    yield _not_negative("H2", "a position", positions)
    windows = int(given["WINDOW"])
    yield "H4", 1 <= windows <= int(given["W"]), "the window does not fit its block"
    begins = np.append(True, slots[1:] != slots[:-1])
    edges, number = np.flatnonzero(begins), np.cumsum(begins) - 1
    ends = np.append(edges[1:], count) - 1
    told = (groups == number) & (firsts == edges[number]) & (lasts == ends[number])
    yield "H18", bool(np.all(told)), "a run does not begin or end where it is said to"
    steps = positions - positions[firsts] == np.arange(count) - firsts
    yield "H18", bool(np.all(steps)), "positions of a run do not follow each other"


def _window_history(given: Arguments, _programs: int) -> Found:
    starts = np.asarray(given["Starts"])
    starts = starts[starts >= 0]  # -1 for a group that no run has
    ends = np.asarray(given["Last"])[starts]
    yield _not_negative("H1", "a slot", np.asarray(given["Req"])[ends])
    yield _not_negative("H2", "a position", np.asarray(given["Pos"])[ends] - (ends - starts))


_DECODE = _attention(("kv_indptr_ptr", "kv_indices_ptr", 0))

_CHECKS: Mapping[str, Callable[[Arguments, int], Found]] = {
    "_swa_scatter_kernel": _scatter,
    "_v4_paged_decode_indices_kernel": _decode_indices,
    "_fill_compress_tail_kernel": _tail,
    "_prefill_lengths_kernel": _lengths,
    "_build_prefill_indices_kernel": _prefill_indices,
    "_grouped_stream_kernel": _verify_streams,
    "alloc_extend_kernel": _allocate_extend,
    "alloc_decode_kernel": _allocate_decode,
    "write_req_to_token_pool_triton": _write_rows,
    "get_last_loc_kernel": _last_location,
    "_get_last_loc_safe_kernel": _last_location,
    "create_flashinfer_kv_indices_triton": _index_lists,
    "assign_extend_cache_locs": _extend_locations,
    "_build_swa_token_ids_kernel": _window_ids,
    "get_and_clear_swa_pages_kernel": _clear_pages,
    "_qsa_graph_row_metadata_kernel": _pending_keys,
    "_clear_unaccepted_c128_draft_states_kernel": _rejected,
    "_window_layout_queries": _window_queries,
    "_window_layout_history": _window_history,
    "_triton_fused_store_flashmla_kernel": _paged_store,
    "_triton_fused_store_indexer_kernel": _indexer_store,
    "_paged_decode_fused_kernel": _DECODE,
    "_paged_decode_split_kernel": _DECODE,
    "_sparse_attn_v4_paged_prefill_kernel": _attention(
        ("kv_indptr_prefix_ptr", "kv_indices_prefix_ptr", -1),
        ("kv_indptr_extend_ptr", "kv_indices_extend_ptr", -1),
    ),
}
