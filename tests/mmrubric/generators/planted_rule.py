"""How surely `rules_from_pairs` finds a planted rule: `python -m tests.mmrubric.generators.planted_rule`.

The model is scripted, the pictures and the pixel judge are real: see `test_rules_from_pairs`.
"""

from __future__ import annotations

import numpy as np

from tests.mmrubric.generators.test_rules_from_pairs import (
    CHECKS,
    DISTRACTORS,
    PLANTED,
    agreement,
    build,
    model,
    shape_pairs,
)
from tests.mmrubric.generators.worlds import WordsToPixels

SETTINGS = ((128, 0.1), (32, 0.1), (128, 0.25))
"""Pairs, and share of their labels that are wrong."""


def main() -> None:
    judge = WordsToPixels(CHECKS)
    fresh = shape_pairs(200, seed=99, flipped=0.0)
    for count, flipped in SETTINGS:
        first, right, kept = [], [], []
        for seed in range(1, 6):
            rules = build(model([*DISTRACTORS, PLANTED]), rounds=1)
            rules.fit_sync(shape_pairs(count, seed, flipped), judge)
            rubric = rules.generate_sync("any prompt")
            first.append(max(rubric.criteria, key=lambda criterion: criterion.weight).text == PLANTED)
            right.append(agreement(rubric, judge, fresh))
            kept.append(len(rubric.criteria))
        print(
            f"{count} pairs, {flipped:.0%} flipped: planted rule first in {sum(first)} of {len(first)}, "
            f"accuracy on new pairs {np.round(right, 3).tolist()}, rules kept {kept}"
        )


if __name__ == "__main__":
    main()
