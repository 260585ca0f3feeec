"""All rules together."""

from __future__ import annotations

from mmrubric.quality.criterion_rules import CRITERION_RULES
from mmrubric.quality.finding import SEVERITIES, Finding
from mmrubric.quality.rubric_rules import RUBRIC_RULES
from mmrubric.rubric import Rubric
from mmrubric.similar import Encoder

RULES = {
    "atomic": "one criterion states one fact",
    "observable": "what it asks can be seen",
    "non_comparative": "it is about one sample alone",
    "leak": "it tells neither the result nor what the judge is not shown",
    "polarity": "wording and sign of the weight agree",
    "literal": "text to be read is quoted",
    "repeats": "nothing is said twice",
    "contradiction": "all criteria can hold together",
    "dependencies": "depends_on fits what is said",
    "weights": "no criterion decides alone",
    "size": "3 to 25 criteria",
}
"""What each rule wants, by its name."""


def lint(rubric: Rubric, encoder: Encoder | None = None) -> list[Finding]:
    """Everything in a rubric that is likely to mislead a judge or a score, by wording and structure alone.

    Args:
        rubric: any; wording rules know English words.
        encoder: finds repeats in other words (`mmrubric.similar.ngram_encoder`, or a sentence encoder); None = by
            words only.

    Returns:
        Errors first, then warnings, then notes; within each by rule and criterion ids. The order of the criteria does
        not matter.
    """
    found = [
        finding for criterion in rubric.criteria for rule in CRITERION_RULES for finding in rule(criterion, rubric)
    ]
    found += [finding for rule in RUBRIC_RULES for finding in rule(rubric, encoder)]
    order = list(RULES)
    return sorted(set(found), key=lambda f: (SEVERITIES.index(f.severity), order.index(f.rule), f.criteria, f.message))
