"""What every chat client offers, for one server or several: one call, many calls, deadlines, identity."""

from __future__ import annotations

import asyncio
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from mmrubric.chat import ChatReply, ChatRequest, Usage
from mmrubric.chat_errors import CallFailed
from mmrubric.chat_format import FormatMemory, format_of, forms
from mmrubric.errors import InputError
from mmrubric.judging import run_all, run_sync
from mmrubric.store import canonical_json
from mmrubric.verdict import Cost, Failure

OnReply: TypeAlias = Callable[[int, ChatReply], None]
"""Gets the index of a request and its reply the moment it is there; runs on the event loop, so it must be short."""


@dataclass
class Call:
    """State of one chat call over its attempts and servers."""

    request: ChatRequest
    sent: ChatRequest
    """The form of `request` that was sent last."""
    batch: asyncio.Timeout
    """Deadline of the caller: says nothing about the server."""
    route: str | None = None
    end: float | None = None
    """Loop time at which the endpoint's deadline for one call passes."""
    spent: list[Cost] = field(default_factory=list)
    trouble: str = ""
    """What the last failed attempt died of."""

    def has_time_for(self, seconds: float) -> bool:
        """Whether both deadlines are further away than this."""
        then = asyncio.get_running_loop().time() + seconds
        return all(end is None or then < end for end in (self.batch.when(), self.end))

    def too_late(self, *, outage: bool) -> CallFailed:
        """The failure of a call whose deadline passes."""
        detail = f"the deadline came after {len(self.spent)} attempts" + (self.trouble and f"; {self.trouble}")
        return CallFailed(Failure.timeout, detail, retry=False, outage=outage)


class ChatClient(ABC):
    """A model that answers chat requests. Build one with `mmrubric.llm_pool.connect`.

    Args:
        model: name of the model.
        address: base_url of the server, or the sorted base_urls of several; part of the identity of a request.
        usage: where calls are counted.
        formats: which response formats the server has refused.
    """

    def __init__(self, model: str, address: str | list[str], usage: Usage, formats: FormatMemory) -> None:
        self.model = model
        self.address = address
        self.usage = usage
        self.formats = formats

    @abstractmethod
    async def _answer(self, call: Call) -> ChatReply:
        """The reply to a call, after retries.

        Raises:
            CallFailed: after the last attempt.
            EndpointError: see `chat`.
        """

    @abstractmethod
    async def aclose(self) -> None:
        """Closes the connections of the running loop; they open again when needed."""

    def sent(self, request: ChatRequest) -> str:
        """Canonical JSON of what `chat` sends now, pictures by content hash: give it to `store.request_key`.

        A first refusal of the `response_format` changes what is sent; `ChatReply.sent` tells what really was.
        """
        return self._identity(self.formats.apply(request))

    def sent_forms(self, request: ChatRequest) -> tuple[str, ...]:
        """`sent` for every form in which the request may have been answered, best first.

        For look-ups in a store: a new process does not know yet what the server refused in the last one.
        """
        return tuple(self._identity(form) for form in forms(request))

    async def chat(self, request: ChatRequest, *, route: str | None = None, deadline: float | None = None) -> ChatReply:
        """One chat call, retried where that helps.

        Args:
            request: what to ask.
            route: a hash, such as that of the picture: a pool sends equal routes to the same server, whose prefix
                cache holds the picture. One server ignores it.
            deadline: seconds for everything, the wait for a free slot included; None = no limit but that of the
                endpoint.

        Returns:
            A reply with `text`, or with `failure` after the last attempt. `cost` covers all attempts.

        Raises:
            EndpointError: the endpoint refuses the key or does not know the model or the path.
        """
        self.usage.begin()
        begun = time.monotonic()
        call = Call(request, self.formats.apply(request), asyncio.timeout(deadline), route)
        try:
            async with call.batch:
                reply = await self._answer(call)
        except CallFailed as error:
            reply = _failed(error)
        except TimeoutError:
            # All others have become a CallFailed on the way.
            reply = _failed(call.too_late(outage=False))
        except BaseException:
            self.usage.abort()
            raise
        self.usage.end(reply.failure)
        cost = replace(sum(call.spent, Cost()), seconds=time.monotonic() - begun)
        return replace(reply, cost=cost, sent=self._identity(call.sent), format_used=format_of(call.sent))

    async def map(
        self,
        requests: Sequence[ChatRequest],
        *,
        routes: Sequence[str | None] | None = None,
        deadline: float | None = None,
        on_reply: OnReply | None = None,
    ) -> list[ChatReply]:
        """`chat` for many requests, at most `endpoint.concurrency` at a time; replies in the order of requests.

        Args:
            requests: what to ask.
            routes: one per request, see `chat`.
            deadline: seconds for the whole batch. What is not finished by then is a `timeout` failure; replies
                that are there are kept.
            on_reply: called once per request as its reply, or failure, arrives. Store replies here: a cancelled
                batch returns nothing, but has handed over all that was finished.

        Raises:
            EndpointError: the first one cancels the calls that are left, as does an exception of `on_reply`.
            InputError: as many routes as requests are needed, and a positive deadline.
        """
        if routes is not None and len(routes) != len(requests):
            raise InputError(f"map: {len(routes)} routes for {len(requests)} requests; give one per request")
        if deadline is not None and not deadline > 0:
            raise InputError(f"map: deadline must be a positive number of seconds, got {deadline!r}")
        loop = asyncio.get_running_loop()
        end = None if deadline is None else loop.time() + deadline

        async def one(index: int, request: ChatRequest) -> ChatReply:
            left = None if end is None else end - loop.time()
            reply = await self.chat(request, route=None if routes is None else routes[index], deadline=left)
            if on_reply is not None:
                on_reply(index, reply)
            return reply

        return await run_all(one(index, request) for index, request in enumerate(requests))

    def chat_sync(self, request: ChatRequest, *, route: str | None = None, deadline: float | None = None) -> ChatReply:
        """`chat` for code that is not async; also works inside a running event loop."""
        return run_sync(self.chat(request, route=route, deadline=deadline))

    def map_sync(
        self,
        requests: Sequence[ChatRequest],
        *,
        routes: Sequence[str | None] | None = None,
        deadline: float | None = None,
        on_reply: OnReply | None = None,
    ) -> list[ChatReply]:
        """`map` for code that is not async; also works inside a running event loop. Ctrl-C cancels the batch."""
        return run_sync(self.map(requests, routes=routes, deadline=deadline, on_reply=on_reply))

    def _identity(self, form: ChatRequest) -> str:
        return canonical_json(form.canonical() | {"base_url": self.address, "model": self.model})


def _failed(error: CallFailed) -> ChatReply:
    return ChatReply(failure=error.failure, detail=error.detail, status=error.status)
