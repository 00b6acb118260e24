"""The page: its data, its bounds, and what a reader does with it in a real browser."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from kvproof.model.facts import Fact, Node, Pools
from kvproof.model.reference import Policy
from kvproof.triage import page as page_module
from kvproof.triage.excerpt import excerpt
from kvproof.triage.page import page_data, render, spell_tokens

from .browser import arguments, executable
from .conftest import busy, log_of, stale_decode, uncapped

HOSTILE = "</script><img src=x onerror=\"document.title='owned'\">'\u2028{{7*7}}"
"""Would end the script, make an element, run its handler, end a string, be a template."""


def shown(log: list[Fact]) -> str:
    return render(excerpt(lambda: iter(log)))


# The data


def test_the_page_names_nothing_outside_itself(stale_log: list[Fact]) -> None:
    html = shown(stale_log)
    assert not re.findall(
        r"""(?:src|href|action)\s*=|url\(|@import|https?://(?!www\.w3\.org)""", html
    )
    assert "default-src 'none'" in html


def test_columns_are_the_steps_and_the_focus_is_the_violation(stale_log: list[Fact]) -> None:
    data = page_data(excerpt(lambda: iter(stale_log)))
    assert [step.index for step in data.steps] == [0, 1, 2, 3, 4, 5]
    assert not any(step.gap for step in data.steps)
    assert data.focus == page_module.Focus(column=5, row=6)
    # Nothing ever touched the padding slot.
    assert data.rows == (5, 6, 7, 8, 9)


def test_a_column_holds_what_changed_or_was_touched(stale_log: list[Fact]) -> None:
    data = page_data(excerpt(lambda: iter(stale_log)))
    assert [len(step.cells) for step in data.steps] == [0, 5, 0, 0, 5, 5]
    assert [step.pool is not None for step in data.steps] == [True, True, True, False, True, True]


def test_a_log_in_which_nothing_breaks_has_no_focus() -> None:
    log = log_of(stale_decode())
    assert page_data(excerpt(lambda: iter(log))).focus is None
    assert "No invariant is broken" in shown(log)


def test_a_log_without_steps_has_a_page(stale_log: list[Fact]) -> None:
    assert "No invariant is broken" in shown(stale_log[:2])


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        ((), ""),
        ((1_000_000, 1_000_001), "A[0:2]"),
        ((1_000_000, 2_000_001, 2_000_002), "A[0:1] B[1:3]"),
        ((9_000_005,), "#9[5:6]"),
    ],
)
def test_tokens_are_spelled_as_ranges(tokens: tuple[int, ...], words: str) -> None:
    assert spell_tokens(tokens, {1: "A", 2: "B"}) == words


def test_the_tree_is_drawn_depth_first(stale_log: list[Fact]) -> None:
    def node(parent: int, at: int, **more: object) -> Node:
        tokens = tuple(1_000_000 + at + n for n in range(4))
        locs = tuple(4 * (at + 4) + n for n in range(4))
        return Node(parent=parent, tokens=tokens, locs=locs, **more)  # type: ignore[arg-type]

    pools = Pools(
        free=(), free_slots=(), holdings=(), counters={},
        nodes=(node(-1, 0), node(-1, 100), node(0, 4, tombstone=True, full_lock=2), node(1, 104)),
    )  # fmt: skip
    log = [*stale_log[:3], pools]
    [step, *_] = page_data(excerpt(lambda: iter(log))).steps
    assert step.pool is not None
    drawn = [(n.depth, n.start, n.end, n.tombstone, n.full_lock) for n in step.pool.nodes]
    assert drawn == [
        (0, 0, 4, False, 0), (1, 4, 8, True, 2), (0, 0, 4, False, 0), (1, 4, 8, False, 0),
    ]  # fmt: skip


def test_a_large_tree_and_pool_are_counted_not_drawn(stale_log: list[Fact]) -> None:
    nodes = tuple(Node(parent=-1, tokens=(n,), locs=(n * 4,)) for n in range(1000))
    pools = Pools(
        free=tuple(range(1000, 3000)), free_slots=(), nodes=nodes, holdings=(), counters={}
    )
    log = [*stale_log[:3], pools]
    [step, *_] = page_data(excerpt(lambda: iter(log))).steps
    assert step.pool is not None
    assert len(step.pool.nodes) == page_module.MOST_NODES
    assert step.pool.hidden == 1000 - page_module.MOST_NODES
    assert step.pool.pages == ()
    assert step.pool.counts == {"free": 2000, "tree": 1000, "request": 0}


def test_the_page_of_a_long_log_is_small() -> None:
    log = log_of(busy(rounds=800), uncapped())
    assert len(log) > 10_000
    whole = excerpt(lambda: iter(log))
    assert not whole.is_whole
    html = render(whole)
    assert len(html) < 400_000
    assert "steps: those of the violation and around it" in html


# In a browser


@dataclass
class Opened:
    """A page that was opened from disk, and all that it did."""

    page: Page
    complaints: list[str] = field(default_factory=list)
    requests: list[str] = field(default_factory=list)

    def text(self, name: str) -> str:
        return self.page.locator(name).inner_text()

    @property
    def data(self) -> Any:
        return json.loads(self.page.locator("#data").text_content() or "")


Open = Callable[..., Opened]


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=executable(playwright), args=arguments()
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser: Browser, tmp_path: Path) -> Iterator[Open]:
    pages: list[Opened] = []

    def open_page(log: list[Fact], **options: Any) -> Opened:
        file = tmp_path / f"{len(pages)}.html"
        file.write_text(shown(log), encoding="utf-8")
        opened = Opened(browser.new_page(**options))
        opened.page.on("console", lambda message: opened.complaints.append(message.text))
        opened.page.on("pageerror", lambda error: opened.complaints.append(str(error)))
        opened.page.on("request", lambda request: opened.requests.append(request.url))
        opened.page.goto(file.as_uri())
        pages.append(opened)
        return opened

    yield open_page
    for opened in pages:
        assert opened.complaints == []
        assert len(opened.requests) == 1, "the page asks for nothing but itself"
        opened.page.close()


CHOSEN = "#grid td.selected"


def test_it_opens_at_the_stale_read(open_page: Open, stale_log: list[Fact]) -> None:
    opened = open_page(stale_log)
    assert "FRESH-DECODE" in opened.text("h1")
    assert opened.text("#where").startswith("Step 6")
    cell = opened.page.locator(CHOSEN)
    expect(cell).to_have_attribute("aria-label", re.compile("row 6, step 6: .*STALE READ"))
    assert "the row holds what another request wrote" in opened.text("#detail")


def test_the_stale_read_has_a_mark_besides_its_colour(
    open_page: Open, stale_log: list[Fact]
) -> None:
    opened = open_page(stale_log)
    stale = opened.page.locator("#grid td.focus")
    expect(stale).to_have_count(1)
    expect(stale.locator(".mark.stale svg path")).to_have_attribute("d", "M3 3 13 13M13 3 3 13")
    assert "repeating-linear-gradient" in stale.evaluate("e => getComputedStyle(e).backgroundImage")
    assert stale.evaluate("e => getComputedStyle(e).borderTopWidth") == "2px"
    red = stale.evaluate("e => getComputedStyle(e).borderTopColor")
    assert re.fullmatch(r"rgb\((19[0-9]|2\d\d), \d{1,2}, \d{1,2}\)", red), red
    # A read of the reader's own row has neither the cross nor the frame.
    own = opened.page.locator("#grid td.read").first
    expect(own.locator(".mark.stale")).to_have_count(0)


def test_steps_by_the_arrow_keys(open_page: Open, stale_log: list[Fact]) -> None:
    opened = open_page(stale_log)
    keys = opened.page.keyboard
    keys.press("ArrowLeft")
    assert opened.text("#where").startswith("Step 5")
    assert opened.text("#detail-title") == "Row 6 after step 5"
    keys.press("Home")
    assert opened.text("#where").startswith("Step 1")
    expect(opened.page.locator("#back")).to_be_disabled()
    keys.press("ArrowLeft")
    assert opened.text("#where").startswith("Step 1")
    keys.press("End")
    assert opened.text("#where").startswith("Step 6")
    expect(opened.page.locator('#grid th[aria-current="step"]')).to_contain_text("6")


def test_steps_by_the_buttons(open_page: Open, stale_log: list[Fact]) -> None:
    opened = open_page(stale_log)
    page = opened.page
    page.get_by_role("button", name="First step").click()
    page.get_by_role("button", name="Step forward").click()
    assert opened.text("#where").startswith("Step 2")
    page.get_by_role("button", name="Step back").click()
    assert opened.text("#where").startswith("Step 1")
    page.get_by_role("button", name="Go to the violation").click()
    assert opened.text("#where").startswith("Step 6")


def test_a_click_on_a_row_shows_its_writer(open_page: Open, stale_log: list[Fact]) -> None:
    opened = open_page(stale_log)
    page = opened.page
    page.locator('tr[data-row="8"] td').nth(5).click()
    writer = opened.text("#writer")
    assert "position 3" in writer
    assert "written in step 2, occupancy 1" in writer
    origin = page.locator("#grid td.origin")
    expect(origin).to_have_count(1)
    expect(origin).to_have_attribute("aria-label", re.compile("^row 8, step 2: .*written"))
    page.get_by_role("button", name="Show step 2").click()
    assert opened.text("#where").startswith("Step 2")


def test_the_keyboard_alone_reaches_a_writer(open_page: Open, stale_log: list[Fact]) -> None:
    opened = open_page(stale_log)
    page = opened.page
    for _ in range(12):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.tagName") == "TD":
            break
    assert page.evaluate("document.activeElement.className").count("selected")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert outline == "solid"
    page.keyboard.press("ArrowDown")
    assert opened.text("#detail-title") == "Row 7 after step 6"
    page.keyboard.press("ArrowUp")
    page.keyboard.press("Enter")
    assert opened.text("#detail-title") == "Row 6 after step 2"
    assert page.evaluate("document.activeElement.className").count("written")


def test_tree_and_pools_follow_the_step(open_page: Open, stale_log: list[Fact]) -> None:
    opened = open_page(stale_log)
    page = opened.page
    assert "A[0:4]" in opened.text("#tree")
    assert "full 1, swa 1" in opened.text("#tree")
    assert "6 tokens computed, 4 of 5 reused" in opened.text("#pool")
    page.keyboard.press("Home")
    assert opened.text("#tree") == "The tree is empty."
    assert "free 16" in opened.text("#pool")


def test_a_tombstone_has_a_word_and_a_pattern(open_page: Open, stale_log: list[Fact]) -> None:
    pools = Pools(
        free=(), free_slots=(), holdings=(), counters={},
        nodes=(Node(parent=-1, tokens=(1_000_000,), locs=(4,), tombstone=True, full_lock=1),),
    )  # fmt: skip
    opened = open_page([*stale_log[:3], pools])
    assert "tombstone" in opened.text("#tree")
    bar = opened.page.locator("#tree .bar.tombstone")
    assert "repeating-linear-gradient" in bar.evaluate("e => getComputedStyle(e).backgroundImage")


def test_a_hostile_name_is_text(open_page: Open) -> None:
    log = log_of(stale_decode(reader=HOSTILE), uncapped())
    opened = open_page(log)
    page = opened.page
    assert opened.data["steps"][4]["tenants"][0]["lease"]["request"] == HOSTILE
    for _ in range(6):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("End")
    assert page.title() == "FRESH-DECODE is broken on model"
    assert page.locator("img").count() == 0
    assert HOSTILE in opened.text("#pool")
    assert HOSTILE.replace("\u2028", " ") in opened.text(".sentence").replace("\u2028", " ")


def test_print_is_complete_and_keeps_its_marks(open_page: Open, stale_log: list[Fact]) -> None:
    opened = open_page(stale_log, color_scheme="dark")
    page = opened.page
    dark = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.emulate_media(media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert dark != "rgb(255, 255, 255)"
    expect(page.locator("#back")).to_be_hidden()
    stale = page.locator("#grid td.focus")
    expect(stale).to_be_visible()
    assert stale.evaluate("e => getComputedStyle(e).printColorAdjust") == "exact"
    scroll = page.locator("#scroll")
    assert scroll.evaluate("e => getComputedStyle(e).overflowY") == "visible"
    assert page.pdf(prefer_css_page_size=True).startswith(b"%PDF")


@pytest.mark.parametrize("width", [1320, 420])
def test_nothing_is_wider_than_the_window(
    open_page: Open, stale_log: list[Fact], width: int
) -> None:
    opened = open_page(stale_log, viewport={"width": width, "height": 800})
    assert opened.page.evaluate("document.documentElement.scrollWidth") <= width


def test_left_out_steps_are_marked(open_page: Open) -> None:
    opened = open_page(log_of(busy(rounds=40), uncapped()))
    assert opened.page.locator("#grid thead th.gap").count() >= 1
    assert opened.text("#where").startswith("Step 166")


def test_a_target_without_a_ring_still_shows_tree_and_pools(
    open_page: Open, stale_log: list[Fact]
) -> None:
    from msgspec.structs import replace

    started = replace(stale_log[0], ring_stride=None)  # type: ignore[type-var]
    log = [started, *(f for f in stale_log[1:] if type(f).__name__ not in ("Read", "Wrote"))]
    opened = open_page(log)
    assert "A[0:4]" in opened.text("#tree")
    assert opened.text("#detail") == "The target has no ring."


def test_every_occupancy_looks_different_from_its_neighbours(open_page: Open) -> None:
    """Eight requests in a row in one slot: two with one colour differ by a pattern."""
    log = log_of(busy(rounds=8), Policy())
    opened = open_page(log)
    looks = opened.page.eval_on_selector_all(
        "#grid td.written",
        "cells => cells.map(e => { const s = getComputedStyle(e);"
        " return s.backgroundColor + s.backgroundImage })",
    )
    assert len(set(looks)) >= 8
