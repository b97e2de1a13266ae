"""What all tests share: tiny settings, and an environment without accounts, caches and tracebacks."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from threadpoolctl import threadpool_limits

from flnl.config import compose
from tests.composing import compose_in_parts, remember
from tests.properties.reference import References
from tests.registry import TINY

SOURCE = Path(__file__).resolve().parents[1] / "src"


@pytest.fixture(autouse=True)
def _no_traces_of_the_user(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Nobody's keys, data folders, federations or secrets take part."""
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_CACHE_DIR", "WANDB_DATA_DIR", "HYDRA_FULL_ERROR", "FLNL_DATA"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PYTHONPATH", str(SOURCE))  # other processes run this checkout, too
    monkeypatch.setenv("FLNL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path_factory.getbasetemp() / "state"))


@pytest.fixture(autouse=True, scope="session")
def _interruptible() -> None:
    """Processes that tests start can be interrupted, also where a shell has started the tests in its background."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(autouse=True, scope="session")
def _one_thread() -> Iterator[None]:
    """Sums have one order, and small matrices are not fought over."""
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield


@pytest.fixture(autouse=True, scope="session")
def _composed_in_parts() -> Iterator[None]:
    """Files of the configuration are read and merged once, not by every test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compose, "compose", compose_in_parts)
        remember(patch)
        yield


@pytest.fixture(scope="session")
def references(tmp_path_factory: pytest.TempPathFactory) -> References:
    """Runs that many tests compare with, shared by all workers of the session."""
    folder = tmp_path_factory.getbasetemp()
    return References((folder.parent if "PYTEST_XDIST_WORKER" in os.environ else folder) / "references")


@pytest.fixture
def tiny(tmp_path: Path) -> list[str]:
    """Overrides of a run that takes a second."""
    return [*TINY, f"output_root={tmp_path / 'outputs'}", f"cache={tmp_path / 'cache'}"]
