"""The entry point: compose, assemble, run the loop, write down what came of it.

    python -m src.main method=fedcorr noise.rho=0.6

``train`` is an ordinary function of a composed configuration, so that tests and notebooks can call it.
"""

from __future__ import annotations

import logging
import os
import re
import shlex
import shutil
import sys
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import hydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig

from src import cli, config


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
    from src import progress, session
    from src.interrupt import Interrupted, Interruption

    claimed = session.claim(cfg, words, job)
    if claimed.folder.finished:
        assert claimed.folder.earlier is not None
        claimed.folder.lock.release()
        earlier = claimed.folder.earlier
        progress.closing(f"finished earlier: {claimed.folder.path}", {**earlier, **earlier.get("metrics", {})})
        return earlier
    run = session.open_session(cfg, words, claimed)
    signalled = None
    with run, Interruption() as stop:
        try:
            with progress.Bar(run.rounds, run.state.round) as bar:
                for result in run.results():
                    run.log(result)
                    bar.round(result)
                    signalled = stop.number
                    leave = run.enough or signalled is not None
                    run.keep(now=leave)
                    if leave:
                        break
            status = "finished" if run.over else "stopped" if signalled is None else "interrupted"
            record = run.close(status)
        except Exception as error:
            run.fail(error, traceback.format_exc())
            raise
    progress.closing(f"{status}: {run.folder.path}", {**record, **record["metrics"]})
    if status != "finished":
        print(f"to go on: {_command(words, run.folder.path)}", file=sys.stderr)
    if status == "interrupted" and signalled is not None:
        raise Interrupted(signalled)
    return record


def _command(words: Sequence[str], folder: Path) -> str:
    """The command that resumes: the same overrides, without what was only said of this start."""
    kept = [w for w in words if w.split("=")[0].lstrip("+") not in ("resume", "output", "max_rounds")]
    path = str(folder)
    if not re.fullmatch(r"[\w./-]+", path):  # Hydra's grammar would read commas and brackets
        path = "'" + path.replace("\\", "\\\\").replace("'", "\\'") + "'"
    python = "python" if shutil.which("python") == sys.executable else sys.executable
    return shlex.join([python, "-m", "src.main", *kept, f"resume={path}"])


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
