"""What can be stacked, and how many clients at once."""

from flnl.core.execution import BLOCK
from flnl.core.parts import BatchRule, GradientTransform
from flnl.engine.local.batching import inherits
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked.errors import NotStackable
from flnl.engine.stacked.network import stacked


def why_not(job: LocalTraining, network: Network) -> str | None:
    """Why these clients cannot be trained as one; None where they can, as far as can be told without running them.

    The network is compared with its stacked form at the first call.
    """
    if not inherits(job.batch, BatchRule, "select"):
        return f"{type(job.batch).__name__} chooses samples by the client's own model"
    if job.gradient is not None and not inherits(job.gradient, GradientTransform, "update"):
        return f"{type(job.gradient).__name__} acts on the optimiser's step"
    try:
        stacked(network)
    except NotStackable as refusal:
        return str(refusal)
    return None


def clients_in(job: LocalTraining, network: Network, most: int, limit: int, *, graphs: bool = False) -> int:
    """How many clients to train at once in ``limit`` bytes, at most ``most``: 0 if too few fit.

    They are whole blocks, unless ``most`` is less than one, or a few are worth a stack because steps are ``graphs``.
    A client takes its model four times (weights, gradients, momentum, result), seven times with a graph (weights and
    momentum of the graph's own, the received model), and what one batch leaves for the backward pass. The rule knows no
    load and no machine, so that a run is cut alike wherever it goes on.
    """
    parameters = sum(t.numel() * t.element_size() for t in network.params().values())
    activations = job.training.batch_size * stacked(network).activations
    fit = min(most, int(limit // ((7 if graphs else 4) * parameters + activations)))
    if fit < BLOCK:
        return fit if graphs or most < BLOCK else 0
    return fit - fit % BLOCK
