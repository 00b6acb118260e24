"""RADIX-1 to RADIX-12, most of them against brute force over small trees."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvproof.spec.indices import Page
from kvproof.spec.radix import (
    ROOT,
    Prefix,
    cached_pages,
    evictable,
    extend_match,
    inserted,
    kept_page,
    key_entries,
    locked_from,
    page_prefixes,
    recovered_page,
    recovers,
    tokens_of,
    window_match,
)

keys = st.lists(st.integers(0, 2), max_size=12).map(tuple)
page_sizes = st.integers(1, 4)


def grown(prompts: list[Prefix], page_size: int) -> dict[Prefix, Page]:
    """The tree after the prompts were inserted with a fresh page for each of their pages."""
    tree: dict[Prefix, Page] = {}
    for number, prompt in enumerate(prompts):
        offered = [Page(100 * number + at + 1) for at in range(len(prompt))]
        tree, _ = inserted(tree, prompt, offered, page_size)
    return tree


@given(key=keys, page_size=page_sizes)
def test_radix_1_whole_pages_only_shortest_first(key: Prefix, page_size: int) -> None:
    prefixes = page_prefixes(key, page_size)
    ends = [end for end in range(1, len(key) + 1) if end % page_size == 0]
    assert prefixes == [key[:end] for end in ends]


@given(prompts=st.lists(keys, max_size=4), key=keys, page_size=page_sizes)
def test_radix_2_longest_cached_prefix(prompts: list[Prefix], key: Prefix, page_size: int) -> None:
    agreed = [
        next((at for at, (a, b) in enumerate(zip(key, prompt, strict=False)) if a != b),
             min(len(key), len(prompt)))
        for prompt in prompts
    ]  # fmt: skip
    tree = grown(prompts, page_size)
    pages = cached_pages(tree, key, page_size)
    assert len(pages) == max((length // page_size for length in agreed), default=0)
    assert pages == [tree[key[: (at + 1) * page_size]] for at in range(len(pages))]


@given(live=st.lists(st.booleans(), max_size=10), page=page_sizes, window=st.integers(1, 14))
def test_radix_3_no_tombstone_within_the_last_window(
    live: list[bool], page: int, window: int
) -> None:
    def may_end_at(pages: int) -> bool:
        """Every page that overlaps the last ``window`` tokens is live, and so is the last."""
        needed = range(max(0, pages * page - window) // page, pages)
        behind_a_tombstone = not all(live[:pages])
        whole_window = pages * page >= window
        return all(live[at] for at in needed) and (whole_window or not behind_a_tombstone)

    assert window_match(live, page, window) == max(
        pages for pages in range(len(live) + 1) if pages == 0 or may_end_at(pages)
    )


def test_radix_3_by_hand() -> None:
    assert window_match([True, True, True], 2, 100) == 3, "no tombstone: the whole path"
    assert window_match([True, False, True], 2, 3) == 1, "one page of 2 does not span 3"
    assert window_match([True, False, True, True], 2, 4) == 4
    assert window_match([True, False, True, True], 2, 5) == 1
    assert window_match([False, True], 4, 4) == 2
    assert window_match([False], 4, 1) == 0


@given(prompts=st.lists(keys, max_size=4), key=keys, page_size=page_sizes)
def test_radix_4_what_is_cached_keeps_its_page(
    prompts: list[Prefix], key: Prefix, page_size: int
) -> None:
    before = grown(prompts, page_size)
    offered = [Page(900 + at) for at in range(len(key))]
    after, refused = inserted(before, key, offered, page_size)
    cached = len(cached_pages(before, key, page_size))
    assert {prefix: after[prefix] for prefix in before} == before
    assert refused == offered[:cached]
    taken = offered[cached : len(key) // page_size]
    assert cached_pages(after, key, page_size) == cached_pages(before, key, page_size) + taken
    assert len(after) == len(before) + len(taken)


def test_radix_4_the_cached_page_itself_is_not_refused() -> None:
    tree, _ = inserted({}, (1, 2), [Page(5)], 2)
    assert inserted(tree, (1, 2, 3, 4), [Page(5), Page(6)], 2) == (
        {(1, 2): Page(5), (1, 2, 3, 4): Page(6)},
        [],
    )


@given(prompts=st.lists(keys, max_size=4), locked=st.lists(keys, max_size=2), page=page_sizes)
def test_radix_5_leaves_that_nobody_locks(
    prompts: list[Prefix], locked: list[Prefix], page: int
) -> None:
    tree = grown(prompts, page)
    candidates = evictable(tree, locked)
    for prefix in tree:
        is_leaf = not any(longer != prefix and longer[: len(prefix)] == prefix for longer in tree)
        is_held = any(lock[: len(prefix)] == prefix for lock in locked)
        assert (prefix in candidates) == (is_leaf and not is_held)
    left = {prefix: page_ for prefix, page_ in tree.items() if prefix not in candidates}
    for prefix in left:
        assert all(shorter in left for shorter in page_prefixes(prefix, page))


@given(matched=st.integers(0, 20), window=st.integers(1, 12), page_size=st.integers(1, 5))
def test_radix_6_locks_the_window_in_whole_pages(matched: int, window: int, page_size: int) -> None:
    end = matched * page_size
    start = locked_from(end, window, page_size)
    assert start % page_size == 0
    assert start == 0 or window <= end - start < window + page_size


def test_radix_7_keeps_the_cached_page() -> None:
    assert kept_page(True, Page(3), Page(8)) == 3
    assert kept_page(False, Page(3), Page(8)) == 8


@given(
    live=st.lists(st.booleans(), max_size=8), window=st.integers(1, 9), page_size=st.integers(1, 4)
)
def test_radix_8_adds_one_page_to_the_longest_match(
    live: list[bool], window: int, page_size: int
) -> None:
    run = ROOT
    for pages in range(1, len(live) + 1):
        run = extend_match(run, live[pages - 1], page_size, window)
        ends = [0] + [
            end
            for end in range(1, pages + 1)
            if (live[end - 1] and all(live[max(0, end - -(-window // page_size)) : end]))
            or all(live[:end])
        ]
        assert run.best == ends[-1]


@given(one=keys, other=keys)
def test_radix_9_bigram_entries_agree_one_token_less_far(one: Prefix, other: Prefix) -> None:
    """A pair is known by both its tokens, so two keys share the pairs within what they share."""

    def agreed(left: Sequence[int], right: Sequence[int]) -> int:
        pairs = zip(left, right, strict=False)
        return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(left), len(right)))

    assert key_entries(one, bigram=False) == one
    entries = [key_entries(key, bigram=True) for key in (one, other)]
    assert [len(found) for found in entries] == [max(0, len(key) - 1) for key in (one, other)]
    assert agreed(*entries) == max(0, agreed(one, other) - 1)


def test_radix_10_a_tombstone_recovers_by_a_live_page_alone() -> None:
    assert [recovers(t, live) for t in (True, False) for live in (True, False)] == [
        True, False, False, False,
    ]  # fmt: skip


def test_radix_11_a_reader_keeps_its_full_page() -> None:
    assert recovered_page(True, Page(3), Page(8)) == 3
    assert recovered_page(False, Page(3), Page(8)) == 8


@given(tokens=st.lists(st.integers(0, 2**40), min_size=2, max_size=6), bigram=st.booleans())
def test_radix_12_gives_the_tokens_back(tokens: list[int], bigram: bool) -> None:
    assert tokens_of(key_entries(tokens, bigram=bigram), bigram=bigram) == tokens
