"""A site's folder: what ``site.yaml`` says of its data and of what may leave it, keys, and which runs are approved."""

from __future__ import annotations

import grp
import json
import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
import torch

from flnl.config import compose
from flnl.config.override_text import key_of
from flnl.config.quoting import quoted
from flnl.core.errors import UserError
from flnl.core.messages import Samples
from flnl.data.dataset import Dataset
from flnl.sites.federation import Invitation, address_of, named, values_of
from flnl.sites.flower_environment import Flower
from flnl.sites.policy import Policy, Streams
from flnl.sites.runtime import RUNS, SECRET, SiteData, SiteRuntime
from flnl.storage import secret_file
from flnl.storage.atomic import write_atomically

FILE, HOME, SOCKET, CACHE = "site.yaml", "flower", "socket/site.sock", "cache"
APPROVED, ASKED = "approved", "asked"
"""Files of keys: of runs that were approved, and of those that were asked for."""
NODE, NODE_PUB, CA = "node", "node.pub", "ca.crt"
KEY = re.compile(r"[0-9a-f]{12,64}")
WHOLE = 64
"""Digits of a key."""
REMEMBERED = 1000
"""So many runs that were asked for last can be approved by the beginning of their key."""
ROOT = "  # - dataset.root=/path/to/images # where they are here"
"""The last line of ``data`` in a new folder."""

TEMPLATE = """\
# A site of the federation {federation}. Nothing of this file leaves the site.
name: {name}
federation: {federation}
server: {server}

# The data set, as overrides of a run (flnl list dataset): where samples and labels are here. Its training samples are
# trained on; models are scored on its test samples, and both stay here.
data:
{data}
# The names of the federation's classes, in order; those of the data are found among them by name. Empty: the data's.
classes: {classes}

# What may leave, beside models and numbers of samples: types of message that tell of labels (docs/three_hospitals.md).
allow: []
max_epsilon: 10 # largest sum of ε over all releases of randomised labels; null: no limit
counts: true # whether to tell how many labels were flagged and changed
min_count: 20 # with fewer test samples, nothing is told of how models do on them
least_samples: 50 # with fewer training samples the site takes no part; settings whose visits train on fewer are refused
streams: run # what draws for training come from: run, its seed, as a simulation; own, this site's secret
approve: ask # ask: each new run waits for flnl site DIR --approve KEY; any: none does

device: auto # where to train: auto, cpu, cuda
group: null # the group of another user, who runs the SuperNode and so what the server sends; null: this user
"""

FIELDS: dict[str, Any] = {
    **{"name": "", "federation": "", "server": "", "data": [], "classes": []},
    **{"allow": [], "max_epsilon": 10.0, "counts": True, "min_count": 20, "least_samples": 50, "approve": "ask"},
    "streams": "run",
    **{"device": "auto", "group": None},
}


@dataclass(frozen=True)
class SiteFolder:
    """What ``site.yaml`` says."""

    folder: Path
    name: str
    federation: str
    server: str
    data: tuple[str, ...]
    classes: tuple[str, ...]
    policy: Policy  # without approval, which is asked for before
    asks: bool  # whether new runs wait to be approved
    device: str
    group: int | None

    @classmethod
    def read(cls, folder: Path) -> SiteFolder:
        """That of a folder.

        Raises:
            UserError: naming the key that is wrong.
        """
        path = folder / FILE
        if not path.is_file():
            raise UserError(f"{folder} is no site, it has no {FILE}: make one with flnl site init {folder}")
        values = values_of(path, FIELDS)
        address_of(values["server"], f"{path}: server")
        for key in ("name", "federation"):
            named(values[key], f"{path}: {key}")
        approve, most = values["approve"], values["max_epsilon"]
        if approve not in ("ask", "any"):
            raise UserError(f"{path}: approve={approve} should be ask or any")
        if most is not None and (isinstance(most, str) or not most >= 0):
            raise UserError(f"{path}: max_epsilon={most} should be a number from 0, or null")
        for key, least in (("least_samples", 1), ("min_count", 0)):
            if values[key] < least:
                raise UserError(f"{path}: {key}={values[key]} should be {least} or more")
        if values["streams"] not in get_args(Streams):
            raise UserError(f"{path}: streams={values['streams']} should be {' or '.join(get_args(Streams))}")
        for one in values["data"]:
            if key_of(one).split(".")[0] != "dataset":
                raise UserError(
                    f"{path}: data: {one!r} should be an override of dataset, as in dataset.root=/data/lung"
                )
        policy = Policy(
            *(tuple(values["allow"]), most, values["least_samples"], "any", values["counts"], values["min_count"]),
            streams=values["streams"],
            to_allow=f"add {{}} to allow in {FILE}, and start flnl site again",
        )
        return cls(
            folder=folder,
            **{key: values[key] for key in ("name", "federation", "server", "device")},
            data=tuple(values["data"]),
            classes=tuple(values["classes"]),
            policy=policy,
            asks=approve == "ask",
            group=_group(values["group"], path),
        )

    def site_data(self) -> SiteData:
        """Its samples and labels.

        Raises:
            UserError: if they cannot be read, or a label is of no class of the federation.
        """
        try:
            (self.folder / CACHE).mkdir(mode=0o700, exist_ok=True)
            made = compose.build(compose.load(self.words).dataset)
            data = made() if callable(made) else made
        except Exception as error:
            raise UserError(f"{self.file}: data: {' '.join(str(error).split())}") from None
        classes = self.classes or data.classes
        if unknown := [name for name in data.classes if name not in classes]:
            raise UserError(
                f"{self.folder / FILE}: classes has no {unknown[0]!r}, which is a class of the data; it has "
                f"{', '.join(classes)}"
            )
        number = np.array([classes.index(name) for name in data.classes], np.int64)
        nobody: np.ndarray[Any, np.dtype[np.int64]] = np.zeros(0, np.int64)
        own = Dataset(
            name=data.name,
            classes=tuple(classes),
            train=data.train,
            test=data.test.take(nobody),
            test_labels=nobody,
            transform=data.transform,
            truth=None,
            given=number[data.labels],
            people=None if data.people is None else np.where(data.people < 0, data.people, number[data.people]),
            texts=data.texts,
            ids=data.ids if data.ids is not None else [str(i) for i in range(len(data.train))],
        )
        held_out = None
        if len(data.test_labels):
            labels = torch.from_numpy(number[data.test_labels])
            held_out = Samples(data.test, torch.arange(len(labels)), labels)
        return SiteData(self.name, own, held_out)

    def review(self, verdicts: Path, run: str = "") -> Path:
        """Write ``corrected.csv`` with what somebody has decided, and the page of the audit again.

        Args:
            verdicts: a file, as the page saves it.
            run: how the run's name begins; by default the last that was audited.

        Returns:
            The folder of the run.

        Raises:
            UserError: if there was no such audit, or the verdicts are of other labels.
        """
        runtime = SiteRuntime(self.site_data(), self.folder, self.policy, self.device)
        found = [name for name in runtime.audited if name.startswith(run)]
        if not found or (run and len(found) > 1):
            many = "several runs of this name were" if found else f"no run{' of this name' if run else ''} was"
            raise UserError(f"--review {run}: {many} audited here")
        runtime.review(found[-1], [verdicts], "reviewed")
        return self.folder / RUNS / found[-1]

    @property
    def words(self) -> list[str]:
        """The overrides of its data set; what is kept of the files, as their names and digests, lies in its folder."""
        return [f"cache={quoted(str(self.folder.absolute() / CACHE))}", *self.data]

    @property
    def file(self) -> Path:
        """Its ``site.yaml``."""
        return self.folder / FILE

    @property
    def approved(self) -> set[str]:
        """The keys of the runs that somebody has approved here."""
        return set(self._keys(APPROVED))

    def _keys(self, file: str) -> list[str]:
        """The keys in a file, that of the last to be added at the end."""
        path = self.folder / file
        return path.read_text().split() if path.exists() else []

    def _write(self, file: str, keys: Iterable[str]) -> None:
        write_atomically(self.folder / file, "".join(f"{key}\n" for key in keys).encode())

    def note(self, key: str) -> None:
        """Note that a run with this key was asked for; those that were asked for long ago are forgotten."""
        others = [one for one in self._keys(ASKED) if one != key]
        self._write(ASKED, [*others, key][-REMEMBERED:])

    def approve(self, key: str) -> str:
        """Approve the run with this key, or with the one that begins so of those that were asked for; its key.

        Raises:
            UserError: if there is none, or several.
        """
        if not KEY.fullmatch(key):
            raise UserError(
                f"--approve {key}: should be the key of a run, or its first 12 digits and letters or more, as the site "
                "has printed it"
            )
        found = [key] if len(key) == WHOLE else [one for one in self._keys(ASKED) if one.startswith(key)]
        if len(found) != 1:
            many = "several runs" if found else "no run"
            raise UserError(f"--approve {key}: {many} with a key that begins so asked to train here: name all of it")
        self._write(APPROVED, sorted(self.approved | set(found)))
        return found[0]

    @property
    def socket(self) -> Path:
        """Where the relay connects: in a folder of its own, which is all that a SuperNode's container has to see."""
        return self.folder.absolute() / SOCKET


def _group(name: Any, path: Path) -> int | None:
    if name is None:
        return None
    try:
        return grp.getgrnam(str(name)).gr_gid
    except KeyError:
        raise UserError(f"{path}: group={name}: there is no such group here") from None


def make(folder: Path, flower: Flower, invitation: Path, name: str) -> SiteFolder:
    """Make a site's folder, with its keys.

    Raises:
        UserError: if there is something already, or the invitation has no such site.
    """
    invited = Invitation.read(invitation)
    if name not in invited.sites:
        raise UserError(f"{invitation} is for the sites {', '.join(invited.sites)}, and not for {name}: set --name")
    if folder.exists():
        raise UserError(f"{folder} is there already: name a folder that is not")
    folder.mkdir(mode=0o700, parents=True)
    try:
        secret_file.made_once(folder / SECRET)
        flower.keys(folder / HOME, "node", str(folder.absolute()))
        (folder / CA).write_text(invited.ca)
        (folder / SOCKET).parent.mkdir(mode=0o750)
        (folder / FILE).write_text(
            TEMPLATE.format(
                name=_text(name),
                federation=_text(invited.name),
                server=invited.address,
                data="\n".join([*(f"  - {_text(one)}" for one in invited.data or ("dataset=image_folder",)), ROOT]),
                classes=f"[{', '.join(map(_text, invited.classes))}]",
            )
        )
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return SiteFolder.read(folder)


def _text(value: str) -> str:
    """A text in YAML."""
    return json.dumps(value, ensure_ascii=False)


def permit(path: Path, group: int | None) -> None:
    """Let a group use a socket."""
    if group is not None:
        os.chown(path, -1, group)
        os.chown(path.parent, -1, group)
