"""Several filters as one."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest

from mmrubric import InputError, filters
from mmrubric.aggregate import Context
from mmrubric.group import Group
from mmrubric.rubric import Criterion, Rubric
from mmrubric.scores import ScoreTable

RUBRIC = Rubric(prompt="a cat", criteria=(Criterion(id="a", text="A cat."),))


def test_names_and_options() -> None:
    assert filters.names() == ["low_std", "saturated"]
    with pytest.raises(InputError, match="unknown filter 'high_std'; known: low_std, saturated"):
        filters.Chain({"high_std": {}})
    with pytest.raises(InputError, match="unknown option std; known: min_std"):
        filters.Chain({"low_std": {"std": 0.1}})


def test_without_filters_everything_is_kept() -> None:
    none = filters.Chain({})
    assert none.keep([Group(rewards=np.zeros(2))]).tolist() == [True]
    assert none.bans() == {} and none.state_dict() == {}


def test_a_chain_asks_every_filter() -> None:
    chain = filters.Chain({"low_std": {}, "saturated": {"patience": 1}})
    solved = Group(rewards=np.ones(2), table=ScoreTable(RUBRIC, np.ones((2, 1))))
    mixed = Group(rewards=np.array([0.0, 1.0]), table=ScoreTable(RUBRIC, np.array([[0.0], [1.0]])))
    assert chain.keep([solved, mixed]).tolist() == [False, True]
    chain.observe([solved, mixed], [Context(prompt_id="p"), Context(prompt_id="q")])
    assert chain.bans() == {"p": math.inf}
    other = filters.Chain({"saturated": {"patience": 1}, "low_std": {}})
    other.load_state_dict(json.loads(json.dumps(chain.state_dict())))
    assert other.bans() == {"p": math.inf}
    with pytest.raises(InputError, match="checkpoint holds filters"):
        filters.Chain({"low_std": {}}).load_state_dict(chain.state_dict())
