"""Criteria that pixels answer without a model: `verifier: rule:<name>` with typed `arguments`.

    verifier: rule:colour_share
    arguments: {colour: navy, min: 0.4}

Each rule is a class whose fields are its arguments; `RULES` names them all.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from judges.pictures import Answer, ThreadedJudge, foreign, parse
from judges.rules.appearance import Aspect, Blank, Brightness, Chroma, ColourShare, Contrast, Sharpness, Size
from judges.rules.base import Rule
from judges.rules.relation import Duplicate, Keep
from judges.rules.similarity import hash_distance, perceptual_hash
from judges.rules.view import View
from mmrubric.errors import InputError
from mmrubric.judging import JudgeRequest
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Failure

PREFIX = "rule:"
RULES: dict[str, type[Rule]] = {
    "aspect": Aspect,
    "blank": Blank,
    "brightness": Brightness,
    "chroma": Chroma,
    "colour_share": ColourShare,
    "contrast": Contrast,
    "duplicate": Duplicate,
    "keep": Keep,
    "sharpness": Sharpness,
    "size": Size,
}


def rule_of(criterion: Criterion) -> Rule:
    """The rule that a criterion with the verifier `rule:<name>` asks for.

    Raises:
        InputError: unknown rule or argument (the known ones are listed), or a wrong value.
    """
    name = criterion.verifier.removeprefix(PREFIX)
    if name not in RULES:
        raise InputError(f"criterion {criterion.id!r}: unknown rule {name!r}; known: {', '.join(sorted(RULES))}")
    return parse(RULES[name], criterion)


class RulesJudge(ThreadedJudge[Rule]):
    """A `Judge` of criteria whose verifier is `rule:<name>`; one verdict costs milliseconds and no model."""

    def __init__(self, threads: int | None = None) -> None:
        super().__init__("rules/1", "rule", threads)

    def plan(self, criterion: Criterion, rubric: Rubric) -> Rule:
        """See `ThreadedJudge`."""
        if not criterion.verifier.startswith(PREFIX):
            raise foreign(criterion, self.id, f"{PREFIX}<name> ({', '.join(sorted(RULES))})")
        return rule_of(criterion)

    def answers(self, request: JudgeRequest, plans: Sequence[Rule]) -> Iterator[Answer]:
        """See `ThreadedJudge`. A broken source or reference fails only the criteria that need it."""
        view = View(request)
        # A broken candidate fails every criterion, whether its rule would have reached it or not.
        _ = view.size
        for rule in plans:
            try:
                yield rule(view)
            except InputError as error:
                yield Answer(None, str(error), Failure.bad_image)


def rules(threads: int | None = None) -> RulesJudge:
    """The judge of pixel rules.

    Args:
        threads: pictures judged at the same time; by default the number of processors, at most 4.
    """
    return RulesJudge(threads)


__all__ = ["RULES", "Rule", "RulesJudge", "hash_distance", "perceptual_hash", "rule_of", "rules"]
