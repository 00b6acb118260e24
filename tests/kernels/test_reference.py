"""The float64 reference: against torch's own attention, by hand, and that it would notice."""

import math

import pytest
import torch

from kvproof.kernels.reference import ROUNDED, TRUNCATED, Attention, attend

U = ROUNDED[torch.bfloat16]


def reference(
    q: torch.Tensor, rows: torch.Tensor, picks: list[list[int]], sink: float = -1e30
) -> Attention:
    heads, dim = q.shape[1:]
    return attend(
        q=q,
        rows=rows.double(),
        picks=torch.tensor(picks, dtype=torch.int64),
        sink=torch.full((heads,), sink),
        scale=dim**-0.5,
        roundoff=U,
    )


def test_without_a_sink_it_is_torch_s_attention() -> None:
    generator = torch.Generator().manual_seed(1)
    q = torch.randn(3, 4, 16, generator=generator, dtype=torch.float64)
    rows = torch.randn(9, 16, generator=generator, dtype=torch.float64)
    picks = [[0, 3, 8], [7, 7, 1], [2, 4, 6]]
    keys = rows[torch.tensor(picks)][:, None]
    expected = torch.nn.functional.scaled_dot_product_attention(
        q[:, :, None], keys.expand(-1, 4, -1, -1), keys.expand(-1, 4, -1, -1)
    )[:, :, 0]
    torch.testing.assert_close(reference(q, rows, picks).out, expected)


def test_a_sink_takes_weight_and_gives_no_value() -> None:
    rows = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    q = torch.zeros(1, 1, 2, dtype=torch.bfloat16)  # all scores are 0
    out = reference(q, rows, [[0, 1]], sink=math.log(2.0)).out
    torch.testing.assert_close(out, torch.full((1, 1, 2), 0.25, dtype=torch.float64))


@pytest.mark.parametrize("picks", [[[-1, -1]], [[]]])
def test_a_query_without_keys_gives_zeros(picks: list[list[int]]) -> None:
    q = torch.ones(1, 3, 4, dtype=torch.bfloat16)
    exact = reference(q, torch.ones(5, 4), picks, sink=0.5)
    assert exact.out.abs().max() == 0
    assert exact.worst(torch.zeros(1, 3, 4)) == 0
    assert exact.worst(torch.full((1, 3, 4), 1e-30)) > 1


def test_entries_of_minus_one_are_no_keys() -> None:
    generator = torch.Generator().manual_seed(2)
    q = torch.randn(1, 2, 8, generator=generator).bfloat16()
    rows = torch.randn(6, 8, generator=generator)
    with_gaps = reference(q, rows, [[-1, 3, -1, 5, -1]])
    torch.testing.assert_close(with_gaps.out, reference(q, rows, [[3, 5]]).out)


@pytest.mark.parametrize("roundoff", [ROUNDED, TRUNCATED])
def test_the_tolerance_covers_the_dtype_s_rounding_and_little_more(
    roundoff: dict[torch.dtype, float],
) -> None:
    """The output alone, rounded to bf16, takes up to a half of it; a wrong key does not fit."""
    generator = torch.Generator().manual_seed(3)
    q = torch.randn(4, 8, 64, generator=generator).bfloat16()
    rows = torch.randn(50, 64, generator=generator).bfloat16()
    picks = [[row for row in range(50) if (row + query) % 3] for query in range(4)]
    exact = attend(
        q=q, rows=rows.double(), picks=torch.tensor([one[:32] for one in picks]),
        sink=torch.zeros(8), scale=0.125, roundoff=roundoff[torch.bfloat16],
    )  # fmt: skip
    rounded = exact.worst(exact.out.bfloat16())
    assert 0.02 < rounded < 0.8
    wrong = attend(
        q=q, rows=rows.double(), picks=torch.tensor([[*one[:31], 0] for one in picks]),
        sink=torch.zeros(8), scale=0.125, roundoff=roundoff[torch.bfloat16],
    )  # fmt: skip
    assert exact.worst(wrong.out) > 3


def test_a_number_that_is_none_is_infinitely_wrong() -> None:
    exact = reference(torch.ones(1, 1, 4, dtype=torch.bfloat16), torch.ones(2, 4), [[0, 1]])
    assert exact.worst(torch.full((1, 1, 4), math.nan)) == math.inf
    assert exact.worst(torch.full((1, 1, 4), math.inf)) == math.inf
