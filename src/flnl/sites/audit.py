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
from flnl.audit.assessment import prior_of, scoring_of
from flnl.audit.audited_run import AuditedRun
from flnl.audit.clean_samples import Clean, precision_curve
from flnl.audit.counting import ProbabilitySums
from flnl.audit.examination import Examined, OfAll, memorised, note_on_wrong, whole_audit, why_wrong_untold
from flnl.audit.filters import Disagreement, OffDiagonal
from flnl.audit.options import LOCAL, Format, Options
from flnl.audit.pooling import estimated
from flnl.audit.result import AuditedSamples, ClientSummary, PairSummary, WrongLabels
from flnl.audit.samples import LabelledSamples
from flnl.audit.verdicts import read_verdicts, write_verdicts
from flnl.audit.writing import Written, folder_of, refuse_existing, write
from flnl.config import compose, registry
from flnl.config.recorded import places_of, recorded_configuration
from flnl.core.errors import UserError
from flnl.core.method import assemble
from flnl.data.datasets.download import expand
from flnl.data.federation.elsewhere import without_samples
from flnl.data.federation.recorded import recorded_data
from flnl.record.run import RESULT, RunRecord
from flnl.sites import greeting
from flnl.sites.audit_messages import ANSWERS, CountedIssues, Head, Others, Question, options_in, tensor
from flnl.sites.auditing import FOLDER
from flnl.sites.executor import FOLDER as SITES
from flnl.sites.executor import NAMED, site_data
from flnl.sites.federation import FILE, FederationFolder
from flnl.sites.flower_environment import Flower
from flnl.sites.link import Link, Waiting
from flnl.sites.policy import Policy
from flnl.sites.runtime import RUNS, SiteRuntime
from flnl.sites.superlink import SuperLink
from flnl.sites.transport import Loopback, Transport
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
    assert test is not None, "a run says how its models score test samples, if there are any"
    clean = test if len(test.labels) else None
    if clean is None and options.min_precision is not None:
        raise UserError("--min-precision compares with test samples, and the server has none: leave it out")
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
        asked,
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
    scored = None if clean is None else Clean.of(clean, scoring_of(options, total.thresholds), prior)
    if scored is not None and options.min_precision is not None:
        cut = scored.largest_cut(sizes, below[:, : max(one.cuts for one in marked)], options.min_precision)
    asked = replace(asked, step="list", cut=cut)
    listed = _ask(link, asked, own)

    rows = [
        _row(link, client, disagreements[c], float(prior.rates[c]), below[c], listed[c])
        for c, client in enumerate(link.sites)
    ]
    rule = Disagreement() if options.issues == "predicted_neq_given" else OffDiagonal(total.thresholds)
    issues = np.array([row.issues for row in rows])
    curve = precision_curve(sizes, below, issues, None if scored is None else scored.shares(rule, cut))
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
    """What is known of a site.

    Raises:
        UserError: naming the site, if its most frequent pair is none of classes.
    """
    if told.pair is not None and int(told.pair.max()) >= len(told.pairs):
        raise UserError(f"site {link.sites[client]} sent a pair of classes that there are not")
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


# ------------------------------------------------------------------------------------------------- from folder to files

CONNECTS = 0.25
"""Hours in which the sites of a federation should be there."""


def perform(run: Path, options: Options, report: Callable[[str], None] = lambda line: None) -> tuple[Examined, Written]:
    """Audit the run in the folder ``run``, wherever its labels are, and write the files.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    record = RunRecord.read(run)
    name = None if record is None else _executor(record).get("name")
    if name not in performing.AT_SITES:
        return performing.perform(run, options, report)
    allow, patience, places = _words(options.data)
    _refuse_more_than_sums(options)
    folder = folder_of(run, options)
    if options.formats:
        refuse_existing(folder, options)
        check_folder(str(folder), folder.resolve().parent)
    asked = replace(options, data=places)
    if name == "sites":
        return _of_sites_here(AuditedRun.open(run, options.config_dir, places), asked, allow, report)
    if allow is not None:
        raise UserError("executor.allow: what leaves a site is said there: leave it out")
    federation = federation_of(run, asked)
    superlink = SuperLink(federation, Flower.found())
    with superlink.connected() as transport:
        done = over_transport(transport, federation, run, asked, patience, report)
    superlink.forget()
    return done


def federation_of(run: Path, options: Options) -> FederationFolder:
    """The federation with whose sites ``flnl serve`` has trained.

    Raises:
        UserError: if it is not where it was, the run is not finished, or verdicts are given, which are for sites.
    """
    if options.reviewed:
        raise UserError("--reviewed: each site reviews its own labels: flnl site FOLDER --review verdicts.csv")
    record = RunRecord.open(run, "; name a run's folder").demand_finished()
    _name_among_sites(run)
    root = expand(recorded_data(record, options.config_dir, places_of(options.data)).dataset.root)
    if not (root / FILE).is_file():
        raise UserError(f"{run}: its federation is not at {root}: add dataset.root=FOLDER, as flnl serve FOLDER had it")
    return FederationFolder.read(root)


def over_transport(
    transport: Transport,
    federation: FederationFolder,
    run: Path,
    options: Options,
    patience: float | None = None,
    report: Callable[[str], None] = lambda line: None,
) -> tuple[Examined, Written]:
    """Audit a run of ``flnl serve`` with the sites of its federation.

    Args:
        transport: leads to the sites.
        federation: theirs.
        run: the run's folder.
        options: as of ``perform``.
        patience: hours to wait for sites; None: ``CONNECTS`` until they are there, then as long as the run has.
        report: is told in a line what takes long.

    Raises:
        UserError: for mistakes that the user can correct.
    """
    whole = AuditedRun.open(run, options.config_dir, options.data)
    executor, names = _executor(whole.record), _names(whole)
    if strangers := sorted({*names.values()} - {*federation.sites}):
        raise UserError(f"{federation.folder / FILE} has no site {strangers[0]}, which the run had")
    held = greeting.greet(transport, federation.name, [*names.values()], CONNECTS if patience is None else patience)
    for client, name in names.items():
        if (size := held[name].size) != whole.federation.sizes[client]:
            raise UserError(f"site {name} has {size:,} samples now, and the run had {whole.federation.sizes[client]:,}")
    waiting = Waiting(executor["ttl"], executor["patience"] if patience is None else patience, again="audit again")
    link = _link(whole, transport, names, waiting)
    told = replace(options, formats=_formats(options))
    return _led(whole, link, replace(told, formats=options.formats), told, report)


def _of_sites_here(
    whole: AuditedRun, options: Options, allow: Sequence[str] | None, report: Callable[[str], None]
) -> tuple[Examined, Written]:
    """Audit a run of ``executor=sites``, whose sites are in folders here."""
    verdicts = read_verdicts(options.reviewed, whole.samples, whole.federation.dataset.classes)
    names, base = _names(whole), _base(whole)
    policy = _policy(_executor(whole.record), allow)
    runtimes = {
        name: SiteRuntime(site_data(whole.federation, client), base / str(client), policy)
        for client, name in names.items()
    }
    link = _link(whole, Loopback(runtimes), names, Waiting())
    told = replace(options, formats=_formats(options), corrections=None, reviewed=())
    examined, written = _led(whole, link, replace(told, formats=options.formats), told, report)
    if options.reviewed or options.corrections is not None:
        with tempfile.TemporaryDirectory() as scratch:
            for name, runtime in runtimes.items():
                own = [i for i in verdicts if whole.samples.owner[i] == name]
                file = Path(scratch) / "verdicts.csv"
                write_verdicts(file, {i: verdicts[i] for i in own}, whole.samples, whole.federation.dataset.classes)
                runtime.review(link.run, [file], options.corrections)
    pages = tuple(runtime.folder / RUNS / link.run / FOLDER for runtime in runtimes.values())
    return examined, replace(written, files=(*written.files, *pages))


def _led(
    whole: AuditedRun, link: Link, asked: Options, kept: Options, report: Callable[[str], None]
) -> tuple[Examined, Written]:
    """Ask the sites of a link, and write what the server keeps, by other options than those asked."""
    nobody = LabelledSamples(np.zeros(0, np.int64), [], np.zeros(0, np.int64))
    server = replace(whole, federation=without_samples(whole.federation), samples=nobody, position=nobody.client)
    examined = examine(server, link, asked, report)
    examined = replace(examined, audit=replace(examined.audit, options=replace(kept, corrections=None)))
    return examined, write(examined)


def _formats(options: Options) -> tuple[Format, ...]:
    """What the server writes."""
    return tuple(one for one in options.formats if one != "csv")


def _words(words: Sequence[str]) -> tuple[list[str] | None, float | None, tuple[str, ...]]:
    """What ``executor.allow=[...]`` and ``executor.patience=HOURS`` among the words say, and the other words.

    Raises:
        UserError: if that is no number of hours.
    """
    values: dict[str, Any] = {}
    others = []
    for word in words:
        key = word.partition("=")[0]
        if key in ("executor.allow", "executor.patience"):
            values[key] = OverridesParser.create().parse_override(word).value()
        else:
            others.append(word)
    allow, patience = values.get("executor.allow"), values.get("executor.patience")
    if patience is not None and (isinstance(patience, bool | str) or not patience >= 0):
        raise UserError(f"executor.patience={patience}: should be a number of hours from 0")
    if allow is not None:
        allow = [str(one) for one in (allow if isinstance(allow, list) else [allow])]
    return allow, patience, tuple(others)


def _executor(record: RunRecord) -> Mapping[str, Any]:
    """What the record says of who ran clients; earlier versions wrote a name alone."""
    return record.executor if isinstance(record.executor, Mapping) else {"name": record.executor}


def _name_among_sites(run: Path) -> str:
    """Under which sites know a run.

    Raises:
        UserError: if its file has gone.
    """
    try:
        return (run / NAMED).read_text()
    except OSError:
        raise UserError(
            f"{run} has no {NAMED}, by which its sites know the run: put back the file that it wrote"
        ) from None


def _names(run: AuditedRun) -> dict[int, str]:
    """The names of clients with samples."""
    return {client: run.federation.called(client) for client in run.federation.with_data}


def _base(run: AuditedRun) -> Path:
    """Where the folders of sites in this process are."""
    folder = _executor(run.record)["folder"]
    return run.folder / SITES if folder is None else Path(folder).expanduser()


def _policy(executor: Mapping[str, Any], allow: Sequence[str] | None) -> Policy:
    """That of sites in this process."""
    return Policy(
        tuple(executor["allow"] if allow is None else allow),
        *(executor[name] for name in ("max_epsilon", "least_samples", "approve", "counts", "min_count")),
    )


def _link(run: AuditedRun, transport: Transport, names: Mapping[int, str], waiting: Waiting) -> Link:
    """The run at its sites, which have opened it."""
    cfg = recorded_configuration(run.record.config, str(run.folder / RESULT), run.config_dir)
    method, classes = assemble(compose.build(cfg.method), registry.option_of), run.federation.dataset.classes
    known = (method, _name_among_sites(run.folder), "", classes, run.folder)
    return Link(transport, names, run.federation.sizes, *known, waiting=waiting)
