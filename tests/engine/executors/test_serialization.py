"""What travels comes out as it went in, and what is shared does not travel."""

import pickle
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from flnl.core.messages import Broadcast, ClientState, ClientTask, Samples
from flnl.core.payload import Payload
from flnl.data.images import TensorImages
from flnl.engine.executors.serialization import Shared, decode, encode, pack
from flnl.engine.executors.shared_memory import ALIGNED, place
from tests.properties.runs import difference

KINDS = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.bool)
TENSORS = [
    *(torch.tensor([[0, 1, 2], [3, 4, 5]]).to(kind) for kind in KINDS),
    torch.tensor(3.5),
    torch.empty(0),
    torch.empty(2, 0, 3),
    torch.tensor([torch.nan, -torch.nan, torch.inf, -0.0]),
    torch.arange(12.0).reshape(3, 4).t(),
    torch.arange(12.0)[4:7],
    torch.arange(4.0).requires_grad_(),
]


@pytest.mark.parametrize("number", range(len(TENSORS)))
def test_tensors_of_every_kind(number: int) -> None:
    tensor = TENSORS[number]
    found = decode(encode({"it": tensor}, Shared()), Shared())["it"]
    raw = (t.detach().contiguous().reshape(-1).view(torch.uint8).tolist() for t in (tensor, found))
    assert next(raw) == next(raw)
    assert (found.dtype, found.shape, found.stride()) == (tensor.dtype, tensor.shape, tensor.stride())
    assert found.requires_grad == tensor.requires_grad


def test_a_small_part_of_a_large_tensor_travels_alone() -> None:
    assert len(encode(torch.zeros(1_000_000)[5:8], Shared())) < 500


def test_tensors_have_memory_of_their_own_aligned_as_torch_does() -> None:
    """Some sums depend on where a tensor lies, and nobody's writing may reach another."""
    message = encode([torch.ones(n) for n in range(1, 30)], Shared())
    found: list[Tensor] = decode(message, Shared())
    assert all(tensor.data_ptr() % ALIGNED == 0 for tensor in found)
    found[0].zero_()
    assert decode(message, Shared())[0].item() == 1


def a_task() -> tuple[ClientTask, Shared, Shared]:
    """A task, what its sender shares, and what a receiver holds in its place."""
    images = TensorImages(torch.zeros(50, 3, 32, 32, dtype=torch.uint8))
    params = {"w": torch.randn(100, 100), "b": torch.randn(3)}
    state = ClientState(terms={"pull": {"last": params, "w": params["w"]}}, extras=Payload(torch.arange(3)))
    samples = Samples(images, torch.arange(5), torch.ones(5, dtype=torch.int64))
    task = ClientTask(3, samples, Broadcast(1, 1, params, Payload(("extra", 1.5))), state, 1)
    there = Shared([replace(images)], {name: p.clone() for name, p in params.items()})
    return task, Shared([images], params), there


def test_what_is_shared_stays_and_comes_back_as_itself() -> None:
    task, here, there = a_task()
    message = encode(task, here)
    assert len(message) < 2_000
    found: ClientTask = decode(message, there)
    assert found.broadcast.params is there.params
    assert found.samples.images is there.images[0]
    assert found.state.terms["pull"]["last"] is there.params
    assert found.state.terms["pull"]["w"] is there.params["w"]
    back: ClientTask = decode(encode(found, there), here)
    assert back.broadcast.params is task.broadcast.params
    assert back.samples.images is task.samples.images
    assert difference(back.state, task.state) is None
    assert difference(back.samples.index, task.samples.index) is None


def test_equal_is_not_the_same() -> None:
    """Only the very object is shared; a copy may be written to."""
    task, here, there = a_task()
    copy = {name: p.clone() for name, p in here.params.items()}
    found: ClientTask = decode(encode(replace(task, broadcast=Broadcast(1, 1, copy)), here), there)
    assert found.broadcast.params is not there.params
    assert difference(found.broadcast.params, copy) is None


@dataclass(frozen=True)
class Message:
    """Sent to all."""

    value: Tensor


def test_a_message_for_all_stays_and_comes_back_as_itself() -> None:
    task, here, there = a_task()
    message, its = Message(torch.zeros(1000)), Message(torch.ones(1000))
    task = replace(task, broadcast=replace(task.broadcast, extras=Payload(message, 0)))
    here, there = replace(here, messages=[message]), replace(there, messages=[its])
    sent = encode(task, here)
    assert len(sent) < 2_000
    found: ClientTask = decode(sent, there)
    assert found.broadcast.extras.one(Message) is its
    back: ClientTask = decode(encode(found, there), here)
    assert back.broadcast.extras.one(Message) is message


def test_what_is_placed_is_read_where_it_lies() -> None:
    value = {"a": torch.arange(5, dtype=torch.uint8), "b": torch.randn(7, 3), "none": torch.empty(0), "s": "text"}
    packed, tensors = pack(value)
    assert [t is value[n] for t, n in zip(tensors, ("a", "b", "none"), strict=True)] == [True] * 3
    found = place(packed)
    one, other = found.map().value(), found.map().value()
    assert difference(one, value) is None
    assert one["b"].data_ptr() % ALIGNED == 0
    one["b"].fill_(7)
    assert other["b"].sum() == 7 * 21, "both see the same memory"
    assert pickle.loads(packed.header, buffers=packed.pieces)["b"].sum() != 7 * 21
