"""Fixtures of the instruments' tests."""

import pytest
from hydra.core.plugins import Plugins


@pytest.fixture
def breaking_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hydra's basic launcher runs the first job, and ends as if the system had killed a worker."""
    Plugins.instance()  # the first time its classes are made anew
    from hydra._internal.core_plugins.basic_launcher import BasicLauncher

    launch = BasicLauncher.launch

    def half(self: BasicLauncher, jobs: list[list[str]], first: int) -> None:
        launch(self, jobs[:1], first)
        raise MemoryError("a worker was killed")

    monkeypatch.setattr(BasicLauncher, "launch", half)
