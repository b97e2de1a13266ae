"""Torch's watch for what makes the host wait for the device, as the tests here use it."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, Literal

HEARD = "called a synchronizing"
"""What torch says of each operation that waits."""


def watch(library: Any, mode: Literal["default", "warn", "error"]) -> None:
    """Set the mode. The first time in a process, torch warns that the watch itself is a prototype: nothing waited."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Synchronization debug mode is a prototype")
        library.set_sync_debug_mode(mode)


@contextmanager
def watching(library: Any, mode: Literal["warn", "error"]) -> Iterator[None]:
    """Watch what the block does; nothing afterwards, however it ends."""
    watch(library, mode)
    try:
        yield
    finally:
        watch(library, "default")


def waited(caught: Iterable[warnings.WarningMessage]) -> list[str]:
    """Those warnings that tell of a wait."""
    return [text for text in (str(one.message) for one in caught) if HEARD in text]
