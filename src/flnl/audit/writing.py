"""Write the files of an audit into its folder, whole or not at all."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from flnl.audit.corrections import CLIENTS, CORRECTED, Corrections, reads_labels
from flnl.audit.examination import Examined
from flnl.audit.files import write_csv, write_json
from flnl.audit.options import Options
from flnl.audit.result import Audit
from flnl.config.override_text import key_of, value_of
from flnl.config.quoting import quoted
from flnl.core.errors import UserError
from flnl.data.owners import called
from flnl.storage.whole_folder import written_whole

FOLDER = "audit"
CSV, JSON, PAGE, OF_CLIENTS = "audit.csv", "audit.json", "index.html", "clients"
WRITTEN = re.compile(
    rf"({OF_CLIENTS}/[^/]+/)?({re.escape(CSV)}|{re.escape(JSON)}|{re.escape(PAGE)}|pages/\d+\.js)"
    rf"|{re.escape(CORRECTED)}|{re.escape(CLIENTS)}"
)
"""The paths below its folder of all that an audit writes."""
LONGEST = 60
"""Letters of a client's name in the name of its folder."""
OF_DESKTOPS = {".DS_Store", ".directory", "Thumbs.db", "desktop.ini"}
"""Files that a desktop leaves in a folder that it has shown; nobody's work is in them."""


@dataclass(frozen=True)
class Written:
    """Where the files are."""

    files: tuple[Path, ...]
    overrides: tuple[str, ...] | None  # that have a run read corrected.csv; None if its data set cannot, or without it
    superseded: tuple[str, ...] = ()  # the run's own overrides that do not go with these


def folder_of(run: Path, options: Options) -> Path:
    """Where the audit of the run in the folder ``run`` goes."""
    return run / FOLDER if options.out is None else options.out


def refuse_existing(folder: Path, options: Options) -> None:
    """Refuse to replace an audit unless asked to, and corrected labels by none or anything else always.

    Raises:
        UserError: if ``folder`` holds something that may not be replaced.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{folder} is no folder: choose another with --out")
    if folder.resolve() == Path.cwd():
        raise UserError(
            f"{folder} is the folder that you are in, and an audit replaces its folder as a whole: go to another one, "
            "or name a folder in it with --out"
        )
    held = {path.name for path in folder.iterdir()} - OF_DESKTOPS if folder.exists() else set()
    if others := sorted(_others(folder)) if held else []:
        raise UserError(
            f"{folder} holds {others[0]}, which no audit has written: move it, or choose another with --out"
        )
    if held and not options.force:
        raise UserError(f"{folder} holds an audit already: add --force to replace it, or choose another with --out")
    if CORRECTED in held and options.corrections is None:
        raise UserError(
            f"{folder} holds {CORRECTED}, which a run may read: move it, add --corrections to write another, or choose "
            "another folder with --out"
        )


def _others(folder: Path) -> Iterator[str]:
    """The files below an audit's ``folder`` that neither an audit nor a desktop has written."""
    for path in folder.rglob("*"):
        name = path.relative_to(folder).as_posix()
        if (path.is_symlink() or not path.is_dir()) and path.name not in OF_DESKTOPS and not WRITTEN.fullmatch(name):
            yield name


def write(examined: Examined) -> Written:
    """Write all that the options ask for.

    Raises:
        UserError: if the folder may not be replaced, or an image or a label cannot be written.
        OSError: if the disk is full, or the folder cannot be written.
    """
    options, run = examined.audit.options, examined.run
    folder = folder_of(run.folder, options)
    if not options.formats and options.corrections is None:
        return Written((), None)
    refuse_existing(folder, options)
    overrides = None
    with written_whole(folder) as fresh:
        _write(examined, examined.audit, fresh)
        names = run.federation.client_names
        folders = folders_of([called(names, client) for client in examined.of_clients]) if names else None
        for place, (client, audit) in enumerate(examined.of_clients.items()):
            below = fresh / OF_CLIENTS / (folders[place] if folders else f"{client:04d}")
            below.mkdir(parents=True)
            _write(examined, audit, below)
        if options.corrections is not None:
            corrections = Corrections.of(examined.audit, run, examined.verdicts)
            overrides = corrections.save(fresh, examined.audit.classes, spreadsheet=options.spreadsheet)
        made = [name for name in (PAGE, CSV, JSON, CORRECTED, CLIENTS, OF_CLIENTS) if (fresh / name).exists()]
    files = tuple(folder / name for name in made)
    if overrides is None or not reads_labels(run):
        return Written(files, None)
    clean = [] if run.record.config["noise"]["_target_"].endswith(".Clean") else ["noise=none"]
    filled = tuple(_filled(text, folder.resolve()) for text in (*overrides, *clean))
    values = ("partition.", "noise.") if clean else ("partition.",)  # of groups that are chosen again
    of_run = [str(text) for text in run.record.overrides]
    return Written(files, filled, tuple(text for text in of_run if key_of(text).startswith(values)))


def folders_of(names: Sequence[str]) -> list[str]:
    """A folder's name for each of these clients: of letters, digits, ``-`` and ``_``, different whatever the case.

    >>> folders_of(["St. Mary", "st mary", "../../etc", "Charit\u00e9", "7"])
    ['St_Mary', 'st_mary-2', 'etc', 'Charit\u00e9', '7']
    """
    taken: set[str] = set()
    folders = []
    for name in names:
        stem = re.sub(r"[^\w-]+", "_", name).strip("_")[:LONGEST] or "client"
        folder = next(one for n in count(1) if (one := stem if n == 1 else f"{stem}-{n}").casefold() not in taken)
        taken.add(folder.casefold())
        folders.append(folder)
    return folders


def _filled(override: str, folder: Path) -> str:
    """An override KEY=VALUE with the folder of the audit in its value, as Hydra reads it."""
    value = value_of(override)
    return f"{key_of(override)}={quoted(value.format(folder=folder))}" if "{folder}" in value else override


def _write(examined: Examined, audit: Audit, folder: Path) -> None:
    if "csv" in audit.options.formats:
        write_csv(audit, folder / CSV)
    if "json" in audit.options.formats:
        write_json(audit, folder / JSON)
    if "html" in audit.options.formats:
        from flnl.audit.page import write_page  # takes Pillow

        write_page(folder, audit, examined.run.federation.dataset)
