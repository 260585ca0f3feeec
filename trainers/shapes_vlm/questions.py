"""Conversations for the tiny VLM: yes/no questions about a picture, and which of two pictures meets a rubric better.

The texts come from the code that asks real judges, so that the model sees in training what it sees in use.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from judges.vlm.showing import Shown, parts_of
from judges.vlm.templates import Templates
from judges.vlm.wording import question, rank_question
from mmrubric.chat import ImagePart
from mmrubric.generators.shapes import criteria_of
from mmrubric.rubric import Criterion
from mmrubric.shapes.checks import Seen, holds
from mmrubric.shapes.grammar import RELATIONS, Spec
from mmrubric.shapes.sampling import changed, changes_of
from mmrubric.shapes.world import SIZE
from trainers.shapes_vlm.model import ASSISTANT, END, IMAGE, USER
from trainers.shapes_vlm.pictures import Picture, draw_picture, draw_spec

QUESTIONS = 8
"""Questions about one picture, besides those on relations."""
TIE_SHARE = 0.1
TEMPLATES = Templates.load("shapes_v1")
_PICTURE = ImagePart("", "")


@dataclass(frozen=True)
class Conversation:
    """A question with its answer, as the chat template writes them."""

    asked: str
    answer: str
    holds: bool = False
    """Whether the statement asked about is true, so that it says what is in the picture."""
    places: tuple[Place, ...] = ()
    """Where the things are that a relation speaks of."""


@dataclass(frozen=True)
class Place:
    """Where a thing is in the picture that a question names."""

    end: int
    """Characters of the question from the last one of the name to the end."""
    x: float
    """Of the centre, in [-1, 1] from left to right."""
    y: float
    """In [-1, 1] from top to bottom."""


def _chat(shown: Shown, text: str, answer: str) -> Conversation:
    parts = parts_of(shown, text, TEMPLATES)
    content = "".join(IMAGE if isinstance(part, ImagePart) else part.text for part in parts)
    return Conversation(f"{USER}{content}{END}{ASSISTANT}", f"{answer}{END}")


def ask(criterion: Criterion, picture: Picture, answer: bool, written: bool) -> Conversation:
    """One criterion about one picture, to be answered in a token or in JSON."""
    word = "yes" if answer else "no"
    text = question(criterion, "image", "json" if written else "logprob", TEMPLATES)
    reply = json.dumps({"reason": "", "met": word}) if written else word
    chat = _chat(Shown("image", (_PICTURE,), picture.spec.text), text, reply)
    return replace(chat, holds=answer, places=tuple(_places(criterion, picture.seen, chat.asked)))


def _places(criterion: Criterion, seen: Seen, asked: str) -> Iterator[Place]:
    """The two things of a relation, of which the picture holds exactly one each."""
    if criterion.category != "relation":
        return
    start = asked.rindex(criterion.text)
    for name in map(str, (criterion.arguments["first"], criterion.arguments["second"])):
        here = [item for item in seen.items if item.shape == name]
        if len(here) == 1:
            end = start + criterion.text.index(f" {name}") + len(name)
            yield Place(len(asked) - end, 2 * here[0].x / SIZE - 1, 2 * here[0].y / SIZE - 1)


def choose_criteria(spec: Spec, seen: Seen, rng: np.random.Generator) -> list[tuple[Criterion, bool]]:
    """Criteria of a prompt and of a changed one, with their truth: half of them false where there are enough."""
    own = criteria_of(spec)
    known = {criterion.text for criterion in own}
    other = criteria_of(changed(spec, str(rng.choice(changes_of(spec))), rng))
    # 'Nothing else' speaks of the prompt that is shown.
    pool = own + [c for c in other if c.text not in known and c.id != "nothing_else"]
    truths = [bool(holds(criterion.arguments, seen)) for criterion in pool]
    order = [int(i) for i in rng.permutation(len(pool))]
    false = [i for i in order if not truths[i]][: QUESTIONS // 2]
    true = [i for i in order if truths[i]][: QUESTIONS - len(false)]
    more = [i for i in order if not truths[i]][len(false) : QUESTIONS - len(true)]
    return [(pool[i], truths[i]) for i in (*false, *true, *more)] + _relations(spec, seen, rng)


def _relations(spec: Spec, seen: Seen, rng: np.random.Generator) -> list[tuple[Criterion, bool]]:
    """Two true and two false relations of the two shapes of a prompt, whatever it says of them: a prompt has one
    criterion of this kind at most, and it is the hardest to learn."""
    if len(spec.subjects) != 2:
        return []
    orders = (spec.subjects, spec.subjects[::-1])
    specs = [replace(spec, subjects=order, relation=relation) for order in orders for relation in RELATIONS]
    asked = [next(c for c in criteria_of(each) if c.id == "relation") for each in specs]
    truths = np.array([bool(holds(criterion.arguments, seen)) for criterion in asked])
    chosen = [i for rows in (np.flatnonzero(truths), np.flatnonzero(~truths)) for i in rng.permutation(rows)[:2]]
    return [(asked[i], bool(truths[i])) for i in chosen]


def questions(picture: Picture, written: bool, rng: np.random.Generator) -> list[Conversation]:
    """Some questions about a picture, all to be answered in a token or all in JSON."""
    asked = choose_criteria(picture.spec, picture.seen, rng)
    return [ask(criterion, picture, truth, written) for criterion, truth in asked]


def share_met(spec: Spec, seen: Seen) -> float:
    """Share of the criteria of a prompt that hold, in [0, 1]."""
    return float(np.mean(_met(spec, seen)))


def _met(spec: Spec, seen: Seen) -> list[bool]:
    return [bool(holds(criterion.arguments, seen)) for criterion in criteria_of(spec)]


def draw_pair(split: str, rng: np.random.Generator) -> tuple[Picture, Picture]:
    """Two pictures for one prompt, of which one mostly meets more criteria than the other."""
    spec, tie = draw_spec(split, rng), bool(rng.random() < TIE_SHARE)
    while True:
        pair = draw_picture(spec, rng), draw_picture(spec, rng)
        first, second = (share_met(spec, picture.seen) for picture in pair)
        if (first == second) == tie:
            return pair


def rank(pair: tuple[Picture, Picture]) -> Conversation:
    """The question which of two pictures meets more criteria of their prompt, with its answer.

    The reason answers every criterion for the first picture, under the name that the question gives it, then for the
    second, and counts: the rank alone teaches a tiny model nothing.
    """
    spec, criteria = pair[0].spec, criteria_of(pair[0].spec)
    met = [_met(spec, picture.seen) for picture in pair]
    first, second = map(sum, met)
    order = [1, 1] if first == second else [1, 2] if first > second else [2, 1]
    parts = []
    for number, answers in enumerate(met, 1):
        said = (f"{c.text} {'yes' if holds else 'no'}" for c, holds in zip(criteria, answers, strict=True))
        parts.append(f"Image {number}: {' '.join(said)} {sum(answers)}.")
    reason = " ".join(parts)
    text = rank_question(criteria, "image", TEMPLATES)
    shown = Shown("image", (_PICTURE, _PICTURE), spec.text)
    return _chat(shown, text, json.dumps({"reason": reason, "rank": order}))
