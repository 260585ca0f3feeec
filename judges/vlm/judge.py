"""The judge that asks a vision-language model: per criterion, all criteria at once, or two candidates to rank."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

from judges.joining import compare_by_scores
from judges.vlm.exemplars import Exemplar, RankExemplar
from judges.vlm.questions import Questions
from judges.vlm.ranking import Ranker, Ranking
from judges.vlm.scales import codes
from judges.vlm.scoring import Scorer
from judges.vlm.settings import Settings
from judges.vlm.showing import thing_of
from judges.vlm.templates import Templates
from mmrubric.chat import Usage
from mmrubric.chat_client import ChatClient
from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.judging import JudgeRequest, PairRequest, SyncMixin, run_all
from mmrubric.llm_asking import Asker
from mmrubric.rubric import Criterion
from mmrubric.store import Store, canonical_json
from mmrubric.verdict import Verdict

VERSION = 1
"""Part of the id; goes up when the code changes what is asked or how it is read."""
T = TypeVar("T")
R = TypeVar("R")


class VLMJudge(SyncMixin):
    """A `Judge` and a `PairJudge` that asks a model behind an OpenAI-compatible server. Built by `vlm`.

    Args:
        client: the model.
        settings: how to ask and read.
        templates: the prompts.
        exemplars: worked examples that fit the mode.
        store: answers of earlier runs.
        width: requests worked on at the same time; bounds the pictures held in memory.

    Raises:
        InputError: an exemplar cannot be shown.
    """

    def __init__(
        self,
        client: ChatClient,
        settings: Settings,
        templates: Templates,
        exemplars: Sequence[Exemplar | RankExemplar] = (),
        store: Store | None = None,
        width: int = 32,
    ) -> None:
        self.settings = settings
        questions = Questions(settings, templates, exemplars)
        asker = Asker(client, store, settings.repeat)
        self._client = client
        self._scorer = Scorer(asker, questions, settings)
        self._ranker = Ranker(asker, questions, settings)
        self._width = width
        decides = [client.address, client.model, templates.hash, settings.identity(), questions.identity()]
        digest = hashlib.sha256(canonical_json(decides).encode()).hexdigest()[:16]
        self._id = f"vlm/{VERSION}:{client.model}:{settings.mode}:{settings.read}:{digest}"

    @property
    def id(self) -> str:
        """Version, model, mode, reader, and a hash of servers, prompts, exemplars and options; never of the key."""
        return self._id

    @property
    def model(self) -> str:
        """Name of the model that answers."""
        return self._client.model

    @property
    def usage(self) -> Usage:
        """Calls, tokens and failures so far."""
        return self._client.usage

    async def aclose(self) -> None:
        """Closes the connections of the running loop; they open again when needed."""
        await self._client.aclose()

    def check(self, requests: Sequence[JudgeRequest] | Sequence[PairRequest]) -> None:
        """Refuse what cannot be judged, before anything is asked.

        Raises:
            InputError: a candidate to score in mode joint_rank, a text beside an image, a criterion of another
                verifier, or one with too many answers for one token.
        """
        ranks = self.settings.mode == "joint_rank"
        for request in requests:
            if ranks and isinstance(request, JudgeRequest):
                raise InputError(
                    f"judge {self.id!r} ranks two candidates; call compare (in training judge.compare=true), or "
                    "build it with mode per_criterion or batched"
                )
            thing_of(request)
            for criterion in () if ranks else request.rubric.criteria:
                self._check_criterion(criterion)

    def _check_criterion(self, criterion: Criterion) -> None:
        if criterion.verifier != "vlm" and not self.settings.any_verifier:
            raise InputError(
                f"criterion {criterion.id!r} asks for verifier {criterion.verifier!r}, and this judge is 'vlm'; send "
                "it there with judge 'routed', or set any_verifier=True to have it answered by its text"
            )
        if self.settings.read == "logprob":
            codes(criterion)

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """One verdict per criterion for each request, in rubric order.

        A failure of the model, the server or a picture is a verdict. The cost of a call that served several criteria
        stands on the first of them, so that a sum over verdicts is right.

        Raises:
            InputError: before anything is asked: mode joint_rank, or a criterion that this judge cannot answer.
            EndpointError: the server refuses the key, or does not know the model or the path.
        """
        self.check(requests)
        return await self._all(self._scorer.score, requests)

    async def compare(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        """One verdict per pair. Equal candidates are a TIE without being asked about.

        joint_rank asks in the orders that `position` says; answers that depend on the order are INCONSISTENT. The
        other modes score both candidates and apply `preference.compare`.

        Raises:
            InputError: before anything is asked: a text beside an image, or a criterion that cannot be answered.
            EndpointError: as for `score`.
        """
        self.check(requests)
        if self.settings.mode == "joint_rank":
            return await self._all(self._ranker.compare, requests)
        return await compare_by_scores(lambda singles: self._all(self._scorer.score, singles), requests)

    async def rank(self, requests: Sequence[PairRequest]) -> list[Ranking]:
        """The raw answer to each pair in the given order alone: position bias is measured on it.

        Raises:
            InputError: the mode is not joint_rank, or a text stands beside an image.
            EndpointError: as for `score`.
        """
        if self.settings.mode != "joint_rank":
            raise InputError(f"judge {self.id!r} does not rank; build it with mode joint_rank")
        self.check(requests)
        return await self._all(self._ranker.rank, requests)

    async def _all(self, work: Callable[[T], Awaitable[R]], requests: Sequence[T]) -> list[R]:
        """`work` on every request, `width` at a time; the first error ends the rest. Stored answers stay stored."""
        free = asyncio.Semaphore(self._width)

        async def one(request: T) -> R:
            async with free:
                return await work(request)

        return await run_all(one(request) for request in requests)
