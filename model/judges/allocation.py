"""What the allocators of both pools have lent, by the facts of a recorder: PARTITION, streaming.

Allocators lend token by token and take back whole pages. So a page is kept as the set of its lent
locations, one integer; nothing is kept of a free page, and memory is bounded by the pools' sizes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kvproof.model.facts import Allocated, Freed, Pool, Span, Translated
from kvproof.model.findings import Break


@dataclass(slots=True)
class Allocation:
    """Lent locations of both pools, and which SWA page each full page was seen to map to.

    Attributes:
        page_size: tokens per page, of both pools.
        sizes: tokens that each pool can lend; locations 0 to ``page_size - 1`` come on top.
        lent: by pool and page, a bit for each lent location of the page.
        mapped: full page by SWA page, since the SWA page was last given back.
    """

    page_size: int
    sizes: dict[Pool, int]
    lent: dict[Pool, dict[int, int]] = field(default_factory=lambda: {"full": {}, "swa": {}})
    mapped: dict[int, int] = field(default_factory=dict)

    def allocated(self, fact: Allocated) -> Iterator[Break]:
        """Lend; each way in which that was wrong, with a sentence."""
        yield from self._outside(fact.pool, fact.locs, "lent")
        lent = self.lent[fact.pool]
        for page, bits in self._by_page(fact.pool, fact.locs):
            held = lent.get(page, 0)
            if page == 0:
                yield "lent-twice", f"the reserved page 0 of the {fact.pool} pool was lent"
            elif held & bits:
                loc = page * self.page_size + _lowest(held & bits)
                yield "lent-twice", f"location {loc} of the {fact.pool} pool was lent twice"
            lent[page] = held | bits

    def freed(self, fact: Freed) -> Iterator[Break]:
        """Take back; each way in which that was wrong, with a sentence."""
        yield from self._outside(fact.pool, fact.locs, "given back")
        lent = self.lent[fact.pool]
        for page, _ in self._by_page(fact.pool, fact.locs):
            if lent.pop(page, None) is None:
                yield (
                    "double-free",
                    f"page {page} of the {fact.pool} pool was given back while it was free",
                )
            if fact.pool == "swa":
                self.mapped.pop(page, None)

    def translated(self, fact: Translated) -> Iterator[Break]:
        """Compare a translation with what is lent; each way in which it was wrong."""
        if self._as_lent(fact):
            return
        yield from self._outside("full", fact.full, "translated")
        yield from self._outside("swa", fact.swa, "the result of a translation")
        full, swa = self.lent["full"], self.lent["swa"]
        for mine, theirs in zip(fact.full, fact.swa, strict=False):
            where = f"location {mine[0]} of the full pool was translated to {theirs[0]}"
            if (theirs[0] - mine[0]) % self.page_size or mine[1] - mine[0] != theirs[1] - theirs[0]:
                yield "misaligned", f"{where}, at another place in its page"
                continue
            pages = zip(
                self._by_page("full", (mine,)), self._by_page("swa", (theirs,)), strict=False
            )
            for (full_page, bits), (swa_page, _) in pages:
                if full.get(full_page, 0) & bits != bits:
                    yield "translated-free", f"{where} while it is free"
                if swa.get(swa_page, 0) & bits != bits:
                    yield "translated-free", f"{where}, which is free"
                elif self.mapped.setdefault(swa_page, full_page) != full_page:
                    yield (
                        "translated-foreign",
                        f"{where}, which belongs to page {self.mapped[swa_page]} of the full pool",
                    )

    def _as_lent(self, fact: Translated) -> bool:
        """Whether nothing is wrong with a translation: a decode's has a span for each request."""
        size, mapped = self.page_size, self.mapped
        full, swa = self.lent["full"], self.lent["swa"]
        if len(fact.full) != len(fact.swa) or not (
            self._inside("full", fact.full) and self._inside("swa", fact.swa)
        ):
            return False
        for (start, end), (at, until) in zip(fact.full, fact.swa, strict=True):
            if (at - start) % size or until - at != end - start:
                return False
        pages = zip(self._by_page("full", fact.full), self._by_page("swa", fact.swa), strict=True)
        for (page, bits), (lent, _) in pages:
            if (
                full.get(page, 0) & bits != bits
                or swa.get(lent, 0) & bits != bits
                or mapped.setdefault(lent, page) != page
            ):
                return False
        return True

    def clear(self) -> None:
        """The cache was flushed: nothing is lent."""
        for lent in self.lent.values():
            lent.clear()
        self.mapped.clear()

    def _outside(self, pool: Pool, spans: tuple[Span, ...], what: str) -> Iterator[Break]:
        if self._inside(pool, spans):
            return
        limit = self.sizes[pool] + self.page_size
        for start, end in spans:
            if end > limit:
                yield (
                    "lent-twice",
                    f"location {max(start, limit)} of the {pool} pool was {what}; "
                    f"the pool ends at {limit}",
                )

    def _inside(self, pool: Pool, spans: tuple[Span, ...]) -> bool:
        limit = self.sizes[pool] + self.page_size
        return all(end <= limit for _, end in spans)

    def _by_page(self, pool: Pool, spans: tuple[Span, ...]) -> list[tuple[int, int]]:
        """Each page of each span, and a bit for each of its locations that the span holds.

        What lies outside the pool is left out: a damaged log must not ask for endless work.
        """
        size, limit = self.page_size, self.sizes[pool] + self.page_size
        whole = (1 << size) - 1
        pages: list[tuple[int, int]] = []
        for start, span_end in spans:
            end = span_end if span_end <= limit else limit
            if start >= end:
                continue
            page, offset = divmod(start, size)
            if end - start == 1:
                pages.append((page, 1 << offset))
                continue
            last, rest = divmod(end, size)
            if page == last:
                pages.append((page, (1 << rest) - (1 << offset)))
                continue
            if offset:
                pages.append((page, whole - (1 << offset) + 1))
                page += 1
            pages += [(between, whole) for between in range(page, last)]
            if rest:
                pages.append((last, (1 << rest) - 1))
        return pages


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1
