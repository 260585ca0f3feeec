"""Which errors of a chat call are retried, and what kind of failure each one is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any, Literal

from mmrubric.chat import Endpoint, EndpointError
from mmrubric.verdict import Cost, Failure

RETRIED = frozenset({408, 409, 425, 429})
"""Retried, as is every status from 500 on."""
_FATAL = {
    401: "the key is refused; set the environment variable {key}",
    403: "the key may not use this; check the rights of {key}",
    404: "no such model or path; check base_url {url} and model {model}",
}
_TOO_MANY = "start the server with a larger --limit-mm-per-prompt (mmrubric serve-judge: --images)"
_TOO_LONG = "the prompt is longer than the model takes; raise --max-model-len"
_HINTS = (
    ("at most", "image", Failure.server_error, _TOO_MANY),
    ("must contain the word", "json", Failure.server_error, "name JSON in the prompt"),
    ("context length", "", Failure.server_error, _TOO_LONG),
    ("context_length", "", Failure.server_error, _TOO_LONG),
    ("context size", "", Failure.server_error, _TOO_LONG),
    ("maximum model length", "", Failure.server_error, _TOO_LONG),
    ("image", "", Failure.bad_image, ""),
)
"""(words that must both be in the message, failure, hint) for a request that the server refuses for good."""

RefusedFormat = Literal["", "type", "schema"]
"""What a refusal says about `response_format`: nothing, that its type is unknown, or that its schema is."""
_FORMAT_WORDS = (
    "response_format",
    "response format",
    "json_schema",
    "json schema",
    "json_object",
    "structured output",
    "guided decoding",
    "grammar",
)
_SCHEMA_WORDS = ("invalid schema", "schema contains", "unsupported schema", "json_schema.schema", "grammar")


class CallFailed(Exception):
    """One attempt that gave no answer."""

    def __init__(
        self,
        failure: Failure,
        detail: str,
        *,
        retry: bool,
        status: int | None = None,
        retry_after: float | None = None,
        usage: Cost | None = None,
        outage: bool = False,
        unreachable: bool = False,
        refused_format: RefusedFormat = "",
    ) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail
        self.retry = retry
        self.status = status
        self.retry_after = retry_after
        self.usage = usage
        self.outage = outage
        """The server did not do its work: no connection, no answer in time, or a status from 500 on."""
        self.unreachable = unreachable
        """The request did not get through; another server may answer it."""
        self.refused_format = refused_format


def classify(error: Exception, endpoint: Endpoint) -> CallFailed:
    """The failure behind an exception of one attempt.

    Raises:
        EndpointError: no call to this endpoint can succeed.
        Exception: the error itself, when it is a fault of this program and not of the call.
    """
    import openai

    if isinstance(error, CallFailed):
        return error
    if isinstance(error, (TimeoutError, openai.APITimeoutError)):
        return CallFailed(Failure.timeout, f"no answer within {endpoint.timeout:g} s", retry=True, outage=True)
    if isinstance(error, openai.APIStatusError):
        return _by_status(error, endpoint)
    if isinstance(error, openai.APIConnectionError):
        detail = f"cannot reach {endpoint.base_url}: {error.__cause__ or error}"
        return CallFailed(Failure.server_error, detail, retry=True, outage=True, unreachable=True)
    if isinstance(error, UnicodeEncodeError):
        return CallFailed(Failure.server_error, f"the text cannot be sent as UTF-8: {error}", retry=False)
    if isinstance(error, (openai.APIError, ValueError)):
        # A proxy's error page, or JSON cut off on the way.
        return CallFailed(Failure.server_error, f"the server's answer is not JSON: {error}", retry=True)
    raise error


def _by_status(error: Any, endpoint: Endpoint) -> CallFailed:
    status, message, usage = error.status_code, _message(error), _usage(error.response)
    detail = f"HTTP {status}: {message}"
    if status in _FATAL:
        hint = _FATAL[status].format(key=endpoint.api_key_env, url=endpoint.base_url, model=endpoint.model)
        raise EndpointError(f"{endpoint.base_url}: {detail}; {hint}")
    if status in RETRIED or status >= 500:
        return _passing(status, detail, retry_after(error.response.headers), endpoint, usage)
    failure, hint = _lasting(status, message)
    return CallFailed(
        failure,
        f"{detail}; {hint}" if hint else detail,
        retry=False,
        status=status,
        usage=usage,
        refused_format=refused_format(status, message, str(error.param or "")),
    )


def _passing(status: int, detail: str, wait: float | None, endpoint: Endpoint, usage: Cost | None) -> CallFailed:
    kinds = {429: Failure.rate_limited, 408: Failure.timeout, 504: Failure.timeout}
    # Asking earlier than told would be rude and useless; waiting longer would stall the run unseen.
    too_long = wait is not None and wait > endpoint.retry_after_max
    if too_long:
        detail += f" (asked to wait {wait:g} s, more than retry_after_max {endpoint.retry_after_max:g})"
    return CallFailed(
        kinds.get(status, Failure.server_error),
        detail,
        retry=not too_long,
        status=status,
        retry_after=wait,
        usage=usage,
        outage=status == 408 or status >= 500,
    )


def _lasting(status: int, message: str) -> tuple[Failure, str]:
    if status == 413:
        return Failure.bad_image, "the request is too large; lower max_bytes or max_side of ImageOptions"
    lower = message.lower()
    for first, second, failure, hint in _HINTS:
        if first in lower and second in lower:
            return failure, hint
    return Failure.server_error, ""


def refused_format(status: int, message: str, param: str = "") -> RefusedFormat:
    """What a refusal with this status, message and `param` says about `response_format`."""
    # Validation errors of FastAPI repeat the whole request behind 'input', and with it every parameter's name.
    said, _, _ = message.partition("'input':")
    lower = f"{param} {said}".lower()
    if status not in (400, 422) or "must contain the word" in lower:
        return ""
    if not any(word in lower for word in _FORMAT_WORDS):
        return ""
    return "schema" if any(word in lower for word in _SCHEMA_WORDS) else "type"


def retry_after(headers: Mapping[str, str], now: float | None = None) -> float | None:
    """Seconds that the server asks to wait: `retry-after-ms`, or `Retry-After` in seconds or as an HTTP date.

    None when there is no such header or it cannot be read.
    """
    for name, scale in (("retry-after-ms", 1000.0), ("retry-after", 1.0)):
        text = headers.get(name)
        if text is None:
            continue
        try:
            wait = float(text) / scale
        except ValueError:
            try:
                wait = parsedate_to_datetime(text).timestamp() - (time.time() if now is None else now)
            except ValueError:
                continue
        if wait == wait:
            return max(0.0, wait)
    return None


def _message(error: Exception) -> str:
    body = getattr(error, "body", None)
    text = body.get("message") if isinstance(body, dict) else None
    return " ".join(str(text or error).split())[:500]


def _usage(response: Any) -> Cost | None:
    from mmrubric.chat_reply import read_usage

    try:
        body = response.json()
    except ValueError:
        return None
    return read_usage(body.get("usage")) if isinstance(body, dict) else None
