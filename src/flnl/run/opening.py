"""Opens a session from a configuration: claims the run's folder, loads its checkpoint, builds its parts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import threadpoolctl
import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from flnl.config import compose, given, identity
from flnl.config.override_text import key_of
from flnl.config.recorded import whereabouts
from flnl.config.registry import option_of
from flnl.config.short_keys import shortened, shortest
from flnl.console.credentials import redacted_in
from flnl.console.words import some
from flnl.core.errors import UserError
from flnl.core.execution import Executor, described
from flnl.core.inputs import WORDS, Kind
from flnl.core.messages import Kept
from flnl.core.method import Method, assemble
from flnl.core.payload import Params
from flnl.core.state import FederatedState
from flnl.core.training import Training
from flnl.data.dataset import Dataset
from flnl.data.federation.build import Federation, from_config
from flnl.data.federation.recorded import what_differs
from flnl.data.preparations import Tokens
from flnl.engine import loop, planned
from flnl.engine.executors import auto
from flnl.engine.network import Network, initial_params
from flnl.engine.placement import Placement, placement_for, taken
from flnl.engine.planned import Evaluations
from flnl.evaluation import probabilities
from flnl.evaluation.evaluator import Evaluator
from flnl.evaluation.recording import MOST_VALUES, Recorder, affordable_stride
from flnl.models.lightning_module import has_training_step, not_called
from flnl.models.outputs import networks
from flnl.parts.losses.training_step import TrainingStep
from flnl.record.run import RunRecord
from flnl.run import checkpoint, progress
from flnl.run.apart import ClientsApart
from flnl.run.checkpoint import Checkpoint
from flnl.run.folder import RunFolder, next_in_order, open_folder
from flnl.run.record import environment
from flnl.run.reuse import Reuse
from flnl.run.session import Session, Start
from flnl.storage.atomic import write_atomically

GIB = 2**30

UPPER_BOUND = "upper bound, not a method: it uses the ground truth of its clients' labels"


@dataclass(frozen=True)
class Claim:
    """A run's locked folder, with its method, key, settings of local training and resolved configuration."""

    folder: RunFolder
    method: Method
    training: Training
    key: str
    plain: Mapping[str, Any]


def claim(cfg: DictConfig, overrides: Sequence[str], job: Path | None) -> Claim:
    """Check that the method's parts fit together, and lock the run's folder.

    Data are read only where ``resume=true`` finds a run of the same key whose data lay elsewhere.

    Raises:
        UserError: for errors that the user can fix.
    """
    plain = compose.resolved(cfg)
    key = identity.run_key(plain)
    method, training = method_of(cfg, overrides), compose.training(cfg)
    reuse = Reuse()
    folder, decision = open_folder(
        output=cfg.output,
        output_root=cfg.output_root,
        resume=cfg.resume,
        key=key,
        plain=plain,
        job=job,
        same=lambda record: reuse.same(cfg, record),
    )
    if decision:
        progress.opening([decision])
    return Claim(folder, method, training, key, plain)


def method_of(cfg: DictConfig, overrides: Sequence[str]) -> Method:
    """The method of a checked configuration; reads no data.

    Raises:
        UserError: if its parts do not fit together, or it has no round to run, or ``rounds`` is set and not read.
    """
    parts = compose.build(cfg.method)
    try:
        method = assemble(parts, option_of)
    except UserError as error:
        raise UserError(shortened(cfg, str(error))) from None
    _refuse_rounds(cfg, overrides, method)
    if not method.length(1):
        stages = cfg.method.stages
        lengths = [f"method.stages.{s}.{unit}" for s in stages for unit in ("passes", "rounds") if unit in stages[s]]
        keys = " or ".join(["rounds", *lengths] if len(lengths) == 1 else lengths)
        raise UserError(shortened(cfg, f"method={method.name} has no round to run: set {keys} above zero"))
    return method


def open_session(cfg: DictConfig, overrides: Sequence[str], claimed: Claim) -> Session:
    """Assemble a run and its initial or resumed state. After an error, a new folder of the run is removed again.

    Raises:
        UserError: for errors that the user can fix.
    """
    torch.set_num_threads(cfg.threads)
    threadpoolctl.threadpool_limits(cfg.threads)
    try:
        return _assemble(cfg, overrides, claimed)
    except BaseException:
        claimed.folder.abandon()
        raise


def _assemble(cfg: DictConfig, overrides: Sequence[str], claimed: Claim) -> Session:
    folder, method, training = claimed.folder, claimed.method, claimed.training
    placement = placement_for(cfg.device, cfg.precision)
    federation = from_config(cfg, Path(cfg.cache).expanduser())
    network, initial = initial_network(cfg, method, federation.dataset, placement)
    kind = federation.dataset.transform.kind
    method.check_network(network.module, _held(federation), training, kind)
    evaluator = Evaluator(federation, network, method, cfg.eval.memorization)
    evaluator.aid(method.aid)  # fail now, not after some rounds, if aid is unavailable
    begun, resumed = folder.earlier, None
    if begun is not None:
        resumed = checkpoint.newest(folder.path / "checkpoints", network.device, begun.checkpoint or 0)
        if resumed is not None and resumed.executor:
            begun = replace(begun, executor=resumed.executor)
    state = _state(initial, resumed, federation, network, claimed)
    store, limit = checkpoint.client_store(folder.path, network.device), cfg.client_memory * GIB
    state = replace(state, clients=state.clients.on(store, limit))
    work = auto.Work.of(cfg, method, training, network, federation.counts)
    executor, chosen = auto.settled(cfg, work, network, begun and begun.executor, folder.path)
    _refuse_states_elsewhere(state, executor)
    about_clients: list[str] = []
    if isinstance(executor, ClientsApart):
        evaluator, about_clients = executor.apart(cfg, evaluator, folder.path)
        if cfg.audit.record is True:  # auto: no, as it takes a model to each client
            recorder = _recorder(cfg, claimed, evaluator.federation, network, resumed, apart=True)
            evaluator = replace(evaluator, recorder=recorder)
    else:
        evaluator = replace(evaluator, recorder=_recorder(cfg, claimed, federation, network, resumed))
    about = _about(cfg, overrides, claimed, evaluator, executor)
    if begun is not None:
        _tell_what_goes_on(begun, about, resumed)
    progress.opening([_setting(cfg, training, evaluator.federation), chosen, f"in {folder.path}", *about_clients])
    _tell_of_conditions(cfg, training, about, evaluator)
    write_atomically(folder.path / "config.yaml", OmegaConf.to_yaml(OmegaConf.create({**about.config})).encode())
    start = Start(initial, state)
    if resumed is not None:
        start = replace(start, seconds=resumed.seconds, usage=resumed.usage, lines=resumed.lines)
    return Session(cfg, folder, about, evaluator, executor, start)


def _held(federation: Federation) -> dict[int, int]:
    """How many samples each client with data has."""
    return {client: federation.sizes[client] for client in federation.with_data}


def _state(
    initial: Params, resumed: Checkpoint | None, federation: Federation, network: Network, claimed: Claim
) -> FederatedState:
    """The state that the session begins with.

    Raises:
        UserError: if the run that goes on is of another federation.
    """
    earlier = claimed.folder.earlier
    if resumed is not None:
        return _restored(resumed, federation, network, claimed)
    if earlier is not None and whereabouts(claimed.plain) != earlier.whereabouts:
        _refuse_other_data("its run belongs", earlier.federation, federation, claimed)
    return loop.initial_state(initial)


def _refuse_states_elsewhere(state: FederatedState, executor: Executor) -> None:
    """Refuse to go on with clients whose states lie elsewhere than where this ``executor`` looks for them.

    Raises:
        UserError: saying which executor goes on.
    """
    first = next((state.client(client) for client in state.clients), None)
    if first is None or (first.extras.get(Kept) is not None) == isinstance(executor, ClientsApart):
        return
    where = "here" if first.extras.get(Kept) is None else "at their sites"
    raise UserError(
        f"executor={described(executor)['name']}: this run's clients have kept their states {where}; go on with the "
        "executor that it was begun with"
    )


def _about(
    cfg: DictConfig, overrides: Sequence[str], claimed: Claim, evaluator: Evaluator, executor: Executor
) -> RunRecord:
    """What the record says of the run from its beginning."""
    federation, method, network = evaluator.federation, claimed.method, evaluator.network
    earlier, noise_rates = claimed.folder.earlier, given.noise_rates(cfg)
    rate = given.noise_rate(cfg) if noise_rates else None
    started = time.time() if earlier is None or earlier.started is None else earlier.started
    return replace(
        environment(network.device),
        key=claimed.key,
        key_format=identity.FORMAT,
        identity=identity.identity(claimed.plain),
        config=redacted_in(claimed.plain),
        overrides=redacted_in(list(overrides)),
        stages=[stage.describe() for stage in method.stages],
        acts_from=method.begins(len(federation.counts)),
        data=federation.dataset.fingerprint,
        federation=federation.fingerprint,
        classes=list(federation.dataset.classes),
        threads=torch.get_num_threads(),
        memory_format=network.layout,
        device=str(network.device),
        executor=described(executor),
        cwd=str(Path.cwd()),
        started=started,
        order=next_in_order(cfg.output_root) if earlier is None else earlier.order,
        contents=dict(federation.files),
        client_names=list(federation.client_names or ()),
        upper_bound=UPPER_BOUND if method.upper_bound else "",
        given={} if rate is None else noise_rates,
        given_origin="" if rate is None else rate.origin,
        clean_samples=len(federation.benchmark) if method.given_clean_samples else 0,
        earlier=[] if earlier is None else earlier.with_itself,
    )


def _tell_what_goes_on(begun: RunRecord, about: RunRecord, resumed: Checkpoint | None) -> None:
    if resumed is None:
        progress.opening(["going on after round 0"])
        return
    _print_differences(begun, about)
    progress.opening([f"going on after round {resumed.state.round}"])
    if not resumed.lines:
        progress.opening(["note: the checkpoint has no checksums of the run's metrics; they were not checked"])


def _tell_of_conditions(cfg: DictConfig, training: Training, about: RunRecord, evaluator: Evaluator) -> None:
    """Print what the run's results depend on beside its configuration, its stages, and what may be a mistake."""
    federation, method, network = evaluator.federation, evaluator.method, evaluator.network
    by_names = f"note: files of {federation.dataset.name} are identified by path and size only, not by their contents"
    progress.opening([by_names] if federation.by_names else [])
    progress.opening([UPPER_BOUND] if method.upper_bound else [])
    for name, value in about.given.items():
        progress.opening(
            [f"note: the method is given the noise rate: {shortest(cfg, name)}={value:g}, {about.given_origin}"]
        )
    if method.given_clean_samples:
        number = f"{about.clean_samples:,} clean samples of the test set, on which models are not tested"
        progress.opening([f"note: the method is given {number}: eval.benchmark={cfg.eval.benchmark:g}"])
    progress.stages(method)
    others = filter(None, [taken(network.device)])
    progress.opening([f"warning: {line}" for line in (*method.warnings(), *others)])
    kind = federation.dataset.transform.kind
    cautions = method.cautions(_held(federation), training, kind, federation.num_classes)
    progress.opening([f"note: {shortened(cfg, line)}" for line in cautions])
    progress.opening([f"note: {line}" for line in _unused(network.module, method)])


def _unused(module: nn.Module, method: Method) -> Iterator[str]:
    """What a network of the user's own defines and the run does not use, a line each."""
    name = type(module).__name__
    calls = any(isinstance(term, TrainingStep) for stage in method.stages for term in stage.local.values())
    if has_training_step(module) and not calls:
        losses = " + ".join(dict.fromkeys(term for stage in method.stages for term in stage.local))
        yield (
            f"{name}.training_step is not used: the loss of method={method.name} is {losses}, of forward()'s logits; "
            "use it with method/local=[training_step]"
        )
    if unused := not_called(module):
        yield (
            f"{name}.{', '.join(unused)} will not be called: no Trainer takes part; the optimiser is that of train.lr, "
            "train/optimizer and train/schedule"
        )


FITTING: dict[Kind, str] = {
    "image": "model=cnn or another network of images",
    "vector": "model=linear or model=mlp",
    "tokens": "model=fasttext",
}
"""Which networks take samples of each kind."""


def initial_network(cfg: DictConfig, method: Method, data: Dataset, placement: Placement) -> tuple[Network, Params]:
    """A run's network and its parameters before the first round, placed on a device in a precision."""
    make, kind = compose.build(cfg.model), data.transform.kind
    if kind not in (takes := getattr(make, "kinds", (kind,))):
        raise UserError(
            f"model ({type(make).__name__}) takes {' or '.join(WORDS[one] for one in takes)}, and {data.name} has "
            f"{WORDS[kind]}: set {FITTING[kind]}"
        )
    if (
        isinstance(data.transform, Tokens)
        and getattr(make, "vocabulary", data.transform.vocabulary) < data.transform.vocabulary
    ):
        raise UserError(
            f"model.vocabulary={make.vocabulary}: the texts of {data.name} have {data.transform.vocabulary} token ids"
        )
    module, params = initial_params(
        lambda: networks(lambda: make(data.train.shape, data.num_classes), method.networks), cfg.seed
    )
    network = Network(module, data.transform, data.num_classes, placement, cfg.memory_format)
    placed = {
        name: p.to(network.device, network.dtype if p.is_floating_point() else None) for name, p in params.items()
    }
    return network, placed


def _restored(resumed: Checkpoint, federation: Federation, network: Network, claimed: Claim) -> FederatedState:
    """The checkpoint's state, with the model on the network's device.

    Raises:
        UserError: if the checkpoint belongs to another run or federation.
    """
    folder = claimed.folder
    assert folder.earlier is not None
    folder.earlier.refuse_another(folder.path / "checkpoints", resumed.key)
    _refuse_other_data("its checkpoint belongs", resumed.federation, federation, claimed)
    if resumed.federation == federation.names_fingerprint and not federation.by_names:
        progress.opening(
            ["note: the checkpoint identifies data files by path and size; their contents were not verified"]
        )
    params = {name: p.to(network.device) for name, p in resumed.state.server.params.items()}
    return replace(resumed.state, server=replace(resumed.state.server, params=params))


def _refuse_other_data(what: str, recorded: object, federation: Federation, claimed: Claim) -> None:
    """Refuse to go on with a run of another federation than the one drawn now.

    Args:
        what: the beginning of the reason.
        recorded: the fingerprint of the run's federation.
        federation: the one drawn now.
        claimed: the run's folder and configuration.

    Raises:
        UserError: naming what differs.
    """
    if recorded in federation.fingerprints:
        return
    before = claimed.folder.earlier or RunRecord()
    contents = federation.by_names and before.config.get("dataset", {}).get("fingerprint") == "contents"
    hint = "; it was begun with dataset.fingerprint=contents" if contents else ""
    raise UserError(
        f"{claimed.folder.path}: {what} to another federation than the one drawn now: "
        f"{what_differs(before, claimed.plain, federation.contents)}, so the run cannot be resumed{hint}"
    )


def _recorder(
    cfg: DictConfig,
    claimed: Claim,
    federation: Federation,
    network: Network,
    resumed: Checkpoint | None,
    *,
    apart: bool = False,
) -> Recorder | None:
    """What records class probabilities for a label audit, from the checkpoint's sums; None to record none.

    Where clients are ``apart``, it records those of the test set alone.

    Raises:
        UserError: if the run must record what it was begun without, or otherwise than it was begun.
    """
    wanted, share = cfg.audit.record, cfg.audit.window
    if wanted == "auto":
        wanted = cfg.products and len(federation.held) * federation.num_classes <= MOST_VALUES
    if not wanted:
        return None
    sizes, method = federation.counts, claimed.method
    evaluations = Evaluations.of(method, len(sizes), cfg.eval.every).planned(method, len(sizes))
    stride = 1
    if cfg.audit.record is not True:
        epochs = sum(planned.epochs(method, claimed.training, sizes))
        stride = affordable_stride(len(evaluations), epochs, len(sizes))
    earlier = None if resumed is None else resumed.recorded
    if earlier is None and resumed is not None:
        if cfg.audit.record is True:
            raise UserError(
                "audit.record=true: this run was begun without recording class probabilities, and those of its first "
                f"{resumed.state.round} rounds are lost: leave audit.record out, or start a new run"
            )
        progress.opening([f"note: no {probabilities.NAME}: class probabilities were not recorded from the start"])
        return None
    if earlier is not None and earlier.share != share:
        raise UserError(
            f"audit.window={share:g}: this run was begun with audit.window={earlier.share:g}; resume with that"
        )
    if earlier is not None and cfg.audit.record is True and earlier.stride != stride:
        raise UserError(
            f"audit.record=true: this run was begun with audit.record=auto, which has recorded one of {earlier.stride} "
            "evaluations; resume with that"
        )
    return Recorder(
        federation.dataset,
        federation.held[: 0 if apart else None],
        federation.tested,
        network,
        share,
        evaluations,
        stride,
        earlier,
    )


def _print_differences(earlier: RunRecord, about: RunRecord) -> None:
    """Print how this process differs from the one before, as far as it may change the results."""
    values = {
        "threads": (earlier.threads, about.threads),
        "memory_format": (earlier.memory_format, about.memory_format),
        "device": tuple(auto.device_of_clients(one.executor, one.device) for one in (earlier, about)),
    }
    changed = [f"{name} {then} then, {now} now" for name, (then, now) in values.items() if then != now]
    changed += auto.changed(earlier.executor, about.executor)
    if changed:
        progress.opening([f"note: {', '.join(changed)}; results may differ from an uninterrupted run in the last bits"])


def _setting(cfg: DictConfig, training: Training, federation: Federation) -> str:
    sizes = federation.counts
    names = federation.client_names
    named = names is not None and names != tuple(map(str, range(len(names))))
    called = f" ({some(names)})" if names and named else ""
    return (
        f"{federation.dataset.name}: {len(sizes)} clients{called} of {min(sizes)} to {max(sizes)} samples; "
        f"protocol {cfg.protocol.name}: {training.described()}"
    )


def _refuse_rounds(cfg: DictConfig, overrides: Sequence[str], method: Method) -> None:
    """Refuse an override of ``rounds`` for a method of several stages, which would ignore it.

    Raises:
        UserError: names the keys of the stages' lengths.
    """
    if len(method.stages) == 1 or "rounds" not in map(key_of, overrides):
        return
    lengths = []
    for stage in method.stages:
        unit = "passes" if stage.rounds is None else "rounds"
        key = shortest(cfg, f"method.stages.{stage.name}.{unit}")
        lengths.append(f"{key}={stage.passes if stage.rounds is None else stage.rounds} {unit} of {stage.name}")
    raise UserError(
        f"rounds is for methods of one stage; method={method.name} has {', '.join(lengths)}: set those instead; in a "
        f"sweep over methods protocol.rounds and, for this one, protocol.{method.name}"
    )
