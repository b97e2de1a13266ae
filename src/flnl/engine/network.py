"""A torch module as a function of its parameters, on one device and in one precision.

Each process has one ``Network``, which owns the module; callers load parameters before they use it. Scoring passes run
in eval mode and full precision, without augmentation by default: mixed precision is for training only.
"""

import copy
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from math import prod
from typing import TYPE_CHECKING, Literal

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from flnl.core.errors import PartError, UserError
from flnl.core.inputs import Augmentation, Preparation
from flnl.core.messages import Broadcast, ClientTask, Samples
from flnl.core.model import Another, RunModel
from flnl.core.onto import onto
from flnl.core.payload import Params
from flnl.core.step import LOGITS, ForwardPasses
from flnl.core.streams import torch_seed, torch_seeded
from flnl.core.tally import Meter
from flnl.data.transforms import Transform
from flnl.engine.device_images import Resident
from flnl.engine.placement import Placement
from flnl.engine.recorded_passes import RecordedPasses
from flnl.models import outputs as by_name
from flnl.models.layers import has_batch_norm
from flnl.models.lightning_module import training_loss

if TYPE_CHECKING:
    from flnl.core.images import Images

Layout = Literal["auto", "contiguous", "channels_last"]
CHUNK_BYTES = 64 * 2**20
"""Upper limit for inputs prepared at once (but never less than one batch)."""


def laid_out(module: nn.Module, placement: Placement, layout: Layout) -> torch.memory_format:
    """Memory layout of convolutions' inputs and weights; it changes the order of sums, so it is a setting of the run.

    ``auto`` is channels last for networks with convolutions, which take about a tenth less time so on a CPU; on a GPU
    only in bf16 and TF32, whose matrix units need it; never in float64, which has no faster kernels for it.

    Raises:
        UserError: if channels last is asked for and not ``safe_channels_last``.
    """
    if not safe_channels_last(module, placement.device):
        if layout == "channels_last":
            raise UserError(
                "memory_format=channels_last: this model has a strided 1x1 convolution of fewer than 8 channels, and"
                " torch writes past the end of its gradient on some CPUs: set memory_format=auto, or give it 8 channels"
            )
        return torch.contiguous_format
    convolves = any(isinstance(layer, nn.Conv2d) for layer in module.modules())
    gains = ("32-true", "bf16-mixed") if placement.device.type == "cpu" else ("bf16-mixed", "32-tf32")
    last = layout == "channels_last" or (layout == "auto" and convolves and placement.precision in gains)
    return torch.channels_last if last else torch.contiguous_format


def safe_channels_last(module: nn.Module, device: torch.device) -> bool:
    """Whether no gradient of ``module`` is written past its end in channels last.

    oneDNN 3.12 (of torch 2.13) does so on CPUs with AVX2 and without AVX-512, and the process ends at some later
    allocation: for weights of strided 1x1 convolutions of fewer than eight channels that are not grouped.
    """
    return device.type != "cpu" or not any(
        layer.kernel_size == (1, 1) and max(layer.stride) > 1 and layer.groups == 1 and layer.in_channels < 8
        for layer in module.modules()
        if isinstance(layer, nn.Conv2d)
    )


class Network(RunModel):
    """The model, and the transform from stored images to its inputs."""

    def __init__(
        self, module: nn.Module, transform: Preparation, num_classes: int, placement: Placement, layout: Layout = "auto"
    ) -> None:
        self.placement = placement
        self.transform = transform
        self.num_classes = num_classes
        self.dtype = torch.float64 if placement.precision == "64-true" else torch.float32
        self.asked_layout: Layout = layout
        self.memory_format = laid_out(module, placement, layout)
        moved = module.to(device=placement.device, dtype=self.dtype)
        self._module: nn.Module = moved.to(memory_format=self.memory_format)  # type: ignore[call-overload]  # no stub
        self._awaited: Params | None = None  # parameters that ``module`` loads when it is next used
        self._lent = False  # to a part, which must load nothing
        self.has_batch_norm = has_batch_norm(module)
        self.has_buffers = any(True for _ in module.buffers())
        self._layers = tuple(module.modules())
        self._networks = by_name.passed(module, LOGITS)
        self.here = Resident(placement.device)
        """Maps stored images to those this network reads: moved to its device where they fit."""
        self._frozen: nn.Module | None = None
        self._frozen_of: Params | None = None
        self._received_of: Params | None = None
        self._received = deque[tuple[ClientTask, dict[str, Tensor]]](maxlen=1)  # outputs by name
        self.autocast = placement.autocast
        self.meter = Meter()
        self.recorded: RecordedPasses | None = None
        """Scores batches by CUDA graphs; set by an executor that records."""
        self.by_workers: Callable[[Images, Tensor, str], Tensor] | None = None
        """Scores many samples in worker processes; set by an executor while it has some."""

    @property
    def device(self) -> torch.device:
        """The module's device."""
        return self.placement.device

    @property
    def normalisation(self) -> tuple[Tensor, Tensor]:
        """Mean and standard deviation of each channel of images, [C, 1, 1]."""
        assert isinstance(self.transform, Transform), "other inputs than images have none"
        return self.transform.constants(self.dtype, self.device)

    @property
    def layout(self) -> Layout:
        """Name of the weights' memory layout."""
        return "channels_last" if self.memory_format == torch.channels_last else "contiguous"

    @property
    def module(self) -> nn.Module:
        """The module, which holds the parameters that were loaded last."""
        if self._awaited is not None:
            self._write(self._awaited)
        return self._module

    def load(self, params: Params) -> None:
        """Write ``params`` into the module, in place.

        Raises:
            PartError: while a part is called, which would train or report another model from then on.
        """
        if self._lent:
            raise PartError(
                "a part of the method loads a model into the network; should ask network.at(params).outputs(samples)"
            )
        self._write(params)

    def _write(self, params: Params) -> None:
        self._awaited, waits = None, self.device.type == "cpu"
        with torch.no_grad():
            for name, tensor in self._module.state_dict(keep_vars=True).items():
                tensor.copy_(params[name], non_blocking=not waits)

    @contextmanager
    def holding(self, params: Params) -> Iterator[None]:
        """Within this, the network holds ``params``, loaded only if it is used; afterwards, load others first."""
        self._awaited = params
        try:
            yield
        finally:
            self._awaited = None

    @contextmanager
    def lent(self) -> Iterator[None]:
        """Within this, a part uses the network: it must not ``load``."""
        outer, self._lent = self._lent, True
        try:
            yield
        finally:
            self._lent = outer

    @contextmanager
    def apart(self) -> Iterator[None]:
        """Within this, a part may train another model; afterwards the network is as before."""
        awaited, lent, training = self._awaited, self._lent, self._module.training
        held = self.params() if awaited is None else None
        self._awaited, self._lent = None, False
        try:
            yield
        finally:
            self._awaited, self._lent = awaited, lent
            if held is not None:
                self._write(held)
            self._module.train(training)

    def params(self) -> Params:
        """A contiguous copy of the module's current state dict."""
        held = self.module.state_dict().items()
        return {name: tensor.detach().clone(memory_format=torch.contiguous_format) for name, tensor in held}

    def trainable(self) -> Params:
        """The trainable parameters by name (not copies)."""
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}

    @contextmanager
    def training_only(self, wanted: Callable[[str], bool]) -> Iterator[None]:
        """Within this, only parameters of ``wanted`` names are trainable, of those that are otherwise."""
        others = [p for name, p in self.trainable().items() if not wanted(name)]
        for parameter in others:
            parameter.requires_grad = False
        try:
            yield
        finally:
            for parameter in others:
                parameter.requires_grad = True

    def passes(self, broadcast: Broadcast) -> ForwardPasses:
        """Forward passes for the steps of a client that received ``broadcast``."""
        return _Passes(self, self.frozen(broadcast))

    def scored(self, inputs: Tensor) -> Tensor:
        """Outputs [B, K] of the loaded parameters in eval mode, without gradients; leaves batch statistics alone."""
        with self.evaluating(), torch.no_grad():
            self.count(len(inputs))
            logits: Tensor = self.module(inputs)
        return logits

    def count(self, samples: int, *outputs: str) -> None:
        """Count samples that pass the module, whatever parameters it has, for these outputs; for logits by default.

        They are trained if gradients are computed.
        """
        networks = max(by_name.passed(self._module, name) for name in outputs) if outputs else self._networks
        self.meter.passed(samples * networks, trained=torch.is_grad_enabled())

    def normalising(self, rows: int) -> AbstractContextManager[None]:
        """Within this, batch norm uses its running statistics for ``rows`` = 1: one row has no statistics."""
        return self.evaluating() if rows == 1 and self.has_batch_norm else nullcontext()

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Within this, the module is in eval mode; afterwards each layer is in the mode in which it was.

        As ``module.eval()``, without the cost of ``nn.Module.__setattr__`` in each layer, which a small network's pass
        would notice.
        """
        modes = [layer.training for layer in self._layers]
        for layer in self._layers:
            layer.__dict__["training"] = False
        try:
            yield
        finally:
            for layer, mode in zip(self._layers, modes, strict=True):
                layer.__dict__["training"] = mode

    def frozen(self, broadcast: Broadcast, *, output: str = LOGITS) -> Callable[[Tensor], Tensor]:
        """One output of the received model in eval mode, separate from the one being trained; built at its first call.

        There is only one such model: calling a later result of this method changes the model of earlier results.
        """

        def forward(inputs: Tensor) -> Tensor:
            with torch.no_grad():
                self.count(len(inputs), output)
            return by_name.output(self.receive(broadcast), output, inputs)

        return forward

    def receive(self, broadcast: Broadcast) -> nn.Module:
        """The module behind ``frozen`` in eval mode, loaded with the received parameters; always the same memory.

        Parameters are loaded when the object ``broadcast.params`` changes: do not modify them in place.
        """
        if self._frozen is None:
            self._frozen = copy.deepcopy(self.module).eval()
            for parameter in self._frozen.parameters():
                parameter.requires_grad = False  # vmap refuses the method requires_grad_()
        if self._frozen_of is not broadcast.params:  # the reference keeps the object alive, so its identity is unique
            self._frozen.load_state_dict(broadcast.params)
            self._frozen_of = broadcast.params
        return self._frozen

    # ------------------------------------------------------------------------------------------------------- inputs

    def prepare(self, stored: Tensor, draws: Augmentation | None = None) -> Tensor:
        """Turn stored images [b, C, H', W'] into inputs [b, C, H, W] on the device, in the weights' memory layout."""
        return self.inputs(stored, draws, self.memory_format)

    def inputs(
        self, stored: Tensor, draws: Augmentation | None, memory_format: torch.memory_format = torch.contiguous_format
    ) -> Tensor:
        """As ``prepare``, in the given memory layout."""
        images = onto(stored, self.device)
        return self.transform.normalize(self.transform.augment(images, draws), self.dtype, memory_format)

    def chunk(self, batch_size: int) -> int:
        """Number of samples to prepare at once: whole batches, at most ``CHUNK_BYTES``."""
        each = prod(self.transform.shape) * (8 if self.dtype == torch.float64 else 4)
        return max(1, CHUNK_BYTES // (each * batch_size)) * batch_size

    def batches_at_once(self, batch_size: int) -> int:
        """Number of batches to prepare at once."""
        return self.chunk(batch_size) // batch_size

    # ------------------------------------------------------------------------------------------------------- scores

    def logits(self, samples: Samples, augment: np.random.Generator | None = None, *, output: str = LOGITS) -> Tensor:
        """Outputs of the loaded parameters on ``samples`` in eval mode; on the CPU, in the order of the samples.

        Args:
            samples: n samples.
            augment: random stream for augmentation; None for no augmentation.
            output: the name of the output: ``logits`` [n, K], ``features`` [n, d], a pair's ``first``, ``second``.
        """
        return self._scores(samples.images, samples.index, self.module, output, augment)

    def outputs(self, images: "Images", index: Tensor, *, output: str = LOGITS, on_device: bool = False) -> Tensor:
        """As ``logits``, for the images at ``index``; with ``on_device``, they stay there and nothing is waited for."""
        return self._scores(images, index, self.module, output, None, on_device=on_device)

    def shared_outputs(
        self, images: "Images", index: Tensor, *, output: str = LOGITS, on_device: bool = False
    ) -> Tensor:
        """As ``outputs``, to the bit, shared by the executor's workers if it has some: only while they are idle."""
        if self.by_workers is None or len(index) <= self.score_batch:
            return self.outputs(images, index, output=output, on_device=on_device)
        return self.by_workers(images, index, output)

    def received(self, task: ClientTask, augment: np.random.Generator | None = None, *, output: str = LOGITS) -> Tensor:
        """As ``logits``, for the model that ``task`` received, whatever is loaded now.

        Without augmentation, it is computed once per task, unless more tasks come between than ``receiving`` says.
        """
        if augment is not None:
            return self._of_received(task, output, augment)
        outputs = self._outputs_received(task)
        if output not in outputs:
            outputs[output] = self._of_received(task, output, None)
        return outputs[output]

    def at(self, params: Params) -> "_At":
        """The model with these parameters and buffers; the module keeps its own."""
        return _At(self, params)

    def _of_received(self, task: ClientTask, output: str, augment: np.random.Generator | None) -> Tensor:
        return self._scores(task.samples.images, task.samples.index, self.receive(task.broadcast), output, augment)

    @contextmanager
    def receiving(self, tasks: int) -> Iterator[None]:
        """Within this, outputs of the received model are kept for so many tasks, elsewhere for the last one."""
        self._received = deque(self._received, maxlen=tasks)
        try:
            yield
        finally:
            self._received = deque(maxlen=1)

    def _outputs_received(self, task: ClientTask) -> dict[str, Tensor]:
        """Outputs of the model that ``task`` received, by name; forgotten once another model is received."""
        if self._received_of is not task.broadcast.params:
            self._received_of = task.broadcast.params
            self._received.clear()
        for known, outputs in self._received:
            if known is task:
                return outputs
        self._received.append((task, {}))
        return self._received[-1][1]

    def _scores(
        self,
        images: "Images",
        index: Tensor,
        module: nn.Module,
        output: str,
        augment: np.random.Generator | None,
        *,
        on_device: bool = False,
    ) -> Tensor:
        with self.evaluating(), torch.no_grad():
            self.count(len(index), output)
            parts = [self._of_batch(module, output, inputs) for inputs in self._chunks(images, index, augment)]
        return torch.cat(parts) if on_device else torch.cat(parts).cpu()

    def _of_batch(self, module: nn.Module, output: str, inputs: Tensor) -> Tensor:
        if self.recorded is None:
            return by_name.output(module, output, inputs)
        return self.recorded(module, output, inputs, full=len(inputs) == self.score_batch)

    @property
    def score_batch(self) -> int:
        """Number of samples that are scored at once."""
        return min(SCORE_BATCH, self.chunk(1))

    def _chunks(self, images: "Images", index: Tensor, augment: np.random.Generator | None) -> Iterator[Tensor]:
        parts = index.split(self.score_batch)
        for stored in self.here(images).read_each(parts, augmented=augment is not None):
            draws = None if augment is None else self.transform.draw(augment, len(stored), tuple(stored.shape[2:]))
            yield self.prepare(stored, draws)

    def probabilities(self, samples: Samples, augment: np.random.Generator | None = None) -> Tensor:
        """Softmax of ``logits`` in float64 [n, K]: probabilities of a confident network differ far below 1e-7."""
        return F.softmax(self.logits(samples, augment).double(), dim=1)


@dataclass(frozen=True)
class _At(Another):
    """The model of ``network`` with other parameters and buffers."""

    network: Network
    params: Params

    def outputs(
        self, samples: Samples, augment: np.random.Generator | None = None, names: Sequence[str] = (LOGITS,)
    ) -> Mapping[str, Tensor]:
        network = self.network
        with network.evaluating(), torch.no_grad():
            network.count(len(samples), *names)
            chunks = network._chunks(samples.images, samples.index, augment)
            parts = [self._of(inputs, names) for inputs in chunks]
        return {name: torch.cat(of_name).cpu() for name, of_name in zip(names, zip(*parts, strict=True), strict=True)}

    def _of(self, inputs: Tensor, names: Sequence[str]) -> list[Tensor]:
        module = self.network.module
        if len(names) == 1:
            return [by_name.output_with(module, self._tensors, names[0], inputs)]
        outputs = by_name.outputs_with(module, self._tensors, inputs)
        return [by_name.named(outputs, name) for name in names]

    @cached_property
    def _tensors(self) -> Params:
        """The parameters in the device, the type and the layout of the module's, as if they were loaded."""
        held, waits = self.network.module.state_dict(), self.network.device.type == "cpu"
        return {n: torch.empty_like(tensor).copy_(self.params[n], non_blocking=not waits) for n, tensor in held.items()}


@dataclass(frozen=True)
class _Passes(ForwardPasses):
    """Passes through the current module of ``network`` and through the received model."""

    network: Network
    received_module: Callable[[Tensor], Tensor]

    def outputs(self, inputs: Tensor) -> Mapping[str, Tensor]:
        self.network.count(len(inputs))
        return by_name.outputs(self.network.module, inputs)

    def output(self, name: str, inputs: Tensor) -> Tensor:
        self.network.count(len(inputs), name)
        return by_name.output(self.network.module, name, inputs)

    def several(self, name: str, batches: Sequence[Tensor], *, training: bool, updating: bool) -> list[Tensor]:
        with torch.no_grad(), nullcontext() if training else self.network.evaluating():
            apart = self.network.has_batch_norm and self.network.module.training
            return outputs_on(batches, partial(self._opinion, name, updating), apart=apart, repeated=updating)

    def _opinion(self, name: str, updating: bool, inputs: Tensor) -> Tensor:
        """An output in the module's mode, of which buffers keep something only if ``updating``."""
        module = self.network.module
        self.network.count(len(inputs), name)
        with self.network.normalising(len(inputs)):
            if updating or not self.network.has_buffers:
                return by_name.output(module, name, inputs)
            buffers = {buffer: tensor.clone() for buffer, tensor in module.named_buffers()}
            return by_name.output_with(module, buffers, name, inputs)

    def scored(self, inputs: Tensor) -> Tensor:
        return self.network.scored(inputs)

    def received(self, inputs: Tensor) -> Tensor:
        return self.received_module(inputs)

    def training_loss(self, inputs: Tensor, labels: Tensor, number: int) -> Tensor:
        self.network.count(len(inputs))
        return training_loss(self.network.module, inputs, labels, number)


def outputs_on(
    batches: Sequence[Tensor], forward: Callable[[Tensor], Tensor], *, apart: bool, repeated: bool
) -> list[Tensor]:
    """The outputs of ``forward`` on each of ``batches``: from one pass, or from one for each if ``apart``.

    A tensor that is there twice passes once, unless batches are ``apart`` and ``repeated``.
    """
    if apart and repeated:
        return [forward(batch) for batch in batches]
    once = {id(batch): batch for batch in batches}
    if apart or len(once) == 1:
        outputs = [forward(batch) for batch in once.values()]
    else:
        outputs = list(forward(torch.cat(list(once.values()))).split([len(batch) for batch in once.values()]))
    known = dict(zip(once, outputs, strict=True))
    return [known[id(batch)] for batch in batches]


SCORE_BATCH = 512


def initial_params(module: Callable[[], nn.Module], seed: int) -> tuple[nn.Module, Params]:
    """Build a module with weights drawn from the run's initialisation stream; return it and its parameters.

    Torch's global random state is left unchanged.
    """
    with torch_seeded(torch_seed(seed, "initialisation"), torch.device("cpu")):
        built = module()
    return built, {name: tensor.detach().clone() for name, tensor in built.state_dict().items()}
