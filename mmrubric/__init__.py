"""The vocabulary and arithmetic: rubrics, verdicts, scores, preferences, advantages. Never imports torch."""

from mmrubric import advantage, aggregate, filters, generators, preference, selection
from mmrubric.errors import InputError, RunError
from mmrubric.group import Group, PairVerdict
from mmrubric.prompt import Grounding, Prompt, Task
from mmrubric.rubric import Anchor, Criterion, Option, Provenance, Rubric
from mmrubric.scores import ScoreTable
from mmrubric.verdict import Cost, Failure, Verdict

__all__ = [
    "Anchor",
    "Cost",
    "Criterion",
    "Failure",
    "Grounding",
    "Group",
    "InputError",
    "Option",
    "PairVerdict",
    "Prompt",
    "Provenance",
    "Rubric",
    "RunError",
    "ScoreTable",
    "Task",
    "Verdict",
    "advantage",
    "aggregate",
    "filters",
    "generators",
    "preference",
    "selection",
]
