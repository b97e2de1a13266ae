"""The last step of every source: select the requested number of samples, and compute the fingerprint.

The result depends only on the files and the configuration, never on the run's seed.
"""

import hashlib
import logging
from collections.abc import Sequence

import numpy as np

from flnl.console.words import some
from flnl.core.errors import UserError
from flnl.core.images import Indices, Labels
from flnl.core.inputs import Preparation
from flnl.core.streams import stream
from flnl.data.dataset import Dataset
from flnl.data.images import Store
from flnl.data.owners import LEFT_OUT, Owners

log = logging.getLogger(__name__)


def assemble(
    *,
    name: str,
    classes: Sequence[str],
    train: Store,
    test: Store,
    test_labels: Labels,
    transform: Preparation,
    truth: Labels | None,
    given: Labels | None = None,
    owners: Owners | None = None,
    ids: Sequence[str] | None = None,
    texts: Sequence[str] | None = None,
    people: Indices | None = None,
    test_owners: Indices | None = None,
    train_size: int | None,
    train_sample: int | None = None,
    test_size: int | None,
) -> Dataset:
    """Build the data set, reduced to ``train_size`` and ``test_size`` samples if these are set (see ``balanced``).

    With ``train_sample``, samples are drawn from the whole training set, by the same rule, the same for every seed.

    A reduced training set has ids: ``ids``, or else positions in the full set, so that label files for the full set can
    still be aligned. ``test_owners`` is ``Dataset.test_clients`` of the whole test set.

    Raises:
        UserError: if there are fewer samples than requested.
    """
    clients = None if owners is None else owners.number
    labels = given if given is not None else truth
    if labels is None:
        raise ValueError("a data set needs given labels or the truth")
    _tell_of_lacking(classes, labels, f"dataset.name={name}: no training sample", "models cannot learn")
    _tell_of_lacking(classes, test_labels, f"dataset.name={name}: no test sample", "the test accuracy leaves out")
    keep = chosen(labels, "train", train_size, train_sample)
    if keep is not None:
        if owners is not None and train_size is not None:
            _tell_of_lost(owners, keep, train_size)
        train = train.take(keep)
        truth, given, clients = (None if array is None else array[keep] for array in (truth, given, clients))
        people = None if people is None else people[:, keep]
        texts = None if texts is None else tuple(texts[i] for i in keep.tolist())
        ids = tuple(str(i) if ids is None else ids[i] for i in keep.tolist())
    keep = chosen(test_labels, "test", test_size)
    if keep is not None:
        test, test_labels = test.take(keep), test_labels[keep]
        test_owners = None if test_owners is None else test_owners[keep]
    arrays = (truth, given, clients, test_labels, *(() if people is None else (people,)))
    names = train.digest_of_names(), test.digest_of_names()
    return Dataset(
        name=name,
        classes=tuple(classes),
        train=train,
        test=test,
        test_labels=test_labels,
        transform=transform,
        truth=truth,
        given=given,
        clients=clients,
        client_names=None if owners is None else owners.names,
        test_clients=test_owners,
        texts=texts,
        people=people,
        ids=ids,
        fingerprint=_fingerprint(train.digest(), test.digest(), arrays),
        names_fingerprint=None if names[0] is None or names[1] is None else _fingerprint(names[0], names[1], arrays),
    )


def refuse_first_of_groups(train_size: int | None) -> None:
    """Refuse to take the first samples of a data set that lie in order of its groups: whole groups would be lost.

    Raises:
        UserError: if a size is set.
    """
    if train_size is not None:
        raise UserError(
            f"dataset.train_size={train_size} takes the first samples of each class, and so the first writers' alone: "
            "set partition.choose to draw some writers, or dataset.train_sample to draw samples of all"
        )


def _tell_of_lacking(classes: Sequence[str], labels: Labels, there_is: str, so: str) -> None:
    """Log the classes that no sample has."""
    count = np.bincount(labels, minlength=len(classes))
    if lacking := [name for name, n in zip(classes, count, strict=True) if not n]:
        log.warning("%s is of %s, which %s", there_is, some(lacking), so)


def _tell_of_lost(owners: Owners, keep: Indices, train_size: int) -> None:
    """Log how many of the data set's clients have none of the samples that are kept."""
    before, after = (np.unique(number[number != LEFT_OUT]).size for number in (owners.number, owners.number[keep]))
    if after < before:
        log.warning(
            "dataset.train_size=%d takes the first samples of each class: %d of the data set's %d clients have none",
            train_size,
            before - after,
            before,
        )


def _fingerprint(train: bytes, test: bytes, arrays: Sequence[Labels | None]) -> str:
    """The sha256 of both splits' digests and of all labels."""
    digest = hashlib.sha256(train + test)
    for array in arrays:
        digest.update(b"-" if array is None else np.ascontiguousarray(array, np.int64).tobytes())
    return digest.hexdigest()


def chosen(labels: Labels, split: str, size: int | None, sample: int | None = None) -> Indices | None:
    """The positions that ``dataset.SPLIT_size`` keeps (``balanced``), or ``dataset.SPLIT_sample`` (``drawn``).

    None for all, ascending otherwise.

    Raises:
        UserError: if both are set, or there are fewer samples.
    """
    if size is not None and sample is not None:
        raise UserError(
            f"dataset.{split}_size={size} and dataset.{split}_sample={sample}: set one, the first or drawn ones"
        )
    if sample is not None:
        return drawn(labels, sample, f"dataset.{split}_sample")
    return None if size is None else balanced(labels, size, f"dataset.{split}_size")


def balanced(labels: Labels, size: int, key: str) -> Indices:
    """The positions of ``size`` samples, ascending: the first of every class, as evenly as possible.

    >>> balanced(np.array([0, 0, 0, 0, 1, 1]), 3, "dataset.train_size").tolist()
    [0, 1, 4]

    Raises:
        UserError: if there are fewer than ``size``.
    """
    if size > len(labels):
        raise UserError(f"{key}={size}: the data set has only {len(labels)} samples")
    order = np.argsort(labels, kind="stable")
    first = np.searchsorted(labels[order], labels[order])  # where each sample's class begins in this order
    rank = np.empty(len(labels), np.int64)  # a sample's position within its class
    rank[order] = np.arange(len(labels)) - first
    return np.sort(np.lexsort((labels, rank))[:size]).astype(np.int64)


def drawn(labels: Labels, size: int, key: str) -> Indices:
    """The positions of ``size`` samples, ascending: any of every class, as evenly as possible.

    Raises:
        UserError: if there are fewer than ``size``.
    """
    order = stream(0, "train_sample").permutation(len(labels))
    return np.sort(order[balanced(labels[order], size, key)]).astype(np.int64)
