"""A trained model in one file with all that its use needs: ``model.pt`` in a run's folder.

The file holds dicts, lists, numbers, strings and tensors, and a digest of them that every load checks; it is loaded
without trusting pickles. The model's class is looked up by its stored name among those that configuration files name.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, Self

import torch

from flnl import __version__
from flnl.config import compose, registry
from flnl.core.errors import UserError
from flnl.core.payload import Params
from flnl.data.transforms import Transform
from flnl.engine.network import Network, fabric_for
from flnl.models.outputs import networks
from flnl.storage.atomic import write_atomically
from flnl.storage.digest import digest

log = logging.getLogger(__name__)

NAME = "model.pt"
DIGEST = "digest"
"""Under this name the file holds the digest of all else that it holds."""


@dataclass(frozen=True)
class ModelFile:
    """What ``model.pt`` holds, under these names."""

    weights: Params  # by the names of the module's state dict, buffers included; on the CPU
    classes: list[str]  # [K], in the order of the outputs
    model: Mapping[str, Any]  # the configuration's node, with the stored name of its class as ``_target_``
    shape: list[int]  # [C, H, W] of the inputs
    normalisation: Mapping[str, Any]  # the fields of ``Transform``
    stored: str  # type of the pixels before normalisation: uint8 for images, float32 for numbers of any range
    dataset: str
    key: str  # of the run
    round: int  # after which these weights were taken
    version: str = __version__  # of the package
    networks: int = 1  # of the model's kind: two are a pair

    def save(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            OSError: if it cannot be written.
        """
        held = {f.name: getattr(self, f.name) for f in fields(self)}
        held["weights"] = {name: tensor.detach().cpu().clone() for name, tensor in self.weights.items()}
        buffer = io.BytesIO()
        torch.save({**held, DIGEST: digest(held)}, buffer)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Self:
        """What was saved at ``path``, a file or the run's folder that has it.

        A file without a digest, as they were once written, is loaded with a warning.

        Raises:
            UserError: if there is none, it is damaged, or it is no model of this package.
        """
        file = path / NAME if path.is_dir() else path
        try:
            with warnings.catch_warnings(action="ignore"):  # of torch, about what damage looks like to it
                held = torch.load(file, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise UserError(
                f"there is no {file}: name the folder of a finished or stopped run with products=true"
            ) from None
        except Exception as error:  # a damaged file fails in many ways
            reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            raise UserError(f"{file} is damaged or was not written by a run ({reason})") from error
        names = {f.name for f in fields(cls)}
        if not isinstance(held, dict) or {"networks", *held} - {DIGEST} != names:
            raise UserError(f"{file} is no {NAME} of a run: it should hold {', '.join(sorted(names))}")
        if DIGEST not in held:
            log.warning("%s was written before model files held a digest: damage to it would not be noticed", file)
        elif not _is_digest(held.pop(DIGEST), held):
            raise UserError(
                f"{file} is damaged: what it holds does not have the digest that was written with it; take another "
                "copy of the file, or make the run again"
            )
        return cls(**held)

    def network(self, places: Sequence[Path] = ()) -> Network:
        """The network with its weights, on the CPU, in the precision of the run's parameters (bf16 runs keep 32 bits).

        Weights that the run itself started from are not fetched again. ``places`` are folders with configuration files
        in which its class may be named, besides those of the command.

        Raises:
            UserError: if no configuration file names its class, or the weights do not fit it.
        """
        node = registry.restored("model", self.model, NAME, places)
        double = any(tensor.dtype == torch.float64 for tensor in self.weights.values())
        try:
            channels, height, width = self.shape
            make = compose.build(node)
            module = networks(lambda: make((channels, height, width), len(self.classes)), self.networks)
            network = Network(module, self._transform(), len(self.classes), fabric_for("cpu", 64 if double else 32))
            network.module.load_state_dict(self.weights)
        except Exception as error:  # what does not fit fails in many ways
            reason = " ".join(str(error).split())[:200]
            name = registry.stored_name(node["_target_"])
            raise UserError(
                f"the weights, of version {self.version}, do not fit {name} of version {__version__} ({reason})"
            ) from error
        return network

    def _transform(self) -> Transform:
        held: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in self.normalisation.items()}
        return Transform(**held)


def _is_digest(written: object, held: Mapping[str, Any]) -> bool:
    """Whether ``written`` is the digest of ``held``, which may be anything that a damaged file gives."""
    try:
        return written == digest(held)
    except Exception as error:  # what no file of ours holds has no digest
        log.debug("%r", error)
        return False


def describe(transform: Transform) -> dict[str, Any]:
    """The fields of a transform, as a ``ModelFile`` keeps them."""
    return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(transform).items()}
