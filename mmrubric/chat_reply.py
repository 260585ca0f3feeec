"""Reads the body of a chat completion: text, log-probs, usage, and the failures that hide in a 200."""

from __future__ import annotations

from typing import Any

from mmrubric.chat import ChatReply, ChatRequest, Token
from mmrubric.chat_errors import CallFailed
from mmrubric.verdict import Cost, Failure


def read_reply(body: Any, request: ChatRequest) -> tuple[ChatReply, Cost | None]:
    """The reply in a decoded 200 body, and its token usage (None = not reported).

    finish_reason is read before the text: an answer that was cut off is not a bad answer.

    Raises:
        CallFailed: the body is no chat completion (retried).
    """
    usage = read_usage(body.get("usage")) if isinstance(body, dict) else None
    try:
        choice = body["choices"][0]
        message = choice["message"]
        text, refusal = message.get("content"), message.get("refusal")
        if not (text is None or isinstance(text, str)):
            raise TypeError(f"content is a {type(text).__name__}")
        tokens = _tokens(choice.get("logprobs"))
    except (KeyError, IndexError, TypeError, AttributeError, ValueError) as error:
        detail = f"the server's answer is no chat completion ({type(error).__name__}: {error})"
        raise CallFailed(Failure.server_error, detail, retry=True, usage=usage) from error
    finish = str(choice.get("finish_reason") or "")
    reply = ChatReply(text=text, finish=finish, tokens=tokens)
    failure, detail = hidden_failure(reply, refusal, request)
    return ChatReply(text=text, failure=failure, detail=detail, finish=finish, tokens=tokens), usage


def hidden_failure(reply: ChatReply, refusal: Any, request: ChatRequest) -> tuple[Failure | None, str]:
    """The failure in an answer that came, and its detail; None where there is none."""
    if refusal or reply.finish == "content_filter":
        return Failure.refused, str(refusal or "stopped by a content filter")
    if reply.finish == "length" and not request.cut_is_fine:
        return Failure.truncated, f"cut off at max_tokens {request.max_tokens}"
    if reply.text is None or (not reply.text.strip() and not reply.tokens):
        return Failure.unparsable, f"empty answer (finish_reason {reply.finish or 'none'})"
    return None, ""


def read_usage(usage: Any) -> Cost | None:
    """Tokens of a `usage` object, or None where the server reported none that can be read."""
    if not isinstance(usage, dict):
        return None
    counts = [usage.get("prompt_tokens"), usage.get("completion_tokens")]
    # Errors before the first token carry no completion count.
    prompt, completion = (0 if count is None else count for count in counts)
    if counts == [None, None] or type(prompt) is not int or type(completion) is not int:
        return None
    return Cost(prompt_tokens=prompt, completion_tokens=completion)


def _tokens(logprobs: Any) -> tuple[Token, ...]:
    if not logprobs or not logprobs.get("content"):
        return ()
    return tuple(
        Token(
            str(item["token"]),
            float(item["logprob"]),
            tuple((str(top["token"]), float(top["logprob"])) for top in item.get("top_logprobs") or ()),
        )
        for item in logprobs["content"]
    )
