"""Write the skeleton of a method, which runs and passes all tests, and say what is to be written in it.

    python -m tests.new_method fedgr --title FedGR --warm-up

Files that are there stay as they are; called again, it brings the README's table up to date, writes golden trajectories
that are not committed anew, and says what is left.
"""

import argparse
import io
import keyword
import re
import subprocess
import sys
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from flnl.commands import list as listing

ROOT = Path(__file__).resolve().parents[1]
ROWS = re.compile(r"(<!-- made by: flnl list --markdown method, .*? -->\n)(.*?)(\n<!-- end -->)", re.DOTALL)

ALWAYS: Mapping[str, str] = {
    "src/flnl/methods/NAME/__init__.py": '''\
"""TITLE: to be written: what it does, in a line (authors and year)."""
''',
    "src/flnl/methods/NAME/loss.py": '''\
"""TITLE's loss term: a penalty on large logits. To be written: the paper's."""

from dataclasses import dataclass
from typing import Any

from torch import Tensor

from flnl.core.parts import LossTerm
from flnl.core.ranges import NonNegative
from flnl.core.step import Step


@dataclass(frozen=True)
class CLASS(LossTerm):
    """``λ mean_c z_c²`` with z the logits. To be written: the formula and its place (paper, equation).

    Use it together with a term that learns from labels.
    """

    weight: NonNegative

    def __call__(self, step: Step, state: Any) -> tuple[Tensor, Any]:
        """The penalty [B]."""
        return self.weight * step.logits.square().mean(1), state
''',
    "conf/method/local/NAME.yaml": """\
# To be written: what the term is (TITLE), beside cross_entropy.
NAME:
  _target_: flnl.methods.NAME.loss.CLASS
  weight: 0.01 # lambda; 0 is FedAvg. To be written: the paper's value and its place
""",
    "docs/methods/NAME.md": """\
# TITLE

To be written: authors, title, venue and year. `method=NAME`, or the loss alone: `method/local=[cross_entropy,NAME]`.

## What it does

To be written: the steps and the formulas. The skeleton's loss of a sample with logits z and label y is

```math
\\mathrm{CE}(z, y) + \\frac{\\lambda}{K} \\sum_c z_c^2
```

| who | computes | sends | keeps |
|---|---|---|---|
| client | training | model | |
| server | the mean of the cohort | model | |

To be written: what is sent besides the model, and what the method is given (clean data, the noise rate).

## Hyper-parameters

| key (as a part: `method.local.NAME.weight`) | default | place |
|---|---|---|
| `method.weight` (λ) | 0.01 | to be written: its place in the paper |

`method.weight=0` is bit-identical to FedAvg.

## Choices

| question | here | alternative |
|---|---|---|
| to be written: where paper and code can be read in several ways | | |

## Commands

```
flnl method=NAME noise=symmetric noise.eta=0.4
flnl method=fedcorr 'method/local=[cross_entropy,NAME]'
```
""",
    "tests/methods/NAME/test_NAME.py": '''\
"""TITLE's loss against its definition. To be written: against the paper's, or a program that is not ours."""

import numpy as np
import torch

from flnl.methods.NAME.loss import CLASS
from tests.toys import step


def test_the_penalty_is_the_mean_square_of_the_logits() -> None:
    logits = torch.tensor([[1.0, -2.0, 3.0], [0.0, 0.5, 0.0]], dtype=torch.float64)
    losses, state = CLASS(0.3)(step(logits=logits), None)
    expected = [0.3 * sum(z * z for z in row) / len(row) for row in logits.tolist()]
    np.testing.assert_allclose(losses, expected, rtol=1e-12)
    assert state is None
''',
}

ONE_STAGE: Mapping[str, str] = {
    "conf/method/NAME.yaml": """\
# TITLE: to be written: what it does, in a line (authors, venue and year).
defaults:
  - parts/default@_here_
  - override local: [cross_entropy, NAME]
  - _self_
name: NAME
short: &short
  weight: ${method.local.NAME.weight}
<<: *short
settings:
  default: {} # To be written: the paper's values, a row for each protocol, such as cifar10: {lr: 0.01}
""",
    "tests/methods/NAME/entry.py": '''\
"""What tests must know of TITLE."""

from tests.entries import FEDAVG, NORMED, ONE_STAGE, Entry, Known, of
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

TERMS = "cross_entropy + NAME"

KNOWN = Known(
    entries=(
        Entry("NAME", ("method=NAME", *ONE_STAGE), of(TERMS)),
        Entry("NAME_with_batch_norm", ("method=NAME", *NORMED, *ONE_STAGE), of(TERMS)),
        Entry(
            "fedcorr_and_NAME",
            ("method=fedcorr", "method/local=[cross_entropy,NAME]", *THREE_STAGES),
            fedcorr(TERMS),
            BORDERS,
        ),
    ),
    golden={"NAME": ("method=NAME", "rounds=6")},
    neutral={"NAME": (("method=NAME", "method.weight=0", "rounds=4"), FEDAVG)},
    alive={"NAME": ("method=NAME", "rounds=4")},
    switches={("method=NAME", "rounds=3"): ("method.weight=0.5",)},
)
''',
}

WARM_UP: Mapping[str, str] = {
    "conf/method/NAME.yaml": """\
# TITLE: to be written: what it does, in a line (authors, venue and year).
defaults:
  - parts/default@_here_
  - override local: [cross_entropy, NAME]
  - override stages: NAME
  - _self_
name: NAME
short: &short
  T_wu: ${method.stages.warmup.rounds}
  T: ${method.stages.usual.rounds}
  weight: ${method.local.NAME.weight}
<<: *short
settings:
  default: {T_wu: =rounds/5, T: =rounds - T_wu} # To be written: the paper's proportions, and its values by protocol
""",
    "conf/method/stages/NAME.yaml": """\
# TITLE's two stages: cross-entropy; then all of its parts.
defaults:
  - /method/local@warmup.local: [cross_entropy]
  - _self_
warmup:
  rounds: ${protocol:T_wu} # To be written: the paper's length and its place
usual:
  rounds: ${protocol:T} # To be written: likewise
""",
    "tests/methods/NAME/entry.py": '''\
"""What tests must know of TITLE."""

from tests.entries import ASSESSED, FEDAVG, NORMED, Entry, Known
from tests.methods.fedcorr.entry import BORDERS, THREE_STAGES, fedcorr

TERMS = "cross_entropy + NAME"
LENGTHS = ("method.T_wu=2", "method.T=3")
STAGES = {
    "warmup": "2 rounds: Uniform, Plain, cross_entropy, Mean(samples), Replace",
    "usual": f"3 rounds: Uniform, Plain, {TERMS}, Mean(samples), Replace",
}

KNOWN = Known(
    entries=(
        Entry("NAME", ("method=NAME", *LENGTHS), STAGES, ASSESSED),
        Entry("NAME_with_batch_norm", ("method=NAME", *NORMED, *LENGTHS), STAGES, ASSESSED),
        Entry(
            "fedcorr_and_NAME",
            ("method=fedcorr", "method/local=[cross_entropy,NAME]", *THREE_STAGES),
            fedcorr(TERMS),
            BORDERS,
        ),
    ),
    golden={"NAME": ("method=NAME", "method.T_wu=2", "method.T=4")},
    neutral={
        "NAME": (("method=NAME", "method.weight=0", "method.T_wu=1", "method.T=3"), FEDAVG),
        "NAME_that_never_leaves_its_warm_up": (("method=NAME", "method.T_wu=4", "method.T=0"), FEDAVG),
    },
    alive={"NAME": ("method=NAME", "method.T_wu=1", "method.T=3")},
    switches={("method=NAME", "method.T_wu=1", "method.T=2"): ("method.weight=0.5", "method.T_wu=2")},
)
''',
}


def write(name: str, title: str, *, warm_up: bool, root: Path = ROOT) -> list[Path]:
    """The files of the skeleton that were not there, now written."""
    camel = "".join(part[:1].upper() + part[1:] for part in (title if title.isidentifier() else name).split("_"))
    made = []
    for place, text in {**ALWAYS, **(WARM_UP if warm_up else ONE_STAGE)}.items():
        file = root / place.replace("NAME", name)
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text.replace("NAME", name).replace("TITLE", title).replace("CLASS", camel))
            made.append(file)
    return made


def update_table(readme: str, made: str) -> str:
    """The README with the table of methods ``made`` by ``flnl list``, each name with a link to its card.

    A name that has no link yet gets one to the card of its name.
    """
    (head, before, end) = ROWS.findall(readme)[0]
    cards = dict(re.findall(r"\[`(\w+)`\]\((docs/methods/\w+\.md)\)", before))

    def linked(row: re.Match[str]) -> str:
        return f"| [`{row[1]}`]({cards.get(row[1], f'docs/methods/{row[1]}.md')}) |"

    first, line, *rows = made.splitlines()
    table = "\n".join([first, line, *(re.sub(r"^\| `(\w+)` \|", linked, row) for row in rows)])
    return readme.replace(f"{head}{before}{end}", f"{head}{table}{end}")


def to_write(file: Path) -> list[str]:
    """The names of the golden trajectories that belong into ``file``, unless git knows it: then only those it lacks.

    Those of a method that is being written are of what it was, at first of the skeleton.
    """
    from tests.golden import test_golden

    names = list(test_golden.FILES.get(file, ()))
    asked = ["git", "ls-files", "--error-unmatch", file.name]
    known = file.exists() and not subprocess.run(asked, cwd=file.parent, capture_output=True).returncode
    return [name for name in names if not known or name not in test_golden.written([file])]


def main() -> None:
    """``python -m tests.new_method NAME``."""
    parser = argparse.ArgumentParser(prog="python -m tests.new_method", description="write the skeleton of a method")
    parser.add_argument("name", metavar="NAME", help="as in method=NAME and in the names of its files")
    parser.add_argument("--title", help="the method as its paper calls it; by default NAME")
    parser.add_argument("--warm-up", action="store_true", help="two stages: cross-entropy, then the method's parts")
    said = parser.parse_args()
    name = said.name
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        parser.error(f"NAME={name}: must be lower-case letters, digits and _, as a Python module's name")
    if not (ROOT / "conf/method" / f"{name}.yaml").exists():
        for file in write(name, said.title or name, warm_up=said.warm_up):
            print(f"written: {file.relative_to(ROOT)}", file=sys.stderr)
    (ROOT / "README.md").write_text(update_table((ROOT / "README.md").read_text(), listing.markdown("method")))

    from tests.golden import test_golden  # now that there is something to find
    from tests.methods.test_complete import missing

    if names := to_write(ROOT / "tests/methods" / name / "trajectories.json"):
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            test_golden.write(names)
    left = missing(name)
    print(f"{name}: {len(left)} to be written" if left else f"{name} is complete", *left, sep="\n  ")


if __name__ == "__main__":
    main()
