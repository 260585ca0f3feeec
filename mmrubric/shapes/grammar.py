"""Prompts of the embedded world: what a prompt asks for, as text and as a typed `Spec`, and the data split.

Five kinds of prompt: one shape, several of one shape, two shapes, two shapes in a relation, a written word.
A *combination* leaves out size, order and background; held-out prompts use combinations that no training
prompt uses.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import product

import numpy as np

from mmrubric.errors import InputError
from mmrubric.rubric import Prompt
from mmrubric.shapes.world import BACKGROUNDS, COLOURS, RADII, SHAPES, WORDS

KINDS = ("single", "count", "pair", "relation", "word")
KIND_SHARES = {"single": 0.15, "count": 0.3, "pair": 0.2, "relation": 0.27, "word": 0.08}
"""Share of each kind in a drawn prompt list."""
COUNT_WORDS = {2: "two", 3: "three", 4: "four"}
RELATIONS = ("left of", "right of", "above", "below")
PLURALS = {shape: shape + ("es" if shape.endswith("s") else "s") for shape in SHAPES}
SPLITS = ("train", "heldout")
HELDOUT_SHARE = 5
"""One combination in this many is held out."""


@dataclass(frozen=True)
class Subject:
    """Shapes that a prompt asks for; `size` None means that the prompt leaves it open."""

    shape: str
    colour: str
    size: str | None = None
    count: int = 1

    @property
    def text(self) -> str:
        described = f"{self.size} {self.colour}" if self.size else self.colour
        article = "an" if described.startswith("orange") else "a"
        what = self.shape if self.count == 1 else PLURALS[self.shape]
        return f"{COUNT_WORDS.get(self.count, article)} {described} {what}"


@dataclass(frozen=True)
class Spec:
    """What a prompt asks for: one or two subjects, or a word with its colour."""

    background: str
    subjects: tuple[Subject, ...] = ()
    relation: str | None = None
    word: str | None = None
    word_colour: str | None = None

    @property
    def kind(self) -> str:
        if self.word is not None:
            return "word"
        if len(self.subjects) == 2:
            return "relation" if self.relation else "pair"
        return "single" if self.subjects[0].count == 1 else "count"

    @property
    def text(self) -> str:
        if self.word is not None:
            what = f'the word "{self.word}" in {self.word_colour}'
        else:
            what = f" {self.relation or 'and'} ".join(subject.text for subject in self.subjects)
        return f"{what} on a {self.background} background"

    @property
    def combination(self) -> str:
        """Key of the data split: words or shapes with their colours and count, in a fixed order."""
        if self.word is not None:
            return f"word {self.word} {self.word_colour}"
        return " + ".join(sorted(f"{s.count} {s.colour} {s.shape}" for s in self.subjects))

    @property
    def split(self) -> str:
        return split_of(self.combination)


@cache
def split_of(combination: str) -> str:
    """Where a combination belongs: a function of its text alone."""
    digest = hashlib.sha256(combination.encode()).digest()
    return "heldout" if int.from_bytes(digest[:4], "big") % HELDOUT_SHARE == 0 else "train"


_COLOUR, _SHAPE = "|".join(COLOURS), "|".join(SHAPES)
_SUBJECT = re.compile(
    rf"(?P<count>an?|one|{'|'.join(COUNT_WORDS.values())}) (?:(?P<size>{'|'.join(RADII)}) )?"
    rf"(?P<colour>{_COLOUR}) (?P<shape>{'|'.join(sorted({*SHAPES, *PLURALS.values()}, key=len, reverse=True))})"
)
_BACKGROUND = re.compile(rf"(?P<what>.+) on an? (?P<background>{'|'.join(BACKGROUNDS)}) background\.?")
_WORD = re.compile(rf'the word "(?P<word>[a-z]+)" in (?P<colour>{_COLOUR})')
_JOIN = re.compile(rf" (?P<join>and|{'|'.join(RELATIONS)}) ")


def parse(text: str) -> Spec:
    """Read a prompt of the world.

    Raises:
        InputError: the prompt is outside the grammar; the message shows what a prompt looks like.
    """
    whole = _BACKGROUND.fullmatch(" ".join(text.lower().split()))
    if whole is None:
        raise _outside(text)
    what, background = whole["what"], whole["background"]
    if (word := _WORD.fullmatch(what)) is not None:
        return Spec(background, word=word["word"].upper(), word_colour=word["colour"])
    join = _JOIN.search(what)
    parts = [what] if join is None else [what[: join.start()], what[join.end() :]]
    subjects = tuple(_parse_subject(part, text) for part in parts)
    relation = join["join"] if join is not None and join["join"] != "and" else None
    if len(subjects) == 2 and (any(s.count != 1 for s in subjects) or subjects[0].shape == subjects[1].shape):
        raise _outside(text)
    return Spec(background, subjects, relation)


def _parse_subject(part: str, text: str) -> Subject:
    match = _SUBJECT.fullmatch(part)
    if match is None:
        raise _outside(text)
    counts = {word: number for number, word in COUNT_WORDS.items()}
    singular = {plural: shape for shape, plural in PLURALS.items()}
    shape = singular.get(match["shape"], match["shape"])
    return Subject(shape, match["colour"], match["size"], counts.get(match["count"], 1))


def _outside(text: str) -> InputError:
    return InputError(
        f"prompt {text!r} is outside the world of shapes. Write, for example, 'three small blue squares on a gray "
        "background', 'a red circle left of a green cross on a white background' or 'the word \"GO\" in red on a "
        f"pink background'. Colours: {', '.join(COLOURS)}; shapes: {', '.join(SHAPES)}; sizes: "
        f"{', '.join(RADII)}; backgrounds: {', '.join(BACKGROUNDS)}"
    )


def enumerate_specs(kind: str) -> Iterator[Spec]:
    """Every prompt of one kind, in a fixed order."""
    sizes = (None, *RADII)
    if kind == "word":
        for word, colour, background in product(WORDS, COLOURS, BACKGROUNDS):
            yield Spec(background, word=word, word_colour=colour)
    elif kind in ("single", "count"):
        counts = (1,) if kind == "single" else tuple(COUNT_WORDS)
        for count, size, colour, shape, background in product(counts, sizes, COLOURS, SHAPES, BACKGROUNDS):
            yield Spec(background, (Subject(shape, colour, size, count),))
    elif kind in ("pair", "relation"):
        relations = (None,) if kind == "pair" else RELATIONS
        subjects = [Subject(*of) for of in product(SHAPES, COLOURS, sizes)]
        for first, second in product(subjects, subjects):
            if first.shape != second.shape:
                for relation, background in product(relations, BACKGROUNDS):
                    yield Spec(background, (first, second), relation)
    else:
        raise InputError(f"unknown kind of prompt {kind!r}; known: {', '.join(KINDS)}")


@cache
def pool(kind: str, split: str) -> tuple[Spec, ...]:
    """Every prompt of one kind in one split, in a fixed order."""
    return tuple(spec for spec in enumerate_specs(kind) if spec.split == split)


def draw_specs(split: str, count: int, seed: int = 0) -> list[Spec]:
    """Distinct prompts of one split, kinds in the proportions of `KIND_SHARES`, in a seeded order.

    A kind with too few prompts gives all it has; relations fill the list.

    Raises:
        InputError: unknown split, or more prompts asked for than the split has.
    """
    if split not in SPLITS:
        raise InputError(f"unknown split {split!r}; known: {', '.join(SPLITS)}")
    rng = np.random.default_rng([seed, SPLITS.index(split)])
    chosen: list[Spec] = []
    for kind in sorted(KIND_SHARES, key="relation".__eq__):
        specs = pool(kind, split)
        number = count - len(chosen) if kind == "relation" else min(round(KIND_SHARES[kind] * count), len(specs))
        if number > len(specs):
            raise InputError(f"{count} {split} prompts asked for; the world has {len(chosen) + len(specs)} at most")
        chosen += [specs[i] for i in rng.choice(len(specs), number, replace=False)]
    return [chosen[i] for i in rng.permutation(len(chosen))]


def draw_prompts(split: str, count: int, seed: int = 0) -> list[Prompt]:
    """`draw_specs` as `Prompt` objects; the id is the split and a hash of the text."""
    return [
        Prompt(id=f"{split}-{hashlib.sha256(spec.text.encode()).hexdigest()[:12]}", text=spec.text)
        for spec in draw_specs(split, count, seed)
    ]
