"""The features that are placed are the model's own, and the colours say what they claim to."""

import csv
import json
import logging
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from matplotlib.collections import PathCollection

from flnl.commands import figures
from flnl.core.errors import UserError
from flnl.data.federation.recorded import recorded_federation
from flnl.engine.model_file import ModelFile
from flnl.figures import drawing, features
from flnl.record.run import RunRecord
from tests.properties.runs import Ran, run
from tests.registry import BY_NAME


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    return run(BY_NAME["fedavg"].words, tmp_path_factory.mktemp("features") / "run")


def test_points_are_the_samples_with_wrong_labels_and_colours_their_two_classes(ran: Ran) -> None:
    figure = features.draw(RunRecord.open(ran.folder))
    colors = {color: str(k) for k, color in enumerate(features._colors(10))}
    test, by_true, by_given = (_points(axes, colors) for axes in figure.axes)
    with (ran.folder / "labels.csv").open() as file:
        rows = sorted((r for r in csv.DictReader(file) if r["given"] != r["true"]), key=lambda r: int(r["sample"]))
    assert len(rows) > 20
    assert by_true.keys() == by_given.keys(), "both panels show the same points"
    pairs = Counter((by_true[place], by_given[place]) for place in by_true)
    assert pairs == Counter((row["true"], row["given"]) for row in rows)
    assert len(test) == 50


@pytest.mark.parametrize("panels", [1, 3])
@pytest.mark.parametrize("name", ["{}", "automobile {}", "a class with a very long name, of which this is number {}"])
def test_every_class_can_be_read_in_the_legend(panels: int, name: str, ran: Ran) -> None:
    classes = [name.format(k) for k in range(10)]
    shown = [("of ten classes", np.zeros((10, 2)), np.arange(10))] * panels
    figure = features._shown("features", shown, replace(ModelFile.load(ran.folder), classes=classes))
    figure.draw_without_rendering()
    (legend,) = figure.legends
    assert ["".join(text.get_text().split()) for text in legend.get_texts()] == ["".join(c.split()) for c in classes]
    box = legend.get_window_extent()
    assert 0 <= box.x0 < box.x1 <= figure.bbox.width
    assert 0 <= box.y0 < box.y1 < figure.axes[0].get_window_extent().y0


def _points(axes: Any, colors: Mapping[Any, str]) -> dict[tuple[float, float], str]:
    """The class of each point by its colour; each class also has a marker of its own."""
    classes = [cast(PathCollection, one) for one in axes.collections]
    shapes = {np.asarray(one.get_paths()[0].vertices).tobytes() for one in classes}
    assert len(shapes) == len(classes)
    return {
        (float(x), float(y)): colors[tuple(np.asarray(one.get_facecolor())[0].tolist())]
        for one in classes
        for x, y in np.asarray(one.get_offsets())
    }


def test_features_are_what_the_head_reads(ran: Ran) -> None:
    model = ModelFile.load(ran.folder)
    network, federation = model.network(), recorded_federation(RunRecord.open(ran.folder))
    index = torch.tensor([4, 0, 9])
    found = torch.from_numpy(features.features(network, federation.dataset.test, index))
    logits = found @ model.weights["head.weight"].T + model.weights["head.bias"]
    assert torch.allclose(logits, network.outputs(federation.dataset.test, index), atol=1e-6)
    assert found.shape == (3, 8)
    assert features.features(network, federation.dataset.test, index).shape == (3, 8), "a hook was left behind"


@pytest.mark.parametrize(("count", "points"), [(1, 1), (7, 7), (1000, 1000), (1001, 1000), (5000, 1000)])
def test_samples_are_spread_over_all(count: int, points: int) -> None:
    chosen = features.spread(count)
    assert len(chosen) == len(set(chosen.tolist())) == points
    assert chosen[0] == 0
    assert chosen[-1] == count - 1


def test_a_model_is_asked_for_on_request_alone(
    ran: Ran, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for words, names in (([], {"accuracy"}), (["--tsne"], {"accuracy", "features"})):
        monkeypatch.setattr("sys.argv", ["figures", str(ran.folder), *words])
        figures.main()
        assert {file.stem for file in (ran.folder / "figures").iterdir()} == names
    monkeypatch.setattr("sys.argv", ["figures", str(ran.folder), "--tsen"])
    monkeypatch.setenv("HYDRA_FULL_ERROR", "0")  # the command set it, and would show a traceback
    capsys.readouterr()
    with pytest.raises(SystemExit):
        figures.main()
    assert "unrecognized arguments: --tsen" in capsys.readouterr().err


def test_other_data_and_a_missing_model_are_named(ran: Ran, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    record = json.loads((ran.folder / "result.json").read_text())
    del record["lines"]  # the files are not there
    (tmp_path / "result.json").write_text(json.dumps(record | {"federation": "another"}))
    with caplog.at_level(logging.WARNING, "flnl.figures.drawing"):
        assert [file.stem for file in drawing.save(RunRecord.open(tmp_path), tsne=True)] == []
    assert f"there is no {tmp_path / 'model.pt'}" in caplog.text
    (tmp_path / "model.pt").write_bytes((ran.folder / "model.pt").read_bytes())
    with pytest.raises(UserError, match="differs from the run's"):
        features.draw(RunRecord.open(tmp_path))
