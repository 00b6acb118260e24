"""The layer of a draft model: what a draft worker's launches do to a ring of its own.

The draft worker of EAGLE has its own KV pool of the target's class, with the same rule for its
stride, and shares the target's request slots. Its pool is another tensor, so its log is another
log: the same scenario, the same caches, and the rows of the draft's launches in place of the
target's.

In one round it decodes ``draft_tokens - 2`` steps past the committed length (the first draft token
came with the extend before), the target verifies, and an extend writes all ``draft_tokens``
positions again, those that the verify rejects included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from sglang.srt.layers.attention.deepseek_v4_backend_hip_radix import (
    DeepseekV4HipRadixBackend,
    DSV4RawDecodeMetadata,
)

from kvproof.fuzz.drivers.forward import KernelForward
from kvproof.fuzz.drivers.graph_runners import without_constructor
from kvproof.kernels.launch import Ring, RingKernels
from kvproof.model.facts import Read, Wrote
from kvproof.model.player import Lane


class _PlannedError(Exception):
    """Stops a plan once its lengths are known; the rest of the metadata is the compressor's."""

    def __init__(self, lengths: torch.Tensor) -> None:
        super().__init__("planned")
        self.lengths: list[int] = lengths.tolist()


class StepPlans:
    """For which lengths a release plans the steps of a draft.

    Real is `DeepseekV4HipRadixBackend.make_forward_metadata_from_raw_decode`, as the backend of
    each step of `DeepseekV4MultiStepBackend` calls it.
    """

    def __init__(self, *, draft_tokens: int) -> None:
        """Make a backend a step, for chains of ``draft_tokens``; fewer than 3 take no step."""
        self.backends = [
            without_constructor(
                DeepseekV4HipRadixBackend,
                topk=1,
                speculative_num_steps=draft_tokens - 1,
                speculative_step_id=step,
                make_core_attn_metadata=_stop,
            )
            for step in range(draft_tokens - 2)
        ]

    def window_ends(self, step: int, *, slots: Sequence[int], lengths: Sequence[int]) -> list[int]:
        """Last position that each query of a step is shown, where so many tokens are committed."""
        raw = DSV4RawDecodeMetadata(
            req_pool_indices=torch.tensor(slots),
            seq_lens=torch.tensor(lengths),
            out_cache_loc=torch.zeros(len(slots), dtype=torch.int64),
        )
        try:
            self.backends[step].make_forward_metadata_from_raw_decode(raw)
        except _PlannedError as planned:
            # `make_core_attn_metadata` takes its positions from there.
            return [length - 1 for length in planned.lengths]
        raise RuntimeError("the release planned a draft step without its core metadata")


def _stop(*, seq_lens_casual: torch.Tensor, **_rest: Any) -> None:
    raise _PlannedError(seq_lens_casual)


class DraftForward:
    """`kvproof.model.player.Forward` of the draft model's layer."""

    def __init__(self, *, kernels: RingKernels, ring: Ring, draft_tokens: int) -> None:
        # An extend takes the prefill path, in every release.
        kernels = replace(kernels, verify_order="read, then write")
        self.layer = KernelForward(kernels=kernels, ring=ring)
        self.plans = StepPlans(draft_tokens=draft_tokens)

    def prefill(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """The draft model prefills the target's chunks."""
        return self.layer.prefill(lanes)

    def decode(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """An engine that drafts has no plain decodes.

        Raises:
            ValueError: always.
        """
        raise ValueError("an engine without draft tokens has no draft worker: give draft_tokens")

    def verify(self, lanes: Sequence[Lane]) -> list[Read | Wrote]:
        """One round: the draft's steps, then the extend over what the target verified."""
        facts: list[Read | Wrote] = []
        for step in range(len(self.plans.backends)):
            at_step = [replace(lane, start=lane.start + step, end=lane.start + step + 1)
                       for lane in lanes]  # fmt: skip
            ends = self.plans.window_ends(
                step, slots=[lane.slot for lane in lanes], lengths=[lane.start for lane in lanes]
            )
            facts += self.layer.decode_windows(at_step, ends=ends)
        return [*facts, *self.layer.verify(lanes)]
