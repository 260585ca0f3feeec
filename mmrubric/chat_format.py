"""Which `response_format` a server takes: json_schema, else json_object, else none. Found out once, then remembered."""

from __future__ import annotations

import hashlib
import logging
import threading
from collections.abc import Iterable
from dataclasses import replace

from mmrubric.chat import ChatRequest
from mmrubric.chat_errors import CallFailed
from mmrubric.store import canonical_json

logger = logging.getLogger(__name__)


def format_of(request: ChatRequest) -> str:
    """Type of the request's `response_format`; text = none."""
    return "text" if request.response_format is None else str(request.response_format.get("type"))


def forms(request: ChatRequest) -> tuple[ChatRequest, ...]:
    """The request and what it may turn into, best first. Types other than json_* have no substitute."""
    below = {"json_schema": [{"type": "json_object"}, None], "json_object": [None]}.get(format_of(request), [])
    return (request, *(replace(request, response_format=value) for value in below))


class FormatMemory:
    """The formats that a server has refused. Safe for threads, and for many refusals of the same thing at once.

    Args:
        refused: types that are known from the start not to be taken.
    """

    def __init__(self, refused: Iterable[str] = ()) -> None:
        self._lock = threading.Lock()
        self._types: set[str] = set(refused)
        self._schemas: set[str] = set()

    def apply(self, request: ChatRequest) -> ChatRequest:
        """The best form of the request that has not been refused."""
        options = forms(request)
        with self._lock:
            return next((form for form in options if not self._is_refused(form)), options[-1])

    def refuse(self, sent: ChatRequest, error: CallFailed) -> bool:
        """Learns from a refusal of `sent`. True when `apply` has another form now, so that sending again helps."""
        if not error.refused_format or len(forms(sent)) == 1:
            return False
        kind = format_of(sent)
        # A schema that a server cannot compile says nothing about other schemas.
        only_schema = error.refused_format == "schema" and kind == "json_schema"
        known, name = (self._schemas, _schema_hash(sent)) if only_schema else (self._types, kind)
        with self._lock:
            news = name not in known
            known.add(name)
        if news:
            logger.warning("response_format %s is refused, going on with less (%s)", kind, error.detail)
        return True

    def _is_refused(self, form: ChatRequest) -> bool:
        kind = format_of(form)
        if kind in self._types:
            return True
        return kind == "json_schema" and bool(self._schemas) and _schema_hash(form) in self._schemas


def _schema_hash(request: ChatRequest) -> str:
    return hashlib.sha256(canonical_json(dict(request.response_format or {})).encode()).hexdigest()
