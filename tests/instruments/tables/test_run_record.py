"""A run's line in ``runs.jsonl`` is small, and has every number that a cell can be made of; the file stays whole."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flnl.core.errors import UserError
from flnl.instruments.tables import metric_values, run_record
from flnl.instruments.tables.render import render
from flnl.instruments.tables.render.evidence import Evidence
from flnl.instruments.tables.results import Filled, Run
from flnl.instruments.tables.table import Column, Metric
from tests.instruments.tables.render.made import recorded, run, table

ROOT = Path(__file__).resolve().parents[3]


def told(one: Run) -> dict[str, Any]:
    """What a run's line says."""
    found: dict[str, Any] = json.loads(run_record.line(one.folder, one.command, one.seed, run_record.read(one.folder)))
    return found


def test_the_record_has_what_cells_are_made_of(tmp_path: Path) -> None:
    one = run(1, 50.0, str(tmp_path / "r"))
    recorded(one.folder, [0.1, 0.25, 0.5, 0.45], key="k", participations=40)
    with (one.folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps({"kind": "round", "round": 4, "local_memorization": 0.125, "cohort": [1, 2]}) + "\n")
    whole = run_record.read(one.folder)
    found = told(one)
    assert found["evaluations"] == {
        "None": {"round": [1, 2, 3, 4], "participations": [10, 20, 30, 40], "accuracy": [0.1, 0.25, 0.5, 0.45]}
    }
    assert found["evaluation"] == {"round": 4, "participations": 40, "accuracy": 0.45}
    assert found["round"] == {"round": 4, "local_memorization": 0.125}
    assert found["command"] == one.command
    assert found["metrics"]["best"] == 0.5
    for key, where in (("best", "metrics"), ("local_memorization", "round"), ("accuracy", "evaluation")):
        metric = Metric("m", key, "", None)
        value = metric_values.value(whole, metric, Column("c", ()))
        assert value == found[where][key]


def test_a_slip_in_the_name_of_a_metric_is_told_of(tmp_path: Path) -> None:
    one = run(1, 50.0, str(tmp_path / "r"))
    recorded(one.folder, [0.1, 0.25])
    whole = run_record.read(one.folder)
    for key, told in (("bset", "the run recorded no bset, but best: name that"), ("lid", "no lid; if it was made for")):
        assert told in metric_values.without(whole, Metric("m", key, "", None), Column("c", ()))


def test_a_resumed_run_tells_of_every_process(tmp_path: Path) -> None:
    """A run that two commits computed is no run of the last one alone; made again of its record, it tells the same."""
    one = run(1, 50.0, str(tmp_path / "r"))
    before = {"rounds": 2, "commit": "a" * 40, "device": "cpu", "versions": {"torch": "2.0"}, "key": "k", "threads": 1}
    now = {"commit": "b" * 40, "device": "cpu", "versions": {"torch": "2.1"}, "threads": 1}
    recorded(one.folder, [0.5], **now, earlier=[before, {**before, **now, "rounds": 3}])
    table_of = replace(
        filled := table({"A": [[1.0]]}, {"A": [1.0]}, ["x"]),
        cells=((replace(filled.cells[0][0], runs=(one,)),),),
    )
    first = told(one)["earlier"]
    assert first == [{"rounds": 2, "commit": "a" * 40, "versions": {"torch": "2.0"}}, {"rounds": 3}]
    summary = Evidence().provenance([table_of])
    of_each = f"{'a' * 40} (1 run), {'b' * 40} (1 run)"
    assert summary["commit"] == f"{of_each}; a run that went on with another counts at each"
    assert (summary["runs"], summary["device"], summary["versions"]) == ("1", "cpu", "torch 2.0, torch 2.1")
    recorded(one.folder, [0.5], **now, earlier=first)
    assert told(one)["earlier"] == first
    assert Evidence().provenance([table_of]) == summary


def test_only_finished_runs_have_a_line_and_each_one(tmp_path: Path) -> None:
    filled = table({"A": [[1.0, None]]}, {"A": [1.0]}, ["x"])
    assert Evidence().lines([filled]) == {}, "a folder that is gone"
    top = tmp_path / "runs"
    runs = tuple(run(seed, value, str(top / "a")) for seed, value in ((1, 1.0), (2, None)))
    recorded(runs[0].folder, [0.5])
    recorded(runs[1].folder, [0.5])
    cell = type(filled.cells[0][0])((None,), runs, "partly", None)
    both = type(filled)(**{**vars(filled), "cells": ((cell,),)})
    assert list(Evidence().lines([both, both])) == ["a-1"]


def test_a_damaged_run_leaves_no_line(tmp_path: Path) -> None:
    filled = table({"A": [[1.0, 2.0]]}, {"A": [1.0]}, ["x"])
    runs = tuple(run(seed, value, str(tmp_path / "a")) for seed, value in ((1, 1.0), (2, None)))
    runs = (runs[0], replace(runs[1], state="finished"))
    for one in runs:
        recorded(one.folder, [0.5])
    (runs[1].folder / "metrics.jsonl").write_text("3\n")
    (cells,) = filled.cells
    filled = replace(filled, cells=((replace(cells[0], runs=runs),),))
    assert list(Evidence().lines([filled])) == ["a-1"]


def lines(tmp_path: Path, *keys: str, accuracy: float = 0.5) -> dict[str, str]:
    """The lines of runs with these keys, by name."""
    found = {}
    for key in keys:
        one = run(1, 50.0, str(tmp_path / "multirun" / key[:4]))
        recorded(one.folder, [0.25, accuracy], key=key)
        found[one.folder.name] = run_record.line(one.folder, one.command, 1, run_record.read(one.folder))
    return found


def names(folder: Path) -> list[str]:
    """The runs of a folder's file in its order."""
    return [Path(json.loads(text)["folder"]).name for text in (folder / "runs.jsonl").read_text().splitlines()]


def filled_of(tmp_path: Path, row: str, *keys: str) -> Filled:
    """A table of one row and cell of its own, whose runs have these keys."""
    filled = table({row: [[50.0] * len(keys)]}, {row: [50.0]}, ["x"], number=row)
    lines(tmp_path, *keys)
    runs = tuple(run(1, 50.0, str(tmp_path / "multirun" / key[:4])) for key in keys)
    return replace(filled, cells=((replace(filled.cells[0][0], runs=runs),),))


def test_lines_are_in_the_order_of_keys_whenever_they_come(tmp_path: Path) -> None:
    for key in ("c" * 8, "a" * 8, "b" * 8):
        run_record.save(tmp_path, lines(tmp_path, key))
    assert names(tmp_path) == ["aaaa-1", "bbbb-1", "cccc-1"]
    before = (tmp_path / "runs.jsonl").read_text().splitlines()
    run_record.save(tmp_path, lines(tmp_path, "abcd"))
    after = (tmp_path / "runs.jsonl").read_text().splitlines()
    assert [text for text in after if text not in before] == [after[1]], "a run more is a line more"
    assert [text for text in after if text in before] == before


def test_a_run_of_the_same_name_is_replaced_and_runs_of_one_key_on_other_data_stay(tmp_path: Path) -> None:
    """A key has neither the place nor the contents of data: two runs of one key are told apart by their folders."""
    run_record.save(tmp_path, lines(tmp_path, "aaaa", "bbbb"))
    run_record.save(tmp_path, lines(tmp_path, "bbbb", accuracy=0.75))
    found = run_record.load(tmp_path)
    assert {name: one.record.metrics["last"] for name, one in found.items()} == {"aaaa-1": 0.5, "bbbb-1": 0.75}
    other = json.loads(lines(tmp_path, "aaaa")["aaaa-1"])
    del other["sha256"]
    other |= {"folder": "elsewhere/0000", "federation": "f" * 64}
    run_record.save(tmp_path, {"0000": run_record.signed(other)})
    assert names(tmp_path) == ["0000", "aaaa-1", "bbbb-1"]


def test_a_run_whose_numbers_contradict_each_other_does_not_make_the_file_unreadable(tmp_path: Path) -> None:
    """Runs of early versions have no checksums, so that nobody has compared them before."""
    run_record.save(tmp_path, lines(tmp_path, "aaaa"))
    one = run(1, 50.0, str(tmp_path / "b"))
    recorded(one.folder, [0.5], rounds=7)
    text = run_record.line(one.folder, one.command, 1, run_record.read(one.folder))
    with pytest.raises(UserError, match=r"^the record of b-1 is damaged: rounds is 7, and its last line says 1"):
        run_record.save(tmp_path, {"b-1": text})
    assert names(tmp_path) == ["aaaa-1"]


def test_a_command_with_bytes_that_are_no_text_comes_back_as_it_was(tmp_path: Path) -> None:
    one = run(1, 50.0, str(tmp_path / "b"))
    recorded(one.folder, [0.5])
    text = run_record.line(one.folder, "flnl 'dataset.root=Grün\udc80'", 1, run_record.read(one.folder))
    run_record.save(tmp_path, {"b-1": text})
    assert run_record.load(tmp_path)["b-1"].record.raw["command"] == "flnl 'dataset.root=Grün\udc80'"


def test_nothing_is_written_where_nothing_is_new(tmp_path: Path) -> None:
    run_record.save(tmp_path, lines(tmp_path, "aaaa"))
    before = (tmp_path / "runs.jsonl").stat()
    run_record.save(tmp_path, lines(tmp_path, "aaaa"))
    assert (tmp_path / "runs.jsonl").stat().st_ino == before.st_ino


def test_a_table_that_is_rendered_loses_no_run_of_another(tmp_path: Path) -> None:
    out = tmp_path / "out"
    render([filled_of(tmp_path, "one", "aaaa", "bbbb")], out)
    render([filled_of(tmp_path, "two", "bbbb", "cccc")], out)
    assert names(out) == ["aaaa-1", "bbbb-1", "cccc-1"]
    (out / "costs.csv").write_bytes("Grün;1\n".encode("latin-1"))  # somebody's
    render([filled_of(tmp_path, "one", "dddd")], out)
    assert names(out) == ["bbbb-1", "cccc-1", "dddd-1"], "what no table has any more is gone"


def test_two_that_render_at_once_both_have_their_runs(tmp_path: Path) -> None:
    """Each reads the file, adds its runs and writes it: without turns, the later one would not have the other's."""
    program = (
        "import sys, pathlib; from flnl.instruments.tables import run_record\n"
        "own = dict(line.split('\\t', 1) for line in sys.stdin.read().splitlines())\n"
        "for name, text in own.items(): run_record.save(pathlib.Path(sys.argv[1]), {name: text})\n"
    )
    several = [lines(tmp_path, *(f"{who}{number:03}" for number in range(20))) for who in "ab"]
    processes = [
        subprocess.Popen([sys.executable, "-c", program, str(tmp_path)], stdin=subprocess.PIPE, text=True)
        for _ in several
    ]
    for process, own in zip(processes, several, strict=True):
        assert process.stdin is not None
        process.stdin.write("".join(f"{name}\t{text}\n" for name, text in own.items()))
        process.stdin.close()
    assert [process.wait(60) for process in processes] == [0, 0]
    assert names(tmp_path) == sorted(name for own in several for name in own)


@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_kill_while_the_file_is_written_leaves_the_one_before(tmp_path: Path, at: str) -> None:
    run_record.save(tmp_path, lines(tmp_path, "aaaa"))
    before = (tmp_path / "runs.jsonl").read_bytes()
    module = {"fsync": "os", "replace": "pathlib.Path"}[at]
    program = (
        "import os, pathlib, signal, sys; from flnl.instruments.tables import run_record\n"
        f"{module}.{at} = lambda *_: os.kill(os.getpid(), signal.SIGKILL)\n"
        "name, text = sys.stdin.read().split('\\t', 1)\n"
        "run_record.save(pathlib.Path(sys.argv[1]), {name: text})\n"
    )
    (own,) = lines(tmp_path, "bbbb").items()
    killed = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)], input="\t".join(own), text=True, check=False
    )
    assert killed.returncode == -signal.SIGKILL
    assert (tmp_path / "runs.jsonl").read_bytes() == before
    run_record.save(tmp_path, dict([own]))
    assert names(tmp_path) == ["aaaa-1", "bbbb-1"], "and the lock has been released"


Change = Callable[[str], str]


def resigned(**fields: object) -> Change:
    """Another line of the run, with the sha256 of what it says."""

    def change(text: str) -> str:
        held = json.loads(text)
        del held["sha256"]
        return run_record.signed({**held, **fields})

    return change


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda text: text[:100], "is damaged; restore it from where it is from, or remove it"),
        (lambda _: "<<<<<<< HEAD", "is damaged"),
        (lambda _: "3", "is damaged"),
        (lambda text: text.replace('"seed": 1', '"seed": 2'), "its sha256 is of another text; restore it from where"),
        (lambda text: text[: text.index(', "sha256"')] + "}", "its sha256 is of another text"),
        (resigned(metrics={"best": 0.99}), r"is damaged: metrics\.best is 0\.99, and its evaluations give 0\.5;"),
        (resigned(rounds=99), "is damaged: rounds is 99, and its last line says 2"),
        (resigned(folder=None), "is damaged"),
        (resigned(evaluations={"training": {"round": [1]}}), "is damaged"),
    ],
)
def test_a_damaged_line_is_named_by_file_and_number(tmp_path: Path, change: Change, said: str) -> None:
    file = tmp_path / "runs.jsonl"
    run_record.save(tmp_path, lines(tmp_path, "aaaa", "bbbb", "cccc"))
    first, second, third = file.read_text().splitlines()
    file.write_text(f"{first}\n{change(second)}\n{third}\n")
    with pytest.raises(UserError, match=rf"^line 2 of .*runs\.jsonl .*{said}") as caught:
        run_record.load(file)
    assert "\n" not in str(caught.value)
    before = file.read_bytes()
    with pytest.raises(UserError, match="line 2 of"):
        render([filled_of(tmp_path, "one", "dddd")], tmp_path)
    assert file.read_bytes() == before
    assert not [*tmp_path.glob("*.csv")], "no table is written beside records that are damaged"
    file.write_text(f"{first}\n{third}\n")  # as the message says
    assert [*run_record.load(file)] == ["aaaa-1", "cccc-1"]


def test_a_file_that_was_cut_off_is_named_by_its_last_line(tmp_path: Path) -> None:
    run_record.save(tmp_path, lines(tmp_path, "aaaa", "bbbb"))
    file = tmp_path / "runs.jsonl"
    whole = file.read_bytes()
    file.write_bytes(whole[:-1])
    assert len(run_record.load(file)) == 2, "the end of the last line alone"
    file.write_bytes(whole[:-2])
    with pytest.raises(UserError, match=r"^line 2 of .* is damaged"):
        run_record.load(file)


def test_two_lines_of_one_run_are_refused_unless_they_are_the_same(tmp_path: Path) -> None:
    """As a merge of two branches may leave them."""
    (one,), (other,) = (lines(tmp_path, "aaaa", accuracy=value).values() for value in (0.5, 0.75))
    file = tmp_path / "runs.jsonl"
    file.write_text(f"{one}\n{one}\n")
    assert len(run_record.load(file)) == 1
    file.write_text(f"{one}\n{other}\n")
    with pytest.raises(UserError, match=r"line 2 of .* is of the same run as line 1; remove one of them"):
        run_record.load(file)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "runs.jsonl")
    with pytest.raises(UserError, match=r"runs\.jsonl cannot be read"):
        run_record.load(tmp_path)


@pytest.mark.parametrize(
    "folder", sorted(file.parent for file in (ROOT / "results").glob("*/runs.jsonl")), ids=lambda folder: folder.name
)
def test_the_records_of_this_project_agree_with_themselves(folder: Path) -> None:
    found = run_record.load(folder)
    assert {run.record.status for run in found.values()} == {"finished"}
    text = (folder / "runs.jsonl").read_text()
    assert text.splitlines() == [run_record.signed(found[name].record.raw) for name in names(folder)]
    assert [json.loads(line)["key"] for line in text.splitlines()] == sorted(run.record.key for run in found.values())
    used = {name for file in folder.glob("*.csv") for name in run_record.REFERENCE.findall(file.read_text())}
    assert used == found.keys(), "no table names a run that is not there, and none is there for nothing"
    assert len(text.encode()) < 2_000_000
