"""What can be chosen for an audit, with the defaults and the names of the command's options."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

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


@dataclass(frozen=True)
class Options:
    """How to audit a run. Each field is the command's option of the same name."""

    probabilities: Recorded | Literal["folds"] | Path | None = None  # None: window where recorded, else final
    out_of_sample: bool = False  # whether no model behind a file's probabilities was trained on its sample
    folds: int | None = None  # number of folds for probabilities="folds"
    by: Literal["samples", "clients"] = "samples"  # what the folds divide
    score: Score = "normalized_margin"
    adjust: bool = False  # subtract the class's threshold from each probability first
    issues: Filter = "predicted_neq_given"
    prior: Literal["client", "none"] = "client"
    min_precision: float | None = None  # in [0, 1]: of the issues keep those below the cut that is expected to reach it
    label_privacy: float | None = None  # epsilon of the clients' messages
    clients: bool = False  # also write an audit for each client, with the others pooled
    min_client: int = 10  # clients with fewer samples are pooled in tables
    corrections: Literal["suggested", "reviewed"] | None = None
    reviewed: Path | None = None  # verdicts.csv, as the page saves it
    out: Path | None = None  # by default the folder "audit" of the run
    force: bool = False  # replace an earlier audit
    formats: tuple[Format, ...] = ("html", "csv", "json")
    spreadsheet: bool = False  # mark cells of audit.csv and corrected.csv that a spreadsheet would read as a formula
    top: int = 2000  # suspects on the page
    per_page: int = 100  # suspects in one of its files
    thumbnails: int | None = None  # how many suspects have an image; None: all on the page
    config_dir: tuple[Path, ...] = ()  # folders of configuration files that name the user's classes
