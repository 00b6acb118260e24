"""The kernel forward reports what the tensor shows, in the order of the launches."""

import msgspec
import pytest
import torch

from kvproof.fuzz.drivers.forward import KernelForward
from kvproof.kernels.launch import Ring, RingKernels
from kvproof.model.facts import Read, Wrote
from kvproof.model.forward import RuleForward
from kvproof.model.player import Lane

WINDOW, STRIDE, SLOTS = 4, 6, 3


def segments(queries):
    rows = list(queries)
    flat = torch.tensor([row for query in rows for row in query], dtype=torch.int32)
    return flat, torch.tensor([0, *(len(query) for query in rows)]).cumsum(0).to(torch.int32)


def store(*, kv, state_slot, positions, unified_kv, win, ring_stride, final_pos):
    for at, (slot, position, final) in enumerate(
        zip(state_slot.tolist(), positions.tolist(), final_pos.tolist(), strict=True)
    ):
        if position > final - win:
            unified_kv[slot * ring_stride + position % ring_stride] = kv[at]


def decode_streams(*, state_slot, positions, swa_len, win, ring_stride, **_compressed):
    assert swa_len.tolist() == [min(position + 1, win) for position in positions.tolist()]
    return segments(
        [
            slot * ring_stride + at % ring_stride
            for at in range(max(0, position - win + 1), position + 1)
        ]
        for slot, position in zip(state_slot.tolist(), positions.tolist(), strict=True)
    )


def prefill_indices(*, state_slot, positions, chunk_start, win, ring_stride, **_compressed):
    return segments(
        [slot * ring_stride + at % ring_stride for at in range(max(0, position - win + 1), start)]
        for slot, position, start in zip(
            state_slot.tolist(), positions.tolist(), chunk_start.tolist(), strict=True
        )
    )


def forward(order="write, then read", **replaced):
    kernels = {
        "store": store,
        "decode_streams": decode_streams,
        "prefill_indices": prefill_indices,
        "verify_order": order,
    }
    rows = torch.zeros(SLOTS * STRIDE, 16, dtype=torch.bfloat16)
    return KernelForward(
        kernels=RingKernels(**(kernels | replaced)),
        ring=Ring(rows=rows, window=WINDOW, stride=STRIDE, pages=SLOTS * STRIDE),
    )


def lane(start, end, *, request="A", slot=1, occupancy=1):
    return Lane(request=request, slot=slot, occupancy=occupancy, start=start, end=end)


PADDING = Lane(request=None, slot=0, occupancy=0, start=0, end=1)


def unseen(facts):
    return [
        msgspec.structs.replace(fact, seen=None) if isinstance(fact, Read) else fact
        for fact in facts
    ]


@pytest.mark.parametrize("order", ["write, then read", "read, then write"])
def test_agrees_with_the_rules(order):
    real, rules = forward(order), RuleForward(window=WINDOW, stride=STRIDE, verify_order=order)
    other = lane(0, 5, request="B", slot=2, occupancy=2)
    for launch, lanes in [
        ("prefill", [lane(0, 7)]), ("prefill", [lane(7, 9), other]),
        ("decode", [lane(9, 10), lane(5, 6, request="B", slot=2, occupancy=2), PADDING]),
        ("verify", [lane(10, 13)]), ("verify", [lane(11, 14)]), ("decode", [lane(12, 13)]),
    ]:  # fmt: skip
        assert unseen(getattr(real, launch)(lanes)) == getattr(rules, launch)(lanes)


def test_a_decode_sees_its_own_key_and_who_else_wrote():
    step = forward()
    step.prefill([lane(0, 6, request="B", occupancy=1)])
    wrote, read = step.decode([lane(6, 7, occupancy=2)])
    assert wrote == Wrote(request="A", mode="decode", slot=1, positions=(6,), rows=(6,))
    assert read.first == 3
    assert read.seen == ((1, 3), (1, 4), (1, 5), (2, 6))


def test_a_prefill_reads_before_it_writes():
    step = forward()
    reads_then_wrote = step.prefill([lane(2, 4)])
    assert [type(fact) for fact in reads_then_wrote] == [Read, Read, Wrote]
    assert [fact.seen for fact in reads_then_wrote[:2]] == [(None, None)] * 2


def test_rewriting_the_same_token_is_seen():
    step = forward()
    first, second = (step.decode([lane(3, 4)])[0] for _ in range(2))
    assert first == second


def test_a_row_that_no_lane_may_write_is_noticed():
    def stray(*, unified_kv, **arguments):
        store(unified_kv=unified_kv, **arguments)
        unified_kv[0] = unified_kv[arguments["state_slot"][0] * STRIDE]
        unified_kv[0, 1] = 9  # an occupancy that is not in this launch

    with pytest.raises(AssertionError, match="no lane"):
        forward(store=stray).prefill([lane(0, 1)])


def test_a_kernel_that_writes_elsewhere_is_reported_where_it_wrote():
    def shifted(*, positions, **arguments):
        store(positions=positions + 1, **(arguments | {"final_pos": positions + 1}))

    [wrote] = forward(store=shifted).prefill([lane(0, 1)])
    assert (wrote.positions, wrote.rows) == ((0,), (STRIDE + 1,))
