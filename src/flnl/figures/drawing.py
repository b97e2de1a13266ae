"""The figures of a run, drawn from the records in its folder; ``flnl figures RUN_DIR ...`` redraws them."""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from flnl.core.errors import DiskFullError, forgiven
from flnl.figures import accuracy, clients, confusion, lid, memorization, noise_levels
from flnl.record.run import RunRecord
from flnl.storage.atomic import writing

log = logging.getLogger(__name__)

FOLDER = "figures"
FORMATS = ("png", "svg", "pdf")
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
    "stability": accuracy.draw_stability,
    "filter": clients.draw_filter,
    "quality": clients.draw_quality,
    "noisy_clients": clients.draw_noisy,
}
"""Functions by the file name of their figure; they return None if the run has no data for it."""


def save(
    record: RunRecord,
    *,
    tsne: bool = False,
    places: Sequence[Path] = (),
    data: Mapping[str, str] | None = None,
    formats: Sequence[str] = FORMATS[:1],
    dpi: int = DPI,
) -> list[Path]:
    """Draw the figures of a run into ``figures`` in its folder; a figure that fails is logged and skipped.

    Args:
        record: the run's record.
        tsne: whether to draw the figure of the features, which needs the run's model and data, and takes seconds.
        places: folders, besides ``conf/``, with configuration files that name the classes of the run's parts.
        data: where the run's data lie here, by key.
        formats: file formats, of ``FORMATS``.
        dpi: pixels per inch, of png files.

    Returns:
        The files written.

    Raises:
        UserError: if its files of lines differ from what the run wrote.
        DiskFullError: if the disk is full.
    """
    folder, files = record.with_lines().folder, []
    figures = dict(FIGURES)
    if tsne:
        from flnl.figures import features  # torch takes seconds to import

        figures["features"] = lambda run: features.draw(run, places, data)
    for name, draw in figures.items():
        with forgiven(log, f"the figure {folder / FOLDER / name} could not be drawn"):
            if (figure := draw(record)) is None:
                continue
            for suffix in formats:
                file = folder / FOLDER / f"{name}.{suffix}"
                file.parent.mkdir(exist_ok=True)
                try:
                    with writing(file):
                        _write(figure, file, dpi)
                except DiskFullError:
                    file.unlink(missing_ok=True)
                    raise
                files.append(file)
    return files


def _write(figure: Figure, file: Path, dpi: int) -> None:
    """Save like ``figure.savefig``, but in one pass: that method draws everything twice to compute the layout."""
    figure.set_dpi(dpi)
    canvas = FigureCanvasAgg(figure)
    if (layout := figure.get_layout_engine()) is not None:
        layout.execute(figure)
        figure.set_layout_engine("none")
    if file.suffix == ".png":
        canvas.print_png(file)  # type: ignore[no-untyped-call]
    else:
        canvas.print_figure(file, format=file.suffix.removeprefix("."))
