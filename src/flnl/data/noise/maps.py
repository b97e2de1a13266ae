"""Class maps of asymmetric noise: which class each class is mistaken for.

A map is int64 [C]; a class that maps to itself never changes. The available maps depend on the data set: on its
name, which may be the user's, and its number of classes.
"""

from typing import Literal

import numpy as np

from flnl.core.errors import UserError
from flnl.core.images import Labels
from flnl.data.dataset import Dataset

MapName = Literal["auto", "patrini", "cdr", "gce", "swaps", "superclass", "block5", "pair", "pair_previous"]

CIFAR100_SUPERCLASS = (
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11),
    *(6, 11, 5, 10, 7, 6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5),
    *(5, 19, 8, 8, 15, 13, 14, 17, 18, 10, 16, 4, 17, 4, 2, 0, 17, 4, 18, 17),
    *(10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16, 12, 9, 13, 15, 13),
    *(16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
)
"""The superclass of each fine class of CIFAR-100; fine classes are numbered alphabetically, not by superclass."""

_MAPS: dict[str, dict[str, dict[int, int]]] = {
    "cifar10": {
        # Patrini et al.: truck to automobile, bird to airplane, deer to horse, cat and dog to each other
        "patrini": {9: 1, 2: 0, 4: 7, 3: 5, 5: 3},
        # the NLS repository's "pair": five swaps
        "swaps": {9: 1, 1: 9, 2: 0, 0: 2, 4: 7, 7: 4, 3: 5, 5: 3, 6: 8, 8: 6},
    },
    "mnist": {
        "patrini": {7: 1, 2: 7, 5: 6, 6: 5, 3: 8},
        "cdr": {2: 7, 5: 6, 6: 5, 3: 8},  # CDR does not change sevens
    },
    "fashionmnist": {
        "cdr": {0: 6, 2: 4, 5: 7, 7: 5},
        # GCE, as reported by others: boot to sneaker to sandal, pullover to shirt, coat and dress to each other
        "gce": {9: 7, 7: 5, 2: 6, 4: 3, 3: 4},
    },
}
_SAME_CLASSES = {"digits": "mnist"}
_AUTO = {
    "cifar10": "patrini",
    "cifar100": "superclass",
    "mnist": "patrini",
    "digits": "patrini",
    "fashionmnist": "cdr",
    "svhn": "pair",  # FedNoisy; digits have no canonical map
}


def class_map(name: MapName, dataset: Dataset) -> Labels:
    """The map ``name`` for a data set, [C]; ``auto`` is the map customary for it.

    Raises:
        UserError: if the data set has no such map.
    """
    C = dataset.num_classes
    key = "".join(filter(str.isalnum, dataset.name.lower()))
    chosen = _AUTO.get(key) if name == "auto" else name
    named = _MAPS.get(_SAME_CLASSES.get(key, key), {})
    specific = {of: pairs for of, pairs in named.items() if max(*pairs, *pairs.values()) < C}
    superclasses = key == "cifar100" and len(CIFAR100_SUPERCLASS) == C
    classes = np.arange(C)
    if chosen == "pair":
        return (classes + 1) % C
    if chosen == "pair_previous":
        return (classes - 1) % C
    if chosen == "block5" and C % 5 == 0:
        return classes // 5 * 5 + (classes + 1) % 5
    if chosen == "superclass" and superclasses:
        return superclass_map()
    if chosen in specific:
        mapping = classes.copy()
        mapping[list(specific[chosen])] = list(specific[chosen].values())
        return mapping
    known = ["pair", "pair_previous", *(["block5"] if C % 5 == 0 else []), *specific]
    known += ["superclass"] if superclasses else []
    whose = f"{dataset.name} with {C} classes" if key in _AUTO else dataset.name
    raise UserError(f"noise.map={name}: {whose} has no such map; choose one of {', '.join(known)}")


def superclass_map() -> Labels:
    """CIFAR-100: each fine class maps to the next of the five in its superclass, cyclically; [100]."""
    coarse = np.array(CIFAR100_SUPERCLASS)
    mapping = np.empty(100, np.int64)
    for superclass in range(20):
        members = np.flatnonzero(coarse == superclass)
        mapping[members] = np.roll(members, -1)
    return mapping


def local_map(mapping: Labels, present: Labels) -> Labels:
    """Restrict ``mapping`` [C] to the classes ``present`` (ascending) on a client; absent classes map to themselves.

    If a class's partner is absent, it maps to the next present class along its cycle of the map (so CIFAR-100 stays in
    the superclass if possible), else to the next present class in circular order. As in FedNoisy, which FedES uses.

    >>> local_map(np.array([0, 1, 0, 5, 7, 3, 6, 7, 8, 1]), np.array([3, 4, 8]))[[3, 4, 8]].tolist()
    [4, 8, 8]
    """
    here = set(present.tolist())
    local = np.arange(len(mapping))
    for y, following in zip(present.tolist(), np.roll(present, -1).tolist(), strict=True):
        if mapping[y] != y:
            local[y] = next((c for c in _partners(mapping, y) if c in here), following)
    return local


def _partners(mapping: Labels, y: int) -> list[int]:
    """The classes that ``y`` may become, in order of preference: the rest of its cycle, or its only partner."""
    path = [int(mapping[y])]
    seen = {y}
    while path[-1] not in seen:
        seen.add(path[-1])
        path.append(int(mapping[path[-1]]))
    return path[:-1] if path[-1] == y else path[:1]
