"""Scenarios as text: lossless beside JSON, forgiving to hands, clear where something is wrong."""

from __future__ import annotations

import re
from typing import get_args

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kvproof.fuzz.forward_strategies import forward_scenarios
from kvproof.fuzz.strategies import Sizes, arbitrary_scenarios, likely_scenarios
from kvproof.model.files import read_scenario
from kvproof.model.forwards import ForwardMode, Plan
from kvproof.model.scenario import (
    SCHEMA,
    BadFileError,
    Decode,
    Finish,
    Geometry,
    Operation,
    Piece,
    Prefill,
    Scenario,
    Submit,
    decode_scenario,
    encode_scenario,
)
from kvproof.model.text import (
    FORMS,
    draw,
    encode_text,
    is_text,
    parse_scenario,
    spell_name,
    spell_operation,
    spell_scenario,
)

from .samples import FORWARDS, SCENARIO

SIZES = Sizes(draft_tokens=(1, 3), overlaps=(0, 0, 1))
names = st.text(max_size=6) | st.sampled_from(
    ["A", "", " ", "#", '"', "a b", "é", "\n", "\x00", "👾"]
)


@settings(deadline=None)
@given(
    scenario=likely_scenarios(SIZES)
    | arbitrary_scenarios(SIZES)
    | forward_scenarios(any_caller=True)
)
@example(scenario=FORWARDS)
def test_text_and_json_hold_the_same(scenario: Scenario) -> None:
    text, json = encode_text(scenario), encode_scenario(scenario)
    assert is_text(text)
    assert not is_text(json)
    assert parse_scenario(text) == scenario == decode_scenario(json)
    assert encode_text(parse_scenario(text)) == text
    assert encode_scenario(parse_scenario(text)) == json


@settings(deadline=None)
@given(request=names, text=names, until=st.lists(st.integers(0, 9), max_size=4))
def test_any_name_and_any_prompt_survive(request: str, text: str, until: list[int]) -> None:
    scenario = Scenario(
        geometry=SCENARIO.geometry,
        operations=(
            Submit(request=request, prompt=tuple(Piece(text, end) for end in until)),
            Prefill(request=request, tokens=0), Finish(request=request),
        ),
    )  # fmt: skip
    data = encode_text(scenario)
    assert read_scenario(data) == scenario
    assert all(line.isprintable() for line in data.decode().split("\n"))


@settings(deadline=None)
@given(
    comments=st.lists(
        st.tuples(st.integers(0, 40), st.sampled_from(["", "  ", "# x", " # a: B[", "#"]))
    ),
    spaces=st.lists(st.integers(0, 60), max_size=6),
    ends=st.sampled_from(["\n", "\r\n"]),
)
@example(comments=[(0, "# first"), (1, "")], spaces=[], ends="\n")
def test_hands_may_add_comments_blank_lines_and_spaces(
    comments: list[tuple[int, str]], spaces: list[int], ends: str
) -> None:
    lines = spell_scenario(SCENARIO).split("\n")
    for at, comment in comments:
        if at < len(lines) and comment.lstrip():
            lines[at] += f" {comment.strip()}" if comment.strip() else ""
        elif at:
            lines.insert(at, comment)
    for at in spaces:
        if at < len(lines) and '"' not in lines[at] and "#" not in lines[at]:
            lines[at] = "  " + re.sub(r"([:,\[\]])", r" \1 ", lines[at])
    assert parse_scenario(ends.join(lines).encode()) == SCENARIO


def test_defaults_may_be_left_out() -> None:
    short = (
        b"kvproof scenario 1\nslots 1\npage_size 2\nwindow 4\npool_tokens 8\ndecode, 1 padded row\n"
    )
    assert parse_scenario(short) == Scenario(
        geometry=Geometry(window=4, page_size=2, slots=1, pool_tokens=8),
        operations=(Decode(pad=1),),
        schema=1,
    )


def test_every_operation_has_a_form_and_is_spelled() -> None:
    assert {form.kind for form in FORMS.values()} == set(get_args(Operation))
    for operation in (*SCENARIO.operations, *FORWARDS.operations):
        assert spell_operation(operation).split()[0].strip(",:") in FORMS


@settings(deadline=None)
@given(
    requests=st.lists(names, max_size=3).map(tuple),
    mode=st.sampled_from(get_args(ForwardMode)),
    tokens=st.integers(0, 3),
    in_graph=st.booleans(),
)
def test_any_plan_survives(
    requests: tuple[str, ...], mode: ForwardMode, tokens: int, in_graph: bool
) -> None:
    plan = Plan(mode=mode, requests=requests, tokens=tokens, in_graph=in_graph)
    scenario = Scenario(geometry=FORWARDS.geometry, operations=(plan,))
    assert read_scenario(encode_text(scenario)) == scenario


def test_forwards_are_written_as_they_are_said() -> None:
    assert [spell_operation(operation) for operation in FORWARDS.operations[:9]] == [
        'plan extend A "odd \\"\\u00fc\\" name", 9 tokens each', "layer", "plan decode A",
        "pad 1 rows", "layer", "slide A", "plan draft A, 0 tokens each, outside the graph", "layer",
        'replay draft_extend "odd \\"\\u00fc\\" name" A',
    ]  # fmt: skip


def test_the_drawing_shows_which_requests_a_forward_is_of() -> None:
    drawn = draw(FORWARDS)
    [row] = [line for line in drawn if line.startswith("A ")]
    assert row.split()[:7] == ["A", "P", ".", "P", ".", ".", "S"]
    assert drawn[-1].startswith("P plan")


def test_the_drawing_shows_requests_against_steps() -> None:
    drawn = draw(SCENARIO)
    steps = next(line for line in drawn if line.split()[:2] == ["1", "2"])
    assert steps.split() == [str(number) for number in range(1, 15)]
    [row] = [line for line in drawn if line.startswith("A ")]
    assert row.split() == ["A", "s", "p", "p", "d", "v", "r", "p", "f"]
    assert [line.split() for line in drawn if line.split() in (["E", "F"],)]
    for line in spell_scenario(SCENARIO).split("\n"):
        assert not line.endswith(" ")


def test_a_large_scenario_is_written_without_a_drawing() -> None:
    scenario = Scenario(geometry=SCENARIO.geometry, operations=(Decode(),) * 5000)
    text = spell_scenario(scenario)
    assert "steps 5000" in text
    assert text.count("#") == 1
    assert parse_scenario(text.encode()) == scenario


TITLE = f"kvproof scenario {SCHEMA}\n"
SIZED = TITLE + "window 4\npage_size 2\nslots 1\npool_tokens 8\n"
WRONG = {
    "no title": (
        "# a\nwindow 4\n",
        "line 2: 'window 4': .*starts with a line like 'kvproof scenario",
    ),
    "only a comment": ("# nothing\n", "starts with a line like"),
    "no version": ("kvproof scenario\n", "line 1: .*the version"),
    "newer": (f"kvproof scenario {SCHEMA + 1}\nrings 4\n", "update kvproof"),
    "version 0": ("kvproof scenario 0\n", "line 1: .*start at 1"),
    "two titles": (SIZED + TITLE, "line 6: .*'kvproof' is no size and no operation"),
    "no sizes": (TITLE, "sizes: .*window"),
    "size twice": (SIZED + "window 4\n", "line 6: 'window 4': window stands twice"),
    "size too late": (SIZED + "flush\nwindow 4\n", "line 7: .*sizes come before the operations"),
    "size of nothing": (TITLE + "window\n", "line 2: .*expected a size"),
    "size below one": (TITLE + "window 0\npage_size 2\nslots 1\npool_tokens 8\n", r"window"),
    "size of words": (TITLE + "window wide\n", "line 2: .*a whole number"),
    "negative size": (TITLE + "window -4\n", "line 2: .*a whole number"),
    "half a page": (TITLE + "window 4\npage_size 3\nslots 1\npool_tokens 8\n", "multiple of page"),
    "endless number": (TITLE + "window " + "9" * 5000, "line 2: .*5000 digits"),
    "misspelt": (SIZED + "prefil A\n", "line 6: 'prefil A': .*allowed: window, .*, prefill, "),
    "no name": (SIZED + "finish\n", "line 6: 'finish': expected the name of a request; allowed: f"),
    "two names": (SIZED + "finish A B\n", "line 6: .*nothing follows here, not 'B'; allowed: fin"),
    "no colon": (SIZED + "submit A A[0:4]\n", "line 6: .*expected ':'; allowed: submit NAME: TEXT"),
    "gap": (
        SIZED + "submit A: A[0:4] B[5:6]\n",
        "line 6: .*starts at 5, and the one before ends at",
    ),
    "open range": (SIZED + "submit A: A[0:4\n", r"line 6: .*expected '\]'"),
    "long prompt": (SIZED + "submit A: A[0:9999999]\n", r"line 6: .*<= 1000000"),
    "no unit": (SIZED + "prefill A, 4\n", "line 6: .*expected 'tokens'; allowed: prefill NAME, N"),
    "unquoted": (SIZED + "finish a b\n", "line 6: .*nothing follows"),
    "half a quote": (SIZED + 'finish "a\n', "line 6: .*expected the name"),
    "bad escape": (SIZED + 'finish "\\x41"\n', "line 6: .*no JSON string"),
    "lone surrogate": (SIZED + 'finish "\\ud800"\n', "line 6: .*no JSON string"),
    "NUL": (SIZED + "finish A\x00\n", "line 6: .*nothing follows"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_said_with_its_line_and_what_is_allowed(name: str) -> None:
    text, message = WRONG[name]
    with pytest.raises(BadFileError, match=message):
        parse_scenario(text.encode())


def test_text_that_is_no_utf8_is_refused() -> None:
    with pytest.raises(BadFileError, match=r"no UTF-8 text \(byte 20\)"):
        read_scenario(TITLE.encode() + b"# \xff"[1:] + b"\xff")


@pytest.mark.parametrize(
    ("name", "spelled"), [("A", "A"), ("a-1.b_2", "a-1.b_2"), ("", '""'), ("a b", '"a b"'),
                          ("ü", '"\\u00fc"'), ('"', '"\\""')],
)  # fmt: skip
def test_names(name: str, spelled: str) -> None:
    assert spell_name(name) == spelled
