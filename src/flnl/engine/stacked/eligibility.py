"""Decides whether clients can be stacked, and how many at once."""

from flnl.core.execution import BLOCK
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked.errors import NotStackable
from flnl.engine.stacked.network import stacked


def why_not(job: LocalTraining, network: Network) -> str | None:
    """Why these clients cannot be trained as one network; None if they can, as far as is known without running them.

    The first call compares the network with its stacked form.
    """
    for part in (job.batch, *job.terms.values()):
        if part.alone is not None:
            return f"{type(part).__name__} {part.alone}"
    if job.training.visit_cosine:
        return "the rate falls within each visit (train.visit_cosine), at each client's own steps"
    try:
        stacked(network)
    except NotStackable as refusal:
        return str(refusal)
    return None


WORKSPACES = 64 * 2**20
"""Bytes that libraries keep for a branch's stream: cuBLAS 32 MiB (``CUBLAS_WORKSPACE_CONFIG``) for each of the two
threads that run forward and backward passes."""


def clients_in(
    job: LocalTraining, network: Network, most: int, limit: int, *, graphs: bool = False, branches: bool = False
) -> int:
    """Number of clients to train at once in ``limit`` bytes, at most ``most``; 0 if too few fit.

    The number is a multiple of ``BLOCK``, unless ``most`` is smaller, or ``graphs`` make small stacks worthwhile. Each
    client needs its model four times (weights, gradients, momentum, result), seven times with graphs (also the graph's
    weights and momentum, and the received model), plus the activations of one batch; an optimiser with further buffers
    of the parameters' size needs more, and so does a gradient transform that changes the optimiser's step (parameters
    before it, and new ones twice). A copy of the model in a term's state is there twice, the client's own and the
    stack's, and with graphs twice more, before and after a recorded step. With ``branches`` a client also needs the
    workspaces of its stream. On a GPU clients with dropout are trained one at a time. The rule ignores load and
    machine, so a resumed run is split in the same way anywhere.
    """
    most = 1 if stacked(network).network.alone_on(network.device) else most
    parameters = sum(t.numel() * t.element_size() for t in network.module.state_dict(keep_vars=True).values())
    activations = job.training.batch_size * stacked(network).activations
    further = max(0, sum(not buffer.scalar for buffer in job.training.buffers) - 1) + 3 * job.updates
    held = sum(term.copies for term in job.terms.values())
    copies = 7 + 2 * further + 4 * held if graphs else 4 + further + 2 * held
    each = copies * parameters + activations + (WORKSPACES if branches else 0)
    fit = min(most, int(limit // each))
    if fit < BLOCK:
        return fit if graphs or most < BLOCK else 0
    return fit - fit % BLOCK
