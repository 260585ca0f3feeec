"""A chat client that answers from a script: real requests go in, real replies come out, and nothing is sent."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from mmrubric.chat import ChatReply, ChatRequest, ImagePart, TextPart, Usage
from mmrubric.chat_client import Call, ChatClient
from mmrubric.chat_errors import CallFailed
from mmrubric.chat_format import FormatMemory
from mmrubric.verdict import Cost, Failure

Answer = dict[str, Any] | str | Failure
"""A JSON object, a text as it is, or how the call fails."""


class Scripted(ChatClient):
    """Answers by a list, in turn, or by a function of the request; keeps every request in `asked`."""

    def __init__(self, answers: Sequence[Answer] | Callable[[ChatRequest], Answer]) -> None:
        super().__init__("scripted", "script:", Usage(), FormatMemory())
        self._answers = answers if callable(answers) else None
        self._left = [] if callable(answers) else list(answers)
        self.asked: list[ChatRequest] = []

    async def _answer(self, call: Call) -> ChatReply:
        self.asked.append(call.request)
        answer = self._answers(call.request) if self._answers is not None else self._left.pop(0)
        call.spent.append(self.usage.attempt(Cost(prompt_tokens=1, completion_tokens=1)))
        if isinstance(answer, Failure):
            raise CallFailed(answer, "scripted", retry=False)
        return ChatReply(text=answer if isinstance(answer, str) else json.dumps(answer), finish="stop")

    async def aclose(self) -> None:
        pass


def step_of(request: ChatRequest) -> str:
    """Name of the step that a generator asks for."""
    assert request.response_format is not None
    return request.response_format["json_schema"]["name"]


def text_of(request: ChatRequest) -> str:
    """All texts of a request."""
    return "\n".join(part.text for m in request.messages for part in m.parts if isinstance(part, TextPart))


def pictures_of(request: ChatRequest) -> list[ImagePart]:
    """All pictures of a request, in order."""
    return [part for m in request.messages for part in m.parts if isinstance(part, ImagePart)]
