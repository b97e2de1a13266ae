"""What would make a search fail after runs have been trained, found before."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from contextlib import suppress
from pathlib import Path

from hydra.errors import HydraException

from flnl.config import compose
from flnl.config.check import check_config
from flnl.config.override_text import value_of
from flnl.core.errors import UserError
from flnl.instruments.tune.space import Interval, Space
from flnl.record.tuned import Values, overrides_of


def refuse_fractions(space: Space, own: Sequence[str] = ()) -> None:
    """Refuse an interval of fractions for a key that takes whole numbers alone.

    Args:
        space: what is searched.
        own: overrides that add folders of the user's to the search path.

    Raises:
        UserError: naming the interval, and that of whole numbers.
    """
    for axis in space.axes:
        if not isinstance(axis, Interval) or isinstance(axis.low, int):
            continue
        fraction, whole = repr(math.nextafter(axis.low, axis.high)), str(math.ceil(axis.low))
        taken = [_is_right([*own, *_with(space, {axis.key: value})]) for value in (fraction, whole)]
        if taken == [False, True] and int(axis.low) < int(axis.high):
            right = f"{axis.key}=int({value_of(axis.text)})"
            raise UserError(f"{axis.text}: {axis.key} takes whole numbers; write {right}")


def refuse_share(spaces: Iterable[Space], seeds: Sequence[int], option: str, own: Sequence[str] = ()) -> None:
    """Refuse a share of each client's samples that is less than one sample of every client. Data are read.

    Data that cannot be read are left to the runs. Of each space, the first combination is checked.

    Args:
        spaces: those of the studies, with the share among their overrides.
        seeds: the seeds of the runs.
        option: what sets the share, as in ``--share `` or ``share=``.
        own: overrides that add folders of the user's to the search path.

    Raises:
        UserError: naming the option and the least share of two digits that holds out a sample under these seeds.
    """
    from flnl.data.federation.build import from_config  # torch takes seconds to import
    from flnl.run.reuse import of_data

    checked = []
    for space in spaces:
        try:
            cfg = compose.load([*own, *_with(space)])
            check_config(cfg)
        except (HydraException, UserError):
            continue  # which the runs will say
        cfg.centralized = False  # the same samples are held out
        largest, lacking = [], []
        for seed in seeds:
            cfg.seed = seed
            if (data := of_data(compose.resolved(cfg))) in checked:
                continue
            checked.append(data)
            with suppress(UserError):
                federation = from_config(cfg, Path(cfg.cache).expanduser())
                sizes = federation.sizes.values()
                largest.append(max(sizes))
                if not len(federation.validation):
                    lacking.append(seed)
        if lacking:
            share, few = cfg.eval.validation, min(largest)
            raise UserError(
                f"{option}{share:g} holds out no sample under seed {lacking[0]}: no client has more than {few}; "
                + (f"{option}{_least(few):g} holds out one of these" if few > 1 else "choose by another measure")
            )


def _least(count: int) -> float:
    """The least share, of two digits, of which ``count`` samples make at least one.

    >>> _least(6), _least(30), _least(450)
    (0.17, 0.034, 0.0023)
    """
    scale = 10.0 ** (2 + int(math.log10(count - 1)))
    return math.ceil(scale / count) / scale


def _with(space: Space, values: Values | None = None) -> list[str]:
    """The overrides of a run of the first combination, but for ``values``."""
    return [*space.fixed, *overrides_of({**space.first, **(values or {})})]


def _is_right(overrides: Sequence[str]) -> bool:
    """Whether overrides make a configuration that passes its check."""
    try:
        check_config(compose.load(overrides))
    except (HydraException, UserError):
        return False
    return True
