"""A network that computes for K clients at once: a copy of the module with its layers replaced by stacked ones."""

import logging
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flnl.core.payload import Params
from flnl.core.step import LOGITS
from flnl.core.streams import torch_seeded
from flnl.engine.network import Network
from flnl.engine.stacked.compiled_update import Update
from flnl.engine.stacked.compiling import Compiled
from flnl.engine.stacked.errors import NotStackable, line
from flnl.engine.stacked.layers import KNOWN, Conv2d, Dropout, Form, Layer, Linear, channels_last
from flnl.engine.stacked.lower_precision import rounded
from flnl.models import outputs as by_name

log = logging.getLogger(__name__)

CONTIGUOUS = torch.contiguous_format
SAMPLES, CLIENTS = 3, 2
"""Sizes for the comparison with the plain network; different, so that mixed-up dimensions are noticed."""


class Outputs(dict[str, Tensor]):
    """Outputs of a stacked network by name; to read one that has no stacked form raises ``NotStackable``."""

    def __missing__(self, name: str) -> Tensor:
        raise NotStackable(f"the network has no output {name!r} for many clients at once")


@dataclass(frozen=True)
class Slot:
    """The place in the stacked network of one tensor of the plain module's state dict."""

    layer: Layer
    attribute: str
    form: Form


class StackedNetwork:
    """The stacked form of a module. It owns no parameters: tensors in the layers' layout are bound before it runs."""

    def __init__(self, module: nn.Module) -> None:
        """Copy the module and replace its layers.

        Raises:
            NotStackable: if a layer has no stacked form.
        """
        unique, named = (len(list(module.named_parameters(remove_duplicate=r))) for r in (True, False))
        if unique != named:
            raise NotStackable("layers of the network share parameters")
        self.module = deepcopy(module)
        self.slots: dict[str, Slot] = {}
        self.dropouts: list[Dropout] = []
        for path, layer in module.named_modules():
            tensors = {name for name, t in (*layer._parameters.items(), *layer._buffers.items()) if t is not None}
            drops = isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0
            if not tensors and not drops:
                continue
            if type(layer) not in KNOWN:
                raise NotStackable(f"the network's layer {path or 'itself'} is a {type(layer).__name__}")
            stacked = KNOWN[type(layer)](layer)
            if not path:
                self.module = stacked
            else:
                parent, _, name = path.rpartition(".")
                setattr(self.module.get_submodule(parent), name, stacked)
            if isinstance(stacked, Dropout):
                self.dropouts.append(stacked)
            for name in tensors:
                self.slots[f"{path}.{name}" if path else name] = Slot(stacked, name, stacked.forms[name])
        for parent in [one for one in self.module.modules() if isinstance(one, nn.Sequential)]:
            for name, layer in [*parent.named_children()]:
                if isinstance(layer, nn.modules.dropout._DropoutNd):  # it drops nothing, and takes 1 % of an MLP's step
                    delattr(parent, name)
        self.names = list(module.state_dict())
        self.trainable = [name for name, p in module.named_parameters() if p.requires_grad]
        self.converted = [name for name in self.trainable if isinstance(self.slots[name].layer, Conv2d | Linear)]
        self.readable: tuple[str, ...] = ()  # outputs that agree with those of the plain module
        self._bound: Mapping[str, Tensor] | None = None
        self._weights_last = False
        self._compiled: Compiled | None = None
        self.updates = dict[Hashable, Update]()  # compiled steps of optimisers

    def store(self, params: Sequence[Params]) -> dict[str, Tensor]:
        """Stack the received parameters and buffers of all clients: stored layout, [K, ...] each, by name."""
        kept = {}
        for name, slot in self.slots.items():
            first = params[0][name]
            shared = all(p[name] is first for p in params)
            tensor = first.expand(len(params), *first.shape) if shared else torch.stack([p[name] for p in params])
            whole = slot.form.store(tensor)
            last = self._last(slot, whole)
            kept[name] = channels_last(whole, Tensor.clone) if last else whole.clone(memory_format=CONTIGUOUS)
        return kept

    def bind(self, tensors: Mapping[str, Tensor]) -> None:
        """Use these tensors, by name and in the layers' layout, from now on."""
        if tensors is self._bound:
            return
        self._bound = tensors
        for name, tensor in tensors.items():
            slot = self.slots[name]
            setattr(slot.layer, slot.attribute, tensor)

    def in_bfloat16(self, tensors: Params) -> Params:
        """The same, with bfloat16 copies of the weights and biases that autocast would convert one by one."""
        copies = rounded([tensors[name] for name in self.converted])
        return {**tensors, **dict(zip(self.converted, copies, strict=True))}

    def draw_from(self, generators: Sequence[torch.Generator]) -> None:
        """Draw masks of dropout from these, one of each client, from now on."""
        for layer in self.dropouts:
            layer.generators = generators

    def alone_on(self, device: torch.device) -> bool:
        """Whether clients are trained one at a time there: those with dropout, whose masks a GPU cannot draw apart."""
        return bool(self.dropouts) and device.type != "cpu"

    def lay_out(self, memory_format: torch.memory_format, *, weights: bool = False) -> None:
        """Compute convolutions, and what follows them, in this memory layout from now on.

        With ``weights``, theirs are stored in it, too, so that no step has to convert them.
        """
        self._weights_last = weights and memory_format == torch.channels_last
        for layer in self.module.modules():
            if isinstance(layer, Conv2d | Dropout):
                layer.memory_format = memory_format

    @contextmanager
    def on_copies(self) -> Iterator[None]:
        """Within this, what runs computes on copies of the bound tensors and changes nothing."""
        bound = self._bound or {}
        self.bind({name: t.detach().clone().requires_grad_(t.requires_grad) for name, t in bound.items()})
        try:
            yield
        finally:
            self.bind(bound)

    def release(self) -> None:
        """Drop all tensors."""
        self._bound = None
        for slot in self.slots.values():
            setattr(slot.layer, slot.attribute, None)

    def kept(self, name: str, tensor: Tensor) -> Tensor:
        """Convert a tensor [K, *shape], in the plain module's layout, to the stored layout."""
        slot = self.slots[name]
        stored = slot.form.store(tensor)
        return channels_last(stored) if self._last(slot, stored) else stored.contiguous()

    def _last(self, slot: Slot, tensor: Tensor) -> bool:
        """Whether a tensor in the stored layout lies channels last."""
        return self._weights_last and isinstance(slot.layer, Conv2d) and tensor.dim() == 5

    def leaf(self, name: str, kept: Tensor) -> Tensor:
        """Convert a tensor from the stored layout to the layer's layout (a view)."""
        return self.slots[name].form.leaf(kept)

    def client(self, name: str, leaf: Tensor, clients: int) -> Tensor:
        """Convert a tensor from the layer's layout to the plain module's, [K, *shape]."""
        return self.slots[name].form.client(leaf, clients)

    def outputs(self, inputs: Tensor, clients: int, *, compiled: bool = False) -> Outputs:
        """The ``readable`` outputs on ``inputs`` [B, K·C, H, W] by name, [K, B, ...] each.

        Raises:
            UserError: if they are to be computed by compiled code and cannot.
        """
        if compiled:
            if self._compiled is None:
                self._compiled = Compiled(self.module, self.readable, self.on_copies)
            named = dict(zip(self.readable, self._compiled(inputs), strict=True))
        else:
            named = by_name.outputs(self.module, inputs)
        return Outputs({name: _by_client(named[name], clients) for name in self.readable})


def _by_client(output: Tensor, clients: int) -> Tensor:
    """[K, B, ...], from [B, K·d] or as it is."""
    return output if output.dim() == 3 else output.view(len(output), clients, -1).transpose(0, 1)


@dataclass(frozen=True)
class Stackable:
    """A stacked network whose outputs agree with those of the plain one."""

    network: StackedNetwork
    activations: int  # bytes saved for the backward pass per sample of one client


_known: WeakKeyDictionary[Network, Stackable | str] = WeakKeyDictionary()


def stacked(network: Network) -> Stackable:
    """The stacked form of ``network``, built and compared with it at the first call.

    Raises:
        NotStackable: if it has none, or if its outputs differ from those of ``network``.
    """
    if network not in _known:
        try:
            _known[network] = _compared(network)
        except NotStackable as refusal:
            _known[network] = str(refusal)
    result = _known[network]
    if isinstance(result, str):
        raise NotStackable(result)
    return result


def _compared(network: Network) -> Stackable:
    """Run both networks on random inputs of two clients in float64, in training and in evaluation mode.

    This detects what layer types do not show: a forward pass that mixes channels or depends on the number of samples.
    Of the outputs, only the logits must have a stacked form; others are readable if they do.
    """
    module, many = network.module, StackedNetwork(network.module)
    draw = torch.Generator().manual_seed(0)

    def near(tensor: Tensor) -> Tensor:
        noise = 0.1 * torch.rand(tensor.shape, generator=draw, dtype=torch.float64).to(tensor.device)
        if not tensor.is_floating_point():
            return tensor.clone()
        return (tensor.detach().double() + noise).contiguous()  # as ``many``: dropout draws in the order of memory

    params = [{name: near(t) for name, t in module.state_dict().items()} for _ in range(CLIENTS)]
    inputs = network.transform.example((CLIENTS, SAMPLES), draw).to(network.device)
    mode = module.training
    try:
        with torch_seeded(0, network.device):
            for training in (True, False):
                module.train(training)
                many.module.train(training)
                kept = many.store(params)  # copies, because both passes update running statistics
                if many.alone_on(network.device):
                    _keep_all(module, many.module)
                else:
                    many.draw_from([torch.Generator().manual_seed(k) for k in range(CLIENTS)])
                together = _stacked_outputs(many, kept, inputs)
                alone = []
                for k, (own, its) in enumerate(zip(params, inputs, strict=True)):
                    with torch_seeded(k, network.device):
                        alone.append(by_name.outputs_with(module, own, its))
                many.readable = tuple(
                    name
                    for name, output in together.items()
                    if (training or name in many.readable) and _agrees(output, [outputs[name] for outputs in alone])
                )
                same = LOGITS in many.readable and all(
                    _close(many.client(name, many.leaf(name, t), CLIENTS), torch.stack([p[name] for p in params]))
                    for name, t in kept.items()
                )
                if not same:
                    raise NotStackable("the network's forward pass mixes channels or samples")
            module.train()
            activations = _saved(module, params[0], inputs[0])
    finally:
        module.train(mode)
        many.release()
    return Stackable(many, activations * network.dtype.itemsize // SAMPLES)


def _keep_all(*modules: nn.Module) -> None:
    """Drop nothing, as in evaluation."""
    for layer in (layer for module in modules for layer in module.modules()):
        if isinstance(layer, Dropout | nn.modules.dropout._DropoutNd):
            layer.eval()


def _stacked_outputs(many: StackedNetwork, kept: Params, inputs: Tensor) -> dict[str, Tensor]:
    """Outputs by name as the stacked module gives them; any failure means that the network cannot be stacked."""
    many.bind({name: many.leaf(name, t) for name, t in kept.items()})
    try:
        return by_name.outputs(many.module, inputs.transpose(0, 1).flatten(1, 2))
    except Exception as error:  # a forward pass may do anything with its features
        raise NotStackable(f"the network's forward pass does not take stacked features ({line(error)})") from error


def _agrees(together: Tensor, alone: Sequence[Tensor]) -> bool:
    """Whether a stacked output is that of each client alone."""
    try:
        return _close(_by_client(together, CLIENTS), torch.stack(list(alone)))
    except Exception as error:  # a user's network may call anything an output
        log.debug("%r", error)
        return False


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=1e-9, atol=1e-9)


def _saved(module: nn.Module, params: Params, inputs: Tensor) -> int:
    """Number of floats that a forward pass saves for the backward pass, without the parameters."""
    sizes = {t.untyped_storage().data_ptr(): 0 for t in params.values()}  # by storage

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        sizes.setdefault(storage.data_ptr(), storage.nbytes() // inputs.element_size())
        return tensor

    for name, parameter in module.named_parameters():
        params[name].requires_grad_(parameter.requires_grad)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = functional_call(module, params, (inputs,))
    del logits
    return sum(sizes.values())
