"""Samples that stay at sites: a server knows their numbers and form, from a file, and has none of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.ranges import Neutral, PathText
from flnl.core.streams import stream
from flnl.data.dataset import Dataset
from flnl.data.datasets.download import expand
from flnl.data.federation.elsewhere import Withheld
from flnl.data.images import TensorImages
from flnl.data.preparations import Tokens, restored

FILE = "sites.json"
STORED = {
    str(one).removeprefix("torch."): one for one in (torch.uint8, torch.float32, torch.int16, torch.int32, torch.int64)
}


@dataclass(frozen=True)
class Inputs:
    """The form of a sample."""

    shape: list[int]
    larger: list[int]  # (H', W') that random crops are taken from; [] of what is no image
    stored: str  # dtype
    preparation: dict[str, Any]

    @classmethod
    def read(cls, given: Any) -> Inputs:
        """As a file or a site has it.

        Raises:
            ValueError: if it is none.
        """
        if not isinstance(given, Mapping) or given.keys() != {one.name for one in fields(cls)}:
            raise ValueError("no form of samples")
        found = cls(**given)
        sizes = (
            [*found.shape, *found.larger] if isinstance(found.shape, list) and isinstance(found.larger, list) else [0]
        )
        if not found.shape or not all(type(n) is int and 0 < n < 2**20 for n in sizes) or found.stored not in STORED:
            raise ValueError("samples of no size")
        if not isinstance(found.preparation, dict):
            raise ValueError("samples without a preparation")
        if restored(found.preparation).shape != tuple(found.shape):
            raise ValueError("samples of another size than their preparation makes")
        return found


@dataclass(frozen=True)
class Told:
    """What sites have told of their samples."""

    sizes: dict[str, int]
    held_out: dict[str, int]
    classes: list[str]
    inputs: Inputs

    @classmethod
    def read(cls, folder: Path) -> Told:
        """That of a federation's folder.

        Raises:
            UserError: if it has none.
        """
        path = folder / FILE
        try:
            given = json.loads(path.read_text())
            return cls(**{**given, "inputs": Inputs.read(given["inputs"])})
        except FileNotFoundError:
            raise UserError(
                f"{path} is not there: flnl serve {folder} --check connects the sites, and writes it"
            ) from None
        except (OSError, ValueError, TypeError, KeyError):
            raise UserError(f"{path} is damaged: delete it, and flnl serve {folder} --check writes it anew") from None


@dataclass(frozen=True)
class Elsewhere:
    """What the sites of a federation have told (``FILE`` in its folder), and with ``made`` random samples like theirs.

    Without ``made``, reading a sample or label fails. There is no test set.
    """

    name: str
    root: PathText  # the folder of the federation
    made: Annotated[bool, Neutral(False)] = False

    def __call__(self) -> Dataset:
        """Load the data set.

        Raises:
            UserError: if sites have told nothing yet.
        """
        told = Told.read(expand(self.root))
        sizes, form = list(told.sizes.values()), told.inputs
        total, classes = sum(sizes), tuple(told.classes)
        given: NDArray[np.int64] = np.zeros(total, np.int64)
        train: Any = Withheld(total, tuple(form.shape), tuple(form.larger), STORED[form.stored])
        if self.made:
            train = self._made(total, form)
            given = stream(0, "made labels").integers(0, len(classes), total)
        return Dataset(
            name=self.name,
            classes=classes,
            train=train,
            test=Withheld(0, tuple(form.shape), tuple(form.larger), STORED[form.stored]),
            test_labels=np.zeros(0, np.int64),
            transform=restored(form.preparation),
            truth=None,
            given=given,
            clients=np.repeat(np.arange(len(sizes)), sizes),
            client_names=tuple(told.sizes),
            fingerprint=hashlib.sha256(json.dumps([asdict(told), self.made]).encode()).hexdigest(),
        )

    def _made(self, total: int, form: Inputs) -> TensorImages:
        """Random samples of the form of the sites'."""
        rng, dtype = stream(0, "made samples"), STORED[form.stored]
        prepared = restored(form.preparation)
        shapes = [[*form.shape], [form.shape[0], *form.larger] if form.larger else [*form.shape]]

        def drawn(shape: list[int]) -> torch.Tensor:
            if isinstance(prepared, Tokens):
                return torch.from_numpy(rng.integers(1, prepared.vocabulary, (total, *shape))).to(dtype)
            if dtype == torch.uint8:
                return torch.from_numpy(rng.integers(0, 256, (total, *shape), np.uint8))
            return torch.from_numpy(rng.standard_normal((total, *shape), np.float32)).to(dtype)

        pixels = drawn(shapes[0])
        return TensorImages(pixels, drawn(shapes[1]) if shapes[1] != shapes[0] else None)
