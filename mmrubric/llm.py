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
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception_type, stop_after_attempt

from mmrubric.chat import ChatReply, ChatRequest, Endpoint, EndpointError, Usage
from mmrubric.chat_errors import CallFailed, classify
from mmrubric.chat_reply import read_reply
from mmrubric.judging import run_sync
from mmrubric.store import canonical_json
from mmrubric.verdict import Cost

__all__ = ["LLM", "ChatReply", "ChatRequest", "Endpoint", "EndpointError", "Usage"]


class LLM:
    """Client of one endpoint. Safe for several threads and event loops; each loop has its own connections.

    Args:
        endpoint: address, model, limits.
        sleep: how to wait between attempts (tests hand in a fake clock).
        seed: of the jitter; None = random.
    """

    def __init__(
        self,
        endpoint: Endpoint,
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        seed: int | None = None,
    ) -> None:
        self.endpoint = endpoint
        self.usage = Usage(endpoint.price_prompt, endpoint.price_completion)
        self._sleep = sleep
        self._random = random.Random(seed)
        # Clients and semaphores belong to the loop that made them; a second loop must not touch them.
        self._per_loop: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, tuple[Any, asyncio.Semaphore]]
        self._per_loop = weakref.WeakKeyDictionary()

    def sent(self, request: ChatRequest) -> str:
        """Canonical JSON of what `chat` sends, pictures by content hash: give it to `store.request_key`."""
        wire = request.canonical() | {"base_url": self.endpoint.base_url, "model": self.endpoint.model}
        return canonical_json(wire)

    async def chat(self, request: ChatRequest) -> ChatReply:
        """One chat call, retried where that helps.

        Returns:
            A reply with `text`, or with `failure` after the last attempt. `cost` covers all attempts.

        Raises:
            EndpointError: the endpoint refuses the key or does not know the model or the path.
        """
        self.usage.begin()
        started = time.monotonic()
        spent: list[Cost] = []
        try:
            reply = await self._attempts(request, spent)
        except CallFailed as error:
            reply = ChatReply(failure=error.failure, detail=error.detail, status=error.status)
        except BaseException:
            self.usage.abort()
            raise
        self.usage.end(reply.failure)
        cost = replace(sum(spent, Cost()), seconds=time.monotonic() - started)
        return replace(reply, cost=cost, sent=self.sent(request))

    async def map(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """`chat` for many requests, at most `endpoint.concurrency` at a time; replies in the order of
        requests.

        The first `EndpointError` cancels the calls that are left.
        """
        tasks = [asyncio.ensure_future(self.chat(request)) for request in requests]
        try:
            return list(await asyncio.gather(*tasks))
        except BaseException:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            raise

    def chat_sync(self, request: ChatRequest) -> ChatReply:
        """`chat` for code that is not async; also works inside a running event loop."""
        return run_sync(self.chat(request))

    def map_sync(self, requests: Sequence[ChatRequest]) -> list[ChatReply]:
        """`map` for code that is not async; also works inside a running event loop."""
        return run_sync(self.map(requests))

    async def aclose(self) -> None:
        """Closes the connections of the running loop; they open again when needed."""
        entry = self._per_loop.pop(asyncio.get_running_loop(), None)
        if entry is not None:
            await entry[0].close()

    async def _attempts(self, request: ChatRequest, spent: list[Cost]) -> ChatReply:
        retrying = AsyncRetrying(
            retry=retry_if_exception_type(CallFailed) & _retryable,
            stop=stop_after_attempt(self.endpoint.max_retries + 1),
            wait=self._wait,
            sleep=self._sleep,
            reraise=True,
        )
        return await retrying(self._attempt, request, spent)

    async def _attempt(self, request: ChatRequest, spent: list[Cost]) -> ChatReply:
        client, slots = self._client()
        limit = self.endpoint.timeout
        async with slots:
            # The slot is free again while a failed call waits for its next attempt.
            try:
                # httpx limits the silence between two bytes; a server that trickles needs a limit on the
                # whole.
                async with asyncio.timeout(limit):
                    raw = await client.chat.completions.with_raw_response.create(
                        model=self.endpoint.model, **request.wire()
                    )
                    body = json.loads(raw.text)
                reply, cost = read_reply(body, request)
            except asyncio.CancelledError:
                raise
            except Exception as error:
                failed = classify(error, self.endpoint)
                spent.append(self.usage.attempt(failed.usage))
                raise failed from error
        spent.append(self.usage.attempt(cost))
        return reply

    def _wait(self, state: RetryCallState) -> float:
        """Seconds before the next attempt: doubled each time, half jittered, never below Retry-After."""
        error = state.outcome.exception() if state.outcome else None
        asked = error.retry_after if isinstance(error, CallFailed) else None
        delay = min(self.endpoint.backoff_max, self.endpoint.backoff * 2 ** (state.attempt_number - 1))
        return max(asked or 0.0, delay * (0.5 + 0.5 * self._random.random()))

    def _client(self) -> tuple[Any, asyncio.Semaphore]:
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
            self._per_loop[loop] = (client, asyncio.Semaphore(self.endpoint.concurrency))
        return self._per_loop[loop]


def _retryable(state: RetryCallState) -> bool:
    error = state.outcome.exception() if state.outcome else None
    return isinstance(error, CallFailed) and error.retry
