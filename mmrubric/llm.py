"""The only HTTP client: OpenAI-compatible chat with one retry layer, bounded concurrency and full accounting.

A call ends as a `ChatReply` that holds text or a typed `Failure`, never a made-up answer. Errors that every
other call would meet as well (wrong key, unknown model) raise `EndpointError` at once.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import time
import weakref
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, stop_after_attempt

from mmrubric.chat import ChatReply, ChatRequest, Endpoint, EndpointError, Usage
from mmrubric.chat_breaker import Breaker
from mmrubric.chat_client import Call, ChatClient
from mmrubric.chat_errors import CallFailed, classify
from mmrubric.chat_format import FormatMemory
from mmrubric.chat_reply import read_reply
from mmrubric.errors import InputError

__all__ = ["LLM", "ChatClient", "ChatReply", "ChatRequest", "Endpoint", "EndpointError", "Usage", "only_model"]

_BEGUN_PER_SLOT = 4


@dataclass(frozen=True)
class _Connection:
    """What belongs to one event loop; a second loop must not touch it."""

    client: Any
    slots: asyncio.Semaphore
    """One per request in flight; free again while a failed call waits for its next attempt."""
    begun: asyncio.Semaphore
    """One per call from its first attempt to its end. Without it a batch of 10,000 would make 10,000 first attempts
    at a dead server before the first call has used up its retries and the breaker learns of it."""


class LLM(ChatClient):
    """Client of one endpoint. Safe for several threads and event loops; each loop has its own connections.

    Args:
        endpoint: address, model, limits.
        sleep: how to wait between attempts (tests hand in a fake clock).
        clock: time of the circuit breaker in seconds.
        seed: of the jitter; None = random.
        pool: the pool that this server belongs to; they share counts and refused formats.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
        pool: ChatClient | None = None,
    ) -> None:
        super().__init__(
            endpoint.model,
            endpoint.base_url,
            Usage(endpoint.price_prompt, endpoint.price_completion) if pool is None else pool.usage,
            FormatMemory() if pool is None else pool.formats,
        )
        self.endpoint = endpoint
        self.breaker = Breaker(endpoint.base_url, endpoint.breaker_failures, endpoint.breaker_cooldown, clock)
        self._sleep = sleep
        self._random = random.Random(seed)
        self._per_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, _Connection] = weakref.WeakKeyDictionary()

    async def aclose(self) -> None:
        """Closes the connections of the running loop; they open again when needed."""
        connection = self._per_loop.pop(asyncio.get_running_loop(), None)
        if connection is not None:
            await connection.client.close()

    async def _answer(self, call: Call) -> ChatReply:
        return await self.serve(call)

    async def serve(self, call: Call, *, retry_unreachable: bool = True) -> ChatReply:
        """The reply to a call by this server. A pool that has another server left does not retry a dead one.

        Raises:
            CallFailed: after the last attempt, at the deadline, or at once while the breaker is open.
            EndpointError: see `chat`.
        """
        connection = self._connection()

        def again(error: BaseException) -> bool:
            return isinstance(error, CallFailed) and error.retry and (retry_unreachable or not error.unreachable)

        def in_time(state: RetryCallState) -> None:
            if not call.has_time_for(state.upcoming_sleep):
                last = _error(state)
                raise call.too_late(outage=last is not None and last.outage)

        retrying = AsyncRetrying(
            retry=retry_if_exception(again),
            stop=stop_after_attempt(self.endpoint.max_retries + 1),
            wait=self._wait,
            before_sleep=in_time,
            sleep=self._sleep,
            reraise=True,
        )
        async with connection.begun:
            with self.breaker.guard():
                try:
                    async with asyncio.timeout_at(call.end) as limit:
                        return await retrying(self._attempt, call, connection, limit)
                except TimeoutError:
                    raise call.too_late(outage=True) from None

    async def _attempt(self, call: Call, connection: _Connection, limit: asyncio.Timeout) -> ChatReply:
        async with connection.slots:
            if call.end is None and self.endpoint.deadline is not None:
                # From the first attempt on; the wait for its turn in a long batch does not count.
                call.end = asyncio.get_running_loop().time() + self.endpoint.deadline
                limit.reschedule(call.end)
            while True:
                call.sent = self.formats.apply(call.request)
                try:
                    return await self._post(call, connection.client)
                except CallFailed as error:
                    # Not a retry: another request, which the server may take. Ends at the plainest form.
                    if not self.formats.refuse(call.sent, error):
                        raise

    async def _post(self, call: Call, client: Any) -> ChatReply:
        try:
            # httpx limits the silence between two bytes; a server that trickles needs a limit on the whole.
            async with asyncio.timeout(self.endpoint.timeout):
                raw = await client.chat.completions.with_raw_response.create(model=self.model, **call.sent.wire())
                body = json.loads(raw.text)
            reply, cost = read_reply(body, call.sent)
        except asyncio.CancelledError:
            call.spent.append(self.usage.attempt(None))
            raise
        except Exception as error:
            failed = classify(error, self.endpoint)
            call.trouble = failed.detail
            call.spent.append(self.usage.attempt(failed.usage))
            raise failed from error
        call.spent.append(self.usage.attempt(cost))
        return reply

    def _wait(self, state: RetryCallState) -> float:
        """Seconds before the next attempt: doubled each time, half jittered, never below Retry-After."""
        error = _error(state)
        asked = None if error is None else error.retry_after
        delay = min(self.endpoint.backoff_max, self.endpoint.backoff * 2 ** (state.attempt_number - 1))
        return max(asked or 0.0, delay * (0.5 + 0.5 * self._random.random()))

    def _connection(self) -> _Connection:
        loop = asyncio.get_running_loop()
        if loop not in self._per_loop:
            from openai import AsyncOpenAI

            # Local servers take any key. max_retries=0: this module is the one retry layer.
            client = AsyncOpenAI(
                base_url=self.endpoint.base_url,
                api_key=os.environ.get(self.endpoint.api_key_env) or "none",
                timeout=self.endpoint.timeout,
                max_retries=0,
            )
            slots = self.endpoint.concurrency
            self._per_loop[loop] = _Connection(
                client, asyncio.Semaphore(slots), asyncio.Semaphore(_BEGUN_PER_SLOT * slots)
            )
        return self._per_loop[loop]


def only_model(base_url: str, api_key_env: str = "OPENAI_API_KEY") -> str:
    """Name of the one model that a server serves.

    Raises:
        InputError: it serves several, which are listed, or none.
        EndpointError: it cannot be asked.
    """
    import openai

    client = openai.OpenAI(
        base_url=base_url, api_key=os.environ.get(api_key_env) or "none", timeout=10.0, max_retries=2
    )
    try:
        with client:
            served = [model.id for model in client.models.list().data]
    except openai.OpenAIError as error:
        raise EndpointError(f"{base_url}: the server cannot be asked for its models: {error}") from error
    if len(served) != 1:
        listed = ", ".join(served) or "none"
        raise InputError(f"{base_url} serves these models: {listed}; name the one to use (--judge-option model=NAME)")
    return served[0]


def _error(state: RetryCallState) -> CallFailed | None:
    error = state.outcome.exception() if state.outcome else None
    return error if isinstance(error, CallFailed) else None
