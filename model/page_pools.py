"""The reference engine's pools: full pages, the SWA pages that they map to, and the free lists."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kvproof.model.policy import Fault
from kvproof.model.tree import granted
from kvproof.spec.indices import Page

NONE = Page(0)
"""The reserved page: what an unmapped page maps to."""


@dataclass(slots=True)
class PagePools:
    """Both free lists and the map between them, page by page.

    With ``swa_pages`` None there is the full pool alone.
    """

    full_pages: int
    swa_pages: int | None
    faults: frozenset[Fault]
    free: list[Page] = field(default_factory=list)
    free_swa: list[Page] = field(default_factory=list)
    to: dict[Page, Page] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """All pages are free."""
        self.clear()

    def clear(self) -> None:
        """Everything is free and nothing mapped."""
        self.free = [Page(page) for page in range(1, self.full_pages + 1)]
        self.free_swa = [Page(page) for page in range(1, (self.swa_pages or 0) + 1)]
        self.to.clear()

    def has(self, pages: int) -> bool:
        """Whether so many pages can be lent by each pool."""
        return self.would_have(pages, full=0, swa=0)

    def would_have(self, pages: int, *, full: int, swa: int) -> bool:
        """The same after so many were given back to each."""
        need = 0 if self.swa_pages is None or "one pool alone" in self.faults else pages
        return granted(pages, len(self.free) + full, need, len(self.free_swa) + swa)

    def lend(self, count: int) -> list[Page]:
        """Lend pages, each mapped to a page of the SWA pool; the caller asked `has`."""
        pages = [self.free.pop(0) for _ in range(count)]
        if self.swa_pages is None:
            return pages
        for page in pages:
            if "two pages on one" in self.faults and self.to and self.free_swa:
                self.free_swa.pop(0)
                self.to[page] = next(iter(self.to.values()))
            elif self.free_swa:
                self.to[page] = self.free_swa.pop(0)
        return pages

    def is_live(self, page: Page) -> bool:
        """Whether a page has its SWA half, or needs none."""
        return self.swa_pages is None or page in self.to

    def take_back(self, pages: Iterable[Page]) -> None:
        """Take pages back, with the SWA halves that they still have."""
        pages = list(pages)
        self.free += pages
        self.take_swa_back(pages)

    def take_swa_back(self, pages: Sequence[Page], *, keep_entry: bool = False) -> None:
        """Take the SWA halves of pages back; a page that is not mapped has none."""
        if self.swa_pages is None:
            return
        for page in pages:
            if page in self.to:
                self.free_swa.append(self.to[page])
                if not keep_entry:
                    del self.to[page]
            elif "reserved page freed" in self.faults:
                self.free_swa.append(NONE)

    def saved(self) -> tuple[list[Page], list[Page]]:
        """Both free lists, kept while pages are borrowed: up to 0.5.16 a draft's are."""
        return list(self.free), list(self.free_swa)

    def restore(self, saved: tuple[list[Page], list[Page]]) -> None:
        """What was lent since is free again. The map is left: who is lent a page next sets it."""
        self.free, self.free_swa = map(list, saved)

    def hand_over(self, to: Page, *, of: Page) -> None:
        """A page takes over the SWA half of another."""
        if self.swa_pages is not None:
            self.to[to] = self.to.pop(of)
