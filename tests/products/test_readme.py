"""What the README and the documents show is what there is."""

import re
from pathlib import Path

import pytest

from flnl.commands import list as listing
from flnl.config import compose
from tests import new_method
from tests.products.conftest import Commands

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
PAGES = (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md")))
FOLDERS = ("methods", "adr")
"""Folders of which the site lists every page."""
LINK = re.compile(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)")


def test_the_table_of_methods_is_the_one_that_is_made_with_a_card_for_each() -> None:
    made = new_method.ROWS.search(README)
    assert made is not None
    linked = re.compile(r"\[(`\w+`)\]\((docs/methods/\w+\.md)\)")
    assert linked.sub(r"\1", made[2]) == listing.markdown("method"), "update it: python -m tests.new_method NAME"
    cards = dict(linked.findall(made[2]))
    assert set(cards) == {f"`{name}`" for name in compose.options("method")}
    for name, card in cards.items():
        assert f"method={name[1:-1]}" in (ROOT / card).read_text(), card


def test_the_readme_is_short() -> None:
    """But for its table of methods."""
    assert len(new_method.ROWS.sub("", README).splitlines()) <= 100


def test_a_row_of_the_table_has_its_link() -> None:
    """New rows that of the card of their name; the others keep theirs."""
    made = listing.markdown("method")
    assert new_method.update_table(README, made) == README
    assert new_method.update_table(README, f"{made}\n| `zeta` | Zeta. |") == README.replace(
        "\n<!-- end -->", "\n| [`zeta`](docs/methods/zeta.md) | Zeta. |\n<!-- end -->", 1
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_between_pages_lead_somewhere(page: Path) -> None:
    dead = [link for link in LINK.findall(page.read_text()) if not (page.parent / link).exists()]
    assert not dead


def test_the_site_has_every_page() -> None:
    listed = (ROOT / "docs" / "conf.py").read_text()
    pages = [page.relative_to(ROOT).with_suffix("").as_posix() for page in PAGES if page.parent.name not in FOLDERS]
    assert not [page for page in pages if page != "README" and f"{page}\n" not in listed]


def test_the_rendered_table_is_one_that_was_rendered() -> None:
    page = (ROOT / "docs" / "tables.md").read_text()
    shown = re.search(r"<!-- from (.*?) -->\n(.*?)\n<!-- end -->", page, re.DOTALL)
    assert shown is not None
    assert f"\n\n{shown.group(2)}\n\n" in (ROOT / shown.group(1)).read_text()


def test_the_short_keys_of_a_method(said: Commands) -> None:
    fedprox = said(listing, "method=fedprox").out.splitlines()
    assert fedprox[0] == "method.mu=0.01  method.local.fedprox.mu  FedCorr, App. B; FLR, App. E.5; 0 is FedAvg"
    assert fedprox[1].startswith("method.prox=squared_half  method.local.fedprox.form  norm: mu ||w - w_t||")
    lines = said(listing, "method=fedcorr_released").out.splitlines()
    starts = [line.rpartition("  ")[0] for line in lines]
    assert "method.prox=norm  method.stages.preprocess.local.adaptive_proximal.form" in starts
    assert "method.mixup_stages=[1, 2, 3]  method.batch.stages" in starts
    assert "has no short keys" in said(listing, "method=fedavg").out
    several = said(listing, "method=fedprox", "method=fedcorr_released").out.splitlines()
    assert several == [
        "method=fedprox",
        *fedprox,
        "method=fedcorr_released",
        *lines,
    ]
    for words, why in ((["method=fedprx"], "did you mean fedprox?"), (["method=fedavg", "noise"], "give it alone")):
        refused = said(listing, *words)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert why in refused.err


def test_the_options_of_a_group_and_no_other(said: Commands) -> None:
    lines = said(listing, "--markdown", "method/batch").out.splitlines()
    assert lines[:2] == ["| `method/batch` | what |", "|---|---|"]
    assert [line.split("`")[1] for line in lines[2:]] == sorted(
        path.stem for path in (ROOT / "conf" / "method" / "batch").glob("*.yaml")
    )
    assert said(listing, "--markdown", "bach").code == 2
