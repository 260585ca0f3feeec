"""Gets the answer to one chat call: from the store if it is there, else from the model, and then stores it.

What is stored is the answer as it came, not what it meant: an edited anchor value, expected answer or weight changes
the meaning of an answer, but not the request, and must not bring back a stale verdict.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeAlias, TypeVar

from mmrubric.chat import ChatReply, ChatRequest
from mmrubric.chat_client import ChatClient
from mmrubric.llm_json import BadAnswer, ask_json
from mmrubric.store import Store, request_key
from mmrubric.verdict import FREE, Cost, Failure

T = TypeVar("T")
TopTokens: TypeAlias = Sequence[tuple[str, float]]
"""Most probable tokens at one position, each with its natural log-probability; one text may occur twice."""


@dataclass(frozen=True)
class Answer(Generic[T]):
    """What a call gave: a value, or why there is none."""

    value: T | None = None
    failure: Failure | None = None
    detail: str = ""
    cost: Cost = FREE
    found: dict[str, Any] | None = None
    """Beside a failure: the last JSON object that came, of which a part may be usable."""


@dataclass(frozen=True)
class Reading(Generic[T]):
    """A readable answer: its value, and what of it is kept in the store (None = nothing)."""

    value: T
    kept: Any


class Asker:
    """Asks one model, past a store where there is one.

    Args:
        client: where to ask.
        store: answers of earlier runs; keyed by the request that was really sent.
        repeat: number of the asking; other numbers do not see one another's answers.
        kind: of the entries in the store.
    """

    def __init__(self, client: ChatClient, store: Store | None, repeat: int = 0, kind: str = "vlm answer") -> None:
        self.client = client
        self._store = store
        self._repeat = repeat
        self._kind = kind

    async def json(
        self, request: ChatRequest, read: Callable[[Any], Reading[T]], route: str | None, re_asks: int
    ) -> Answer[T]:
        """An answer in JSON; `read` raises `BadAnswer` for one that it cannot use."""
        stored, refused = self._stored(request, read)
        if stored is not None:
            return stored
        reply = await ask_json(self.client, request, read, re_asks=re_asks, route=route)
        if reply.value is None:
            return Answer(None, reply.failure, reply.detail, reply.cost, reply.found)
        self._keep(request, reply.sent, reply.value.kept, refused)
        return Answer(reply.value.value, cost=reply.cost)

    async def first_token(self, request: ChatRequest, read: Callable[[Any], Reading[T]], route: str) -> Answer[T]:
        """An answer in one token; `read` gets the most probable tokens with their log-probabilities."""
        stored, refused = self._stored(request, read)
        if stored is not None:
            return stored
        reply = await self.client.chat(request, route=route)
        if reply.failure is not None:
            return Answer(None, reply.failure, reply.detail, reply.cost)
        try:
            reading = read(first_top(reply))
        except BadAnswer as error:
            return Answer(None, error.failure, str(error), reply.cost)
        self._keep(request, reply.sent, reading.kept, refused)
        return Answer(reading.value, cost=reply.cost)

    def _stored(self, request: ChatRequest, read: Callable[[Any], Reading[T]]) -> tuple[Answer[T] | None, bool]:
        """An answer that can be used, and whether there is one that cannot."""
        refused = False
        if self._store is None:
            return None, refused
        for form in self.client.sent_forms(request):
            entry = self._store.get_json(self._key(form), self._kind)
            if entry is not None and "asked_again" in entry:
                entry = self._store.get_json(entry["asked_again"], self._kind)
            if entry is not None:
                try:
                    return Answer(read(entry["answer"]).value, cost=Cost(cached=True)), refused
                except BadAnswer:
                    # Kept under looser options, such as a larger off_mass; another form may hold a newer one.
                    refused = True
        return None, refused

    def _keep(self, request: ChatRequest, sent: str, answer: Any, replace: bool) -> None:
        if self._store is None or answer is None:
            return
        entries = [(self._key(sent), {"answer": answer})]
        if sent not in self.client.sent_forms(request):
            # It took a second chance, which holds the bad answer. The first request points there, so that a later
            # run finds the answer, yet no answer stands under a request that did not get it.
            entries.append((self._key(self.client.sent(request)), {"asked_again": entries[0][0]}))
        self._store.put_many_json(entries, self._kind, replace)

    def _key(self, sent: str) -> str:
        return request_key(sent, self._repeat)


def first_top(reply: ChatReply) -> TopTokens:
    """The most probable tokens at the first position; empty when the server gave no log-probabilities.

    Some servers leave the chosen token out of its alternatives. Tokens of probability 0 are dropped.
    """
    if not reply.tokens:
        return []
    token = reply.tokens[0]
    top = list(token.top)
    if token.text not in [text for text, _ in top]:
        top.append((token.text, token.logprob))
    return [(text, logprob) for text, logprob in top if logprob != -math.inf]
