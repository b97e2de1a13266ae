"""The page in a browser, where there is one: playwright, and Chromium on the path. Opened from disk."""

import csv
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from flnl.audit.page.writing import write_page
from flnl.console.terminal import visible
from flnl.data.images import TensorImages
from tests.audit.pages import audit
from tests.audit.test_page import HOSTILE, data_set

sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

Open = Callable[..., Any]
PATIENCE = 30.0


def until(page: Any, expression: str) -> None:
    """Wait for an expression to hold. Playwright's own waiting evaluates text in the page, which its policy forbids."""
    end = time.monotonic() + PATIENCE
    while not page.evaluate(f"Boolean({expression})"):
        assert time.monotonic() < end, expression
        page.wait_for_timeout(20)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with sync_api.sync_playwright() as library:
        found = library.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield found
        found.close()


@pytest.fixture
def shown(browser: Any, tmp_path: Path) -> Iterator[Open]:
    """Opens a page; at the end, nothing may have been reported on its console, and nothing outside it asked for."""
    context = browser.new_context(viewport={"width": 1400, "height": 900})
    faults: list[str] = []
    asked: list[str] = []

    def refuse(dialog: Any) -> None:
        faults.append(dialog.message)
        dialog.dismiss()

    def opened(folder: Path) -> Any:
        page = context.new_page()
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("dialog", refuse)
        page.on("request", lambda request: asked.append(request.url))
        page.goto((folder / "index.html").as_uri())
        until(page, "document.querySelector('.card') || document.querySelector('#end').textContent.length > 1")
        return page

    yield opened
    context.close()
    assert faults == []
    assert [url for url in asked if not url.startswith(("file:", "data:image/", "blob:"))] == []


@pytest.fixture
def page(shown: Open, tmp_path: Path) -> Any:
    """250 samples of 3 clients and 3 classes, of which 120 are issues, with pictures."""
    (tmp_path / "page").mkdir()
    images = TensorImages(torch.randint(0, 255, (250, 3, 8, 8), dtype=torch.uint8))
    given = audit(250, clients=3, issues=120, per_page=20, to_review=range(130, 180))
    write_page(tmp_path / "page", given, data_set(images))
    return shown(tmp_path / "page")


def count(page: Any) -> int:
    return int(page.inner_text("#count").split()[0].replace(",", ""))


def move(page: Any, cut: int) -> None:
    page.locator("#cut").fill(str(cut))
    until(page, f"document.querySelector('#cut-at').textContent === '{cut / 100:.2f}'")
    page.wait_for_timeout(200)


def test_the_slider_moves_the_cut(page: Any) -> None:
    """Below 0.2 there are 50 of 250 samples, with scores of 1/251 to 50/251."""
    move(page, 20)
    assert count(page) == 50
    assert page.inner_text("#cut-count") == "50"
    assert page.inner_text("#cut-precision") == "90\u202f%"
    assert page.inner_text("td[data-below='0']") == "17 (20\u202f%)"
    move(page, 0)
    assert count(page) == 0
    assert "nothing stands out" in page.inner_text("#end")
    move(page, 100)
    assert count(page) == 250


def test_tables_filter_the_list_and_can_be_sorted(page: Any) -> None:
    move(page, 100)
    page.click("#clients button[data-client='1']")
    assert count(page) == 83
    page.click("#pairs button[data-given='0'][data-predicted='1']")
    assert count(page) == 0  # in this audit, each client has one class
    page.click(".filter >> nth=0")
    assert count(page) == 84
    assert {page.inner_text(f".card >> nth={i} >> dd >> nth=0") for i in range(5)} == {"a"}
    page.click(".filter")
    assert count(page) == 250
    first = "#clients tbody tr >> nth=0 >> th"
    page.click("#clients thead button >> nth=0")
    assert page.inner_text(first) == "2"
    page.click("#clients thead button >> nth=0")
    assert page.inner_text(first) == "0"


def test_shards_are_loaded_when_they_are_scrolled_to(page: Any) -> None:
    move(page, 100)
    loaded = page.locator(".card").count()
    assert 0 < loaded < 250
    for _ in range(20):
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_timeout(60)
    assert page.locator(".card").count() == 250
    assert page.inner_text("#end") == "That is all."
    names = page.eval_on_selector_all(".card .about b", "all => all.map(one => one.textContent)")
    assert names == [str(i) for i in reversed(range(250))]
    assert page.eval_on_selector_all(".card img", "all => all.every(one => one.complete)")


def saved(page: Any) -> list[list[str]]:
    with page.expect_download() as download:
        page.click("#save")
    assert download.value.suggested_filename == "verdicts.csv"
    with Path(download.value.path()).open(newline="", encoding="utf-8", errors="surrogateescape") as file:
        return list(csv.reader(file))


def test_verdicts_are_given_by_keys_kept_and_saved(page: Any, shown: Open, tmp_path: Path) -> None:
    page.keyboard.press("j")
    for key in "rwux":
        page.keyboard.press(key)
    page.keyboard.press("W")
    page.select_option(".card:nth-child(4) select", label="c")
    page.click(".card:nth-child(6) button.right")
    page.click(".card:nth-child(6) button.right")  # a second time takes it back
    rows = [
        ["client", "sample", "verdict", "label"],
        ["0", "246", "wrong", "c"],
        ["0", "249", "right", "a"],
        ["1", "247", "unsure", ""],
        ["2", "248", "wrong", "a"],
    ]
    assert saved(page) == rows
    again = shown(tmp_path / "page")
    assert "1 right, 2 wrong, 1 unsure" in again.inner_text("#progress")
    assert again.eval_on_selector_all(".card", "all => all.slice(0, 5).map(one => one.dataset.verdict || '')") == [
        *("right", "wrong", "unsure", "wrong", "")
    ]
    assert saved(again) == rows
    again.select_option("#which", "open")
    until(again, "document.querySelector('.card .about b').textContent === '245'")


def judged(page: Any) -> list[str]:
    return list(page.eval_on_selector_all(".card", "all => all.map(one => one.dataset.verdict || '')"))


def test_verdicts_filter_also_cards_that_are_not_loaded(page: Any, shown: Open, tmp_path: Path) -> None:
    """After a reload, verdicts far down the list are found, and what has one is not open."""
    move(page, 100)
    for _ in range(20):
        page.evaluate("scrollTo(0, document.documentElement.scrollHeight)")
        page.wait_for_timeout(40)
    for place in (1, 200, 240):
        page.click(f".card:nth-child({place}) button.wrong")
    again = shown(tmp_path / "page")
    move(again, 100)
    again.select_option("#which", "wrong")
    until(again, "document.querySelectorAll('.card').length === 3")
    assert again.eval_on_selector_all(".card .about b", "all => all.map(one => one.textContent)") == ["249", "50", "10"]
    assert judged(again) == ["wrong"] * 3
    again.select_option("#which", "open")
    assert count(again) == 247


def test_a_wrong_label_is_never_the_right_one(shown: Open, tmp_path: Path) -> None:
    """Where the label is no issue, the likeliest class is the given one, and the next one takes its place."""
    given = audit(30, classes="abc", issues=5)
    samples = replace(
        given.samples, predicted=np.where(given.samples.is_issue, given.samples.predicted, np.arange(30) % 3)
    )
    likeliest = given.likeliest.copy()
    likeliest[5:] = likeliest[5:, ::-1]
    (tmp_path / "page").mkdir()
    write_page(tmp_path / "page", replace(given, samples=samples, likeliest=likeliest), None)
    page = shown(tmp_path / "page")
    move(page, 100)
    for place in (1, 11):
        page.click(f".card:nth-child({place}) button.wrong")
        offered = page.eval_on_selector_all(
            f".card:nth-child({place}) option", "all => all.map(one => one.textContent)"
        )
        assert len(offered) == 2
    assert saved(page)[1:] == [["1", "19", "wrong", "c"], ["1", "29", "wrong", "a"]]


def test_open_pages_of_a_run_keep_each_others_verdicts(page: Any, shown: Open, tmp_path: Path) -> None:
    """As with a page of all clients beside one of a single client, or two tabs."""
    other = shown(tmp_path / "page")
    page.click(".card:nth-child(1) button.wrong")
    other.click(".card:nth-child(2) button.right")
    page.click(".card:nth-child(3) button.unsure")
    other.click(".card:nth-child(2) button.right")  # takes it back
    other.click(".card:nth-child(4) button.right")
    kept = [["0", "246", "right"], ["1", "247", "unsure"], ["0", "249", "wrong"]]
    for one in (page, other, shown(tmp_path / "page")):
        assert sorted(row[:3] for row in saved(one)[1:]) == sorted(kept)
    until(page, "document.querySelector('.card:nth-child(4)').dataset.verdict === 'right'")
    assert judged(page)[:4] == judged(other)[:4] == ["wrong", "", "unsure", "right"]


def test_arrows_move_between_cards(page: Any) -> None:
    page.keyboard.press("j")
    columns = page.evaluate("getComputedStyle(document.querySelector('#grid')).gridTemplateColumns.split(' ').length")
    for keys, place in ((["ArrowRight"], 1), (["ArrowDown"], 1 + columns), (["ArrowLeft", "ArrowUp"], 0)):
        for key in keys:
            page.keyboard.press(key)
        assert page.evaluate("[...document.querySelector('#grid').children].indexOf(document.activeElement)") == place


def test_a_random_sample_is_reviewed(page: Any) -> None:
    page.click("#review")
    until(page, "document.querySelector('#count').textContent === '50 to review'")
    assert page.inner_text(".card >> nth=0 >> .about b") == "130"
    page.focus(".card")
    for key in "wwwwr":
        page.keyboard.press(key)
    said = page.inner_text("#progress")
    assert "4 wrong, 1 right, 0 unsure. The precision is told once all are judged; 45 are not." in said
    for _ in range(45):
        page.keyboard.press("w")
    said = page.inner_text("#progress")
    assert "49 wrong, 1 right, 0 unsure. Precision 98\u202f% (95 % interval: 90\u202f% to 100\u202f%)" in said


def test_hostile_names_do_nothing_and_come_back(shown: Open, tmp_path: Path) -> None:
    (tmp_path / "hostile").mkdir()
    many = len(HOSTILE)
    write_page(
        tmp_path / "hostile",
        audit(many, classes=HOSTILE, names=HOSTILE, clients=many, client_names=HOSTILE, notes=HOSTILE, issues=many),
        None,
    )
    page = shown(tmp_path / "hostile")
    move(page, 100)
    assert count(page) == many
    shown_names = page.eval_on_selector_all(".card .about b", "all => all.map(one => one.textContent)")
    assert shown_names == [visible(name) for name in reversed(HOSTILE)]
    page.keyboard.press("j")
    for _ in HOSTILE:
        page.keyboard.press("w")
    rows = saved(page)[1:]
    assert {row[1]: row[3] for row in rows} == dict(zip(HOSTILE, [*HOSTILE[1:], HOSTILE[0]], strict=True))
    assert len(rows) == many
    assert page.locator("#grid script, #grid img, #grid b b").count() == 0


def test_a_missing_shard_is_told(browser: Any, tmp_path: Path) -> None:
    write_page(tmp_path, audit(12), None)
    (tmp_path / "pages" / "0000.js").unlink()
    page = browser.new_page()
    page.goto((tmp_path / "index.html").as_uri())
    until(page, "document.querySelector('#end').textContent.includes('cannot be read (no. 0)')")
    page.close()


@pytest.mark.parametrize("width", [1400, 420])
def test_nothing_is_wider_than_the_window(width: int, page: Any) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    assert page.evaluate("document.documentElement.scrollWidth") == width
