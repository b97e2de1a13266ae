"""The entry point: compose, assemble, run the loop, write down what came of it.

    python -m src.main method=fedcorr noise.rho=0.6

``train`` is an ordinary function of a composed configuration, so that tests and notebooks can call it.
"""

from __future__ import annotations

import logging
import os
import shlex
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from src import cli, config

if TYPE_CHECKING:
    from src.session import Session


def train(cfg: DictConfig, words: Sequence[str] = (), job: Path | None = None) -> Mapping[str, Any]:
    """Run what ``cfg`` says, or go on with it, and give its result.

    Args:
        cfg: a composed configuration, ``conf/config.yaml`` with overrides.
        words: the overrides as typed, to print the command that goes on with the run.
        job: the folder that a sweep gives to this job.

    Raises:
        UserError: for what the user can mend.
        Interrupted: after a signal, once the state is saved.
    """
    config.check(cfg)
    os.environ.setdefault("OMP_NUM_THREADS", str(cfg.threads))  # before torch is first imported
    from src import loop, progress
    from src.interrupt import Interrupted, Interruption
    from src.session import open_session

    session = open_session(cfg, words, job)
    if session.folder.finished:
        progress.closing(f"finished earlier: {session.folder.path}", session.numbers())
        return session.folder.earlier or {}
    status = "finished"
    try:
        with session, Interruption() as stop, progress.Bar(session.rounds, session.state.round) as bar:
            if session.stopped_at(session.state.round):
                status = "stopped"
            for result in () if status == "stopped" else loop.run(*session.federated()):
                session.log(result)
                bar.round(result)
                over = result.state.round == session.rounds
                status = "finished" if over else "interrupted" if stop.number else "stopped"
                leave = over or stop.number is not None or session.stopped_at(result.state.round)
                session.keep(result.state, now=leave)
                if leave:
                    break
            record = session.close(status)
    except Exception as error:
        session.fail(error, traceback.format_exc())
        raise
    progress.closing(f"{status}: {session.folder.path}", session.numbers())
    if status != "finished":
        print(f"to go on: {_command(words, session)}", file=sys.stderr)
    if status == "interrupted":
        assert stop.number is not None
        raise Interrupted(stop.number)
    return record


def _command(words: Sequence[str], session: Session) -> str:
    """The command that resumes: the same overrides, without what was only said of this start."""
    kept = [w for w in words if w.split("=")[0].lstrip("+") not in ("resume", "output", "max_rounds")]
    return shlex.join(["python", "-m", "src.main", *kept, f"resume={session.folder.path}"])


@hydra.main(config_path=str(config.CONF), config_name="config", version_base="1.3")
def _main(cfg: DictConfig) -> float | None:
    logging.basicConfig(level=logging.WARNING, format="%(levelname)s: %(message)s", stream=sys.stderr)
    chosen = HydraConfig.get()
    typed: Any = chosen.overrides.task
    words = [str(typed._get_node(i)) for i in range(len(typed))]  # as typed: reading them would resolve ${...}
    if chosen.mode == RunMode.MULTIRUN:
        return _score(train(cfg, words, Path(chosen.runtime.output_dir)))
    try:
        return _score(train(cfg, words))
    except Exception as error:  # Hydra would announce it in a line of its own
        _failed.append(error)
        return None


_failed: list[Exception] = []


def _score(record: Mapping[str, Any]) -> float | None:
    """What a sweeper that searches would maximise."""
    score: float | None = (record.get("metrics") or {}).get("mean_last_10")
    return score


def main() -> None:
    """What ``python -m src.main`` runs."""

    def entry() -> None:
        _main()
        if _failed:
            raise _failed.pop()

    cli.guarded(entry)


if __name__ == "__main__":
    main()
