"""Scenario and log files: round trips, and no file that ends in anything but a BadFileError."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kvproof.fuzz.strategies import Sizes, arbitrary_scenarios, likely_scenarios
from kvproof.model.facts import EngineError, Fact, decode_fact, encode_fact, read_log
from kvproof.model.files import load_scenario
from kvproof.model.monitor import Monitor, check
from kvproof.model.reference import Policy, reference_player
from kvproof.model.scenario import (
    SCHEMA,
    BadFileError,
    Decode,
    Evict,
    Finish,
    Flush,
    Geometry,
    Piece,
    Prefill,
    Retract,
    Scenario,
    Submit,
    Verify,
    decode_scenario,
    encode_scenario,
)

SIZES = Sizes(draft_tokens=(1, 2), overlaps=(0, 0, 1))
SCENARIO = Scenario(
    geometry=Geometry(window=4, page_size=2, slots=1, pool_tokens=32, draft_tokens=2),
    operations=(
        Submit(request="A", prompt=(Piece("A", 8),)),
        Prefill(request="A", tokens=4),
        Prefill(request="A"),
        Decode(pad=1),
        Verify(accepted=1),
        Retract(request="A"),
        Prefill(request="A"),
        Finish(request="A"),
        Evict(tokens=2),
        Submit(request="C", prompt=(Piece("A", 6), Piece("C", 9))),
        Prefill(request="C"),
        Decode(),
        Finish(request="C"),
        Flush(),
    ),
)


def log_of(scenario: Scenario) -> list[Fact]:
    return list(reference_player(scenario.geometry, Policy(reprefill_tail=0)).play(scenario))


LINES = [encode_fact(fact) for fact in log_of(SCENARIO)]


def judge(lines: list[bytes]) -> Monitor:
    return check(read_log(lines))


# Round trips


@settings(max_examples=100, deadline=None)
@given(scenario=likely_scenarios(SIZES) | arbitrary_scenarios(SIZES))
def test_round_trip(scenario: Scenario) -> None:
    data = encode_scenario(scenario)
    assert decode_scenario(data) == scenario
    assert encode_scenario(decode_scenario(data)) == data
    log = log_of(scenario)
    lines = [encode_fact(fact) for fact in log]
    assert list(read_log(lines)) == log
    assert all(line.count(b"\n") == 1 for line in lines), "one fact a line"


def test_file_names_are_read_as_they_were_written(tmp_path: Path) -> None:
    file = tmp_path / "scenario.json"
    file.write_bytes(encode_scenario(SCENARIO))
    assert load_scenario(file) == SCENARIO


def test_engine_error_round_trip() -> None:
    fact = EngineError(cause="raised", message="KeyError: 'ü'\nat line 3")
    assert decode_fact(encode_fact(fact)) == fact


# Bad files, by hand


def scenario_with(**changes: Any) -> bytes:
    return json.dumps(json.loads(encode_scenario(SCENARIO)) | changes).encode()


def geometry_with(**changes: Any) -> bytes:
    raw = json.loads(encode_scenario(SCENARIO))
    return json.dumps(raw | {"geometry": raw["geometry"] | changes}).encode()


def operation(**fields: Any) -> bytes:
    return scenario_with(operations=[{"op": "flush"}, fields])


BAD_SCENARIOS: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "truncated"),
    "truncated": (encode_scenario(SCENARIO)[:-20], "truncated"),
    "no JSON": (b"window = 4", r"malformed.*byte 0"),
    "list": (b"[]", "Expected `object`, got `array`"),
    "null": (b"null", "Expected `object`, got `null`"),
    "no geometry": (b'{"operations": []}', "missing required field `geometry`"),
    "binary": (bytes(range(256)), "byte"),
    "not UTF-8": (
        encode_scenario(SCENARIO).replace(b'"A"', b'"\xff"', 1), r"no UTF-8 text \(byte \d+\)",
    ),
    "Latin-1 name": (b'{"geometry": "\xe9"}', r"no UTF-8 text \(byte 14\)|\$\.geometry"),
    "byte order mark": (b"\xef\xbb\xbf" + encode_scenario(SCENARIO), "malformed"),
    "UTF-16": (encode_scenario(SCENARIO).decode().encode("utf-16"), "malformed|UTF-8"),
    "lone surrogate": (
        encode_scenario(SCENARIO).replace(b'"A"', b'"\\ud800"', 1), "surrogate|utf-16",
    ),
    "deep lists": (b"[" * 200_000, "truncated|nested too deeply|got `array`"),
    "deep objects": (b'{"a":' * 200_000, "nested too deeply|unknown field"),
    "deep and complete": (
        b'{"geometry":' + b"[" * 100_000 + b"]" * 100_000 + b"}", "nested too deeply|geometry",
    ),
    "newer": (scenario_with(schema=SCHEMA + 1), "update kvproof"),
    "newer with unknown parts": (
        scenario_with(schema=SCHEMA + 1, geometry={"rings": 3}, operations="many"),
        "update kvproof",
    ),
    "far newer": (scenario_with(schema=10**30), "update kvproof"),
    "schema 0": (scenario_with(schema=0), r"\$\.schema"),
    "schema as text": (scenario_with(schema="1"), r"\$\.schema"),
    "unknown field": (scenario_with(author="me"), "unknown field `author`"),
    "unknown geometry field": (geometry_with(width=3), r"unknown field `width`.*\$\.geometry"),
    "window 0": (geometry_with(window=0), "geometry.window|window"),
    "window as float": (geometry_with(window=4.5), r"\$\.geometry\.window"),
    "window as text": (geometry_with(window="4"), r"\$\.geometry\.window"),
    "window null": (geometry_with(window=None), r"\$\.geometry\.window"),
    "huge window": (geometry_with(window=2**40), r"<= 32768.*\$\.geometry\.window"),
    "huge pool": (geometry_with(pool_tokens=10**100), r"\$\.geometry\.pool_tokens"),
    "pool of half pages": (geometry_with(pool_tokens=33), "multiple of page_size 2, got 33"),
    "no slots": (geometry_with(slots=0), r"slots"),
    "negative drafts": (geometry_with(draft_tokens=-1), r"draft_tokens"),
    "unknown operation": (operation(op="explode"), r"explode.*\$\.operations\[1\]\.op"),
    "operation without a tag": (operation(request="A"), r"`op`.*\$\.operations\[1\]"),
    "operation without a name": (operation(op="finish"), r"`request`.*\$\.operations\[1\]"),
    "misspelt field": (operation(op="decode", padd=1), r"`padd`.*\$\.operations\[1\]"),
    "negative budget": (operation(op="prefill", request="A", tokens=-3), r"\[1\]\.tokens"),
    "negative padding": (operation(op="decode", pad=-1), r"\[1\]\.pad"),
    "endless padding": (operation(op="decode", pad=10**12), r"\[1\]\.pad"),
    "endless prompt": (
        operation(op="submit", request="A", prompt=[["A", 10**9]]), r"\[1\]\.prompt\[0\]\[1\]",
    ),
    "negative prompt": (
        operation(op="submit", request="A", prompt=[["A", -1]]), r"\[1\]\.prompt\[0\]\[1\]",
    ),
    "prompt as text": (operation(op="submit", request="A", prompt="A:9"), r"\[1\]\.prompt"),
    "piece of three": (
        # The decoder of msgspec names no place for this one.
        operation(op="submit", request="A", prompt=[["A", 1, 2]]), "at most length 2",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_SCENARIOS)
def test_bad_scenario_is_refused_with_place_and_cause(name: str, tmp_path: Path) -> None:
    data, message = BAD_SCENARIOS[name]
    file = tmp_path / "bad.json"
    file.write_bytes(data)
    with pytest.raises(BadFileError, match=message) as refused:
        load_scenario(file)
    assert str(refused.value).startswith(f"{file}: ")
    assert len(str(refused.value)) < len(str(file)) + 300


def test_missing_file_and_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(BadFileError, match=r"none\.json: No such file"):
        load_scenario(tmp_path / "none.json")
    with pytest.raises(BadFileError, match="Is a directory"):
        load_scenario(tmp_path)


def line_with(number: int, **changes: Any) -> list[bytes]:
    lines = list(LINES)
    lines[number - 1] = json.dumps(json.loads(lines[number - 1]) | changes).encode() + b"\n"
    return lines


def number_of(fact: str) -> int:
    """Line of the first fact of a kind."""
    return next(n for n, line in enumerate(LINES, 1) if json.loads(line)["fact"] == fact)


BAD_LOGS: dict[str, tuple[Callable[[], list[bytes]], str]] = {
    "empty": (list, "the log is empty"),
    "headless": (lambda: LINES[1:], "line 1: a log starts with a 'started' fact"),
    "two logs in one": (lambda: [*LINES, *LINES], rf"line {len(LINES) + 1}: a second 'started'"),
    "truncated line": (lambda: [*LINES[:4], LINES[4][:-9]], "line 5: not a fact: .*truncated"),
    "empty line": (lambda: [*LINES[:4], b"\n"], "line 5: not a fact"),
    "no JSON": (lambda: [*LINES[:2], b"Traceback (most recent\n"], "line 3: .*malformed"),
    "not UTF-8": (
        lambda: [LINES[0], b'{"fact":"skipped","reason":"\xff"}\n'],
        r"line 2: not a fact: no UTF-8 text \(byte 28\)",
    ),
    "nested": (lambda: [LINES[0], b'{"a":' * 100_000], "line 2: .*nested too deeply"),
    "unknown fact": (lambda: [LINES[0], b'{"fact":"guessed"}\n'], r"line 2: .*guessed"),
    "newer": (
        lambda: line_with(1, schema=SCHEMA + 1),
        f"line 1: this log has schema version {SCHEMA + 1}",
    ),
    "newer with unknown parts": (
        lambda: line_with(1, schema=SCHEMA + 1, rings=3), "line 1: .*update kvproof",
    ),
    "stride 0": (lambda: line_with(1, ring_stride=0), r"line 1: .*\$\.ring_stride"),
    "huge stride": (lambda: line_with(1, ring_stride=10**15), r"line 1: .*\$\.ring_stride"),
    "unparallel rows": (
        lambda: line_with(number_of("wrote"), rows=[1]), r"4 positions went to 1 rows",
    ),
    "unparallel payload": (
        lambda: line_with(number_of("read"), seen=[None]), r"entries are seen in \d rows",
    ),
    "child before its parent": (
        lambda: line_with(2, nodes=[{"parent": 0, "tokens": [], "locs": []}]), "parent of node 0",
    ),
    "negative length": (
        lambda: line_with(number_of("admitted"), prompt_len=-1), r"\$\.prompt_len",
    ),
    "endless length": (
        lambda: line_with(number_of("admitted"), prompt_len=10**12), r"\$\.prompt_len",
    ),
    "never submitted": (
        lambda: line_with(number_of("admitted"), request="Z"), "Z is admitted and was never",
    ),
    "submitted without a prompt": (
        lambda: line_with(3, operation={"op": "submit", "request": "A", "prompt": []}),
        "A is admitted and was never submitted with a prompt",
    ),
    "no ring": (lambda: line_with(1, ring_stride=None), "the target has no ring"),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD_LOGS)
def test_bad_log_is_refused_with_place_and_cause(name: str) -> None:
    lines, message = BAD_LOGS[name]
    with pytest.raises(BadFileError, match=message):
        judge(lines())


def test_a_log_that_stops_between_two_facts_is_judged_and_not_ended() -> None:
    monitor = judge(LINES[:-1])
    assert not monitor.ended
    assert judge(LINES).ended


def test_what_stands_before_a_bad_line_is_read_first() -> None:
    facts = read_log([*LINES[:3], b"{"])
    assert [next(facts) for _ in range(3)] == log_of(SCENARIO)[:3]
    with pytest.raises(BadFileError, match="line 4"):
        next(facts)


# Bad files, by the hundred

ODD: list[Any] = [
    None, True, False, -1, 0, 1, 2, 7, 10**6, 2**24, 2**31, 2**63, 2**64, -(2**63), 10**40, 0.5,
    -0.0, 1e300, "", "A", "Z", "\x00", "é", [], {}, [0], [[]], [None], {"a": 1}, ["A", 3],
]  # fmt: skip

# Copied, since a second change may go into what the first one put in.
odd_values = st.sampled_from(ODD).map(deepcopy) | st.integers(-20, 40)


def places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key) of every part of a JSON value."""
    keys = value.keys() if isinstance(value, dict) else range(len(value))
    for key in list(keys):
        yield value, key
        if isinstance(value[key], dict | list):
            yield from places(value[key])


@st.composite
def altered_json(draw: st.DrawFn, source: bytes) -> bytes:
    """The JSON with one to three parts replaced, removed, doubled or renamed."""
    value = [json.loads(source)]
    for _ in range(draw(st.integers(1, 3))):
        container, key = draw(st.sampled_from(list(places(value))))
        match draw(st.sampled_from(("replace", "replace", "remove", "double", "rename"))):
            case "replace":
                container[key] = draw(odd_values)
            case "remove" if container is not value:
                del container[key]
            case "double" if isinstance(container, list):
                container.append(container[key])
            case "rename" if isinstance(container, dict):
                container[draw(st.sampled_from(("x", "schema", "op", "fact")))] = container[key]
        if not value or not isinstance(value[0], dict | list):
            break
    return json.dumps(value[0] if value else None).encode()


@st.composite
def altered_bytes(draw: st.DrawFn, source: bytes) -> bytes:
    """The bytes with a part cut out and other bytes put in its place."""
    start = draw(st.integers(0, len(source)))
    end = draw(st.integers(start, min(len(source), start + 30)))
    return source[:start] + draw(st.binary(max_size=8)) + source[end:]


def is_small(scenario: Scenario) -> bool:
    sizes = scenario.geometry
    prompts = (op.prompt for op in scenario.operations if isinstance(op, Submit))
    return (
        sizes.pool_tokens <= 10_000
        and sizes.slots <= 10_000
        and sizes.window + sizes.draft_tokens <= 10_000
        and all(piece.until <= 10_000 for prompt in prompts for piece in prompt)
        and all(op.pad <= 100 for op in scenario.operations if isinstance(op, Decode))
    )


QUICK = settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
WHOLE = encode_scenario(SCENARIO)


@QUICK
@example(data=b"")
@given(data=altered_json(WHOLE) | altered_bytes(WHOLE) | st.binary(max_size=60))
def test_altered_scenario_is_refused_or_played(data: bytes) -> None:
    try:
        scenario = decode_scenario(data)
    except BadFileError as refused:
        message = str(refused)
        assert message.startswith(("not a scenario: ", "this scenario has schema version"))
        return
    assert decode_scenario(encode_scenario(scenario)) == scenario
    if is_small(scenario):
        log = log_of(scenario)
        assert judge([encode_fact(fact) for fact in log]).ended


@st.composite
def altered_logs(draw: st.DrawFn) -> list[bytes]:
    lines = list(LINES)
    for _ in range(draw(st.integers(1, 2))):
        number = draw(st.integers(0, len(lines) - 1))
        match draw(st.sampled_from(("json", "json", "json", "bytes", "remove", "swap", "double"))):
            case "json":
                lines[number] = draw(altered_json(LINES[number % len(LINES)])) + b"\n"
            case "bytes":
                lines[number] = draw(altered_bytes(lines[number]))
            case "remove":
                del lines[number]
            case "swap":
                other = draw(st.integers(0, len(lines) - 1))
                lines[number], lines[other] = lines[other], lines[number]
            case "double":
                lines.insert(number, lines[number])
    return lines


@QUICK
@given(lines=altered_logs())
def test_altered_log_is_refused_or_judged(lines: list[bytes]) -> None:
    try:
        monitor = judge(lines)
    except BadFileError as refused:
        message = str(refused)
        assert message.startswith(("line ", "step ", "the log is empty"))
        return
    assert monitor.started is not None
    for violation in monitor.violations.values():
        assert violation.sentence
