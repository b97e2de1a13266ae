"""What parts of any slot find out, by what they keep."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from flnl.core.findings import Finding, Scalar
from flnl.core.messages import ClientState
from flnl.core.payload import Payload
from flnl.engine import loop
from flnl.parts.batches import Plain
from flnl.parts.losses.cross_entropy import CrossEntropy
from tests.properties.parts import Judge, Momentum, Pull, Trust, TrustedMean
from tests.toys import method, mlp, random_federation, rounds, stage


@dataclass(frozen=True)
class Remembering(Pull):
    """Finds out how often clients were visited, whose states it is given."""

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        return tuple(Scalar(f"visits_{client}", float(kept["visits"])) for client, kept in state.items())


@dataclass(frozen=True)
class Fast(Momentum):
    """Finds out how many tensors its velocity has."""

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        return () if state is None else (Scalar("velocities", float(len(state))),)


@dataclass(frozen=True)
class Knowing(Plain):
    """Finds out what the server knows."""

    def findings(self, state: Any, clients: Mapping[int, ClientState], known: Payload) -> tuple[Finding, ...]:
        assert state is None
        return (Scalar("trust", float(known.one(Trust).values.sum())), Scalar("clients", float(len(clients))))


def test_a_part_of_any_slot_finds_something_in_what_it_keeps() -> None:
    """A part that acts in both stages says so once. Client 1 holds nothing, so it is not visited."""
    term, judge = Remembering(0.1), {"judge": Judge()}
    local = {"cross_entropy": CrossEntropy(), "pull": term}
    first, last = (
        stage(local=local, server=Fast(0.5), exchange=judge, aggregator=TrustedMean("samples")),
        stage(local=local, batch=Knowing()),
    )
    toy, sizes = method(first, last, exchange=judge), {0: 3, 1: 0, 2: 4}
    assert toy.findings(loop.initial_state({}), sizes)["local/pull"] == ()
    for number, result in enumerate(rounds(toy, random_federation([3, 0, 4]), mlp(4, 3)), start=1):
        found = toy.findings(result.state, sizes)
        trust = result.state.server.exchanges["judge"]["trust"].sum()
        assert found == {
            "local/pull": (Scalar("visits_0", number), Scalar("visits_2", number)),
            "server": (Scalar("velocities", 4),),
            "batch": (Scalar("trust", float(trust)), Scalar("clients", 2)),
        }
