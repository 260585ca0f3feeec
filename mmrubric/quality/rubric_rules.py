"""Rules that look at a rubric as a whole: repeats, contradictions, dependencies, weights, size."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations

from mmrubric.quality.criterion_rules import wants_true
from mmrubric.quality.finding import Finding, Severity
from mmrubric.rubric import Criterion, Rubric
from mmrubric.similar import (
    COLOURS,
    NEGATIONS,
    RELATING,
    Encoder,
    content,
    groups,
    normalise,
    opposites,
    stem,
    tokens,
    without_quoted,
    word_set,
)

FEWEST, MOST = 3, 25
"""Size of a rubric (RubricHub, arXiv 2601.08430: 3 to 25 criteria)."""
DOMINANT = 0.6
"""Share of the whole weight above which one criterion decides alone."""
OBJECT_KINDS = word_set("object objects entity entities existence presence subject subjects")
DETAIL_KINDS = word_set(
    "attribute attributes relation relations relationship spatial position layout colour color count counting number "
    "texture material shape size action pose state style"
)
_EXACT = word_set("exactly precisely")
_TEXT = word_set("text word words writing lettering letters caption inscription")
_TEXT_STEMS = frozenset(map(stem, _TEXT))
_BOUND = re.compile(r"\b(?:at least|at most|more than|fewer than|less than|or more|or fewer|up to)\b")
_PREDICATE = re.compile(
    rf"\b(?:is|are|painted|coloured|colored)(?: \w+ly| all| all over)? (?:{'|'.join(sorted(COLOURS))}|gray)\b"
)
_INDEFINITE = re.compile(r"^(?:(?:is|are) there |there (?:is|are) |is |are )?(?:a|an|one|some|another)\b")


def repeats(rubric: Rubric, encoder: Encoder | None) -> Iterator[Finding]:
    """Criteria that say the same count twice."""
    for group in groups([criterion.text for criterion in rubric.criteria], encoder=encoder):
        members = [rubric.criteria[index] for index in group]
        # One of them wanted and the other not is a contradiction, which has its own rule.
        for wanted in (True, False):
            ids = sorted(criterion.id for criterion in members if wants_true(criterion) == wanted)
            if len(ids) > 1:
                message = "say nearly the same, so that it counts several times: keep the most telling one"
                yield Finding("repeats", "warning", tuple(ids), message)


@dataclass(frozen=True)
class _Statement:
    """A binary criterion taken apart."""

    criterion: Criterion
    words: tuple[str, ...]
    """Stems that carry the claim, without 'exactly' and negations."""
    denies: bool
    bounded: bool
    """'At least', 'or more': compatible with other numbers."""
    predicate: bool
    """A colour is said of a thing ('the cube is red'), not used to name one ('a red cube')."""
    indefinite: bool
    """'A cat ...': there may be a second one."""

    @property
    def numbers(self) -> frozenset[str]:
        return frozenset(word for word in self.words if word.isdecimal())

    @property
    def colours(self) -> frozenset[str]:
        return frozenset(self.words) & COLOURS

    def without(self, words: frozenset[str]) -> tuple[str, ...]:
        """The claim with some words left out."""
        return tuple(word for word in self.words if word not in words)


def _statement(criterion: Criterion) -> _Statement:
    plain = normalise(criterion.text)
    return _Statement(
        criterion,
        tuple(word for word in content(criterion.text) if word not in _EXACT | NEGATIONS),
        bool(NEGATIONS & set(tokens(without_quoted(criterion.text)))),
        bool(_BOUND.search(plain)),
        bool(_PREDICATE.search(plain)),
        bool(_INDEFINITE.search(plain)),
    )


def contradictions(rubric: Rubric, encoder: Encoder | None) -> Iterator[Finding]:
    """Pairs that no sample can satisfy, by wording alone; both sides of a negation are looked at."""
    statements = [_statement(criterion) for criterion in rubric.criteria if criterion.scale == "binary"]
    for pair in combinations(sorted(statements, key=lambda statement: statement.criterion.id), 2):
        first, second = pair
        ids = (first.criterion.id, second.criterion.id)
        same_wish = wants_true(first.criterion) == wants_true(second.criterion)
        if first.words and first.words == second.words:
            yield from _denied(first, second, ids, same_wish)
        elif same_wish and (clash := _clash(first, second)) is not None:
            severity, why = clash
            message = f"{why}: no sample satisfies both; keep the one that the prompt asks for"
            yield Finding("contradiction", severity, ids, message)


def _denied(first: _Statement, second: _Statement, ids: tuple[str, str], same_wish: bool) -> Iterator[Finding]:
    """Two criteria with the same words, of which one may be denied or unwanted."""
    opposed = (first.denies == second.denies) != same_wish
    if opposed:
        message = "one wants what the other forbids: no sample satisfies both; remove one of them"
        yield Finding("contradiction", "error", ids, message)
    elif first.denies != second.denies:
        message = "say the same, once as a wish and once as a denial: keep one of them"
        yield Finding("repeats", "warning", ids, message)


def _clash(first: _Statement, second: _Statement) -> tuple[Severity, str] | None:
    """Why two different statements that are both wanted cannot both be true, or None."""
    if first.denies or second.denies or not wants_true(first.criterion):
        return None
    for name in ("numbers", "colours"):
        mine, theirs = getattr(first, name), getattr(second, name)
        if not mine or not theirs or mine & theirs or first.without(mine) != second.without(theirs):
            continue
        if all(_fixes(statement, name) for statement in (first, second)):
            return "error", f"different {name} ({_listed(mine)} and {_listed(theirs)}) of the same thing"
    why = _opposite(first, second) or _both_ways(first, second)
    return ("warning", why) if why else None


def _fixes(statement: _Statement, name: str) -> bool:
    """Whether no other number or colour can be true beside the one that is stated."""
    return not statement.bounded if name == "numbers" else statement.predicate and not statement.indefinite


def _opposite(first: _Statement, second: _Statement) -> str:
    """The same claim with 'left' and with 'right'."""
    for word in sorted(set(first.words)):
        for other in sorted(opposites(word) & set(second.words)):
            mine, theirs = first.without(frozenset({word})), second.without(frozenset({other}))
            # 'A cat on the left' and 'a cat on the right' are two cats; with a second thing named they are not.
            alone = sum(stem not in RELATING for stem in mine) < 2 and (first.indefinite or second.indefinite)
            if mine == theirs and not alone:
                return f"'{word}' and '{other}' of the same things"
    return ""


def _both_ways(first: _Statement, second: _Statement) -> str:
    """A left of B, and B left of A."""
    for word in sorted(set(first.words) & set(second.words)):
        (before, after), (theirs_before, theirs_after) = _sides(first.words, word), _sides(second.words, word)
        if opposites(word) and before != after and (before, after) == (theirs_after, theirs_before):
            return f"'{word}' in both directions"
    return ""


def _sides(words: tuple[str, ...], word: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is named before and after a word."""
    place = words.index(word)
    before, after = words[:place], words[place + 1 :]
    return tuple(w for w in before if w not in RELATING), tuple(w for w in after if w not in RELATING)


def _listed(words: frozenset[str]) -> str:
    return ", ".join(sorted(words))


def dependencies(rubric: Rubric, encoder: Encoder | None) -> Iterator[Finding]:
    """A child speaks of what its parent is about, and what depends on an object says so."""
    things = {criterion.id: _things(criterion) for criterion in rubric.criteria}
    # 'A red cube' is not the object of 'the blue cube is shiny', so its colour counts here.
    named = {criterion.id: things[criterion.id] | _colours(criterion) for criterion in rubric.criteria}
    objects = {
        criterion.id
        for criterion in rubric.criteria
        if OBJECT_KINDS & set(tokens(criterion.category)) and wants_true(criterion) and things[criterion.id]
    }
    for child in rubric.criteria:
        for parent in child.depends_on:
            if things[parent] and not things[parent] & things[child.id]:
                message = (
                    f"depends on {parent!r} but names nothing that it is about: name the object, or drop depends_on"
                )
                yield Finding("dependencies", "warning", (child.id,), message)
        if child.depends_on or child.id in objects or not DETAIL_KINDS & set(tokens(child.category)):
            continue
        parents = sorted(id for id in objects if named[id] <= named[child.id])
        if parents:
            message = (
                f"is about the object of {', '.join(map(repr, parents))}: set depends_on, so that it fails with it"
            )
            yield Finding("dependencies", "note", (child.id,), message)


def _things(criterion: Criterion) -> frozenset[str]:
    """Stems of a text that name things: no numbers, colours, directions or negations.

    'The writing' is about 'the word "OPEN"', so the names for something written are one.
    """
    return frozenset(
        "text" if word in _TEXT_STEMS else word
        for word in content(criterion.text)
        if not (word.isdecimal() or word in COLOURS | NEGATIONS | RELATING | _EXACT or opposites(word))
    )


def _colours(criterion: Criterion) -> frozenset[str]:
    return frozenset(content(criterion.text)) & COLOURS


def weights(rubric: Rubric, encoder: Encoder | None) -> Iterator[Finding]:
    """No criterion outweighs all others by far; a single criterion is a matter of size."""
    total = sum(abs(criterion.weight) for criterion in rubric.criteria)
    for criterion in rubric.criteria:
        share = abs(criterion.weight) / total
        if len(rubric.criteria) > 1 and share > DOMINANT:
            message = f"carries {100 * share:.0f} % of the weight: lower it, or make it a gate with hard: true"
            yield Finding("weights", "warning", (criterion.id,), message)


def size(rubric: Rubric, encoder: Encoder | None) -> Iterator[Finding]:
    """Too few criteria tie too often, too many blur what matters."""
    count = len(rubric.criteria)
    if count < FEWEST:
        message = f"{count} criteria are too few: many samples will tie; write at least {FEWEST}"
        yield Finding("size", "warning", (), message)
    if count > MOST:
        message = f"{count} criteria are too many: merge or drop the least important; keep at most {MOST}"
        yield Finding("size", "warning", (), message)


RUBRIC_RULES = (repeats, contradictions, dependencies, weights, size)
