"""The file of choices that a tuning writes: what it has already, and how results are added to it."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from flnl.console.shell import joined
from flnl.console.terminal import print_line
from flnl.core.errors import UserError
from flnl.instruments.tune.runs import Runs
from flnl.record.tuned import Compared, Question, Tuned, Values, overrides_of

PARTS = {
    "measure": "scores",
    "seeds": "seeds",
    "fixed": "overrides outside --each",
    "each": "keys under --each",
    "keys": "keys to choose",
}
"""What a file's question consists of, for messages."""


@dataclass(frozen=True)
class ChoicesFile:
    """The file that a ``command`` writes its choices to.

    Attributes:
        add: keep the choices of other commands; they must answer the same ``question``.
        stale: choices of the file that are made again, and do not stay.
    """

    path: Path
    question: Question
    command: Sequence[str]
    add: bool
    stale: Sequence[Values] = ()

    def kept(self) -> Tuned | None:
        """What the file has that may stay: with ``add`` choices of any command, else results of this one.

        Raises:
            UserError: with ``add``, if the file answers another question.
        """
        if self.add:
            return self._without_stale(self._of_the_same_question())
        there = _load(self.path)
        return self._without_stale(there) if there is not None and [*there.command] == [*self.command] else None

    def without_stale(self, wanted: Sequence[Values], runs: Runs) -> tuple[ChoicesFile, Tuned | None]:
        """The file, and what it keeps, without those ``wanted`` choices that are not of today's configuration and data.

        Says which these are.
        """
        kept = self.kept()
        studies = [] if kept is None else kept.studies
        stale = [study.each for study in studies if study.each in wanted and not runs.current(study)]
        for each in stale:
            of = " ".join(overrides_of(each))
            print_line(
                f"{self.path} has {of or 'a choice'} of another configuration, or of other data, than today's: "
                "made again",
                to=sys.stderr,
            )
        fresh = replace(self, stale=stale)
        return fresh, fresh._without_stale(kept)

    def has_choice(self) -> bool:
        """Whether there is a file with a choice, of whatever command."""
        there = _load(self.path)
        return there is not None and any(study.chosen is not None for study in there.studies)

    def write(self, tuned: Tuned) -> Tuned:
        """Write ``tuned``, added to what may stay (``kept``); returns both."""
        kept = self.kept()  # read again: other commands may have written meanwhile
        if kept is None and (there := _load(self.path)) is not None:
            made = f"{self.path} had what `{joined(there.command)}` found"
            print_line(f"{made}; that command makes it again of its runs, --add keeps both", to=sys.stderr)
        written = tuned if kept is None else kept.with_added(tuned)
        written.save(self.path)
        return written

    def _without_stale(self, tuned: Tuned | None) -> Tuned | None:
        if tuned is None:
            return None
        return replace(tuned, studies=[study for study in tuned.studies if study.each not in self.stale])

    def _of_the_same_question(self) -> Tuned | None:
        def agreeing(before: Tuned) -> Iterator[Compared]:
            there = asdict(before.question) | {"measure": [before.measure]}
            here = asdict(self.question) | {"measure": [self.question.measure]}
            return ((PARTS[name], there[name], here[name]) for name in there)

        return Tuned.kept(self.path, agreeing, "--out")


def _load(path: Path) -> Tuned | None:
    """The choices in ``path``; None if there is no file, or another one."""
    with suppress(UserError, OSError):
        return Tuned.load(path)
    return None
