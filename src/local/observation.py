"""What is noted of a client's model just after its training: where it ran, so that no model travels for it."""

from src.core import ClientTask, Observation, Params
from src.diagnostics import squared_move
from src.network import Network


def observe(network: Network, task: ClientTask, params: Params) -> Observation:
    """Of ``params``, which the network holds: predictions in eval mode and without augmentation."""
    moved = squared_move(task.broadcast.params, params, network.trainable())
    return Observation(moved, network.logits(task.samples).argmax(1))
