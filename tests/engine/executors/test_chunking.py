"""How work is cut: every task once, whole blocks while there is plenty, the largest first, groups never broken."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flnl.core.execution import BLOCK
from flnl.engine.executors.chunking import plan


def alone(count: int) -> list[list[int]]:
    return [[i] for i in range(count)]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(2, 9), st.integers(1, 12), st.integers(0, 2**30)
)
def test_every_task_is_in_one_piece_and_no_group_is_broken(
    sizes: list[int], workers: int, together: int, seed: int
) -> None:
    order = sorted(range(len(sizes)), key=lambda i: (sizes[i] * seed) % 101) if seed % 2 else list(range(len(sizes)))
    groups = [sorted(order[i : i + together]) for i in range(0, len(order), together)]
    pieces = plan(sizes, groups, workers)
    assert sorted(i for piece in pieces for i in piece.positions) == list(range(len(sizes)))
    for piece in pieces:
        assert list(piece.positions) == sorted(piece.positions)
        held = set(piece.positions)
        for group in groups:
            assert held.isdisjoint(group) or held >= set(group)
        if piece.whole:
            blocks = {i // BLOCK for i in held}
            assert held == {i for i in range(len(sizes)) if i // BLOCK in blocks}


def test_equal_clients_on_two_workers() -> None:
    """Twenty: three blocks go whole; the last is cut up, so that both end at about the same time."""
    pieces = plan([7] * 20, alone(20), 2)
    assert [piece.whole for piece in pieces] == [True] * 3 + [False] * 5
    assert [piece.positions for piece in pieces[:3]] == [(0, 1, 2, 3, 4), (5, 6, 7, 8, 9), (10, 11, 12, 13, 14)]
    assert [piece.positions for piece in pieces[3:]] == [(15,), (16,), (17,), (18,), (19,)]


def test_few_clients_go_one_by_one_the_largest_first() -> None:
    pieces = plan([3, 9, 5], alone(3), 2)
    assert [(piece.positions, piece.whole) for piece in pieces] == [((1,), False), ((2,), False), ((0,), False)]


@pytest.mark.parametrize("workers", [2, 3, 8])
def test_no_worker_is_left_with_a_block_while_the_others_wait(workers: int) -> None:
    sizes = [100 if i < 5 else 1 for i in range(50)]
    pieces = plan(sizes, alone(50), workers)
    assert {piece.positions for piece in pieces[:5]} == {(0,), (1,), (2,), (3,), (4,)}
    assert pieces[5].whole
