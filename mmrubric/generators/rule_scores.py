"""Scores of rules on labelled pairs: asked once for each rule, and turned into differences."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from mmrubric.aggregate.l1_rules import differences
from mmrubric.errors import RunError
from mmrubric.generators.fitting import Sample, Scores, scores_of
from mmrubric.judging import Judge
from mmrubric.pairs import PreferencePair
from mmrubric.rubric import Criterion
from mmrubric.scores import Floats


class RuleScores:
    """A judge's scores of both candidates of P pairs, by rule id.

    Args:
        judge: scores every rule once; what failed is asked again.
        pairs: P pairs.
        most_unknown: share of the pairs that may have an unknown score, in [0, 1].
    """

    def __init__(self, judge: Judge, pairs: Sequence[PreferencePair], most_unknown: float) -> None:
        self._judge = judge
        self._pairs = pairs
        self._most = most_unknown
        self._columns: dict[str, Scores] = {}

    async def add(self, rules: Sequence[Criterion]) -> None:
        """Ask for the scores of those rules that have none yet: all of them in one request per candidate."""
        new = [rule for rule in rules if rule.id not in self._columns]
        if not new:
            return
        samples = [
            Sample(pair.prompt, candidate, pair.sources) for pair in self._pairs for candidate in pair.candidates
        ]
        scores = await scores_of(self._judge, samples, new)
        for column, rule in enumerate(new):
            self._columns[rule.id] = Scores(
                scores.met[:, column].reshape(-1, 2), scores.failed[:, column].reshape(-1, 2)
            )

    def usable(self, rules: Sequence[Criterion]) -> tuple[list[Criterion], list[Criterion]]:
        """Rules to fit on, and those that leave because they often do not apply.

        A pair with an unknown score leaves the fit. While too many would, the rule that most often does not apply to
        a picture goes instead: it is no rule for the whole data set.

        Raises:
            RunError: the judge failed on too many pairs.
        """
        kept, dropped = list(rules), []
        while (lost := 1.0 - self.known(kept).mean()) > self._most:
            gaps = [self._columns[rule.id].inapplicable.any(axis=1).sum() for rule in kept]
            if not any(gaps):
                raise RunError(
                    f"judge {self._judge.id!r} left {lost:.0%} of the pairs with an unknown score; at most "
                    f"{self._most:.0%} may be"
                )
            dropped.append(kept.pop(int(np.argmax(gaps))))
        return kept, dropped

    def known(self, rules: Sequence[Criterion]) -> NDArray[np.bool_]:
        """[P] True where every rule has a score on both candidates."""
        return ~np.isnan(self.differences(rules).sum(axis=1))

    def differences(self, rules: Sequence[Criterion]) -> Floats:
        """d [P, J]: score of the preferred candidate minus that of the other one; NaN = unknown."""
        met = self.met(rules)
        return differences(met[:, 0], met[:, 1], [pair.label for pair in self._pairs])

    def met(self, rules: Sequence[Criterion]) -> Floats:
        """[P, 2, J] scores of both candidates, in the order of the pair."""
        if not rules:
            return np.empty((len(self), 2, 0))
        return np.stack([self._columns[rule.id].met for rule in rules], axis=2)

    def __len__(self) -> int:
        return len(self._pairs)
