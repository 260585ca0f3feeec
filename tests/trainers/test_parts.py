"""Rubrics of a run: written once, checked before training, the same after a resume."""

from __future__ import annotations

import pytest

from mmrubric import advantage, aggregate, generators
from mmrubric.errors import InputError
from mmrubric.prompt import Prompt
from mmrubric.rubric import Criterion, Rubric
from tests.trainers.toys import PROMPTS
from trainers.parts import RubricBook

SHOWN = [Prompt(id=str(i), text=text) for i, text in enumerate(PROMPTS)]


class _Counting(generators.RubricGenerator):
    def __init__(self) -> None:
        self.asked: list[str] = []

    async def generate(self, prompt, source=(), grounding=None, exemplars=()):
        self.asked.append(prompt.text)
        return Rubric(prompt=prompt.text, criteria=(Criterion(id="a", text=f"It shows {prompt.text}."),))


def test_each_rubric_is_written_once() -> None:
    writer = _Counting()
    book = RubricBook(writer)
    first = book.of([SHOWN[0], SHOWN[1], SHOWN[0]])
    assert first[0] is first[2] and book.of(SHOWN[:2]) == first[:2]
    assert writer.asked == [SHOWN[0].text, SHOWN[1].text]


def test_a_resumed_run_has_the_same_rubrics() -> None:
    book = RubricBook(generators.build("shapes"))
    written = book.of(SHOWN)
    state = book.state_dict()
    again = RubricBook(None)
    again.load_state_dict(state)
    assert [r.hash for r in again.of(SHOWN)] == [r.hash for r in written]
    state["hashes"][0] = "0" * 64
    with pytest.raises(InputError, match="is not the one that was trained with"):
        RubricBook(None).load_state_dict(state)
    edited = written[0].with_changed(written[0].ids[0], weight=3.0)
    with pytest.raises(InputError, match="changed since the checkpoint"):
        RubricBook(None, [edited]).load_state_dict(book.state_dict())


def test_rubrics_that_the_aggregator_cannot_use_are_refused() -> None:
    negative = Rubric(prompt="a", criteria=(Criterion(id="n", text="There is a stain.", weight=-1.0),))
    with pytest.raises(InputError, match="rubric of 'a': points needs a criterion with a positive weight"):
        RubricBook(None, [negative], aggregate.build("points").check)
    RubricBook(None, [negative], aggregate.build("mean").check)
    by_category = advantage.build("grpo_by_category", weights={"colour": 1.0})
    with pytest.raises(InputError, match="rubric of 'a': weights: none for category general; known: colour"):
        RubricBook(None, [negative], by_category.check_rubric)


def test_prompts_without_a_rubric_or_outside_the_world_are_named() -> None:
    with pytest.raises(InputError, match=r"no rubric for the prompt 'a red circle .* \(and 3 more\)"):
        RubricBook(None).of(SHOWN)
    with pytest.raises(InputError, match="outside the world of shapes"):
        RubricBook(generators.build("shapes")).of([Prompt(id="x", text="a cat")])
