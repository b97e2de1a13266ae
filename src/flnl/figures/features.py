"""t-SNE of the penultimate features of a run's final model (FLR, Fig. 4): needs the run's data, and seconds.

So it is drawn on request and not at a run's end.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from matplotlib import colormaps
from matplotlib.figure import Figure
from numpy.typing import NDArray
from omegaconf import DictConfig, OmegaConf

from flnl.config.check import faults_of
from flnl.config.registry import restored
from flnl.core.errors import UserError
from flnl.core.step import FEATURES
from flnl.figure_style import EIGHT, title
from flnl.figures.record import RunRecord
from flnl.storage.records import RESULT

if TYPE_CHECKING:
    from flnl.data.federation.build import Federation
    from flnl.engine.model_file import ModelFile
    from flnl.engine.network import Network

MOST = 1000
"""Points of a panel, at most."""
NAMED = 20
"""Up to so many classes have a legend."""
PERPLEXITY = 30.0

Array = NDArray[np.float64]


def draw(record: RunRecord, folder: Path, places: Sequence[Path] = ()) -> Figure:
    """Test samples by class; and, where some labels are known to be wrong, those samples by true and by given class.

    Samples are drawn evenly, ``MOST`` of each kind at most. The two panels of wrong labels show the same points.
    ``places`` are folders with configuration files that name the classes of the run's parts, besides ``conf/``.

    Raises:
        UserError: if the run left no model, or its data cannot be had as it had them.
    """
    from flnl.engine.model_file import ModelFile

    model = ModelFile.load(folder)
    federation = _federation(record, places)
    network, data = model.network(places), federation.dataset
    some = spread(len(data.test))
    by_class = data.test_labels[some.numpy()]
    panels = [("test samples, by class", embedding(network, data.test, some), by_class)]
    wrong = _wrong(federation)
    if len(wrong):
        spots = embedding(network, data.train, wrong)
        assert federation.truth is not None, "what is wrong is known"
        true, given = federation.truth[wrong].numpy(), torch.as_tensor(federation.given)[wrong].numpy()
        panels += [("wrong labels, by true class", spots, true), ("wrong labels, by given class", spots, given)]
    return _shown(f"{record.title}: features after round {model.round}", panels, model)


def spread(count: int) -> torch.Tensor:
    """Positions int64 of at most ``MOST`` of ``count`` samples, evenly over all of them."""
    return torch.from_numpy(np.unique(np.linspace(0, count - 1, min(count, MOST)).round().astype(np.int64)))


def embedding(network: Network, images: Any, index: torch.Tensor) -> Array:
    """Places [n, 2] of the features of the samples at ``index``, from their principal components, with a fixed seed.

    Raises:
        UserError: if there are too few samples to place.
    """
    from sklearn.manifold import TSNE  # takes a second

    if len(index) < 3:
        raise UserError("t-SNE places three samples at least")
    perplexity = min(PERPLEXITY, (len(index) - 1) / 3)
    placed: Array = TSNE(perplexity=perplexity, init="pca", random_state=0).fit_transform(
        features(network, images, index)
    )
    return placed


def features(network: Network, images: Any, index: torch.Tensor) -> NDArray[np.float32]:
    """What the head of the loaded model reads [n, d], in eval mode and without augmentation."""
    features: NDArray[np.float32] = network.outputs(images, index, output=FEATURES).float().numpy()
    return features


def _federation(record: RunRecord, places: Sequence[Path]) -> Federation:
    """The run's data, drawn again."""
    from flnl.data.federation.build import from_config

    federation = from_config(_recorded(record.result["config"], places))
    if record.result.get("federation") not in (federation.fingerprint, federation.names_fingerprint):
        raise UserError(
            "the federation drawn now is not the run's: the data's files, numpy or the code that draws have changed"
        )
    return federation


def _recorded(config: Mapping[str, Any], places: Sequence[Path]) -> DictConfig:
    """What a record says of a run's data, as far as a file may say it.

    Raises:
        UserError: naming what it may not.
    """
    parts = {group: restored(group, config.get(group), RESULT, places) for group in ("dataset", "partition", "noise")}
    values = {key: config.get(key) for key in ("data_seed", "eval")}
    if faults := faults_of(values):
        raise UserError(f"{RESULT}: {faults}")
    return OmegaConf.create({**parts, **values})


def _wrong(federation: Federation) -> torch.Tensor:
    """Positions of training samples of clients whose given label is known to be wrong."""
    if federation.truth is None:
        return torch.empty(0, dtype=torch.int64)
    held = np.sort(np.concatenate([federation.clients[c] for c in federation.with_data]))
    wrong = held[torch.as_tensor(federation.given).numpy()[held] != federation.truth.numpy()[held]]
    return torch.from_numpy(wrong)[spread(len(wrong))] if len(wrong) >= 3 else torch.empty(0, dtype=torch.int64)


def _shown(said: str, panels: list[tuple[str, Array, NDArray[np.int64]]], model: ModelFile) -> Figure:
    figure = Figure(figsize=(4.2 * len(panels), 4.8), layout="constrained")
    title(figure, f"{said} (t-SNE)")
    colors = _colors(len(model.classes))
    for axes, (name, places, labels) in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        axes.scatter(*places.T, s=7, lw=0, c=[colors[k] for k in labels])
        axes.set_title(f"{name} ({len(places)})", size=9)
        axes.set(xticks=[], yticks=[])
        for side in axes.spines.values():
            side.set_linewidth(0.5)
    if len(model.classes) <= NAMED:
        axes = figure.axes[0]
        dots = [axes.plot([], [], "o", ms=4, color=colors[k])[0] for k in range(len(model.classes))]
        figure.legend(dots, model.classes, loc="outside lower center", ncols=10, fontsize=8, frameon=False)
    return figure


def _colors(count: int) -> list[Any]:
    """A colour a class: the colour-blind can tell eight apart."""
    if count <= len(EIGHT):
        return list(EIGHT[:count])
    names = colormaps["tab10" if count <= 10 else "tab20" if count <= 20 else "nipy_spectral"]
    return [names(k if count <= 20 else k / (count - 1)) for k in range(count)]
