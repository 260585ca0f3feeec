"""From what is shown to the chat call that asks about it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from judges.vlm.exemplars import Exemplar, RankExemplar
from judges.vlm.scales import FIELDS, codes, schema_of
from judges.vlm.settings import Settings
from judges.vlm.showing import Shown, parts_of, prepare
from judges.vlm.templates import Templates
from judges.vlm.wording import batch_question, question, rank_question
from mmrubric.chat import ChatRequest, Message
from mmrubric.errors import InputError
from mmrubric.preference import seeded_rng
from mmrubric.rubric import Criterion
from mmrubric.store import canonical_json

_TOP_LOGPROBS = 20
"""As many alternatives as servers give (vLLM refuses 21)."""


class Questions:
    """Builds the chat calls of one judge.

    Raises:
        InputError: an exemplar's picture cannot be read, or its answer cannot be given in one token.
    """

    def __init__(self, settings: Settings, templates: Templates, exemplars: Sequence[Exemplar | RankExemplar]) -> None:
        self._settings = settings
        self._templates = templates
        self._turns: tuple[Message, ...] = ()
        for number, exemplar in enumerate(exemplars):
            try:
                self._turns += self._worked(exemplar)
            except InputError as error:
                raise InputError(f"exemplar {number}: {error}") from error

    def identity(self) -> list[Any]:
        """The worked examples as JSON, pictures by content hash, for the judge's id."""
        return [turn.canonical() for turn in self._turns]

    def one(self, shown: Shown, criterion: Criterion) -> ChatRequest:
        """About one criterion, as JSON or as one token."""
        text = question(criterion, shown.thing, self._settings.read, self._templates)
        if self._settings.read == "logprob":
            # Not constrained: a grammar would renormalise the probabilities and hide those of other tokens.
            return self._request("score", shown, text, max_tokens=1, top_logprobs=_TOP_LOGPROBS, cut_is_fine=True)
        return self._request("score", shown, text, schema=_entry_schema({"reason": _TEXT}, criterion))

    def batch(self, shown: Shown, criteria: Sequence[Criterion]) -> ChatRequest:
        """About several criteria, in an order that a seed and the content decide."""
        ids = [criterion.id for criterion in criteria]
        content = canonical_json([self._settings.seed, shown.hashes, shown.prompt, ids])
        order = seeded_rng("batch", content).permutation(len(criteria))
        text = batch_question([criteria[k] for k in order], shown.thing, self._templates)
        return self._request(
            "score",
            shown,
            text,
            schema=_batch_schema(criteria),
            max_tokens=self._settings.max_tokens * (3 + len(criteria)) // 4,
        )

    def rank(self, shown: Shown, criteria: Sequence[Criterion]) -> ChatRequest:
        """Which of two candidates is better by all criteria."""
        text = rank_question(criteria, shown.thing, self._templates)
        ranks = {"type": "array", "items": {"type": "integer", "enum": [1, 2]}, "minItems": 2, "maxItems": 2}
        return self._request("rank", shown, text, schema=_object(reason=_TEXT, rank=ranks))

    def _request(
        self, system: str, shown: Shown, text: str, schema: dict[str, Any] | None = None, **options: Any
    ) -> ChatRequest:
        if schema is not None:
            named = {"name": "verdict", "strict": True, "schema": schema}
            options = {"max_tokens": self._settings.max_tokens, **options}
            options["response_format"] = {"type": "json_schema", "json_schema": named}
        intro = self._templates.fill("system", system, things=f"{shown.thing}s")
        opening = (Message.of("system", intro),) if intro.strip() else ()
        return ChatRequest(
            (*opening, *self._turns, Message.of("user", *parts_of(shown, text, self._templates))),
            temperature=self._settings.temperature,
            seed=self._settings.sampling_seed,
            extra_body=self._settings.extra_body,
            **options,
        )

    def _worked(self, exemplar: Exemplar | RankExemplar) -> tuple[Message, ...]:
        shown = prepare(exemplar.request, self._settings.images)
        if isinstance(exemplar, RankExemplar):
            text = rank_question(exemplar.request.rubric.criteria, shown.thing, self._templates)
            return self._turn(shown, text, _json(reason=exemplar.reason, rank=list(exemplar.rank)))
        criteria = [c for c in exemplar.request.rubric.criteria if c.id in exemplar.answers]
        if self._settings.mode == "batched":
            text = batch_question(criteria, shown.thing, self._templates)
            entries = [{"id": c.id, **_entry(c, exemplar)} for c in criteria]
            return self._turn(shown, text, _json(verdicts=entries))
        turns: tuple[Message, ...] = ()
        for criterion in criteria:
            text = question(criterion, shown.thing, self._settings.read, self._templates)
            turns += self._turn(shown, text, self._reply(criterion, exemplar))
        return turns

    def _turn(self, shown: Shown, text: str, reply: str) -> tuple[Message, ...]:
        return Message.of("user", *parts_of(shown, text, self._templates)), Message.of("assistant", reply)

    def _reply(self, criterion: Criterion, exemplar: Exemplar) -> str:
        if self._settings.read == "json":
            return _json(**_entry(criterion, exemplar))
        answer = exemplar.answers[criterion.id]
        code = next((code for code, meant in codes(criterion).items() if meant == answer), None)
        if code is None:
            raise InputError(f"criterion {criterion.id!r}: answer {answer!r} cannot be given with read='logprob'")
        return code


_TEXT = {"type": "string"}


def _entry(criterion: Criterion, exemplar: Exemplar) -> dict[str, Any]:
    reason = exemplar.reasons.get(criterion.id, "")
    return {"reason": reason, FIELDS[criterion.scale]: exemplar.answers[criterion.id]}


def _json(**fields: Any) -> str:
    return json.dumps(fields, ensure_ascii=False)


def _object(**properties: Any) -> dict[str, Any]:
    """A closed object with its fields in this order: back ends enforce the order in which they are declared."""
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _entry_schema(before: dict[str, Any], criterion: Criterion) -> dict[str, Any]:
    return _object(**before, **{FIELDS[criterion.scale]: schema_of(criterion)})


def _batch_schema(criteria: Sequence[Criterion]) -> dict[str, Any]:
    """An array with one kind of entry for each kind of answer. That each id comes once is checked on reading."""
    kinds: dict[str, list[Criterion]] = {}
    for criterion in criteria:
        kinds.setdefault(canonical_json([criterion.scale, schema_of(criterion)]), []).append(criterion)
    entries = [
        _entry_schema({"id": {"type": "string", "enum": [c.id for c in kind]}, "reason": _TEXT}, kind[0])
        for kind in kinds.values()
    ]
    items = entries[0] if len(entries) == 1 else {"anyOf": entries}
    return _object(verdicts={"type": "array", "items": items, "minItems": len(criteria), "maxItems": len(criteria)})
