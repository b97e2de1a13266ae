"""What a message says of a package that is not installed."""

import json
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest
from hydra.errors import MissingConfigException

from flnl.config.explain import explain
from flnl.console import extras


class Installed:
    def __init__(self, text: str | None) -> None:
        self.text = text

    def read_text(self, name: str) -> str | None:
        return self.text if name == "direct_url.json" else None


@pytest.mark.parametrize(
    ("origin", "words"),
    [
        (
            json.dumps({"url": "file:///home/me/my%20flnl", "dir_info": {"editable": True}}),
            "-e '/home/me/my flnl[ray]'",
        ),
        (json.dumps({"url": "file:///home/me/flnl.whl", "archive_info": {}}), "'flnl[ray]'"),
        (json.dumps({"url": "file:///home/me/flnl", "dir_info": {}}), "'flnl[ray]'"),
        (None, "'flnl[ray]'"),
        ("not json", "'flnl[ray]'"),
    ],
)
def test_an_extra_is_installed_as_the_package_was(
    monkeypatch: pytest.MonkeyPatch, origin: str | None, words: str
) -> None:
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(origin))
    assert extras.install("ray") == f"install the extra ray, as in pip install {words}"


def test_in_the_checkout_itself_and_without_an_installation(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    origin = json.dumps({"url": tmp_path.as_uri(), "dir_info": {"editable": True}})
    monkeypatch.setattr(extras, "distribution", lambda name: Installed(origin))
    monkeypatch.chdir(tmp_path)
    assert extras.install("hpo").endswith("pip install -e '.[hpo]'")

    def missing(name: str) -> Installed:
        raise PackageNotFoundError(name)

    monkeypatch.setattr(extras, "distribution", missing)
    assert extras.install("hpo").endswith("pip install 'flnl[hpo]'")


def test_a_launcher_of_an_extra_that_is_not_there() -> None:
    error = MissingConfigException("Could not find 'hydra/launcher/submitit_slurm'", "hydra/launcher/submitit_slurm")
    said = explain(error, ["-m", "hydra/launcher=submitit_slurm"])
    assert said.startswith("hydra/launcher=submitit_slurm is of a package that is not here: install the extra cluster")
