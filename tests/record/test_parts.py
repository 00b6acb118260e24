"""Names, spans and the writer, each alone."""

from __future__ import annotations

import threading
from array import array

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from kvproof.model.facts import (
    Advanced,
    Allocated,
    Answered,
    Ended,
    Fact,
    Gap,
    Ran,
    Released,
    Started,
    Step,
    encode_fact,
    read_log,
)
from kvproof.model.scenario import Accepted, Decode, Geometry, Verify, prompt_len, same_prefix
from kvproof.record.locs import merged, parallel_spans, readable, spans_of, spans_of_pages
from kvproof.record.names import PrefixNames, unanswered
from kvproof.record.recorder import MOST_VERIFIES, CannotFollowError, Draft, Extend, Recorder
from kvproof.record.writer import LogWriter
from kvproof.spec.radix import key_entries

KEY = b"secret"
TOKENS = st.lists(st.integers(0, 1), max_size=20).map(lambda tokens: array("q", tokens))
LOCS = st.lists(st.integers(0, 300), max_size=200)

STARTED = Started(
    target="model", backend="rules", ring_stride=4, reprefill_tail=0,
    geometry=Geometry(window=4, page_size=4, slots=1, pool_tokens=64),
)  # fmt: skip


def flat(spans):
    return [loc for start, end in spans for loc in range(start, end)]


# Names


@given(TOKENS, TOKENS, st.sampled_from([1, 2, 4]))
def test_names_agree_exactly_as_far_as_tokens_do_by_page(one, other, size):
    pieces = [PrefixNames(size, KEY).pieces(tokens) for tokens in (one, other)]
    for end in range(size, min(len(one), len(other)) + 1, size):
        assert same_prefix(*pieces, end) == (one[:end] == other[:end])
    assert [prompt_len(prompt) for prompt in pieces] == [len(one), len(other)]
    assert (pieces[0] == pieces[1]) == (one == other)


@given(TOKENS, TOKENS, st.sampled_from([1, 2, 4]))
def test_names_of_bigram_pages_cover_the_token_behind_them(one, other, size):
    """So a page has a common name exactly where a tree of bigram keys would share it."""
    pieces = [PrefixNames(size, KEY, ahead=1).pieces(tokens) for tokens in (one, other)]
    keys = [key_entries(tokens, bigram=True) for tokens in (one, other)]
    for end in range(size, min(map(len, keys)) + 1, size):
        assert same_prefix(*pieces, end + 1) == (keys[0][:end] == keys[1][:end])
    assert [prompt_len(prompt) for prompt in pieces] == [len(one), len(other)]


@given(TOKENS, TOKENS, st.sampled_from([1, 2, 4]))
def test_names_of_a_continued_request_are_those_of_the_whole(start, rest, size):
    names = PrefixNames(size, KEY)
    names.pieces(start)
    assert names.pieces(start + rest) == PrefixNames(size, KEY).pieces(start + rest)


def test_names_differ_by_key_and_realm():
    tokens = array("q", range(8))
    names = {
        PrefixNames(4, key, realm).pieces(tokens)
        for key in (b"one", b"other")
        for realm in (b"", b"adapter")
    }
    assert len(names) == 4


@given(TOKENS)
def test_an_answer_is_nobody_elses(tokens):
    pieces = PrefixNames(4, KEY).pieces(tokens)
    one, other = unanswered(pieces, "r1"), unanswered(pieces, "r2")
    assert prompt_len(one) == len(tokens)
    assert same_prefix(one, other, len(tokens))
    assert not same_prefix(one, other, len(tokens) + 1)


# Locations


@given(LOCS)
def test_spans_say_the_same_locations_in_the_same_order(locs):
    assert flat(spans_of(torch.tensor(locs, dtype=torch.int64))) == locs


@given(st.integers(0, 100), st.integers(65, 500))
def test_a_run_is_one_span(start, count):
    assert spans_of(torch.arange(start, start + count)) == ((start, start + count),)


@given(st.lists(st.integers(0, 20)), st.sampled_from([1, 4]))
def test_spans_of_pages(pages, size):
    expected = [page * size + offset for page in pages for offset in range(size)]
    assert flat(spans_of_pages(pages, size)) == expected


@given(st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9))))
def test_parallel_spans_stay_parallel_and_leave_out_what_is_no_location(pairs):
    full, swa = parallel_spans([one for one, _ in pairs], [other for _, other in pairs])
    named = [(one, other) for one, other in pairs if one > 0 and other > 0]
    assert [*zip(flat(full), flat(swa), strict=True)] == named
    assert len(full) == len(swa)
    assert all(
        mine[1] - mine[0] == theirs[1] - theirs[0] for mine, theirs in zip(full, swa, strict=True)
    )


def test_merged_joins_what_follows():
    assert merged([(1, 2), (2, 4), (5, 6), (4, 5)]) == ((1, 4), (5, 6), (4, 5))


def test_a_device_is_read_only_if_asked_for():
    device, host = torch.empty(1, device="meta"), torch.empty(1)
    assert [readable(device, level) for level in ("requests", "host", "full")] == [0, 0, 1]
    assert [readable(host, level) for level in ("requests", "host", "full")] == [0, 1, 1]


# Writer


def step(index: int) -> Step:
    return Step(index=index, operation=Decode())


def read(path):
    with path.open("rb") as lines:
        return list(read_log(lines))


def test_everything_is_written_in_order(tmp_path):
    writer = LogWriter(tmp_path / "log", complain=raise_)
    facts = [STARTED, *map(step, range(1000))]
    for fact in facts:
        writer.put(fact)
    writer.finish(Ended(steps=1000))
    writer.put(step(0))  # after the end
    writer.wait()
    assert read(tmp_path / "log") == [*facts, Ended(steps=1000)]


def test_what_does_not_fit_is_counted_where_it_is_missing(tmp_path, monkeypatch):
    """The thread is held up; later there is room again."""
    held, drained = threading.Event(), threading.Event()
    drain = LogWriter._drain

    def wait_and_drain(self):
        held.wait()
        drain(self)
        drained.set()

    monkeypatch.setattr(LogWriter, "_drain", wait_and_drain)
    writer = LogWriter(tmp_path / "log", complain=raise_, limit=10)
    facts = [STARTED, *map(step, range(20))]
    for fact in facts:
        writer.put(fact)
    held.set()
    drained.wait()
    writer.put(step(20))
    writer.finish(Ended(steps=21))
    writer.wait()
    *before, gap, after, last = read(tmp_path / "log")
    assert before == facts[:10]
    assert gap == Gap(reason="the disk did not keep up", dropped=11)
    assert (after, last) == (step(20), Ended(steps=21))


def test_a_full_disk_is_said_once_and_ends_the_log(tmp_path):
    said = []
    writer = LogWriter(tmp_path / "log", complain=said.append)

    class Full:
        def write(self, _):
            raise OSError(28, "No space left on device")

        def __exit__(self, *_):
            pass

    writer.put(STARTED)
    writer._file.close()
    writer._file = Full()
    for index in range(600):
        writer.put(step(index))
    writer.finish(Ended(steps=600))
    writer.wait()
    [sentence] = said
    assert "No space left on device" in sentence
    assert (tmp_path / "log").read_bytes() in (b"", encode_fact(STARTED))


def raise_(sentence: str) -> None:
    raise AssertionError(sentence)


@pytest.mark.parametrize("ahead", [0, 1])
def test_what_follows_a_verify_waits_for_its_result(ahead):
    """An overlapped scheduler: two verifies are out, and a request leaves between them.

    Older releases count a token of each as committed before its result.
    """
    said: list[Fact] = []
    geometry = Geometry(window=4, page_size=4, slots=2, pool_tokens=64, draft_tokens=3)
    started = Started(
        target="model", backend="rules", geometry=geometry, ring_stride=6, reprefill_tail=0
    )
    recorder = Recorder(said.append, started, b"key")
    one, two = (recorder.submit(array("q", range(5 + at))) for at in (0, 1))
    for request, slot, total in ((one, 1, 5), (two, 2, 6)):
        launch = [Extend(request=request, start=0, end=total, total=total)]
        recorder.begin_prefill(launch)
        recorder.end_prefill(launch, [slot])
    before = len(said)
    launch = [Draft(one, 1, ahead), Draft(two, 2, ahead)]
    for page in (4, 8):
        recorder.begin_verify()
        recorder.allocated("full", ((page, page + 4),))
        recorder.end_verify(launch)
    assert len(said) == before
    recorder.verified([one, two], [5 + 2 * ahead, 6 + 2 * ahead], [2, 3], 3)
    recorder.begin_release(one, "finish", array("q", range(7)))
    recorder.released(one, 1)
    # The second verify still wrote for the request that is gone: its launch came first.
    recorder.verified([one, two], [None, 9 + ahead], [1, 1], 3)
    assert [*map(type, said[before:])] == [
        Step, Allocated, Ran, Ran, Advanced, Advanced,
        Step, Allocated, Ran, Ran, Advanced, Advanced, Step, Answered, Released,
    ]  # fmt: skip
    ran = [(fact.request, fact.start, fact.end) for fact in said if isinstance(fact, Ran)][2:]
    assert ran == [("r1", 5, 8), ("r2", 6, 9), ("r1", 7, 10), ("r2", 9, 12)]
    steps = [fact for fact in said if isinstance(fact, Step)]
    assert [step.index for step in steps] == [*range(len(steps))]
    assert steps[-3].operation == Verify(accepted=2, others=(Accepted("r2", 3),))
    # One whose result never comes stays out of the log.
    recorder.begin_verify()
    recorder.end_verify([Draft(two, 2)])
    recorder.evict(4, 0)
    assert recorder.ended() == Ended(steps=len(steps))


def test_verifies_that_do_not_add_up_are_not_recorded():
    geometry = Geometry(window=4, page_size=4, slots=2, pool_tokens=64, draft_tokens=3)
    started = Started(
        target="model", backend="rules", geometry=geometry, ring_stride=6, reprefill_tail=0
    )

    def verifying():
        recorder = Recorder(lambda _: None, started, b"key")
        one = recorder.submit(array("q", range(5)))
        launch = [Extend(request=one, start=0, end=5, total=5)]
        recorder.begin_prefill(launch)
        recorder.end_prefill(launch, [1])
        recorder.begin_verify()
        recorder.end_verify([Draft(one, 1)])
        return recorder, one

    recorder, one = verifying()
    with pytest.raises(CannotFollowError, match="launch was not seen"):
        recorder.verified([None], [5], [1], 3)
    recorder, one = verifying()
    with pytest.raises(CannotFollowError, match="grown between"):
        recorder.verified([one], [6], [1], 3)
    recorder, one = verifying()
    with pytest.raises(CannotFollowError, match="longer than the server said"):
        recorder.verified([one], [5], [1], 4)
    recorder, one = verifying()
    for _ in range(MOST_VERIFIES - 1):
        recorder.begin_verify()
    with pytest.raises(CannotFollowError, match="no result"):
        recorder.begin_verify()
