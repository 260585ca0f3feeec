"""Several servers of one model behind the interface of one: the same picture goes to the same server.

A server's prefix cache holds the pictures it has seen, so requests are placed by a hash of the picture. Rendezvous
hashing (Thaler and Ravishankar, 1998) moves only the pictures of a server that is down, and moves them back.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from pydantic import ValidationError

from mmrubric.chat import ChatReply, ChatRequest, Endpoint, ImagePart, Usage
from mmrubric.chat_client import Call, ChatClient
from mmrubric.chat_errors import CallFailed
from mmrubric.chat_format import FormatMemory
from mmrubric.errors import InputError
from mmrubric.llm import LLM
from mmrubric.verdict import Failure


def connect(endpoints: Endpoint | Sequence[Endpoint], **options: Any) -> ChatClient:
    """A client of one endpoint (`LLM`), or of several that serve the same model (`LLMPool`).

    Args:
        endpoints: one or more.
        options: `sleep`, `clock`, `seed` of `LLM`.
    """
    if isinstance(endpoints, Endpoint):
        return LLM(endpoints, **options)
    return LLM(endpoints[0], **options) if len(endpoints) == 1 else LLMPool(endpoints, **options)


def client_of(base_url: str | Sequence[str], model: str, where: str, **limits: Any) -> ChatClient:
    """A client of the server, or of the servers, at these addresses.

    Args:
        base_url: one address or several, with their version path.
        model: name by which the servers know the model.
        where: who asks, such as "judge 'vlm'": errors begin with it.
        limits: fields of `Endpoint`.

    Raises:
        InputError: no address, no model, or a bad value.
    """
    urls = [base_url] if isinstance(base_url, str) else list(base_url)
    if not all((urls, *urls, model)):
        raise InputError(f"{where}: give base_url, such as http://127.0.0.1:8000/v1, and model, as the server names it")
    try:
        return connect([Endpoint(base_url=url, model=model, **limits) for url in urls])
    except ValidationError as error:
        faults = "; ".join(f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}" for fault in error.errors())
        raise InputError(f"{where}: {faults}") from error


class LLMPool(ChatClient):
    """Client of several servers of one model; see `LLM` for the options.

    A call goes to the server that its route chooses; without a route the first picture of the request is the route,
    and requests without pictures are spread evenly. A server whose breaker is open is passed over, and a call that
    cannot reach its server goes on to the next one at once. Other failures are retried where they happened.

    Raises:
        InputError: no endpoint, an address given twice, or endpoints that differ in model or price.
    """

    def __init__(
        self,
        endpoints: Sequence[Endpoint],
        *,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
        clock: Callable[[], float] = time.monotonic,
        seed: int | None = None,
    ) -> None:
        urls = sorted(endpoint.base_url for endpoint in endpoints)
        _check(endpoints, urls)
        first = endpoints[0]
        # Answers of equal servers are one another's, so the identity of a request holds all of them. Refused formats
        # are shared for the same reason: what is sent must not depend on which server was asked.
        usage = Usage(first.price_prompt, first.price_completion)
        super().__init__(first.model, urls if len(urls) > 1 else urls[0], usage, FormatMemory())
        self.members = tuple(LLM(e, sleep=sleep, clock=clock, seed=seed, pool=self) for e in endpoints)
        self._turn = itertools.count()

    async def aclose(self) -> None:
        """Closes the connections of the running loop; they open again when needed."""
        for member in self.members:
            await member.aclose()

    def order(self, route: str) -> list[LLM]:
        """The servers in the order in which calls of this route try them."""

        def weight(member: LLM) -> bytes:
            return hashlib.sha256(f"{member.endpoint.base_url}\n{route}".encode()).digest()

        return sorted(self.members, key=weight, reverse=True)

    async def _answer(self, call: Call) -> ChatReply:
        servers = self.order(self._route(call))
        servers = [server for server in servers if server.breaker.ready] or servers
        failed: list[CallFailed] = []
        for server in servers:
            try:
                return await server.serve(call, retry_unreachable=server is servers[-1])
            except CallFailed as error:
                if not error.unreachable:
                    raise
                failed.append(error)
        detail = "no server of the pool can be reached: " + "; ".join(error.detail for error in failed)
        raise CallFailed(Failure.server_error, detail, retry=False)

    def _route(self, call: Call) -> str:
        if call.route is not None:
            return call.route
        return _first_picture(call.request) or f"turn {next(self._turn)}"


def _first_picture(request: ChatRequest) -> str | None:
    parts = (part for message in request.messages for part in message.parts)
    return next((part.sha256 for part in parts if isinstance(part, ImagePart)), None)


def _check(endpoints: Sequence[Endpoint], urls: list[str]) -> None:
    if not endpoints:
        raise InputError("endpoints: give at least one")
    twice = sorted({url for url in urls if urls.count(url) > 1})
    if twice:
        raise InputError(f"endpoints: base_url {', '.join(twice)} is given twice")
    for name in ("model", "price_prompt", "price_completion"):
        values = {getattr(endpoint, name) for endpoint in endpoints}
        if len(values) > 1:
            raise InputError(
                f"endpoints: a pool serves one model, but field {name} differs: {sorted(map(str, values))}"
            )
