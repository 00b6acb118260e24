"""Paths, pipes and blocks: whatever a user names is read once, or refused."""

from __future__ import annotations

import gzip
import io
import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from kvproof.model.facts import LogReader, Ran, Read, encode_fact
from kvproof.model.files import blocks, load_scenario, open_file
from kvproof.model.forward import RuleForward
from kvproof.model.monitor import Monitor
from kvproof.model.player import Lane
from kvproof.model.scenario import BadFileError, Geometry, encode_scenario
from kvproof.model.text import encode_text
from kvproof.model.traffic import Traffic

from .samples import SCENARIO, complete, played, recorded, write_log

SECONDS = 20.0


@pytest.fixture(params=[encode_text, encode_scenario])
def good(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    file = tmp_path / "good"
    file.write_bytes(request.param(SCENARIO))
    return file


def test_links_and_zipped_files_are_read(good: Path, tmp_path: Path) -> None:
    link, zipped = tmp_path / "link", tmp_path / "zipped"
    link.symlink_to(good)
    zipped.write_bytes(gzip.compress(good.read_bytes()))
    assert load_scenario(link) == load_scenario(zipped) == load_scenario(good) == SCENARIO


def test_what_is_no_file_is_refused(tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (tmp_path / "broken").symlink_to(tmp_path / "nothing")
    for path in (loop, tmp_path / "broken", tmp_path, tmp_path / "nothing" / "file"):
        with pytest.raises(BadFileError, match=re.escape(str(path))):
            load_scenario(path)


@pytest.mark.parametrize("device", ["/dev/zero", "/dev/null"])
def test_a_device_is_refused_and_not_read_for_ever(device: str) -> None:
    path = Path(device)
    if not path.exists():
        pytest.skip(f"there is no {device} here")
    with pytest.raises(BadFileError, match=device):
        load_scenario(path)
    with pytest.raises(BadFileError, match=device), open_file(path) as file:
        list(LogReader(blocks(file)))


def test_a_zip_bomb_is_refused_in_bounded_memory(tmp_path: Path) -> None:
    bomb = tmp_path / "bomb.gz"
    with gzip.open(bomb, "wb", compresslevel=9) as file:
        for _ in range(100):
            file.write(bytes(1 << 20))
    assert bomb.stat().st_size < 1 << 20
    with pytest.raises(BadFileError, match="more than"):
        load_scenario(bomb)
    with pytest.raises(BadFileError, match=r"line 1: .*more than"), open_file(bomb) as file:
        list(LogReader(blocks(file)))


def test_a_damaged_zip_is_refused(tmp_path: Path) -> None:
    whole = gzip.compress(encode_scenario(SCENARIO))
    for number, data in enumerate((whole[:-9], whole[:20], b"\x1f\x8b" + b"x" * 50)):
        file = tmp_path / f"{number}.gz"
        file.write_bytes(data)
        with pytest.raises(BadFileError, match=re.escape(str(file))):
            load_scenario(file)


def test_a_pipe_is_read_as_it_comes() -> None:
    """Each fact is given before the next one is written."""
    lines = [encode_fact(fact) for fact in recorded()]
    given: list[int] = []

    def pipe() -> Iterator[bytes]:
        for number, line in enumerate(lines):
            assert len(given) >= number
            yield line[:7]
            yield line[7:]

    for _ in LogReader(pipe()):
        given.append(1)
    assert len(given) == len(lines)


@pytest.mark.parametrize("end", [b"", b"\n"])
def test_blocks_of_any_size_give_the_same_facts(end: bytes) -> None:
    data = write_log(played()).removesuffix(b"\n") + end
    for size in (1, 7, 64, 1000, len(data)):
        file = io.BytesIO(data)
        found = [*LogReader(iter(lambda: file.read(size), b""))]  # noqa: B023
        assert found == played()


def test_a_log_that_another_tool_wrote_is_read_too() -> None:
    """Spaces, other orders, defaults spelled out: not kvproof's bytes, the same facts."""
    lines = []
    for fact in played():
        fields = complete(fact)
        lines.append(json.dumps(dict(reversed(fields.items())), indent=None).encode() + b"\n")
    assert [*LogReader(lines)] == played()


def test_a_wide_lane_is_judged_in_no_time() -> None:
    """The largest numbers that a file may hold ask for no endless work."""
    geometry = Geometry(window=2**15, page_size=1, slots=1, pool_tokens=2**24)
    traffic = [*Traffic(geometry=geometry, requests=1, answer=2).log()]
    at = next(n for n, fact in enumerate(traffic) if isinstance(fact, Ran))
    long = msgspec.structs.replace(traffic[at], start=0, end=2**24)
    later = msgspec.structs.replace(traffic[at], start=2**23, end=2**24)
    monitor = Monitor()
    began = time.monotonic()
    for fact in [*traffic[:at], long, later]:
        monitor.feed(fact)
    assert time.monotonic() - began < SECONDS
    assert monitor.counts["FRESH-PREFILL", "own-other-position"]


def test_the_rules_give_a_lane_lazily() -> None:
    rules = RuleForward(window=2**15, stride=2**15, verify_order="write, then read")
    lane = Lane(request="A", slot=1, occupancy=1, start=2**23, end=2**24)
    assert isinstance(next(rules.lane(lane, "prefill")), Read)
