"""What judges the C++ kernels, on stand-ins in torch: right ones hold, wrong ones are seen."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from kvproof.kernels import native
from kvproof.kernels.cases import Source
from kvproof.kernels.differences import Difference

EPS = 1e-6


class Plan(SimpleNamespace):
    """Stands for the release's plan: the stand-ins read the batch itself."""


@pytest.fixture(autouse=True)
def _plans(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        native._Batch, "plan", lambda self, _bench, _source: Plan(batch=self), raising=True
    )


def normed(kv: torch.Tensor, weight: torch.Tensor, angles: torch.Tensor) -> torch.Tensor:
    """Norm and rotation in float32, a row an angle."""
    wide = kv.float()
    rows = wide * torch.rsqrt(wide.square().mean(1, keepdim=True) + EPS) * weight.float()
    pairs = torch.view_as_complex(rows[:, 448:].reshape(len(rows), -1, 2))
    return torch.cat([rows[:, :448], torch.view_as_real(pairs * angles).flatten(1)], dim=1)


def store(
    kv: torch.Tensor, plan: Plan, *, norm_weight: torch.Tensor, norm_eps: float,
    freq_cis: torch.Tensor, out_loc: torch.Tensor, kvcache: torch.Tensor, page_size: int,
    bf16_store: bool = False, fp8_2buff: bool = False, kvcache_rope: torch.Tensor | None = None,
    shift: int = 0, twice: bool = True,
) -> None:  # fmt: skip
    assert norm_eps == EPS
    for row in plan.batch.rows:
        angle = freq_cis[row.length - plan.batch.ratio + shift]
        data = normed(kv[row.kv][None], norm_weight, angle).bfloat16()
        loc = int(out_loc[row.token])
        packed = native._Packed.of(data)
        if bf16_store:
            kvcache[loc] = data.view(torch.uint8)[0]
        elif fp8_2buff:
            assert kvcache_rope is not None
            kvcache[loc, :448] = packed.values[0]
            kvcache[loc, 448:462:2] = packed.scales[0]
            if twice:
                kvcache[loc, 449:462:2] = packed.scales[0]
            kvcache_rope[loc] = packed.rope[0]
        else:
            native._Pages(size=page_size, count=0).put(kvcache, [loc], packed)


def launch(monkeypatch: pytest.MonkeyPatch, stand_in: Callable[..., None]) -> None:
    monkeypatch.setattr(native, "_launch", lambda _bench, _role: stand_in)


def run(check: Callable[..., Difference], **form: Any) -> list[Difference]:
    return [check(None, Source.seeded(seed, "cpu"), **form) for seed in range(4)]


LAYOUTS = ("bf16 rows", "two pools", "paged fp8")


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_right_store_holds(monkeypatch: pytest.MonkeyPatch, layout: str, decode: bool) -> None:
    launch(monkeypatch, store)
    found = run(native._compressed_store, layout=layout, decode=decode)
    assert [one.says for one in found if one.says] == []
    assert 0.1 < max(one.worst for one in found) < 1


def _elsewhere(kv: torch.Tensor, plan: Plan, **rest: Any) -> None:
    store(kv, plan, **rest | {"out_loc": rest["out_loc"].roll(1) + 1})


def _beside(kv: torch.Tensor, plan: Plan, **rest: Any) -> None:
    store(kv, plan, **rest)
    rest["kvcache"][0, -1] ^= 1


@pytest.mark.parametrize(
    ("wrong", "layout"),
    [
        (_elsewhere, "bf16 rows"),
        (_beside, "bf16 rows"),
        (_beside, "two pools"),
        (lambda *a, **k: store(*a, shift=1, **k), "bf16 rows"),
        (lambda *a, **k: store(*a, twice=False, **k), "two pools"),
    ],
)
def test_a_wrong_store_is_seen(
    monkeypatch: pytest.MonkeyPatch, wrong: Callable[..., None], layout: str
) -> None:
    launch(monkeypatch, wrong)
    assert any(one.says for one in run(native._compressed_store, layout=layout, decode=False))


@pytest.mark.parametrize("wrong", [False, True])
def test_a_paged_store(monkeypatch: pytest.MonkeyPatch, wrong: bool) -> None:
    def stand_in(kv: torch.Tensor, pool: torch.Tensor, locs: torch.Tensor, **how: Any) -> None:
        rows = native._Packed.of(kv * (1.1 if wrong else 1))
        native._Pages(size=how["page_size"], count=0).put(pool, locs.tolist(), rows)

    launch(monkeypatch, stand_in)
    assert any(one.says for one in run(native._paged_store)) == wrong


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_window_store(monkeypatch: pytest.MonkeyPatch, wrong: bool, padded: bool) -> None:
    def stand_in(
        kv: torch.Tensor, weight: torch.Tensor, _eps: float, angles: torch.Tensor,
        positions: torch.Tensor, locs: torch.Tensor, pool: torch.Tensor, size: int,
    ) -> None:  # fmt: skip
        rows = normed(kv, weight, angles[positions])
        for index, loc in enumerate(locs.tolist()):
            if loc >= 0 or wrong:  # a row for -1 must not be written
                packed = native._Packed.of(rows[index][None])
                rope = rows[index][None, 448:].bfloat16().view(torch.uint8)
                exact = native._Packed(values=packed.values, scales=packed.scales, rope=rope)
                native._Pages(size=size, count=0).put(pool, [loc], exact)

    launch(monkeypatch, stand_in)
    # What it does for -1 shows only where there is one.
    found = run(native._window_store, padded=padded)
    assert any(one.says for one in found) == (wrong and padded)


@pytest.mark.parametrize("decode", [True, False])
@pytest.mark.parametrize("ratio", [4, 128])
@pytest.mark.parametrize("wrong", [False, True])
def test_a_compressor(
    monkeypatch: pytest.MonkeyPatch, ratio: int, decode: bool, wrong: bool
) -> None:
    def stand_in(
        state: torch.Tensor, tokens: torch.Tensor, bias: torch.Tensor, plan: Plan, *,
        head_dim: int, compress_ratio: int, out: torch.Tensor,
    ) -> None:  # fmt: skip
        batch, flat, dim = plan.batch, state.view(-1, state.shape[2]), head_dim
        stride, token, kv = len(bias), 0, 0
        for slot, start, end in zip(batch.slots, batch.before, batch.lengths, strict=True):
            ring = flat[slot * stride : (slot + 1) * stride].clone()
            for position in range(start, end):
                ring[position % stride] = tokens[token]
                length = position + 1
                if length % compress_ratio == 0:
                    seen = ring[[(length + at) % stride for at in range(stride)]]
                    if compress_ratio == 4:
                        keys = torch.cat([seen[:4, :dim], seen[4:, dim : 2 * dim]])
                        scores = torch.cat([seen[:4, 2 * dim : 3 * dim], seen[4:, 3 * dim :]])
                        scores = scores + bias
                        if length == 4 and not wrong:
                            scores[:4] = -torch.inf
                    else:
                        keys, scores = seen[:, :dim], seen[:, dim:] + bias * (2 if wrong else 1)
                    out[token if decode else kv] = (scores.softmax(0) * keys).sum(0)
                    kv += 1
                token += 1
            kept = end - end % compress_ratio - (compress_ratio if compress_ratio == 4 else 0)
            for position in range(max(start, end - 1 if decode else kept), end):
                flat[slot * stride + position % stride] = ring[position % stride]

    launch(monkeypatch, stand_in)
    found = run(native._compressor, ratio=ratio, decode=decode)
    if wrong and ratio == 4 and decode:
        return  # its one defect is in a request's first page, which a decode seldom fills
    assert any(one.says for one in found) == wrong
