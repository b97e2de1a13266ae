"""What the README shows is what there is."""

import re
from pathlib import Path

import pytest

from flnl import list as listing
from flnl.config import compose
from flnl.run.train import train
from tests.products.conftest import Commands
from tests.registry import TINY

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()


def test_the_table_of_methods_is_the_one_that_is_made() -> None:
    made = re.search(r"<!-- made by: flnl list (.*?) -->\n(.*?)\n<!-- end -->", README, re.DOTALL)
    assert made is not None
    flag, group = made.group(1).split()
    assert flag == "--markdown"
    assert made.group(2) == listing.markdown(group), f"put the output of flnl list {flag} {group} there"


def test_the_rendered_table_is_one_that_was_rendered() -> None:
    shown = re.search(r"<!-- from (.*?) -->\n(.*?)\n<!-- end -->", README, re.DOTALL)
    assert shown is not None
    assert f"\n\n{shown.group(2)}\n\n" in (ROOT / shown.group(1)).read_text()
    figures = re.findall(r"!\[.*?\]\((results/.*?)\)", README)
    assert figures
    assert all((ROOT / figure).is_file() for figure in figures)


def test_the_method_that_is_added_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its three files as they stand, the module under a name of its own."""
    section = README[README.index("## Adding a method") :]
    (module,) = re.findall(r"```python\n(.*?)```", section, re.DOTALL)
    part, method = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
    (tmp_path / "readme_gce.py").write_text(module)
    for name, text in (("method/local/gce", part), ("method/gce", method)):
        file = tmp_path / "conf" / f"{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text.replace("flnl.parts.losses.gce", "readme_gce"))
    monkeypatch.syspath_prepend(str(tmp_path))
    also = f"hydra.searchpath=[file://{tmp_path / 'conf'}]"
    words = [*TINY, "method=gce", "rounds=2", f"output={tmp_path / 'run'}", f"cache={tmp_path}"]
    outcome = train(compose.load([also, *words]), words)
    assert outcome.status == "finished"
    assert "gce(q=0.7)" in str(outcome.record["stages"])


def test_the_short_keys_of_a_method(said: Commands) -> None:
    assert said(listing, "method=fedprox").out.splitlines() == [
        "method.mu=0.01  method.local.fedprox.mu",
        "method.prox=squared_half  method.local.fedprox.form",
    ]
    lines = said(listing, "method=fedcorr_released").out.splitlines()
    assert "method.prox=norm  method.stages.preprocess.local.adaptive_proximal.form" in lines
    assert "method.mixup_stages=[1, 2, 3]  method.batch.stages" in lines
    assert "has no short keys" in said(listing, "method=fedavg").out
    for words, why in ((["method=fedprx"], "did you mean fedprox?"), (["method=fedavg", "noise"], "give it alone")):
        refused = said(listing, *words)
        assert (refused.code, refused.err.count("\n")) == (2, 1)
        assert why in refused.err


def test_the_options_of_a_group_and_no_other(said: Commands) -> None:
    lines = said(listing, "--markdown", "method/batch").out.splitlines()
    assert lines[:2] == ["| `method/batch` | what |", "|---|---|"]
    assert [line.split("`")[1] for line in lines[2:]] == [
        "co_divide",
        "mixup",
        "plain",
        "reliable_samples",
        "reselection",
    ]
    assert said(listing, "--markdown", "bach").code == 2
