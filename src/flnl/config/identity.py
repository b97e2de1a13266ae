"""What makes a run what it is: the part of its configuration that counts, and the key that hashes it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import is_dataclass
from typing import Any, get_args

from flnl.config.registry import named, recorded_name, stored_name
from flnl.config.schema import METHOD, Root
from flnl.config.typed_values import field_types
from flnl.core.importing import located
from flnl.core.ranges import Neutral


def flatten(node: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Dotted keys and their values; an empty mapping is a value."""
    if isinstance(node, Mapping) and node:
        for key, value in node.items():
            yield from flatten(value, f"{prefix}.{key}" if prefix else str(key))
    else:
        yield prefix, node


FORMAT = 5
"""Of keys, as records name it. Keys of earlier formats are computed again: those of the first hashed the paths of
classes, those of the second the folder of published data sets, those of the third no order of stages, those of the
fourth where data lie."""

PLACES = (
    *("dataset.root", "partition.path", "noise.root", "noise.path"),
    *("dataset.file", "dataset.labels", "dataset.test", "dataset.texts"),
)
"""Keys whose values say where a run's data lie. A run is the same wherever they lie, so keys do not have them; what
they hold tells runs apart (``RunRecord.told_by``)."""

OF_FEDERATION = ("dataset.", "partition.", "noise.", "shift.", "data_seed")
"""Beginnings of the keys of what clients hold."""

NOT_OF_THE_KEY = (
    "output",
    "output_root",
    "cache",
    "products",
    "figures",
    "wandb",
    "logger",
    "device",
    "executor",
    "threads",
    "reproducible",
    "memory_format",
    "client_memory",
    "eval.memorization",
    "eval.cohort",
    "audit",
    "checkpoint",
    "max_rounds",
    "resume",
    "protocol",
    "dataset.download",
    "dataset.mirror",
    "dataset.timeout",
    "dataset.threads",
    "dataset.in_memory",
    "dataset.memory_limit",
    "dataset.fingerprint",
    "dataset.cache",
    "dataset.noise_rate",
)
"""What may differ between two runs that are the same, besides ``PLACES``: where they write, how they are run, how data
are fetched.

A protocol's values count where they are used, so a section for one more method changes no other's key. So does a data
set's noise rate.
"""

STAGES = "method.stages"
USUAL_ORDER = ("preprocess", "pretrain", "warmup", "correct", "finetune", "usual", "final")
"""The order in which stages of these names run unless an identity says otherwise. It never changes, as keys depend on
it: another name is not added."""


def outside(key: str) -> bool:
    """Whether a dotted key is one of ``NOT_OF_THE_KEY``, or below one."""
    return any(key == out or key.startswith(f"{out}.") for out in NOT_OF_THE_KEY)


def identity(plain: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a resolved configuration that makes a run what it is, as dotted keys and values."""
    return _relevant(_canonical(_read(plain), Root))


def recorded_identity(config: Mapping[str, Any], written: Mapping[str, Any]) -> dict[str, Any]:
    """The identity of a recorded run, from its configuration and what was ``written`` of it.

    In a record of the first format that is nothing: it is worked out from the configuration, whose classes are not
    imported.
    """
    if written:
        return _without_places({**written, **_order_of_stages(config)})
    return _relevant(_canonical(_read(config), Root, imports=False))


def settings(plain: Mapping[str, Any]) -> dict[str, Any]:
    """As ``identity``, with a method's short keys, and with values that are neutral.

    These are the keys that a person types and reads. No class is imported to tell them.
    """
    return _relevant({key: _one_form(value) for key, value in named(plain, recorded_name).items()})


def run_key(plain: Mapping[str, Any]) -> str:
    """The key of a resolved configuration: sha256 of its identity, 64 hex digits."""
    return digest(identity(plain))


def placed_key(plain: Mapping[str, Any]) -> str:
    """As ``run_key``, of the configuration with the places of its data: it names folders of runs below one root.

    So runs of one configuration on different data lie beside each other. Where the contents need no place it is
    the run's key.
    """
    return digest({**identity(plain), **places(plain)})


def places(plain: Mapping[str, Any]) -> dict[str, str]:
    """Where a configuration's data lie, by the keys of ``PLACES``, as far as the contents may be others elsewhere.

    Files that are compared with the published ones are the same wherever they lie. So is a file of labels beside them,
    which is compared with the true labels. Only files that can be downloaded have published checksums; of others, such
    as Clothing1M's images, the contents may be others.
    """
    parts = {group: part for group, part in plain.items() if isinstance(part, Mapping)}
    found = {}
    for key in PLACES:
        group, _, name = key.partition(".")
        if isinstance(value := parts.get(group, {}).get(name), str):
            found[key] = value
    dataset = parts.get("dataset", {})
    if dataset.get("verify") is True and "download" in dataset:
        root = found.pop("dataset.root", None)
        if found.get("noise.root") == root:
            found.pop("noise.root", None)
    return found


def digest(values: Mapping[str, Any]) -> str:
    """The sha256 of an identity, 64 hex digits."""
    return hashlib.sha256(_text(values).encode()).hexdigest()


def _read(plain: Mapping[str, Any]) -> dict[str, Any]:
    """A configuration without the keys of ``method`` that no part is built from."""
    method = plain.get("method")
    if not isinstance(method, Mapping):
        return {**plain}
    read = {key: value for key, value in method.items() if key in METHOD}
    if read.get("networks") == 1:  # as it was before there could be two
        del read["networks"]
    return {**plain, "method": read}


def differences(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Settings of two runs that differ, with both values; a key that one side lacks is "absent" there.

    >>> differences({"train": {"lr": 1}, "threads": 1}, {"train": {"lr": 2}, "threads": 2})
    {'train.lr': (1, 2)}
    """
    mine, other = settings(ours), settings(theirs)
    both = {k: (mine.get(k, "absent"), other.get(k, "absent")) for k in sorted(mine.keys() | other.keys())}
    return {key: values for key, values in both.items() if values[0] != values[1]}


def _relevant(node: Mapping[str, Any]) -> dict[str, Any]:
    values = {key: value for key, value in flatten(node) if not outside(key)}
    return _without_places({**values, **_order_of_stages(node)})


def _order_of_stages(node: Mapping[str, Any]) -> dict[str, Any]:
    """The names of a configuration's stages as they follow each other, which keys and values alone do not tell.

    It is left out of a single stage, and of ``USUAL_ORDER``.
    """
    method = node.get("method")
    stages = method.get("stages") if isinstance(method, Mapping) else None
    names = [str(name) for name in stages] if isinstance(stages, Mapping) else []
    usual = [name for name in USUAL_ORDER if name in names]
    return {} if len(names) < 2 or names == usual else {STAGES: names}


def _without_places(values: Mapping[str, Any]) -> dict[str, Any]:
    """An identity without where data lie; that there is no such file, null, stays."""
    return {key: value for key, value in values.items() if not (key in PLACES and isinstance(value, str))}


def _canonical(node: Any, schema: type | None = None, *, imports: bool = True) -> Any:
    """A node with stored names for classes, without neutral values; ``schema`` is the class that has its fields.

    A section of neutral values alone is left out, too.

    Where nothing may be imported, a part's neutral values are not known, and stay.
    """
    if isinstance(node, list):
        return [_canonical(value, imports=imports) for value in node]
    if not isinstance(node, Mapping):
        return _one_form(node)
    target = node.get("_target_")
    if target is not None:
        schema = located(str(target)) if imports else None
    fields = field_types(schema) if schema is not None and is_dataclass(schema) else {}
    name = stored_name if imports else recorded_name
    values = {} if target is None else {"_target_": name(str(target))}
    for key, value in node.items():
        if key in ("_target_", "_partial_"):
            continue
        hint = fields.get(key)
        canonical = _canonical(value, hint if isinstance(hint, type) else None, imports=imports)
        if canonical == {} and value:
            continue
        if not any(_text(canonical) == _text(_one_form(neutral.value)) for neutral in _neutrals(hint)):
            values[str(key)] = canonical
    return values


def _neutrals(hint: Any) -> Iterator[Neutral]:
    return (one for one in get_args(hint)[1:] if isinstance(one, Neutral))


def _text(value: Any) -> str:
    return json.dumps(value, sort_keys=True, default=str)


def _one_form(value: Any) -> Any:
    """1.0 and 1 are the same value."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, Mapping):
        return {str(key): _one_form(v) for key, v in value.items()}
    return [_one_form(v) for v in value] if isinstance(value, list) else value
