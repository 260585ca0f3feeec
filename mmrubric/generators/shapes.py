"""Rubrics of the shapes world, by rules: the prompt is parsed and each thing it asks for becomes a criterion."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mmrubric.errors import InputError
from mmrubric.generators.base import RubricGenerator, registry
from mmrubric.prompt import Grounding, Prompt, Sources, sources_of
from mmrubric.rubric import Criterion, Provenance, Rubric
from mmrubric.shapes.grammar import COUNT_WORDS, PLURALS, Spec, Subject, parse
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

VERIFIER = "rule:shapes"
_TAGS = Tags(Construction.human_expert, Optimisation.none, Signal.output_level, Loop.none)


@registry.register("shapes", _TAGS)
class ShapesGenerator(RubricGenerator):
    """4 to 10 criteria of the kinds object, count, attribute, relation, text and realism.

    A statement about something that is missing is false, not unknown: 'the circle is red' fails without a circle.
    """

    async def generate(
        self,
        prompt: Prompt | str,
        source: Sources = None,
        grounding: Grounding | None = None,
        exemplars: Sequence[Any] = (),
    ) -> Rubric:
        if sources_of(source, "generator 'shapes'") or grounding is not None or exemplars:
            raise InputError("generator 'shapes' takes a prompt only: no source, grounding or exemplars")
        text = prompt.text if isinstance(prompt, Prompt) else prompt
        return Rubric(
            prompt=text, criteria=tuple(criteria_of(parse(text))), provenance=Provenance(generator="shapes/1")
        )


def criteria_of(spec: Spec) -> list[Criterion]:
    """The criteria of a parsed prompt, objects first, realism last."""
    criteria = _writing(spec) if spec.word is not None else _shapes(spec)
    criteria.append(
        _criterion("background", "attribute", f"The background is {spec.background}.", colour=spec.background)
    )
    criteria.append(
        _criterion(
            "nothing_else",
            "realism",
            "Nothing else is in the picture.",
            shapes=[subject.shape for subject in spec.subjects],
            word=spec.word is not None,
        )
    )
    return criteria


def _writing(spec: Spec) -> list[Criterion]:
    return [
        _criterion("writing", "object", "A written word is visible."),
        _criterion("text", "text", f'The word "{spec.word}" is written.', ("writing",), word=spec.word),
        _criterion(
            "writing_colour",
            "attribute",
            f"The writing is {spec.word_colour}.",
            ("writing",),
            colour=spec.word_colour,
        ),
    ]


def _shapes(spec: Spec) -> list[Criterion]:
    subjects = spec.subjects
    criteria = [_criterion(f"object_{s.shape}", "object", f"A {s.shape} is visible.", shape=s.shape) for s in subjects]
    if len(subjects) == 1:
        only = subjects[0]
        what = f"{COUNT_WORDS.get(only.count, 'one')} {only.shape if only.count == 1 else PLURALS[only.shape]}"
        verb = "is" if only.count == 1 else "are"
        parents = (f"object_{only.shape}",)
        criteria.append(
            _criterion(
                "count",
                "count",
                f"Exactly {what} {verb} visible.",
                parents,
                number=only.count,
                shape=only.shape,
            )
        )
    else:
        criteria.append(_criterion("count", "count", "Exactly two shapes are visible.", number=2))
    for subject in subjects:
        criteria += _attributes(subject)
    if spec.relation is not None:
        first, second = spec.subjects
        criteria.append(
            _criterion(
                "relation",
                "relation",
                f"The {first.shape} is {spec.relation} the {second.shape}.",
                (f"object_{first.shape}", f"object_{second.shape}"),
                first=first.shape,
                second=second.shape,
                relation=spec.relation,
            )
        )
    return criteria


def _attributes(subject: Subject) -> list[Criterion]:
    shape, parents = subject.shape, (f"object_{subject.shape}",)

    def sentence(word: str) -> str:
        if subject.count == 1:
            return f"The {shape} is {word}."
        return f"All {PLURALS[shape]} are {word}."

    made = [
        _criterion(
            f"colour_{shape}",
            "attribute",
            sentence(subject.colour),
            parents,
            shape=shape,
            colour=subject.colour,
        )
    ]
    if subject.size is not None:
        made.append(
            _criterion(f"size_{shape}", "attribute", sentence(subject.size), parents, shape=shape, size=subject.size)
        )
    return made


def _criterion(id: str, category: str, text: str, parents: tuple[str, ...] = (), **arguments: Any) -> Criterion:
    check = id.removesuffix(f"_{arguments['shape']}") if "shape" in arguments else id
    return Criterion(
        id=id,
        text=text,
        category=category,
        depends_on=parents,
        verifier=VERIFIER,
        arguments={"check": check, **arguments},
    )
