"""Rubric rewards for text models, as TRL calls them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mmrubric.aggregate.base import Aggregator
from mmrubric.errors import RunError
from mmrubric.judging import Judge, JudgeRequest, run_sync
from mmrubric.rubric import Rubric
from mmrubric.scores import ScoreTable

RubricOf = Callable[[str, dict[str, Any]], Rubric]
"""The rubric of a prompt; gets the prompt's text and its other columns."""


class RubricReward:
    """A reward function for `trl.GRPOTrainer(reward_funcs=[...])`: judge each completion by its prompt's rubric.

    Call it, or hand over its method `aio` where an async function is wanted. What cannot be scored is None, which TRL
    leaves out of the mean, never 0.

    Args:
        judge: of texts, such as `judges.build("vlm", ...)`.
        rubric_of: the rubric of a prompt.
        aggregator: verdicts to a reward.
    """

    def __init__(self, judge: Judge, rubric_of: RubricOf, aggregator: Aggregator) -> None:
        self.judge = judge
        self.rubric_of = rubric_of
        self.aggregator = aggregator
        # TRL logs rewards under this name.
        self.__name__ = "rubric_reward"

    def __call__(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """Rewards in the order of the completions.

        Args:
            prompts: texts, or chats (lists of {"role", "content"}), one per completion.
            completions: texts, or chats.
            columns: of the data set, one value per completion each; others that TRL hands over are ignored.

        Raises:
            RunError: the numbers of prompts, completions and answers differ.
        """
        return run_sync(self.aio(prompts, completions, **columns))

    async def aio(self, prompts: Sequence[Any], completions: Sequence[Any], **columns: Any) -> list[float | None]:
        """As calling, for an event loop."""
        if len(prompts) != len(completions):
            raise RunError(f"rubric reward: {len(prompts)} prompts for {len(completions)} completions")
        own = {k: v for k, v in columns.items() if isinstance(v, (list, tuple)) and len(v) == len(prompts)}
        requests = [
            JudgeRequest(
                rubric=self.rubric_of(text_of(prompt), {name: values[row] for name, values in own.items()}),
                candidate=text_of(completion),
                sample_id=str(row),
            )
            for row, (prompt, completion) in enumerate(zip(prompts, completions, strict=True))
        ]
        verdicts = await self.judge.score(requests)
        if len(verdicts) != len(requests):
            raise RunError(f"judge {self.judge.id}: {len(requests)} requests, {len(verdicts)} answers")
        rewards = []
        for request, row in zip(requests, verdicts, strict=True):
            table = ScoreTable.from_verdicts(request.rubric, [str(request.sample_id)], [row])
            value = float(self.aggregator(table)[0])
            rewards.append(value if np.isfinite(value) else None)
        return rewards


def text_of(turns: Any) -> str:
    """The text of a prompt or completion: itself, or the last turn of a chat."""
    if isinstance(turns, str):
        return turns
    content = turns[-1]["content"]
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] for part in content if part.get("type") == "text")
