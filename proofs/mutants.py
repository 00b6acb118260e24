"""Mutants: edits of one rule's text that some theorem must notice.

A mutant is put in place for as long as a proof runs, by replacing the code of the one function
object that everybody imports: the obligations, the transition rules and the reference engine all
see it. So a mutant changes the specification itself, not a copy made for the prover.
"""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FunctionType

from kvproof.model import transition, translation, tree
from kvproof.proofs import linear
from kvproof.spec import (
    cap,
    cursor,
    exact,
    pages,
    radix,
    ring,
    schedule,
    streams,
    translate,
    window,
)


class BadMutantError(ValueError):
    """The text that a mutant replaces is not in the rule, or is there more than once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Mutant:
    """One edit of one rule.

    Attributes:
        identifier: a few words.
        rule: the function whose text is edited.
        text: what is replaced; occurs once in the rule's body.
        by: what stands there instead.
    """

    identifier: str
    rule: FunctionType
    text: str
    by: str

    @property
    def edit(self) -> str:
        """The edit in one line."""
        module = self.rule.__module__.removeprefix("kvproof.")
        return f"{module}.{self.rule.__name__}: {self.text} -> {self.by}"

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Have the edit in place; raises BadMutantError."""
        source = textwrap.dedent(inspect.getsource(self.rule))
        head, body = source.rsplit('"""', 1)
        if body.count(self.text) != 1:
            raise BadMutantError(
                f"mutant {self.identifier!r}: {self.text!r} occurs {body.count(self.text)} "
                f"times in {self.rule.__name__}; it must occur once"
            )
        edited = f'from __future__ import annotations\n{head}"""{body.replace(self.text, self.by)}'
        made: dict[str, FunctionType] = {}
        exec(compile(edited, f"<mutant {self.identifier}>", "exec"), self.rule.__globals__, made)
        original = self.rule.__code__
        self.rule.__code__ = made[self.rule.__name__].__code__
        try:
            yield
        finally:
            self.rule.__code__ = original


def _mutant(identifier: str, rule: object, text: str, by: str) -> Mutant:
    assert isinstance(rule, FunctionType)
    return Mutant(identifier=identifier, rule=rule, text=text, by=by)


MUTANTS: tuple[Mutant, ...] = (
    # addresses
    _mutant("slot stride one short", ring.ring_row, "slot * stride", "slot * (stride - 1)"),
    _mutant("row modulo one less", ring.ring_row, "% stride", "% (stride - 1)"),
    _mutant("padding test one row too wide", ring.is_padding_row, "row < (", "row <= ("),
    _mutant("sharing rule off", ring.same_ring_row, "(one - other)", "(one - other + 1)"),
    _mutant(
        "newest position off by one", ring.newest_position,
        "Position(end - 1 - (", "Position(end - (",
    ),
    _mutant("stride one short", ring.ring_stride, "draft_tokens - 1", "draft_tokens - 2"),
    _mutant("rewind one too far", ring.can_restart, "<= stride", "<= stride + 1"),
    # launches
    _mutant(
        "row written modulo one less", transition.scattered,
        "Position(end), ring.stride", "Position(end), ring.stride - 1",
    ),
    _mutant(
        "scatter before the chunk's reads", transition.prefilled,
        "cell_at_read(ring.prefill_order", 'cell_at_read("write, then read"',
    ),
    _mutant(
        "decode reads before it writes", transition.decoded,
        "cell_at_read(ring.decode_order", 'cell_at_read("read, then write"',
    ),
    _mutant(
        "verify reads before it writes", transition.verified,
        "cell_at_read(ring.verify_order", 'cell_at_read("read, then write"',
    ),
    _mutant(
        "accepted tokens one too many", schedule.committed_len,
        "minimum(accepted, draft_tokens)", "minimum(accepted, draft_tokens) + 1",
    ),
    _mutant("window one too wide", window.window_start, "- window + 1", "- window"),
    _mutant(
        "scatter keeps one too many", window.scatter_keeps,
        "> final_position - window", ">= final_position - window",
    ),
    _mutant(
        "scatter keeps two too few", window.scatter_keeps,
        "final_position - window", "final_position - window + 2",
    ),
    # cap
    _mutant(
        "cap off by one", cap.match_limit, "prompt_len - reprefill_tail)",
        "prompt_len - reprefill_tail + 1)",
    ),
    _mutant("the whole prompt may match", cap.computed_limit, "prompt_len - 1", "prompt_len"),
    _mutant(
        "no page floor", cap.capped_match, "reprefill_tail)), page_size)", "reprefill_tail)), 1)"
    ),
    _mutant("page ceiling for floor", pages.page_floor, "tokens - tokens", "tokens + tokens"),
    _mutant(
        "cap one page too much", cap.capped_match,
        "match_limit(prompt_len, reprefill_tail)",
        "match_limit(prompt_len, reprefill_tail + page_size)",
    ),
    _mutant("decode rule off by one", cap.decodes_fresh, "window - 1)", "window - 2)"),
    _mutant(
        "first token rule off by one", cap.first_token_fresh,
        "tail >= window)", "tail >= window - 1)",
    ),
    _mutant(
        "bigram entry forgotten", cap.reprefill_bound, "1 if bigram else 0", "0 if bigram else 0"
    ),
    # layers
    _mutant("frontier one short", exact.next_frontier, "+ window - 1", "+ window - 2"),
    _mutant(
        "exact tail one short", exact.exact_logits_tail, "(window - 1) + 1", "(window - 1)"
    ),
    _mutant(
        "rebuild one short", exact.exact_decode_tail,
        "return layers * (window - 1)", "return layers * (window - 1) - 1",
    ),
    _mutant(
        "compressed row one token early", exact.compressed_end, "page_floor(position + 1, ratio)",
        "page_floor(position, ratio)",
    ),
    _mutant(
        "prefill reads one position less", window.prefill_ring_reads,
        "window_start(position, window), chunk_start",
        "window_start(position, window) + 1, chunk_start",
    ),
    _mutant(
        "reads floored one too low", window.floored_ring_reads,
        "maximum(start, matched_len)", "maximum(start, matched_len - 1)",
    ),
    _mutant(
        "stack frontier a layer short", exact.exact_frontier,
        "layers * (window - 1)", "(layers - 1) * (window - 1)",
    ),
    # tree, locks, pools
    _mutant(
        "tombstone ignored", radix.extend_match,
        "select(live, run.since_tombstone + page_size, 0)", "run.since_tombstone + page_size",
    ),
    _mutant(
        "match one page early", radix.extend_match,
        "since >= window", "since + page_size >= window",
    ),
    _mutant(
        "lock of a page too much", radix.locked_from,
        "page_ceil(window, page_size)", "page_ceil(window, page_size) - page_size",
    ),
    _mutant(
        "release forgets the window", tree.unlocked,
        "page.swa - select(in_window, 1, 0)", "page.swa",
    ),
    _mutant("tombstone under a lock", tree.may_bury, "== 0", "<= 1"),
    _mutant("eviction under a lock", tree.may_evict, "== 0", "<= 1"),
    _mutant("duplicate leaks", tree.published, "select(duplicate, 1, 0)", "0"),
    _mutant("eviction frees twice", tree.evicted, "page.free + 1", "page.free + 2"),
    _mutant(
        "stale map entry", tree.mapped_page, "watched == page", "(watched == page) & (to != 0)"
    ),
    _mutant("freed page maps on", translate.swa_loc, "swa_page == 0", "swa_page == -1"),
    _mutant("map forgets the place", translate.swa_loc, "+ loc % page_size", "+ 0"),
    _mutant(
        "margin not in pages", cursor.cursor_margin,
        "page_ceil(maximum(window, page_size), page_size)", "maximum(window, page_size)",
    ),
    _mutant(
        "cursor into the tree", cursor.cursor, "maximum(evicted, protected)", "evicted"
    ),
    _mutant(
        "window given up early", cursor.window_left, "- window + 1", "- window + 2"
    ),
    _mutant(
        "recovery takes a reader's page", radix.recovered_page,
        "select(locked, cached_page, offered)", "offered",
    ),
    _mutant(
        "insert replaces", radix.kept_page, "select(cached, cached_page, offered)", "offered"
    ),
    _mutant(
        "one pool is enough", tree.granted,
        "(need_full <= free_full) & (need_swa <= free_swa)", "need_full <= free_full",
    ),
    _mutant("occupancy given twice", schedule.next_occupancy, "newest + 1", "newest"),
    # translation
    _mutant(
        "idle forgotten", translate.reuses_plan,
        "select(idle, False, planned_len == loc_len)", "planned_len == loc_len",
    ),
    _mutant("longer plans accepted", translate.reuses_plan, "planned_len ==", "planned_len >="),
    _mutant(
        "plans never used", translate.reuses_plan, "planned_len == loc_len", "planned_len < 0"
    ),
    _mutant("halves swapped", translate.low_word, "value % WORD", "value - value % WORD"),
    _mutant("words of 16 bits", translate.low_word, "value % WORD", "value % 65536"),
    _mutant("translated on every read", translation.asked, "plan.translations == 0", "True"),
    _mutant("buffer filled a row too far", translate.replayed_loc, "at < tokens", "at <= tokens"),
    _mutant("tail of the buffer kept", translation.refreshed,
        "replayed_loc(at, tokens, loc)", "select(at < tokens, loc, entry.storage)",
    ),
    _mutant("buffer never filled", translation.refreshed,
        "entry.in_place, due, entry.storage", "entry.in_place, entry.storage, due",
    ),
    # two streams
    _mutant("steps out of order", streams.sees, "<= launch", "<= launch + 1"),
    _mutant(
        "row rewritten under a draft extend", streams.may_rewrite,
        "select(writes_by_table, False, select(dropped, True, same_key))",
        "select(dropped, True, same_key)",
    ),
    _mutant(
        "window released by one more", streams.released_len,
        "Position(processed_len)", "Position(processed_len + 1)",
    ),
    # lemmas
    _mutant("lemma MOD-1 too strong", linear.remainder_range, "ra < d,", "ra < d - 1,"),
    _mutant("lemma MOD-2 one too far", linear.remainder_shift, "moved < d)", "moved <= d)"),
    _mutant("lemma MOD-3 without carry", linear.remainder_sum, "ra == rb + rc - d", "False"),
    _mutant(
        "lemma MUL-1 with a wrong unit", linear.product_units, "x == 1, xy == y", "x == 1, xy == x"
    ),
    _mutant(
        "lemma MUL-2 a step too long", linear.product_step, "xy == zy + y)", "xy == zy + y + 1)"
    ),
)  # fmt: skip
