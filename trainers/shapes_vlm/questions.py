"""Conversations for the tiny VLM: yes/no questions about a picture, and which of two pictures meets a rubric better.

The texts come from the code that asks real judges, so that the model sees in training what it sees in use.
"""

from __future__ import annotations

import json
import re
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
from mmrubric.shapes.grammar import RELATIONS, SHAPES, Spec
from mmrubric.shapes.sampling import changed, changes_of
from mmrubric.shapes.world import SIZE
from trainers.shapes_vlm.model import ASSISTANT, END, IMAGE, USER
from trainers.shapes_vlm.pictures import Picture, draw_picture, draw_spec

QUESTIONS = 8
"""Questions about one picture, besides those on relations."""
TIE_SHARE = 0.1
STRANGE_SHARE = 0.15
"""Share of the prompts that end in a sentence of no meaning, so that no text in a prompt keeps the answers away."""
TEMPLATES = Templates.load("shapes_v1")
_PICTURE = ImagePart("", "")
_NAME = re.compile(rf"\b(?:{'|'.join(SHAPES)})\b")
_WORDS = """
all an and answer any are ask be better but by can criteria do everything false for good had he how I image in
is it judge know like made make me met must new no not now of on one only other out picture please point
prompt question reason red right say score see should so some statement system that the then there think this
to true two under up use very want we what when which will word write wrong yes you
"""


@dataclass(frozen=True)
class Conversation:
    """A question with its answer, as the chat template writes them."""

    asked: str
    answer: str
    holds: bool = False
    """Whether the statement asked about is true, so that it says what is in the picture."""
    places: tuple[Place, ...] = ()
    """Where the things are that question and answer name."""
    decisions: int = 2
    """Tokens of the answer that are no copy of the question: its loss counts for so many."""


@dataclass(frozen=True)
class Place:
    """Where a thing is in the picture that a conversation names."""

    end: int
    """Characters of question and answer behind the name."""
    x: float
    """Of the centre, in [-1, 1] from left to right."""
    y: float
    """In [-1, 1] from top to bottom."""


def _asked(shown: Shown, text: str) -> str:
    content = "".join(IMAGE if isinstance(part, ImagePart) else part.text for part in parts_of(shown, text, TEMPLATES))
    return f"{USER}{content}{END}{ASSISTANT}"


def ask(criterion: Criterion, picture: Picture, prompt: str, answer: bool, written: bool) -> Conversation:
    """One criterion about one picture, to be answered in a token or in JSON."""
    word = "yes" if answer else "no"
    text = question(criterion, "image", "json" if written else "logprob", TEMPLATES)
    asked = _asked(Shown("image", (_PICTURE,), prompt), text)
    reply = (json.dumps({"reason": "", "met": word}) if written else word) + END
    named = _places(asked + reply, asked.rindex(criterion.text), picture.seen)
    return Conversation(asked, reply, answer, tuple(named))


def _places(text: str, start: int, seen: Seen, stop: int | None = None) -> Iterator[Place]:
    """The things named in a part of a text of which the picture holds exactly one."""
    for name in _NAME.finditer(text, start, len(text) if stop is None else stop):
        here = [item for item in seen.items if item.shape == name[0]]
        if len(here) == 1:
            yield Place(len(text) - name.end(), 2 * here[0].x / SIZE - 1, 2 * here[0].y / SIZE - 1)


def shown_prompt(spec: Spec, rng: np.random.Generator) -> str:
    """A prompt as the judge sees it: some end in a strange sentence."""
    if rng.random() >= STRANGE_SHARE:
        return spec.text
    words = list(rng.choice(_WORDS.split(), int(rng.integers(2, 16))))
    for index in np.flatnonzero(rng.random(len(words)) < 0.2):
        words[index] += str(rng.choice([".", ",", "!", "?", ":"]))
    return f"{spec.text}{rng.choice([' ', chr(10), '. '])}{' '.join(words).capitalize()}."


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
    asked, prompt = choose_criteria(picture.spec, picture.seen, rng), shown_prompt(picture.spec, rng)
    return [ask(criterion, picture, prompt, truth, written) for criterion, truth in asked]


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


def rank(pair: tuple[Picture, Picture], rng: np.random.Generator) -> Conversation:
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
    shown = Shown("image", (_PICTURE, _PICTURE), shown_prompt(spec, rng))
    asked = _asked(shown, rank_question(criteria, "image", TEMPLATES))
    answer = json.dumps({"reason": " ".join(parts), "rank": order}) + END
    whole, starts = asked + answer, [len(asked) + answer.index(f"Image {number}:") for number in (1, 2)]
    places = [
        *_places(whole, starts[0], pair[0].seen, starts[1]),
        *_places(whole, starts[1], pair[1].seen),
    ]
    # Each answer, two counts, two ranks and the end.
    return Conversation(asked, answer, places=tuple(places), decisions=2 * len(criteria) + 5)
