"""The documents: formulas that the site can show, and its pages in a browser, where ``make docs`` has built them."""

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

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
        ("order of clients", "faq"),
        ("stateful clients", "faq"),
        ("mislabelled samples", "audit"),
        ("photos from several hospitals", "hospitals"),
        ("labels in a csv file", "own_data#your-own-images"),
        ("how far to trust the audit", "faq#how-far-can-i-trust-the-list-of-wrong-labels"),
        ("false positives of the audit", "audit#what-to-expect"),
        ("which methods need clean data", "faq#which-methods-need-clean-data-or-a-known-noise-rate"),
        ("continue killed sweep", "faq#can-i-resume-a-sweep-that-was-killed"),
        ("restart after crash", "faq#can-i-resume-a-sweep-that-was-killed"),
        ("several seeds p-value latex table", "comparing#a-paper-s-table-with-tests"),
        ("add my own method", "faq#how-do-i-add-a-method-of-my-own-and-compare-it-with-the-papers"),
        ("gpu out of memory", "executors#a-gpu"),
        ("communication cost", "running#what-a-run-costs"),
        ("noise of human annotators", "noise#noise"),
        ("class imbalance", "noise#partitions"),
        ("how were hyperparameters chosen", "comparison#the-choice-of-learning-rates"),
        ("is my data uploaded", "faq#does-it-send-my-data-anywhere"),
        ("wandb offline", "faq#does-it-send-my-data-anywhere"),
        ("same numbers on another computer", "faq#will-i-get-the-same-numbers-on-another-computer"),
        ("differences between papers settings", "faq#how-do-the-settings-of-two-papers-differ"),
        ("slurm cluster", "sweeps#slurm"),
        ("hyperparameter search", "comparing#choosing-hyperparameters"),
        ("how to cite", "faq#how-do-i-cite-it-and-under-which-licence-is-it"),
        ("differential privacy epsilon", "faq#is-there-differential-privacy"),
        ("own dataset clients already split", "faq#how-do-i-say-which-client-holds-which-sample"),
        ("different noise rate per client", "faq#can-each-client-have-a-noise-rate-of-its-own"),
        ("significance test seeds", "comparing"),
        ("cost of each method", "faq#how-much-does-each-method-communicate-and-compute"),
        ("trust wrong labels list", "faq#how-far-can-i-trust-the-list-of-wrong-labels"),
        ("does my data leave", "faq#does-it-send-my-data-anywhere"),
        ("extend with new algorithm", "extending"),  # of which no page has all words
        ("fedprox", "methods/fedavg"),
    ],
)
def test_search_finds_the_section_about_it_first(words: str, first: str, page: Any) -> None:
    page.goto(f"{(SITE / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    page.wait_for_selector("#search-results ul.search > li > a")
    page.wait_for_function("!document.querySelector('#search-results h2')?.textContent.includes('Searching')")
    found = page.get_attribute("#search-results ul.search > li > a", "href")
    where, anchor = urlsplit(found), first.partition("#")[2]
    assert where.path == f"docs/{first.partition('#')[0]}.html"
    assert where.fragment == anchor or not anchor
