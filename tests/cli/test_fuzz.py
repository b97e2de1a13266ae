"""Every key of every configuration, with values that nobody means: it is refused by name, or it is a run.

A line is a command: its words are checked, composed, checked against the schema, and the run is assembled as far as the
same words without the strange one get. Some of those that pass are run for a round.
"""

import copy
import io
import os
import random
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from pathlib import Path
from types import FrameType

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig

from flnl.commands import guard
from flnl.config import compose, schema
from flnl.config.check import check_config, check_machine, check_read
from flnl.config.short_keys import connect
from flnl.run import opening, overrides
from tests.cli.conftest import Command, Said
from tests.registry import TINY

VALUES = {
    "another type": "abc",
    "negative": "-1",
    "zero": "0",
    "one": "1",
    "half": "0.5",
    "huge": "1e308",
    "a huge integer": "99999999999999999999999",
    "a large integer": "999999999999999999",
    "many digits": "9" * 5000,
    "nan": "nan",
    "inf": "inf",
    "-inf": "-inf",
    "overflow": "1e400",
    "empty": "''",
    "nothing": "",
    "list": "[1,a]",
    "empty list": "[]",
    "dict": "{a:1}",
    "empty dict": "{}",
    "a part": "{_target_:os.system}",
    "unicode": "'ü☃\u202e\x1b[31m'",
    "lines": "'a\nb'",
    "NUL": "'a\0b'",
    "no character": "a\udcffb",
    "very long": "x" * 5000,
    "null": "null",
    "true": "true",
    "an interpolation": "${nothing}",
}
"""By what is wrong with them. Some are right for some keys."""

SHORT = ("another type", "zero", "one", "half", "null", "true", "empty dict")
"""Values with which a run takes a moment, where it is one."""

OFFLINE = ("dataset.download=false", "dataset.mirror=nowhere")
TERMS = ("entropy_minimization", "symmetric_cross_entropy", "generalized_cross_entropy", "label_smoothing")
IMAGENET = ("resnet18_imagenet", "resnet50", "vgg11")
BY_NAME = {
    "inception_resnet_v2": "dataset.image_size=75",
    "module": "model.path=torchvision.models.MobileNetV2",
    "torchvision": "model.name=resnet18",
}

BASES: dict[tuple[str, ...], str] = {
    (): "",
    **{(f"method={name}",): "method" for name in compose.options("method")},
    **{("method=fedavg", f"method/local=[cross_entropy,{term}]"): f"method.local.{term}" for term in TERMS},
    ("method=fedavg", "method/local=[temperature_scaling]"): "method.local",
    ("method=fedavg", "method/local=[truncated_gce]"): "method.local",
    ("method=fedavg", "method/batch=mixup"): "method.batch",
    ("method=fedes", "method/sampler=fedes_of_quality"): "method.sampler",
    ("method=fedcorr", "method/local=[flr]", "method/stages=fedcorr_flr"): "method.stages",
    **{(f"{group}={name}",): group for group in ("partition", "noise", "executor") for name in compose.options(group)},
    **{(f"model={name}",): "model" for name in compose.options("model") if name not in (*IMAGENET, *BY_NAME)},
    **{("dataset=image_folder", f"model={name}"): "model" for name in IMAGENET},
    **{("dataset=image_folder", f"model={name}", word): "model" for name, word in BY_NAME.items()},
    **{(f"dataset={name}",): "dataset" for name in ("arrays", "image_folder", "clothing1m", "digits")},
    **{(f"dataset={name}", *OFFLINE): "dataset" for name in ("cifar10", "cifar100", "fashion_mnist", "mnist", "svhn")},
}
"""Words that choose, and the section whose keys are then met."""

BESIDE = {
    "dataset.train_size": "partition.num_clients",  # too few samples for the clients
    "dataset.download": "dataset.mirror",
    "method.name": "for method=",  # the protocol's section for it is sought
}
"""Keys whose value is right by itself, and the one that is named where the two do not fit each other."""

PATIENCE = 60


class HangError(BaseException):
    """A line took too long."""


@contextmanager
def patience() -> Iterator[None]:
    """An end to what would not end."""

    def stop(number: int, frame: FrameType | None) -> None:
        raise HangError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(PATIENCE)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def words_of(base: Sequence[str]) -> list[str]:
    """A tiny run's words with those of a base."""
    chosen = {word.split("=")[0] for word in base}
    gone = tuple(f"{group}." for group in ("model", "dataset") if group in chosen)
    return [w for w in TINY if w.split("=")[0] not in chosen and not (gone and w.startswith(gone))] + list(base)


def keys_of(composed: DictConfig, section: str) -> list[str]:
    """All keys, sections included, in or below a section."""
    found: list[str] = []

    def walk(key: str, node: object) -> None:
        if key and key not in schema.GROUPS:
            found.append(key)
        if isinstance(node, dict):
            for name, inner in node.items():
                walk(f"{key}.{name}" if key else str(name), inner)

    walk("", compose.resolved(composed))
    return [key for key in found if not section or key == section or key.startswith(f"{section}.")]


def lines(base: tuple[str, ...], composed: DictConfig, each: int) -> list[tuple[str, str, str]]:
    """Key, kind and word of each line of a base; the same whenever it is asked."""
    draw = random.Random(" ".join(("fuzz", *base)))
    return [
        (key, kind, f"{key}={VALUES[kind]}")
        for key in keys_of(composed, BASES[base])
        for kind in draw.sample(sorted(VALUES), each)
    ]


def assembled(words: Sequence[str], composed: DictConfig, word: str | None) -> Said:
    """How a command ends that stops before its first round; Hydra sets the word on what the others compose to."""

    def entry() -> None:
        overrides.check_arguments(words)
        cfg = copy.deepcopy(composed)
        if word is not None:
            ConfigLoaderImpl._apply_overrides_to_config(OverridesParser.create().parse_overrides([word]), cfg)
        connect(cfg, words)
        check_config(cfg)
        check_machine(cfg)
        check_read(cfg, words)
        claimed = opening.claim(cfg, words, None)
        with opening.open_session(cfg, words, claimed):
            pass

    return ended(entry)


def ended(entry: Callable[[], object]) -> Said:
    """Its exit code and what it said."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with redirect_stdout(out), redirect_stderr(err), patience():
        try:
            guard.guarded(entry, overrides=False)
        except SystemExit as left:
            code = left.code if isinstance(left.code, int) else 1
    return Said(code, out.getvalue(), err.getvalue())


def fault(key: str, answer: Said) -> str | None:
    """What is wrong with how a refused line ended; None where nothing is."""
    if answer.code != 2:
        return f"exit code {answer.code}"
    if answer.err.count("\n") != 1 or not answer.err.startswith("error: ") or not answer.err[:-1].isprintable():
        return "not one line"
    if key not in answer.err and BESIDE.get(key, key) not in answer.err:
        return "the key is not named"
    return "a traceback" if "Traceback" in answer.err else None


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES, ids=lambda base: " ".join(base) or "default")
def test_every_key_is_refused_by_name_or_taken(
    base: tuple[str, ...], command: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FLNL_DATA", str(tmp_path / "data"))
    monkeypatch.setattr(sys, "argv", ["flnl"])
    words = words_of(base)
    composed = compose.load(words)
    reference = assembled([*words, "output=reference"], composed, None)
    wrong, taken, counts = [], [], {"refused": 0, "taken": 0}
    for number, (key, kind, word) in enumerate(lines(base, composed, each=1 if base else 4)):
        monkeypatch.delenv("HYDRA_FULL_ERROR", raising=False)
        rest = [w for w in words if w.split("=")[0] != key]
        answer = assembled([*rest, word], composed, word)
        if answer.code == 0 or (reference.code == 2 and answer.err == reference.err):
            counts["taken"] += 1
            taken += [word] if answer.code == 0 and kind in SHORT else []
        elif (reason := fault(key, answer)) is not None:
            wrong.append(f"{number}: {word[:80]!r} ({kind}): {reason}: {answer.err[:300]}")
        else:
            counts["refused"] += 1
    for word in random.Random(str(base)).sample(taken, min(3, len(taken))):
        rest = [w for w in words if w.split("=")[0] != word.split("=")[0]]
        answer = command(*rest, word, "max_rounds=1", "train.epochs=1")
        if answer.code != 0:
            wrong.append(f"run: {word!r}: {answer.err[-300:]}")
        counts["run"] = counts.get("run", 0) + 1
    if count := os.environ.get("FLNL_FUZZ_COUNTS"):  # a file to which the numbers of all bases are added
        with Path(count).open("a") as file:
            file.write(f"{' '.join(base) or 'default'}: {counts}\n")
    assert not wrong, "\n".join(wrong)


def test_there_are_enough_of_them() -> None:
    """Of the smallest base and the largest; composing all takes a while."""
    assert len(BASES) >= 60
    composed = compose.load(words_of(()))
    found = lines((), composed, each=4)
    assert len(found) >= 600
    assert len({kind for _, kind, _ in found}) == len(VALUES)
    assert found == lines((), composed, each=4)
