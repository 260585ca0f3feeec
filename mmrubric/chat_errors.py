"""Which errors of a chat call are retried, and what kind of failure each one is."""

from __future__ import annotations

import time
from collections.abc import Mapping
from email.utils import parsedate_to_datetime
from typing import Any

from mmrubric.chat import Endpoint, EndpointError
from mmrubric.verdict import Cost, Failure

RETRIED = frozenset({408, 409, 425, 429})
"""Retried, as is every status from 500 on."""
_FATAL = {
    401: "the key is refused; set the environment variable {key}",
    403: "the key may not use this; check the rights of {key}",
    404: "no such model or path; check base_url {url} and model {model}",
}
_HINTS = (
    ("at most", "image", Failure.server_error, "start the server with a larger --limit-mm-per-prompt"),
    (
        "context length",
        "",
        Failure.server_error,
        "the prompt is longer than the model takes; raise --max-model-len",
    ),
    ("image", "", Failure.bad_image, ""),
)
"""(words that must both be in the message, failure, hint) for a request that the server refuses for good."""


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
    ) -> None:
        super().__init__(f"{failure}: {detail}")
        self.failure = failure
        self.detail = detail
        self.retry = retry
        self.status = status
        self.retry_after = retry_after
        self.usage = usage


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
        return CallFailed(Failure.timeout, f"no answer within {endpoint.timeout:g} s", retry=True)
    if isinstance(error, openai.APIStatusError):
        return _by_status(error.status_code, _message(error), error.response.headers, endpoint, _usage(error.response))
    if isinstance(error, openai.APIConnectionError):
        cause = error.__cause__ or error
        return CallFailed(Failure.server_error, f"cannot reach {endpoint.base_url}: {cause}", retry=True)
    if isinstance(error, (openai.APIError, ValueError)):
        # A proxy's error page, or JSON cut off on the way.
        return CallFailed(Failure.server_error, f"the server's answer is not JSON: {error}", retry=True)
    raise error


def _by_status(
    status: int, message: str, headers: Mapping[str, str], endpoint: Endpoint, usage: Cost | None
) -> CallFailed:
    detail = f"HTTP {status}: {message}"
    if status in _FATAL:
        hint = _FATAL[status].format(key=endpoint.api_key_env, url=endpoint.base_url, model=endpoint.model)
        raise EndpointError(f"{endpoint.base_url}: {detail}; {hint}")
    if status in RETRIED or status >= 500:
        failure = {429: Failure.rate_limited, 408: Failure.timeout, 504: Failure.timeout}.get(
            status, Failure.server_error
        )
        wait = retry_after(headers)
        if wait is not None and wait > endpoint.retry_after_max:
            # Asking earlier than told would be rude and useless; waiting longer would stall the run unseen.
            detail += f" (asked to wait {wait:g} s, more than retry_after_max {endpoint.retry_after_max:g})"
            return CallFailed(failure, detail, retry=False, status=status, usage=usage)
        return CallFailed(failure, detail, retry=True, status=status, retry_after=wait, usage=usage)
    lower = message.lower()
    for first, second, failure, hint in _HINTS:
        if first in lower and second in lower:
            return CallFailed(failure, f"{detail}; {hint}" if hint else detail, retry=False, status=status, usage=usage)
    return CallFailed(Failure.server_error, detail, retry=False, status=status, usage=usage)


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
