"""Units of systemd and a compose file for a site whose SuperNode runs apart from its data.

The site's process needs no network, and the SuperNode, which runs what the server sends, sees the socket alone of the
site's folder, and not the places that its data set names. Where links below these lead to is not hidden.
"""

from __future__ import annotations

import os
import re
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

from flnl.config import compose
from flnl.config.identity import PLACES
from flnl.core.errors import UserError
from flnl.sites.flower_environment import HERE
from flnl.sites.site import supernode
from flnl.sites.site_folder import CA, NODE, SOCKET, SiteFolder

MORE_PLACES = ("cache", "imagenet")
"""Keys of data sets that name places, besides ``PLACES``."""
PLAIN = re.compile(r"[\w./-]+", re.ASCII)
PORT = 9094
"""Where a SuperNode listens on its own loopback."""
QUIET = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "PYTHONDONTWRITEBYTECODE": "1"}

UNIT_OF_SITE = """\
# /etc/systemd/system/flnl-site-{name}.service: reads the data, and has no network.
[Unit]
Description=Site {name} of the federation {federation}

[Service]
User={user}
ExecStart={command}
Restart=on-failure
RestartSec=5
PrivateNetwork=yes
RestrictAddressFamilies=AF_UNIX
NoNewPrivileges=yes
ProtectSystem=strict
ReadWritePaths={folder}
PrivateTmp=yes
TemporaryFileSystem=/dev/shm:mode=1777

[Install]
WantedBy=multi-user.target
"""

UNIT_OF_SUPERNODE = """\
# /etc/systemd/system/flnl-supernode-{name}.service: runs what the server sends; sees neither folder nor data.
[Unit]
Description=SuperNode of the site {name}
After=network-online.target flnl-site-{name}.service
Wants=network-online.target

[Service]
DynamicUser=yes
SupplementaryGroups={group}
StateDirectory=flnl-supernode-{name}
Environment=FLWR_HOME=%S/flnl-supernode-{name} HOME=%S/flnl-supernode-{name} PATH={bin}:/usr/bin:/bin {quiet}
LoadCredential=node:{node}
LoadCredential=ca.crt:{ca}
TemporaryFileSystem={hidden} /dev/shm:mode=1777
{inaccessible}BindReadOnlyPaths={sockets}:/run/flnl-site-{name}
ProtectHome=tmpfs
BindReadOnlyPaths={environment}
ExecStart={command}
Restart=always
RestartSec=15
NoNewPrivileges=yes
ProtectSystem=strict
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
"""

COMPOSE = """\
# compose.yaml, beside nothing else: two containers that share the socket alone. FLNL_IMAGE is an image with flnl.
services:
  site:
    image: ${{FLNL_IMAGE:?an image with flnl}}
    command: [flnl, site, {folder}, --no-supernode]
    user: "{uid}:{gid}"
    network_mode: none
    read_only: true
    tmpfs: [/tmp]
    volumes:
      - {folder}:{folder}
      - ${{DATA:?the folder that dataset.root in site.yaml is}}:${{DATA}}:ro
    restart: unless-stopped
  supernode:
    build:
      context: {context}
      dockerfile_inline: |
        FROM python:3.12-slim
        COPY requirements.txt .
        RUN pip install --no-cache-dir --require-hashes -r requirements.txt
    command: {words}
    user: "{uid}:{gid}"
    environment: {{FLWR_HOME: /tmp/flower, HOME: /tmp/flower, {quiet}}}
    read_only: true
    cap_drop: [ALL]
    security_opt: ["no-new-privileges:true"]
    tmpfs: ["/tmp:uid={uid},gid={gid}"]
    volumes:
      - {sockets}:/run/flnl:ro # so that it can call the socket, and not put another in its place
      - {node}:/run/keys/node:ro
      - {ca}:/run/keys/ca.crt:ro
    restart: unless-stopped
"""


def text(site: SiteFolder, group: str, environment: Path, user: str) -> str:
    """The two units and the compose file.

    Args:
        site: the site.
        group: the group that may use the socket, as ``group`` in ``site.yaml``.
        environment: where Flower is.
        user: who owns the site's folder.

    Raises:
        UserError: if a path has signs that a unit would read otherwise, or the data set cannot be composed.
    """
    folder, places_of_data = site.folder.resolve(), _places(site.words, user)
    for path in (folder, environment, *places_of_data):
        if not PLAIN.fullmatch(str(path)):
            raise UserError(f"--units: {path}: a unit can name paths of letters, digits and . _ - / alone: move it")
    sockets, owner = (folder / SOCKET).parent, folder.stat()
    there = f"/run/flnl-site-{site.name}/{Path(SOCKET).name}"
    by_systemd = _at(supernode(site, Path("%d"), there, PORT), environment / "bin")
    in_container = supernode(site, Path("/run/keys"), f"/run/flnl/{Path(SOCKET).name}", PORT)
    places = {"folder": folder, "sockets": sockets, "node": folder / NODE, "ca": folder / CA}
    named = {"name": site.name, "federation": site.federation, **places}
    starts = shlex.join([sys.executable, "-P", "-m", "flnl", "site", str(folder), "--no-supernode"])
    hidden = folder if folder.parent == Path("/") else folder.parent
    units = [
        UNIT_OF_SITE.format(**named, user=user, command=starts),
        UNIT_OF_SUPERNODE.format(
            **named,
            group=group,
            bin=environment / "bin",
            environment=environment,
            hidden=hidden,
            inaccessible="".join(f"InaccessiblePaths=-{path}\n" for path in places_of_data),
            quiet=" ".join(f"{key}={value}" for key, value in QUIET.items()),
            command=_in_unit(by_systemd),
        ),
        COMPOSE.format(
            **named,
            uid=owner.st_uid,
            gid=owner.st_gid,
            context=HERE,
            words="[" + ", ".join(f"'{word}'" for word in in_container) + "]",
            quiet=", ".join(f"{key}: '{value}'" for key, value in QUIET.items()),
        ),
    ]
    return "\n".join(units)


def _places(words: list[str], user: str) -> list[str]:
    """The real paths of a data set's files, and of what is kept of them, as ``user`` reads them."""
    try:
        dataset = compose.resolved(compose.load(words))["dataset"]
    except Exception as error:
        raise UserError(f"--units: data: {' '.join(str(error).split())}") from None
    keys = [*(key.removeprefix("dataset.") for key in PLACES if key.startswith("dataset.")), *MORE_PLACES]
    values = {key: dataset[key] for key in keys if isinstance(dataset.get(key), str)}
    try:
        paths = {key: Path(re.sub("^~(?=/|$)", f"~{user}", text)).expanduser() for key, text in values.items()}
    except RuntimeError:
        raise UserError("--units: a path of the data begins with ~, and of this user no home is known") from None
    root = paths.get("root", Path("/"))
    if not root.is_absolute():
        raise UserError(f"--units: dataset.root={root}: a unit has no working folder; name it from / on")
    return [os.path.realpath(root / path) for path in paths.values()]


def _at(words: Sequence[str], folder: Path) -> list[str]:
    return [str(folder / words[0]), *words[1:]]


def _in_unit(words: Sequence[str]) -> str:
    """A command as systemd reads it, whose specifiers (``%d``) stay."""
    return " ".join(word if re.fullmatch(r"[\w./:%-]+", word) else f"'{word}'" for word in words)
