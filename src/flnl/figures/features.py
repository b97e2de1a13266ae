"""t-SNE of the penultimate features of a run's final model (FLR, Fig. 4).

It needs the run's data and takes seconds, so it is drawn only on request.
"""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.step import FEATURES
from flnl.figures.style import EIGHT, MARKERS, plain, title
from flnl.record.run import RunRecord

if TYPE_CHECKING:
    from flnl.data.federation.build import Federation
    from flnl.engine.model_file import ModelFile
    from flnl.engine.network import Network

MOST = 1000
"""Maximum number of points in a panel."""
NAMED = 20
"""Maximum number of classes for which there is a legend."""
PERPLEXITY = 30.0
LETTERS, HANDLE, COLUMNS = 15, 10, 10
"""Letters of the legend in an inch, letters that a class's marker takes, and maximum number of columns."""
LINE = 0.17
"""Height of a line of the legend, in inches."""

Array = NDArray[np.float64]


def draw(record: RunRecord, places: Sequence[Path] = (), data: Mapping[str, str] | None = None) -> Figure:
    """Draw test samples by class; if labels are known to be wrong, also those samples by true and by given class.

    At most ``MOST`` evenly spaced samples of each kind are shown. The two panels of wrong labels show the same points.
    ``places`` and ``data`` are as in ``flnl.figures.drawing.save``.

    Raises:
        UserError: if the run has no model, or its data cannot be reproduced.
    """
    from flnl.data.federation.recorded import recorded_federation
    from flnl.engine.model_file import ModelFile

    model = ModelFile.load(record.folder)
    federation = recorded_federation(record, places, data)
    network, images = model.network(places), federation.dataset
    some = spread(len(images.test))
    by_class = images.test_labels[some.numpy()]
    panels = [("test samples, by class", embedding(network, images.test, some), by_class)]
    wrong = _wrong(federation)
    if len(wrong):
        spots = embedding(network, images.train, wrong)
        assert federation.truth is not None, "wrong labels are known"
        true, given = federation.truth[wrong].numpy(), torch.as_tensor(federation.given)[wrong].numpy()
        panels += [("wrong labels, by true class", spots, true), ("wrong labels, by given class", spots, given)]
    return _shown(f"{record.title}: features after round {model.round}", panels, model)


def spread(count: int) -> torch.Tensor:
    """Positions, int64, of at most ``MOST`` evenly spaced samples of ``count``."""
    return torch.from_numpy(np.unique(np.linspace(0, count - 1, min(count, MOST)).round().astype(np.int64)))


def embedding(network: Network, images: Any, index: torch.Tensor) -> Array:
    """t-SNE coordinates [n, 2] of the features of the samples at ``index``; initialised by PCA, with a fixed seed.

    Raises:
        UserError: if there are fewer than three samples.
    """
    from sklearn.manifold import TSNE  # takes a second

    if len(index) < 3:
        raise UserError("t-SNE needs at least three samples")
    perplexity = min(PERPLEXITY, (len(index) - 1) / 3)
    placed: Array = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(
        features(network, images, index)
    )
    return placed


def features(network: Network, images: Any, index: torch.Tensor) -> NDArray[np.float32]:
    """The inputs [n, d] of the loaded model's head, in eval mode and without augmentation."""
    features: NDArray[np.float32] = network.outputs(images, index, output=FEATURES).float().numpy()
    return features


def _wrong(federation: Federation) -> torch.Tensor:
    """Positions of clients' training samples whose given label is known to be wrong."""
    if federation.truth is None:
        return torch.empty(0, dtype=torch.int64)
    held = np.sort(np.concatenate([federation.clients[c] for c in federation.with_data]))
    wrong = held[torch.as_tensor(federation.given).numpy()[held] != federation.truth.numpy()[held]]
    return torch.from_numpy(wrong)[spread(len(wrong))] if len(wrong) >= 3 else torch.empty(0, dtype=torch.int64)


def _shown(heading: str, panels: list[tuple[str, Array, NDArray[np.int64]]], model: ModelFile) -> Figure:
    width = 4.2 * len(panels)
    fit = int(LETTERS * width)
    names = [textwrap.fill(name, fit - HANDLE) for name in model.classes] if len(model.classes) <= NAMED else []
    longest = max((len(line) for name in names for line in name.split("\n")), default=0)
    columns = max(1, min(COLUMNS, fit // (longest + HANDLE)))
    lines = sum(name.count("\n") + 1 for name in names) / columns
    figure = Figure(figsize=(width, 4.6 + LINE * np.ceil(lines)), layout="constrained")
    title(figure, f"{heading} (t-SNE)")
    colors = _colors(len(model.classes))
    for axes, (name, places, labels) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        for k in np.unique(labels):
            axes.scatter(*places[labels == k].T, s=11, lw=0, color=colors[k], marker=_marker(k))
        axes.set_title(f"{name} ({len(places)})", size=9)
        axes.set(xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set_linewidth(0.5)
    if names:
        axes = figure.axes[0]
        dots = [axes.plot([], [], ls="", marker=_marker(k), ms=5, mew=0, color=colors[k])[0] for k in range(len(names))]
        shown = list(map(plain, names))
        figure.legend(dots, shown, loc="outside lower center", ncols=columns, fontsize=8, frameon=False)
    return figure


def _marker(label: int) -> str:
    """The marker of a class: with more than eight classes, also a letter or a digit."""
    return [*MARKERS, *(f"${letter}$" for letter in "abcdefghkmnp")][label % (len(MARKERS) + 12)]


def _colors(count: int) -> list[Any]:
    """One colour per class; up to eight are distinct in colour blindness."""
    if count <= len(EIGHT):
        return list(EIGHT[:count])
    names = colormaps["tab10" if count <= 10 else "tab20" if count <= 20 else "nipy_spectral"]
    return [names(k if count <= 20 else k / (count - 1)) for k in range(count)]
