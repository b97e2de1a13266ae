"""Where the configuration files of a command lie: ``conf/``, and the folders of its search path."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from hydra.core.hydra_config import HydraConfig
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException

from flnl.config.quoting import quoted
from flnl.core.errors import UserError
from flnl.core.importing import import_own

PACKAGE = Path(__file__).resolve().parents[1]
CONF = PACKAGE / "conf" if (PACKAGE / "conf").is_dir() else PACKAGE.parents[1] / "conf"
"""``conf/``: a wheel carries it in the package, a checkout has it at the root."""

SEARCH_PATH = "hydra.searchpath"


def folders() -> list[Path]:
    """The folders with configuration files of the command that is running: ``conf/`` and its search path."""
    places = [CONF]
    if HydraConfig.initialized():
        for source in HydraConfig.get().runtime.config_sources:
            places += paths(source.schema, source.path)
    return list(dict.fromkeys(path.resolve() for path in places if path.is_dir()))


def search_path(folders: Sequence[Path]) -> list[str]:
    """The override that adds ``folders`` to Hydra's search path; none for no folders."""
    places = ",".join(quoted(f"file://{folder.absolute()}") for folder in folders)
    return [f"{SEARCH_PATH}=[{places}]"] if folders else []


def refuse_shadowed(folder: Path) -> None:
    """Refuse a folder of the user's with a file that Hydra would not read: it searches ``conf/`` first.

    Raises:
        UserError: naming the file. Equal copies of files in ``conf/`` are taken.
    """
    for file in sorted(folder.rglob("*.yaml")):
        ours = CONF / file.relative_to(folder)
        if ours.is_file() and ours.read_bytes() != file.read_bytes():
            raise UserError(f"--config-dir: {file} has the name of a file of flnl, which would be taken; rename yours")


def added_by(overrides: Sequence[str]) -> list[Path]:
    """The folders that the override of Hydra's search path names, where it is among ``overrides`` and can be read."""
    found: list[Path] = []
    for override in overrides:
        if override.startswith(f"{SEARCH_PATH}="):
            with suppress(HydraException):
                places = OverridesParser.create().parse_override(override).value()
                for place in places if isinstance(places, list) else ():
                    schema, _, path = str(place).rpartition("://")
                    found += paths(schema or "file", path)
    return found


def paths(schema: str, path: str) -> Iterator[Path]:
    """The folders that an entry of Hydra's search path stands for."""
    if schema == "file":
        yield Path(path)
    elif schema == "pkg" and not path.startswith("hydra."):
        yield from map(Path, import_own(path).__path__)
