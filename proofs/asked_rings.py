"""A release's own ring of pending keys, asked what a compressed key is made of.

Imported in an engine's process, after the shims. In the sparse attention of Qwen (QSA) an indexer
scores groups of tokens, by one compressed key each. Keys whose group has not ended wait in a ring
of the request, a row a token of the group. Indexer, plan, pool methods and kernel are the
release's own; what stands around them has only what they read. A key here says its position.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.layers.attention.qsa import metadata as plans
from sglang.srt.layers.attention.qsa.graph_metadata import launch_graph_metadata
from sglang.srt.layers.attention.qsa.qsa_indexer import QSAIndexer
from sglang.srt.layers.attention.qwen_sparse_attn_backend import QwenSparseAttnBackend
from sglang.srt.mem_cache.qsa_kv_pool import QSATokenToKVPool

from kvproof.kernels.memory_recipes import plan_pending

_SLOT = 1
"""Of the request; the release lends no request slot 0."""


class _Pool(QSATokenToKVPool):  # type: ignore[misc]
    """The release's pool, with the buffers of the indexer alone, of one layer."""

    def __init__(self, *, ratio: int, tokens: int) -> None:
        self.qsa_compress_ratio = ratio
        # Keys are told apart by their position, so a key has a place for each.
        self.qsa_key_state_buffer_pool = [torch.zeros((_SLOT + 1) * ratio, 1, tokens)]
        self.qsa_rope_position_buffer = torch.zeros((_SLOT + 1) * ratio, 3, dtype=torch.int64)
        self.qsa_compressed_k_buffer_pool = [torch.zeros(tokens // ratio, 1, tokens)]

    def _transfer_full_attention_id(self, layer_id: int) -> int:
        return layer_id

    def _wait_for_layer(self, layer_id: int) -> None:
        """Nothing loads layers."""


class _Indexer(QSAIndexer):  # type: ignore[misc]
    """The release's indexer without its weights: a compressed key is the mean of its group's."""

    def __init__(self, *, ratio: int) -> None:
        torch.nn.Module.__init__(self)
        self.layer_id = 0
        self.compress_ratio = ratio
        self.rotary_emb = SimpleNamespace()

    def normalize_compressed_keys(self, keys: torch.Tensor, _positions: Any) -> torch.Tensor:
        """Left as they are."""
        return keys


def grouped(*, ratio: int, first: int, drafts: int, replayed: bool) -> tuple[int, ...]:
    """Positions whose keys are in the compressed key of the first group that a verify ends."""
    tokens = (first + drafts) // ratio * ratio + ratio
    pool, indexer = _Pool(ratio=ratio, tokens=tokens), _Indexer(ratio=ratio)
    table = torch.arange(tokens, dtype=torch.int32).expand(_SLOT + 1, -1)

    def forward(first: int, drafts: int, *, replayed: bool) -> None:
        positions = torch.arange(first, first + drafts)
        plan = (_replayed if replayed else _planned)(pool, table, positions)
        indexer.update_key_state_and_compress(
            torch.eye(tokens)[positions][:, None], positions, positions, plan,
            state_slots=plan.pending_ring_slots,
        )  # fmt: skip

    for position in range(first):
        forward(position, 1, replayed=False)
    forward(first, drafts, replayed=replayed)
    compressed = pool.get_qsa_compressed_k_buffer(0)[first // ratio, 0]
    return tuple(compressed.nonzero().flatten().tolist())


def _planned(pool: _Pool, table: torch.Tensor, positions: torch.Tensor) -> Any:
    """The plan of a forward that runs as it is."""
    rows = torch.arange(len(positions))
    slots = torch.full_like(rows, _SLOT)
    lengths = (positions + 1).to(torch.int32)
    backend = SimpleNamespace(
        token_to_kv_pool=pool, _qsa_write_plan=QwenSparseAttnBackend._qsa_write_plan
    )
    is_decode = len(positions) == 1
    write_locs, ends, ended_rows, member_rows = QwenSparseAttnBackend._qsa_build_write_plan(
        backend,
        forward_batch=SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: is_decode)),
        speculative_paged=not is_decode,
        token_slot_table=table[slots],
        sequence_lengths=lengths,
    )
    return SimpleNamespace(
        token_to_kv_pool=pool, is_cuda_graph=False, token_to_batch_idx=rows,
        req_pool_indices=slots, sequence_lengths=lengths, write_locs=write_locs,
        compress_group_positions=ends, compress_sequence_ids=ended_rows,
        compress_member_rows=member_rows, compress_group_ring_locs=None,
        pending_ring_slots=plans.build_pending_ring_slots(
            token_to_batch_idx=rows, req_pool_indices=slots, sequence_lengths=lengths,
            logical_positions=positions, compress_ratio=pool.qsa_compress_ratio, is_extend=False,
        ),
    )  # fmt: skip


def _replayed(pool: _Pool, table: torch.Tensor, positions: torch.Tensor) -> Any:
    """The plan of a graph's replay, by the release's kernel."""
    plan = plan_pending(
        launch_graph_metadata,
        lengths=positions[:1].tolist(),
        slots=[_SLOT],
        drafts=len(positions),
        table=table.contiguous(),
        ratio=pool.qsa_compress_ratio,
    )
    plan.token_to_kv_pool, plan.is_cuda_graph, plan.compress_member_rows = pool, True, None
    return plan
