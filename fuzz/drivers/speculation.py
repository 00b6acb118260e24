"""Speculation's part of an engine: what scheduler and worker do around a verify, without a model.

Imported only in an engine's own process, after the shims. Allocation, the lookup of the draft's
locations and the commit of what was accepted are the release's own functions. The draft model, the
target model and the sampling of accepted tokens are left out: the scenario says how many there are.

A draft is a chain (``speculative_eagle_topk`` 1), as the releases run DeepSeek-V4: with one branch
the accepted path is the front of what was written, and nothing has to be moved.

DFLASH differs in what the scheduler does ahead of a verify: its draft input prepares the step,
where EAGLE has a function. The server is started with EAGLE's arguments for both, since those of
DFLASH are refused without CUDA; the batches carry the release's own value of the algorithm.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import torch
import triton
from sglang.srt.managers.utils import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode
from sglang.srt.speculative.eagle_info import EagleDraftInput
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm

from kvproof.fuzz.constructions import EAGLE
from kvproof.fuzz.drivers.pool import call_with_known
from kvproof.kernels.engines.shims import engine_family

_BRANCHES = 1


def server_arguments(draft_tokens: int) -> dict[str, Any]:
    """What a server is started with that verifies ``draft_tokens`` tokens a step; 1 for none."""
    if draft_tokens == 1:
        return {}
    return {
        "speculative_algorithm": EAGLE,
        # The first token of a verify is the one that the last step sampled.
        "speculative_num_steps": draft_tokens - 1,
        "speculative_eagle_topk": _BRANCHES,
        "speculative_num_draft_tokens": draft_tokens,
    }


def algorithm(draft_tokens: int, name: str = EAGLE) -> Any:
    """The release's own value for one that drafts so many tokens."""
    return SpeculativeAlgorithm[name] if draft_tokens > 1 else SpeculativeAlgorithm.NONE


def draft_input(requests: int, algorithm: Any = SpeculativeAlgorithm.EAGLE) -> Any:
    """What a step leaves for the next draft, one row a request; a model would have filled it."""
    return call_with_known(
        _dflash_input() if algorithm.is_dflash() else EagleDraftInput,
        {
            "topk_p": torch.zeros((requests, _BRANCHES)),
            "topk_index": torch.zeros((requests, _BRANCHES), dtype=torch.int64),
            "hidden_states": torch.zeros((requests, 1)),
            "bonus_tokens": torch.zeros(requests, dtype=torch.int32),
            "new_seq_lens": torch.zeros(requests, dtype=torch.int64),
            "verified_id": torch.zeros(requests, dtype=torch.int64),
            "capture_hidden_mode": CaptureHiddenMode.LAST,
        },
    )


def _dflash_input() -> Any:
    from sglang.srt.speculative.dflash_info_v2 import DFlashDraftInputV2  # not in all releases

    return DFlashDraftInputV2


def verify_locations(batch: Any, draft_tokens: int) -> torch.Tensor:
    """Location of each token that a verify writes, one request after another, int64.

    The release's kernel looks them up in what the scheduler has reserved, as
    ``eagle_prepare_for_verify`` has it do.
    """
    rows = batch.req_to_token_pool.req_to_token
    requests = len(batch.reqs)
    locations = torch.empty(requests * draft_tokens, dtype=torch.int64)
    engine_family().part("verify locations")[(requests,)](
        batch.req_pool_indices,
        rows,
        batch.seq_lens,
        batch.seq_lens + draft_tokens,
        locations,
        rows.shape[1],
        triton.next_power_of_2(requests),
    )
    return locations


def verified(tokens: Sequence[Sequence[int]], draft_tokens: int) -> GenerationBatchResult:
    """What the worker hands back of a verify that accepted ``tokens``, a request each."""
    padded = [[*run, *[0] * (draft_tokens - len(run))] for run in tokens]
    return GenerationBatchResult(
        next_token_ids=torch.tensor(padded).flatten(),
        accept_lens=torch.tensor([len(run) for run in tokens]),
        speculative_num_draft_tokens=draft_tokens,
    )


def commit(batch: Any, tokens: Sequence[Sequence[int]], draft_tokens: int) -> None:
    """Keep the accepted ``tokens`` of each request, and count the rest as never computed.

    Args:
        batch: the running batch, whose verify has run.
        tokens: a request each, in the batch's order.
        draft_tokens: tokens that the verify wrote.
    """
    result = verified(tokens, draft_tokens)
    # EAGLEWorkerV2.verify gives the lengths, Scheduler.run_batch keeps them for the next step.
    batch.seq_lens = batch.seq_lens + result.accept_lens
    batch.seq_lens_cpu = batch.seq_lens.to("cpu")
    batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
    batch.spec_info = draft_input(len(batch.reqs), batch.spec_algorithm)
    place, _, name = engine_family().parts["verify commit"].rpartition(".")
    processor = object.__new__(pkgutil.resolve_name(place))
    # A frozen or slotted dataclass in some releases: only what the method asks of it is set.
    for field, value in _WORKERS.items():
        object.__setattr__(processor, field, value)
    for req, run in zip(batch.reqs, getattr(processor, name)(result, batch), strict=True):
        req.output_ids.extend(run)


def _ignore(*_: Any, **__: Any) -> None:
    """Statistics of a server that has none here."""


_WORKERS = {
    "model_worker": SimpleNamespace(on_verify_complete_cpu=_ignore),
    "metrics_reporter": SimpleNamespace(snapshot_spec_decode_metrics=_ignore),
}
