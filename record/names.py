"""Names for prompts, so that a log says what is shared and not what was said.

A text's name is a keyed hash of everything from the request's first token to the end of the named
page. So two prompts of one log have a name in common exactly as far as their tokens agree by whole
pages, which is as far as a cache can share them; and without the key, which is never written, a
name says nothing about the tokens behind it.
"""

from __future__ import annotations

from array import array
from dataclasses import dataclass, field
from hashlib import blake2b

from kvproof.model.scenario import Piece, Prompt

NAME_BYTES = 8
"""Bytes of a name: with 10**8 pages in a log, two of them collide once in some 4,000 logs."""

KEY_BYTES = 32

TOKENS = "q"
"""Array type of token ids: 64 bits, whatever type the engine keeps them in."""


@dataclass(slots=True)
class PrefixNames:
    """Names of one request's pages. It hashes each whole page once, however often it is asked.

    Attributes:
        page_size: tokens.
        key: secret of the log.
        realm: what else a cache tells prefixes apart by, e.g. an adapter's name.
        ahead: tokens behind a page that its name covers too: 1 with bigram keys (EAGLE), whose
            last entry in a page is known by the token after it.
    """

    page_size: int
    key: bytes
    realm: bytes = b""
    ahead: int = 0
    _pages: list[Piece] = field(default_factory=list, init=False)
    _hash: blake2b = field(init=False)

    def __post_init__(self) -> None:
        """Start with the realm, so that its prompts share nothing with those of another."""
        self._hash = blake2b(self.realm, digest_size=NAME_BYTES, key=self.key)

    def pieces(self, tokens: array[int]) -> Prompt:
        """Pieces of ``tokens``, which start with those of the call before."""
        named = self._pages[-1].until if self._pages else 0
        first = (len(self._pages) + 1) * self.page_size + self.ahead
        for end in range(first, len(tokens) + 1, self.page_size):
            self._hash.update(tokens[named:end].tobytes())
            self._pages.append(Piece(self._hash.hexdigest(), end))
            named = end
        if named == len(tokens):
            return tuple(self._pages)
        tail = self._hash.copy()
        tail.update(tokens[named:].tobytes())
        return (*self._pages, Piece(tail.hexdigest(), len(tokens)))


def unanswered(pieces: Prompt, request: str) -> Prompt:
    """A prompt whose answer is nobody else's: it ends in a text of the request's own."""
    end = pieces[-1].until if pieces else 0
    return (*pieces, Piece(f"answer of {request}", end))
