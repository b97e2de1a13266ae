"""SCAFFOLD's control variates as numbers: what a client's becomes after a visit, by either option of the paper."""

from collections.abc import Callable, Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.core.payload import Params
from flnl.engine.network import Network


def gain(steps: int, momentum: float) -> float:
    """``‖a‖₁ = [K − ρ (1 − ρ^K) / (1 − ρ)] / (1 − ρ)``: how far K steps go along a constant gradient, in units of lr.

    K without momentum ρ. The momentum starts at zero, and its first value is the first gradient, as in torch (Wang et
    al., NeurIPS 2020, Sec. 4).

    >>> gain(3, 0.0), gain(2, 0.5)  # 1 + (1 + 0.5)
    (3.0, 2.5)
    """
    return (steps - momentum * (1 - momentum**steps) / (1 - momentum)) / (1 - momentum)


def mean_gradient(received: Mapping[str, Tensor], trained: Params, drift: Params, length: float) -> Params:
    """``c_k⁺ = c_k − c + (x − y_k) / length``, the mean of the client's own gradients at its steps (option II).

    Args:
        received: x, the model that the client started from.
        trained: y_k, the model that it ended with.
        drift: ``c_k − c`` during the visit.
        length: ``K η``, or ``‖a‖₁ η`` under momentum.
    """
    return {name: d + (received[name].to(d) - trained[name].to(d)) / length for name, d in drift.items()}


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    """Of each sample, [n]."""
    return F.cross_entropy(logits, labels, reduction="none")


def full_gradient(
    network: Model, task: ClientTask, losses: Callable[[Tensor, Tensor], Tensor] = cross_entropy
) -> Params:
    """The gradient of the client's mean loss at the received model, over all of its samples (option I).

    Without augmentation, dropout and mixed precision. Batch norm uses the statistics of all samples together, as one
    batch; its running statistics stay as they are. So with batch norm all samples are in memory at once.

    Args:
        network: the process's network; whatever it holds, it holds again afterwards.
        task: the client's task, with at least one sample.
        losses: of each sample, [n], from logits [n, K] and labels [n].
    """
    assert isinstance(network, Network), "a gradient needs a full Network, not only the Model protocol"
    device, dtype = network.device, network.dtype
    labels = onto(task.labels, device)
    weight = torch.ones(len(labels)) if task.state.weight is None else task.state.weight
    shares = onto(weight.double() / weight.double().sum().clamp_min(1e-12), device, dtype)
    places = torch.arange(len(labels))
    with network.apart(), torch.enable_grad():
        network.load(task.broadcast.params)
        _normalising_only(network.module, training=len(labels) > 1)
        trainable = network.trainable()
        found = {name: torch.zeros_like(p) for name, p in trainable.items()}
        for part in (places,) if network.has_batch_norm else places.split(network.chunk(1)):
            inputs = network.prepare(network.here(task.samples.images).read(task.samples.index[part]))
            network.count(len(part))
            there = onto(part, device)
            loss = (shares[there] * losses(network.module(inputs), labels[there])).sum()
            gradients = torch.autograd.grad(loss, list(trainable.values()), allow_unused=True)
            for total, gradient in zip(found.values(), gradients, strict=True):
                if gradient is not None:
                    total += gradient
    return found


def _normalising_only(module: nn.Module, *, training: bool) -> None:
    """Evaluation mode, but for layers that normalise by the batch's statistics."""
    module.eval()
    for layer in module.modules():
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.train(training)
