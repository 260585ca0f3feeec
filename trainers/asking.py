"""What a step asks its judge while it samples, and the answers: a score of each sample, or comparisons of pairs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import numpy as np

from mmrubric.group import PairVerdict
from mmrubric.judging import JudgeRequest, PairRequest
from mmrubric.prompt import Prompt
from mmrubric.rubric import Rubric
from mmrubric.verdict import Verdict
from pipelines.policy import Rollout
from trainers.distributed import Shard
from trainers.judge_worker import JudgeWorker, Verdicts

Matches = Callable[[int], list[tuple[int, int]]]
"""By prompt row, the pairs of sample numbers to compare."""


@dataclass
class Answer:
    """What the judge said of one row."""

    verdicts: tuple[Verdict, ...] = ()
    compared: list[tuple[int, PairVerdict]] = field(default_factory=list)
    """(position of b, verdict) of the pairs whose a is this row."""
    error: str = ""
    """Set when judging broke off; nothing of it counts then."""


@dataclass(frozen=True)
class Scores:
    """Scores under way."""

    positions: list[int]
    """Rows of the rank that they are of."""
    future: Future[Verdicts]

    def settle(self, answers: Sequence[Answer]) -> None:
        """Wait, and write what came into the answers of all rows."""
        if error := _broken(self.future):
            for position in self.positions:
                answers[position].error = error
            return
        for position, verdicts in zip(self.positions, self.future.result(), strict=True):
            answers[position].verdicts = tuple(verdicts)


@dataclass(frozen=True)
class Comparisons:
    """Comparisons under way."""

    pairs: list[tuple[int, int]]
    """Rows (a, b) of the rank."""
    future: Future[list[PairVerdict]]

    def settle(self, answers: Sequence[Answer]) -> None:
        """Wait, and write what came into the answers of all rows."""
        if error := _broken(self.future):
            for a, b in self.pairs:
                answers[a].error = answers[b].error = error
            return
        for (a, b), verdict in zip(self.pairs, self.future.result(), strict=True):
            answers[a].compared.append((b, verdict))


def _broken(future: Future) -> str:
    error = future.exception()
    return "" if error is None else f"{type(error).__name__}: {error}"


class Asker:
    """Asks about a rank's rows as they are drawn, batch by batch.

    Args:
        worker: judges in the background.
        prompts, rubrics: [P], of the whole step.
        shard: this rank's rows; where samples are compared, whole groups in order.
        matches: which samples of a group are compared; None = each is scored.
    """

    def __init__(
        self,
        worker: JudgeWorker,
        prompts: Sequence[Prompt],
        rubrics: Sequence[Rubric],
        shard: Shard,
        matches: Matches | None = None,
    ) -> None:
        self.worker, self.prompts, self.rubrics, self.shard, self.matches = worker, prompts, rubrics, shard, matches
        self.pending: list[Scores | Comparisons] = []
        self._images: list[np.ndarray] = []
        self._group: list[int] = []
        """Positions of the group that is not whole yet."""

    def drawn(self, rollout: Rollout) -> None:
        """Ask about the next rows of the shard, or about the groups that are whole with them; padding is not judged."""
        start = len(self._images)
        self._images += list(rollout.images)
        real = [i for i in range(start, len(self._images)) if self.shard.weight[i] > 0]
        if self.matches is not None:
            self._compare(real, self.matches)
        elif real:
            requests = [self._score(i, rollout.sample_ids[i - start]) for i in real]
            self.pending.append(Scores(real, self.worker.submit(requests)))

    def _score(self, position: int, sample_id: str) -> JudgeRequest:
        row = self.shard.prompt_rows[position]
        return JudgeRequest.of_sample(self.prompts[row], self.rubrics[row], self._images[position], sample_id)

    def _compare(self, real: Sequence[int], matches: Matches) -> None:
        pairs: list[tuple[int, int]] = []
        rows = self.shard.prompt_rows
        for position in real:
            self._group.append(position)
            if len(self._group) == np.count_nonzero(rows[self.shard.real] == rows[position]):
                pairs += [(self._group[a], self._group[b]) for a, b in matches(int(rows[position]))]
                self._group = []
        if pairs:
            self.pending.append(Comparisons(pairs, self.worker.submit_pairs([self._pair(*pair) for pair in pairs])))

    def _pair(self, a: int, b: int) -> PairRequest:
        row = self.shard.prompt_rows[a]
        # Without ids, equal pictures are the same candidate, about which no judge is asked.
        return PairRequest(self.rubrics[row], self._images[a], self._images[b], self.prompts[row].sources)
