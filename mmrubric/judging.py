"""The judge protocols and their request types; `judges` implements and re-exports them."""

from __future__ import annotations

import asyncio
import hashlib
import os
import threading
from collections.abc import Coroutine, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.prompt import Grounding, Media, Prompt, Sources, sources_of
from mmrubric.rubric import Rubric
from mmrubric.verdict import Verdict

T = TypeVar("T")
Candidate: TypeAlias = Media | str
"""What is judged: an image (uint8 array [H, W, 3], PIL image, path or encoded bytes), or a text (str)."""


def candidate_id(candidate: Candidate) -> str:
    """Content hash (hex) of a candidate: of its text, or of the image as it is really sent to a judge."""
    if isinstance(candidate, str):
        return hashlib.sha256(candidate.encode()).hexdigest()
    from mmrubric import images

    return images.content_hash(candidate)


@dataclass(frozen=True)
class JudgeRequest:
    """Score one candidate by one rubric. Weights and signs are in the rubric, but are never shown to a judge.

    Raises:
        InputError: `rubric` is no Rubric, the candidate is missing, or a source image.
    """

    rubric: Rubric
    candidate: Candidate
    source: Sources = None
    """Source image of an edit, or several in order, the one that is edited first; shown, never judged."""
    grounding: Grounding | None = None
    sample_id: str | None = None
    """Id that the verdicts carry; default: the content hash of the candidate."""

    def __post_init__(self) -> None:
        _check_rubric(self.rubric)
        if self.candidate is None:
            raise InputError("judge request: field candidate is missing; give an image or a text")
        sources_of(self.source, "judge request")
        if self.sample_id is None:
            object.__setattr__(self, "sample_id", candidate_id(self.candidate))

    @property
    def sources(self) -> tuple[Media, ...]:
        """The source images in order, none or more."""
        return sources_of(self.source, "judge request")

    @classmethod
    def of_sample(
        cls, prompt: Prompt, rubric: Rubric, candidate: Candidate, sample_id: str | None = None
    ) -> JudgeRequest:
        """Score what a policy made of a prompt, beside the source images that it was shown."""
        return cls(rubric, candidate, prompt.sources, sample_id=sample_id)


@dataclass(frozen=True)
class PairRequest:
    """Compare two candidates by one rubric.

    Raises:
        InputError: `rubric` is no Rubric, a candidate is missing, or a source image.
    """

    rubric: Rubric
    a: Candidate
    b: Candidate
    source: Sources = None
    """As of `JudgeRequest`."""
    grounding: Grounding | None = None
    sample_ids: tuple[str, str] | None = None
    """Ids of a and b; default: their content hashes, which are equal when the candidates are."""

    def __post_init__(self) -> None:
        _check_rubric(self.rubric)
        for name in ("a", "b"):
            if getattr(self, name) is None:
                raise InputError(f"pair request: field {name} is missing; give an image or a text")
        sources_of(self.source, "pair request")
        if self.sample_ids is None:
            object.__setattr__(self, "sample_ids", (candidate_id(self.a), candidate_id(self.b)))

    @property
    def sources(self) -> tuple[Media, ...]:
        """The source images in order, none or more."""
        return sources_of(self.source, "pair request")

    @property
    def identical(self) -> bool:
        """True when both candidates are the same; a trainer then masks the pair instead of asking."""
        return self.sample_ids is not None and self.sample_ids[0] == self.sample_ids[1]

    def swapped(self) -> PairRequest:
        """The same question in the other order."""
        ids = None if self.sample_ids is None else (self.sample_ids[1], self.sample_ids[0])
        return PairRequest(self.rubric, self.b, self.a, self.source, self.grounding, ids)


def _check_rubric(rubric: object) -> None:
    if not isinstance(rubric, Rubric):
        raise InputError(f"request: field rubric must be a Rubric, got {type(rubric).__name__}")


@runtime_checkable
class Judge(Protocol):
    """Says per criterion whether it holds."""

    @property
    def id(self) -> str:
        """Name, version and hash of the options; equal ids mean equal answers to equal requests."""
        ...

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """One verdict per criterion for each request; join by id. A failure is a verdict, not an error."""
        ...

    def score_sync(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """`score` for callers outside a coroutine, and inside a running event loop."""
        ...


@runtime_checkable
class PairJudge(Protocol):
    """Says which of two candidates is better."""

    @property
    def id(self) -> str:
        """As for `Judge`."""
        ...

    async def compare(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        """One verdict per request, both orders asked unless the judge is built otherwise."""
        ...

    def compare_sync(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        """`compare` for callers outside a coroutine, and inside a running event loop."""
        ...


class SyncMixin:
    """Gives a judge the sync twins of whichever of `score` and `compare` it has."""

    def score_sync(self: Judge, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """`score`, waited for on the background loop."""
        return run_sync(self.score(requests))

    def compare_sync(self: PairJudge, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        """`compare`, waited for on the background loop."""
        return run_sync(self.compare(requests))


class _Background:
    """One event loop per process, on a daemon thread: clients and semaphores stay bound to one loop."""

    def __init__(self) -> None:
        self.pid = os.getpid()
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="mmrubric-judging", daemon=True)
        self.thread.start()


_background: _Background | None = None
_lock = threading.Lock()


def background_loop() -> asyncio.AbstractEventLoop:
    """The event loop on which judging runs; started on first use, and anew in a forked child."""
    global _background
    with _lock:
        # A fork copies the object but not its thread.
        if _background is None or _background.pid != os.getpid():
            _background = _Background()
        return _background.loop


def _new_lock_after_fork() -> None:
    """Give a forked child its own lock: another thread may have held the parent's during the fork."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_new_lock_after_fork)


def run_sync(work: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine to its end on the background loop and return its result; works inside a running loop.

    An interrupt of the caller cancels the work.

    Raises:
        RuntimeError: called from the background loop itself, which would wait for itself for ever; await
            instead.
    """
    loop = background_loop()
    if _background is not None and threading.current_thread() is _background.thread:
        work.close()
        raise RuntimeError("sync call from inside the judging loop; await the async method instead")
    future = asyncio.run_coroutine_threadsafe(work, loop)
    try:
        return future.result()
    except BaseException:
        future.cancel()
        raise


async def run_all(work: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """Runs coroutines side by side; results in their order. An error or a cancellation ends all that are left."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise
