"""What a site reports is held against what its annotations say, so that nothing is summed that names nobody later."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flnl.core.payload import Payload
from flnl.methods.fedcorr.exchange import LidScore, NoiseLevel
from flnl.methods.feddiv.exchange import LocalFilter
from flnl.methods.feddiv.noise_filter import Filter
from flnl.methods.fedln.energy import Energies
from flnl.methods.fednoro.exchange import ClassLosses
from flnl.methods.fedpeer.exchange import LabelCounts
from flnl.methods.fnre.exchange import Agreement
from flnl.methods.rofl.exchange import ClientCentroids
from flnl.methods.scaffold.exchange import ControlVariateChange
from flnl.parts.messages import UsedSamples
from flnl.parts.shared_layers import TrainedLayers
from flnl.sites import messages, values
from flnl.sites.audit_messages import CountedIssues
from flnl.sites.messages import DONE
from flnl.sites.values import Sender
from flnl.sites.wire import WireError

MODEL = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}
FILTER = Filter((0.1, 2.0), (0.5, 1.0), (0.25, 0.75))
NAN, INF = math.nan, math.inf


def doubles(*numbers: float) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.float64)


def check(*reports: Any) -> None:
    """Those of one site of 10 samples of 3 classes."""
    sender = Sender(3, 10, MODEL, {})
    for report in reports:
        values.check(report, sender)


@pytest.mark.parametrize(
    "report",
    [
        LidScore(2.5),
        NoiseLevel(1.0),
        UsedSamples(10),
        LocalFilter(FILTER, 10),
        LabelCounts(torch.tensor([0, 4, 6])),
        ClassLosses(doubles(NAN, INF, 1)),
        Energies(torch.zeros(10).double(), torch.ones(10).double()),
        Agreement(0.5, None),
        Agreement(0.5, doubles(0, 0.5, 0.5)),
        ClientCentroids(torch.full((3, 4), NAN), torch.tensor([1, 2, 3])),
        ControlVariateChange({"weight": torch.ones(2, 3)}, 1.0),
        TrainedLayers({"first": torch.zeros(4)}),
    ],
    ids=lambda report: type(report).__name__,
)
def test_what_is_as_it_should_be_passes(report: Any) -> None:
    check(report)


@pytest.mark.parametrize(
    ("report", "told"),
    [
        (LidScore(NAN), "LidScore whose value is not finite"),
        (NoiseLevel(1.01), "NoiseLevel whose value is out of range"),
        (UsedSamples(-1), "is negative"),
        (UsedSamples(11), "counts more samples than the site has"),
        (LocalFilter(FILTER, 2**60), "LocalFilter whose count counts more"),
        (LocalFilter(Filter((0.1, NAN), (0.5, 1.0), (0.25, 0.75)), 1), "Filter whose mean is not finite"),
        (LocalFilter(Filter((0.1, 0.1), (0.0, 1.0), (0.25, 0.75)), 1), "Filter whose variance is out of range"),
        (LabelCounts(torch.tensor([5, 5, 5])), "counts more samples"),
        (LabelCounts(torch.tensor([-5, 5, 5])), "is negative"),
        (LabelCounts(torch.tensor([2**62, 2**62, 2**62])), "counts more samples"),
        (LabelCounts(torch.tensor([1, 1])), r"of another shape than \[K\]"),
        (LabelCounts(torch.tensor([[1, 1, 1]])), "2 dimensions instead of 1"),
        (LabelCounts(doubles(1, 1, 1)), "is float64 instead of int64"),
        (ClassLosses(torch.zeros(3)), "is float32 instead of float64"),
        (Energies(torch.zeros(9).double(), torch.ones(10).double()), r"received is of another shape than \[n\]"),
        (Energies(torch.zeros(10).double(), torch.full((10,), INF).double()), "trained is not finite"),
        (Agreement(0.5, doubles(0, NAN, 0)), "predicted is not finite"),
        (ControlVariateChange({"weight": torch.ones(3, 2)}, 1.0), "not like one of the model"),
        (ControlVariateChange({"other": torch.ones(2)}, 1.0), "not like one of the model"),
        (ControlVariateChange({"bias": torch.tensor([1, NAN])}, 1.0), "values is not finite"),
        (
            CountedIssues(torch.zeros(3, 3).long(), torch.ones(1).long(), None, None),
            r"pair is of another shape than \[2\]",
        ),
    ],
)
def test_what_is_not_is_named(report: Any, told: str) -> None:
    with pytest.raises(WireError, match=told):
        check(report)


def test_lengths_that_nobody_declares_are_those_of_the_first_site() -> None:
    counts = torch.tensor([1, 1, 1])
    check(ClientCentroids(torch.zeros(3, 4), counts), ClientCentroids(torch.zeros(3, 4), counts))
    with pytest.raises(WireError, match="of another form than that of other sites"):
        check(ClientCentroids(torch.zeros(3, 4), counts), ClientCentroids(torch.zeros(3, 5), counts))
    with pytest.raises(WireError, match="of another form"):
        check(TrainedLayers({"first": torch.zeros(4)}), TrainedLayers({"other": torch.zeros(4)}))
    with pytest.raises(WireError, match="of another form"):
        check(TrainedLayers({"first": torch.zeros(4)}), TrainedLayers({"first": torch.zeros(5)}))


REPORTS = (
    LidScore(2.5),
    LocalFilter(FILTER, 10),
    LabelCounts(torch.tensor([0, 4, 6])),
    Agreement(0.5, doubles(0, 1, 0)),
)
NUMBERS = {"trained": 30, "scored": 0, "num_samples": 10, "loss": 0.7, "steps": 3, "finite": True}
SAID = messages.written(
    DONE,
    **{"kind": "done", "reports": Payload(*REPORTS), "kept": "a" * 32, **NUMBERS},
    **{"moved": 0.1, "relabelled": None, "changed": None, "outcome": None},
)
MUTATIONS = st.lists(
    st.tuples(
        st.sampled_from(["set", "cut", "put", "copy", "length"]), st.floats(0, 1), st.binary(min_size=1, max_size=20)
    ),
    min_size=1,
    max_size=4,
)


def mutated(frame: bytes, mutations: Sequence[tuple[str, float, bytes]]) -> bytes:
    """A frame with these mistakes, each at a place of its own."""
    data = bytearray(frame)
    for kind, where, some in mutations:
        at = int(where * len(data))
        match kind:
            case "set":
                data[at : at + len(some)] = some
            case "cut":
                del data[at : at + len(some)]
            case "put":
                data[at:at] = some
            case "copy":
                data[at:at] = data[: 2 * len(some)]
            case _:
                data[8:16] = some[:8].ljust(8, b"\0")
    return bytes(data)


@pytest.mark.parametrize("count", [500, pytest.param(10_000, marks=pytest.mark.slow)])
def test_mutated_answers_raise_nothing_else(count: int) -> None:
    """Some are answers nevertheless, of other numbers; those are within their ranges."""
    outcomes = Counter[str]()

    @settings(max_examples=count, deadline=None, database=None, derandomize=True)
    @given(mutations=MUTATIONS)
    def reading(mutations: Sequence[tuple[str, float, bytes]]) -> None:
        try:
            header = messages.read_header([mutated(SAID, mutations)], {"done": DONE}, [type(one) for one in REPORTS])
            check(*header["reports"])
            outcomes["read"] += 1
        except WireError:
            outcomes["refused"] += 1

    reading()
    assert outcomes["refused"] > count / 2
