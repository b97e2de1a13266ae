"""What pages name is there: sections that links lead to, files, options of groups, keys."""

import re
from collections.abc import Iterator
from functools import cache
from itertools import chain
from pathlib import Path

import pytest

from flnl.config.folders import CONF
from flnl.core import parts

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
ELSEWHERE = {"extending.md", "tables.md"}
"""Pages with examples of a package of its own, whose options are not in ``conf``."""
ABSENT = {("method", "fedned"), ("partition", "gpu")}
"""A method that is not here, by its page, and what Slurm calls a partition."""

each_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


def code(page: Path) -> str:
    """What a page has between backticks, and in its blocks, a line each."""
    text = page.read_text()
    blocks = re.findall(r"(?ms)^```(?!math|python)[^\n]*\n(.*?)^```", text)
    return "\n".join(chain(blocks, re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)))


@cache
def sections(page: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub and the site have them."""
    headings = re.findall(r"(?m)^#+ (.*)$", re.sub(r"(?s)```.*?```", "", page.read_text()))
    plain = (re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading).strip().lower() for heading in headings)
    return frozenset(re.sub(r"[^\w\- ]", "", heading).replace(" ", "-") for heading in plain)


@each_page
def test_links_lead_to_sections_that_are_there(page: Path) -> None:
    links = re.findall(r"\]\(([^)#:\s]*)#([^)\s]+)\)", page.read_text())
    targets = [((page.parent / file).resolve() if file else page, anchor) for file, anchor in links]
    assert [one for one in targets if one[0].suffix == ".md" and one[1] not in sections(one[0])] == []


@each_page
def test_files_that_a_page_names_are_there(page: Path) -> None:
    named = re.findall(r"`((?:src|tests|conf|bench|docs|results|examples)/[\w./-]+\.\w+)`", page.read_text())
    kept = [name for name in named if not re.search(r"\b[A-Z_]+\b|_build/", name)]
    assert page.name in ELSEWHERE or [name for name in kept if not (ROOT / name).exists()] == []


def choices(text: str) -> Iterator[tuple[str, str]]:
    """The groups that overrides choose from, each with an option; capitals stand for any."""
    groups = "|".join(sorted((path.name for path in CONF.iterdir() if path.is_dir()), key=len, reverse=True))
    for group, chosen in re.findall(rf"(?<![\w./-])((?:{groups})(?:/\w+)*)(?:@[\w.]+)?=([\w,/\[\]]+)(?![\w./])", text):
        for option in re.split(r"[,\[\]]+", chosen):
            if option and not re.fullmatch(r"[A-Z_]+|mine\w*|\w+/", option):
                yield group, option


@each_page
def test_options_that_a_page_chooses_are_there(page: Path) -> None:
    missing = {one for one in choices(code(page)) if not (CONF / one[0] / f"{one[1]}.yaml").exists()}
    assert page.name in ELSEWHERE or missing - ABSENT == set()


@cache
def words() -> frozenset[str]:
    """All names in configuration files and the package."""
    files = chain(CONF.rglob("*.yaml"), (ROOT / "src").rglob("*.py"))
    return frozenset(chain.from_iterable(re.findall(r"[A-Za-z_]\w*", file.read_text()) for file in files))


@each_page
def test_keys_that_a_page_names_are_there(page: Path) -> None:
    roots = "method|dataset|partition|noise|model|executor|train|eval|audit|wandb|checkpoint|fault|shift"
    keys = re.findall(rf"(?<![\w/.-])(?:{roots})((?:\.[A-Za-z_]\w*)+)", code(page))
    named = {word for key in keys for word in key.split(".") if word and not word.isupper()}
    assert page.name in ELSEWHERE or named <= words(), named - words()


def test_design_lists_every_name_that_the_engine_knows_of_a_part() -> None:
    """A name more is a decision, which the page gives the reason for."""
    page = (ROOT / "docs" / "design.md").read_text()
    known = [one for one in vars(parts).values() if isinstance(one, type) and one.__module__ == parts.__name__]
    for one in (one for one in known if issubclass(one, parts.Part)):
        listed = re.findall(rf"(?m)^\| `{one.__name__}` \| (.*) \|$", page)
        names = {name for name in vars(one) if name == "__call__" or not name.startswith("_")}
        assert {f"`{name}`" for name in names} == {*", ".join(listed).split(", ")}, one.__name__
