"""Rubrics by rules, without a model: what an English prompt names, counts, colours, relates and quotes."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mmrubric.checks import switch
from mmrubric.errors import InputError
from mmrubric.generators import template_words as words
from mmrubric.generators.base import RubricGenerator, registry
from mmrubric.generators.items import slug, with_unique_ids, without_repeats
from mmrubric.generators.template_parse import Reading, number_word, read
from mmrubric.generators.template_things import Thing, singular, with_article
from mmrubric.prompt import Grounding, Prompt, Sources, sources_of
from mmrubric.rubric import Criterion, Provenance, Rubric
from mmrubric.tags import Construction, Loop, Optimisation, Signal, Tags

NAME = "template/1"
_TAGS = Tags(Construction.human_expert, Optimisation.none, Signal.output_level, Loop.none)
_REALISM = (
    ("natural_shapes", "Everything in the picture has a natural shape."),
    ("clean", "The picture is free of visual artefacts."),
)


@registry.register("template", _TAGS)
@dataclass(frozen=True)
class TemplateGenerator(RubricGenerator):
    """Criteria for the facts that a prompt states: objects first, realism last.

    `Criterion.extra` holds each fact in a form for detectors, such as
    {"fact": "colour", "noun": "bus", "value": "red"}; nouns there are in the singular.

    Args:
        realism: add two criteria that hold for any picture.
        ocr: criteria on writing go to the verifier `ocr`; False = to the VLM like all others.
    """

    realism: bool = True
    ocr: bool = True

    def __post_init__(self) -> None:
        switch("generator 'template': realism", self.realism)
        switch("generator 'template': ocr", self.ocr)

    async def generate(
        self,
        prompt: Prompt | str,
        source: Sources = None,
        grounding: Grounding | None = None,
        exemplars: Sequence[Any] = (),
    ) -> Rubric:
        if sources_of(source, "generator 'template'") or grounding is not None or exemplars:
            raise InputError("generator 'template' takes a prompt only: no source, grounding or exemplars")
        text = prompt.text if isinstance(prompt, Prompt) else prompt
        if not text.strip():
            raise InputError("generator 'template': the prompt is blank")
        criteria = self._criteria(read(text))
        notes = ()
        if not criteria:
            criteria = [Criterion(id="depicts", text=f"The picture shows: {text.strip()}", category="object")]
            notes = ("no fact was found in the prompt; it is asked about as a whole",)
        if self.realism:
            criteria += [Criterion(id=id, text=said, category="realism") for id, said in _REALISM]
        return Rubric(prompt=text, criteria=tuple(criteria), provenance=Provenance(generator=NAME, notes=notes))

    def _criteria(self, found: Reading) -> list[Criterion]:
        objects = {index: _object(thing) for index, thing in enumerate(found.things) if _is_visible(thing)}
        unique = dict(zip(objects, with_unique_ids(objects.values()), strict=True))
        ids = {index: criterion.id for index, criterion in unique.items()}
        made = list(unique.values())
        for index, thing in enumerate(found.things):
            parent = (ids[index],) if index in ids else ()
            if thing.number is not None and parent:
                made.append(_count(thing, thing.number, parent))
            if parent or thing.noun in words.PLACES:
                made += [_attribute(thing, word, kind, parent) for word, kind in thing.attributes.items()]
        made += [
            _relation(found.things[link.first], link.words, link.verb, found.things[link.second], ids, link)
            for link in found.links
            if link.first in ids and link.second in ids
        ]
        made += [_action(found.things[index], verb, ids[index]) for index, verb in found.doings if index in ids]
        made += [self._text(literal) for literal in found.texts]
        if found.medium:
            made.append(
                _made("medium", f"The picture is {found.medium}.", "style", (), fact="medium", value=found.medium)
            )
        return without_repeats(with_unique_ids(made))[0]

    def _text(self, literal: str) -> Criterion:
        routed: dict[str, Any] = {"verifier": "ocr", "arguments": {"text": literal}} if self.ocr else {}
        return Criterion(
            id=f"text_{slug(literal)}",
            text=f'The text "{literal}" can be read.',
            category="text",
            extra={"fact": "text", "value": literal},
            **routed,
        )


def _is_visible(thing: Thing) -> bool:
    if re.fullmatch(r"\d+k", thing.noun):
        return False
    return singular(thing.noun) not in words.SCENE and thing.noun not in words.PLACES and not _is_abstract(thing.head)


def _is_abstract(noun: str) -> bool:
    return noun.endswith(words.ABSTRACT_ENDINGS) and noun not in words.CONCRETE


def _is(thing: Thing) -> str:
    return "are" if thing.plural else "is"


def _object(thing: Thing) -> Criterion:
    if thing.absent:
        said = f"No {thing.noun} {_is(thing)} visible."
        return _made(f"no_{slug(thing.noun)}", said, "object", (), fact="absent", noun=thing.singular)
    said = thing.noun if thing.plural else with_article(thing.noun)
    return _made(
        slug(thing.noun),
        f"{said[0].upper()}{said[1:]} {_is(thing)} visible.",
        "object",
        (),
        fact="object",
        noun=thing.singular,
    )


def _count(thing: Thing, number: int, parent: tuple[str, ...]) -> Criterion:
    said = f"Exactly {number_word(number)} {thing.noun} {_is(thing)} visible."
    return _made(f"count_{slug(thing.noun)}", said, "count", parent, fact="count", noun=thing.singular, value=number)


def _attribute(thing: Thing, word: str, kind: str, parent: tuple[str, ...]) -> Criterion:
    said = f"made of {word}" if words.MATERIALS.get(word) == word else word
    return _made(
        f"{kind}_{slug(thing.noun)}_{slug(word)}",
        f"The {thing.noun} {_is(thing)} {said}.",
        "attribute",
        parent,
        fact=kind,
        noun=thing.singular,
        value=words.MATERIALS[word] if kind == "material" else word,
    )


def _relation(first: Thing, said: str, verb: str, second: Thing, ids: dict[int, str], link: Any) -> Criterion:
    finite = said.startswith("has") or (verb and not verb.endswith(("ing", "ed")))
    if said == "has":
        said = "have" if first.plural else "has"
    middle = said if finite else f"{_is(first)} {said}"
    return _made(
        f"{slug(first.noun)}_{slug(said)}_{slug(second.noun)}",
        f"The {first.noun} {middle} the {second.noun}.",
        "action" if verb and said == verb else "relation",
        (ids[link.first], ids[link.second]),
        fact="relation",
        noun=first.singular,
        value=said,
        other=second.singular,
    )


def _action(thing: Thing, verb: str, parent: str) -> Criterion:
    said = f"{_is(thing)} {verb}" if verb.endswith(("ing", "ed")) else verb
    return _made(
        f"{slug(thing.noun)}_{slug(verb)}",
        f"The {thing.noun} {said}.",
        "action",
        (parent,),
        fact="action",
        noun=thing.singular,
        value=verb,
    )


def _made(id: str, text: str, category: str, parents: tuple[str, ...], **fact: Any) -> Criterion:
    return Criterion(id=id, text=text, category=category, depends_on=parents, extra=fact)
