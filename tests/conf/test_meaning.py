"""What a key of the configuration means, as ``flnl explain`` tells it: from comments, annotations and values."""

import sys
from pathlib import Path

import pytest

from flnl.commands import explain
from flnl.config.comments import beside
from flnl.config.meaning import meanings


def told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *words: str) -> str:
    monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
    monkeypatch.setattr(sys, "argv", ["flnl explain", *words])
    explain.main()
    return capsys.readouterr().out


def test_the_comment_of_a_key_is_the_one_of_its_own_line(tmp_path: Path) -> None:
    file = tmp_path / "it.yaml"
    file.write_text(
        "# about the file\n"
        "defaults: [one, _self_] # of what it is made\n"
        "short: &short\n"
        "  mu: ${method.local.it.mu} # a name\n"
        "<<: *short\n"
        'a: "x # y" # first\n'
        "  # and second line\n"
        "b: 1\n"
        "c: # a section\n"
        "  d: [1, 2] # inside\n"
        "# not of d\n"
        "e: no#comment\n"
        "f: >-\n"
        "  text\n"
        "g: null # last"
    )
    said = dict(beside(file))
    assert said["defaults"] == "of what it is made"
    assert said["short.mu"] == "a name"
    assert (said["a"], said["b"], said["c"], said["c.d"]) == ("first and second line", "", "a section", "inside")
    assert (said["e"], said["f"], said["g"]) == ("", "", "last")


def test_a_key_of_the_choice_that_is_made() -> None:
    (rho,) = meanings("noise.rho")
    assert (rho.value, rho.allowed, rho.file) == ("0.6", "a number from 0 to 1", "conf/noise/fedcorr.yaml")
    assert rho.comment.startswith("probability that a client is noisy; FedCorr, Table 1")
    (lr,) = meanings("train.lr", ["dataset=mnist", "protocol.lr=0.2"])
    assert (lr.value, lr.source, lr.file) == ("0.2", "protocol.lr", "conf/protocol/mnist.yaml")
    (kappa,) = meanings("method.kappa", ["method=fedcorr"])
    assert kappa.stands_for == "method.corrector.kappa"
    assert kappa.comment == dict(beside(Path(__file__).parents[2] / "conf/method/corrector/fedcorr.yaml"))["kappa"]
    (rounds,) = meanings("method.stages.finetune.rounds", ["method=fedcorr", "method.T2=7"])
    assert (rounds.value, rounds.allowed) == ("7", "a whole number from 0 to 1,000,000")
    assert not meanings("noise.eta")


def test_a_number_is_written_without_the_last_digits_of_binary_fractions() -> None:
    (rho,) = meanings("noise.rho", ["noise.rho=0.44999999999999996"])
    assert rho.value == "0.45"


def test_a_key_that_other_choices_have_is_explained_for_each(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(monkeypatch, capsys, "noise.eta")
    assert "noise.eta=0.45  with noise=pair\n  Co-teaching, Section 4" in text
    assert "with noise=symmetric" in text
    assert "with noise=pair" not in told(monkeypatch, capsys, "noise.eta", "noise=symmetric")


def test_a_key_of_another_data_set_is_explained_with_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = told(monkeypatch, capsys, "dataset.sites")
    assert text.startswith("dataset.sites=auto  with dataset=image_folder\n  whether the folders of train are sites")
    text = told(monkeypatch, capsys, "dataset.timeout")
    assert "with dataset=cifar10, dataset=cifar100, dataset=fashion_mnist, dataset=mnist" in text, "of those alike"


@pytest.mark.parametrize("key", ["", " ", ".", "@", "/"])
def test_what_is_no_name_of_a_key_is_refused_in_words(
    key: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        told(monkeypatch, capsys, key)
    assert capsys.readouterr().err.startswith(f"error: {key!r} is no key of the configuration: ")


def test_a_section_has_a_line_for_each_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = told(monkeypatch, capsys, "method", "method=fedcorr").splitlines()
    assert lines[0].startswith("method.T1=8  a whole number from 0 to 1,000,000  iterations")
    keys = [line.partition("=")[0] for line in lines]
    assert len(set(keys)) == len(keys)
    assert "method.corrector.kappa" not in keys, "its short key is explained"
    assert not [key for key in keys if "._" in key]


def test_what_is_no_key(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    for words, why in ((["rho"], "did you mean noise.rho?"), (["noise=pair"], "takes a key"), ([], "required: KEY")):
        with pytest.raises(SystemExit) as left:
            told(monkeypatch, capsys, *words)
        assert left.value.code == 2
        assert why in capsys.readouterr().err


def test_the_keys_of_a_folder_of_ones_own(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "noise").mkdir()
    (tmp_path / "noise" / "mine.yaml").write_text("defaults: [fedcorr@_here_, _self_]\nrho: 0.1 # how often we err\n")
    text = told(monkeypatch, capsys, "noise.rho", "noise=mine", "--config-dir", str(tmp_path))
    assert "noise.rho=0.1\n  how often we err\n" in text
    assert str(tmp_path / "noise" / "mine.yaml") in text
