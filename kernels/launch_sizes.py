"""Sizes of the launches that are compared and captured. Without torch: proofs read them too."""

from __future__ import annotations

WINDOW = 128
"""DeepSeek-V4's sliding window."""

HEAD_DIM = 512
ROPE_DIM = 64
COMPRESSED = 2048
"""Width of a compressed page table: two rounds of the kernels' loop over it."""

HEADS = 20
"""Query heads: the last block of them is not full."""

DIM = 48
"""Width of a row: less than its block."""

SMALL_RECIPES = ("decode attention", "decode attention, split", "prefill attention")
"""Launches of these two sizes, smaller than real ones: their widths say nothing."""

V4_HEADS, V4_DIM = 128, 512
"""DeepSeek-V4's, without tensor parallelism."""

SPLITS = 16
"""Splits of a launch that is split; the most that the wrapper takes on HIP."""

PAGE = 16
"""Tokens of a page of an allocator."""

WORKERS = 128
"""Programs that share a request in the wrapper of the window ids."""

STORE_PAGE = 256
"""Tokens of a page of DeepSeek-V4's paged pools."""

PAGE_BYTES = 149_760
"""Bytes of such a page: tokens of 576 bytes and 8 scales, in whole 576 (PR #40351)."""

INDEXER_BYTES = STORE_PAGE * (128 + 4)
"""Bytes of a page of the indexer: a key and a float scale a token."""

RATIO = 4
"""Tokens of a group of Qwen's sparse attention, and rows of its ring of pending keys."""

COMPRESSED_TOKENS = 128
"""Tokens of a group of DeepSeek-V4's coarser compressor; its ring has two groups of them."""
