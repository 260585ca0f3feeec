"""Asks a model for plain text that a parser can read: second chances, and the store.

The twin of `mmrubric.llm_asking.Asker.json` for models that were taught to write something other than JSON.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from contextlib import suppress
from typing import TypeVar

from mmrubric.chat import ChatReply, ChatRequest, Message
from mmrubric.chat_client import ChatClient
from mmrubric.generators.llm import GenerationFailed
from mmrubric.store import Store, request_key
from mmrubric.verdict import Failure

T = TypeVar("T")
_KIND = "generator text"
_GROWTH = 4
"""How much larger max_tokens gets after an answer that was cut off."""
_QUOTED = 2000
"""Characters of a bad answer that are shown to the model again."""


async def ask_text(
    client: ChatClient, store: Store | None, request: ChatRequest, read: Callable[[str], T], re_asks: int
) -> T:
    """What `read` makes of the answer.

    An answer that `read` refuses is shown to the model with the complaint; one that was cut off is asked for again
    with more room. What is stored is the answer as it came, under the request that got it; the first request points
    there.

    Args:
        client: where to ask.
        store: answers of earlier runs.
        request: what to ask.
        read: raises ValueError with a complaint that the model can act on.
        re_asks: second chances, whatever their reason.

    Raises:
        GenerationFailed: no readable answer, with the type of the failure and the last complaint.
    """
    key = request_key(client.sent(request))
    stored = None if store is None else _stored(store, key)
    if stored is not None:
        # A parser that took more may have kept an answer that this one refuses: then the model is asked, and what it
        # answers takes that one's place.
        with suppress(ValueError):
            return read(stored)
    asked, failure, detail = request, Failure.unparsable, ""
    for _ in range(re_asks + 1):
        reply = await client.chat(asked)
        if reply.failure is None:
            try:
                value = read(reply.text or "")
            except ValueError as error:
                failure, detail = Failure.unparsable, str(error)
            else:
                _keep(store, key, reply, replace=stored is not None)
                return value
        else:
            failure, detail = reply.failure, reply.detail
        if failure is Failure.truncated:
            asked = dataclasses.replace(asked, max_tokens=asked.max_tokens * _GROWTH)
        elif failure is Failure.unparsable:
            asked = _with_complaint(asked, reply, detail)
        else:
            break
    raise GenerationFailed(f"{failure.value}: {detail}")


def _with_complaint(request: ChatRequest, reply: ChatReply, complaint: str) -> ChatRequest:
    # Half of a surrogate pair cannot be sent back, and an empty turn is refused by some chat templates.
    answer = (reply.text or "").encode(errors="replace").decode().strip()[:_QUOTED] or "(no answer)"
    turn = f"This answer cannot be used: {complaint[:_QUOTED]}\nWrite the whole answer again in the same form."
    again = (*request.messages, Message.of("assistant", answer), Message.of("user", turn))
    return dataclasses.replace(request, messages=again)


def _stored(store: Store, key: str) -> str | None:
    entry = store.get_json(key, _KIND)
    if entry is not None and "asked_again" in entry:
        entry = store.get_json(entry["asked_again"], _KIND)
    return None if entry is None else entry["answer"]


def _keep(store: Store | None, key: str, reply: ChatReply, replace: bool) -> None:
    if store is None:
        return
    got = request_key(reply.sent)
    entries = [(got, {"answer": reply.text})]
    if got != key:
        entries.append((key, {"asked_again": got}))
    store.put_many_json(entries, _KIND, replace)
