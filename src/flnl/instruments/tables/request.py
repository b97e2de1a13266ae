"""What a command line of ``flnl tables`` asks for."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from flnl.console.shell import divided
from flnl.console.terminal import print_line
from flnl.core.errors import UserError
from flnl.instruments.tables import choices, load
from flnl.instruments.tables.added import check_folder, row, with_rows
from flnl.instruments.tables.choices import Choices
from flnl.instruments.tables.plan import ROOT, Plan
from flnl.instruments.tables.scaling import Scaling
from flnl.instruments.tables.selection import Selection
from flnl.instruments.tables.table import Row, Table

TUNE, AGREE = "tune", "agree"
VERBS = ("list", "plan", "run", "render", TUNE, AGREE)
LAUNCHING = ("plan", "run", TUNE)
"""The verbs that take a selection of cells, and overrides after ``--``: how runs are launched."""
WRITING = ("render", TUNE, AGREE)
"""The verbs that write a file or a folder of the user's choice."""
OPTIONS = ("scale", "seeds", "rows", "columns", "add", "tuned", "verify", "records", "out")
CONFIG_DIR = "--config-dir"
"""The one option that is written as in flnl's other commands, followed by a folder."""
OF_ONE_VERB = {"grid": TUNE, "measure": TUNE, "share": TUNE, "margin": TUNE, "metric": AGREE}
"""The options of one verb alone."""
REPEATABLE = ("rows", "columns", "add", "tuned", "grid", CONFIG_DIR)
"""The options that may be given several times."""
RESULTS = Path("results")
MOST_SEEDS = 1000
"""A larger number of seeds is refused as a mistake: every cell's configuration is composed once for each seed."""


@dataclass(frozen=True)
class Request:
    """The parsed command line."""

    verb: str
    tables: tuple[Table, ...]  # the selected tables, with the selected rows and columns
    every: tuple[Table, ...]  # all readable tables that are made at the scale
    scale: str
    seeds: int | None
    choices: tuple[Choices, ...]  # what was tuned
    verify: bool  # whether data files must be the published ones
    records: Path | None  # records of runs that count as finished
    out: Path
    overrides: tuple[str, ...]
    options: Mapping[str, Sequence[str]]  # all, as they were written
    named: str | None  # the first table that was named
    warned: set[str] = field(default_factory=set)  # warnings already printed

    @property
    def own(self) -> list[str]:
        """The words of the command line that give the user's own rows."""
        folders = [word for folder in self.options.get(CONFIG_DIR, ()) for word in (CONFIG_DIR, folder)]
        return [*(f"add={text}" for text in self.options.get("add", ())), *folders]

    @property
    def plan(self) -> Plan:
        """The plan of the selected tables at the scale."""
        return self.plan_of(self.tables)

    @property
    def may_be_outlined(self) -> bool:
        """Whether all tables are asked for as they are, and nothing at the scale has begun here."""
        return self.named is None and not self.options.keys() - {"scale", "seeds"} and not (ROOT / self.scale).exists()

    @property
    def held(self) -> tuple[Table, ...]:
        """The selected tables, and all others that the output folder already contains."""
        return tuple(t for t in self.every if t in self.tables or (self.out / f"{t.name}.md").exists())

    @property
    def scaling(self) -> Scaling:
        """The scale, with what was tuned."""
        scaling = load.scaling(self.scale).tuned(self.choices)
        return scaling if self.verify else scaling.unverified()

    def plan_of(self, tables: Sequence[Table]) -> Plan:
        """The plan of ``tables`` at the scale."""
        scaling = self.scaling
        self.warn([f"tuned: no row of these tables is of {cells}; left out" for cells in scaling.unused(tables)])
        self.warn(scaling.untuned(tables))
        self.warn(scaling.favoured(tables, self.seeds))
        plan = Plan(tables, scaling, self.seeds, every=self.every, starting=self.verb in ("plan", "run"))
        self.warn([f"{line}; left out" for line in plan.wrong])
        return plan

    def warn(self, lines: Sequence[str]) -> None:
        """Print each line as a note, once."""
        for line in lines:
            if line not in self.warned:
                print_line(f"note: {line}", to=sys.stderr)
                self.warned.add(line)


def parse(arguments: Sequence[str]) -> Request:
    """Parse the command line.

    Raises:
        UserError: for an unknown verb, table, scale or option.
    """
    before, overrides = divided(arguments)
    verb = load.known(before[0], VERBS, "verb") if before else ""
    if not verb:
        raise UserError(f"which command? one of {', '.join(VERBS)}; see --help")
    options: dict[str, list[str]] = {}
    names = []
    words = iter(before[1:])
    for argument in words:
        key, equals, value = argument.partition("=")
        if key == CONFIG_DIR:
            options.setdefault(key, []).append(value if equals else next(words, ""))
        elif equals:
            options.setdefault(_option(key, argument, verb), []).append(value)
        else:
            name = Path(argument).stem if argument.endswith(".yaml") else argument
            names.append(load.known(name, load.names(), "table"))
    if twice := [key for key, values in options.items() if len(values) > 1 and key not in REPEATABLE]:
        raise UserError(f"{twice[0]} is given twice; give one value")
    last = {key: values[-1] for key, values in options.items()}
    selection = Selection(tuple(options.get("rows", ())), tuple(options.get("columns", ())))
    if verb == "list" and options:
        raise UserError(f"list shows tables as the papers have them: {next(iter(options))} changes nothing there")
    if selection and verb not in LAUNCHING:
        raise UserError(f"{verb} takes no rows or columns: it shows whole tables")
    if "out" in last and verb not in WRITING:
        raise UserError(f"{verb} writes no results: out={last['out']} is for flnl tables render")
    added = _added(options)
    scale = load.known(last.get("scale", "small"), load.scales(), "scale")
    seeds = last.get("seeds")
    if seeds is not None and not (seeds.isdecimal() and len(seeds) < 10 and 0 < int(seeds) <= MOST_SEEDS):
        raise UserError(f"seeds={seeds}: give a number of seeds, 1 to {MOST_SEEDS}")
    named = dict.fromkeys(names if names or verb == AGREE else load.names())  # agree goes on if one cannot be read
    asked = [with_rows(load.table(name), added, all_of_them=bool(names)) for name in named]
    kind = "_tuned" * ("tuned" in last) + "_own" * ("add" in last)
    out = _path(last["out"]) if "out" in last else RESULTS / f"{scale}{kind}"

    def wanted(table: Table) -> bool:
        """Whether a table takes part: one that is made only by its name, if it is named, or rendered already."""
        return not table.by_name or table.name in names or (verb == "render" and (out / f"{table.name}.md").exists())

    if verb != "list":
        asked = [table for table in _made_at(scale, asked, names, tuned="tuned" in last) if wanted(table)]
    tables = selection.of(asked) if asked else ()
    readable, wrong = load.readable()
    every = tuple(
        with_rows(table, added, all_of_them=False) for table in readable if table.made_at(scale) and wanted(table)
    )
    if overrides and verb not in LAUNCHING:
        raise UserError(f"{verb} takes no overrides after --: it launches no runs")
    request = Request(
        verb,
        tables,
        every,
        scale,
        None if seeds is None else int(seeds),
        choices.read([*map(_path, options.get("tuned", ()))], scale),
        load.known(last.get("verify", "true"), ("true", "false"), "value of verify") == "true",
        _path(last["records"]) if "records" in last else None,
        out,
        tuple(overrides),
        options,
        names[0] if names else None,
    )
    request.warn([f"{line}; left out" for line in wrong])
    return request


def _added(options: Mapping[str, Sequence[str]]) -> tuple[Row, ...]:
    """The rows of the options ``add``.

    Raises:
        UserError: for one that is invalid, for two of one label, and for a folder that is none or that no row needs.
    """
    written = options.get(CONFIG_DIR, ())
    if "" in written:
        raise UserError(f"{CONFIG_DIR} without a folder: give one with the layout of conf/")
    if written and "add" not in options:
        raise UserError(f"{CONFIG_DIR} is for rows of your own: add='method=mine'")
    folders = [_path(text) for text in written]
    for folder in folders:
        check_folder(folder)
    rows = tuple(row(text, folders) for text in options.get("add", ()))
    labels = [one.label.lower() for one in rows]
    if twice := next((one.label for one in rows if labels.count(one.label.lower()) > 1), None):
        raise UserError(f"add: two rows are called {twice}; give each a label of its own, add='LABEL: method=mine'")
    return rows


def _made_at(scale: str, tables: Sequence[Table], named: Sequence[str], *, tuned: bool) -> list[Table]:
    """Those of ``tables`` that have results at ``scale``; with ``tuned``, and not ``named``, that can be tuned.

    Raises:
        UserError: if one was ``named`` that has none there.
    """
    for table in tables:
        if table.name in named and not table.made_at(scale):
            raise UserError(f"{table.name} is made at scale={' and scale='.join(table.scales)} alone, not at {scale}")
    return [one for one in tables if one.made_at(scale) and (one.name in named or not (tuned and one.scales))]


def _path(written: str) -> Path:
    """The path of an option: shells such as zsh leave ``~`` after an equals sign as it is."""
    return Path(written).expanduser()


def _option(key: str, argument: str, verb: str) -> str:
    try:
        if (only := OF_ONE_VERB.get(key, verb)) != verb:
            raise UserError(f"{key} is an option of flnl tables {only}")
        own = [name for name, of in OF_ONE_VERB.items() if of == verb]
        return load.known(key, (*OPTIONS, *own), "option of tables")
    except UserError as error:
        how = f"values to choose from are given as grid={argument}" if verb == TUNE else ""
        how = how or f"overrides of how runs are launched come after --, as in -- {argument}"
        raise UserError(f"{error}; {how}") from None
