"""PR #30339's workload: the rules at full size, the real caches at a small one."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kvproof.fuzz.drivers.process import EngineProcess
from kvproof.fuzz.targets import find_targets
from kvproof.fuzz.workload import SharedPrefix, cached_tokens
from kvproof.kernels.engines.errors import EngineError
from kvproof.kernels.engines.store import EngineStore
from kvproof.model.policies import LAYERED_CAP, NO_CAP, RELEASE_CAP, CachePolicy, Sizes
from kvproof.model.scenario import prompt_len

SIZES = Sizes(window=128, page_size=256, layers=61, bigram=True)


def by_rules(workload: SharedPrefix, policy: CachePolicy) -> int:
    return sum(
        policy.hit(SIZES, prompt_len=length, cached_len=length).matched
        for length in map(prompt_len, workload.requests())
    )


def test_the_published_numbers_by_the_rules() -> None:
    assert by_rules(SharedPrefix(), NO_CAP) == 2_097_152
    assert by_rules(SharedPrefix(), RELEASE_CAP) == 1_835_008
    longer = by_rules(SharedPrefix(longer=64), RELEASE_CAP)
    assert longer == 1_851_392
    assert round(1 - longer / 2_097_152, 4) == 0.1172, "the published 11.7 %"
    assert by_rules(SharedPrefix(question_len=128), RELEASE_CAP) == 2_097_152
    assert by_rules(SharedPrefix(question_len=128, added=0), RELEASE_CAP) == 1_835_008
    assert by_rules(SharedPrefix(), LAYERED_CAP) == 0, "prompts are shorter than what is held back"


CAPS = {"0.5.15:registry": NO_CAP, "0.5.16:SWARadixCache": RELEASE_CAP}


@pytest.fixture(scope="module", params=CAPS)
def release(request: pytest.FixtureRequest) -> Iterator[tuple[EngineProcess, CachePolicy]]:
    try:
        [target] = find_targets([request.param], EngineStore())
    except EngineError as error:
        pytest.skip(str(error))
    with target.process() as process:
        yield process, CAPS[request.param]


@pytest.mark.parametrize(
    "changes",
    [{}, {"longer": 2}, {"question_len": 128, "added": 0}, {"question_len": 128}],
    ids=str,
)
def test_real_caches_reuse_what_the_rules_say(
    release: tuple[EngineProcess, CachePolicy], changes: dict[str, int]
) -> None:
    process, policy = release
    workload = SharedPrefix(groups=2, prompts=2, **changes)
    _, warm = cached_tokens(process, workload)
    assert warm == by_rules(workload, policy)


def test_another_policy_through_the_releases_own_cap() -> None:
    """More is held back than the prompts are long: nothing is reused."""
    try:
        [target] = find_targets(["0.5.16:SWARadixCache"], EngineStore())
    except EngineError as error:
        pytest.skip(str(error))
    held_back = LAYERED_CAP.held_back(SIZES.layers, SIZES.window)
    with target.process(held_back=held_back) as process:
        cold, warm = cached_tokens(process, SharedPrefix(groups=1, prompts=2))
    assert (cold, warm) == (0, 0)
