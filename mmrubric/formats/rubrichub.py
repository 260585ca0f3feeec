"""The other two layouts of RubricHub: what its repository exports, and its SFT rows.

Source: RubricHub, arXiv 2601.08430. Its reinforcement learning rows are verl rows, see `mmrubric.formats.verl`.
"""

from __future__ import annotations

from typing import Any

from mmrubric.formats.base import Loss, Place
from mmrubric.formats.export import Entry, Held
from mmrubric.formats.fields import Item, build, items_of, record, text_of, written_as
from mmrubric.rubric import Rubric

_QUESTIONS, _SFT = "rubrichub_questions", "rubrichub_sft"


def _item(item: Item) -> None:
    item.text("criterion")
    item.weight("points")
    item.labels()


def from_questions(raw: Any, place: Place) -> list[Rubric]:
    """Read `{question, id, rubrics[{criterion, points}]}`; {title, description, weight} is read as well."""
    return _read(_QUESTIONS, "question", raw, place)


def from_sft(raw: Any, place: Place) -> list[Rubric]:
    """Read an SFT row `{source, query, answer, sample_id, rubrics, rubric_score, rubric_judge_details}`."""
    return _read(_SFT, "query", raw, place)


def _read(name: str, prompt_key: str, raw: Any, place: Place) -> list[Rubric]:
    data, place = record(raw, place)
    items = items_of(data.pop("rubrics", None), "rubrics", place, _item)
    if items is None:
        return []
    prompt = text_of(data.pop(prompt_key, None), prompt_key, place)
    return build(name, prompt, items, data, place, **(written_as(items) if name == _QUESTIONS else {}))


def to_questions(rubric: Rubric, loss: Loss) -> dict[str, Any]:
    """Write `{question, id, rubrics[{criterion, points}]}`; a rubric from elsewhere gets its content hash as id."""
    held = Held(rubric, _QUESTIONS)
    items = []
    for index, criterion in enumerate(rubric.criteria):
        loss.check(criterion)
        entry = Entry(held, criterion, index, loss)
        entry.put("criterion", criterion.text)
        entry.put_weight("points")
        entry.put_id()
        entry.put_labels()
        items.append(entry.done())
    return {**held.record({"id": rubric.hash}), "question": rubric.prompt, "rubrics": items}
