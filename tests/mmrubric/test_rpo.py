"""RPO: pair verdicts to constants, from tables, pair judges or rewards, for groups of 2 and more."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import Criterion, Group, InputError, PairVerdict, Rubric, ScoreTable, advantage

NAN = float("nan")
WIN_A, WIN_B, TIE, INCONSISTENT, FAILED = PairVerdict

with_gaps = st.lists(st.one_of(st.just(NAN), st.integers(-500, 500).map(lambda c: c / 100)), min_size=2, max_size=8)


def table(met: Any) -> ScoreTable:
    criteria = [Criterion(id=f"c{k}", text=f"text {k}") for k in range(len(met[0]))]
    return ScoreTable(Rubric(prompt="p", criteria=criteria), met)


def rpo(groups: Any, **options: Any) -> list[np.ndarray]:
    return advantage.build("rpo", **options)(groups)


def test_rpo_from_a_table() -> None:
    group = Group(table=table([[1, 1], [1, 0]]))
    np.testing.assert_array_equal(rpo([group]), [[1.0, -0.1]])
    np.testing.assert_array_equal(rpo([group], win=1.0, loss=-1.0), [[1, -1]])
    np.testing.assert_array_equal(rpo([group], centered=True), [[0.55, -0.55]])
    np.testing.assert_array_equal(rpo([group], win=9.0, clamp=5.0), [[5, -0.1]])


def test_rpo_from_pair_verdicts() -> None:
    verdicts = {WIN_A: (1, -0.1), WIN_B: (-0.1, 1), TIE: (0, 0), INCONSISTENT: (0, 0), FAILED: (0, 0)}
    for verdict, expected in verdicts.items():
        out = advantage.build("rpo").compute([Group(pairs=((0, 1, verdict),))])[0]
        np.testing.assert_array_equal(out.advantage, expected)
        # Only a failed pair leaves the batch; a tie stays in with advantage 0.
        np.testing.assert_array_equal(out.weight, [verdict != FAILED] * 2)
        assert out.tied == (verdict in (TIE, INCONSISTENT))


def test_rpo_from_rewards() -> None:
    np.testing.assert_array_equal(rpo([[0.2, 0.7], [0.5, 0.5]]), [[-0.1, 1], [0, 0]])
    out = advantage.build("rpo").compute([[0.2, NAN]])[0]
    assert not out.advantage.any() and not out.weight.any()
    np.testing.assert_array_equal(rpo([[0.2, 0.25]], margin=0.1), [[0, 0]])


def test_rpo_takes_pairs_before_table_before_rewards_unless_told() -> None:
    group = Group(rewards=np.array([0.0, 1.0]), table=table([[1], [1]]), pairs=((0, 1, WIN_A),), key="p1")
    np.testing.assert_array_equal(rpo([group]), [[1, -0.1]])
    np.testing.assert_array_equal(rpo([group], source="table"), [[0, 0]])
    np.testing.assert_array_equal(rpo([group], source="rewards"), [[-0.1, 1]])
    with pytest.raises(InputError, match=r"rpo needs Group\.pairs, which group '' does not have"):
        rpo([[0.0, 1.0]], source="pairs")
    with pytest.raises(InputError, match=r"rpo needs Group\.pairs, table or rewards; group 'k' has none"):
        rpo([Group(token_mask=np.ones((2, 3), dtype=bool), key="k")])


def test_rpo_round_robin_takes_the_mean_over_pairs() -> None:
    # Pass counts 2, 1, 1, 0: sample 0 wins 3; 1 and 2 lose one, tie one, win one; 3 loses 3.
    group = Group(table=table([[1, 1], [1, 0], [0, 1], [0, 0]]))
    np.testing.assert_allclose(rpo([group], pairing="round_robin"), [[1, 0.3, 0.3, -0.1]])
    np.testing.assert_allclose(rpo([group], pairing="round_robin", win=1.0, loss=-1.0), [[1, 0, 0, -1]])


def test_rpo_list_map_from_scores() -> None:
    # Ranks 1, 2, 2, 4: 1 - 1.1 (rank - 1) / 3.
    group = Group(table=table([[1, 1], [1, 0], [0, 1], [0, 0]]))
    np.testing.assert_allclose(rpo([group], pairing="list"), [[1, 1 - 1.1 / 3, 1 - 1.1 / 3, -0.1]])
    out = advantage.build("rpo", pairing="list").compute([[0.1, NAN, 0.3]])[0]
    np.testing.assert_allclose(out.advantage, [-0.1, 0, 1])
    np.testing.assert_array_equal(out.weight, [1, 0, 1])


def test_rpo_disjoint_pairs_are_drawn_per_group_and_repeatable() -> None:
    rewards = np.arange(8.0)
    groups = [Group(rewards=rewards, key=f"step {k}") for k in range(20)]
    first, again = rpo(groups), rpo(groups)
    np.testing.assert_array_equal(first, again)
    assert all(sorted(out) == [-0.1] * 4 + [1.0] * 4 for out in first)
    assert len({tuple(out) for out in first}) > 5
    assert not np.array_equal(first, rpo(groups, seed=1))


def test_rpo_refuses_an_odd_group_before_expensive_work() -> None:
    with pytest.raises(InputError, match="even group, got 5"):
        advantage.build("rpo").check_size(5)
    with pytest.raises(InputError, match="even group, got 3"):
        rpo([[0.0, 1.0, 2.0]])
    advantage.build("rpo", pairing="round_robin").check_size(5)


@pytest.mark.parametrize(
    "options",
    [
        {"win": -1.0},
        {"win": NAN},
        {"pairing": "all"},
        {"source": "judge"},
        {"binarize": False},
        {"min_coverage": -1.0},
        {"dependencies": "deep"},
        {"clamp": 0.0},
        {"centered": "yes"},
    ],
)
def test_bad_rpo_options_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(InputError):
        advantage.build("rpo", **options)


@settings(max_examples=50, deadline=None)
@given(with_gaps, st.sampled_from(["round_robin", "list"]), st.randoms(use_true_random=False))
def test_rpo_properties(rewards: list[float], pairing: str, random: Any) -> None:
    order = list(range(len(rewards)))
    random.shuffle(order)
    builder = advantage.build("rpo", pairing=pairing)
    out, moved = builder.compute([rewards])[0], builder.compute([np.array(rewards)[order]])[0]
    np.testing.assert_allclose(moved.advantage, out.advantage[order], atol=1e-12)
    np.testing.assert_array_equal(moved.weight, out.weight[order])
    known = np.flatnonzero(out.weight)
    assert (out.advantage[np.isnan(rewards)] == 0).all() and (out.weight[np.isnan(rewards)] == 0).all()
    for i in known:
        for j in known:
            # Ties count 0 and losses -0.1, so the order in between depends on the constants; the best never
            # falls below the worst.
            if rewards[i] == max(np.array(rewards)[known]) and rewards[j] == min(np.array(rewards)[known]):
                assert out.advantage[i] >= out.advantage[j]


def test_group_take_keeps_pairs_of_kept_samples() -> None:
    group = Group(
        rewards=np.arange(4.0),
        table=table([[1], [0], [1], [0]]),
        pairs=((0, 1, WIN_A), (2, 3, WIN_B)),
        key="k",
    )
    taken = group.take([3, 2])
    assert taken.pairs == ((1, 0, WIN_B),) and taken.size == 2
    np.testing.assert_array_equal(taken.rewards, [3, 2])  # type: ignore[arg-type]
    assert taken.table is not None and taken.table.sample_ids == ("3", "2")
