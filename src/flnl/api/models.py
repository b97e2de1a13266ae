"""The network of a run, to be used elsewhere."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from PIL.Image import Image
from torch import Tensor, nn

from flnl.core.errors import UserError
from flnl.core.inputs import Preparation
from flnl.data.image_file import ImageError, decode, pixels_of, read_bytes
from flnl.data.transforms import Transform
from flnl.engine.model_file import ModelFile

if TYPE_CHECKING:
    from collections.abc import Sequence

PIXELS = 255.0
"""What 8-bit pixels are divided by."""


@dataclass(frozen=True)
class InputTransform:
    """From an image to the input of a network: resized, scaled and normalised as in training, without augmentation.

    A network of rows of numbers, or of token ids, takes tensors of such alone.
    """

    shape: tuple[int, ...]  # of an input: C, H, W of images
    stored: Preparation
    dtype: torch.dtype

    def __call__(self, image: str | Path | Image | Tensor) -> Tensor:
        """The input of one sample, [...]; of a tensor of several, [B, ...].

        Args:
            image: a file, an image of Pillow, or a tensor [C, H, W] or [B, C, H, W]: uint8 pixels from 0 to 255, or
                floats in the range of the data set's own values (the digits' pixels go from 0 to 16).

        Raises:
            UserError: if the image cannot be read, or the tensor has another shape.
        """
        pixels = image if isinstance(image, Tensor) else self._pixels(image)
        one = len(self.shape)
        if pixels.shape[pixels.dim() - one :] != self.shape or pixels.dim() not in (one, one + 1):
            wanted = ", ".join(map(str, self.shape))
            raise UserError(f"a tensor of shape {list(pixels.shape)}: this model takes [{wanted}] or [B, {wanted}]")
        transform = self.stored
        if isinstance(transform, Transform) and not pixels.is_floating_point():
            transform = replace(transform, scale=PIXELS)
        inputs = transform.normalize(pixels if pixels.dim() > one else pixels[None], self.dtype)
        return inputs if pixels.dim() > one else inputs[0]

    def _pixels(self, image: str | Path | Image) -> Tensor:
        if not isinstance(image, str | Path | Image):
            raise UserError(f"{type(image).__name__} is no image: a path, an image of Pillow or a tensor is needed")
        if self.stored.kind != "image" or self.shape[0] not in (1, 3):
            raise UserError(f"this model takes inputs of {'x'.join(map(str, self.shape))}, which are not images")
        channels, height, width = self.shape
        try:
            if isinstance(image, str | Path):
                pixels = decode(read_bytes(image), (height, width), channels)
            else:
                pixels = pixels_of(image, (height, width), channels)
            return torch.from_numpy(pixels.copy())
        except ImageError as error:
            reason = str(error)
        except Exception as error:  # a broken file can make a decoder raise anything
            reason = (error.strerror if isinstance(error, OSError) else None) or "it cannot be decoded"
        raise UserError(f"{image} cannot be read ({reason})")


class TrainedModel(nn.Module):
    """The network of a run, in evaluation mode on the CPU.

    The class of an image is ``model.classes[int(model(model.transform("cat.png")[None]).argmax())]``.
    """

    def __init__(self, network: nn.Module, classes: Sequence[str], transform: InputTransform) -> None:
        super().__init__()
        self.network = network
        self.classes = tuple(classes)  # in the order of the outputs
        self.transform = transform
        self.eval()

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits [B, K] of ``inputs`` [B, C, H, W], which ``transform`` has made."""
        logits: Tensor = self.network(inputs)
        return logits


def load_model(folder: str | Path, config_dirs: Sequence[str | Path] = (), trust: Sequence[str] = ()) -> TrainedModel:
    """The network of a run.

    Args:
        folder: the run's folder, or its ``model.pt``.
        config_dirs: folders with configuration files that name the network's class, if it is not this package's.
        trust: dotted paths of networks of your own, as in ``["my_nets.Net"]``: a file cannot choose by itself which
            code is imported.

    Raises:
        UserError: if there is no model, or it is damaged, or no configuration file names its class, or its code is not
            trusted.
    """
    file = ModelFile.load(Path(folder).expanduser())
    network = file.network([Path(place) for place in config_dirs], [trust] if isinstance(trust, str) else trust)
    transform = InputTransform(tuple(file.shape), network.transform, network.dtype)
    return TrainedModel(network.module, file.classes, transform)
