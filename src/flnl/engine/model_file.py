"""A trained model in one file with everything needed to use it: ``model.pt`` in a run's folder.

The file holds dicts, lists, numbers, strings and tensors, and a digest of them that every load checks. Loading does
not execute pickled code. The model's class is looked up by its stored name among the classes of configuration files.
"""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Annotated, Any, Self

import torch
from annotated_types import Interval

from flnl import __version__
from flnl.config import compose, registry
from flnl.config.typed_values import faults_among
from flnl.core.errors import UserError
from flnl.core.payload import Params
from flnl.core.special import refuse_special
from flnl.data.preparations import restored
from flnl.engine.network import Network
from flnl.engine.placement import placement_for
from flnl.models.outputs import networks
from flnl.record.run import RunRecord
from flnl.storage.atomic import write_atomically
from flnl.storage.digest import digest

log = logging.getLogger(__name__)

NAME = "model.pt"
DIGEST = "digest"
"""Key of the digest of everything else in the file."""


@dataclass(frozen=True)
class ModelFile:
    """Contents of ``model.pt``; the field names are its keys, but for ``source``."""

    weights: Params  # the module's state dict, buffers included; on the CPU
    classes: list[str]  # [K], in the order of the outputs
    model: Mapping[str, Any]  # the configuration node, with the stored name of its class as ``_target_``
    shape: list[int]  # of an input: [C, H, W] of images
    normalisation: Mapping[str, Any]  # the fields of ``Transform``, or of another preparation and its kind
    stored: str  # type of the pixels before normalisation: uint8 for images, float32 for numbers of any range
    dataset: str
    key: str  # the run's key
    round: int  # the weights are those after this round
    version: str = __version__  # of the package
    networks: Annotated[int, Interval(ge=1, le=2)] = 1  # number of networks; 2 for a pair
    source: str = field(default=NAME, compare=False)  # the file that it was loaded from, for messages; not stored

    @classmethod
    def keys(cls) -> list[str]:
        """The keys of a file, besides its digest."""
        return [f.name for f in fields(cls) if f.name != "source"]

    def save(self, path: Path) -> None:
        """Write the file whole or not at all.

        Raises:
            OSError: if it cannot be written.
        """
        held = {name: getattr(self, name) for name in self.keys()}
        held["weights"] = {name: tensor.detach().cpu().clone() for name, tensor in self.weights.items()}
        buffer = io.BytesIO()
        torch.save({**held, DIGEST: digest(held)}, buffer)
        write_atomically(path, buffer.getvalue())

    @classmethod
    def load(cls, path: Path) -> Self:
        """Load the model at ``path``: the file, or the folder of a run, whose own it must be if its record is there.

        A file of an early version, without a digest, is loaded with a warning.

        Raises:
            UserError: if the file is missing, damaged, not a model of this package, or of another run than its folder.
        """
        file = path / NAME if path.is_dir() else path
        try:
            refuse_special(file)
            with warnings.catch_warnings(action="ignore"):  # torch warns about some forms of damage
                held = torch.load(file, map_location="cpu", weights_only=True)
        except FileNotFoundError:
            raise UserError(
                f"there is no {file}: name the folder of a finished or stopped run with products=true"
            ) from None
        except Exception as error:  # a damaged file fails in many ways
            reason = (error.strerror if isinstance(error, OSError) else None) or type(error).__name__
            raise UserError(f"{file} is damaged or was not written by a run ({reason})") from error
        names = set(cls.keys())
        if not isinstance(held, dict) or {"networks", *held} - {DIGEST} != names:
            raise UserError(f"{file} is no {NAME} of a run: it should hold {', '.join(sorted(names))}")
        if DIGEST not in held:
            log.warning("%s has no digest, because an early version wrote it: damage to it would go unnoticed", file)
        elif not _is_digest(held.pop(DIGEST), held):
            raise UserError(
                f"{file} is damaged: its contents do not match the digest stored with them; use another copy of the "
                "file, or repeat the run"
            )
        if faults := faults_among(cls, held):
            raise UserError(f"{file} is no {NAME} of a run: {faults}")
        if file is not path and (record := RunRecord.read(path)) is not None:
            record.refuse_another(file, held["key"])
        return cls(**held, source=str(file))

    def network(self, places: Sequence[Path] = (), trusted: Sequence[str] = ()) -> Network:
        """The network with its weights, on the CPU, in the precision of the run's parameters (bf16 runs keep 32 bits).

        Pretrained weights that the run started from are not downloaded again.

        Args:
            places: folders of further configuration files in which to look up the model's class.
            trusted: dotted paths of networks of the user's own that the file may name.

        Raises:
            UserError: if no configuration file names the model's class, its code is not trusted, or the weights do not
                fit it.
        """
        node = registry.restored("model", self.model, self.source, places, trusted)
        double = any(tensor.dtype == torch.float64 for tensor in self.weights.values())
        try:
            make, preparation = compose.build(node), restored(self.normalisation)
            module = networks(lambda: make(tuple(self.shape), len(self.classes)), self.networks)
            network = Network(module, preparation, len(self.classes), placement_for("cpu", 64 if double else 32))
            network.module.load_state_dict(self.weights)
        except Exception as error:  # weights that do not fit fail in many ways
            reason = " ".join(str(error).split())[:200]
            name = registry.stored_name(node["_target_"])
            raise UserError(
                f"{self.source}: the weights, of version {self.version}, do not fit {name} of version {__version__} "
                f"({reason})"
            ) from error
        return network


def _is_digest(written: object, held: Mapping[str, Any]) -> bool:
    """Whether ``written`` is the digest of ``held``; a damaged file may give anything for both."""
    try:
        return written == digest(held)
    except Exception as error:  # values of unsupported types have no digest
        log.debug("%r", error)
        return False
