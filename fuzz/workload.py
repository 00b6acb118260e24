"""The workload of PR #30339's speed table, for the real caches: tokens alone, no forward.

``generated-shared-prefix`` of SGLang's benchmark: groups of prompts that share a system prompt,
with a question each. The benchmark draws tokens, decodes them and sends text, so the length of a
prompt at the server is that of the text encoded again. The prompts are the same in every run, so
from the second on all of them are cached.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.kernels.engines.errors import EngineError
from kvproof.model.facts import Admitted
from kvproof.model.facts import EngineError as EngineFailure
from kvproof.model.scenario import (
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Prompt,
    Scenario,
    Submit,
    prompt_len,
)
from kvproof.spec.pages import page_ceil

TIMEOUT_S = 1800.0


@dataclass(frozen=True, kw_only=True, slots=True)
class SharedPrefix:
    """The benchmark's settings, and what encoding again makes of them.

    Attributes:
        groups: system prompts (``--gsp-num-groups``).
        prompts: questions a group (``--gsp-prompts-per-group``).
        system_len: tokens that a group shares (``--gsp-system-prompt-len``).
        question_len: tokens of a question (``--gsp-question-len``).
        added: tokens that encoding again, and the blank line in between, add to each prompt.
        longer: prompts that become longer still, to ``longer_len`` tokens in all.
    """

    groups: int = 64
    prompts: int = 16
    system_len: int = 2048
    question_len: int = 64
    added: int = 1
    longer: int = 0
    longer_len: int = 2177

    def requests(self) -> Iterator[Prompt]:
        """Prompts in the order of the groups."""
        number = 0
        for group in range(self.groups):
            for question in range(self.prompts):
                length = self.system_len + self.question_len + self.added
                if number < self.longer:
                    length = max(length, self.longer_len)
                number += 1
                yield (
                    Piece(f"system {group}", self.system_len),
                    Piece(f"question {group} {question}", length),
                )

    def scenario(
        self, *, window: int, page_size: int, draft_tokens: int, slots: int, runs: int
    ) -> Scenario:
        """The workload ``runs`` times over, one request after the other."""
        prompts = list(self.requests())
        longest = max(map(prompt_len, prompts))
        room = page_ceil(longest + draft_tokens + 1, page_size)
        shared = page_ceil(self.system_len, page_size)
        operations: list[Operation] = []
        for run in range(runs):
            for number, prompt in enumerate(prompts):
                name = f"run {run} {number}"
                operations += [
                    Submit(request=name, prompt=prompt), Prefill(request=name), Finish(request=name)
                ]  # fmt: skip
        return Scenario(
            geometry=Geometry(
                window=window, page_size=page_size, slots=slots, draft_tokens=draft_tokens,
                # All is kept: nothing is evicted between the runs.
                pool_tokens=self.groups * shared + len(prompts) * (room - shared + page_size)
                + 4 * room,
            ),
            operations=tuple(operations),
        )  # fmt: skip


def cached_tokens(
    process: EngineProcess,
    workload: SharedPrefix,
    *,
    window: int = 128,
    page_size: int = 256,
    draft_tokens: int = 4,
    slots: int = 16,
    runs: int = 2,
) -> Sequence[int]:
    """Tokens that a release reuses, a sum a run; the last is the warm one.

    Args:
        process: of the release.
        workload: what is asked.
        window: positions that a query sees.
        page_size: tokens per page.
        draft_tokens: tokens of a verify; with more than 1 the keys are EAGLE's bigrams.
        slots: request slots; one is used at a time, but 0.5.23 counts them as window memory.
        runs: how often the workload is played.

    Raises:
        EngineError: the release failed, or did not admit a request.
    """
    scenario = workload.scenario(
        window=window, page_size=page_size, draft_tokens=draft_tokens, slots=slots, runs=runs
    )
    sums = [0] * runs
    admitted = 0
    for fact in process.stream(scenario, timeout=TIMEOUT_S, backend="none", snapshots=False):
        if isinstance(fact, Admitted):
            sums[int(fact.request.split()[1])] += fact.matched_len
            admitted += 1
        elif isinstance(fact, EngineFailure):
            raise EngineError(
                f"{process.name} failed in the workload: {fact.message}",
                fix="run `kvproof engine doctor` for what it lacks",
            )
    expected = runs * workload.groups * workload.prompts
    if admitted != expected:
        raise EngineError(
            f"{process.name} admitted {admitted} of {expected} requests",
            fix="give the workload a larger pool",
        )
    return sums
