"""From a log back to a scenario: the operations as they were, the texts named alike.

A log is read up to its first gap: operations after it may need some that are missing.

A driver's log spells its operations as its scenario did, and is taken as it is. A recorder cannot:
it names each page of a prompt by a hash of all tokens up to its end, and ends a prompt in a text
that only this request has, since it cannot foresee the answer. Later, `Answered` says what the
pages of prompt and answer were. Here those names become texts again: a request that shares pages
with an earlier one names the earlier one's text as far as they agree, answers included.

What stays approximate: a scenario's request has one text for its whole answer. Of two requests that
answer the same prompt alike for some pages and then differ, the second gets a text of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count

from msgspec.structs import replace

from kvproof.model.facts import Advanced, Answered, Fact, Gap, Started, Step
from kvproof.model.scenario import (
    BadFileError,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Scenario,
    Submit,
    prompt_len,
    same_prefix,
    text_at,
)


@dataclass(slots=True)
class Lifter:
    """Feed it a log's facts; ask it for the scenario.

    Attributes:
        operations: as the log spells them, one a `Step`.
    """

    operations: list[Operation] = field(default_factory=list)
    _geometry: Geometry | None = None
    _ahead: int = 0
    _has_gap: bool = False
    _steps: list[int] = field(default_factory=list)
    _answers: list[tuple[int, Answered]] = field(default_factory=list)

    def feed(self, fact: Fact) -> None:
        """Take in the next fact."""
        if self._has_gap:
            return
        match fact:
            case Gap():
                self._has_gap = True
            case Started(geometry=geometry, bigram_keys=bigram_keys):
                self._geometry = geometry
                self._ahead = int(bigram_keys)
            case Step(index=index, operation=operation):
                self._steps.append(index)
                self.operations.append(operation)
            case Answered():
                self._answers.append((len(self.operations), fact))
            case Advanced(request=request, prefilling=False) if self.operations:
                last = self.operations[-1]
                if isinstance(last, Prefill) and last.request == request:
                    # A chunk that ended its prompt took all that was left. As a budget its length
                    # would be rounded down to whole pages.
                    self.operations[-1] = replace(last, tokens=None)
            case _:
                pass  # how it went, not what was asked for

    def scenario(self, *, until: int | None = None) -> Scenario:
        """The scenario; with ``until`` only what the log's steps up to that index say.

        Raises:
            BadFileError: the log has not begun.
        """
        if self._geometry is None:
            raise BadFileError("the log has no 'started' fact, which names the sizes")
        operations = self.operations
        if self._answers:
            texts = _Texts(self._geometry.page_size, self._ahead)
            operations = _unified(operations, self._answers, texts)
        if until is not None:
            operations = [
                operation
                for index, operation in zip(self._steps, operations, strict=True)
                if index <= until
            ]
        return Scenario(geometry=self._geometry, operations=tuple(operations))


def lift(log: Iterable[Fact]) -> Scenario:
    """The scenario of a whole log; raises BadFileError for a log without a start."""
    lifter = Lifter()
    for fact in log:
        lifter.feed(fact)
    return lifter.scenario()


@dataclass(slots=True)
class _Node:
    """A prefix that ends with a page, or with a prompt's last tokens below a page.

    Attributes:
        spelled: the prefix in texts.
    """

    spelled: Prompt = ()
    children: dict[Piece, _Node] = field(default_factory=dict)


@dataclass(slots=True)
class _Texts:
    """Texts for the prefixes of a recorder's log; each new branch of the trie is a new one.

    Attributes:
        ahead: tokens that a page's name covers behind it; see `record.names`.
        used: for each text, how far any request has come in it.
    """

    page_size: int
    ahead: int
    root: _Node = field(default_factory=_Node)
    used: dict[str, int] = field(default_factory=dict)

    def submitted(self, submit: Submit) -> Submit:
        """A request's prompt: what is known of it by its texts, the rest by a new one."""
        total = prompt_len(submit.prompt)
        # The last piece is empty, and names the answer.
        node, rest = self._walk(submit.prompt[:-1])
        own = self._new(submit.request)
        prompt = _joined(node.spelled, own, total)
        self.used[own] = total
        self._add(node, rest, prompt)
        return replace(submit, prompt=prompt)

    def answered(self, submit: Submit, tokens: Prompt) -> Submit:
        """What the request's answer was; its prompt, whose last text may have become another's."""
        prompt = submit.prompt
        # Below a page nobody reuses anything.
        node, rest = self._walk([p for p in tokens if self._ends_page(p)])
        total = prompt_len(tokens)
        known = _end_of(node.spelled)
        text = self._continued(node.spelled, prompt)
        if text is not None and (not rest or self.used[text] < known + self.page_size):
            # Another request gave the same answer, and this one's goes on where that one ended.
            prompt = _joined(prompt, text, prompt_len(prompt))
        own = prompt[-1].text
        self.used[own] = max(self.used[own], total)
        self._add(node, rest, _joined(prompt, own, max(total, prompt_len(prompt))))
        return replace(submit, prompt=prompt)

    def _continued(self, spelled: Prompt, prompt: Prompt) -> str | None:
        """The one text in which ``spelled`` goes on from the prompt; None if it does not."""
        total, known = prompt_len(prompt), _end_of(spelled)
        if known <= total or not same_prefix(spelled, prompt, total):
            return None
        texts = {text_at(spelled, total), *(p.text for p in spelled if p.until > total)}
        return texts.pop() if len(texts) == 1 else None

    def _walk(self, path: Sequence[Piece]) -> tuple[_Node, Sequence[Piece]]:
        """The last known node of a path, and what comes after it."""
        node = self.root
        for index, piece in enumerate(path):
            if piece not in node.children:
                return node, path[index:]
            node = node.children[piece]
        return node, []

    def _add(self, node: _Node, path: Sequence[Piece], spelled: Prompt) -> None:
        for piece in path:
            node.children[piece] = _Node(_cut(spelled, piece.until))
            # Nothing goes on from below a page: a longer prompt names the whole page.
            if self._ends_page(piece):
                node = node.children[piece]

    def _ends_page(self, piece: Piece) -> bool:
        return (piece.until - self.ahead) % self.page_size == 0

    def _new(self, name: str) -> str:
        """A name that no text has; a request's own unless an earlier one was called so too."""
        candidates = chain([name], (f"{name}.{number}" for number in count(2)))
        return next(text for text in candidates if text not in self.used)


def _end_of(prompt: Prompt) -> int:
    return prompt[-1].until if prompt else 0


def _joined(prefix: Prompt, text: str, until: int) -> Prompt:
    """A prefix that goes on in ``text``."""
    if len(prefix) > 1 and prefix[-1].until == prefix[-2].until:
        prefix = prefix[:-1]  # an empty last piece says how it goes on, which is said anew
    if prefix and prefix[-1].text == text:
        prefix = prefix[:-1]
    return (*prefix, Piece(text, until))


def _cut(prompt: Prompt, until: int) -> Prompt:
    """The first ``until`` tokens of a prompt that is at least as long."""
    kept = []
    for piece in prompt:
        kept.append(Piece(piece.text, min(piece.until, until)))
        if piece.until >= until:
            break
    return tuple(kept)


def _unified(
    operations: list[Operation], answers: list[tuple[int, Answered]], texts: _Texts
) -> list[Operation]:
    """A recorder's operations with texts instead of page names, in the order of the log."""
    unified = list(operations)
    submits: dict[str, int] = {}
    answered_after: dict[int, list[Answered]] = defaultdict(list)
    for operations_before, answer in answers:
        answered_after[operations_before - 1].append(answer)
    for index, operation in enumerate(operations):
        if isinstance(operation, Submit):
            unified[index] = texts.submitted(operation)
            submits[operation.request] = index
        for answer in answered_after[index]:
            at = submits.get(answer.request)
            submit = unified[at] if at is not None else None
            if at is not None and isinstance(submit, Submit):
                unified[at] = texts.answered(submit, answer.tokens)
    return unified
