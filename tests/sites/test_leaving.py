"""What the page of three hospitals says of what leaves a site is what the types say."""

import re
from dataclasses import make_dataclass
from typing import get_type_hints

import pytest

from flnl.core.reported import SamplesPerClass
from flnl.sites import messages
from flnl.sites.audit_messages import Question
from flnl.sites.traffic import meaning
from tests.sites import leaving


def test_the_table_is_that_of_the_types() -> None:
    """``python -m tests.sites.leaving`` writes it anew."""
    page = leaving.PAGE.read_text()
    assert page == leaving.written(page, leaving.BEGIN, leaving.table())


def test_what_crosses_with_every_method_is_that_of_the_types() -> None:
    page = leaving.PAGE.read_text()
    assert page == leaving.written(page, leaving.MESSAGES, leaving.messages())


def test_a_message_of_which_nothing_is_said_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kind that a site answers; one that nobody answers; a field of a question."""
    page, more = leaving.PAGE.read_text(), {"kind": str, "run": str}
    with monkeypatch.context() as patched:
        patched.setattr(messages, "PEEK", more, raising=False)
        assert page != leaving.written(page, leaving.MESSAGES, leaving.messages())
        patched.setitem(messages.ASKED, "peek", more)
        with pytest.raises(KeyError, match="peek"):
            leaving.messages()
    with monkeypatch.context() as patched:
        patched.setattr(
            leaving, "Question", make_dataclass("Question", ["peek"], bases=(Question,), kw_only=True, frozen=True)
        )
        with pytest.raises(KeyError, match="peek"):
            leaving.messages()


def test_what_counts_samples_by_class_says_so() -> None:
    """Who approves a run reads the first sentence alone."""
    up = {kind for method in leaving.methods().values() for kind in leaving.going_up(method)}
    counting = {kind for kind in up if SamplesPerClass in get_type_hints(kind, include_extras=True).values()}
    assert len(counting) > 3
    assert [
        kind for kind in counting if not re.search(r"number of samples of each class|count of each", meaning(kind))
    ] == []


def test_what_tells_of_labels_is_in_the_last_column() -> None:
    rows = [line.split(" | ") for line in leaving.PAGE.read_text().splitlines() if line.startswith("| `")]
    (fednoro,) = (row for row in rows if "`fednoro`" in row[0])
    assert fednoro[-1] == "`ClassLosses` |"
    (fedavg,) = (row for row in rows if "`fedavg`" in row[0])
    assert [cell.strip(" |") for cell in fedavg[1:]] == ["nothing", "nothing", ""]
