"""How criteria are put into words for the judge."""

from __future__ import annotations

import json
from collections.abc import Sequence

from judges.vlm.scales import FIELDS, codes, possible
from judges.vlm.templates import Templates
from mmrubric.rubric import Criterion

_GUIDE = ("required_elements", "scoring_guide", "verification_cues")
"""Fields of `Criterion.extra` that say how to judge; every other field stays hidden from the judge."""


def statement(criterion: Criterion, templates: Templates, note: str = "") -> str:
    """The criterion as the judge reads it, a note, and its guide where it has one; never a weight or a sign."""
    lines = [f"{criterion.text.strip()} {note}".rstrip()]
    for field in _GUIDE:
        value = criterion.extra.get(field)
        if value:
            lines.append(f"{templates.fill('label', field.replace('_', ' '))} {_guide(value)}")
    return "\n".join(lines)


def _guide(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {text}" for key, text in value.items())
    return "; ".join(map(str, value)) if isinstance(value, list) else str(value)


def question(criterion: Criterion, thing: str, read: str, templates: Templates) -> str:
    """The question about one criterion, and how to answer it.

    Args:
        criterion: what to ask about.
        thing: image, edited image or text.
        read: json or logprob.
        templates: the prompt file.
    """
    scale = criterion.scale
    asked = {"criterion": statement(criterion, templates), "thing": thing, "answers": _answers(criterion, read)}
    reply = templates.fill("reply", f"{scale} {read}", thing=thing, codes=", ".join(_codes(criterion, read)))
    return f"{templates.fill('question', scale, **asked)}\n\n{reply}"


def batch_question(criteria: Sequence[Criterion], thing: str, templates: Templates) -> str:
    """One question about several criteria, each with its id, its text, its answer field and possible answers."""
    entries = []
    for criterion in criteria:
        answers = ", ".join(_quoted(answer) for answer in possible(criterion))
        if criterion.scale == "ordinal":
            answers = ", ".join(f"{level} ({anchor.text})" for level, anchor in enumerate(criterion.anchors, 1))
        head = f"id {_quoted(criterion.id)}: {statement(criterion, templates)}"
        entries.append(f'{head}\nfield "{FIELDS[criterion.scale]}": {answers}')
    asked = templates.fill("question", "batch", criteria="\n".join(entries), thing=thing)
    return f"{asked}\n\n{templates.fill('reply', 'batch', thing=thing)}"


def rank_question(criteria: Sequence[Criterion], thing: str, templates: Templates) -> str:
    """One question by all criteria: which of two candidates is better. Shows what is wanted, and no weights."""
    entries = "\n".join(f"- {statement(c, templates, f'({_wanted(c, templates)})')}" for c in criteria)
    asked = templates.fill("question", "rank", criteria=entries, things=f"{thing}s")
    return f"{asked}\n\n{templates.fill('reply', 'rank')}"


def _wanted(criterion: Criterion, templates: Templates) -> str:
    """Which way is better. To rank without it would mean guessing whether a watermark was asked for."""
    if criterion.scale == "binary":
        wanted = (criterion.expected != "no") == (criterion.weight > 0)
        return templates.fill("label", "wanted" if wanted else "unwanted")
    sign = 1.0 if criterion.weight > 0 else -1.0
    worth = [(met, answer) for answer in possible(criterion) if (met := criterion.met_of(answer)) is not None]
    best_first = sorted(worth, key=lambda item: -sign * item[0])
    names = [criterion.anchors[answer - 1].text if isinstance(answer, int) else answer for _, answer in best_first]
    return f"{templates.fill('label', 'order')} {'; '.join(names)}"


def _answers(criterion: Criterion, read: str) -> str:
    """The levels or labels, one a line, each behind what the judge has to write to choose it."""
    if criterion.scale == "binary":
        return ""
    names = [anchor.text for anchor in criterion.anchors] or [option.label for option in criterion.options]
    if read == "json" and criterion.scale == "nominal":
        return "\n".join(map(_quoted, names))
    return "\n".join(f"{code}: {name}" for code, name in zip(_codes(criterion, read), names, strict=True))


def _codes(criterion: Criterion, read: str) -> list[str]:
    return list(codes(criterion)) if read == "logprob" else [str(answer) for answer in possible(criterion)]


def _quoted(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)
