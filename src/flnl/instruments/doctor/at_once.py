"""How many images a second several runs train on one GPU, a process each."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from threading import BrokenBarrierError
from typing import Any

import torch

from flnl.console.cores import usable_cores
from flnl.instruments.doctor.networks import Rate, Setting, Trainer
from flnl.storage.paces import NOISE
from flnl.sweep.job import end_with

SECONDS = 5.0
"""For which all of them train at least."""


def rates(setting: Setting, device: str, precision: int | str) -> Iterator[Rate]:
    """The images a second of 1, 2, 4, ... runs at once, as many as there are cores, until more train no more images.

    Raises:
        Exception: what a run raises, as where the memory is too small.
    """
    runs, best = 1, 0.0
    while runs <= usable_cores():
        rate = joint_rate(runs, setting, device, precision)
        yield rate
        if rate.images_a_second < NOISE * best:
            return
        runs, best = 2 * runs, rate.images_a_second


def joint_rate(runs: int, setting: Setting, device: str, precision: int | str) -> Rate:
    """The images a second of so many runs, while all of them train.

    Raises:
        Exception: what a run raises, as where the memory is too small.
    """
    context = get_context("spawn")  # a process that has used a GPU cannot be forked
    shared = context.Barrier(runs), context.Value("i", runs), torch.get_num_threads(), os.getpid()
    with ProcessPoolExecutor(runs, mp_context=context, initializer=_begin, initargs=shared) as pool:
        done = [pool.submit(_rate, setting, device, precision, SECONDS) for _ in range(runs)]
        errors = [error for one in done if (error := one.exception()) is not None]
        for error in sorted(errors, key=lambda error: isinstance(error, BrokenBarrierError)):
            raise error
        each = [one.result() for one in done]
    return Rate(runs, sum(one.images_a_second for one in each), each[0].stacked)


_shared: list[Any] = []
"""Of a run's process: the barrier at which all wait until they can train, and the number that have not finished."""


def _begin(ready: Any, unfinished: Any, threads: int, parent: int) -> None:
    end_with(parent)
    _shared[:] = ready, unfinished
    torch.set_num_threads(threads)


def _rate(setting: Setting, device: str, precision: int | str, least: float) -> Rate:
    """That of this process over ``least`` seconds or a bit more, while the others train, too."""
    ready, unfinished = _shared
    try:
        trainer = Trainer(setting, device, precision)
        trainer.lengthen(least / 10)
        ready.wait()
        images, begun = 0, time.perf_counter()
        while (seconds := time.perf_counter() - begun) < least:
            trainer.round()
            images += trainer.images
    except BaseException:
        ready.abort()  # the others need not wait
        raise
    finally:
        with unfinished.get_lock():
            unfinished.value -= 1
    while unfinished.value > 0:
        trainer.round()
    return Rate(1, images / seconds, trainer.stacked)
