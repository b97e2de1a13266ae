"""Bytes between a server and sites: values come back as they were, and nothing else than values comes out of them."""

import json
import math
import pickle
import tracemalloc
from contextlib import suppress
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from flnl.core.errors import UserError
from flnl.core.payload import Payload
from flnl.core.stored import name_of
from flnl.methods.fedcorr.exchange import LidScore, NoiseDirective
from flnl.methods.feddiv.exchange import LocalFilter
from flnl.methods.feddiv.noise_filter import Filter
from flnl.sites import wire
from flnl.sites.wire import DTYPES, LARGEST_HEADER, MAGIC, WireError, checked_model, fits, read, written
from tests.properties.runs import difference

FILTER = LocalFilter(Filter((0.1, 2.0), (0.5, 1e-300), (0.25, 0.75)), 12)
VALUES: list[Any] = [
    None,
    [True, False, 0, -(2**63), 2**63 - 1, 0.1, -0.0, math.inf, math.nan, 5e-324, "", "ä\n\ud800"],
    (1, (2.5, [None])),
    {1: "one", "two": {3: (4,)}},
    Payload(LidScore(0.25), NoiseDirective(noisy=True, level=1.0), FILTER),
    [
        torch.zeros(0, 5),
        torch.from_numpy(np.zeros(0, np.int64)),
        torch.tensor(3),
        torch.arange(6).reshape(2, 3).T,
        torch.ones(2).requires_grad_(),
    ],
]
EXPECTED = (LidScore, NoiseDirective, LocalFilter)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    assert difference(read(written(value), EXPECTED), value) is None


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=str)
def test_a_tensor_keeps_its_type_and_bits(dtype: torch.dtype) -> None:
    tensor = (torch.arange(6) % 2).to(dtype).reshape(2, 3)
    back = read(written(tensor))
    assert back.dtype == dtype
    assert torch.equal(back, tensor)


def test_numbers_of_numpy_become_plain_ones() -> None:
    assert read(written([np.float64(0.1), np.int64(3), np.bool_(True)])) == [0.1, 3, True]


@pytest.mark.parametrize("value", [object(), {1, 2}, b"bytes", torch.ones(1, dtype=torch.complex64), WireError])
def test_what_is_no_value_is_not_written(value: Any) -> None:
    with pytest.raises(TypeError):
        written(value)


def framed(value: Any, tensors: Any = (), body: bytes = b"", **more: Any) -> bytes:
    header = json.dumps({"value": value, "tensors": list(tensors), **more}).encode()
    return MAGIC + len(header).to_bytes(8, "little") + header + body


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (b"", "no frame"),
        (pickle.dumps(1), "no frame"),
        (written(1)[:-1], "header of"),
        (written(1) + b"\0", "tells 0"),
        (written(torch.ones(2))[:-1], "tells 8"),
        (MAGIC + (10**9).to_bytes(8, "little") + b"{}", "header of 1,000,000,000"),
        (MAGIC + (2).to_bytes(8, "little") + b"\xff{", "no JSON"),
        (MAGIC + (10**5).to_bytes(8, "little") + b"[" * 10**5, "no JSON"),
        (framed(1, more=2), "without value and tensors"),
        (framed(2**63), "64 bits"),
        (framed({"other": 1}), "no known kind"),
        (framed({"tensor": 0}), "no known kind"),
        (framed([{"tensor": 0}, {"tensor": 0}], [["uint8", [1]]], b"1"), "no known kind"),
        (framed(None, [["uint8", [1]]], b"1"), "nothing refers to"),
        (framed({"tensor": 0}, [["float32", [2**40]]]), "larger than its frame"),
        (framed({"tensor": 0}, [["float32", [0, 2**62, 2**62]]]), "larger than its frame"),
        (framed({"tensor": 0}, [["float32", [-1]]]), "shape that is none"),
        (framed({"tensor": 0}, [["float32", [1] * 17]], b"1234"), "shape that is none"),
        (framed({"tensor": 0}, [["complex64", [1]]], b"12345678"), "unknown dtype"),
        (framed({"tensor": 0}, [["bool", [1]]], b"\2"), "bool"),
        (framed({"mapping": [[1, 2], [1, 3]]}), "key twice"),
        (framed({"mapping": [[2**63, 2]]}), "64 bits"),
        (framed({"mapping": [[[1], 2]]}), "neither numbers nor texts"),
        (framed({"payload": [1, 2]}), "two values of a type"),
        (framed({"class": "Checkpoint", "fields": {}}), "not expected"),
        (framed({"class": "LidScore", "fields": {}}), "other fields"),
        (framed({"class": "LidScore", "fields": {"value": 1.0, "more": 1}}), "other fields"),
        (framed({"class": "LidScore", "fields": {"value": "text"}}), "of another type"),
        (framed({"class": "NoiseDirective", "fields": {"noisy": 1, "level": 0.0}}), "of another type"),
    ],
)
def test_what_is_no_frame_is_refused(data: bytes, told: str) -> None:
    with pytest.raises(WireError, match=told):
        read(data, EXPECTED)


def test_a_value_is_not_nested_without_end() -> None:
    value: Any = 1
    for _ in range(wire.DEEPEST + 1):
        value = [value]
    with pytest.raises(WireError, match="32 levels"):
        read(written(value))


@pytest.mark.parametrize(
    ("of", "piece"), [("value", "[[[[]]]],"), ("value", '{"tuple":[]},'), ("tensors", '["uint8",[0]],')]
)
@pytest.mark.parametrize(("size", "memory"), [(LARGEST_HEADER, 50), (14 * 2**20, 1)])
def test_a_header_costs_little_memory(of: str, piece: str, size: int, memory: int) -> None:
    """In MiB, and whatever it holds: a header of 14 MiB is not parsed."""
    entries = (piece * ((size - 100) // len(piece))).removesuffix(",")
    values = {"value": "null", "tensors": "[]", of: f"[{entries}]"}
    header = ("{" + ",".join(f'"{name}":{text}' for name, text in values.items()) + "}").encode()
    frame = MAGIC + len(header).to_bytes(8, "little") + header
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match="header of" if size > LARGEST_HEADER else "values|kind|tensors|dtype"):
            read(frame, EXPECTED)
        assert tracemalloc.get_traced_memory()[1] < memory * 2**20
    finally:
        tracemalloc.stop()


def test_a_value_that_nobody_would_read_is_not_written() -> None:
    with pytest.raises(UserError, match=r"a header of 1,\d{3},\d{3} bytes, of which 1,048,576 can be sent"):
        written("a" * LARGEST_HEADER)


def test_a_value_has_no_more_than_so_many_entries() -> None:
    assert len(read(written([1] * (wire.MOST_VALUES - 1)))) == wire.MOST_VALUES - 1
    with pytest.raises(WireError, match="more than 65,536 values"):
        read(written([1] * wire.MOST_VALUES))


def test_a_frame_of_more_bytes_than_expected_is_not_read() -> None:
    with pytest.raises(WireError, match="24 are expected"):
        read(written(torch.ones(1000)), most=24)


def test_a_class_in_a_field_is_expected_with_it() -> None:
    assert read(written(FILTER), [LocalFilter]) == FILTER
    with pytest.raises(WireError, match="not expected"):
        read(written(FILTER), [Filter])


MODEL = {"weight": torch.zeros(2, 3), "bias": torch.zeros(2)}


@pytest.mark.parametrize(
    "sent",
    [
        [],
        {"weight": torch.zeros(2, 3)},
        {**MODEL, "more": torch.zeros(1)},
        {**MODEL, "bias": torch.zeros(3)},
        {**MODEL, "bias": torch.zeros(2, dtype=torch.float64)},
        {**MODEL, "bias": 0.0},
    ],
)
def test_a_model_must_be_like_the_one_that_was_sent(sent: Any) -> None:
    with pytest.raises(WireError):
        checked_model(sent, MODEL)


def test_a_model_has_the_order_of_the_one_that_was_sent() -> None:
    assert list(checked_model(dict(reversed(MODEL.items())), MODEL)) == list(MODEL)


@pytest.mark.parametrize(
    ("value", "hint", "fit"),
    [
        (1, int | None, True),
        (None, int | None, True),
        ("1", int | None, False),
        ((1.0, 2.0), tuple[float, float], True),
        ((1.0,), tuple[float, float], False),
        ([1], tuple[int, ...], False),
        ({1: FILTER}, dict[int, LocalFilter], True),
        ({1: 1}, dict[int, LocalFilter], False),
        (torch.ones(1), torch.Tensor, True),
        (True, float, False),
    ],
)
def test_values_are_held_against_types(value: Any, hint: Any, *, fit: bool) -> None:
    assert fits(value, hint) is fit


def mutated(frame: bytes, rng: np.random.Generator) -> bytes:
    """A frame with one to four mistakes: bytes changed, cut out, put in or copied, or a length in its front changed."""
    data = bytearray(frame)
    for _ in range(int(rng.integers(1, 5))):
        at = int(rng.integers(0, max(len(data), 1)))
        match rng.integers(0, 5):
            case 0 if data:
                data[at] = int(rng.integers(0, 256))
            case 1:
                del data[at : at + int(rng.integers(1, 20))]
            case 2:
                data[at:at] = rng.bytes(int(rng.integers(1, 20)))
            case 3 if len(data) > 16:
                data[8:16] = int(rng.choice([0, 1, len(data), 2**30, 2**63, int(rng.integers(0, 400))])).to_bytes(
                    8, "little"
                )
            case _:
                first = int(rng.integers(0, max(len(data), 1)))
                data[at:at] = data[first : first + 40]
    return bytes(data)


def test_ten_thousand_mutated_frames_raise_nothing_else() -> None:
    """A mutation of bytes of a tensor is a frame of another value; most others are refused."""
    rng, frames, refused = np.random.default_rng(3), [written(value) for value in VALUES], 0
    for number in range(10_000):
        try:
            read(mutated(frames[number % len(frames)], rng), EXPECTED)
        except WireError:
            refused += 1
    assert 6_000 < refused < 10_000


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["tensor", "tuple", "mapping", "payload", "class", "fields", "value"]), inner, max_size=2
        )
        | inner.map(lambda value: {"class": name_of(LidScore), "fields": {"value": value}})
    ),
    max_leaves=5,
)


@settings(max_examples=100, deadline=None)
@given(value=JSON, tensors=JSON, body=st.binary(max_size=20))
def test_no_header_raises_anything_else(value: Any, tensors: Any, body: bytes) -> None:
    header = json.dumps({"value": value, "tensors": tensors}).encode()
    assert len(header) < LARGEST_HEADER
    with suppress(WireError):
        read(MAGIC + len(header).to_bytes(8, "little") + header + body, EXPECTED)
