"""What can be chosen for an audit, with the defaults and the names of the command's options."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from itertools import chain
from pathlib import Path
from typing import Any, Literal, get_args

from flnl.core.errors import UserError

Recorded = Literal["window", "all", "final"]
Score = Literal["self_confidence", "normalized_margin", "confidence_weighted_entropy"]
Filter = Literal[
    "predicted_neq_given",
    "confident_learning",
    "prune_by_class",
    "prune_by_noise_rate",
    "both",
    "low_self_confidence",
    "low_normalized_margin",
]
Format = Literal["html", "csv", "json"]
By = Literal["samples", "clients"]

SOURCES = (*get_args(Recorded), "folds")
LOCAL: tuple[Filter, ...] = ("predicted_neq_given", "confident_learning")
"""Filters that a client applies without further messages."""
CHOICES: Mapping[str, tuple[str | None, ...]] = {
    "by": get_args(By),
    "score": get_args(Score),
    "issues": get_args(Filter),
    "people": ("crowdlab", "ignore"),
    "prior": ("client", "none"),
    "corrections": ("suggested", "reviewed", None),
}
COUNTS: Mapping[str, int] = {"folds": 2, "min_client": 0, "top": 1, "per_page": 1, "thumbnails": 0}
"""Whole numbers, and the least that each may be."""
RANGES: Mapping[str, tuple[float, float]] = {
    "prior_weight": (0.0, 1.0),
    "min_precision": (0.0, 1.0),
    "label_privacy": (1e-12, 700.0),
}
"""Other numbers, and between which bounds they lie."""
OPTIONAL = ("folds", "thumbnails", "min_precision", "label_privacy")
"""Those numbers that may be None."""
PRIOR_WEIGHT = 0.25
"""What the client prior weighs by default."""


@dataclass(frozen=True)
class Options:
    """How to audit a run. Each field is the command's option of the same name.

    Paths may be text, and may begin with ``~``.

    Raises:
        UserError: naming the option: for a value that it does not have, and for options that exclude each other.
    """

    probabilities: Path | str | None = (
        None  # one of SOURCES or an .npz file; None: of those recorded the best on the test set
    )
    out_of_sample: bool = False  # whether no model behind a file's probabilities was trained on its sample
    folds: int | None = None  # number of folds for probabilities="folds"
    by: By = "samples"  # what the folds divide
    score: Score = "self_confidence"
    adjust: bool = False  # subtract the class's threshold from each probability first
    issues: Filter = "predicted_neq_given"
    people: Literal["crowdlab", "ignore"] = "crowdlab"  # how labels by several people enter, where there are any
    prior: Literal["client", "none"] = "client"
    prior_weight: float = PRIOR_WEIGHT  # in [0, 1]: how much of a client's difference from all goes into its scores
    min_precision: float | None = None  # in [0, 1]: of the issues keep those below the cut that is expected to reach it
    label_privacy: float | None = None  # epsilon of the clients' messages
    secret: Path | None = None  # file that label privacy draws from; by default one in the user's state folder
    clients: bool = False  # also write an audit for each client, with the others pooled
    min_client: int = 10  # clients with fewer samples are pooled in tables
    corrections: Literal["suggested", "reviewed"] | None = None
    reviewed: tuple[Path, ...] = ()  # files of verdicts, as the pages save them
    out: Path | None = None  # by default the folder "audit" of the run
    force: bool = False  # replace an earlier audit
    formats: tuple[Format, ...] = ("html", "csv", "json")
    spreadsheet: bool = False  # mark cells of audit.csv and corrected.csv that a spreadsheet would read as a formula
    top: int = 2000  # suspects on the page
    per_page: int = 100  # suspects in one of its files
    thumbnails: int | None = None  # how many suspects have an image; None: all on the page
    config_dir: tuple[Path, ...] = ()  # folders of configuration files that name the user's classes
    data: tuple[str, ...] = ()  # where the run's data lie here, as in "dataset.root=/data"; arguments of the command

    def __post_init__(self) -> None:
        self._take_paths()
        for fault in chain(self._faults(), self._contradictions()):  # values come first: what follows reads them
            raise UserError(fault)

    def _take_paths(self) -> None:
        """Have paths as such, also those that were given as text."""
        source = self.probabilities
        if isinstance(source, Path) or (isinstance(source, str) and source.endswith(".npz")):
            object.__setattr__(self, "probabilities", Path(source).expanduser())
        for name in ("out", "secret"):
            if (path := getattr(self, name)) is not None:
                _refuse_empty(name, path)
                object.__setattr__(self, name, Path(path).expanduser())
        for name in ("reviewed", "config_dir"):
            given: Any = getattr(self, name)
            several = (given,) if isinstance(given, str | Path) else given or ()
            for path in several:
                _refuse_empty(name, path)
            object.__setattr__(self, name, tuple(Path(path).expanduser() for path in several))
        data: Any = self.data
        object.__setattr__(self, "data", (data,) if isinstance(data, str) else tuple(map(str, data)))

    def _faults(self) -> Iterator[str]:
        """Values that an option does not have."""
        source = self.probabilities
        if source is not None and not isinstance(source, Path) and source not in SOURCES:
            yield f"--probabilities {source}: there are {', '.join(SOURCES)}, and .npz files"
        for name, choices in CHOICES.items():
            if (value := getattr(self, name)) not in choices:
                yield f"{_option(name)} {value}: there are {', '.join(filter(None, choices))}"
        formats: Any = self.formats
        if not isinstance(formats, list | tuple) or not {*formats} <= {*get_args(Format)}:
            yield f"--formats {formats}: should be a tuple, each one of {', '.join(get_args(Format))}"
        for name in (field.name for field in fields(self) if field.type == "bool"):
            if not isinstance(value := getattr(self, name), bool):
                yield f"{_option(name)} {value!r}: should be True or False"
        for name, least in COUNTS.items():
            value = getattr(self, name)
            if not (value is None and name in OPTIONAL) and not (_is(value, int) and value >= least):
                yield f"{_option(name)} {value!r}: should be a whole number from {least}"
        for name, (lowest, highest) in RANGES.items():
            value = getattr(self, name)
            if not (value is None and name in OPTIONAL) and not (_is(value, int, float) and lowest <= value <= highest):
                yield f"{_option(name)} {value!r}: should be a number from {lowest:g} to {highest:g}"

    def _contradictions(self) -> Iterator[str]:
        """Options of which one would be ignored, or could not be done."""
        by_file = isinstance(self.probabilities, Path)
        if by_file and self.folds is not None:
            yield f"--folds {self.folds} would not read {self.probabilities}: leave out one of them"
        if self.out_of_sample and not by_file:
            yield "--out-of-sample is about a file of your own: add --probabilities FILE.npz, or leave it out"
        if self.by != "samples" and self.folds is None and self.probabilities != "folds":
            yield f"--by {self.by} tells what folds divide: add --folds 5, or leave it out"
        if self.adjust and self.score == "confidence_weighted_entropy":
            yield f"--adjust has no effect on {self.score}: leave it out, or choose another --score"
        if self.prior == "none" and self.prior_weight != PRIOR_WEIGHT:
            yield f"--prior-weight {self.prior_weight:g} has no effect with --prior none: leave one of them out"
        if self.label_privacy is not None and self.issues not in LOCAL:
            yield (
                f"--issues {self.issues} needs cuts across clients, whose messages --label-privacy does not cover; "
                f"choose {' or '.join(LOCAL)}"
            )
        if self.label_privacy is not None and self.clients and self.min_precision is not None:
            yield (
                "--min-precision chooses one cut for all clients from exact counts of each, which --label-privacy does "
                "not cover: leave it out, or --clients"
            )
        if self.secret is not None and self.label_privacy is None:
            yield f"--secret {self.secret} is what --label-privacy draws from: leave it out, or add --label-privacy"
        if self.corrections == "reviewed" and not self.reviewed:
            yield "--corrections reviewed needs verdicts: add --reviewed verdicts.csv"


def _refuse_empty(name: str, path: Any) -> None:
    if path == "":
        raise UserError(f"{_option(name)} '': should be a path, and is empty; is a variable of the shell?")


def _option(field: str) -> str:
    return f"--{field.replace('_', '-')}"


def _is(value: Any, *kinds: type) -> bool:
    """Whether a value is of one of some kinds of number; True and False are none."""
    return isinstance(value, kinds) and not isinstance(value, bool)
