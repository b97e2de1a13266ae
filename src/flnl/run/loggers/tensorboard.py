"""TensorBoard as a logger."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flnl.console.extras import install
from flnl.core.errors import UserError
from flnl.core.run_logger import LoggedRun, Logger, OpenLogger

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

FOLDER = "tensorboard"
"""Where the files are in a run's folder."""
FLUSH_SECONDS = 10


@dataclass(frozen=True)
class TensorBoard(Logger):
    """Writes metrics, figures and the configuration to ``tensorboard/`` in the run's folder."""

    def check(self) -> None:
        """Check that the package is installed.

        Raises:
            UserError: if it is not.
        """
        if importlib.util.find_spec("tensorboard") is None:
            raise UserError(
                f"logger=tensorboard needs the package tensorboard: {install('tensorboard')}, or choose logger=csv or "
                "logger=wandb"
            )

    def open(self, run: LoggedRun) -> OpenLogger:
        """Begin a file; a run that continues adds one."""
        from torch.utils.tensorboard import SummaryWriter

        writer = SummaryWriter(str(run.folder / FOLDER), flush_secs=FLUSH_SECONDS)
        text = json.dumps(dict(run.config), indent=1, default=str)
        writer.add_text("config", f"```\n{text}\n```")
        return _Open(writer)


@dataclass
class _Open(OpenLogger):
    writer: SummaryWriter
    stage: str | None = field(default=None, init=False)

    def log(self, row: Mapping[str, float | str], step: int) -> None:
        for name, value in row.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, step)
        if row.get("stage") != self.stage:
            self.stage = str(row["stage"])
            self.writer.add_text("stage", self.stage, step)

    def images(self, files: Sequence[Path], step: int) -> None:
        import numpy as np
        from PIL import Image

        for file in files:
            with Image.open(file) as image:
                pixels = np.asarray(image.convert("RGB"))
            self.writer.add_image(f"figures/{file.stem}", pixels, step, dataformats="HWC")

    def close(self, *, failed: bool, summary: Mapping[str, Any]) -> None:
        self.writer.close()
