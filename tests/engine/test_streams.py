"""The random streams of parts are none of the engine's and none of the federation's, whatever parts call them."""

import ast
from pathlib import Path

import numpy as np
import pytest

import flnl
from flnl.core.messages import Clock
from flnl.core.parts import Sampling
from flnl.core.payload import Payload
from flnl.core.streams import OF_FEDERATION, OfEngine, of_part, stream, torch_seed
from tests.toys import mlp, random_federation, task

SOURCE = Path(flnl.__file__).parent
ENGINE = [*(purpose for purpose in OfEngine if purpose != OfEngine.TERM), "term fedprox"]


def first(rng: np.random.Generator) -> int:
    return int(rng.integers(2**62))


@pytest.mark.parametrize("purpose", ENGINE)
def test_a_part_that_names_its_stream_as_the_engine_does_has_its_own(purpose: str) -> None:
    work = task(mlp(4, 3), random_federation([3]).samples(0), client=4, round=2, seed=9)
    own, of = (OfEngine.TERM, "fedprox") if purpose == "term fedprox" else (OfEngine(purpose), "")
    assert first(work.engine_stream(own, of=of)) == first(stream(9, purpose, 2, 4)), "finished runs have drawn this"
    assert first(work.stream(purpose)) != first(work.engine_stream(own, of=of))
    assert first(work.stream(purpose, 1)) != first(work.engine_stream(own, 1, of=of))
    assert work.engine_seed(OfEngine.DROPOUT) == torch_seed(9, "dropout", 2, 4)


@pytest.mark.parametrize("purpose", sorted(OF_FEDERATION))
def test_a_sampler_that_names_its_stream_as_the_noise_of_clients_has_its_own(purpose: str) -> None:
    sampling = Sampling(9, Clock(3, 1), (0,), {0: 1}, Payload(), lambda *_: [])
    assert first(sampling.stream(purpose)) != first(stream(9, purpose, 3))


def test_other_names_are_as_they_are_and_no_two_become_one() -> None:
    work = task(mlp(4, 3), random_federation([3]).samples(0), client=4, round=2, seed=9)
    assert first(work.stream("label privacy")) == first(stream(9, "label privacy", 2, 4))
    names = [*ENGINE, *OF_FEDERATION, "term", "terms", "term ", "part: ", "label privacy"]
    names += [f"part: {name}" for name in names]
    assert len({of_part(name) for name in names}) == len(names)
    assert not {*ENGINE, *OF_FEDERATION} & {of_part(name) for name in names}


def test_every_name_of_the_federation_is_known() -> None:
    """Streams are opened by these names in no other place than here, or by parts, methods and audits."""
    found = {
        call.args[1].value
        for folder in ("core", "data", "engine", "evaluation", "models", "run")
        for file in (SOURCE / folder).rglob("*.py")
        for call in ast.walk(ast.parse(file.read_text()))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Name)
        and call.func.id in ("entropy", "stream", "torch_seed")
        and isinstance(call.args[1], ast.Constant)
    }
    assert found == OF_FEDERATION
