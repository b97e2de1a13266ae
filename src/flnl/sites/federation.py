"""A federation's folder on its server: which sites there are, their public keys, certificates, and the invitation."""

from __future__ import annotations

import json
import re
import shutil
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import OverrideType
from hydra.errors import HydraException

from flnl.core.errors import UserError
from flnl.sites.flower_environment import Flower
from flnl.storage.atomic import write_atomically

FILE, INVITATION, TOLD = "federation.yaml", "invitation.toml", "sites.json"
NODES, HOME, SOCKET = "nodes", "flower", "server.sock"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
KEY = re.compile(r"ecdsa-sha2-nistp(256|384|521) [A-Za-z0-9+/=]{100,400}( .*)?\n?")
"""A public key in the form of OpenSSH."""
WORD = re.compile(r"[\w ,+-]*(\.[\w ,+-]+)*")
"""A text that is no place, class or interpolation."""
LARGEST = 64 * 1024
"""Bytes of an invitation or a key."""


def named(name: str, what: str) -> str:
    """A name that may stand in paths and messages.

    Raises:
        UserError: if it is none.
    """
    if not NAME.fullmatch(name):
        raise UserError(f"{what} {name!r}: a name has letters, digits and . _ - and begins with a letter or digit")
    return name


def address_of(text: str, what: str) -> tuple[str, int]:
    """Host and port of ``HOST:PORT``.

    Raises:
        UserError: if it is none.
    """
    host, _, port = text.rpartition(":")
    if not re.fullmatch(r"[A-Za-z0-9.-]+|\[[0-9A-Fa-f:]+\]", host) or not port.isdecimal() or not 0 < int(port) < 65536:
        raise UserError(f"{what} {text!r}: should be HOST:PORT, as in fl.example.org:8443")
    return host, int(port)


def in_common(word: str, what: str) -> str:
    """An override of a data set that says nothing but names, numbers, and true or false.

    Raises:
        UserError: if it may name places, which are each site's own, or code, which a site would run.
    """
    try:
        parsed = OverridesParser.create().parse_override(word)
        key, value = parsed.key_or_group, parsed.value()
        plain = parsed.type is OverrideType.CHANGE and parsed.package is None and not parsed.is_sweep_override()
    except HydraException:
        key, value, plain = "", None, False
    group, *parts = key.split(".")
    if not plain or group != "dataset" or not all(re.fullmatch("[a-z][a-z0-9_]*", part) for part in parts):
        raise UserError(f"{what} {word!r}: should be an override of dataset, as in dataset.image_size=64")
    values = value if isinstance(value, list) else [value]
    if parts[:1] in (["root"], ["cache"], ["mirror"]):
        raise UserError(f"{what} {word!r}: places are each site's own")
    if not parts and not isinstance(value, str):
        raise UserError(f"{what} {word!r}: should be a data set, as in dataset=image_folder")
    if not all(one is None or type(one) in (bool, int, float) or WORD.fullmatch(str(one)) for one in values):
        raise UserError(
            f"{what} {word!r}: should be a name, a number, true or false, or a list of them; places are each site's own"
        )
    return word


def values_of(path: Path, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A YAML file as a mapping with these keys alone, each of the type of its default, which an absent key has.

    Raises:
        UserError: naming the file, the key and what it should be.
    """
    try:
        read = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as error:
        reason = error.strerror if isinstance(error, OSError) else " ".join(str(error).split())
        raise UserError(f"{path}: {reason}") from None
    if not isinstance(read, dict):
        raise UserError(f"{path}: should have keys {', '.join(fields)}")
    if unknown := [str(key) for key in read if key not in fields]:
        raise UserError(f"{path}: {unknown[0]} is not a key; there are {', '.join(fields)}")
    found = {**fields, **read}
    for key, default in fields.items():
        kinds: tuple[type, ...] = (type(default),)
        if default is None:
            kinds = (type(None), int, float, str)
        elif isinstance(default, float):
            kinds = (type(None), int, float)
        if not isinstance(found[key], kinds) or (isinstance(found[key], bool) and not isinstance(default, bool)):
            kind = "number" if isinstance(default, float) else type(default).__name__
            raise UserError(f"{path}: {key}={found[key]!r} should be a {kind}, as {default!r}")
        if isinstance(default, list) and not all(isinstance(one, str) for one in found[key]):
            raise UserError(f"{path}: {key} should be a list of texts")
    return found


@dataclass(frozen=True)
class FederationFolder:
    """What ``federation.yaml`` says."""

    folder: Path
    name: str
    address: str  # that sites call
    listen: str  # where the server listens
    sites: tuple[str, ...]
    classes: tuple[str, ...]  # none: those of the sites, which must then be equal

    @classmethod
    def read(cls, folder: Path) -> FederationFolder:
        """That of a folder.

        Raises:
            UserError: if it has none, or a wrong one.
        """
        if not (folder / FILE).is_file():
            raise UserError(f"{folder} is no federation, it has no {FILE}: make one with flnl federation init {folder}")
        empty: dict[str, Any] = {"name": "", "address": "", "listen": "", "sites": [], "classes": []}
        values = values_of(folder / FILE, empty)
        for key in ("address", "listen"):
            address_of(values[key], f"{folder / FILE}: {key}")
        for site in values["sites"]:
            named(site, f"{folder / FILE}: the site")
        if len(set(values["sites"])) < len(values["sites"]) or not values["sites"]:
            raise UserError(f"{folder / FILE}: sites should have different names, and there should be at least one")
        return cls(folder, *(values[key] for key in ("name", "address", "listen")), *map(tuple, _lists(values)))

    @property
    def admitted(self) -> dict[str, Path]:
        """The public key of each site that has been admitted."""
        paths = {site: self.folder / NODES / f"{site}.pub" for site in self.sites}
        return {site: path for site, path in paths.items() if path.is_file()}

    def demand_all(self) -> None:
        """Check that all sites have been admitted.

        Raises:
            UserError: naming those that have not.
        """
        if strangers := [site for site in self.sites if site not in self.admitted]:
            raise UserError(
                f"{', '.join(strangers)}: not admitted yet: flnl federation admit {self.folder} NODE.pub --name "
                f"{strangers[0]}"
            )

    def admit(self, key: Path, name: str) -> None:
        """Let the SuperNode that has this public key in, as a site of the federation.

        Raises:
            UserError: if there is no such site, it has another key, or the file has none.
        """
        if name not in self.sites:
            raise UserError(f"--name {name}: {self.folder / FILE} has no such site; it has {', '.join(self.sites)}")
        text = _read(key)
        if not KEY.fullmatch(text):
            hint = "; this is a private key, which must not leave the site" if "PRIVATE" in text else ""
            raise UserError(f"{key} is no public key of a site, as node.pub of flnl site init{hint}")
        place = self.folder / NODES / f"{name}.pub"
        if place.exists() and place.read_text().split()[:2] != text.split()[:2]:
            raise UserError(f"{name} has been admitted with another key: delete {place} to admit this one")
        for other, path in self.admitted.items():
            if other != name and path.read_text().split()[:2] == text.split()[:2]:
                raise UserError(f"{key} is the key of {other}: each site makes its own")
        place.parent.mkdir(exist_ok=True)
        write_atomically(place, f"{' '.join(text.split()[:2])}\n".encode())


def _lists(values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    return values["sites"], values["classes"]


def _read(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST).decode(errors="replace")
    except OSError as error:
        raise UserError(f"{path}: {error.strerror}") from None


def make(
    folder: Path,
    flower: Flower,
    address: str,
    sites: Sequence[str],
    listen: str | None = None,
    classes: Sequence[str] = (),
    data: Sequence[str] = (),
) -> FederationFolder:
    """Make a federation: its folder, authority, certificate and invitation.

    Args:
        folder: where; its name is the federation's.
        flower: an environment with Flower.
        address: ``HOST:PORT`` that sites call.
        sites: their names.
        listen: ``HOST:PORT`` where the server listens; by default all addresses, and the port of ``address``.
        classes: the names of the classes, in order; none: those of the sites' data, which must then be equal.
        data: overrides of a data set, the same for all sites, as in ``dataset.image_size=64``; the invitation has them.

    Raises:
        UserError: if there is something already, or a value is wrong.
    """
    host, port = address_of(address, "--address")
    listen = f"0.0.0.0:{port}" if listen is None else listen
    address_of(listen, "--listen")
    for site in sites:
        named(site, "--sites:")
    if len(set(sites)) < len(sites) or not sites:
        raise UserError("--sites: should be different names, as in north,south,east")
    for word in data:
        in_common(word, "--data")
    if folder.exists():
        raise UserError(f"{folder} is there already: name a folder that is not")
    name = named(folder.absolute().name, "the federation's folder")
    folder.mkdir(mode=0o700, parents=True)
    try:
        home, hosts = folder / HOME, dict.fromkeys([host.strip("[]"), "localhost", "127.0.0.1"])
        flower.keys(home, "authority", str(folder))
        flower.keys(home, "server", str(folder), *hosts)
        values = {"name": name, "address": address, "listen": listen, "sites": [*sites], "classes": [*classes]}
        (folder / FILE).write_text(yaml.safe_dump(values, sort_keys=False, allow_unicode=True))
        invited = {
            **{key: values[key] for key in ("name", "address", "sites", "classes")},
            "data": [*data],
            "ca": (folder / "ca.crt").read_text(),
        }
        lines = [f"{key} = {json.dumps(value)}\n" for key, value in invited.items()]
        (folder / INVITATION).write_text("".join(lines))
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise
    return FederationFolder.read(folder)


@dataclass(frozen=True)
class Invitation:
    """What a site gets of a federation; nothing of it is secret, and it must come from who it says it is from."""

    name: str
    address: str
    sites: tuple[str, ...]
    classes: tuple[str, ...]
    data: tuple[str, ...]
    ca: str

    @classmethod
    def read(cls, path: Path) -> Invitation:
        """That of a file.

        Raises:
            UserError: if it is none.
        """
        try:
            read = tomllib.loads(_read(path))
        except tomllib.TOMLDecodeError as error:
            raise UserError(f"{path} is no invitation: {error}") from None
        texts, lists = ("name", "address", "ca"), ("sites", "classes", "data")
        if read.keys() != {*texts, *lists} or not all(isinstance(read[key], str) for key in texts):
            raise UserError(f"{path} is no invitation, as flnl federation init writes it")
        if not all(isinstance(read[key], list) and all(isinstance(one, str) for one in read[key]) for key in lists):
            raise UserError(f"{path} is no invitation, as flnl federation init writes it")
        address_of(read["address"], f"{path}: address")
        for one in (read["name"], *read["sites"]):
            named(one, f"{path}: the name")
        if "BEGIN CERTIFICATE" not in read["ca"] or "PRIVATE" in read["ca"]:
            raise UserError(f"{path}: ca is no certificate")
        lists_of = {key: tuple(read[key]) for key in lists}
        if not all(one.isprintable() for one in lists_of["classes"]):
            raise UserError(f"{path}: a name of a class has control characters")
        for word in lists_of["data"]:
            in_common(word, f"{path}: data:")
        return cls(read["name"], read["address"], lists_of["sites"], lists_of["classes"], lists_of["data"], read["ca"])
