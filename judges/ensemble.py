"""One judge from several: each asks the same thing, and their answers are combined per criterion or per pair."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any, Literal, TypeAlias, get_args

import numpy as np

from judges.joining import answers_of, part_of
from judges.pictures import Checks
from mmrubric.checks import number, one_of
from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.judging import Judge, JudgeRequest, PairJudge, PairRequest, SyncMixin, run_all
from mmrubric.rubric import Criterion, Rubric
from mmrubric.scores import PASS
from mmrubric.verdict import Failure, Verdict

How: TypeAlias = Literal["majority", "mean", "weighted", "median", "cascade"]
BAND = 0.2
Member: TypeAlias = Judge | PairJudge | str | Mapping[str, Any]
"""A judge, the name of one, or a mapping of its name and options, such as {name: vlm, base_url: ..., model: ...}."""


@dataclass(frozen=True)
class Combined:
    """What an ensemble says about one criterion, and what that rests on."""

    verdict: Verdict
    agreement: float
    """Share of the members with an answer whose choice is the ensemble's, in [0, 1]; NaN where it is unknown."""
    members: dict[str, Verdict]
    """Verdict of every member that was asked, by its id."""
    left_out: int
    """Members asked that failed or found that the question does not apply."""


@dataclass(frozen=True)
class CombinedPair:
    """What an ensemble says about one pair."""

    verdict: PairVerdict
    agreement: float
    """Share of the members that did not fail whose verdict is the ensemble's; NaN when all failed."""
    members: dict[str, PairVerdict]
    left_out: int
    """Members asked that failed."""


class EnsembleJudge(SyncMixin):
    """A `Judge`, and a `PairJudge` where its members are, that combines at least two members.

    A member that fails is left out and counted; if none is left, the verdict is unknown. 'Does not apply' is an
    answer: it stands when more members say so than give a verdict. `detail` and `detail_pairs` give the agreement
    among the members and what each of them said.

    - majority: the answer that most members choose (on a binary scale met >= 0.5), as met = its value; a split vote is
      unknown, never half a yes.
    - mean, weighted, median: of met over the members with an answer; `weights` are per member.
    - cascade: members are asked in order, cheapest first. Only the criteria on which one is unsure, |met - 0.5| < band
      or unknown, are asked of the next; the last one's answer stands, or if it has none the latest before it.

    Args:
        members: judges with different ids.
        how: rule of combination.
        weights: for `weighted`: one positive number per member.
        band: for `cascade`: in (0, 0.5], 0.2 by default.

    Raises:
        InputError: fewer than two members, equal ids, or an option that the rule does not use.
    """

    def __init__(
        self,
        members: Sequence[Judge | PairJudge],
        how: How = "majority",
        weights: Sequence[float] | None = None,
        band: float | None = None,
    ) -> None:
        one_of("ensemble: how", how, get_args(How))
        ids = [member.id for member in members]
        if len(ids) < 2 or len(set(ids)) < len(ids):
            raise InputError(f"ensemble: needs two or more members with different ids (equal ids answer alike): {ids}")
        if (weights is not None) != (how == "weighted"):
            raise InputError(f"ensemble: weights and how='weighted' go together, got how={how!r}, weights={weights!r}")
        if band is not None and how != "cascade":
            raise InputError(f"ensemble: band belongs to how='cascade', got how={how!r}")
        self.members = list(members)
        self.how: How = how
        self.weights = dict(zip(ids, _weights(weights, len(ids)), strict=True))
        """By the id of the member; 1 unless `weighted`."""
        self.band = number("ensemble: band", BAND if band is None else band, 0.0, 0.5)
        if self.band == 0:
            raise InputError("ensemble: band must be above 0; with 0 the first member decides everything")

    @property
    def id(self) -> str:
        """Version, rule and the ids of the members in order."""
        rule = {"weighted": f" {list(self.weights.values())}", "cascade": f" {self.band:g}"}.get(self.how, "")
        return f"ensemble/1:{self.how}{rule}({', '.join(member.id for member in self.members)})"

    def check(self, requests: Sequence[JudgeRequest]) -> None:
        """Refuse what a member cannot judge, before any is asked; also what only a later member of a cascade would.

        Raises:
            InputError: a member only compares pairs, or refuses a request.
        """
        for member in self.members:
            judge = _scoring(member)
            if isinstance(judge, Checks):
                judge.check(requests)

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """One verdict per criterion of each request, in rubric order; its cost is the sum over the members asked.

        Raises:
            InputError: see `check`; or as the members do.
            RunError: a member answered about other criteria than it was asked.
        """
        return [[combined.verdict for combined in row] for row in await self.detail(requests)]

    async def detail(self, requests: Sequence[JudgeRequest]) -> list[list[Combined]]:
        """As `score`, with agreement and the members' verdicts."""
        await asyncio.to_thread(self.check, requests)
        scoring = [_scoring(member) for member in self.members]
        if self.how == "cascade":
            given = await self._cascade(scoring, requests)
        else:
            answers = await run_all(answers_of(member, requests) for member in scoring)
            given = [
                {id: {m.id: answer[k][id] for m, answer in zip(scoring, answers, strict=True)} for id in r.rubric.ids}
                for k, r in enumerate(requests)
            ]
        return [
            [self._combine(criterion, verdicts[criterion.id]) for criterion in request.rubric.criteria]
            for request, verdicts in zip(requests, given, strict=True)
        ]

    async def compare(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        """One verdict per pair; see `combine_pairs` for how they are joined.

        A cascade asks the next member about pairs that are INCONSISTENT or FAILED; an agreed tie is an answer.

        Raises:
            InputError: a member does not compare pairs, or as the members do.
        """
        return [combined.verdict for combined in await self.detail_pairs(requests)]

    async def detail_pairs(self, requests: Sequence[PairRequest]) -> list[CombinedPair]:
        """As `compare`, with agreement and the members' verdicts."""
        comparing = [_comparing(member) for member in self.members]
        given: list[dict[str, PairVerdict]] = [{} for _ in requests]
        if self.how == "cascade":
            open_ = list(range(len(requests)))
            for member in comparing:
                if not open_:
                    break
                for k, verdict in zip(open_, await member.compare([requests[k] for k in open_]), strict=True):
                    given[k][member.id] = verdict
                unsure = (PairVerdict.INCONSISTENT, PairVerdict.FAILED)
                open_ = [k for k in open_ if given[k][member.id] in unsure]
        else:
            for member, row in zip(comparing, await run_all(m.compare(requests) for m in comparing), strict=True):
                for verdicts, verdict in zip(given, row, strict=True):
                    verdicts[member.id] = verdict
        return [combine_pairs(verdicts, self.how, [self.weights[id] for id in verdicts]) for verdicts in given]

    async def _cascade(
        self, members: Sequence[Judge], requests: Sequence[JudgeRequest]
    ) -> list[dict[str, dict[str, Verdict]]]:
        """Per request and criterion id the verdicts of the members that were asked, in order."""
        given: list[dict[str, dict[str, Verdict]]] = [{id: {} for id in request.rubric.ids} for request in requests]
        open_ = {k: request.rubric.ids for k, request in enumerate(requests)}
        for member in members:
            shares = _Shares()
            asked = [replace(requests[k], rubric=shares.of(requests[k].rubric, ids)) for k, ids in open_.items()]
            if not asked:
                break
            still: dict[int, tuple[str, ...]] = {}
            for (k, ids), verdicts in zip(open_.items(), await answers_of(member, asked), strict=True):
                for id in ids:
                    given[k][id][member.id] = verdicts[id]
                unsure = tuple(id for id in ids if self._unsure(verdicts[id]))
                if unsure:
                    still[k] = unsure
            open_ = still
        return given

    def _unsure(self, verdict: Verdict) -> bool:
        return verdict.met is None or abs(verdict.met - PASS) < self.band

    def _combine(self, criterion: Criterion, verdicts: dict[str, Verdict]) -> Combined:
        return combine(criterion, verdicts, self.how, [self.weights[id] for id in verdicts])


def combine(criterion: Criterion, verdicts: Mapping[str, Verdict], how: How, weights: Sequence[float]) -> Combined:
    """The joint verdict on one criterion of one sample; `EnsembleJudge` states the rules.

    Args:
        criterion: with its scale: choices are compared on it.
        verdicts: by the id of the member, at least one, in the order in which they were asked.
        how: rule of combination.
        weights: one per verdict; used by `weighted`.
    """
    given = list(verdicts.values())
    known = [(v, w) for v, w in zip(given, weights, strict=True) if v.met is not None]
    left_out = len(given) - len(known)
    cost = reduce(add, (verdict.cost for verdict in given))
    base = Verdict(given[0].sample_id, criterion.id, None, read=f"ensemble:{how}", cost=cost)

    def unknown(reason: str, **changes: Any) -> Combined:
        return Combined(replace(base, reason=reason, **changes), float("nan"), dict(verdicts), left_out)

    if _does_not_apply(given, how):
        return unknown("the question does not apply", applicable=False)
    if not known:
        failure = Counter(v.failure or Failure.missing for v in given).most_common(1)[0][0]
        return unknown(f"none of {len(given)} judges has an answer", failure=failure)
    values = np.array([v.met for v, _ in known], dtype=np.float64)
    levels = levels_of(criterion)
    choices = [nearest(value, levels) for value in values]
    met = _joint(values, choices, np.array([w for _, w in known]), how)
    if met is None:
        return unknown(f"{len(known)} judges are split")
    chosen = nearest(met, levels)
    same = [v for (v, _), choice in zip(known, choices, strict=True) if choice == chosen]
    reason = f"{len(same)} of {len(known)} judges" + (f" ({left_out} left out)" if left_out else "")
    reason += f": {same[0].reason}" if same and same[0].reason else ""
    return Combined(replace(base, met=met, reason=reason), len(same) / len(known), dict(verdicts), left_out)


def _does_not_apply(verdicts: Sequence[Verdict], how: How) -> bool:
    """Whether 'does not apply' is the joint answer: the latest one of a cascade, otherwise the more frequent one."""
    answered = [verdict for verdict in verdicts if verdict.known or not verdict.applicable]
    if how == "cascade":
        return bool(answered) and not answered[-1].applicable
    return sum(not verdict.applicable for verdict in answered) > len(answered) / 2


def _joint(values: np.ndarray, choices: Sequence[float], weights: np.ndarray, how: How) -> float | None:
    """met of the ensemble, or None for a split vote."""
    if how == "cascade":
        return float(values[-1])
    if how == "majority":
        (best, votes), *others = Counter(choices).most_common()
        return None if others and others[0][1] == votes else best
    if how == "median":
        return float(np.median(values))
    shares = weights if how == "weighted" else np.ones(len(values))
    # A mean of equal values can come out a rounding above them.
    return float(np.clip((shares * values).sum() / shares.sum(), values.min(), values.max()))


def combine_pairs(verdicts: Mapping[str, PairVerdict], how: How, weights: Sequence[float]) -> CombinedPair:
    """The joint verdict on one pair. FAILED members are left out; all of them failed is FAILED.

    - majority: the outcome that most members give; a split vote is INCONSISTENT.
    - mean, weighted, median: of +1 for WIN_A, -1 for WIN_B, 0 for TIE and INCONSISTENT; its sign wins, and 0 is a TIE
      only if all say TIE, otherwise INCONSISTENT.
    - cascade: the latest answer of a member that did not fail.

    Args:
        verdicts: by the id of the member, at least one, in the order in which they were asked.
        how: rule of combination.
        weights: one per verdict; used by `weighted`.
    """
    known = [(PairVerdict(v), w) for v, w in zip(verdicts.values(), weights, strict=True) if v != PairVerdict.FAILED]
    left_out = len(verdicts) - len(known)
    if not known:
        return CombinedPair(PairVerdict.FAILED, float("nan"), dict(verdicts), left_out)
    outcomes = [v for v, _ in known]
    if how == "cascade":
        verdict = outcomes[-1]
    elif how == "majority":
        (verdict, votes), *others = Counter(outcomes).most_common()
        if others and others[0][1] == votes:
            verdict = PairVerdict.INCONSISTENT
    else:
        signs = np.array([(v == PairVerdict.WIN_A) - (v == PairVerdict.WIN_B) for v in outcomes], dtype=np.float64)
        shares = np.array([w for _, w in known]) if how == "weighted" else np.ones(len(known))
        value = float(np.median(signs)) if how == "median" else float((shares * signs).sum())
        verdict = _winner(value, outcomes)
    agreement = sum(outcome == verdict for outcome in outcomes) / len(outcomes)
    return CombinedPair(verdict, agreement, dict(verdicts), left_out)


def _winner(value: float, outcomes: Sequence[PairVerdict]) -> PairVerdict:
    if abs(value) > 1e-12:
        return PairVerdict.WIN_A if value > 0 else PairVerdict.WIN_B
    return PairVerdict.TIE if set(outcomes) == {PairVerdict.TIE} else PairVerdict.INCONSISTENT


def levels_of(criterion: Criterion) -> list[float]:
    """The values of met that an answer on the criterion's scale can have, ascending."""
    answers: Sequence[str | int] = ("no", "yes")
    if criterion.scale == "ordinal":
        answers = range(1, len(criterion.anchors) + 1)
    elif criterion.scale == "nominal":
        answers = [option.label for option in criterion.options]
    values = {criterion.met_of(answer) for answer in answers}
    return sorted(value for value in values if value is not None)


def nearest(met: float, levels: Sequence[float]) -> float:
    """The level next to met; half-way goes up, as met >= 0.5 is a yes."""
    return min(levels, key=lambda level: (round(abs(level - met), 12), -level))


class _Shares:
    """Parts of rubrics, each made once: requests of one group keep sharing one rubric object."""

    def __init__(self) -> None:
        self._made: dict[tuple[int, tuple[str, ...]], Rubric] = {}

    def of(self, rubric: Rubric, ids: tuple[str, ...]) -> Rubric:
        """The rubric with the criteria `ids` only."""
        if len(ids) == len(rubric.criteria):
            return rubric
        key = (id(rubric), ids)
        if key not in self._made:
            self._made[key] = part_of(rubric, ids)
        return self._made[key]


def _scoring(member: Judge | PairJudge) -> Judge:
    if not isinstance(member, Judge):
        raise InputError(f"ensemble: member {member.id!r} only compares pairs; call compare")
    return member


def _comparing(member: Judge | PairJudge) -> PairJudge:
    if not isinstance(member, PairJudge):
        raise InputError(f"ensemble: member {member.id!r} does not compare pairs; score both and compare the scores")
    return member


def _weights(weights: Sequence[float] | None, members: int) -> list[float]:
    if weights is None:
        return [1.0] * members
    if len(weights) != members:
        raise InputError(f"ensemble: {len(weights)} weights for {members} members; give one each")
    checked = [number(f"ensemble: weights[{k}]", weight, 0.0) for k, weight in enumerate(weights)]
    if 0.0 in checked:
        raise InputError("ensemble: a weight must be above 0; leave the member out instead")
    return checked


def built(member: Member, where: str) -> Judge | PairJudge:
    """A judge from itself, from its name, or from a mapping of its name and options.

    Raises:
        InputError: none of these, or as `judges.build`.
    """
    if isinstance(member, (Judge, PairJudge)):
        return member
    import judges

    if isinstance(member, str):
        return judges.build(member)
    if not isinstance(member, Mapping) or not isinstance(member.get("name"), str):
        raise InputError(f"{where}: expected a judge, its name, or a mapping with name and options, got {member!r}")
    options = dict(member)
    return judges.build(options.pop("name"), **options)


def ensemble(
    members: Sequence[Member],
    how: How = "majority",
    weights: Sequence[float] | None = None,
    band: float | None = None,
) -> EnsembleJudge:
    """Build an `EnsembleJudge`, which states what the options mean.

    Args:
        members: judges, names of judges, or mappings of name and options.
        how, weights, band: see `EnsembleJudge`.

    Raises:
        InputError: a member that cannot be built, or as `EnsembleJudge`.
    """
    if isinstance(members, (str, Mapping)):
        raise InputError(f"ensemble: members must be a list of judges, got {members!r}")
    return EnsembleJudge([built(m, f"ensemble: members[{k}]") for k, m in enumerate(members)], how, weights, band)
