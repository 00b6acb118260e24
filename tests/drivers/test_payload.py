"""A payload survives bf16, and nothing else looks like one."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvproof.fuzz.drivers import payload

HEAD_DIM = 16

numbers = st.integers(0, payload.BASE**4 - 1)


def through_bf16(rows):
    return torch.from_numpy(rows).to(torch.bfloat16).float().numpy()


@given(st.lists(st.tuples(numbers, numbers), min_size=1, max_size=8), st.integers(0, 1 << 40))
def test_round_trip_through_bf16(writers, launch):
    occupancies, positions = (
        np.array(column, dtype=np.int64) for column in zip(*writers, strict=True)
    )
    rows = payload.encode(
        occupancies=occupancies, positions=positions, launch=launch, head_dim=HEAD_DIM
    )
    assert np.array_equal(through_bf16(rows), rows)
    assert payload.decode(through_bf16(rows)) == writers


def test_a_zero_row_was_written_by_nobody_and_padding_is_not_a_zero_row():
    padding = payload.encode(
        occupancies=np.zeros(1, dtype=np.int64),
        positions=np.zeros(1, dtype=np.int64),
        launch=0,
        head_dim=HEAD_DIM,
    )
    rows = np.concatenate([np.zeros((1, HEAD_DIM), dtype=np.float32), padding])
    assert payload.decode(rows) == [None, (0, 0)]


def test_two_launches_of_the_same_token_differ():
    one, other = (
        payload.encode(
            occupancies=np.array([3]), positions=np.array([7]), launch=launch, head_dim=HEAD_DIM
        )
        for launch in (1, 2)
    )
    assert not np.array_equal(one, other)
    assert payload.decode(one) == payload.decode(other) == [(3, 7)]


@pytest.mark.parametrize("damage", ["torn", "mixed", "tail"])
def test_a_damaged_row_is_no_payload(damage):
    row = payload.encode(
        occupancies=np.array([5]), positions=np.array([6]), launch=9, head_dim=HEAD_DIM
    )
    if damage == "torn":
        row[0, 0] = 0
    elif damage == "mixed":
        row[0, 5] += 0.5
    else:
        row[0, -1] = 1
    with pytest.raises(payload.NoPayloadError):
        payload.decode(row)


@pytest.mark.parametrize(("occupancy", "position"), [(-1, 0), (0, -1), (payload.BASE**4, 0)])
def test_a_number_that_does_not_fit_is_refused(occupancy, position):
    with pytest.raises(ValueError, match="must be from 0 to"):
        payload.encode(
            occupancies=np.array([occupancy]),
            positions=np.array([position]),
            launch=0,
            head_dim=HEAD_DIM,
        )
