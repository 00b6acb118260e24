"""Random launches of the kernels around the allocator: pages, request rows, index lists.

See `recipes`. Sizes are small, so that the interpreter is quick; a model is for all of them.
"""

from __future__ import annotations

import importlib
import inspect
import itertools
from collections.abc import Callable, Mapping, Sequence
from random import Random
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import torch

from kvproof.kernels.family import Family
from kvproof.kernels.launch_sizes import COMPRESSED_TOKENS, DIM, PAGE, RATIO, WINDOW

CONTEXT = 256
"""Columns of the request table."""

POINTED: list[torch.Tensor] = []
"""What the last launch passed the addresses of."""

_FULL = 512
"""Full locations that have a window location."""

_REQUESTS = 12
_POOL_PAGES = 64


def _allocator(dice: Random) -> Any:
    """The release's own page allocator, its free list in a random order."""
    paged = importlib.import_module("sglang.srt.mem_cache.allocator.paged")
    allocator = paged.PagedTokenToKVPoolAllocator(
        _POOL_PAGES * PAGE, PAGE, torch.bfloat16, "cpu", None, False
    )
    # A release that takes torch code on a CPU launches the kernel on a GPU.
    allocator.use_triton_kernels = True
    pages = allocator.free_pages.tolist()
    dice.shuffle(pages)
    allocator.free_pages = torch.tensor(pages)
    return allocator


def _last_locations(dice: Random, lengths: list[int]) -> torch.Tensor:
    """A location congruent to each length's last token; -1 for none."""
    return torch.tensor(
        [dice.randrange(200, 260) * PAGE + (n - 1) % PAGE if n else -1 for n in lengths]
    )


def _allocate_extend(_family: Family, dice: Random) -> None:
    count = dice.randint(2, 5)
    prefixes = [dice.choice((0, dice.randint(0, 3 * PAGE))) for _ in range(count)]
    # One token at least: the scheduler extends no request by nothing.
    ends = [prefix + dice.randint(1, 4 * PAGE) for prefix in prefixes]
    starts, stops = torch.tensor(prefixes), torch.tensor(ends)
    _allocator(dice).alloc_extend(
        starts, starts, stops, stops, _last_locations(dice, prefixes), sum(ends) - sum(prefixes)
    )


def extended(fills: Sequence[int]) -> list[int]:
    """Locations of two requests of one and two tokens.

    Args:
        fills: what masked loads give, in turn, to lanes of which they do not say what they get.
    """
    interpreter = importlib.import_module("triton.runtime.interpreter")
    builder, turns = interpreter.interpreter_builder, itertools.cycle(fills)
    masked_load = builder.create_masked_load

    def load(pointers: Any, mask: Any, other: Any, *rest: Any) -> Any:
        if other is None:
            element = pointers.get_element_ty()
            values = np.full(pointers.data.shape, next(turns), interpreter._get_np_dtype(element))
            other = interpreter.TensorHandle(values, element)
        return masked_load(pointers, mask, other, *rest)

    starts, stops = torch.tensor([0, 0]), torch.tensor([1, 2])
    with mock.patch.object(builder, "create_masked_load", load):
        found = _allocator(Random(0)).alloc_extend(
            starts, starts, stops, stops, torch.tensor([-1, -1]), 3
        )
    locations: list[int] = found.tolist()
    return locations


def exhausted() -> list[int]:
    """An extend by one page more than is free; nothing is given."""
    allocator = _allocator(Random(0))
    # Pages that were taken, so that reading on behind the free ones is still reading memory.
    allocator.free_pages = allocator.free_pages[:2]
    starts, stops = torch.tensor([0]), torch.tensor([3 * PAGE])
    found = allocator.alloc_extend(starts, starts, stops, stops, torch.tensor([-1]), 3 * PAGE)
    return [] if found is None else list(found.tolist())


def _allocate_decode(_family: Family, dice: Random) -> None:
    lengths = [
        dice.choice((PAGE + 1, dice.randint(2, 5 * PAGE))) for _ in range(dice.randint(2, 6))
    ]
    ends = torch.tensor(lengths)
    _allocator(dice).alloc_decode(ends, ends, _last_locations(dice, [n - 1 for n in lengths]))


def _request_table(dice: Random) -> torch.Tensor:
    rows = [[dice.randrange(1 << 20) for _ in range(CONTEXT)] for _ in range(_REQUESTS)]
    return torch.tensor(rows, dtype=torch.int32)


def _rows(dice: Random, count: int) -> torch.Tensor:
    return torch.tensor(dice.sample(range(_REQUESTS), count))


def _last_location(family: Family, dice: Random, *, safe: bool) -> None:
    count = dice.randint(2, 6)
    lengths = torch.tensor([dice.choice((0, dice.randint(1, CONTEXT))) for _ in range(count)])
    family.launcher("last location, HIP" if safe else "last location")(
        _request_table(dice), _rows(dice, count), lengths
    )


def _write_request_rows(family: Family, dice: Random) -> None:
    count = dice.randint(2, 4)
    prefixes = [dice.choice((0, dice.randint(1, CONTEXT // 2))) for _ in range(count)]
    ends = [prefix + dice.randint(1, CONTEXT // 2) for prefix in prefixes]
    starts, stops = torch.tensor(prefixes), torch.tensor(ends)
    tokens = torch.tensor([dice.randrange(1 << 20) for _ in range(sum(ends) - sum(prefixes))])
    POINTED[:] = [torch.tensor([dice.randrange(1 << 20) for _ in range(n)]) for n in prefixes]
    write = family.launcher("write request rows")
    rows = _rows(dice, count)
    # What the server's arguments say of the backend; there is no server.
    answers: dict[str, Any] = {
        "support_triton": lambda _backend: True,
        "attention_backends": lambda: ("triton", "triton"),
        "get_flags": mock.MagicMock,
        "get_server_args": mock.MagicMock,
        "is_pin_memory_available": lambda _device: False,
    }
    with mock.patch.dict(
        write.__globals__, {name: it for name, it in answers.items() if name in write.__globals__}
    ):
        write(
            tokens, rows, rows, starts, starts, stops, stops, stops - starts, stops - starts,
            POINTED, SimpleNamespace(req_to_token=_request_table(dice), device="cpu"),
        )  # fmt: skip


def _index_lists(family: Family, dice: Random, *, window: bool) -> None:
    count = dice.randint(2, 5)
    lengths = torch.tensor([dice.choice((0, dice.randint(1, CONTEXT // 2))) for _ in range(count)])
    starts = torch.tensor([dice.randint(0, CONTEXT // 2) for _ in range(count)])
    edges = torch.zeros(count + 1, dtype=torch.int32)
    edges[1:] = torch.cumsum(lengths, dim=0)
    table = _request_table(dice)
    # The attention backends have no function of their own for this: they launch it so.
    family.launcher("index lists")[(count,)](
        table, _rows(dice, count), lengths.to(torch.int32), edges,
        starts.to(torch.int32) if window else None,
        torch.zeros(int(edges[-1]) + 3, dtype=torch.int64), table.stride(0),
    )  # fmt: skip


def _draft_locations(family: Family, dice: Random) -> None:
    count, steps = dice.randint(2, 5), dice.randint(1, 5)
    starts = torch.tensor([dice.randint(0, CONTEXT - 8) for _ in range(count)])
    table = _request_table(dice)
    family.launcher("extend locations")[(count,)](
        _rows(dice, count), table, starts, starts + steps,
        torch.zeros(count * steps, dtype=torch.int64), table.shape[1], 8,
    )  # fmt: skip


def _clear_window_pages(family: Family, dice: Random, *, checked: bool) -> None:
    mapping = torch.tensor([dice.choice((0, dice.randrange(1, 99))) for _ in range(40 * PAGE)])
    pages = dice.sample(range(40), dice.randint(1, 30))
    family.launcher("clear window pages")(
        torch.tensor([page * PAGE + dice.randrange(PAGE) for page in pages]), mapping, PAGE, checked
    )


def _window_ids(family: Family, dice: Random) -> None:
    count = dice.randint(2, 3)
    lengths = [dice.randint(1, CONTEXT) for _ in range(count)]
    extends = [dice.randint(1, length) for length in lengths]
    build = family.launcher("window ids")
    covered = sum(min(n, new + WINDOW - 1) for n, new in zip(lengths, extends, strict=True))
    # Newer releases are told how many there are, and need not ask the GPU.
    told = {"total_swa": covered} if "total_swa" in inspect.signature(build).parameters else {}
    build(
        *(torch.tensor(each, dtype=torch.int32) for each in (lengths, extends)),
        _rows(dice, count).to(torch.int32),
        _request_table(dice) % _FULL,
        torch.tensor([dice.randrange(_FULL) for _ in range(_FULL)]),
        WINDOW,
        **told,
    )


_VERIFY = 1
"""Mode of the launch: so many tokens behind each request's length."""


def plan_pending(
    launch: Callable[..., Any], *, lengths: list[int], slots: list[int], drafts: int,
    table: torch.Tensor, padding: int = 0, ratio: int = RATIO,
) -> SimpleNamespace:  # fmt: skip
    """What the plan of a graph's replay says of a verify, for the sparse attention of Qwen.

    Args:
        launch: ``launch_graph_metadata`` of the release.
        lengths: of the requests, before the verify.
        slots: their rows of the table.
        drafts: tokens of the verify, each.
        table: ``[slots, CONTEXT]`` int32, full locations.
        padding: requests at the end that are none.
        ratio: tokens of a group.
    """
    rows = len(lengths) * drafts

    def filled(*shape: int) -> torch.Tensor:
        return torch.zeros(*shape, dtype=torch.int32)

    plan = SimpleNamespace(
        compress_ratio=ratio, pending_ring_slots=torch.zeros(rows, dtype=torch.int64),
        decode_logical_positions=filled(rows), graph_prefix_lengths=filled(rows),
        graph_compressed_lengths=filled(rows), graph_write_locs=filled(rows),
        graph_ring_group_locs=filled(rows, ratio),
        graph_compressed_page_table=filled(rows, table.shape[1] // PAGE),
    )  # fmt: skip
    launch(
        mode=_VERIFY, bs=len(lengths), num_rows=rows, seq_lens=torch.tensor(lengths),
        req_pool_indices=torch.tensor(slots), extend_lens=None, extend_len=drafts,
        num_padding=padding, req_to_token=table,
        metadata=SimpleNamespace(
            indexer_metadata=plan, sequence_lengths=filled(rows), row_req_pool_indices=filled(rows)
        ),
        pool=SimpleNamespace(qsa_compressed_page_size=PAGE // ratio),
    )  # fmt: skip
    return plan


def _pending_keys(family: Family, dice: Random) -> None:
    count = dice.randint(2, 4)
    plan_pending(
        family.launcher("pending keys"),
        lengths=[dice.randint(0, CONTEXT - 8) for _ in range(count)],
        slots=_rows(dice, count).tolist(),
        drafts=dice.randint(2, 5),
        padding=dice.randint(0, 1),
        table=_request_table(dice),
    )


def pending_rows(family: Family, numbers: Mapping[str, list[int]]) -> list[int]:
    """Rows that a verify's tokens take in the ring, and then those that its first one reads."""
    plan = plan_pending(
        family.launcher("pending keys"),
        lengths=numbers["length"],
        slots=numbers["slot"],
        drafts=numbers["drafts"][0],
        table=torch.zeros(numbers["slot"][0] + 1, CONTEXT, dtype=torch.int32),
    )
    return [*plan.pending_ring_slots.tolist(), *plan.graph_ring_group_locs[0].tolist()]


def _clear_rejected(family: Family, dice: Random) -> None:
    count, drafts, ring = dice.randint(2, 4), dice.randint(2, 5), 2 * COMPRESSED_TOKENS
    family.launcher("clear rejected states")(
        torch.randn(_REQUESTS * ring, 2 * DIM),
        _rows(dice, count),
        torch.tensor([dice.randint(0, CONTEXT) for _ in range(count)]),
        torch.tensor([dice.randint(1, drafts) for _ in range(count)], dtype=torch.int32),
        ring_size=ring,
        num_draft_tokens=drafts,
    )


def cleared_rows(family: Family, numbers: Mapping[str, list[int]]) -> list[int]:
    """Rows of the ring that hold nothing after a verify."""
    [ring], [slot] = numbers["ring"], numbers["slot"]
    state = torch.ones((slot + 1) * ring, 2)
    family.launcher("clear rejected states")(
        state,
        torch.tensor([slot]),
        torch.tensor(numbers["length"]),
        torch.tensor(numbers["accepted"], dtype=torch.int32),
        ring_size=ring,
        num_draft_tokens=numbers["drafts"][0],
    )
    rows: list[int] = torch.nonzero(state[:, 0] == 0).flatten().tolist()
    return rows


def _request_window(family: Family, dice: Random, *, floored: bool) -> None:
    lengths = [dice.randint(1, 5) for _ in range(dice.randint(2, 3))]
    starts = [dice.choice((0, dice.randint(1, 2 * WINDOW))) for _ in lengths]
    slots = _rows(dice, len(lengths)).tolist()
    tokens = [
        (slot, start + at, max(0, start - 3))
        for slot, start, length in zip(slots, starts, lengths, strict=True)
        for at in range(length)
    ]
    slot, position, floor = (torch.tensor(column) for column in zip(*tokens, strict=True))
    window = importlib.import_module("sglang.srt.mem_cache.dsv41_request_window")
    group, first, last = window._first_row_offsets(slot)
    capacity = WINDOW + PAGE
    family.launcher("request window")(
        slot, position, group, first, last,
        zero_row=_REQUESTS * capacity, window=WINDOW, capacity=capacity,
        floor=floor if floored else None, num_groups=len(lengths),
        padded_rows=len(tokens) + dice.randint(0, 2),
    )  # fmt: skip


RECIPES: Mapping[str, Callable[[Family, Random], None]] = {
    "allocate extend": _allocate_extend,
    "allocate decode": _allocate_decode,
    "last location": lambda family, dice: _last_location(family, dice, safe=False),
    "last location, HIP": lambda family, dice: _last_location(family, dice, safe=True),
    "write request rows": _write_request_rows,
    "index lists": lambda family, dice: _index_lists(family, dice, window=False),
    "index lists, window": lambda family, dice: _index_lists(family, dice, window=True),
    "extend locations": _draft_locations,
    "window ids": _window_ids,
    "clear window pages": lambda family, dice: _clear_window_pages(family, dice, checked=False),
    "clear window pages, checked": lambda family, dice: _clear_window_pages(
        family, dice, checked=True
    ),
    "pending keys": _pending_keys,
    "clear rejected states": _clear_rejected,
    "request window": lambda family, dice: _request_window(family, dice, floored=False),
    "request window, floored": lambda family, dice: _request_window(family, dice, floored=True),
}
"""As `recipes.RECIPES`."""
