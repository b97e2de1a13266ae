"""The figures of a run, functions of what its folder records; ``flnl figures RUN_DIR ...`` draws them again."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flnl.core.errors import DiskFullError, forgiven
from flnl.figures import accuracy, clients, confusion, lid, memorization, noise_levels, stability
from flnl.figures.record import RunRecord, read
from flnl.storage.disk import writing

log = logging.getLogger(__name__)

FOLDER = "figures"
DPI = 150
FIGURES: Mapping[str, Callable[[RunRecord], Figure | None]] = {
    "accuracy": accuracy.draw,
    "lid": lid.draw,
    "noise_levels": noise_levels.draw,
    "confusion": confusion.draw,
    "confusion_clients": confusion.draw_clients,
    "selection": confusion.draw_selection,
    "memorization": memorization.draw,
    "memorization_local": memorization.draw_local,
    "stability": stability.draw,
    "filter": clients.draw_filter,
    "quality": clients.draw_quality,
    "noisy_clients": clients.draw_noisy,
}
"""By the name of their file; None where a run has no data for one."""


def save(folder: Path, *, tsne: bool = False, places: Sequence[Path] = ()) -> list[Path]:
    """Draw the figures of the run in ``folder`` into ``folder/figures``; gives the files.

    One that cannot be drawn is named in a warning and does not keep the others back. ``tsne`` adds that of the
    features, which takes the run's model, its data and some seconds. ``places`` are folders with configuration files
    that name the classes of the run's parts, besides ``conf/``.

    Raises:
        UserError: if no run is recorded there.
        DiskFullError: if there is no space for a figure.
    """
    record, files = read(folder), []
    asked = dict(FIGURES)
    if tsne:
        from flnl.figures import features  # torch takes seconds to import

        asked["features"] = lambda run: features.draw(run, folder, places)
    for name, draw in asked.items():
        file = folder / FOLDER / f"{name}.png"
        with forgiven(log, f"the figure {file} could not be drawn"):
            figure = draw(record)
            if figure is not None:
                file.parent.mkdir(exist_ok=True)
                try:
                    with writing(file):
                        _write(figure, file)
                except DiskFullError:
                    file.unlink(missing_ok=True)
                    raise
                files.append(file)
    return files


def _write(figure: Figure, file: Path) -> None:
    """As ``figure.savefig`` would, in one pass: that draws everything once more to see where it ends up."""
    figure.set_dpi(DPI)
    canvas = FigureCanvasAgg(figure)
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
        figure.set_layout_engine("none")
    canvas.print_png(file)  # type: ignore[no-untyped-call]
