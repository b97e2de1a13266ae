"""A network that computes for K clients at once: a copy of the module with stacked layers in place of its own."""

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.func import functional_call

from flnl.core.payload import Params
from flnl.engine.network import Network
from flnl.engine.stacked.errors import NotStackable, line
from flnl.engine.stacked.layers import KNOWN, Form, Layer
from flnl.models import outputs as by_name

SAMPLES, CLIENTS = 3, 2
"""Of the comparison with the plain network; unlike each other, so that no dimension is taken for another."""


@dataclass(frozen=True)
class Slot:
    """Where a tensor of the plain module's state dict goes."""

    layer: Layer
    attribute: str
    form: Form


class StackedNetwork:
    """The stacked form of a module. It holds no parameters: tensors in the layers' form are bound before it runs."""

    def __init__(self, module: nn.Module) -> None:
        """Replace the layers.

        Raises:
            NotStackable: if a layer has no stacked form.
        """
        unique, named = (len(list(module.named_parameters(remove_duplicate=r))) for r in (True, False))
        if unique != named:
            raise NotStackable("layers of the network share parameters")
        self.module = deepcopy(module)
        self.slots: dict[str, Slot] = {}
        for path, layer in module.named_modules():
            if isinstance(layer, nn.modules.dropout._DropoutNd) and layer.p > 0:
                raise NotStackable("the network has dropout")
            own = {name for name, t in (*layer._parameters.items(), *layer._buffers.items()) if t is not None}
            if not own:
                continue
            if type(layer) not in KNOWN:
                raise NotStackable(f"the network's layer {path or 'itself'} is a {type(layer).__name__}")
            stacked = KNOWN[type(layer)](layer)
            if not path:
                self.module = stacked
            else:
                parent, _, name = path.rpartition(".")
                setattr(self.module.get_submodule(parent), name, stacked)
            for name in own:
                self.slots[f"{path}.{name}" if path else name] = Slot(stacked, name, stacked.forms[name])
        self.names = list(module.state_dict())
        self.trainable = [name for name, p in module.named_parameters() if p.requires_grad]
        self._bound: Mapping[str, Tensor] | None = None

    def store(self, params: Sequence[Params]) -> dict[str, Tensor]:
        """Received parameters and buffers of all clients as they are kept, [K, ...] each, by name."""
        kept = {}
        for name, slot in self.slots.items():
            first = params[0][name]
            shared = all(p[name] is first for p in params)
            tensor = first.expand(len(params), *first.shape) if shared else torch.stack([p[name] for p in params])
            kept[name] = slot.form.store(tensor).clone(memory_format=torch.contiguous_format)
        return kept

    def bind(self, tensors: Mapping[str, Tensor]) -> None:
        """Compute with these from now on: by name, in the layers' form."""
        if tensors is self._bound:
            return
        self._bound = tensors
        for name, tensor in tensors.items():
            slot = self.slots[name]
            setattr(slot.layer, slot.attribute, tensor)

    def release(self) -> None:
        """Hold no tensors any more."""
        self._bound = None
        for slot in self.slots.values():
            setattr(slot.layer, slot.attribute, None)

    def kept(self, name: str, tensor: Tensor) -> Tensor:
        """As it is kept, of a tensor [K, *shape] as the plain module has it."""
        return self.slots[name].form.store(tensor).contiguous()

    def leaf(self, name: str, kept: Tensor) -> Tensor:
        """The layers' form of a tensor that is kept so."""
        return self.slots[name].form.leaf(kept)

    def client(self, name: str, leaf: Tensor, clients: int) -> Tensor:
        """As the plain module has it, [K, *shape], of a tensor in the layers' form."""
        return self.slots[name].form.client(leaf, clients)

    def outputs(self, inputs: Tensor, clients: int) -> dict[str, Tensor]:
        """The network's outputs on ``inputs`` [B, K·C, H, W] by name, [K, B, ...] each."""
        named = by_name.outputs(self.module, inputs)
        return {name: t if t.dim() == 3 else t.view(len(t), clients, -1).transpose(0, 1) for name, t in named.items()}


@dataclass(frozen=True)
class Stackable:
    """A stacked network that was found to agree with the plain one."""

    network: StackedNetwork
    activations: int  # bytes that one sample of one client leaves for the backward pass


_known: WeakKeyDictionary[Network, Stackable | str] = WeakKeyDictionary()


def stacked(network: Network) -> Stackable:
    """The stacked form of ``network``, made and compared at the first call.

    Raises:
        NotStackable: if it has none, or if the two do not agree.
    """
    if network not in _known:
        try:
            _known[network] = _compared(network)
        except NotStackable as refusal:
            _known[network] = str(refusal)
    found = _known[network]
    if isinstance(found, str):
        raise NotStackable(found)
    return found


def _compared(network: Network) -> Stackable:
    """Run both on random inputs of two clients in float64, as in training and as in evaluation.

    What the layers' types cannot tell is seen here: a forward pass that mixes channels or counts samples.
    """
    module, many = network.module, StackedNetwork(network.module)
    draw = torch.Generator().manual_seed(0)

    def near(tensor: Tensor) -> Tensor:
        noise = 0.1 * torch.rand(tensor.shape, generator=draw, dtype=torch.float64).to(tensor.device)
        return tensor.detach().double() + noise if tensor.is_floating_point() else tensor.clone()

    params = [{name: near(t) for name, t in module.state_dict().items()} for _ in range(CLIENTS)]
    shape = (CLIENTS, SAMPLES, len(network.transform.mean), *network.transform.size)
    inputs = torch.randn(shape, generator=draw, dtype=torch.float64).to(network.device)
    mode = module.training
    try:
        with torch.random.fork_rng(devices=[network.device] if network.device.type == "cuda" else []):
            for training in (True, False):
                module.train(training)
                many.module.train(training)
                kept = many.store(params)  # copies: either pass moves running statistics of its own
                together = _stacked_outputs(many, kept, inputs)
                alone = [by_name.outputs_with(module, p, x) for p, x in zip(params, inputs, strict=True)]
                same = all(
                    _close(t, torch.stack([outputs[name] for outputs in alone])) for name, t in together.items()
                ) and all(
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


def _stacked_outputs(many: StackedNetwork, kept: Params, inputs: Tensor) -> dict[str, Tensor]:
    """Outputs [K, B, ...] by name; any failure on the way is a reason not to stack."""
    many.bind({name: many.leaf(name, t) for name, t in kept.items()})
    try:
        return many.outputs(inputs.transpose(0, 1).flatten(1, 2), CLIENTS)
    except Exception as error:  # a forward pass may do anything with its features
        raise NotStackable(f"the network's forward pass does not take stacked features ({line(error)})") from error


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one.double(), other.double(), rtol=1e-9, atol=1e-9)


def _saved(module: nn.Module, params: Params, inputs: Tensor) -> int:
    """How many floats, beside the parameters, a forward pass leaves for the backward pass."""
    found = {t.untyped_storage().data_ptr(): 0 for t in params.values()}

    def note(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found.setdefault(storage.data_ptr(), storage.nbytes() // inputs.element_size())
        return tensor

    for name, parameter in module.named_parameters():
        params[name].requires_grad_(parameter.requires_grad)
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        logits = functional_call(module, params, (inputs,))
    del logits
    return sum(found.values())
