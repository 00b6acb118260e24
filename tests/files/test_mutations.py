"""Damaged and hostile files through every reader: no crash, no hang, no silent acceptance.

A file is either refused with a BadFileError that says why, or read. What is read is written again
and read as the same, and nothing that stood in the file is missing from it: no field is ignored, no
repeated name hides another, no number is bent to fit.

`pytest tests/files --hypothesis-profile mutations` reads 10,200 files instead of a few hundred.
"""

from __future__ import annotations

import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvproof.cli.runs import decode_report
from kvproof.fuzz.corpus import Verdicts, decode_verdicts, encode_verdicts
from kvproof.fuzz.expected import TABLE, decode_expected
from kvproof.fuzz.manifest import decode_manifest
from kvproof.fuzz.profiles import Profile
from kvproof.fuzz.strategies import Sizes
from kvproof.model.facts import Fact, LogReader
from kvproof.model.files import read_scenario
from kvproof.model.monitor import Monitor
from kvproof.model.scenario import (
    BadFileError,
    Geometry,
    Scenario,
    decode_scenario,
    encode_scenario,
)
from kvproof.model.text import encode_text, parse_scenario

from .samples import (
    FORWARDS,
    SCENARIO,
    complete,
    played,
    played_forwards,
    recorded,
    write_log,
)

SECONDS = 20.0
"""No file of this size may take that long, on a slow and busy machine."""

# What each reader makes of bytes, and how that is written.


def read_log_and_judge(data: bytes) -> list[Fact]:
    """As `kvproof check` does, in blocks of an odd size."""
    monitor = Monitor()
    facts = []
    for fact in LogReader(data[at : at + 777] for at in range(0, len(data), 777)):
        monitor.feed(fact)
        facts.append(fact)
    return facts


MANIFEST = json.dumps(
    {
        "kvproof": "0.1.0", "sources": "ab12", "python": "3.11.7", "platform": "Linux",
        "processors": 2, "packages": {"torch": "2.13.0"}, "requirements": "cd34",
        "environment": {}, "command": ["kvproof", "fuzz"], "seed": 0,
        "profile": msgspec.to_builtins(Profile(sequences=3)),
        "drawn_from": {"sglang-0.5.15:registry": msgspec.to_builtins(Sizes())},
        "time_limit": None, "redacted": False, "targets": ["sglang-0.5.15:registry"],
        "engines": [{"name": "sglang-0.5.15", "version": "0.5.15", "sha256": None}],
    }
).encode()  # fmt: skip

REPORT = json.dumps(
    {
        "seed": 0, "profile": "smoke", "folder": "runs/0001", "targets": [], "vacuous": [],
        "comparisons": [{"target": "t", "invariant": "USEFUL", "agreement": "changed",
                         "note": "n"}],
        "as_expected": False,
    }
).encode()  # fmt: skip

VERDICTS = encode_verdicts(
    Verdicts(why='It "breaks".', kernels=True, breaks={"a:b": ("USEFUL/no-reuse",), "c:d": ()})
)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One reader with samples of what it reads.

    ``write`` is None where kvproof itself never writes the file.
    """

    samples: tuple[bytes, ...]
    read: Callable[[bytes], Any]
    write: Callable[[Any], bytes] | None


READERS = {
    "scenario": Reader(
        samples=(encode_scenario(SCENARIO), encode_scenario(FORWARDS)),
        read=read_scenario,
        write=encode_scenario,
    ),
    "text": Reader(
        samples=(encode_text(SCENARIO), encode_text(FORWARDS)),
        read=read_scenario,
        write=encode_text,
    ),
    "log": Reader(
        samples=(write_log(played()), write_log(recorded()), write_log(played_forwards())),
        read=read_log_and_judge,
        write=write_log,
    ),
    "expected": Reader(samples=(TABLE.read_bytes(),), read=decode_expected, write=None),
    "corpus": Reader(samples=(VERDICTS,), read=decode_verdicts, write=encode_verdicts),
    "run": Reader(
        samples=(MANIFEST, REPORT),
        read=lambda data: decode_manifest(data) if b"sources" in data else decode_report(data),
        write=msgspec.json.encode,
    ),
}


# Damage


NUMBERS = (b"0", b"-1", b"1e999", b"NaN", b"Infinity", b"9" * 30, b"9" * 5000, b"1.5", b"16777217")
PARTS = (
    b"\x00", b"\xff\xfe", b"\xed\xa0\x80", b"\xef\xbb\xbf", b'"\\ud800"', b"[" * 3000,
    b'{"a":' * 3000, b"{}", b"null", b"x" * 100_000, b"\n", b"\n\n", b"\r\n", b"#", b'"', b"'",
    b"\\", b"$(touch pwned)", b"`id`", b"__import__('os').system('id')", b"!!python/object",
    b'"op":"finish",', b'"fact":"ended",', b'"schema":3,', b"kvproof scenario 99\n", b"[[a]]\n",
)  # fmt: skip


@st.composite
def damaged(draw: st.DrawFn, samples: tuple[bytes, ...]) -> bytes:
    """A sample with one to three kinds of damage."""
    data = draw(st.sampled_from(samples))
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        until = min(len(data), at + draw(st.integers(0, 40)))
        match draw(st.integers(0, 9)):
            case 0:
                data = data[:at]
            case 1 if data:
                flipped = data[at - 1] ^ (1 << draw(st.integers(0, 7)))
                data = data[: at - 1] + bytes([flipped]) + data[at:] if at else data
            case 2 | 3:
                data = data[:at] + draw(st.sampled_from(PARTS)) + data[at:]
            case 4:
                data = data[:at] + draw(st.binary(max_size=8)) + data[until:]
            case 5 | 6:
                numbers = [*re.finditer(rb"\d+", data)]
                if numbers:
                    found = draw(st.sampled_from(numbers))
                    number = draw(st.sampled_from(NUMBERS) | st.integers(-3, 40).map(
                        lambda n: str(n).encode()))  # fmt: skip
                    data = data[: found.start()] + number + data[found.end() :]
            case 7:  # a name twice in an object, a size twice, a field nobody knows
                fields = [*re.finditer(rb'"\w+": ?("[^"]*"|\d+),|(?m:^\w+ (= )?\S+\n)', data)]
                if fields:
                    found = draw(st.sampled_from(fields))
                    extra = found[0].replace(b"s", b"z", draw(st.integers(0, 1)))
                    data = data[: found.end()] + extra + data[found.end() :]
            case 8:
                lines = data.split(b"\n")
                one, other = draw(st.integers(0, len(lines) - 1)), draw(st.integers(0, len(lines)))
                lines.insert(other, lines[one])
                data = b"\n".join(lines)
            case 9:
                lines = data.split(b"\n")
                del lines[draw(st.integers(0, len(lines) - 1))]
                data = b"\n".join(lines)
    return data


# Nothing is executed


_watching = threading.local()
_FORBIDDEN = ("exec", "import", "os.", "subprocess.", "socket.", "shutil.", "ctypes.", "pickle.")


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if not getattr(_watching, "on", False):
        return
    if event.startswith(_FORBIDDEN) or (event == "open" and arguments[1] not in {"r", "rb", None}):
        _watching.seen.append(event)


sys.addaudithook(_audit)


@contextmanager
def nothing_is_executed() -> Iterator[None]:
    """No code, no process, no connection, no file written, as Python's audit events tell."""
    _watching.seen, _watching.on = [], True
    try:
        yield
    finally:
        _watching.on = False
    assert _watching.seen == []


def test_the_watch_sees_what_it_forbids(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="exec"), nothing_is_executed():
        exec("1")
    with pytest.raises(AssertionError, match="open"), nothing_is_executed():
        (tmp_path / "file").write_text("")


# Nothing is ignored


def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    assert len({name for name, _ in pairs}) == len(pairs), "a name stands twice"
    return dict(pairs)


def is_part_of(part: Any, whole: Any) -> bool:
    """Whether everything in a JSON value is in another, which may have more names (defaults)."""
    if isinstance(part, dict) and isinstance(whole, dict):
        return all(name in whole and is_part_of(part[name], whole[name]) for name in part)
    if isinstance(part, list) and isinstance(whole, list):
        return len(part) == len(whole) and all(map(is_part_of, part, whole))
    return type(part) is type(whole) and bool(part == whole)


def leave_out(given: Any, pointer: str) -> None:
    """Remove what a JSON pointer leads to, which is there."""
    _, *names = (part.replace("~1", "/").replace("~0", "~") for part in pointer.split("/"))
    for name in names[:-1]:
        given = given[int(name) if isinstance(given, list) else name]
    del given[names[-1]]


def assert_nothing_is_ignored(data: bytes, value: Any) -> None:
    if isinstance(value, list):  # a log
        lines = data.removesuffix(b"\n").split(b"\n")
        assert len(lines) == len(value)
        for line, fact in zip(lines, value, strict=True):
            assert is_part_of(json.loads(line, object_pairs_hook=unique), complete(fact))
    elif data.lstrip().startswith(b"{"):
        given = json.loads(data, object_pairs_hook=unique)
        for name in getattr(value, "unknown", None) or ():
            leave_out(given, name)  # it is said to be unknown, so it is not ignored
        assert is_part_of(given, complete(value))
    elif isinstance(value, Scenario):
        # As many operations as lines that are no title, size or comment.
        lines = [line.split(b"#")[0].strip() for line in data.split(b"\n")]
        words = [line.split()[0].decode(errors="replace") for line in lines if line]
        sizes = [word for word in words if word in Geometry.__struct_fields__]
        assert len(sizes) == len(set(sizes))
        assert len(words) - len(sizes) - 1 == len(value.operations)


# The test

for each in READERS.values():
    for sample in each.samples:
        each.read(sample)  # what is imported or compiled once is not a damaged file's doing


@pytest.mark.parametrize("name", READERS)
def test_an_undamaged_file_is_read_and_written_as_it_is(name: str) -> None:
    reader = READERS[name]
    for sample in reader.samples:
        value = reader.read(sample)
        assert_nothing_is_ignored(sample, value)
        if reader.write is not None:
            assert reader.read(reader.write(value)) == value


@pytest.mark.parametrize("name", READERS)
@settings(deadline=None)
@given(data=st.data())
def test_a_damaged_file_is_refused_or_read_whole(name: str, data: st.DataObject) -> None:
    reader = READERS[name]
    file = data.draw(damaged(reader.samples))
    began = time.monotonic()
    value, message = None, ""
    with nothing_is_executed():
        try:
            value = reader.read(file)
        except BadFileError as refused:
            message = str(refused)
    assert time.monotonic() - began < SECONDS
    if value is None:
        assert 10 < len(message) < 600, message[:700]
        return
    assert_nothing_is_ignored(file, value)
    if reader.write is not None:
        again = reader.write(value)
        assert reader.read(again) == value
        assert reader.write(reader.read(again)) == again
    if isinstance(value, Scenario):
        assert decode_scenario(encode_scenario(value)) == value
        assert parse_scenario(encode_text(value)) == value
