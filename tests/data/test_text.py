"""Texts are token ids of a vocabulary of the training texts; their length and neighbours change nothing."""

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import flnl
from flnl.core.errors import UserError
from flnl.core.inputs import PAD, UNKNOWN
from flnl.data.datasets import text as module
from flnl.data.datasets.text import AgNews, Text, encoded, vocabulary, words
from flnl.data.noise.instance import Instance
from flnl.data.preparations import Tokens
from flnl.engine.stacked.layers import Embedding
from flnl.models.text import FastText, MeanEmbedding, masked_mean

TABLE = torch.tensor([[0.5, -0.5], [9.0, 9.0], [1.0, 0.0], [0.0, 2.0], [-1.0, 1.0]])
"""Of five words; the second row, of the pad, is not zero, so that a counted pad shows."""


def test_the_mean_is_over_words_alone():
    ids = torch.tensor([[2, 3, 1, 1], [4, 4, 2, 3], [1, 1, 1, 1], [0, 2, 1, 1]])
    found = masked_mean(ids, TABLE)
    assert torch.allclose(found, torch.tensor([[0.5, 1.0], [-0.25, 1.0], [0.5, -0.5], [0.75, -0.25]]), atol=1e-9)
    assert torch.equal(masked_mean(ids[:1, :2], TABLE), found[:1])  # whatever the text is filled up to


def test_one_lookup_is_each_clients_own():
    tables = torch.stack([TABLE, 10 * TABLE])
    ids = torch.tensor([[[0, 2, 1], [3, 1, 1]], [[4, 4, 2], [2, 1, 1]]])
    layer = Embedding(MeanEmbedding(5, 2))
    layer.weight = layer.forms["weight"].leaf(tables)
    found = layer(ids.transpose(0, 1).flatten(1, 2)).view(2, 2, 2).transpose(0, 1)
    assert torch.allclose(found, torch.stack([masked_mean(*both) for both in zip(ids, tables, strict=True)]))


@pytest.mark.parametrize(("sizes", "count"), [((95814, 256, 256, 4), 24595204), ((5000, 50, 64, 2), 253394)])
def test_the_number_of_parameters(sizes: tuple[int, int, int, int], count: int):
    V, d, h, C = sizes
    with torch.device("meta"):
        network = FastText(V, d, h)((7,), C)
    assert sum(p.numel() for p in network.parameters()) == V * d + d * h + h + h * C + C == count


def test_words_and_their_ids():
    assert words("A 'big' Dog,\tisn't it?") == ["a", "'", "big", "'", "dog", ",", "isn", "'", "t", "it", "?"]
    assert words("x<br />y; z: (2.5)!") == ["x", "y", "z", "(", "2", ".", "5", ")", "!"]
    ids = vocabulary([["b", "a", "b"], ["c", "a"]], 6)
    assert ids == {"a": 4, "b": 5}  # as frequent as each other: by their characters; no room for c
    rows = encoded([["b", "c", "a"], []], ids, 2)
    assert rows.tolist() == [[5, UNKNOWN], [PAD, PAD]]
    assert rows.dtype == np.int32


def sheet(root: Path, count: int = 40) -> None:
    good, bad = "good, happy; fine", "bad sad ugly"
    rows = [f'{i},"{[good, bad][i % 2]} day {i}",{"pn"[i % 2]},s{i % 3}' for i in range(count)]
    (root / "texts.csv").write_text("\n".join(["id,text,label,source", *rows]) + "\n")


def texts(root: Path, **changes: Any) -> Any:
    values: dict[str, Any] = {"name": "t", "root": str(root), "file": "texts.csv", "test": None, "test_every": 5}
    values |= {"text": ["text"], "label": "label", "truth": "label", "client": None, "vocabulary": 50, "max_len": None}
    return Text(**values | {"train_sample": None, "test_size": None} | changes)()


def test_a_sheet_of_texts(tmp_path: Path):
    sheet(tmp_path)
    data = texts(tmp_path, client="source")
    assert data.classes == ("n", "p")
    assert data.client_names == ("s0", "s1", "s2")
    assert data.transform == Tokens(50, 6)  # good , happy fine day 7
    assert data.texts[0] == "bad sad ugly day 1" or data.texts[0].startswith("good")
    first = data.train.read(torch.tensor([0]))[0]
    assert first.dtype == torch.int32
    assert int(first.max()) < 50
    assert texts(tmp_path, max_len=2).train.shape == (2,)
    both = texts(tmp_path, text=["source", "text"])
    assert both.texts[0].split()[0] in ("s0", "s1", "s2")
    some = texts(tmp_path, train_sample=6)
    assert [data.texts[data.ids.index(i)] for i in some.ids] == [*some.texts]
    with pytest.raises(UserError, match=r"texts\.csv has no column 'title'; it has id, text, label, source$"):
        texts(tmp_path, text=["title"])


@pytest.mark.parametrize("columns", [["text"], []])
def test_texts_without_a_word_are_refused(tmp_path: Path, columns: list[str]):
    (tmp_path / "texts.csv").write_text("text,label\n" + '"",a\n" ",b\n' * 10)
    with pytest.raises(UserError, match=r"^dataset\.text=\[.*\]: no text has a word; name the columns of text$"):
        texts(tmp_path, text=columns)


def test_some_texts_without_a_word_are_said(tmp_path: Path, caplog: pytest.LogCaptureFixture):
    (tmp_path / "texts.csv").write_text("text,label\n" + '"",a\nword,b\n' * 10)
    texts(tmp_path)
    assert "dataset.text: 8 of 16 training texts have no word" in caplog.text


def test_examples_are_texts_with_words():
    ids = Tokens(9, 4).example((3,), torch.Generator().manual_seed(0))
    assert (ids.shape, ids.dtype) == ((3, 4), torch.int64)
    assert (ids > PAD).all()
    assert (ids < 9).all()


def test_noise_that_follows_pixels_refuses_texts(tmp_path: Path):
    sheet(tmp_path)
    with pytest.raises(UserError, match=r"^noise=instance follows values .* numbers of words are none: set another"):
        Instance(0.4, 0.1, "raw", "shared")(texts(tmp_path), 1)


def news(root: Path, rows: list[str], **changes: Any) -> Any:
    root.mkdir(exist_ok=True)
    for name in ("train.csv", "test.csv"):
        (root / name).write_text("\n".join(rows) + "\n")
    values: dict[str, Any] = {"name": "ag_news", "root": str(root), "verify": False, "vocabulary": 30, "max_len": None}
    return AgNews(**values | {"train_sample": None, "test_size": None} | changes)()


ROWS = ['"3","Title","Some ""words"", here"', '"1","Other","1 1"', '"4","a","b"', '"2","c","d"']


def test_ag_news_is_read_as_published(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    data = news(tmp_path / "news", ROWS)
    assert data.truth.tolist() == [2, 0, 3, 1]
    assert data.texts[0] == 'Title Some "words", here'
    with pytest.raises(UserError, match=r"train\.csv is not the published file \(its MD5 is"):
        news(tmp_path / "news", ROWS, verify=True)
    published = {name: hashlib.md5((tmp_path / "news" / name).read_bytes()).hexdigest() for name in module.AG_NEWS}
    monkeypatch.setattr(module, "AG_NEWS", published)
    assert news(tmp_path / "news", ROWS, verify=True).fingerprint == data.fingerprint
    for row in ('"5","a","b"', '"1","a"'):
        with pytest.raises(UserError, match=r"is no file of AG News \(row 2 is not a class 1 to 4"):
            news(tmp_path / "news", [ROWS[0], row])
    with pytest.raises(UserError, match=r"nowhere/train\.csv does not exist; put train\.csv and test\.csv"):
        AgNews("ag_news", str(tmp_path / "nowhere"), False, 30, None, None, None)()


# ---------------------------------------------------------------------------------------------------------- whole runs


def run(tmp_path: Path, name: str, *words: str) -> Path:
    usual = ["protocol=digits", "dataset=text", f"dataset.root={tmp_path}", "dataset.vocabulary=60", "logger=[]"]
    usual += ["model.embedding=8", "model.hidden=4", "partition.num_clients=4", "figures=false", "noise=none"]
    flnl.run([*usual, *words, f"output={tmp_path / name}"])
    return tmp_path / name


@pytest.mark.parametrize("executor", ["sequential", "stacked"])
def test_a_network_learns_texts(tmp_path: Path, executor: str, caplog: pytest.LogCaptureFixture):
    sheet(tmp_path, 80)
    words = ["method=fedavg", "rounds=15", "train.lr=0.3", f"executor={executor}"]
    folder = run(tmp_path, "run", *words)
    assert json.loads((folder / "result.json").read_text())["metrics"]["last"] == 1
    assert "run one by one" not in caplog.text  # stacked clients are
    held = torch.load(folder / "model.pt")
    assert held["normalisation"] == {"kind": "tokens", "vocabulary": 60, "length": held["shape"][0]}
    model = flnl.load_model(folder)
    ids = torch.full((1, held["shape"][0]), PAD)
    assert model(model.transform(ids)).isfinite().all()


def test_what_blends_inputs_refuses_words(tmp_path: Path):
    sheet(tmp_path)
    words = ["method.T1=1", "method.T2=1", "method.T3=1"]
    with pytest.raises(
        UserError, match=r"mixup blends inputs, and words cannot be blended: set method\.\S*enabled=false"
    ):
        run(tmp_path, "a", "method=fedcorr", *words)
    run(tmp_path, "b", "method=fedcorr", *words, "method.mixup=false")
    with pytest.raises(UserError, match=r"MixMatch blends inputs, .*: set method\.local\.mixmatch\.alpha=0"):
        run(tmp_path, "m", "method=dividemix")
    few = ["method.T_wu=1", "method.T=1"]
    run(tmp_path, "n", "method=dividemix", *few, "method.local.mixmatch.alpha=0")
    for method in ("m_dyr", "m_dyr_soft", "m_dyr_soft_to_hard"):
        with pytest.raises(UserError, match=r"M-DYR blends inputs, and words cannot be blended"):
            run(tmp_path, method, f"method={method}", "method.stages.warmup.batch.enabled=false")
    with pytest.raises(UserError, match=r"FedLSR rotates or mirrors images, and the data set has texts"):
        run(tmp_path, "c", "method=fedlsr", "rounds=1")
    usual = ["protocol=digits", "dataset=text", f"dataset.root={tmp_path}", "noise=none", "logger=[]", "method=fedavg"]
    with pytest.raises(
        UserError, match=r"^model \(MLP\) takes images or rows of numbers, and text has texts: set model=f"
    ):
        flnl.run([*usual, "model=mlp", f"output={tmp_path / 'd'}"])
    with pytest.raises(UserError, match=r"^model\.vocabulary=9: the texts of text have 20000 token ids$"):
        flnl.run([*usual, "model.vocabulary=9", f"output={tmp_path / 'e'}"])
