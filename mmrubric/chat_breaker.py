"""Circuit breaker: keeps calls away from a server that is down."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from mmrubric.chat_errors import CallFailed
from mmrubric.verdict import Failure


class Breaker:
    """Closed: calls go through. Open: calls fail at once. Half-open: one probe call decides. Safe for threads.

    It opens after `failures` calls in a row that ended in an outage. After `cooldown` seconds the next call is the
    probe: an answer closes the breaker, another outage opens it for the same time again.

    Args:
        server: name for messages.
        failures: None = never open.
        cooldown: seconds.
        clock: seconds that only grow (tests hand in a fake one).
    """

    def __init__(
        self, server: str, failures: int | None, cooldown: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._server, self._limit, self._cooldown, self._clock = server, failures, cooldown, clock
        self._lock = threading.Lock()
        self._in_a_row = 0
        self._last = ""
        self._open_until: float | None = None
        self._probing = False

    @property
    def ready(self) -> bool:
        """True when a call would go through now."""
        with self._lock:
            return not self._refusal()

    @contextmanager
    def guard(self) -> Iterator[None]:
        """Around one call: refuses it, or learns from how it ends. A cancelled call teaches nothing.

        Raises:
            CallFailed: the breaker is open; the detail says when the server is tried again.
        """
        probe = self._enter()
        try:
            yield
        except CallFailed as error:
            self._learn(error, probe)
            raise
        else:
            self._learn(None, probe)
        finally:
            if probe:
                self._probing = False

    def _enter(self) -> bool:
        with self._lock:
            refusal = self._refusal()
            if refusal:
                raise CallFailed(Failure.server_error, refusal, retry=False, unreachable=True)
            probe = self._open_until is not None
            if probe:
                self._probing = True
            return probe

    def _learn(self, error: CallFailed | None, probe: bool) -> None:
        with self._lock:
            if error is None or not error.outage:
                self._in_a_row, self._open_until = 0, None
                return
            self._in_a_row += 1
            self._last = error.detail
            # Calls that were in flight when it opened must not prolong the pause: only the probe may.
            if self._limit is not None and self._in_a_row >= self._limit and (probe or self._open_until is None):
                self._open_until = self._clock() + self._cooldown

    def _refusal(self) -> str:
        if self._open_until is None:
            return ""
        wait = self._open_until - self._clock()
        if wait <= 0 and not self._probing:
            return ""
        again = f"tried again in {wait:.1f} s" if wait > 0 else "being tried again now by another call"
        return f"{self._server} is left alone after {self._in_a_row} failed calls in a row ({self._last}); {again}"
