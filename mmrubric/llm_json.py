"""Asks a model for one JSON object: strict reading, and a bounded number of second chances.

What cannot be read is asked again, and then is a typed failure. Nothing is repaired, guessed or filled in.
"""

from __future__ import annotations

import asyncio
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

from mmrubric.chat import ChatReply, ChatRequest, Message
from mmrubric.chat_client import ChatClient
from mmrubric.verdict import FREE, Cost, Failure

T = TypeVar("T")

_GROWTH = 4
"""How much larger max_tokens gets after an answer that was cut off."""
_QUOTED = 2000
"""Characters of a bad answer that are shown to the model again."""
_LOST = 64
"""Blanks at the end of an answer that was cut off, from which on the model is taken to be lost in blanks."""


class BadAnswer(ValueError):
    """What a validator raises to give its complaint a type other than `unparsable`."""

    def __init__(self, message: str, failure: Failure = Failure.unparsable) -> None:
        super().__init__(message)
        self.failure = failure


@dataclass(frozen=True)
class JsonReply(Generic[T]):
    """Outcome of `ask_json`: a value, or why there is none."""

    value: T | None = None
    """What `validate` returned; None when `failure` is set."""
    failure: Failure | None = None
    detail: str = ""
    found: dict[str, Any] | None = None
    """The last object that could be read, also when `validate` refused it: a list of verdicts may be usable in part."""
    cost: Cost = FREE
    """All calls together, with their attempts."""
    calls: int = 0
    """Chat calls: 1, and one more per second chance."""
    sent: str = ""
    """Canonical JSON of the last request, which got the answer: the key for a store."""
    reply: ChatReply = field(default_factory=ChatReply)
    """Reply to the last request."""


async def ask_json(
    client: ChatClient,
    request: ChatRequest,
    validate: Callable[[dict[str, Any]], T],
    *,
    re_asks: int = 1,
    route: str | None = None,
    deadline: float | None = None,
) -> JsonReply[T]:
    """One JSON object from a model, checked by `validate`.

    An answer that is no JSON object, or that `validate` refuses, is shown to the model with the error, in a new user
    turn. An answer that was cut off is asked for again with `max_tokens` times 4. Refusals, timeouts and errors of the
    server are not asked again: the client has retried what a retry can help.

    Args:
        client: where to ask.
        request: what to ask; a `response_format` is sent along, but never trusted.
        validate: gets the object and returns the value of the result. Raises ValueError with a message that helps the
            model, or `BadAnswer` to set the type of the failure.
        re_asks: second chances, whatever their reason.
        route: see `ChatClient.chat`.
        deadline: seconds for all calls together.

    Raises:
        EndpointError: see `ChatClient.chat`.
    """
    loop = asyncio.get_running_loop()
    end = None if deadline is None else loop.time() + deadline
    cost, calls, found = Cost(), 0, None
    while True:
        left = None if end is None else end - loop.time()
        reply = await client.chat(request, route=route, deadline=left)
        cost, calls = cost + reply.cost, calls + 1
        value, failure, detail = None, reply.failure, reply.detail
        if failure is None:
            try:
                found = parse_object(reply.text or "")
                value = validate(found)
            except ValueError as error:
                failure = error.failure if isinstance(error, BadAnswer) else Failure.unparsable
                detail = str(error)
        following = None if calls > re_asks else _second_chance(request, reply, failure, detail)
        if following is None:
            return JsonReply(value, failure, detail, found, cost, calls, reply.sent, reply)
        request = following


def parse_object(text: str) -> dict[str, Any]:
    """The one JSON object in a text. Around it there may be prose or a code fence, but no further brace.

    Raises:
        ValueError: no object, more than one, an object inside a list, broken JSON, a key given twice, or a number
            that is not finite. Broken JSON is never repaired.
    """
    start = text.find("{")
    if start < 0:
        raise ValueError("the answer holds no JSON object")
    if text[:start].rstrip().endswith("["):
        raise ValueError("the answer is a list; give one JSON object")
    decoder = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_not_a_number, parse_float=_finite)
    try:
        found, end = decoder.raw_decode(text, start)
    except RecursionError:
        raise ValueError("the answer is nested too deeply") from None
    if "{" in text[end:] or "}" in text[end:]:
        raise ValueError("the answer holds more than one JSON object, or text with braces around it")
    # Half of a surrogate pair is legal JSON but no text that can be stored.
    json.dumps(found, ensure_ascii=False).encode()
    return found


def _second_chance(request: ChatRequest, reply: ChatReply, failure: Failure | None, detail: str) -> ChatRequest | None:
    if failure is Failure.truncated:
        larger = replace(request, max_tokens=request.max_tokens * _GROWTH)
        text = reply.text or ""
        if len(text) - len(text.rstrip()) < _LOST:
            return larger
        # The same request again would fill any budget with blanks.
        return _with_complaint(larger, reply, "it ends in blanks; write compact JSON")
    if reply.failure in (None, Failure.unparsable) and failure is not None:
        return _with_complaint(request, reply, detail)
    return None


def _with_complaint(request: ChatRequest, reply: ChatReply, complaint: str) -> ChatRequest:
    # Half of a surrogate pair cannot be sent back, and an empty turn is refused by some chat templates.
    answer = (reply.text or "").encode(errors="replace").decode().strip()[:_QUOTED] or "(no answer)"
    turn = f"This answer cannot be used: {complaint[:_QUOTED]}\nAnswer again, with the JSON object alone."
    again = (*request.messages, Message.of("assistant", answer), Message.of("user", turn))
    return replace(request, messages=again)


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} is given twice")
    return found


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise ValueError(f"number {text} is too large")
    return value


def _not_a_number(text: str) -> float:
    raise ValueError(f"{text} is not a JSON number")
