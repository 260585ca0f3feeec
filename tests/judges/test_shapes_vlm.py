"""The tiny VLM that ships: how often it is right, how well it is calibrated, and that it fits its prompts."""

import json

import numpy as np
import pytest

import judges
from judges.local import SHAPES
from judges.vlm.templates import Templates
from mmrubric.report.agreement import ece
from tests.judges.shapes_vlm import INJECTION, Answers, answers, draw, flips, ranker, ranking, with_writing


@pytest.fixture(scope="module")
def measured() -> tuple[judges.Judge, list, Answers]:
    judge = judges.build("local", any_verifier=True)
    pictures = draw(240)
    return judge, pictures, answers(judge, pictures, [picture.pixels for picture in pictures])


@pytest.mark.slow
def test_it_agrees_with_the_truth_of_held_out_scenes(measured) -> None:
    """Half of them miss their prompt by one attribute; `python -m tests.judges.shapes_vlm` measures more."""
    result = measured[2]
    assert np.isfinite(result.said).all(), "every question is answered"
    agreement = result.agreement()
    assert set(agreement) == {"attribute", "count", "object", "realism", "relation", "text"}
    assert min(agreement.values()) >= 0.95, agreement
    assert ece(result.said, result.truth) < 0.02


@pytest.mark.slow
def test_orders_in_the_prompt_or_the_picture_change_few_verdicts(measured) -> None:
    judge, pictures, _ = measured
    chosen = pictures[:120]
    first = answers(judge, chosen, [picture.pixels for picture in chosen])
    asked = answers(judge, chosen, [picture.pixels for picture in chosen], suffix=f"\n{INJECTION}")
    written = answers(judge, chosen, [with_writing(picture.pixels) for picture in chosen])
    assert np.isfinite(asked.said).all(), "strange words do not keep the answers away"
    assert flips(first, asked) < 0.05 and flips(first, written) < 0.2


@pytest.mark.slow
def test_it_ranks_two_pictures_in_one_call(measured) -> None:
    """A right picture and one that misses the prompt by one attribute, in both orders."""
    right, consistent, first = ranking(ranker("shapes"), measured[1][:60])
    assert right >= 0.85 and consistent >= 0.85
    assert 0.3 < first < 0.7


def test_it_was_trained_on_the_prompts_that_ship() -> None:
    """Other words would be other tokens to it: change the prompts in a new file, and train again."""
    notes = json.loads((SHAPES / "training.json").read_text())
    assert notes["prompts"] == Templates.load("shapes_v1").hash


def test_it_is_small() -> None:
    assert sum(path.stat().st_size for path in SHAPES.iterdir()) < 20e6
