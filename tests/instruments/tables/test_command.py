"""``flnl tables``: a table of one's own from a copy, run, gone on with, and counted."""

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from filelock import FileLock
from omegaconf import OmegaConf

from flnl.config import compose, identity
from flnl.instruments.tables.identity import Composer
from flnl.sweep.listed import check
from tests.cli.conftest import ROOT
from tests.instruments.tables.conftest import Tables, copied


def test_a_copy_runs_and_a_second_time_there_is_nothing_to_do(command: Tables, tmp_path: Path) -> None:
    copied(tmp_path)
    planned = command("plan", "mine", "scale=small")
    assert "2 of 2 cells can run, 0 have run, 0 failed" in planned.out
    assert "no estimate" in planned.out
    early = command("render", "mine", "scale=small")
    assert early.code == 2
    assert "no cell of these tables has run at scale=small yet" in early.err
    assert not (tmp_path / "results").exists()  # what somebody else has run is not written over
    said = command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    assert (said.code, said.out.splitlines()[-1]) == (0, "2 of 2 cells can run, 2 have run, 0 failed"), said.err
    folders = sorted((tmp_path / "multirun" / "tables" / "small").glob("*/result.json"))
    assert len(folders) == 2
    before = [file.read_bytes() for file in folders]
    record = json.loads(before[0])
    assert folders[0].parent.name == record["key"][:16]
    assert "partition.alpha=10.0" in record["overrides"]
    assert not any(word.startswith("hydra") for word in record["overrides"])
    again = command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    assert again.out.splitlines()[-1] == said.out.splitlines()[-1]
    assert [file.read_bytes() for file in folders] == before
    assert "0 are missing" in command("plan", "mine", "scale=small").out
    written = command("render", "mine", "scale=small").out.split()
    assert {"results/small/mine.md", "results/small/report.html"} <= set(written)
    assert f"{100 * record['metrics']['best']:.2f}" in (tmp_path / "results/small/mine.md").read_text()


def test_one_table_is_rendered_beside_those_that_the_folder_holds(command: Tables, tmp_path: Path) -> None:
    mine = copied(tmp_path)
    (tmp_path / "table" / "other.yaml").write_text(mine.read_text().replace("partition.p=0.7", "partition.p=0.6"))
    command("run", "mine", "other", "scale=small", "--", "hydra/launcher=basic")
    command("render", "mine", "scale=small")
    out = tmp_path / "results" / "small"
    index = (out / "README.md").read_text()
    assert "(mine.md)" in index
    assert "(other.md)" not in index
    command("render", "other", "scale=small")
    assert all(f"({name}.md)" in (out / "README.md").read_text() for name in ("mine", "other"))
    before = {file: file.read_bytes() for file in (out / "README.md", out / "report.html", out / "mine.md")}
    shutil.rmtree(tmp_path / "multirun")  # what the folder holds came from elsewhere
    command("run", "other", "scale=small", "--", "hydra/launcher=basic")
    (out / "other.md").unlink()
    found = command("render", "other", "scale=small")
    assert "they include tables that have not run here (mine); records=results/small/runs.jsonl takes them" in found.err
    assert (out / "other.md").exists()
    assert {file: file.read_bytes() for file in before} == before


def test_what_can_never_run_is_rendered_all_the_same(command: Tables, tmp_path: Path) -> None:
    file = copied(tmp_path)
    file.write_text(re.sub(r"overrides: \[method=\w+\]", "missing: Nobody", file.read_text()))
    assert command("run", "mine", "scale=small").out.splitlines()[-1] == "0 of 2 cells can run, 0 have run, 0 failed"
    assert command("render", "mine", "scale=small").code == 0
    assert "there is no Nobody yet" in (tmp_path / "results/small/mine.md").read_text()


def test_results_of_other_machines_are_not_lost(command: Tables, tmp_path: Path) -> None:
    """Of two cells, one is run again where the runs of both are gone; nothing may replace the other by nothing."""
    copied(tmp_path)
    assert command("run", "mine", "--", "hydra/launcher=basic").code == 0
    assert command("render", "mine").code == 0
    before = {file: file.read_bytes() for file in (tmp_path / "results").glob("**/*") if file.is_file()}
    assert before[tmp_path / "results/small/runs.jsonl"].count(b"\n") == 2
    shutil.rmtree(tmp_path / "multirun")
    assert command("run", "mine", "rows=FedProx", "--", "hydra/launcher=basic").code == 0
    said = command("render", "mine")
    assert said.code == 2
    assert "results/small has results that have not run here, and would lose them: mine FedAvg p=0.7" in said.err
    assert "records=results/small/runs.jsonl" in said.err
    assert {file: file.read_bytes() for file in before} == before
    assert command("render", "mine", "out=new").code == 0
    assert command("render", "mine", "records=results/small/runs.jsonl").code == 0
    again = {file: file.read_bytes() for file in (tmp_path / "results").glob("**/*") if file.is_file()}
    assert again.keys() == before.keys()


@pytest.mark.parametrize("status", ["failed", "interrupted", "damaged"])
def test_a_run_that_did_not_finish_here_replaces_no_result(command: Tables, tmp_path: Path, status: str) -> None:
    """Such as one that another machine has finished, while this one had too little memory for it."""
    copied(tmp_path)
    assert command("run", "mine", "--", "hydra/launcher=basic").code == 0
    assert command("render", "mine").code == 0
    before = {file: file.read_bytes() for file in (tmp_path / "results").glob("**/*") if file.is_file()}
    result = min((tmp_path / "multirun/tables/small").glob("*/result.json"))
    if status == "damaged":
        (result.parent / "metrics.jsonl").write_text("{")
    else:
        result.write_text(json.dumps({**json.loads(result.read_text()), "status": status}))
    said = command("render", "mine")
    assert said.code == 2
    folder = f"multirun/tables/small/{result.parent.name}"
    assert f"records=results/small/runs.jsonl after removing {folder} (not finished, or damaged)" in said.err
    assert {file: file.read_bytes() for file in before} == before
    shutil.rmtree(result.parent)
    assert command("render", "mine", "records=results/small/runs.jsonl").code == 0
    assert (tmp_path / "results/small/mine.md").read_bytes() == before[tmp_path / "results/small/mine.md"]


def test_results_of_more_seeds_are_kept_by_asking_for_them(command: Tables, tmp_path: Path) -> None:
    """All have run here, so that their records would be of no use."""
    mine = copied(tmp_path)
    (tmp_path / "table" / "other.yaml").write_text(mine.read_text().replace("partition.p=0.7", "partition.p=0.6"))
    assert command("run", "mine", "seeds=2", "--", "hydra/launcher=basic").code == 0
    assert command("render", "mine", "seeds=2").code == 0
    before = (tmp_path / "results/small/mine.md").read_bytes()
    said = command("render", "mine")
    assert said.code == 2
    assert "results/small has results of more seeds, and would lose them: mine FedAvg p=0.7" in said.err
    assert "take them along with seeds=2, or render into another folder with out=FOLDER" in said.err
    assert "records=" not in said.err
    assert (tmp_path / "results/small/mine.md").read_bytes() == before
    assert command("run", "other", "rows=FedAvg", "--", "hydra/launcher=basic").code == 0
    assert "they include tables of more seeds (mine); seeds=2 takes them along" in command("render", "other").err
    assert command("render", "mine", "seeds=2").code == 0


def test_a_table_of_which_one_seed_has_run_is_rendered(command: Tables, tmp_path: Path) -> None:
    copied(tmp_path)
    scale = tmp_path / "scale" / "small.yaml"
    scale.write_text(scale.read_text().replace("seeds: [1]", "seeds: [1, 2]"))
    assert command("run", "mine", "seeds=1", "--", "hydra/launcher=basic").code == 0
    assert command("render", "mine").code == 0
    assert "1 of 2 seeds" in (tmp_path / "results/small/mine.md").read_text()


@pytest.mark.parametrize("number", [1, 2])
def test_a_table_of_which_every_cell_has_a_failed_run_is_rendered(command: Tables, tmp_path: Path, number: int) -> None:
    """With the number of the seed that has finished, if there is one, and the reason of the other."""
    file = copied(tmp_path)
    row = re.compile(r"  - label: FedProx\n(?:    .*\n)+")
    file.write_text(row.sub("", file.read_text()))
    assert command("run", "mine", "seeds=2", "--", "hydra/launcher=basic").code == 0
    for result in sorted((tmp_path / "multirun/tables/small").glob("*/result.json"))[:number]:
        record = json.loads(result.read_text())
        result.write_text(json.dumps({**record, "status": "failed", "error": "ValueError: no luck"}))
    assert command("render", "mine", "seeds=2").code == 0
    rendered = (tmp_path / "results/small/mine.md").read_text()
    assert ("1 of 2 seeds" in rendered) == (number == 1)
    assert "failed (ValueError: no luck)" in rendered


def test_a_refused_command_leaves_what_is_known_of_failures(command: Tables, tmp_path: Path) -> None:
    copied(tmp_path)
    assert command("run", "mine", "--", "hydra/launcher=basic").code == 0
    folder = tmp_path / "multirun/tables/small"
    known = {file.parent.name: "no such file" for file in folder.glob("*/result.json")}
    shutil.rmtree(folder)
    folder.mkdir()
    (folder / "fruitless.json").write_text(json.dumps(known))
    with FileLock(folder / ".lock"):
        assert command("run", "mine", "--", "hydra/launcher=basic").code == 2
    assert json.loads((folder / "fruitless.json").read_text()) == known
    assert command("run", "mine", "--", "hydra/launcher=basic").code == 0  # tried again: it is known no more
    assert json.loads((folder / "fruitless.json").read_text()) == {}


@pytest.mark.parametrize("out", ["", "."])
def test_a_folder_of_something_else_is_not_written_over(command: Tables, tmp_path: Path, out: str) -> None:
    file = copied(tmp_path)
    file.write_text(re.sub(r"overrides: \[method=\w+\]", "missing: Nobody", file.read_text()))
    (tmp_path / "README.md").write_text("# A project of somebody's")
    said = command("render", "mine", "scale=small", f"out={out}")
    assert said.code == 2
    assert "README.md is not an index of tables" in said.err
    assert (tmp_path / "README.md").read_text() == "# A project of somebody's"
    assert not (tmp_path / "mine.md").exists()


def test_a_path_may_begin_with_the_home_folder(
    command: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = copied(tmp_path)
    file.write_text(re.sub(r"overrides: \[method=\w+\]", "missing: Nobody", file.read_text()))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    some = (ROOT / "results/paper/runs.jsonl").read_text().splitlines()[0]
    (tmp_path / "home" / "runs.jsonl").write_text(some)
    assert command("render", "mine", "out=~/tables", "records=~/runs.jsonl").code == 0
    assert (tmp_path / "home" / "tables" / "mine.md").exists()
    assert not (tmp_path / "~").exists()
    assert f"there is no {tmp_path}/home/tuned.json" in command("plan", "mine", "tuned=~/tuned.json").err


def test_two_commands_at_once_on_one_scale(command: Tables, tmp_path: Path) -> None:
    copied(tmp_path)
    folder = tmp_path / "multirun" / "tables" / "small"
    folder.mkdir(parents=True)
    with FileLock(folder / ".lock"):
        said = command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    assert said.code == 2
    assert "another command runs tables in multirun/tables/small; wait for its end" in said.err


def test_a_failed_run_costs_its_cell_and_the_exit_code(command: Tables, tmp_path: Path) -> None:
    file = copied(tmp_path)
    file.write_text(
        file.read_text().replace("[method=fedprox]", "[method=fedprox, train.lr=1.0e+30, on_nonfinite=stop]")
    )
    said = command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    assert said.code == 1
    assert said.out.splitlines()[-1] == "2 of 2 cells can run, 1 have run, 1 failed"
    assert re.search(r"failed: mine FedProx .*NonFinite.*multirun/tables/small/", said.err)


def test_a_run_that_was_stopped_goes_on_in_its_folder(command: Tables, tmp_path: Path) -> None:
    copied(tmp_path)
    command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    files = sorted((tmp_path / "multirun" / "tables" / "small").glob("*/result.json"))
    record = json.loads(files[0].read_text())
    files[0].write_text(json.dumps({**record, "status": "interrupted"}))  # what a killed run says
    assert "1 have run" in command("plan", "mine", "scale=small").out
    said = command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    assert said.out.splitlines()[-1] == "2 of 2 cells can run, 2 have run, 0 failed"
    assert json.loads(files[0].read_text())["metrics"]["last"] == record["metrics"]["last"]


def test_an_executor_with_parts_of_its_own_makes_no_other_runs() -> None:
    """``executor/inner`` is a group within ``executor``, and named with a slash."""
    parts = ("executor=processes", "executor/inner=stacked", "executor.inner.stack=3", "executor.workers=2")
    check(["method=fedavg", "executor=sequential"], parts, "write a table of your own")


def test_words_that_would_make_other_runs_are_refused(command: Tables, tmp_path: Path) -> None:
    copied(tmp_path)
    said = command("run", "mine", "scale=small", "--", "train.lr=0.1")
    assert said.code == 2
    assert "train.lr=0.1 would make other runs: write it into a table of your own" in said.err
    assert (
        "seed=2: a cell has a run for each seed of its scale or its table; seeds=N"
        in command("run", "mine", "--", "seed=2").err
    )
    assert not (tmp_path / "multirun" / "tables" / "small").exists()


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["paln"], "did you mean plan"),
        ([], "one of list, plan, run, render"),
        (["plan", "fedcor_2"], "did you mean fedcorr_2"),
        (["plan", "scale=samll"], "did you mean small"),
        (["plan", "sclae=small"], "did you mean scale"),
        (["plan", "seeds=none"], "seeds=none"),
        (["plan", "seeds=²"], "seeds=²"),
        (["plan", "seeds=0"], "seeds=0"),
        (["plan", "fedcorr_9", "device=cpu"], "device is not an option of tables"),
        (["plan", "fedcorr_9", "device=cpu"], "come after --, as in -- device=cpu"),
        (["plan", "fedcorr_9", "--", "nonsense=3"], "nonsense is not a key of the configuration"),
        (["run", "fedcorr_9", "--", "devise=cpu"], "devise is not a key of the configuration; did you mean device?"),
        (["run", "fedcorr_9", "--", "device=cdua"], "device=cdua: must be auto, cpu, cuda"),
        (["run", "fedcorr_9", "--", "executor=rai"], "executor=rai does not exist; did you mean ray?"),
        (["run", "fedcorr_9", "--", "hydra/launcher=job"], "did you mean joblib"),
        (["run", "fedcorr_9", "--", "hydra.launcher.n_job=4"], "hydra.launcher.n_job"),
        (["run", "fedcorr_9", "--", "cpu"], "'cpu' is no override"),
        (["run", "fedcorr_9", "--", "--device=cpu"], "--device=cpu is not an option"),
        (["run", "fedcorr_9", "--", "device=cpu,cuda"], "device=cpu,cuda"),
        (["render", "fedcorr_9", "--", "device=cpu"], "render takes no overrides after --"),
        (["render", "fedcorr_9", "rows=FedAvg"], "render takes no rows or columns"),
        (["run", "fedcorr_9", "out=there"], "run writes no results: out=there is for flnl tables render"),
        (["list", "seeds=2"], "list shows tables as the papers have them: seeds changes nothing there"),
        (["plan", "verify=no"], "no is not a value of verify"),
        (["plan", "fedcorr_9", "seeds=1", "seeds=2"], "seeds is given twice"),
        (["plan", "fedcorr_10", "rows=FedCorr with LeNet"], "did you mean FedCorr with LeNet-5?"),
    ],
)
def test_typos(command: Tables, words: list[str], said: str) -> None:
    found = command(*words)
    assert found.code == 2
    assert said in found.err
    assert len(found.err.splitlines()) == 1


def test_words_that_change_no_run_pass(command: Tables, tmp_path: Path) -> None:
    copied(tmp_path)
    words = ("executor=ray", "device=cpu", "hydra.launcher.n_jobs=4", "checkpoint.every=5")
    said = command("plan", "mine", "--", *words)
    assert (said.code, said.err) == (0, "")


def test_a_chosen_row_alone_runs_and_the_rendered_table_is_whole(command: Tables, tmp_path: Path) -> None:
    copied(tmp_path)
    ran = command("run", "mine", "rows=fedprox", "--", "hydra/launcher=basic")
    assert (ran.code, ran.out.splitlines()[-1]) == (0, "1 of 1 cells can run, 1 have run, 0 failed"), ran.err
    records = [json.loads(file.read_text()) for file in (tmp_path / "multirun/tables/small").glob("*/result.json")]
    assert ["method=fedprox" in record["overrides"] for record in records] == [True]
    assert "1 are missing" in command("plan", "mine").out
    assert command("render", "mine").code == 0
    rendered = (tmp_path / "results/small/mine.md").read_text()
    assert "FedAvg" in rendered
    assert f"{100 * records[0]['metrics']['best']:.2f}" in rendered


def test_a_table_that_is_written_for_a_scale_is_made_there_alone(command: Tables, tmp_path: Path) -> None:
    file = copied(tmp_path)
    shutil.copy(tmp_path / "scale" / "small.yaml", tmp_path / "scale" / "other.yaml")
    for not_ours in {*(tmp_path / "table").glob("*.yaml")} - {file}:
        not_ours.unlink()
    shutil.copy(file, file.with_name("of_all.yaml"))
    file.write_text(file.read_text() + "scales: [other]\n")
    refused = command("plan", "mine", "scale=small")
    assert (refused.code, refused.err) == (2, "error: mine is made at scale=other alone, not at small\n")
    assert "2 of 2 cells can run" in command("plan", "mine", "scale=other").out
    for words, names in (
        (["list"], ["mine", "of_all"]),
        (["plan", "scale=small"], ["of_all"]),
        (["plan", "scale=other"], ["mine", "of_all"]),
    ):
        lines = command(*words).out.splitlines()
        assert [line.split()[0] for line in lines if line.startswith(("mine", "of_all"))] == names, words


def test_a_table_may_be_named_by_its_file(command: Tables) -> None:
    assert command("list", "conf/table/fedcorr_2.yaml").out == command("list", "fedcorr_2").out


def test_a_broken_table_blocks_no_other(command: Tables, tmp_path: Path) -> None:
    """A word that is wrong, and a file that is: each is a line."""
    file = copied(tmp_path)
    written = file.read_text()
    file.write_text(written.replace("[method=fedavg]", "[method=fedavg, eval.memorization=true, noise.roh=0.4]"))
    (tmp_path / "table" / "other.yaml").write_text(written.replace("columns:", "colums:"))
    found = command("plan", "fedcorr_4")
    assert found.code == 0
    word, schema = sorted(found.err.splitlines())
    assert re.fullmatch(r"note: mine FedAvg .*noise\.roh.*; left out", word)
    assert re.fullmatch(r"note: table/other\.yaml: colums is not a key; did you mean columns\?.*; left out", schema)
    for name in ("mine", "other"):
        assert command("plan", name).code == 2


def test_a_cell_that_makes_no_run_is_named(command: Tables, tmp_path: Path) -> None:
    file = copied(tmp_path)
    file.write_text(file.read_text().replace("[method=fedavg]", "[method=fedavg, noise.roh=0.4]"))
    found = command("plan", "mine", "scale=small")
    assert found.code == 2
    assert re.search(r"mine FedAvg .*noise\.roh", found.err)


def test_every_table_is_listed_and_lacks_no_method(command: Tables) -> None:
    lines = command("list").out.splitlines()
    configs = [path.stem for path in (ROOT / "conf/table").glob("*.yaml")]
    assert sorted(line.split()[0] for line in lines) == sorted(configs)
    assert not [line for line in lines if "there is no" in line]


def test_before_the_first_run_all_tables_are_counted_without_reading_their_settings(
    command: Tables, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Composer, "_set", None)
    monkeypatch.setattr(compose, "load", lambda words: OmegaConf.create({"cache": "nowhere"}))
    most = []
    for seeds in (1, 2):
        *lines, total, runs = command("plan", f"seeds={seeds}").out.splitlines()
        counts = [re.search(r"(\d+) of (\d+) cells can run", line).groups() for line in [*lines, total]]  # type: ignore[union-attr]
        possible, cells = ([int(count[i]) for count in counts] for i in (0, 1))
        assert (sum(possible[:-1]), sum(cells[:-1])) == (possible[-1], cells[-1])
        assert total.startswith("scale=small: ")
        most.append(int(re.match(r"at most (\d+) different runs", runs)[1]))  # type: ignore[index]
    assert 400 < most[0] < possible[-1]
    assert most[1] == 2 * most[0]


@pytest.mark.parametrize("verb", ["--help", "list", "plan", pytest.param("plan fedpeer_3", marks=pytest.mark.slow)])
def test_asking_costs_no_torch(verb: str, tmp_path: Path) -> None:
    """A plan reads the classes of its cells once, for their keys; from then on it knows them."""
    if verb.startswith("plan "):
        subprocess.run([sys.executable, "-m", "flnl", "tables", *verb.split()], cwd=tmp_path, check=True, timeout=120)
    code = (
        "import sys; from flnl.commands import tables as t\n"
        f"sys.argv = ['tables', *{verb.split()!r}]\n"
        "try: t.main()\n"
        "except SystemExit as left: assert not left.code\n"
        "assert 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PYTHONPATH": str(ROOT / "src")}, timeout=120
    )
    assert done.returncode == 0


@pytest.mark.usefixtures("breaking_launcher")
def test_a_launcher_that_breaks_down_is_no_success(command: Tables, tmp_path: Path) -> None:
    """Out of memory, say: the runs that never began are absent cells, not failed ones."""
    copied(tmp_path)
    said = command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    assert said.out.splitlines()[-1] == "2 of 2 cells can run, 1 have run, 0 failed"
    assert said.code == 1
    assert "the launcher ended with" in said.err


def test_a_key_that_reads_as_a_number_names_its_folder(
    command: Tables, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Hydra would read 19845228033e2323 as infinity."""
    real = identity.placed_key
    monkeypatch.setattr(identity, "placed_key", lambda plain: f"1{int(real(plain)[:3], 16):010}e2323")
    copied(tmp_path)
    said = command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    assert said.out.splitlines()[-1] == "2 of 2 cells can run, 2 have run, 0 failed"
    assert not (tmp_path / "multirun" / "tables" / "small" / "inf").exists()


def test_a_run_that_a_killed_command_has_left_behind_is_waited_for(command: Tables, tmp_path: Path) -> None:
    """Its worker puts it down at the end of its round, having asked what has not begun not to begin."""
    copied(tmp_path)
    command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    folder = sorted((tmp_path / "multirun" / "tables" / "small").glob("*/result.json"))[0].parent
    record = json.loads((folder / "result.json").read_text())
    (folder / "result.json").write_text(json.dumps({**record, "status": "interrupted"}))
    holds = threading.Event()

    def another() -> None:
        with FileLock(folder / ".lock"):
            holds.set()
            time.sleep(3.0)
            (folder.parent / ".stop").touch()

    other = threading.Thread(target=another)
    other.start()
    assert holds.wait(10.0)
    said = command("run", "mine", "scale=small", "--", "hydra/launcher=basic")
    other.join()
    assert "waiting for" in said.err
    assert said.out.splitlines()[-1] == "2 of 2 cells can run, 2 have run, 0 failed"
