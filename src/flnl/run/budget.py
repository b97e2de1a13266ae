"""What a run will train, from its resolved configuration: data set, network, number of local trainings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from flnl.config.registry import stored_name
from flnl.numerics.rounding import cohort_size


def dataset_name(dataset: Mapping[str, Any]) -> str:
    """The data set's name, with its size if only a part of it is used."""
    parts = ("train_size", "train_sample", "test_size", "test_writers")
    sizes = [f"{name}={dataset[name]}" for name in parts if dataset.get(name) is not None]
    return " ".join([str(dataset["name"]), *sizes])


def model_name(model: Mapping[str, Any]) -> str:
    """The class of the network, with its arguments."""
    arguments = ", ".join(f"{name}={value}" for name, value in sorted(model.items()) if not name.startswith("_"))
    return f"{stored_name(str(model['_target_']))}({arguments})"


def training_kind(plain: Mapping[str, Any]) -> tuple[str, str, str, int]:
    """Data set, network, precision and batch size: on them the time of a pass depends, beside method and device."""
    batch = int(plain["train"]["batch_size"])
    return dataset_name(plain["dataset"]), model_name(plain["model"]), str(plain.get("precision", 32)), batch


def clients(plain: Mapping[str, Any]) -> int:
    """The number of clients that train; 1 if it follows from the data."""
    return 1 if plain["centralized"] else int(plain["partition"].get("num_clients") or 1)


def trainings(plain: Mapping[str, Any]) -> int:
    """The budget of local trainings of a resolved configuration, over all stages.

    A stage of passes trains every client once per pass. A stage of rounds trains one cohort per round, of the
    fraction that its sampler sets, or else the method's sampler, or else the run.
    """
    return sum(_stage_trainings(plain, stage) for stage in plain["method"]["stages"].values())


def _stage_trainings(plain: Mapping[str, Any], stage: Mapping[str, Any]) -> int:
    number = clients(plain)
    if "passes" in stage:
        return int(stage["passes"]) * number
    sampler = stage.get("sampler") or plain["method"]["sampler"]
    fraction = sampler.get("fraction", plain["fraction"])
    return int(stage["rounds"]) * (1 if fraction is None else cohort_size(float(fraction), number))


def epochs(plain: Mapping[str, Any]) -> float:
    """Epochs of a local training, on average over the budget: stages may set a number of their own.

    ``train.steps`` is not counted: how many epochs they are is not known before the data are read.
    """
    usual, total = plain["train"]["epochs"], trainings(plain)
    epochs = sum(
        _stage_trainings(plain, stage) * stage.get("train", {}).get("epochs", usual)
        for stage in plain["method"]["stages"].values()
    )
    return float(epochs / total if total else usual)


def passes(plain: Mapping[str, Any]) -> float:
    """The budget in passes over all training data: each local training is over one client's average share."""
    return trainings(plain) * epochs(plain) / clients(plain)
