"""KV payloads that say who wrote them.

A token's row of KV holds its occupancy, its position and the number of the launch that wrote it,
as digits that bf16 holds exactly. The real kernels move the row; what comes out of the tensor is
then evidence, not bookkeeping. The launch number makes every write visible, also one that puts a
token's row back where it was.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

BASE = 128
"""bf16 has 8 bits of precision: every integer up to 256 is exact."""

_DIGITS = {"occupancy": 4, "position": 4, "launch": 3}
_OFFSETS = {"occupancy": 1, "position": 5, "launch": 9}
_MARK = 1.0
ELEMENTS = 12
"""Elements of a row that a payload needs; the first is a mark that the row was written."""


class NoPayloadError(ValueError):
    """A row holds something that no payload looks like: a kernel tore or mixed rows."""


def encode(
    *,
    occupancies: npt.NDArray[np.int64],
    positions: npt.NDArray[np.int64],
    launch: int,
    head_dim: int,
) -> npt.NDArray[np.float32]:
    """Payload rows of tokens.

    Args:
        occupancies: ``[tokens]``, 0 for padding.
        positions: ``[tokens]``.
        launch: number of the launch that will write them; counted modulo 2^21.
        head_dim: width of a row, at least `ELEMENTS`.

    Returns:
        ``[tokens, head_dim]``, every element exact in bf16.
    """
    rows = np.zeros((len(positions), head_dim), dtype=np.float32)
    rows[:, 0] = _MARK
    launches = np.full(len(positions), launch % BASE ** _DIGITS["launch"], dtype=np.int64)
    for name, numbers in (
        ("occupancy", occupancies), ("position", positions), ("launch", launches),
    ):  # fmt: skip
        if len(numbers) and (numbers.min() < 0 or numbers.max() >= BASE ** _DIGITS[name]):
            raise ValueError(f"{name} must be from 0 to {BASE ** _DIGITS[name] - 1}: {numbers}")
        for digit in range(_DIGITS[name]):
            rows[:, _OFFSETS[name] + digit] = numbers // BASE**digit % BASE
    return rows


def decode(rows: npt.NDArray[np.float32]) -> list[tuple[int, int] | None]:
    """Who wrote each row: (occupancy, position), or None for a row that nobody wrote.

    Args:
        rows: ``[rows, head_dim]``.

    Raises:
        NoPayloadError: a row holds neither a payload nor zeros.
    """
    whole = rows[:, :ELEMENTS].astype(np.int64)
    written = whole[:, 0] == 1
    if not (
        np.array_equal(whole, rows[:, :ELEMENTS])
        and not rows[:, ELEMENTS:].any()
        and not rows[~written].any()
    ):
        raise NoPayloadError(f"not rows that one launch wrote whole: {rows.tolist()}")
    occupancies = _number(whole, "occupancy")
    positions = _number(whole, "position")
    return [
        (occupancy, position) if known else None
        for known, occupancy, position in zip(
            written.tolist(), occupancies.tolist(), positions.tolist(), strict=True
        )
    ]


def _number(whole: npt.NDArray[np.int64], name: str) -> npt.NDArray[np.int64]:
    offset, digits = _OFFSETS[name], _DIGITS[name]
    return whole[:, offset : offset + digits] @ (BASE ** np.arange(digits))
