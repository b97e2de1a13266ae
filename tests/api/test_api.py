"""``flnl.run``, ``flnl.load_run`` and ``flnl.load_model``: what the command line does and what a run has left."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image

import flnl
from flnl.audit import Options
from flnl.commands.predict import classify
from flnl.config import compose
from flnl.engine.model_file import ModelFile
from flnl.record import metric_names
from flnl.record.run import RunRecord
from flnl.run.session import Session
from tests.properties.runs import difference
from tests.registry import BY_NAME

WORDS = [word for word in BY_NAME["fedcorr"].words if not word.startswith("output")]


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> flnl.RunResults:
    folder = tmp_path_factory.mktemp("api")
    return flnl.run([*WORDS, "figures=true", f"output={folder / 'run'}", f"cache={folder / 'cache'}"])


def test_the_package_is_light_and_names_what_it_has() -> None:
    """In a process of its own: nothing heavy is imported before it is used, whichever is imported first."""
    code = """
import sys
import flnl
assert not {"torch", "omegaconf", "pandas", "flnl.run", "typing"} & set(sys.modules), sorted(sys.modules)
assert {"run", "load_run", "load_model", "audit"} <= set(dir(flnl))
assert callable(flnl.run) and callable(flnl.audit) and "torch" not in sys.modules
from flnl.audit import Options
assert Options().issues and "torch" not in sys.modules and callable(flnl.audit)
import flnl.run.run_name
assert callable(flnl.run)
try:
    flnl.nothing
except AttributeError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-S", "-E", "-c", f"import sys; sys.path[:] = {sys.path!r}\n{code}"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "module 'flnl' has no attribute 'nothing'\n"), done.stderr


def test_every_public_name_is_there_and_in_the_stub() -> None:
    stub = (Path(flnl.__file__).parent / "__init__.pyi").read_text()
    for name in flnl.__all__:
        assert getattr(flnl, name) is not None
        assert f" {name}\n" in stub or f"{name}:" in stub


def test_the_labels_of_a_run_are_audited(
    results: flnl.RunResults, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The package is the function; a path may begin with a home, and be text."""
    monkeypatch.setenv("HOME", str(results.folder.parent))
    found = flnl.audit(f"~/{results.folder.name}", Options(formats=("json",), out=tmp_path / "audit"))
    assert isinstance(found, flnl.Audit)
    assert found.key == results.record["key"]
    assert json.loads((tmp_path / "audit" / "audit.json").read_text())["samples"] == len(found.samples)
    with pytest.raises(flnl.UserError, match="no run is recorded there"):
        flnl.audit(tmp_path / "nowhere")


def test_a_signal_in_the_last_round_is_the_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run finishes; a loop over runs must end nevertheless."""
    whole = Session.close

    def close(self: Session, status: str) -> RunRecord:
        os.kill(os.getpid(), signal.SIGINT)
        return whole(self, status)

    monkeypatch.setattr(Session, "close", close)
    with pytest.raises(KeyboardInterrupt):
        flnl.run([*BY_NAME["fedavg"].words, f"output={tmp_path / 'run'}"])
    assert flnl.load_run(tmp_path / "run").status == "finished"


def test_a_run_returns_what_its_folder_gives(results: flnl.RunResults) -> None:
    again = flnl.load_run(str(results.folder))
    assert (again.status, again.record, again.config) == ("finished", results.record, results.config)
    record = json.loads((results.folder / "result.json").read_text())
    assert again.numbers == record["metrics"]
    assert again.config["method"]["name"] == "fedcorr"
    pd.testing.assert_frame_equal(again.metrics, results.metrics)


def test_a_notebook_prints_a_line_and_not_the_record(results: flnl.RunResults) -> None:
    assert repr(results).startswith(f"RunResults(folder={results.folder!r}, status='finished'")
    assert len(repr(results)) < 100 + len(str(results.folder)) + len(str(results.warnings))


def test_metrics_are_the_table_of_the_run(results: flnl.RunResults) -> None:
    with (results.folder / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    frame = results.metrics
    assert list(frame.index) == [int(row["round"]) for row in rows]
    assert set(frame.columns) | {"round"} == set(rows[0])
    for name in metric_names.FIRST[2:]:
        expected = [float(row[name]) if row[name] else float("nan") for row in rows]
        np.testing.assert_array_equal(frame[name].to_numpy(float), expected)
    assert frame["test/accuracy"].max() == results.numbers["best"]


def test_corrections_have_a_row_for_each_client(results: flnl.RunResults) -> None:
    lines = [json.loads(line) for line in (results.folder / "corrections.jsonl").read_text().splitlines()]
    frame = results.corrections
    clients = results.config["partition"]["num_clients"]
    assert len(frame) == len(lines) * clients
    last = frame.loc[lines[-1]["round"]]
    assert list(last["true_noise_before"]) == lines[-1]["clients"]["true_noise_before"]
    assert set(last["stage"]) == {lines[-1]["stage"]}


def test_labels_are_text_and_numbers(results: flnl.RunResults) -> None:
    frame = results.labels
    with (results.folder / "labels.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert list(frame["given"]) == [row["given"] for row in rows]
    assert frame["client"].dtype.kind == "i"
    assert frame["confidence"].between(0, 1).all()
    assert list(frame["self_confidence"]) == [float(row["self_confidence"]) for row in rows]
    assert (frame["given"] != frame["true"]).mean() == pytest.approx(results.numbers["noise_given"])


def test_names_of_samples_are_read_as_they_were(tmp_path: Path, results: flnl.RunResults) -> None:
    for name in ("metrics.jsonl", "corrections.jsonl"):
        (tmp_path / name).write_bytes((results.folder / name).read_bytes())
    record = {key: value for key, value in results.record.items() if key != "files"}  # as of before there was one
    (tmp_path / "result.json").write_text(json.dumps(record))
    (tmp_path / "labels.csv").write_text("client,sample,given,final,confidence,flagged\n0,'=1.png,NA,1,0.5,\n")
    frame = flnl.load_run(tmp_path).labels
    assert frame.iloc[0][["sample", "given", "final"]].tolist() == ["=1.png", "NA", "1"]
    assert frame["flagged"].isna().all()
    for damaged, reason in (("", "No columns"), ("client\n0,1\n0,1,2\n", "line 3"), ("client\nx\n", "column client")):
        (tmp_path / "labels.csv").write_text(damaged)
        with pytest.raises(flnl.UserError, match=rf"labels.csv cannot be read \(.*{reason}"):
            _ = flnl.load_run(tmp_path).labels
    (tmp_path / "labels.csv").unlink()
    with pytest.raises(flnl.UserError, match="products=true"):
        _ = flnl.load_run(tmp_path).labels


def test_labels_that_the_run_did_not_write_are_refused(tmp_path: Path, results: flnl.RunResults) -> None:
    """A flipped bit of a client's number is another client's: it makes a table as right as the run's."""
    for name in ("result.json", "metrics.jsonl", "corrections.jsonl"):
        (tmp_path / name).write_bytes((results.folder / name).read_bytes())
    data = bytearray((results.folder / "labels.csv").read_bytes())
    (tmp_path / "labels.csv").write_bytes(data)
    assert len(flnl.load_run(tmp_path).labels) == len(results.labels)
    data[data.index(b"\n") + 1] ^= 1
    (tmp_path / "labels.csv").write_bytes(data)
    with pytest.raises(flnl.UserError, match=r"labels\.csv is not what the run wrote"):
        _ = flnl.load_run(tmp_path).labels


def test_figures_are_files(results: flnl.RunResults) -> None:
    assert {"accuracy", "lid"} <= set(results.figures)
    assert all(path.is_file() for path in results.figures.values())


def test_without_pandas_the_numbers_are_there(results: flnl.RunResults, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = flnl.load_run(results.folder)
    assert found.numbers
    with pytest.raises(ModuleNotFoundError, match=r"pip install .*\[pandas\]'"):
        _ = found.metrics


def test_a_run_without_rounds_or_corrections_has_empty_tables(tmp_path: Path) -> None:
    words = [*BY_NAME["fedavg"].words, f"output={tmp_path / 'run'}", f"cache={tmp_path / 'cache'}"]
    found = flnl.run([*words, "max_rounds=1", "products=false", "executor=sequential"])
    assert (found.status, len(found.metrics), len(found.corrections)) == ("stopped", 1, 0)
    assert found.figures == {}
    again = flnl.run([*words, "resume=true", "executor=sequential"])
    assert again.status == "finished"


# -------------------------------------------------------------------------------------------------------- faults

FAULTS = {
    "noise.roh=0.6": "noise.roh is not a key of the configuration; did you mean noise.rho?",
    "method=nothing": "method=nothing does not exist",
    "-m": "-m: flnl.run takes overrides of one run",
    "--cfg": "--cfg: flnl.run takes overrides of one run",
    "train.lr=-1": "train.lr=-1: must be a valid number",
    "noise.rho": "noise.rho",
}


@pytest.mark.parametrize("word", FAULTS)
def test_mistakes_are_named_as_on_the_command_line(word: str, tmp_path: Path) -> None:
    with pytest.raises(flnl.UserError) as refused:
        flnl.run([word, f"output={tmp_path / 'run'}"])
    assert FAULTS[word].split(":")[0] in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_a_single_text_is_refused() -> None:
    with pytest.raises(flnl.UserError, match="must be a list"):
        flnl.run("noise.rho=0.6")


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(flnl.UserError, match="no run is recorded there"):
        flnl.load_run(tmp_path)
    with pytest.raises(flnl.UserError, match="products=true"):
        flnl.load_model(tmp_path)


# --------------------------------------------------------------------------------------------------------- model


def test_the_model_has_the_weights_the_classes_and_the_inputs_of_the_run(results: flnl.RunResults) -> None:
    """By the test set: its outputs are those of the evaluated network, so the accuracy is the run's."""
    model = flnl.load_model(results.folder)
    file = ModelFile.load(results.folder)
    assert isinstance(model, torch.nn.Module)
    assert not model.training
    assert difference(dict(model.network.state_dict()), dict(file.weights)) is None
    assert list(model.classes) == results.record["classes"]
    words = [*WORDS, "cache=/nowhere"]
    data = compose.build(compose.load(words).dataset)()
    everything = torch.arange(len(data.test))
    outputs = model(model.transform(data.test.read(everything).float()))  # the digits' own values, 0 to 16
    torch.testing.assert_close(outputs, file.network().outputs(data.test, everything))
    right = outputs.argmax(1).numpy() == data.test_labels
    assert right.mean() == pytest.approx(results.numbers["last"])


def test_images_are_read_as_predict_reads_them(results: flnl.RunResults, tmp_path: Path) -> None:
    model = flnl.load_model(results.folder / "model.pt")
    pixels = np.random.default_rng(0).integers(0, 256, (11, 9, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "one.png")
    one = model.transform(tmp_path / "one.png")
    assert one.shape == model.transform.shape
    torch.testing.assert_close(model.transform(Image.fromarray(pixels)), one)
    torch.testing.assert_close(model.transform(str(tmp_path / "one.png")), one)
    (predicted,) = classify(ModelFile.load(results.folder), [tmp_path / "one.png"])
    probabilities = model(one[None]).detach().double().softmax(1)[0]
    assert predicted.top[0][0] == model.classes[int(probabilities.argmax())]
    assert predicted.top[0][1] == pytest.approx(float(probabilities.max()), rel=1e-5)


def test_an_image_of_pillow_is_what_its_file_is(results: flnl.RunResults, tmp_path: Path) -> None:
    """Photographs that a phone has turned, and pictures for print."""
    model = flnl.load_model(results.folder)
    pixels = np.random.default_rng(0).integers(0, 256, (8, 8, 3), np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6
    Image.fromarray(pixels).save(tmp_path / "turned.jpg", exif=turned, quality=95)
    Image.fromarray(pixels).convert("CMYK").save(tmp_path / "print.jpg")
    Image.fromarray(pixels[..., 0].astype(np.uint16) * 257).save(tmp_path / "wide.png")
    for name in ("turned.jpg", "print.jpg", "wide.png"):
        with Image.open(tmp_path / name) as image:
            torch.testing.assert_close(model.transform(image), model.transform(tmp_path / name), rtol=0, atol=0)
    with Image.open(tmp_path / "turned.jpg") as image:
        flat = Image.fromarray(np.asarray(image))
    assert not torch.equal(model.transform(flat), model.transform(tmp_path / "turned.jpg"))


def test_an_input_that_is_none_is_refused(results: flnl.RunResults, tmp_path: Path) -> None:
    model = flnl.load_model(results.folder)
    (tmp_path / "none.png").write_text("no image")
    with pytest.raises(flnl.UserError, match=r"none\.png cannot be read \(it cannot be decoded\)"):
        model.transform(tmp_path / "none.png")
    with pytest.raises(flnl.UserError, match="No such file"):
        model.transform(tmp_path / "missing.png")
    with pytest.raises(flnl.UserError, match=r"a tensor of shape \[2, 3\]: this model takes \[1, 8, 8\]"):
        model.transform(torch.zeros(2, 3))
    with pytest.raises(flnl.UserError, match=r"^ndarray is no image: a path, an image of Pillow or a tensor is needed"):
        model.transform(np.zeros((8, 8, 3), np.uint8))  # type: ignore[arg-type] # as is refused
