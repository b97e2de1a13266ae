"""Logits adjusted by how frequent the classes are among a client's labels."""

import torch
import torch.nn.functional as F
from torch import Tensor

from flnl.core.messages import ClientTask
from flnl.core.model import Model
from flnl.core.onto import onto
from flnl.numerics.scaling import label_shares


def log_prior(network: Model, task: ClientTask) -> Tensor:
    """The logarithms of the classes' shares π among the client's labels, [K]; -inf for classes that it lacks."""
    shares = torch.from_numpy(label_shares(task.labels.numpy(), network.num_classes))
    return onto(shares.log(), network.device, network.dtype)


def adjusted(logits: Tensor, log_prior: Tensor) -> Tensor:
    """Log-probabilities [B, K] of ``softmax(z + log π)`` from logits z [B, K]; 0 for classes with π = 0.

    A class with π = 0 has no probability and gets no gradient.
    """
    logs = F.log_softmax(logits + log_prior, 1)
    return torch.where(log_prior.isinf(), 0.0, logs)


def distilled(logs: Tensor, teacher: Tensor, temperature: float) -> Tensor:
    """``KL(softmax(z_t / τ) ‖ p)`` [B], from ``adjusted`` log p and the teacher's logits z_t, both [B, K]."""
    soft = F.softmax(teacher / temperature, 1)
    return (torch.xlogy(soft, soft) - soft * logs).sum(1)
