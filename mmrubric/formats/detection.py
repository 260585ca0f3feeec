"""Content tests, one per format: whether a record looks like that format and like no other. They never raise."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from mmrubric.errors import InputError
from mmrubric.formats.base import Place
from mmrubric.formats.fields import mapping, rows
from mmrubric.formats.texts import is_prometheus, marked_lines
from mmrubric.rubric import Criterion, Rubric

_AUTORUBRIC_KEYS = {"name", "options", "scale_type", "aggregation"}


def _has(record: Any, *keys: str) -> bool:
    return isinstance(record, dict) and all(key in record for key in keys)


def _items(record: Any, key: str, id_key: str = "id") -> list[dict[str, Any]]:
    """The criteria under `key`; none when there is no list of objects."""
    if not _has(record, key) or record[key] is None:
        return []
    try:
        found = rows(record[key], key, Place(""), id_key)
    except InputError:  # not this format
        return []
    return list(found or []) if all(isinstance(row, dict) for row in found or []) else []


def _all_have(items: list[dict[str, Any]], *keys: str) -> bool:
    return bool(items) and all(key in item for item in items for key in keys)


def _any_has(items: list[dict[str, Any]], keys: Collection[str]) -> bool:
    return any(key in item for item in items for key in keys)


def mmrubric(record: Any) -> bool:
    """Fields of ours and no others."""
    items = _items(record, "criteria")
    known = _has(record, "prompt", "criteria") and set(record) <= set(Rubric.model_fields)
    return known and _all_have(items, "id", "text") and all(set(item) <= set(Criterion.model_fields) for item in items)


def healthbench(record: Any) -> bool:
    """`prompt` and `rubrics` with criterion and points, outside a verl row."""
    return _has(record, "prompt") and not rubrichub(record) and not verl(record) and _pointed(record)


def _pointed(record: Any) -> bool:
    return _all_have(_items(record, "rubrics"), "criterion", "points")


def healthbench_professional(record: Any) -> bool:
    """`conversation` and `rubric_items`."""
    return _has(record, "conversation", "rubric_items")


def rar(record: Any) -> bool:
    """`question` and `rubric` with descriptions."""
    return _has(record, "question") and _all_have(_items(record, "rubric"), "description")


def rubrichub(record: Any) -> bool:
    """`Rubrics` with a capital R."""
    return _has(record, "Rubrics", "prompt")


def verl(record: Any) -> bool:
    """A rubric inside `reward_model`, without the copy of RubricHub."""
    if rubrichub(record) or not _has(record, "reward_model"):
        return False
    try:
        return "rubrics" in mapping(record["reward_model"], "reward_model", Place(""))
    except InputError:  # not this format
        return False


def rubrichub_questions(record: Any) -> bool:
    """`question` and `rubrics` with criterion and points."""
    return _has(record, "question") and not _has(record, "prompt") and _pointed(record)


def rubrichub_sft(record: Any) -> bool:
    """`query`, `sample_id` and `rubrics`."""
    return _has(record, "query", "sample_id", "rubrics")


def prbench(record: Any) -> bool:
    """`prompt_0` and `rubric` with annotations."""
    return _has(record, "prompt_0") and _any_has(_items(record, "rubric"), ["annotations"])


def _requirements(record: Any) -> list[dict[str, Any]]:
    """Criteria of the layout that autorubric and rubric 2.2 share; none when there is another text key."""
    if isinstance(record, list):
        record = {"criteria": record}
    key = next((key for key in ("sections", "criteria", "rubric") if _has(record, key)), "")
    found = _items(record, key, "name")
    if _all_have(found, "criteria"):
        found = [item for section in found for item in _items(section, "criteria", "name")]
    return found if _all_have(found, "requirement") else []


def autorubric(record: Any) -> bool:
    """Requirements with names, options or guidelines."""
    items = _requirements(record)
    signs = _any_has(items, _AUTORUBRIC_KEYS) or _has(record, "guidelines") or _has(record, "prompt")
    return bool(items) and signs and not autorubric_dataset(record)


def rubric_2_2(record: Any) -> bool:
    """Requirements with weights and nothing that is autorubric's alone; the two read these alike."""
    items = _requirements(record)
    return _all_have(items, "weight") and not autorubric(record) and not autorubric_dataset(record)


def autorubric_dataset(record: Any) -> bool:
    """A list of submissions beside a rubric."""
    return _any_has(_items(record, "items"), ["submission"])


def openrubrics(record: Any) -> bool:
    """`instruction` and a rubric that is one text."""
    return _has(record, "instruction", "rubric") and isinstance(record["rubric"], str)


def verifiers(record: Any) -> bool:
    """`criteria` with text, and names or choices."""
    items = _items(record, "criteria", "name")
    return _all_have(items, "text") and _any_has(items, ["name", "choices"]) and not _any_has(items, ["polarity", "id"])


def rubric_reward_lens(record: Any) -> bool:
    """`criteria` with text and polarity."""
    return _all_have(_items(record, "criteria"), "text", "polarity")


def vertex(record: Any) -> bool:
    """Criteria with content and importance or a rubricId."""
    items = _items({"rubrics": record} if isinstance(record, list) else record, "rubrics", "rubricId")
    return _all_have(items, "content") and _any_has(items, ["importance", "rubricId"])


def researchrubrics(record: Any) -> bool:
    """`prompt` and `rubrics` with weight and axis."""
    return _has(record, "prompt") and _all_have(_items(record, "rubrics"), "criterion", "weight", "axis")


def wildchecklists(record: Any) -> bool:
    """`prompt` and `requirements`."""
    return _has(record, "prompt", "requirements")


def advancedif(record: Any) -> bool:
    """`conversation_history` and `prompt_metadata`."""
    return _has(record, "conversation_history", "prompt_metadata")


def auto_rubric(record: Any) -> bool:
    """`rubrics` and `rubric_valid`."""
    return _has(record, "rubrics", "rubric_valid")


def _text(record: Any) -> str:
    """Text that is a whole rubric, alone or as `{prompt, rubric}`; "" otherwise."""
    if _has(record, "rubric") and set(record) <= {"prompt", "rubric"}:
        record = record["rubric"]
    return record if isinstance(record, str) and not record.lstrip().startswith(("[{", "{")) else ""


def prometheus(record: Any) -> bool:
    """Text with a line for each of five scores."""
    return is_prometheus(_text(record))


def text(record: Any) -> bool:
    """Text with numbered or bulleted lines, and no scores."""
    found = _text(record)
    return bool(marked_lines(found)[0]) and not is_prometheus(found)


def arr_pairs(record: Any) -> bool:
    """A label of rank or score."""
    return _has(record, "label_rank") or _has(record, "label_score")
