"""Adapts another client's model to a client: only its last layer is trained."""

from dataclasses import replace

from torch import Tensor

from flnl.core.messages import ClientState, ClientTask
from flnl.core.model import Model
from flnl.core.payload import Params, Payload
from flnl.core.streams import torch_seed
from flnl.core.training import Training
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.parts.batches import Plain
from flnl.parts.losses.cross_entropy import CrossEntropy


def in_head(name: str) -> bool:
    """Whether a parameter is of the last layer, by its name; each network of a pair has one.

    >>> [in_head(name) for name in ("head.weight", "second.head.bias", "body.1.weight")]
    [True, True, False]
    """
    return name.split(".")[-2:-1] == ["head"]


def with_trained_head(
    network: Model, task: ClientTask, params: Params, among: Tensor, training: Training, number: int
) -> Params:
    """``params`` after ``training`` of the last layer alone, by cross-entropy on some of the client's samples.

    The rest of the network runs in training mode, so running statistics of batch norm adapt to the client. Training
    that diverges is undone.

    Args:
        network: the process's network.
        task: the client's task.
        params: the model; not modified.
        among: the samples, bool [n].
        training: as of local training; its rate is multiplied by its decay for each round.
        number: number of the client whose model it is, on which the random draws depend.
    """
    assert isinstance(network, Network), "training needs a full Network, not only the Model protocol"
    where = among.nonzero()[:, 0]
    own = replace(
        task,
        samples=task.samples.at(where),
        broadcast=replace(task.broadcast, params=params, extras=Payload()),
        state=ClientState(labels=task.labels[where]),
        seed=torch_seed(task.seed, "head of a neighbour", number),
    )
    here = training.at(task.broadcast.round, rounds=sum(task.broadcast.lengths))
    job = LocalTraining(here, Plain(), {"cross_entropy": CrossEntropy()}, gradient=None, exchanges={})
    with network.apart(), network.training_only(in_head):
        result = job(network, own)
    return result.params if result.finite and result.params is not None else params
