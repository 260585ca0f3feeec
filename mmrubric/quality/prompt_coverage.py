"""How much of the prompt some criterion speaks of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from mmrubric.rubric import Criterion, Rubric
from mmrubric.similar import (
    COLOURS,
    FUNCTION_WORDS,
    NUMBERS,
    RELATING,
    normalise,
    quoted,
    stem,
    tokens,
    without_quoted,
)


@dataclass(frozen=True)
class Covered:
    """One kind of thing that the prompt names; each once, in the order of the prompt."""

    spoken: tuple[str, ...]
    """Some criterion speaks of it."""
    missing: tuple[str, ...]

    @property
    def total(self) -> int:
        """Things of this kind in the prompt."""
        return len(self.spoken) + len(self.missing)

    @property
    def share(self) -> float:
        """spoken / total in [0, 1]; NaN when the prompt names nothing of the kind."""
        return len(self.spoken) / self.total if self.total else float("nan")


@dataclass(frozen=True)
class Coverage:
    """What of the prompt is in the rubric; the four kinds do not overlap."""

    words: Covered
    """Words with a meaning of their own: no articles, prepositions, quantifiers."""
    quoted: Covered
    """Literal strings in quotation marks."""
    numbers: Covered
    """Digits and number words."""
    colours: Covered

    @property
    def kinds(self) -> dict[str, Covered]:
        """The four kinds by name."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def share(self) -> float:
        """Share of all things that are spoken of, in [0, 1]; NaN for a prompt that names none (or is empty)."""
        total = sum(kind.total for kind in self.kinds.values())
        return sum(len(kind.spoken) for kind in self.kinds.values()) / total if total else float("nan")

    @property
    def missing(self) -> tuple[str, ...]:
        """Everything that no criterion speaks of: quoted strings, numbers, colours, then words."""
        return self.quoted.missing + self.numbers.missing + self.colours.missing + self.words.missing


def coverage(rubric: Rubric) -> Coverage:
    """Compare the words of the prompt with those of all criteria (text, anchors, options and texts in arguments).

    Words are compared by stem, numbers as digits, quoted strings whole, after normalisation. It sees words, not
    meaning: 'kitten' does not speak of 'cat', and a share below 1 is a list to read, not a fault by itself.
    """
    said = [piece for criterion in rubric.criteria for piece in _texts(criterion)]
    stems = {_key(word) for piece in said for word in tokens(piece)}
    literals = {normalise(literal) for piece in said for literal in quoted(piece)} | {
        normalise(piece) for piece in said
    }
    # Of two forms of one word the first stands for both.
    named: dict[str, str] = {}
    for word in tokens(without_quoted(rubric.prompt)):
        if word.strip('"') and word not in FUNCTION_WORDS | RELATING:
            named.setdefault(_key(word), word)
    numbers = [key for key in named if key.isdecimal()]
    colours = [key for key in named if key in COLOURS]
    words = [key for key in named if key not in {*numbers, *colours}]
    kinds = [_split([named[key] for key in keys], [key in stems for key in keys]) for keys in (words, numbers, colours)]
    asked = quoted(rubric.prompt)
    strings = _split(asked, [normalise(literal) in literals for literal in asked])
    return Coverage(words=kinds[0], quoted=strings, numbers=kinds[1], colours=kinds[2])


def _key(word: str) -> str:
    """What two forms of a word have in common."""
    return NUMBERS.get(word, stem(word))


def _split(things: Sequence[str], spoken: Sequence[bool]) -> Covered:
    pairs = list(zip(things, spoken, strict=True))
    return Covered(tuple(t for t, said in pairs if said), tuple(t for t, said in pairs if not said))


def _texts(criterion: Criterion) -> Iterable[str]:
    """Every text of a criterion that says what is looked for."""
    yield criterion.text
    yield from (anchor.text for anchor in criterion.anchors)
    yield from (option.label for option in criterion.options)
    yield from (value for value in criterion.arguments.values() if isinstance(value, str))
