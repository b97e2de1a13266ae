"""Texts: a user's CSV file, or AG News, read as token ids of a vocabulary of the training texts."""

import csv
import logging
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from numpy.typing import NDArray

from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.core.inputs import PAD, UNKNOWN
from flnl.core.ranges import PathText, PositiveCount
from flnl.data.dataset import Dataset
from flnl.data.datasets.assemble import assemble
from flnl.data.datasets.download import check, expand
from flnl.data.datasets.sheet import Sheet
from flnl.data.images import TensorImages
from flnl.data.preparations import Tokens

log = logging.getLogger(__name__)
SPECIAL = 4
"""The ids below it are no words of the texts: unknown, pad, and two that are not used (begin and end of a text)."""

Vocabulary = Annotated[int, Ge(SPECIAL + 1)]

_SPLIT = (
    *((re.escape(mark), f" {mark} ") for mark in "'.,()!?"),
    *((mark, " ") for mark in ("<br />", ";", ":")),
    ('"', ""),
)


def words(text: str) -> list[str]:
    """A text's tokens, as torchtext's ``basic_english`` divides it: lower case, marks apart from words.

    >>> words('It\\'s "late": (very) late.<br />Hyphen-words stay')
    ['it', "'", 's', 'late', '(', 'very', ')', 'late', '.', 'hyphen-words', 'stay']
    """
    text = text.lower()
    for pattern, by in _SPLIT:
        text = re.sub(pattern, by, text)
    return text.split()


def vocabulary(texts: Iterable[Sequence[str]], size: int) -> dict[str, int]:
    """The ids of the most frequent words of tokenised ``texts``, at most ``size`` ids with the special ones.

    The order is by frequency, and among equally frequent ones by the words' characters.

    >>> vocabulary([["b", "a"], ["c", "a"]], 6)
    {'a': 4, 'b': 5}
    """
    counts = Counter(word for text in texts for word in text)
    kept = sorted(counts, key=lambda word: (-counts[word], word))[: size - SPECIAL]
    return {word: SPECIAL + i for i, word in enumerate(kept)}


def encoded(texts: Sequence[Sequence[str]], ids: Mapping[str, int], length: int) -> NDArray[np.int32]:
    """Token ids int32 [N, length]: texts are cut at their end, or filled with ``PAD``."""
    rows = np.full((len(texts), length), PAD, np.int32)
    for row, text in zip(rows, texts, strict=True):
        cut = [ids.get(word, UNKNOWN) for word in text[:length]]
        row[: len(cut)] = cut
    return rows


@dataclass(frozen=True)
class Text(Sheet):
    """A sheet with columns of ``text``, which are joined by a space."""

    text: list[str]
    vocabulary: Vocabulary
    max_len: PositiveCount | None

    def __call__(self) -> Dataset:
        """Load the data set.

        Raises:
            UserError: if a file cannot be read, or lacks a column, or no text has a word.
        """
        rows = self.divided(self.text)
        texts = [
            [" ".join(row) for row in zip(*(part[one] for one in self.text), strict=True)]
            for part in (rows.train, rows.test)
        ]
        if not any(map(words, texts[0])):
            raise UserError(f"dataset.text={self.text}: no text has a word; name the columns of text")
        if empty := sum(not words(text) for text in texts[0]):
            log.warning("dataset.text: %d of %d training texts have no word", empty, len(texts[0]))
        return _assembled(self, texts, rows.known)


AG_NEWS = {"train.csv": "b1a00f826fdfbd249f79597b59e1dc12", "test.csv": "d52ea96a97a2d943681189a97654912d"}
"""MD5 of the files that torchtext loads."""


@dataclass(frozen=True)
class AgNews:
    """AG News (Zhang et al., 2015): 120,000 and 7,600 titles with descriptions, 4 classes; the published CSV files.

    They have no header: a class from 1, a title, a description. Nothing is downloaded.
    """

    name: str
    root: PathText
    verify: bool
    vocabulary: Vocabulary
    max_len: PositiveCount | None
    train_sample: PositiveCount | None
    test_size: PositiveCount | None

    def __call__(self) -> Dataset:
        """Load the data set; the labels are the truth.

        Raises:
            UserError: if a file is missing or another one.
        """
        root = expand(self.root)
        parts = [_news(root / name, md5 if self.verify else None) for name, md5 in AG_NEWS.items()]
        (texts, labels), (test_texts, test_labels) = parts
        known = {"classes": ("World", "Sports", "Business", "Sci/Tech"), "truth": labels, "test_labels": test_labels}
        return _assembled(self, (texts, test_texts), known)


def _news(path: Path, md5: str | None) -> tuple[list[str], Labels]:
    """The texts and labels of a file of AG News.

    Raises:
        UserError: if it is missing or has another form.
    """
    if not path.is_file():
        raise UserError(f"dataset.root: {path} does not exist; put train.csv and test.csv of AG News into this folder")
    check(path, md5)
    texts, labels = [], []
    try:
        with path.open(newline="", encoding="utf-8") as file:
            for number, row in enumerate(csv.reader(file), 1):
                if len(row) != 3 or row[0] not in ("1", "2", "3", "4"):
                    raise ValueError(f"row {number} is not a class 1 to 4, a title and a description")
                texts.append(f"{row[1]} {row[2]}")
                labels.append(int(row[0]) - 1)
    except (OSError, ValueError, csv.Error) as error:
        raise UserError(f"dataset.root: {path} is no file of AG News ({error})") from error
    return texts, np.array(labels, np.int64)


def _assembled(part: Text | AgNews, texts: Sequence[list[str]], known: Mapping[str, Any]) -> Dataset:
    split = [[words(text) for text in of_part] for of_part in texts]
    longest = max(1, *(len(text) for of_part in split for text in of_part))
    length = longest if part.max_len is None else min(part.max_len, longest)
    ids = vocabulary(split[0], part.vocabulary)
    train, test = (TensorImages(torch.from_numpy(encoded(of_part, ids, length))) for of_part in split)
    return assemble(
        name=part.name,
        train=train,
        test=test,
        transform=Tokens(part.vocabulary, length),
        texts=texts[0],
        train_size=None,
        train_sample=part.train_sample,
        test_size=part.test_size,
        **known,
    )
