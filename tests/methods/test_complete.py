"""What a method consists of is there, and what is missing is said in one list."""

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from flnl.config import compose
from flnl.config.folders import CONF
from tests.entries import METHODS as TESTS
from tests.entries import of_methods
from tests.golden.test_golden import SETTINGS, written
from tests.registry import REGISTRY

ROOT = Path(__file__).resolve().parents[2]
README = ROOT / "README.md"
PACKAGES = ROOT / "src" / "flnl" / "methods"
NAMES = sorted(path.stem for path in (CONF / "method").glob("*.yaml"))


def missing(method: str) -> list[str]:
    """What a method lacks, a line each: the file, and what it should have."""
    cfg = compose.load([f"method={method}"])
    classes = sorted(set(_classes(OmegaConf.to_container(cfg.method))))
    packages = sorted({name.split(".")[2] for name in classes if name.startswith("flnl.methods.")})
    row = re.search(rf"(?m)^\| \[`{method}`\]\((docs/methods/\w+\.md)\) \|", README.read_text())
    card = ROOT / (row[1] if row else f"docs/methods/{method}.md")
    return [
        *([] if row else [f"README.md: a row that links the card: python -m tests.new_method {method}"]),
        *_of_card(card, method, formulas=bool(packages)),
        *([] if any(f"method={method}" in e.overrides for e in REGISTRY) else [f"{_home(packages)}: an entry"]),
        *_lengths(method, cfg.method),
        *([] if "like" in cfg.method else _golden(method, packages)),
        *(line for package in packages for line in _of_package(package, classes)),
        *(line for file in _files(method, packages, card) for line in _unwritten(file)),
    ]


def _of_card(card: Path, method: str, *, formulas: bool) -> Iterator[str]:
    name, text = card.relative_to(ROOT), card.read_text() if card.exists() else ""
    if f"method={method}" not in text:
        yield f"{name}: a command with method={method}"
    if formulas and "```math\n" not in text:
        yield f"{name}: its formulas, in a block ```math"


def _golden(method: str, packages: list[str]) -> Iterator[str]:
    names = [name for name, words in SETTINGS.items() if f"method={method}" in words]
    if not names:
        yield f"{_home(packages)}: a golden trajectory"
    elif not written().keys() & {*names}:
        yield f"the trajectory itself: python -m tests.golden.test_golden {names[0]}"


def _lengths(method: str, node: Any) -> Iterator[str]:
    raw: Any = OmegaConf.to_container(node)
    default = _default(raw)
    for name, stage in raw["stages"].items():
        for length in ("rounds", "passes"):
            asked = re.fullmatch(r"\$\{protocol:(\w+)\}", str(stage.get(length) if stage else None))
            if asked and asked[1] not in default:
                yield f"conf/method/{method}.yaml: settings.default.{asked[1]}, the {length} of stage {name}"


def _default(method: dict[str, Any]) -> dict[str, Any]:
    row: dict[str, Any] = method.get("settings", {}).get("default", {})
    return row


def _of_package(package: str, classes: list[str]) -> Iterator[str]:
    home, known = TESTS / package, of_methods().get(package)
    if not (PACKAGES / package / "__init__.py").exists():
        yield f"src/flnl/methods/{package}/__init__.py: what the method does, in a line"
    if known is None or not (known.neutral or known.alive or known.switches):
        yield f"{_home([package])}: what is neutral, what is not, or its switches"
    text = "".join(file.read_text() for file in home.glob("test_*.py"))
    for name in classes:
        if name.startswith(f"flnl.methods.{package}.") and name.rpartition(".")[2] not in text:
            yield f"tests/methods/{package}/test_{package}.py: a numerical test of {name.rpartition('.')[2]}"


def _files(method: str, packages: list[str], card: Path) -> Iterator[Path]:
    """The files that a method and its parts are written in."""
    yield CONF / "method" / f"{method}.yaml"
    yield from [card] if card.exists() else []
    for package in packages:
        yield from (file for room in (PACKAGES, TESTS) for file in sorted((room / package).glob("*.py")))
        yield from (file for file in sorted((CONF / "method").glob("*/*.yaml")) if _names(file, package))


def _names(file: Path, package: str) -> bool:
    return f"flnl.methods.{package}." in file.read_text() or file.stem == package


def _unwritten(file: Path) -> Iterator[str]:
    """The lines of a skeleton that are not replaced yet."""
    for number, line in enumerate(file.read_text().splitlines(), start=1):
        if found := re.search(r"to be written: (.*)", line, re.IGNORECASE):
            yield f"{file.relative_to(ROOT)}:{number}: {found[1]}"


def _classes(node: Any) -> Iterator[str]:
    """The classes of a method's parts."""
    for key, value in node.items() if isinstance(node, dict) else ():
        if key == "_target_":
            yield value
        yield from _classes(value)


def _home(packages: list[str]) -> str:
    return f"tests/methods/{packages[0]}/entry.py" if packages else "tests/registry.py or tests/golden/test_golden.py"


@pytest.mark.parametrize("method", NAMES)
def test_a_method_is_complete(method: str) -> None:
    if lines := missing(method):
        pytest.fail("\n  ".join([f"{method}: {len(lines)} to be written", *lines]), pytrace=False)


def test_what_is_missing_is_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Of a method whose card, tests, settings and golden trajectory are gone."""
    here = sys.modules[__name__]
    monkeypatch.setattr(here, "README", tmp_path / "README.md")
    monkeypatch.setattr(here, "TESTS", tmp_path)
    monkeypatch.setattr(here, "REGISTRY", ())
    monkeypatch.setattr(here, "SETTINGS", {})
    monkeypatch.setattr(here, "of_methods", dict)
    monkeypatch.setattr(here, "_default", lambda method: {})
    (tmp_path / "README.md").write_text("| `t_revision` | without a link |\n")
    home = "tests/methods/loss_correction"
    assert missing("t_revision") == [
        "README.md: a row that links the card: python -m tests.new_method t_revision",
        f"{home}/entry.py: an entry",
        "conf/method/t_revision.yaml: settings.default.T_wu, the rounds of stage warmup",
        "conf/method/t_revision.yaml: settings.default.T_lc, the rounds of stage correct",
        "conf/method/t_revision.yaml: settings.default.T, the rounds of stage usual",
        f"{home}/entry.py: a golden trajectory",
        f"{home}/entry.py: what is neutral, what is not, or its switches",
        f"{home}/test_loss_correction.py: a numerical test of TransitionEstimate",
        f"{home}/test_loss_correction.py: a numerical test of LossCorrection",
        f"{home}/test_loss_correction.py: a numerical test of Revision",
    ]


def test_every_package_of_a_method_is_known_to_the_tests_and_no_other() -> None:
    assert {*of_methods()} == {folder.parent.name for folder in PACKAGES.glob("*/__init__.py")}
    for package, known in of_methods().items():
        for part in known.needed:
            assert (CONF / "method" / f"{part}.yaml").exists(), f"tests/methods/{package}/entry.py: needed: {part}"
