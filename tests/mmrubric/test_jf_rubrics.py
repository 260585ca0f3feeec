"""Rows of the list of known failures that belong to rubrics and their aggregation."""

import numpy as np
import pytest

from mmrubric import Criterion, Rubric, ScoreTable, aggregate
from mmrubric.errors import InputError


def parse(*criteria: dict) -> Rubric:
    return Rubric.parse({"prompt": "p", "criteria": list(criteria)}, "r.yaml")


@pytest.mark.parametrize("weight", [float("nan"), float("inf"), 0, "3", True])
def test_jf53_weights_are_finite_numbers_and_not_zero(weight):
    with pytest.raises(InputError, match=r"(?s)r\.yaml.*weight"):
        parse({"id": "a", "text": "A dog.", "weight": weight})


def test_jf54_a_rubric_of_faults_alone_is_scored_by_weighted_and_refused_by_points():
    rubric = parse({"id": "a", "text": "Blur.", "weight": -1}, {"id": "b", "text": "Noise.", "weight": -3})
    table = ScoreTable(rubric, [[0, 0], [1, 0], [1, 1]])
    # 1 + S / 4 with S = 0, -1, -4
    np.testing.assert_allclose(aggregate.build("weighted")(table), [1.0, 0.75, 0.0])
    with pytest.raises(InputError, match="positive weight"):
        aggregate.build("points").check(rubric)


def test_jf55_a_rubric_without_criteria_is_an_error():
    with pytest.raises(InputError, match=r"(?s)r\.yaml.*criteria"):
        parse()


@pytest.mark.parametrize(
    "criteria",
    [
        [{"id": "a", "text": "  "}],
        [{"id": "a", "text": "A dog."}, {"id": "a", "text": "A cat."}],
        [{"id": "a", "text": "A dog.", "weight": "3"}],
    ],
)
def test_jf56_blank_texts_double_ids_and_weights_in_quotes_are_refused(criteria):
    with pytest.raises(InputError, match=r"r\.yaml"):
        parse(*criteria)
    assert Criterion(id="a", text="A dog.").weight == 1.0
