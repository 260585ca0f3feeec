"""Training data for a model that writes rubrics: chat rows for `trl sft`, in the form in which `learned` asks it.

Ids, dependencies, gates and verifiers are not part of the format: a rubric that has them is written without them.
Source: RubricGen of Writer-R1, arXiv 2603.15061, whose JSON is not published, so its fields are ours.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from mmrubric.generate_bulk import fell_back
from mmrubric.generators.learned import question_of
from mmrubric.generators.learned_formats import parse_json
from mmrubric.rubric import Criterion, Rubric


def sft_rows(rubrics: Iterable[Rubric], prompts: str | Path = "") -> tuple[list[dict[str, Any]], Counter[str]]:
    """One chat per rubric, `{"messages": [system, user, assistant]}`, and how many rubrics were left out, by reason.

    A model trained on them is used by `build("learned", format="json", prompts=..., ...)` with the same prompts.

    Args:
        rubrics: with their prompts.
        prompts: prompt file of `learned`; "" = its own.
    """
    ask = question_of("json", prompts)
    rows, left_out = [], Counter[str]()
    for rubric in rubrics:
        reason = _unfit(rubric)
        if reason:
            left_out[reason] += 1
            continue
        rows.append({"messages": [*ask(rubric.prompt), {"role": "assistant", "content": _answer(rubric)}]})
    return rows, left_out


def _unfit(rubric: Rubric) -> str:
    """Why a rubric is nothing to learn from, or ""."""
    if not rubric.prompt.strip():
        return "no prompt: it holds for a whole data set"
    if fell_back(rubric):
        return "written by a fallback"
    if any(c.weight < 0 or c.scale == "nominal" or c.expected == "no" for c in rubric.criteria):
        return "negative weights, nominal scales or the answer no, which the format cannot hold"
    try:
        parse_json(_answer(rubric))
    except ValueError:
        return "levels of the same words, or a blank text, which learned refuses"
    return ""


def _answer(rubric: Rubric) -> str:
    return json.dumps({"criteria": [_written(criterion) for criterion in rubric.criteria]}, ensure_ascii=False)


def _written(criterion: Criterion) -> dict[str, Any]:
    """A criterion as the parser of `learned` reads it; what is left out there has its default."""
    made: dict[str, Any] = {"criterion": criterion.text, "category": criterion.category}
    if criterion.weight != 1:
        made["weight"] = criterion.weight
    if criterion.anchors:
        made["levels"] = [anchor.text for anchor in criterion.anchors]
    return made
