"""Changes of the code: each is the one that it says, in its place; in a toy room, what no test notices is found."""

import ast
import subprocess
import time
from pathlib import Path

import pytest

from bench import mutants
from bench.mutants import ROOT, files_of, modules_by_test, nearest_tests, passes, rooms, sample, survivors

FILE = Path("src/flnl/toy/shares.py")
SHARES = '''"""Shares."""


def clean(loss: float) -> bool:
    """Whether a loss is small."""
    return loss < 1


def noisy(loss: float) -> bool:
    """Whether it is not."""
    if loss < 0:
        raise ValueError(f"{loss - 1} < 0")
    return not clean(loss)
'''
TESTS = """from flnl.toy.shares import clean, noisy


def test_shares() -> None:
    assert clean(0.5)
    assert not clean(1.5)
    assert noisy(1.5)
    assert not noisy(0.5)
"""


@pytest.fixture
def toy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a room of one module, and its tests, which do not look at borders."""
    for name, text in {
        "pyproject.toml": '[tool.pytest.ini_options]\npythonpath = ["src"]\nmarkers = ["slow: slow"]\n',
        ".gitignore": "__pycache__/\nsecret\n",
        "secret": "not copied",
        "src/flnl/__init__.py": "",
        "src/flnl/toy/__init__.py": "",
        FILE.as_posix(): SHARES,
        "tests/toy/test_shares.py": TESTS,
    }.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    monkeypatch.setattr(mutants, "ROOT", tmp_path)
    monkeypatch.delenv("PYTHONPATH")
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")  # which take seconds to import
    return tmp_path


def contents(folder: Path) -> dict[Path, bytes]:
    return {file: file.read_bytes() for file in sorted(folder.rglob("*")) if file.is_file()}


def test_what_no_test_notices_survives(toy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All that can change in the toy: its tests have no loss of exactly 1 or 0. Nothing is written into it."""
    before = contents(toy)
    mutants.main(["toy", "--count", "100"])
    assert contents(toy) == before
    *shown, figure = capsys.readouterr().out.splitlines()
    assert sorted(shown) == [
        f"{FILE}:11: border: if loss < 0: -> if (loss <= 0):",
        f"{FILE}:6: border: return loss < 1 -> return (loss <= 1)",
    ]
    assert figure == "toy, seed 1: caught 6 of 8"


def test_nothing_is_said_of_tests_that_fail_anyway(toy: Path) -> None:
    test = toy / "tests/toy/test_shares.py"
    test.write_text(test.read_text().replace("clean(0.5)", "clean(5.0)"))
    with pytest.raises(SystemExit, match=r"(?s)without any change, the tests fail:.*assert clean\(5.0\)"):
        next(survivors(list(mutants.mutants(SHARES, FILE)), toy))


@pytest.mark.parametrize("arguments", [["tou"], ["toy", "--count", "0"], ["toy/__init__"]])
def test_what_has_nothing_to_change_is_refused(
    arguments: list[str], toy: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as left:
        mutants.main(arguments)
    assert left.value.code == 2
    assert arguments[0] in capsys.readouterr().err


def test_tests_that_take_too_long_end_with_what_they_started(toy: Path) -> None:
    (toy / "tests/toy/test_long.py").write_text(
        "import subprocess, sys\n\n\ndef test_long():\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "    print(child.pid, file=open('pid', 'w'), flush=True)\n"
        "    child.wait()\n"
    )
    assert not passes(toy, ["tests/toy/test_long.py"], limit=5)
    status = Path("/proc") / (toy / "pid").read_text().strip() / "stat"
    until = time.monotonic() + 10
    while status.exists() and status.read_text().rpartition(")")[2].split()[0] != "Z":
        assert time.monotonic() < until, "the child of a test is alive"
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("source", "changed"),
    [
        ("a < b", ["a <= b"]),
        ("a >= b", ["a > b"]),
        ("a == b in c", ["a != b in c", "a == b not in c"]),
        ("a is None", ["a is not None"]),
        ("a + b", ["a - b"]),
        ("a / b ** c", ["a * b ** c", "a / (b * c)"]),
        ("a += b", ["a -= b"]),
        ("a and b and c", ["a or b or c"]),
        ("not a", ["a"]),
        ("-a", ["a"]),
        ("True", ["False"]),
        ("f = 3", ["f = 4", "f = 6", "f = 0"]),
        ("f = 1", ["f = 2", "f = 0"]),
        ("f = 0", ["f = 1"]),
        ("f = 0.5", ["f = 1.5", "f = 1.0", "f = 0"]),
        ("a = g(b, c)", ["a = g(c, b)"]),
        ("a = g(b, b)", []),
        ("a = g(*b, c)", []),
        ("a = g(b, c=d, e=f)", ["a = g(b, e=f)", "a = g(b, c=d)"]),
        ("a = zip(b, strict=True)", []),
        ("a = min(b)", ["a = max(b)"]),
        ("a = b.max(dim=c)", ["a = b.max()", "a = b.min(dim=c)"]),
        ("a = abs(b)", ["a = b"]),
        ("a = np.clip(b, c, d)", ["a = np.clip(c, b, d)", "a = b"]),
        ("a = b.clamp(c)", ["a = b"]),
        ("a = np.argsort(b)", ["a = np.argsort(np.argsort(b))"]),
        ("a = b.argsort()", ["a = b.argsort().argsort()"]),
        ("a.sort()", ["pass"]),
        # what is joined, said or only read by a type checker stays
        ("a + [b]", []),
        ("a += 'b'", []),
        ("raise ValueError(a < b)", []),
        ("assert a < b", []),
        ("warn(a < b)", []),
        ("f'{a < b}'", []),
        ("'a docstring: a < b'", []),
        ("a: Annotated[int, Ge(2)]", []),
        ("@part(frozen=True)\nclass A(B[1]): ...", []),
        ("if TYPE_CHECKING:\n    a = 1", []),
        ("def __repr__(self):\n    return a", []),
        ("def f(a: X[1] = b) -> X[2]:\n    return a", ["def f(a: X[1] = b) -> X[2]:\n    return None"]),
        ("def f():\n    return None", []),
    ],
)
def test_changes_are_those_that_are_meant(source: str, changed: list[str]) -> None:
    """By hand; parentheses around the new expression do not count."""
    found = [mutant.of(source.encode()).decode() for mutant in mutants.mutants(source, FILE)]
    assert [tree(text) for text in found] == [tree(text) for text in changed]


def tree(text: str) -> str:
    return ast.dump(ast.parse(text))


def test_the_rest_of_the_file_stays_as_it_is() -> None:
    """Also behind letters of several bytes, over several lines, and beside comments."""
    source = 'ρ = "é"; τ = [ρ <\n  σ]  # ρ < σ\nx  =  1'
    border, more, none = mutants.mutants(source, FILE)
    assert border.of(source.encode()).decode() == 'ρ = "é"; τ = [(ρ <= σ)]  # ρ < σ\nx  =  1'
    for mutant, value in ((more, "2"), (none, "0")):
        assert mutant.of(source.encode()).decode() == source.replace("  1", f"  ({value})")
    assert str(none) == f"{FILE}:3: constant: x = 1 -> x = (0)"
    assert str(border).startswith(f"{FILE}:1: border: ")


def test_a_sample_is_of_all_kinds_and_repeats() -> None:
    file = files_of("numerics/scaling", ROOT)[0]
    found = list(mutants.mutants((ROOT / file).read_text(), file))
    kinds = {mutant.kind for mutant in found}
    once = sample(found, len(kinds), 1)
    assert {mutant.kind for mutant in once} == kinds
    assert once == sample(found, len(kinds), 1) != sample(found, len(kinds), 2)
    assert once == sorted(once, key=lambda mutant: (mutant.start, mutant.text))
    assert len(sample(found, 10**6, 1)) == len(found)


def test_every_change_can_be_compiled() -> None:
    for file in files_of("numerics", ROOT):
        source = (ROOT / file).read_text()
        for mutant in mutants.mutants(source, file):
            compile(mutant.of(source.encode()), str(mutant), "exec", dont_inherit=True)


def test_every_module_has_tests_near_it() -> None:
    tests = modules_by_test(ROOT)

    def of(name: str) -> list[str]:
        return nearest_tests(Path("src/flnl") / name, ROOT, tests)

    assert of("instruments/compare/names.py")[0] == "tests/products/test_compare_names.py"
    example, *files = of("methods/feddiv/noise_filter.py")
    assert example == "tests/test_doctests.py::test_examples_give_what_they_say[methods/feddiv/noise_filter.py]"
    assert files[0] == "tests/methods/feddiv/test_noise_filter.py"
    assert "tests/methods/feddiv/test_feddiv.py" in files, "tests of the same folder, which do not import it"
    without = [file for room in rooms(ROOT) for file in files_of(room, ROOT) if not nearest_tests(file, ROOT, tests)]
    assert not [file for file in without if [*mutants.mutants((ROOT / file).read_text(), file)]]
