"""The card of a federation: its sizes, class counts and noise.

All numbers are counted from the federation itself. Those that need the true labels are omitted if these are unknown.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from rich.console import Group, RenderableType
from rich.table import Table as RichTable
from rich.text import Text
from torch import Tensor

from flnl.console.markdown import grid, literal
from flnl.console.templates import template
from flnl.console.terminal import cell, visible
from flnl.core.errors import UserError
from flnl.core.images import Indices
from flnl.data.federation.build import Federation
from flnl.data.votes import counted

FEW = 20
"""Maximum number of clients or classes that are listed one by one on a terminal."""

Card = dict[str, Any]


def transition(federation: Federation) -> NDArray[np.int64] | None:
    """Counts [C, C] of training samples of true class i with given label j; None without the truth."""
    if federation.truth is None:
        return None
    return _confusion(federation, federation.truth, np.concatenate(federation.clients))


def _confusion(federation: Federation, truth: Tensor, index: Indices) -> NDArray[np.int64]:
    """Counts [C, C] of the samples at ``index`` [n] of true class i with given label j."""
    C = federation.num_classes
    pairs = truth.numpy()[index] * C + federation.given.numpy()[index]
    return np.bincount(pairs, minlength=C * C).reshape(C, C).astype(np.int64)


def matrices(federation: Federation) -> NDArray[np.float64]:
    """Each client's confusion matrix [K, C, C], of rows that are distributions, as ``noise=annotators`` takes them.

    T_k[i, j] is the share of its samples of true class i that were given j, with one sample more that is given as those
    of all clients are, so that a class of which a client has few samples follows the others, and one that nobody has is
    right.

    Raises:
        UserError: if the true labels are unknown.
    """
    if federation.truth is None:
        raise UserError("--matrices needs true labels, and they are unknown")
    counts = np.stack([_confusion(federation, federation.truth, index) for index in federation.clients])
    total = counts.sum(axis=0)
    held = total.sum(axis=1, keepdims=True)
    usual = np.where(held > 0, total / np.maximum(held, 1), np.eye(federation.num_classes))
    return np.asarray((counts + usual) / (counts.sum(axis=2, keepdims=True) + 1), np.float64)


def wrong_shares(federation: Federation) -> list[float | None] | None:
    """Each client's share of wrong labels, [K], None for a client without samples; None without the truth."""
    if federation.truth is None:
        return None
    wrong = (federation.given != federation.truth).numpy()
    return [float(wrong[index].mean()) if len(index) else None for index in federation.clients]


def agreement(federation: Federation) -> float | None:
    """The share of the labels by several people that are the most frequent one of their sample; None: one person."""
    people = federation.dataset.people
    if people is None or not len(federation.held):
        return None
    held = counted(people[:, federation.held], federation.num_classes)
    return float(held.max(axis=1).sum() / held.sum())


def tested_of_clients(federation: Federation) -> float | None:
    """The share of test samples of those natural clients, as writers, who have training samples; None: unknown."""
    data = federation.dataset
    if data.clients is None or data.test_clients is None or not len(federation.tested):
        return None
    return float(np.isin(data.test_clients[federation.tested], data.clients[federation.held]).mean())


def card(federation: Federation) -> Card:
    """The card as plain values, ready for JSON."""
    sizes = np.array([len(index) for index in federation.clients])
    given = federation.class_counts(federation.given)
    true = None if federation.truth is None else federation.class_counts(federation.truth)
    shares, T = wrong_shares(federation), transition(federation)
    nominal = federation.nominal
    clients = [
        {
            "client": k,
            "name": federation.called(k),
            "samples": int(n),
            "noise": None if shares is None else shares[k],
            "nominal": None if nominal is None else nominal[k],
            "given": given[k].tolist(),
            "true": None if true is None else true[k].tolist(),
        }
        for k, n in enumerate(sizes)
    ]
    return {
        "dataset": federation.dataset.name,
        "classes": list(federation.dataset.classes),
        "samples": len(federation.given),
        "training": int(sizes.sum()),
        "validation": len(federation.validation),
        "dropped": len(federation.dropped),
        "clients": len(sizes),
        "empty": np.flatnonzero(sizes == 0).tolist(),
        "unallocated": np.flatnonzero(given.sum(axis=0) == 0).tolist(),
        "size": {"min": int(sizes.min()), "median": float(np.median(sizes)), "max": int(sizes.max())},
        "noise": None if T is None else 1 - float(np.trace(T)) / max(1, int(T.sum())),
        "nominal": None if nominal is None else float(np.average(nominal, weights=sizes if sizes.sum() else None)),
        "transition": None if T is None else T.tolist(),
        "agreement": agreement(federation),
        "test": len(federation.tested),
        "tested_of_clients": tested_of_clients(federation),
        "fingerprint": federation.fingerprint,
        "per_client": clients,
    }


# ------------------------------------------------------------------------------------------------------ rendering


@dataclass(frozen=True)
class _Table:
    """One table of the card, independent of the output format."""

    title: str
    header: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""


def markdown(card: Card) -> str:
    """The whole card as a Markdown page that lists every client."""
    page = template(Path(__file__).with_name("card.md.j2"), {"grid": _grid})
    return page.render(dataset=visible(card["dataset"]), clients=card["clients"], tables=_tables(card, None))


def _grid(table: _Table) -> str:
    header, *rows = [[*map(literal, cells)] for cells in (table.header, *table.rows)]
    return grid(header, rows, "r" * len(header))


def tables(card: Card, width: int = 80) -> list[RenderableType]:
    """The card for a terminal of ``width`` columns; many clients or classes are summarised."""
    return [_rich(table) for table in _tables(card, width)]


def _rich(table: _Table) -> RenderableType:
    rich = RichTable(title=cell(table.title), title_justify="left", title_style="bold", pad_edge=False, box=None)
    for number, name in enumerate(table.header):
        rich.add_column(cell(name), justify="left" if number == 0 else "right", header_style="dim", overflow="fold")
    for row in table.rows:
        rich.add_row(*map(cell, row))
    return Group(rich, *([Text(table.note, style="dim")] if table.note else []), Text())


def _tables(card: Card, width: int | None) -> Iterator[_Table]:
    """The card's tables; with ``width``, reduced to fit a terminal."""
    card = {**card, "dataset": visible(card["dataset"]), "classes": list(map(visible, card["classes"]))}
    yield _summary(card)
    if width is None or card["clients"] <= FEW:
        largest = len(str(max((n for client in card["per_client"] for n in client["given"]), default=0)))
        room = math.inf if width is None else width
        yield _clients(card, counted=len(card["classes"]) <= FEW and 33 + len(card["classes"]) * (largest + 2) <= room)
    else:
        yield _spread(card)
    if card["transition"] is not None:
        yield _transition(card) if len(card["classes"]) <= FEW else _confusions(card)


def _summary(card: Card) -> _Table:
    size = card["size"]
    rows = [
        ("samples", f"{card['samples']:,}"),
        ("clients", f"{card['clients']:,}"),
        ("samples a client", f"{size['min']:,} / {size['median']:,g} / {size['max']:,} (min / median / max)"),
    ]
    if card["validation"]:
        rows.append(("held out for validation", f"{card['validation']:,}"))
    if card["dropped"]:
        rows.append(("dropped (of no client)", f"{card['dropped']:,}"))
    if card["empty"]:
        empty = [visible(card["per_client"][k]["name"]) for k in card["empty"]]
        rows.append(("clients without samples", _listed(empty)))
    if card["unallocated"]:
        rows.append(("classes of no client", _listed([card["classes"][c] for c in card["unallocated"]])))
    if card["agreement"] is not None:
        rows.append(("labels as most people gave", _percent(card["agreement"])))
    if (share := card["tested_of_clients"]) is not None:
        among = {0.0: "none", 1.0: "all"}.get(share, _percent(share))
        rows.append(("test samples", f"{card['test']:,}, {among} of groups that are trained on"))
    if card["noise"] is not None:
        rows.append(("labels that are wrong", _percent(card["noise"])))
    if card["nominal"] is not None:
        rows.append(("nominal rate", f"{_percent(card['nominal'])} (set by the noise model)"))
    rows.append(("fingerprint", card["fingerprint"]))
    return _Table(f"Federation of {card['dataset']}", ("", ""), rows)


def _clients(card: Card, *, counted: bool) -> _Table:
    """One row per client, with the counts of each class (``counted``) or only the number of classes."""
    header = ["client", "samples", "wrong %", "rate %", *(_heads(card) if counted else ["classes"])]
    rows = []
    for client in card["per_client"]:
        given = client["given"]
        counts = [str(n) for n in given] if counted else [str(sum(n > 0 for n in given))]
        shares = [_percent(client[key]).removesuffix(" %") for key in ("noise", "nominal")]
        rows.append([visible(client["name"]), f"{client['samples']:,}", *shares, *counts])
    note = "Classes are counted by given label." + (_legend(card) if counted else " Counts of each are in card.json.")
    return _Table("Clients", header, rows, note)


def _spread(card: Card) -> _Table:
    columns: dict[str, tuple[list[Any], Callable[[float], str]]] = {
        "samples": ([c["samples"] for c in card["per_client"]], lambda x: f"{x:,.0f}"),
        "wrong": ([c["noise"] for c in card["per_client"]], _percent),
        "nominal": ([c["nominal"] for c in card["per_client"]], _percent),
        "classes": ([sum(n > 0 for n in c["given"]) for c in card["per_client"]], lambda x: f"{x:,.0f}"),
    }
    rows = []
    for name, (values, show) in columns.items():
        known = [v for v in values if v is not None]
        if known:
            rows.append([name, *(show(float(q)) for q in np.quantile(known, (0, 0.1, 0.25, 0.5, 0.75, 0.9, 1)))])
    header = ("", "min", "10 %", "25 %", "median", "75 %", "90 %", "max")
    return _Table("Clients", header, rows, f"Each of the {card['clients']:,} clients is listed in card.md.")


def _transition(card: Card) -> _Table:
    T = np.array(card["transition"])
    share = T / np.maximum(T.sum(axis=1, keepdims=True), 1)
    rows = [
        [name, *("." if p == 0 else f"{100 * p:.1f}" for p in row)]
        for name, row in zip(card["classes"], share, strict=True)
    ]
    return _Table("True class (row) given as (column), %", ["", *_heads(card)], rows, _legend(card).strip())


def _confusions(card: Card, most: int = 10) -> _Table:
    T = np.array(card["transition"])
    share = T / np.maximum(T.sum(axis=1, keepdims=True), 1)
    np.fill_diagonal(share, 0)
    order = [divmod(int(i), len(T)) for i in np.argsort(-share, axis=None, kind="stable")[:most]]
    name = card["classes"]
    rows = [[name[i], name[j], _percent(share[i, j])] for i, j in order if share[i, j] > 0]
    return _Table("Most frequent confusions", ("true", "given", "of the class"), rows, "All are in card.json.")


def _heads(card: Card) -> list[str]:
    """Headings of class columns: the names if they are short, else numbers."""
    names: list[str] = card["classes"]
    return names if max(map(len, names)) <= 4 else [str(c) for c in range(len(names))]


def _legend(card: Card) -> str:
    names = [f"{head} {name}" for head, name in zip(_heads(card), card["classes"], strict=True) if head != name]
    return f" {', '.join(names)}." if names else ""


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.2f} %"


def _listed(things: Sequence[Any]) -> str:
    shown = ", ".join(map(str, things[:FEW]))
    return f"{len(things):,}: {shown}{' ...' if len(things) > FEW else ''}"
