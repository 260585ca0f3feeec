"""What goes into and comes out of the LLM client: endpoint, messages, request, reply, usage."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from pydantic import Field, field_validator, model_validator

from mmrubric import images
from mmrubric.config import Config
from mmrubric.errors import RunError
from mmrubric.verdict import FREE, Cost, Failure


class EndpointError(RunError):
    """The endpoint cannot serve any of our calls: wrong key, unknown model or path."""


class Endpoint(Config):
    """An OpenAI-compatible server and how to treat it."""

    base_url: str
    """Address with its version path, such as http://127.0.0.1:8000/v1."""
    model: str
    api_key_env: str = "OPENAI_API_KEY"
    """Environment variable that holds the key; keys never stand in files, records or caches."""
    timeout: float = Field(default=60.0, gt=0)
    """Seconds for one attempt as a whole."""
    max_retries: int = Field(default=3, ge=0)
    """Attempts after the first."""
    concurrency: int = Field(default=32, ge=1)
    """Calls in flight at the same time, per event loop."""
    backoff: float = Field(default=0.5, gt=0)
    """Seconds before the first retry; doubles each time."""
    backoff_max: float = Field(default=30.0, gt=0)
    retry_after_max: float = Field(default=120.0, gt=0)
    """A server that asks for a longer wait than this (seconds) makes the call fail as rate_limited."""
    deadline: float | None = Field(default=None, gt=0)
    """Seconds for a call with all its attempts and waits, from its first attempt on; None = no limit."""
    breaker_failures: int | None = Field(default=10, ge=1)
    """Calls in a row that end in an outage (no connection, no answer in time, a status from 500 on) after which
    calls fail at once; None = never."""
    breaker_cooldown: float = Field(default=30.0, gt=0)
    """Seconds until one call may try the server again."""
    price_prompt: float | None = Field(default=None, ge=0)
    """Price of a million prompt tokens in any currency; None = unknown."""
    price_completion: float | None = Field(default=None, ge=0)
    """Price of a million completion tokens; None = unknown."""

    @field_validator("base_url")
    @classmethod
    def _address(cls, value: str) -> str:
        if not value.startswith(("http://", "https://")):
            raise ValueError(f"base_url must start with http:// or https://, got {value!r}")
        return value.rstrip("/")

    @model_validator(mode="after")
    def _room_for_an_attempt(self) -> Endpoint:
        if self.deadline is not None and self.deadline < self.timeout:
            raise ValueError(f"deadline {self.deadline:g} is shorter than the timeout {self.timeout:g} of one attempt")
        return self


@dataclass(frozen=True)
class TextPart:
    """Text of a message."""

    text: str

    def wire(self) -> dict[str, Any]:
        """As it is sent."""
        return {"type": "text", "text": self.text}

    canonical = wire


@dataclass(frozen=True)
class ImagePart:
    """A normalised picture, ready to send. Build it with `ImagePart.of`, once per picture."""

    url: str = field(repr=False)
    """data:image/...;base64,..."""
    sha256: str
    """Content hash of the pixels that `url` holds."""

    @classmethod
    def of(cls, image: images.ImageLike, options: images.ImageOptions | None = None) -> ImagePart:
        """Normalises and encodes a picture (PNG). Bad pictures: `InputError`."""
        picture = images.normalize(image, options)
        keep = images.ImageOptions(max_side=None, max_bytes=None)
        return cls(images.data_url(picture, options=keep), images.pixel_hash(picture))

    def wire(self) -> dict[str, Any]:
        """As it is sent."""
        return {"type": "image_url", "image_url": {"url": self.url}}

    def canonical(self) -> dict[str, Any]:
        """As it is hashed: by pixels, because PNG bytes differ between zlib versions."""
        return {"type": "image", "sha256": self.sha256}


@dataclass(frozen=True)
class Message:
    """One turn of a chat."""

    role: Literal["system", "user", "assistant"]
    parts: tuple[TextPart | ImagePart, ...]

    @classmethod
    def of(cls, role: Literal["system", "user", "assistant"], *parts: str | TextPart | ImagePart) -> Message:
        """Texts may be given as plain strings."""
        return cls(role, tuple(TextPart(part) if isinstance(part, str) else part for part in parts))

    def wire(self) -> dict[str, Any]:
        """As it is sent: plain text where there is nothing else, for servers without multi-part content."""
        if len(self.parts) == 1 and isinstance(self.parts[0], TextPart):
            return {"role": self.role, "content": self.parts[0].text}
        return {"role": self.role, "content": [part.wire() for part in self.parts]}

    def canonical(self) -> dict[str, Any]:
        """As it is hashed."""
        return {"role": self.role, "parts": [part.canonical() for part in self.parts]}


@dataclass(frozen=True)
class ChatRequest:
    """One chat call, apart from the endpoint."""

    messages: tuple[Message, ...]
    max_tokens: int = 512
    temperature: float = 0.0
    seed: int | None = None
    top_logprobs: int | None = None
    """Number of alternatives per token; None = no log-probs."""
    response_format: Mapping[str, Any] | None = None
    """As the wire has it, such as {"type": "json_schema", "json_schema": {...}}."""
    extra_body: Mapping[str, Any] | None = None
    """Parameters beyond the OpenAI ones, such as structured_outputs of vLLM."""
    cut_is_fine: bool = False
    """True when the answer is meant to end at max_tokens (reading one token); not sent."""

    def wire(self) -> dict[str, Any]:
        """Arguments of `chat.completions.create`; what is None is not sent."""
        sent = self._parameters() | {"messages": [message.wire() for message in self.messages]}
        if self.extra_body is not None:
            sent["extra_body"] = dict(self.extra_body)
        return sent

    def canonical(self) -> dict[str, Any]:
        """Everything that decides the answer, as JSON."""
        known = self._parameters() | {"messages": [message.canonical() for message in self.messages]}
        if self.extra_body is not None:
            known["extra_body"] = dict(self.extra_body)
        return known

    def _parameters(self) -> dict[str, Any]:
        values: dict[str, Any] = {"max_tokens": self.max_tokens, "temperature": self.temperature}
        if self.seed is not None:
            values["seed"] = self.seed
        if self.top_logprobs is not None:
            values |= {"logprobs": True, "top_logprobs": self.top_logprobs}
        if self.response_format is not None:
            values["response_format"] = dict(self.response_format)
        return values


@dataclass(frozen=True)
class Token:
    """One generated token, its natural log-probability, and the alternatives (token, log-probability)."""

    text: str
    logprob: float
    top: tuple[tuple[str, float], ...] = ()


@dataclass(frozen=True)
class ChatReply:
    """Outcome of a call: an answer, or why there is none."""

    text: str | None = None
    """Generated text; also kept beside `truncated`, where it is a part."""
    failure: Failure | None = None
    detail: str = ""
    """What the server said, for people."""
    finish: str = ""
    """finish_reason of the server: stop, length, ..."""
    tokens: tuple[Token, ...] = ()
    """Log-probabilities, when asked for and given."""
    status: int | None = None
    """HTTP status of the failure, if it had one."""
    cost: Cost = FREE
    """All attempts together; seconds from the call to the reply, waits included."""
    sent: str = ""
    """Canonical JSON of the request that got this reply."""
    format_used: str = ""
    """Type of the `response_format` that was really sent; text = none."""


class Usage:
    """Counts of one client over its life. Safe for threads. Failed calls and lost attempts count as well."""

    def __init__(self, price_prompt: float | None = None, price_completion: float | None = None) -> None:
        self._lock = threading.Lock()
        self._prices = (price_prompt, price_completion)
        self.calls = 0
        """Calls begun, each with one or more attempts."""
        self.attempts = 0
        """HTTP requests that ended, well or badly, or were cut off."""
        self.failures: Counter[Failure] = Counter()
        """Calls that ended without an answer, by reason."""
        self.aborted = 0
        """Calls that were cancelled or met an `EndpointError`."""
        self.prompt_tokens = 0
        self.completion_tokens = 0
        self.unreported = 0
        """Attempts whose tokens the server did not report (most errors); they may have cost something."""

    def begin(self) -> None:
        """A call begins."""
        with self._lock:
            self.calls += 1

    def attempt(self, cost: Cost | None) -> Cost:
        """An attempt ended; `cost` None = the server reported no tokens. Returns the cost of the attempt."""
        with self._lock:
            self.attempts += 1
            if cost is None:
                self.unreported += 1
                return Cost(calls=1)
            self.prompt_tokens += cost.prompt_tokens
            self.completion_tokens += cost.completion_tokens
            return Cost(1, cost.prompt_tokens, cost.completion_tokens)

    def end(self, failure: Failure | None) -> None:
        """A call ended with an answer (None) or a failure."""
        with self._lock:
            if failure is not None:
                self.failures[failure] += 1

    def abort(self) -> None:
        """A call was given up by an exception."""
        with self._lock:
            self.aborted += 1

    @property
    def failed(self) -> int:
        """Calls that ended without an answer."""
        return sum(self.failures.values())

    @property
    def price(self) -> float | None:
        """Money spent on the reported tokens; None when a price is unknown."""
        prompt, completion = self._prices
        if prompt is None or completion is None:
            return None
        return (self.prompt_tokens * prompt + self.completion_tokens * completion) / 1e6
