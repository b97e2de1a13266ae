"""Layers that compute for K clients at once, with separate weights for each client.

The clients' features are concatenated along channels: images are [B, K·C, H, W] and vectors [B, K·F], client by client.
After a linear layer vectors are [K, B, F], the result of K batched matrix products. Layers that act on each channel
separately (ReLU, pooling, flattening, sums of branches) need no stacked form. K is inferred from the tensors.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.engine.stacked.errors import NotStackable
from flnl.models.text import MeanEmbedding, masked_mean


@dataclass(frozen=True)
class Form:
    """Memory layouts of one tensor of K clients, and conversions between them. ``leaf`` and ``client`` return views."""

    store: Callable[[Tensor], Tensor]  # [K, *shape] to the stored layout, [K, ...]
    leaf: Callable[[Tensor], Tensor]  # stored layout to the layer's layout
    client: Callable[[Tensor, int], Tensor]  # (layer's layout, K) to [K, *shape]


SIDE_BY_SIDE = Form(
    lambda t: t, lambda t: t.flatten(0, 1), lambda t, clients: t.view(clients, t.shape[0] // clients, *t.shape[1:])
)
"""[K·C, ...]: weights of convolutions, all tensors of batch norm except the counter."""
MATRICES = Form(lambda t: t.transpose(1, 2), lambda t: t, lambda t, _: t.transpose(1, 2))
"""[K, in, out]: weights of linear layers; their gradients have this layout."""
ROWS = Form(lambda t: t, lambda t: t.unsqueeze(1), lambda t, _: t.squeeze(1))
"""[K, 1, out]: biases of linear layers."""
NUMBERS = Form(lambda t: t, lambda t: t, lambda t, _: t)
"""[K]: one number per client."""


def channels_last(weights: Tensor, of: Callable[[Tensor], Tensor] = lambda t: t) -> Tensor:
    """Convolutions' weights [K, out, in, h, w] with ``in`` last in memory, after ``of`` them as [K, out, h, w, in]."""
    return of(weights.permute(0, 1, 3, 4, 2)).contiguous().permute(0, 1, 4, 2, 3)


class Layer(nn.Module):
    """A layer whose tensors are plain attributes set from outside; None for tensors that the layer lacks."""

    forms: Mapping[str, Form]

    def __init__(self, names: Mapping[str, Form]) -> None:
        super().__init__()
        self.forms = names
        for name in names:
            setattr(self, name, None)


class Linear(Layer):
    """[B, K·F] or [K, B, F] to [K, B, out]."""

    weight: Tensor
    bias: Tensor | None

    def __init__(self, _: nn.Linear) -> None:
        super().__init__({"weight": MATRICES, "bias": ROWS})

    def forward(self, inputs: Tensor) -> Tensor:
        """One matrix product per client."""
        if inputs.dim() == 2:
            inputs = inputs.view(inputs.shape[0], self.weight.shape[0], -1).transpose(0, 1)
        return inputs.bmm(self.weight) if self.bias is None else torch.baddbmm(self.bias, inputs, self.weight)


class Conv2d(Layer):
    """[B, K·C, H, W] to [B, K·out, H', W']: a grouped convolution with (at least) one group per client.

    ``memory_format`` is that of the inputs it computes on, and so of its outputs.
    """

    memory_format = torch.contiguous_format
    weight: Tensor
    bias: Tensor | None

    def __init__(self, layer: nn.Conv2d) -> None:
        if layer.padding_mode != "zeros":
            raise NotStackable(f"a convolution with padding_mode={layer.padding_mode}")
        super().__init__({"weight": SIDE_BY_SIDE, "bias": SIDE_BY_SIDE})
        self.outputs, self.groups = layer.out_channels, layer.groups
        self.stride, self.padding, self.dilation = layer.stride, layer.padding, layer.dilation

    def forward(self, inputs: Tensor) -> Tensor:
        """One grouped convolution for all clients."""
        groups, weight = len(self.weight) // self.outputs * self.groups, self.weight
        if self.memory_format is torch.channels_last:
            inputs = inputs.contiguous(memory_format=torch.channels_last)
            if weight.shape[1] == 3 and _slow_with_three(inputs.device):
                inputs, weight = _with_a_fourth(inputs, groups), _with_a_fourth(weight, 1)
        return F.conv2d(inputs, weight, self.bias, self.stride, self.padding, self.dilation, groups)


def _slow_with_three(device: torch.device) -> bool:
    """Whether a grouped convolution is faster with four channels a group than with three, the colours of an image.

    So oneDNN's are on CPUs with AVX2 and without AVX-512: by a factor of 1.0 to 1.8, most of all in small networks.
    """
    return device.type == "cpu" and torch.backends.cpu.get_cpu_capability() == "AVX2"


def _with_a_fourth(tensor: Tensor, groups: int) -> Tensor:
    """[N, G·3, H, W] to [N, G·4, H, W], in channels_last: zeros after the three channels of each group."""
    channels = tensor.permute(0, 2, 3, 1).unflatten(3, (groups, 3))
    return F.pad(channels, (0, 1)).flatten(3).permute(0, 3, 1, 2)


class BatchNorm(Layer):
    """[B, K·C, ...] or [K, B, C] to [B, K·C, ...]; running statistics are updated in place."""

    running_mean: Tensor | None
    running_var: Tensor | None
    num_batches_tracked: Tensor | None
    weight: Tensor | None
    bias: Tensor | None

    def __init__(self, layer: nn.BatchNorm1d | nn.BatchNorm2d) -> None:
        if layer.momentum is None:
            raise NotStackable("batch norm with momentum=None")
        names = dict.fromkeys(("weight", "bias", "running_mean", "running_var"), SIDE_BY_SIDE)
        super().__init__({**names, "num_batches_tracked": NUMBERS})
        self.momentum, self.eps, self.vectors = layer.momentum, layer.eps, isinstance(layer, nn.BatchNorm1d)

    def forward(self, inputs: Tensor) -> Tensor:
        """Normalise each client's channels by the statistics of that client's batch."""
        if self.vectors and inputs.dim() == 3:
            inputs = inputs.transpose(0, 1).flatten(1)
        if self.training and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        return F.batch_norm(
            inputs,
            self.running_mean,
            self.running_var,
            self.weight,
            self.bias,
            self.training or self.running_mean is None,
            self.momentum,
            self.eps,
        )


class Embedding(Layer):
    """Token ids [B, K·L] to the means of embeddings, [B, K·d]."""

    weight: Tensor  # [K·V, d]

    def __init__(self, layer: MeanEmbedding) -> None:
        super().__init__({"weight": SIDE_BY_SIDE})
        self.words = layer.num_embeddings

    def forward(self, inputs: Tensor) -> Tensor:
        """One lookup for all clients, each in its own part of the table."""
        clients = len(self.weight) // self.words
        ids = inputs.view(len(inputs), clients, -1)
        first = self.words * torch.arange(clients, device=ids.device)[:, None]
        return masked_mean(ids, self.weight, first).flatten(1)


class Dropout(Layer):
    """[B, K·C, ...] or [K, B, F], each client's features by masks that its own generator draws.

    On a CPU ``nn.Dropout`` draws such a mask from torch's generator, in the order of memory: so a client that trains
    alone in the same ``memory_format`` has the same ones. A GPU's kernel draws from the device's only generator: there
    one client is trained at a time, and none has a generator of its own.
    """

    memory_format = torch.contiguous_format

    def __init__(self, layer: nn.Dropout) -> None:
        if layer.p == 1:
            raise NotStackable("the network has dropout that keeps nothing")
        super().__init__({})
        self.p, self.kept = layer.p, 1 - layer.p
        self.generators: Sequence[torch.Generator] = ()  # of the clients, in order; set from outside on a CPU

    def forward(self, inputs: Tensor) -> Tensor:
        """Zero some features, and scale the others."""
        if not self.training or not self.generators:
            return F.dropout(inputs, self.p, self.training)
        clients = len(self.generators)
        side_by_side = inputs.dim() != 3
        each = inputs.unflatten(1, (clients, -1)).unbind(1) if side_by_side else inputs.unbind()
        layout = self.memory_format if inputs.dim() == 4 else torch.contiguous_format
        masks = [
            torch.empty(own.shape, dtype=own.dtype, memory_format=layout).bernoulli_(self.kept, generator=generator)
            for own, generator in zip(each, self.generators, strict=True)
        ]
        mask = torch.cat(masks, 1) if side_by_side else torch.stack(masks)
        return inputs * mask.div_(self.kept)


KNOWN: Mapping[type[nn.Module], Callable[..., Layer]] = {
    nn.Linear: Linear,
    nn.Conv2d: Conv2d,
    nn.BatchNorm1d: BatchNorm,
    nn.BatchNorm2d: BatchNorm,
    MeanEmbedding: Embedding,
    nn.Dropout: Dropout,
}
"""Stacked form of each layer, by exact type: a subclass may compute something else."""
