"""Runs that many tests compare with, each made once a session by the first test that asks, in whichever process."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock

from flnl.config import compose
from flnl.core.state import FederatedState, RoundResult, Spilled
from flnl.run.session import Session
from flnl.run.train import train
from tests.properties.runs import Ran, copied, difference, rounds


@dataclass(frozen=True)
class Reference(Ran):
    """A finished run; its folder is shared, so tests only read it."""

    rounds: tuple[RoundResult, ...]


class References:
    """Runs by their overrides.

    Args:
        folder: where they are kept, the same for all processes of a test session. Each test gets its own copy of the
            results.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def run(self, words: Sequence[str]) -> Reference:
        """The run that ``train`` makes of these overrides, products included, and the result of every round."""
        place, made = self._once("run", words)
        return Reference(place / "run", made["record"], tuple(made["rounds"]))

    def rounds(self, words: Sequence[str]) -> list[RoundResult]:
        """As ``tests.properties.runs.rounds``: the results of a run that writes nothing down."""
        found: list[RoundResult] = self._once("rounds", words)[1]["rounds"]
        return found

    def _once(self, kind: str, words: Sequence[str]) -> tuple[Path, dict[str, Any]]:
        place = self._folder / hashlib.sha256("\n".join([kind, *words]).encode()).hexdigest()[:16]
        place.mkdir(parents=True, exist_ok=True)
        file, part = place / "results.pt", place / "results.part"
        with FileLock(place / "lock"):
            if not file.exists():
                torch.save(_trained(words, place) if kind == "run" else _rounds(words, place), part)
                part.replace(file)
        made: dict[str, Any] = torch.load(file, weights_only=False)  # written by this session
        return place, made


def _trained(words: Sequence[str], place: Path) -> dict[str, Any]:
    results: list[RoundResult] = []
    copies: list[FederatedState] = []

    def watch(session: Session) -> None:
        log = session.log

        def noted(result: RoundResult) -> None:
            results.append(_alone(result))
            copies.append(copied(result.state))
            log(result)

        session.log = noted  # type: ignore[method-assign]

    overrides = [*words, f"output={place / 'run'}", f"cache={place / 'cache'}"]
    record = train(compose.load(overrides), overrides, opened=watch).record.raw
    for result, copy in zip(results, copies, strict=True):
        assert difference(result.state, copy) is None, "a later round wrote into an earlier state"
    return {"record": dict(record), "rounds": results}


def _rounds(words: Sequence[str], place: Path) -> dict[str, Any]:
    return {"rounds": [_alone(result) for result in rounds(words, place / "run")]}


def _alone(result: RoundResult) -> RoundResult:
    """The result without the store that its run keeps clients' states on."""
    clients = Spilled(dict(result.state.clients.items()))
    return replace(result, state=replace(result.state, clients=clients))
