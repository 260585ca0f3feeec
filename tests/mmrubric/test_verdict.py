"""Verdicts: a failure is a type, never a number."""

from __future__ import annotations

import json
from typing import Any

import pytest

from mmrubric import Cost, Failure, InputError, Verdict


def test_unknown_is_none_whatever_its_cause() -> None:
    assert Verdict("s", "c", None, failure=Failure.timeout).met is None
    assert Verdict("s", "c", None, applicable=False).failure is None
    assert not Verdict("s", "c", None).known and Verdict("s", "c", 0).known


@pytest.mark.parametrize("met", [-0.1, 1.1, float("nan"), float("inf"), "yes"])
def test_met_outside_its_range_is_refused(met: Any) -> None:
    with pytest.raises(InputError, match="sample 's' on criterion 'c'"):
        Verdict("s", "c", met)


def test_a_failure_carries_no_number() -> None:
    with pytest.raises(InputError, match="met must be None"):
        Verdict("s", "c", 0.0, failure=Failure.refused)
    with pytest.raises(InputError, match="met must be None"):
        Verdict("s", "c", 1.0, applicable=False)
    with pytest.raises(InputError, match="unknown failure 'tired'; known: refused, truncated"):
        Verdict("s", "c", None, failure="tired")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "verdict",
    [
        Verdict("s", "c", 0.25, reason="half", read="logprob", cost=Cost(1, 20, 3, 0.5)),
        Verdict("s", "c", None, failure=Failure.unparsable, read="json"),
        Verdict("s", "c", None, applicable=False),
    ],
)
def test_json_round_trip(verdict: Verdict) -> None:
    assert Verdict.from_dict(json.loads(json.dumps(verdict.to_dict()))) == verdict


def test_foreign_fields_are_refused() -> None:
    with pytest.raises(InputError, match=r"unknown fields \['score'\], missing fields \['met'\]"):
        Verdict.from_dict({"sample_id": "s", "criterion_id": "c", "score": 1})


def test_costs_add_up() -> None:
    assert Cost(1, 10, 2, 0.5) + Cost(2, 5, 1, 0.25, cached=True) == Cost(3, 15, 3, 0.75)
