"""Folders of tests whose names are short: a unix socket's path has about a hundred bytes."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="s", ignore_cleanup_errors=True) as folder:
        yield Path(folder).resolve()
