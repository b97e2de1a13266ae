"""The audit of a run whose labels are at sites: the server leads, and has sums; each site writes a page of its own."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from hydra.core.override_parser.overrides_parser import OverridesParser
from numpy.typing import NDArray

from flnl.audit import performing, source, summaries
from flnl.audit.assessment import Clean, LabelledSamples, estimated, precision_curve, prior_of, scoring_of
from flnl.audit.audited_run import AuditedRun
from flnl.audit.counting import ProbabilitySums
from flnl.audit.examination import Examined, OfAll, memorised, note_on_wrong, whole_audit, why_wrong_untold
from flnl.audit.filters import Disagreement, OffDiagonal
from flnl.audit.options import LOCAL, Options
from flnl.audit.result import AuditedSamples, ClientSummary, PairSummary, WrongLabels
from flnl.audit.verdicts import read_verdicts, write_verdicts
from flnl.audit.writing import Written, folder_of, refuse_existing, write
from flnl.config import compose, registry
from flnl.config.recorded import recorded_configuration
from flnl.core.errors import UserError
from flnl.core.method import assemble
from flnl.data.federation.build import Federation
from flnl.data.federation.elsewhere import without_samples
from flnl.record.run import RESULT, RunRecord
from flnl.sites.audit_messages import ANSWERS, CountedIssues, Head, Others, Question, options_in, tensor
from flnl.sites.auditing import FOLDER
from flnl.sites.carrier import Loopback
from flnl.sites.desk import RUNS, Desk
from flnl.sites.executor import FOLDER as SITES
from flnl.sites.executor import NAMED, site_data
from flnl.sites.link import Link
from flnl.sites.policy import Policy
from flnl.storage.output_file import check_folder

NOTE = "the labels are at {sites} sites: each has its own page; these are sums"


def examine(run: AuditedRun, link: Link, options: Options, report: Callable[[str], None]) -> Examined:
    """Audit the labels at the sites of a ``link``, which write their pages.

    Args:
        run: the run, without any sample but those of the test set.
        link: leads to its sites, in the order of clients.
        options: as for an audit of pooled labels.
        report: is told in a line what takes long.

    Returns:
        What the server may say of all.

    Raises:
        UserError: for options that need more than sums, and naming a site that takes no part.
    """
    _refuse_more_than_sums(options)
    where, _, test = source.find(run, options, report)
    assert test is not None, "a run's models are tested"
    summed = (where.rounds[-1], len(where.rounds)) if where.name in ("window", "all") else None
    sizes, untold = np.array([link.sizes[client] for client in link.sites]), why_wrong_untold(test, options)
    seed, tested = run.record.data_seed, (tensor(test.labels), tensor(test.probabilities))
    asked = Question("count", options_in(options), seed, *tested, tells_wrong=untold is None, summed=summed)

    counted = _ask(link, asked)
    total = _total([ProbabilitySums(one.counts.numpy(), one.sums.numpy()) for one in counted])
    asked = replace(asked, step="join", thresholds=tensor(total.thresholds))
    joined = _ask(link, asked)
    joint, off_diagonal = sum(one.joint.numpy() for one in joined), sum(one.off_diagonal for one in joined)
    of_labels = estimated(total.counts, total.thresholds, joint, off_diagonal)
    disagreements = np.array([one.disagreements for one in joined])
    prior = prior_of(sizes, disagreements, options)
    evidence = [one.evidence.numpy() for one in joined if one.evidence is not None]
    if untold is None and len(evidence) < len(joined):
        untold = memorised(where)
    asked = replace(
        *(asked,),
        step="mark",
        counts=tensor(total.counts),
        joint=tensor(joint),
        off_diagonal=off_diagonal,
        together=None if untold is not None else tensor(np.stack(evidence).sum(axis=0)),
    )
    shifts = [None] * len(sizes) if prior.shift is None else prior.shift.tolist()
    own = [{"rate": rate, "shift": shift} for rate, shift in zip(prior.rates.tolist(), shifts, strict=True)]
    marked = _ask(link, asked, own)
    below, cut = np.stack([one.below.numpy() for one in marked]), None
    clean = Clean.of(test, scoring_of(options, total.thresholds), prior)
    if options.min_precision is not None:
        cut = clean.largest_cut(sizes, below[:, : max(one.cuts for one in marked)], options.min_precision)
    asked = replace(asked, step="list", cut=cut)
    listed = _ask(link, asked, own)

    rows = [
        _row(link, client, disagreements[c], float(prior.rates[c]), below[c], listed[c])
        for c, client in enumerate(link.sites)
    ]
    rule = Disagreement() if options.issues == "predicted_neq_given" else OffDiagonal(total.thresholds)
    issues = np.array([row.issues for row in rows])
    curve = precision_curve(sizes, below, issues, clean.shares(rule, cut))
    whole = whole_audit(run, options, where, OfAll(of_labels, curve, cut), _no_samples(), rows, {})
    wrong = WrongLabels.of_all([row.wrong for row in rows])
    notes = (*whole.notes, *note_on_wrong(rows, where, wrong, untold))
    head = Head(whole.key, whole.method, whole.dataset, where.name, where.rounds, where.description, where.note, notes)
    others = [[*rows[:c], *rows[c + 1 :]] for c in range(len(rows))]
    each = [
        {**mine, "others": Others.of(summaries.pooled(rest, "")) if rest else None}
        for mine, rest in zip(own, others, strict=True)
    ]
    _ask(link, replace(asked, step="write", head=head), each)
    pairs = _pairs(listed, len(whole.classes))
    whole = replace(whole, wrong=wrong, notes=(*notes, NOTE.format(sites=len(rows))), by_pair=pairs)
    return Examined(whole, {}, run, {})


def _refuse_more_than_sums(options: Options) -> None:
    """Refuse what sites do not send.

    Raises:
        UserError: naming the option.
    """
    if options.issues not in LOCAL:
        raise UserError(f"--issues {options.issues} needs cuts across sites: choose {' or '.join(LOCAL)}")
    if options.folds is not None or options.probabilities not in (None, *source.KINDS):
        raise UserError(
            f"the labels are at sites, which score them by models of the run: choose {', '.join(source.KINDS)}"
        )
    if options.label_privacy is not None:
        raise UserError("--label-privacy: labels that are at sites are counted in the clear, or not at all")


def _ask(link: Link, question: Question, own: Sequence[Mapping[str, Any]] | None = None) -> list[Any]:
    """Ask all sites, each with values of its ``own``; their answers, in the order of clients."""
    each = [{}] * len(link.sites) if own is None else own
    questions = {client: replace(question, **more) for client, more in zip(link.sites, each, strict=True)}
    return list(link.audit(questions, ANSWERS[question.step]).values())


def _total(parts: Sequence[ProbabilitySums]) -> ProbabilitySums:
    total = parts[0]
    for one in parts[1:]:
        total += one
    return total


def _row(
    link: Link, client: int, disagreements: int, rate: float, below: NDArray[np.int64], told: CountedIssues
) -> ClientSummary:
    """What is known of a site."""
    return ClientSummary(
        name=link.sites[client],
        clients=(client,),
        samples=link.sizes[client],
        disagreements=int(disagreements),
        issues=int(told.pairs.sum()),
        flagged=told.flagged,
        rate=rate,
        pair=None if told.pair is None else (int(told.pair[0]), int(told.pair[1])),
        below=tuple(below.tolist()),
        wrong=None if told.wrong is None else told.wrong.found,
    )


def _pairs(listed: Iterable[CountedIssues], classes: int) -> tuple[PairSummary, ...]:
    counts = sum((one.pairs.numpy() for one in listed), np.zeros((classes, classes), np.int64)).ravel()
    order = np.argsort(-counts, kind="stable")
    return tuple(
        PairSummary(int(cell) // classes, int(cell) % classes, int(counts[cell])) for cell in order if counts[cell]
    )


def _no_samples() -> AuditedSamples:
    """What the server knows of single samples."""
    numbers, none, scores = np.zeros(0, np.int64), np.zeros(0, np.bool_), np.zeros(0)
    return AuditedSamples(
        client=numbers,
        owner=[],
        name=[],
        position=numbers,
        given=numbers,
        predicted=numbers,
        confident=numbers,
        final=None,
        method_flagged=None,
        label_score=scores,
        suspicion_score=scores,
        rank=numbers,
        is_issue=none,
        true=None,
    )


# -------------------------------------------------------------------------------------------------- sites that are here


def perform(run: Path, options: Options, report: Callable[[str], None] = lambda line: None) -> tuple[Examined, Written]:
    """Audit the run in the folder ``run``, wherever its labels are, and write the files.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    record = RunRecord.read(run)
    executor = {} if record is None or not isinstance(record.executor, Mapping) else record.executor
    if executor.get("name") != "sites":
        return performing.perform(run, options, report)
    allow, places = _allowed(options.data)
    folder = folder_of(run, options)
    if options.formats:
        refuse_existing(folder, options)
        check_folder(str(folder), folder.resolve().parent)
    whole = AuditedRun.open(run, options.config_dir, places)
    verdicts = read_verdicts(options.reviewed, whole.samples, whole.federation.dataset.classes)
    link, desks = _linked(whole, executor, allow)
    nobody = LabelledSamples(np.zeros(0, np.int64), [], np.zeros(0, np.int64))
    server = replace(whole, federation=without_samples(whole.federation), samples=nobody, position=nobody.client)
    formats = tuple(one for one in options.formats if one != "csv")
    told = replace(options, formats=formats, corrections=None, reviewed=(), data=places)
    examined = examine(server, link, replace(told, formats=options.formats), report)
    examined = replace(examined, audit=replace(examined.audit, options=told))
    written = write(examined)
    if options.reviewed or options.corrections is not None:
        with tempfile.TemporaryDirectory() as scratch:
            for name, desk in desks.items():
                own = [i for i in verdicts if whole.samples.owner[i] == name]
                file = Path(scratch) / "verdicts.csv"
                write_verdicts(file, {i: verdicts[i] for i in own}, whole.samples, whole.federation.dataset.classes)
                desk.review(link.run, [file], options.corrections)
    pages = tuple(desk.folder / RUNS / link.run / FOLDER for desk in desks.values())
    return examined, replace(written, files=(*written.files, *pages))


def _allowed(words: Sequence[str]) -> tuple[list[str] | None, tuple[str, ...]]:
    """What ``executor.allow=[...]`` among the words says, and the other words."""
    own = [word for word in words if word.startswith("executor.allow=")]
    if not own:
        return None, tuple(words)
    value = OverridesParser.create().parse_override(own[-1]).value()
    return [str(one) for one in (value if isinstance(value, list) else [value])], tuple(set(words) - set(own))


def _linked(run: AuditedRun, executor: Mapping[str, Any], allow: Sequence[str] | None) -> tuple[Link, dict[str, Desk]]:
    """The sites of a run in this process, with what they have of it."""
    federation: Federation = run.federation
    base = run.folder / SITES if executor["folder"] is None else Path(executor["folder"]).expanduser()
    policy = Policy(
        tuple(executor["allow"] if allow is None else allow),
        *(executor[name] for name in ("max_epsilon", "least_samples", "approve", "counts", "min_count")),
    )
    names = {client: federation.called(client) for client in federation.with_data}
    desks = {name: Desk(site_data(federation, client), base / str(client), policy) for client, name in names.items()}
    cfg = recorded_configuration(run.record.config, str(run.folder / RESULT), run.config_dir)
    method = assemble(compose.build(cfg.method), registry.option_of)
    known = (method, (run.folder / NAMED).read_text(), "", federation.dataset.classes, run.folder)
    return Link(Loopback(desks), names, federation.sizes, *known), desks
