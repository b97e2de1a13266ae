"""Chooses the executor for ``executor=auto``: a rule on the configuration and the kind of device.

The rule does not depend on timings or load: two runs with the same configuration use the same executor, and a resumed
run keeps the one it started with.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import Any, Literal

import torch
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from torch import Tensor, nn

from flnl.config import compose, registry
from flnl.console.cores import multiplies_bf16, usable_cores
from flnl.core.execution import BLOCK, Executor, ExecutorChoice, described
from flnl.core.importing import located
from flnl.core.method import Method
from flnl.core.training import Training
from flnl.engine.executors.stacked import Stacked
from flnl.engine.executors.worker_context import Inner
from flnl.engine.local.batching import batch_sizes, steps_of
from flnl.engine.local.sgd import LocalTraining
from flnl.engine.network import Network
from flnl.engine.stacked.eligibility import why_not
from flnl.record.run import RESULT

STACKED_PARAMETERS = 100_000
"""Up to this many parameters, overhead dominates a step's cost. An MLP on digits has 4,810, LeNet-5 62,006."""
STACKED_MULTIPLY_ADDS = 2_500_000
"""Multiply-adds of a forward pass on one batch up to which overhead dominates. With batches of 10, the MLP has 0.05
million and the CNN on digits 0.8: stacking ten clients halves the time or better."""
SMALL_STACK_MULTIPLY_ADDS = 50_000_000
"""The same, up to which stacks of three clients or two, channels last, pay. LeNet-5 has 6.5 million with batches of 10
and 42 with 64: a client takes 0.7 of its time alone. Ten clients in one stack leave the cache and take longer."""
STACKED_CLIENTS = 4
"""Smallest cohort that is worth stacking."""
STEP = 150_000
"""What a step costs besides its batch, in multiply-adds of a forward pass: a step on a batch of 10 takes 0.11 ms for
the MLP and 0.55 ms for the CNN on digits."""
DIVIDED_ROUND = 200_000_000
"""Multiply-adds of a round, with ``STEP`` for each step, from which stacks are worth sending to workers. Rounds of ten,
twenty and a hundred clients with the MLP have 70, 140 and 700 million; of ten with the CNN 330. Below, a stack of the
whole cohort takes no longer than its halves in two workers."""

WORKERS = ("processes", "ray")
"""Names of the executors whose workers run clients as their inner executor does."""

ALONE = ("BasicLauncher", "SlurmLauncher")
"""Launchers whose jobs have their cores to themselves: one job at a time, or Slurm's allocation for each."""


@dataclass(frozen=True)
class Auto(ExecutorChoice):
    """The candidates: a factory for each executor.

    ``divided`` stacks the parts of a cohort, ``small`` two or three clients; both are run in this process, or in the
    workers of ``processes``.
    """

    sequential: Inner
    stacked: Inner
    divided: Inner
    small: Inner
    processes: Inner


Choice = Literal["sequential", "stacked", "divided", "small", "processes", "divided in processes", "small in processes"]


@dataclass(frozen=True)
class Work:
    """Inputs of the rule."""

    model: str  # name of the model's class
    parameters: int
    multiply_adds: int  # multiply-adds of a forward pass on the largest batch
    cohorts: Mapping[str, int]  # clients in a cohort, by stage
    device: str  # "cpu" or "cuda"
    cores: int  # processes with this one's number of threads that fit the cores
    shared: bool = False  # other jobs use the same cores
    unstackable: str | None = None  # why clients cannot be stacked; None if they can
    steps: int = 0  # of the largest round, with clients of mean size

    @classmethod
    def of(cls, cfg: DictConfig, method: Method, training: Training, network: Network, sizes: Sequence[int]) -> Work:
        """The work of a run of ``method`` with clients of these ``sizes``, numbers of samples."""
        clients, of_stages = len(sizes), [stage.training(training) for stage in method.stages]
        return cls(
            model=registry.stored_name(str(cfg.model._target_)),
            parameters=sum(p.numel() for p in network.module.parameters()),
            multiply_adds=multiply_adds(network) * max(one.batch_size for one in of_stages),
            cohorts={stage.name: stage.size(clients) for stage in method.stages},
            device=network.device.type,
            cores=max(1, usable_cores() // torch.get_num_threads()),
            shared=_beside_others(),
            unstackable=unstackable(method, training, network),
            steps=max(
                stage.size(clients) * _steps(one, sizes) for stage, one in zip(method.stages, of_stages, strict=True)
            ),
        )

    @property
    def round(self) -> int:
        """Multiply-adds of the largest round, with ``STEP`` for each step."""
        return self.steps * (self.multiply_adds + STEP)


def unstackable(method: Method, training: Training, network: Network) -> str | None:
    """Why some stage of the method cannot stack clients; None if all stages can."""
    for stage in method.stages:
        job = LocalTraining(stage.training(training), stage.batch, stage.local, stage.gradient, stage.exchange)
        if (reason := why_not(job, network)) is not None:
            return reason
    return None


def _steps(training: Training, sizes: Sequence[int]) -> int:
    """Mean number of steps of a visit, rounded up."""
    batches = (batch_sizes(size, training.batch_size, join_last_of_one=False) for size in sizes)
    return -(-sum(steps_of(training, of_client) for of_client in batches) // max(1, len(sizes)))


def _beside_others() -> bool:
    """Whether this is a job of a sweep that runs several jobs on the same cores at a time."""
    if not HydraConfig.initialized():
        return False
    chosen = HydraConfig.get()
    launcher = str(chosen.launcher._target_).rpartition(".")[2]
    return chosen.mode == RunMode.MULTIRUN and launcher not in ALONE


def multiply_adds(network: Network) -> int:
    """Multiply-adds of the network's linear layers and convolutions in a forward pass on one image."""
    counts: list[int] = []

    def count(layer: Any, _: Any, output: Tensor) -> None:
        counts.append(output.numel() * layer.weight[0].numel())

    multiplying = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
    layers = [layer for layer in network.module.modules() if isinstance(layer, multiplying)]
    hooks = [layer.register_forward_hook(count) for layer in layers]
    inputs = network.transform.example((1,), torch.Generator().manual_seed(0)).to(network.device)
    mode = network.module.training
    network.module.eval()
    try:
        with torch.no_grad():
            network.module(inputs.to(network.dtype) if inputs.is_floating_point() else inputs)
    finally:
        network.module.train(mode)
        for hook in hooks:
            hook.remove()
    return sum(counts)


def choose(work: Work) -> tuple[Choice, str]:
    """Return the chosen executor, and the reason.

    The bits of a run depend on whether and how clients are stacked. On a CPU, this is chosen by the network, the method
    and the cohort alone; the number of cores decides only whether there are workers.
    """
    cohort = max(work.cohorts.values())
    if work.device != "cpu":
        if work.unstackable is None:
            return "stacked", "one device for all clients of a cohort"
        return "sequential", f"one device, and {work.unstackable}"
    if work.parameters > STACKED_PARAMETERS or work.multiply_adds > SMALL_STACK_MULTIPLY_ADDS:
        reason = f"{work.model}'s step is too long to stack on a CPU"
    elif cohort < STACKED_CLIENTS:
        reason = f"cohorts of {cohort} are too small to stack"
    elif work.unstackable is not None:
        reason = work.unstackable
    elif work.multiply_adds > STACKED_MULTIPLY_ADDS:
        return _here_or_in_workers(work, "small", f"{work.model}'s step is longer, so {{}} small stacks")
    elif cohort < 2 * BLOCK or work.round < DIVIDED_ROUND:
        return "stacked", f"{work.model}'s step is short, so clients are trained in a stack"
    else:
        return _here_or_in_workers(
            work, "divided", f"{work.model}'s step is short and a round has many, so {{}} stacks"
        )
    if work.cores < 2:
        return "sequential", f"{reason}, and there is one core"
    if cohort < 2:
        return "sequential", "one client runs at a time"
    if work.shared:
        return "sequential", f"{reason}, and the jobs of the sweep share the cores"
    return "processes", f"{reason}{_chains(work.cohorts)}"


def _here_or_in_workers(work: Work, inner: Literal["divided", "small"], reason: str) -> tuple[Choice, str]:
    """Stacks in this process on one core or beside other jobs, else in workers; ``reason`` has a place for who."""
    if work.cores < 2 or work.shared:
        return inner, reason.format("this process trains")
    in_workers: Choice = "divided in processes" if inner == "divided" else "small in processes"
    return in_workers, reason.format("workers train")


def _chains(cohorts: Mapping[str, int]) -> str:
    alone = [name for name, size in cohorts.items() if size == 1]
    return f"; {' and '.join(alone)} runs one client at a time under any" if alone else ""


def settled(cfg: DictConfig, work: Work, network: Network, earlier: Any, folder: Path) -> tuple[Executor, str]:
    """Build the executor of a run; return it with a line that names it and gives the reason.

    If clients run one by one in any stage, this imports Lightning, so that workers which are forked share it.

    Args:
        cfg: the run's configuration.
        work: inputs of the rule.
        network: the network to run clients on.
        earlier: when resuming, the record of the executor that the run started with; else None.
        folder: the run's folder, for messages.
    """
    plain: Any = _as_begun(OmegaConf.to_container(cfg.executor, resolve=True), earlier)
    if located(str(plain["_target_"])) is not Auto:
        executor, reason = compose.build(plain)(network), "as asked"
        if _stacks(described(executor)) and work.unstackable is not None:
            reason += f"; where they cannot be stacked, clients run one by one: {work.unstackable}"
    elif earlier:
        begun = _started_as_now(_record(earlier), plain)
        node = registry.restored("executor", _node(begun), str(folder / RESULT))
        executor, reason = compose.build(node)(network), "as the run began"
    else:
        name, reason = choose(work)
        inner, _, workers = name.partition(" in ")
        node = {**plain[workers], "inner": plain[inner]} if workers else plain[name]
        executor = compose.build(node)(network)
        reason += _advice(work, network)
    if work.unstackable is not None or not _stacks(described(executor)):
        importlib.import_module("flnl.engine.local.lightning")
    if isinstance(executor, Stacked) and executor.limitation:
        reason += f"; {executor.limitation}"
    return executor, f"executor: {shown(described(executor))}: {reason}"


def _advice(work: Work, network: Network) -> str:
    """What else would train faster, only where it was measured: long steps of convolutions on a CPU with AMX."""
    convolves = any(isinstance(layer, nn.Conv2d) for layer in network.module.modules())
    long = work.device == "cpu" and work.multiply_adds > SMALL_STACK_MULTIPLY_ADDS
    if long and convolves and network.placement.precision == "32-true" and multiplies_bf16():
        measured = "precision=bf16 has trained a residual network 1.9 times as fast"
        return f"; this CPU has AMX, with which {measured} (another run, with other numbers)"
    return ""


def as_recorded(recorded: Mapping[str, Any] | str, auto: Mapping[str, Any], source: str) -> dict[str, Any]:
    """The configuration of an executor that computes the bits of a recorded one, whoever ran the clients there.

    Where workers did, those of this machine do.

    Args:
        recorded: what a record tells of the executor.
        auto: the resolved configuration of ``executor=auto``.
        source: the record's file, for messages.

    Raises:
        UserError: if the record tells of no executor, or of values that it does not take.
    """
    node = registry.restored("executor", _node(_numerical(_record(recorded))), source)
    return {**auto["processes"], "inner": node} if _record(recorded).get("name") in WORKERS else node


def overrides_of(recorded: Mapping[str, Any] | str) -> list[str]:
    """Overrides that choose an executor of a recorded one's bits: where workers ran clients, what each of them ran."""
    values = dict(_numerical(_record(recorded)))
    texts = {key: value if isinstance(value, str) else json.dumps(value) for key, value in values.items()}
    return [f"executor={texts.pop('name')}", *(f"executor.{key}={text}" for key, text in texts.items())]


def _as_begun(node: Any, earlier: Any) -> Any:
    """With what a resumed run's first record says of the layout and of graphs where the device would choose."""
    if not earlier or _record(earlier).get("name") != "stacked":
        return node
    begun = _numerical(_record(earlier))
    return {**node, **{key: begun[key] for key in ("memory_format", "graphs") if node.get(key) == "auto"}}


def _started_as_now(record: Mapping[str, Any], plain: Mapping[str, Any]) -> Mapping[str, Any]:
    """A recorded executor whose workers start as configured now: the threads and the device may be others by now."""
    if record.get("name") != "processes":
        return record
    return {**record, "start": plain["processes"].get("start", "auto")}


def shown(recorded: Mapping[str, Any] | str) -> str:
    """A short description of an executor, such as ``processes, 2 workers``."""
    record = _record(recorded)
    inner, workers = _record(record.get("inner", "sequential")).get("name"), record.get("workers")
    parts = [
        str(record.get("name")),
        *([f"{workers} workers"] if workers else []),
        *([str(inner)] if inner != "sequential" else []),
    ]
    return ", ".join(parts)


def changed(then: Mapping[str, Any] | str, now: Mapping[str, Any] | str) -> list[str]:
    """What changes the last bits between two recorded executors, such as ``executor's stack 20 then, 10 now``."""
    before, after = _numerical(_record(then)), _numerical(_record(now))
    if not any(map(_stacks, (before, after))):
        return []  # clients run one by one, whoever runs them
    if before.get("name") != after.get("name"):
        return [f"executor {before.get('name')} then, {after.get('name')} now"]
    side_by_side = before.get("graphs") == after.get("graphs") == "branches"
    free = ("stack", "memory", "split") if side_by_side else ()  # branches do not depend on who is beside them
    keys = [key for key in after if key in before and before[key] != after[key] and key not in free]
    return [f"executor's {key} {before[key]} then, {after[key]} now" for key in keys]


def _numerical(record: Mapping[str, Any]) -> Mapping[str, Any]:
    """What of a recorded executor the bits of a run depend on: how clients are run, not who runs them.

    Values that early records lack were the defaults of their fields; the earliest have a name alone.
    """
    if record.get("name") in WORKERS:
        return _numerical(_record(record.get("inner", "sequential")))
    if record.get("name") == "stacked":
        return {**{f.name: f.default for f in fields(Stacked) if f.init and f.default is not MISSING}, **record}
    return record


def device_of_clients(recorded: Mapping[str, Any] | str, device: str | None) -> str | None:
    """The kind of device of clients in a run on ``device``: Ray's workers may have GPUs where this process has none."""
    return "cuda" if _record(recorded).get("num_gpus") else device and device.partition(":")[0]


def _stacks(record: Mapping[str, Any]) -> bool:
    """Whether an executor of this record stacks clients, itself or in its workers."""
    return "stacked" in (record.get("name"), record.get("inner", {}).get("name"))


def _record(recorded: Mapping[str, Any] | str) -> Mapping[str, Any]:
    """A recorded executor as a mapping, in the present words.

    Early records hold only its name. No record says auto of graphs on a GPU, but the early ones, of recorded stacks.
    """
    record = recorded if isinstance(recorded, Mapping) else {"name": recorded}
    if record.get("name") == "stacked" and record.get("graphs", "auto") == "auto":
        return {**record, "graphs": "stacks"}
    return record


def _node(record: Mapping[str, Any]) -> dict[str, Any]:
    """The configuration of a recorded executor, with the stored name of its class."""
    settings = {k: _node(_record(v)) if isinstance(v, Mapping) else v for k, v in record.items() if k != "name"}
    return {**settings, "_partial_": True, **({"_target_": record["name"]} if "name" in record else {})}
