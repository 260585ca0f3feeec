"""What a noun phrase names: the thing, how many of it, and what it is like."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

from mmrubric.generators import template_words as words

_MOST_COUNTED = 20
"""A larger number before a singular noun is a year or a name."""


@dataclass
class Thing:
    """Something that a prompt names."""

    noun: str
    """As written, without number, colour, material and size: hot dog, bears."""
    number: int | None = None
    """How many the prompt asks for, where it says so."""
    plural: bool = False
    attributes: dict[str, str] = field(default_factory=dict)
    """Word as written to its kind: colour, material, size or quality."""
    absent: bool = False
    """The prompt says that there is none."""

    @property
    def singular(self) -> str:
        """The noun in the singular, as detectors know it."""
        *before, last = self.noun.split()
        return " ".join([*before, singular(last) if self.plural else last])

    @property
    def head(self) -> str:
        """The word that says what it is, in the singular: dog in 'hot dog', glass in 'glass of water'."""
        return singular(self.noun.partition(" of ")[0].split()[-1])


@cache
def _inflect() -> Any:
    import inflect

    return inflect.engine()


@cache
def singular(word: str) -> str:
    """The singular of a noun, or the word itself."""
    if word.endswith(("us", "ss", "is")):
        return word
    return _inflect().singular_noun(word) or word


def with_article(noun: str) -> str:
    """'an apple', 'a fire hydrant'."""
    return _inflect().a(noun)


def thing_of(phrase: list[str], number: int | None) -> Thing | None:
    """The thing that a noun phrase without determiners names; None where nothing is left to look for."""
    attributes: dict[str, str] = {}
    noun: list[str] = []
    for at, word in enumerate(phrase):
        last = at == len(phrase) - 1
        following = "" if last else phrase[at + 1]
        if (word.isdecimal() or word in words.NUMBERS) and not noun and not last:
            number = int(word) if word.isdecimal() else words.NUMBERS[word]
        elif word == "single":
            number = 1
        elif last:
            noun.append(word)
        elif word in words.SHADES and following in words.COLOURS:
            continue
        elif word in words.COLOURS and at > 1 and phrase[at - 1] == "and":
            before = attributes.popitem()[0] if attributes else phrase[at - 2]
            attributes[f"{before} and {word}"] = "colour"
        elif word in words.COLOURS:
            shade = f"{phrase[at - 1]} " if at and phrase[at - 1] in words.SHADES else ""
            attributes[shade + word] = "colour"
        elif (word, following) in words.COMPOUNDS:
            noun.append(word)
        elif word in words.MATERIALS:
            attributes[word] = "material"
        elif word in words.SIZES:
            attributes[word] = "size"
        elif describes(word):
            attributes[word] = "quality"
        elif word != "and" and not is_adverb(word):
            noun.append(word)
    if not noun or not re.search(r"[^\W\d]", " ".join(noun)) or (len(noun) == 1 and _names_nothing(noun[0])):
        return None
    plural = singular(noun[-1]) != noun[-1] and number != 1
    if number is not None and number > _MOST_COUNTED and not plural:
        # A year or a model, not a count.
        number = None
    return Thing(" ".join(noun), number, plural, attributes)


def tell_apart(things: Sequence[Thing]) -> None:
    """Things of one name get what is said of them into their names: 'two red apples and three green apples'."""
    names = [thing.singular for thing in things if not thing.absent]
    for thing in things:
        if names.count(thing.singular) > 1 and thing.attributes and not thing.absent:
            thing.noun, thing.attributes = f"{' '.join(thing.attributes)} {thing.noun}", {}


def _names_nothing(word: str) -> bool:
    return describes(word) or (word in words.COLOURS and word not in words.NOUN_COLOURS)


def premodifies(word: str) -> bool:
    """Whether a noun may still follow: 'black dining table', 'two parking meters'."""
    known = word.isdecimal() or word in words.NUMBERS or word in words.COLOURS or word in words.MATERIALS
    return known or word in words.SHADES or describes(word)


def describes(word: str) -> bool:
    """Whether a word says what something is like, without being a colour or a material."""
    return word in words.ADJECTIVES or word in words.SIZES or (word.endswith(words.ADJECTIVE_ENDINGS) and len(word) > 6)


def is_adverb(word: str) -> bool:
    """Whether a word in -ly is an adverb."""
    return word.endswith("ly") and len(word) > 4 and word not in words.NOT_ADVERBS
