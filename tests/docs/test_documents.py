"""The documents: formulas that the site can show, and its pages in a browser, where ``make docs`` has built them."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SITE = ROOT / "docs" / "_build"
CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
CARDS = sorted((ROOT / "docs" / "methods").glob("*.md"))
FEW = ("README", "docs/audit", "docs/comparison", "docs/methods/rofl", "docs/faq", "results/small/README")
"""Pages with wide tables, code and formulas."""


@pytest.mark.parametrize("card", CARDS, ids=lambda card: card.stem)
def test_formulas_of_cards_are_formulas(card: Path) -> None:
    latex = pytest.importorskip("docutils.utils.math.latex2mathml", reason="needs the extra docs")
    text = card.read_text()
    for formula in re.findall(r"```math\n(.*?)\n```", text, re.DOTALL):
        assert "<math" in latex.tex2mathml(formula, as_block=True)
    verbatim = re.findall(r"(?m)^(?: {4}(?!flnl|make|python).*\n)+", re.sub(r"(?s)```.*?```", "", text))
    assert not [lines for lines in verbatim if re.search(r"[←∝∈‖⟨√]|Σ_", lines)]


@pytest.fixture(scope="module")
def page() -> Iterator[Any]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="needs playwright")
    if CHROMIUM is None or not (SITE / "README.html").exists():
        pytest.skip("needs Chromium, and the site that make docs builds")
    with sync_api.sync_playwright() as library:
        browser = library.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--allow-file-access-from-files"]
        )
        yield browser.new_page()
        browser.close()


@pytest.mark.parametrize("width", [1400, 420])
@pytest.mark.parametrize("which", [FEW, pytest.param((), marks=pytest.mark.slow, id="all")])
def test_no_page_is_wider_than_its_window(which: tuple[str, ...], width: int, page: Any) -> None:
    page.set_viewport_size({"width": width, "height": 900})
    pages = [SITE / f"{name}.html" for name in which] or [p for p in SITE.rglob("*.html") if "_modules" not in p.parts]
    for file in pages:
        page.goto(file.as_uri(), wait_until="domcontentloaded")
        sizes = page.evaluate("[document.documentElement.scrollWidth, document.documentElement.clientWidth]")
        assert sizes[0] <= sizes[1], os.path.relpath(file, SITE)


@pytest.mark.parametrize(
    ("words", "first"),
    [
        ("own data", "own_data"),
        ("local data", "own_data"),
        ("significance", "comparing"),
        ("seeds", "comparing"),
        ("latex", "comparing"),
        ("noise rate", "noise"),
        ("resume", "sweeps"),
        ("slurm", "sweeps"),
        ("order of clients", "faq"),
        ("stateful clients", "faq"),
    ],
)
def test_search_finds_the_page_about_it_first(words: str, first: str, page: Any) -> None:
    page.goto(f"{(SITE / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    page.wait_for_selector("#search-results ul.search > li > a")
    page.wait_for_function("!document.querySelector('#search-results h2')?.textContent.includes('Searching')")
    found = page.get_attribute("#search-results ul.search > li > a", "href")
    assert found.split("?")[0].split("#")[0] == f"docs/{first}.html"
