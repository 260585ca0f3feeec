"""Several judges as one: numbers by hand, scripted members for failures, the two readers of shapes for real."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import judges
from judges.ensemble import EnsembleJudge, How, combine, combine_pairs, levels_of, nearest
from mmrubric import generators
from mmrubric.errors import InputError, RunError
from mmrubric.group import PairVerdict
from mmrubric.judging import JudgeRequest, PairRequest, SyncMixin
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Cost, Failure, Verdict
from tests.judges.pictures import scene

A, B, TIE, FAILED = PairVerdict.WIN_A, PairVerdict.WIN_B, PairVerdict.TIE, PairVerdict.FAILED
INCONSISTENT = PairVerdict.INCONSISTENT
YES_NO = Criterion(id="c", text="There is a ball.")
LEVELS = Criterion(id="c", text="How sharp?", scale="ordinal", anchors=("blurred", "soft", "sharp"))
RUBRIC = Rubric(
    prompt="a red ball",
    criteria=(
        Criterion(id="ball", text="There is a ball."),
        Criterion(id="red", text="It is red.", depends_on=("ball",)),
    ),
)
Answer = float | Failure | str
"""met, a failure, or "n/a"."""


def verdict(answer: Answer, criterion: str = "c") -> Verdict:
    cost = Cost(calls=1, prompt_tokens=10)
    if isinstance(answer, Failure):
        return Verdict("s", criterion, None, failure=answer, cost=cost)
    if answer == "n/a":
        return Verdict("s", criterion, None, applicable=False, cost=cost)
    return Verdict("s", criterion, float(answer), reason=f"said {answer}", read="logprob", cost=cost)


def joined(answers: Sequence[Answer], how: How, weights: Sequence[float] | None = None, criterion=YES_NO):
    named = {f"judge-{k}": verdict(answer) for k, answer in enumerate(answers)}
    return combine(criterion, named, how, weights or [1.0] * len(answers))


class Scripted(SyncMixin):
    """Gives the answers of a script by criterion id, or the pair verdicts in turn; remembers what it was asked."""

    def __init__(self, id: str, answers: Mapping[str, Answer] | None = None, pairs: Sequence[PairVerdict] = ()) -> None:
        self.id = id
        self.answers = answers or {}
        self.pairs = list(pairs)
        self.asked: list[tuple[str, ...]] = []

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        self.asked += [request.rubric.ids for request in requests]
        # In reverse: verdicts are joined by id.
        return [
            [verdict(self.answers[id], id) for id in reversed(r.rubric.ids) if id in self.answers] for r in requests
        ]

    async def compare(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        self.asked += [request.sample_ids or () for request in requests]
        return [self.pairs[int(request.a[1:])] for request in requests]  # type: ignore[index]


def ask(*answers: Mapping[str, Answer], **options):
    members = [Scripted(f"m{k}", script) for k, script in enumerate(answers)]
    ensemble = EnsembleJudge(members, **options)
    request = JudgeRequest(RUBRIC, "a text", sample_id="s")
    return members, {v.criterion_id: v for v in ensemble.score_sync([request])[0]}


@pytest.mark.parametrize(
    ("how", "weights", "met"),
    [
        ("majority", None, 0.0),  # .9 is a yes, .2 and .4 are noes
        ("mean", None, 0.5),  # 1.5 / 3
        ("weighted", [3.0, 1.0, 1.0], 0.66),  # (2.7 + .2 + .4) / 5
        ("median", None, 0.4),
        ("cascade", None, 0.4),  # the last one asked
    ],
)
def test_rules_by_hand(how: How, weights: list[float] | None, met: float):
    found = joined([0.9, 0.2, 0.4], how, weights)
    assert found.verdict.met == pytest.approx(met)
    assert found.verdict.read == f"ensemble:{how}"
    assert found.verdict.cost == Cost(calls=3, prompt_tokens=30)
    # Two of three choose no, as the ensemble does for majority, median and cascade; mean and weighted say yes.
    assert found.agreement == pytest.approx(2 / 3 if met < 0.5 else 1 / 3)


@pytest.mark.parametrize("how", ["majority", "mean", "median"])
def test_a_failed_member_is_left_out_and_counted_but_paid(how: How):
    found = joined([0.9, Failure.timeout, 0.7], how)
    assert found.verdict.met == pytest.approx(1.0 if how == "majority" else 0.8)
    assert (found.left_out, found.agreement) == (1, 1.0)
    assert found.verdict.cost.calls == 3
    assert found.verdict.reason == "2 of 2 judges (1 left out): said 0.9"
    # Weights of members that are left out are left out too: (1 * .9 + 3 * .7) / 4.
    assert joined([0.9, Failure.timeout, 0.7], "weighted", [1, 9, 3]).verdict.met == pytest.approx(0.75)


@pytest.mark.parametrize("how", ["majority", "mean", "median", "weighted", "cascade"])
def test_nobody_left_is_unknown_and_never_a_number(how: How):
    found = joined([Failure.timeout, Failure.refused, Failure.timeout], how)
    assert found.verdict.met is None and found.verdict.failure == Failure.timeout
    assert math.isnan(found.agreement) and found.left_out == 3
    assert found.verdict.cost.calls == 3


def test_a_split_vote_is_unknown_and_never_half_a_yes():
    found = joined([1.0, 0.0], "majority")
    assert found.verdict.met is None and found.verdict.failure is None and found.verdict.applicable
    assert "split" in found.verdict.reason


def test_does_not_apply_is_an_answer():
    assert not joined(["n/a", "n/a", 1.0], "mean").verdict.applicable
    assert joined(["n/a", 1.0, 1.0], "mean").verdict.met == 1.0
    assert joined(["n/a", 1.0], "mean").verdict.met == 1.0  # as many: the verdict stands
    assert not joined(["n/a", Failure.timeout], "majority").verdict.applicable
    # A cascade believes the latest answer.
    assert not joined([0.5, 0.5, "n/a"], "cascade").verdict.applicable
    assert joined(["n/a", "n/a", 1.0], "cascade").verdict.met == 1.0


def test_votes_on_a_scale_are_for_its_levels():
    # Levels 0, .5, 1: .4 and .6 both mean .5, and outvote 1.
    found = joined([0.4, 1.0, 0.6], "majority", criterion=LEVELS)
    assert found.verdict.met == 0.5 and found.agreement == pytest.approx(2 / 3)
    nominal = Criterion(id="c", text="Which?", scale="nominal", expected="cat", options=("cat", "dog", "bird"))
    assert levels_of(nominal) == [0.0, 1.0]
    assert [nearest(v, levels_of(YES_NO)) for v in (0.49, 0.5)] == [0.0, 1.0]


answers = st.one_of(st.floats(0, 1), st.sampled_from([*Failure]))


@settings(deadline=None)
@given(st.lists(answers, min_size=2, max_size=6), st.sampled_from(["majority", "mean", "median"]), st.randoms())
def test_invariants_of_the_rules(given_: list[Answer], how: How, random):
    found = joined(given_, how)
    values = [a for a in given_ if isinstance(a, float)]
    shuffled = random.sample(given_, len(given_))
    again = joined(shuffled, how)
    assert again.verdict.met == pytest.approx(found.verdict.met)
    if found.verdict.met is not None and how != "majority":
        assert min(values) <= found.verdict.met <= max(values)
    if found.verdict.met is not None:
        assert 0 <= found.agreement <= 1
    else:
        assert not values or how == "majority"


def test_a_cascade_asks_on_only_where_it_is_unsure():
    members, found = ask(
        {"ball": 0.95, "red": 0.6},
        {"ball": 0.0, "red": 0.45},
        {"ball": 0.0, "red": 0.1},
        how="cascade",
        band=0.2,
    )
    # ball: |.95 - .5| >= .2 settles it. red: .6 and .45 are unsure, the third decides.
    assert [member.asked for member in members] == [[("ball", "red")], [("red",)], [("red",)]]
    assert found["ball"].met == 0.95 and found["ball"].cost.calls == 1
    assert found["red"].met == 0.1 and found["red"].cost.calls == 3
    # The share of the rubric has lost its parent, not its place: verdicts come back in rubric order.
    assert list(found) == ["ball", "red"]


def test_a_cascade_escalates_unknown_and_falls_back_on_the_latest_answer():
    members, found = ask(
        {"ball": Failure.timeout, "red": 0.55},
        {"ball": 0.9, "red": Failure.refused},
        how="cascade",
    )
    assert [member.asked for member in members] == [[("ball", "red")], [("ball", "red")]]
    assert found["ball"].met == 0.9
    assert found["red"].met == 0.55  # unsure, but the only answer there is


def test_a_sure_cascade_ends_at_the_first_member():
    members, _ = ask({"ball": 1.0, "red": 0.0}, {}, how="cascade")
    assert members[1].asked == []


def test_verdicts_are_joined_by_id_and_a_missing_one_is_an_error_of_the_member():
    _, found = ask({"ball": 1.0, "red": 0.0}, {"ball": 1.0, "red": 0.0}, how="majority")
    assert (found["ball"].met, found["red"].met) == (1.0, 0.0)
    with pytest.raises(RunError, match="judge m1: asked about"):
        ask({"ball": 1.0, "red": 0.0}, {"ball": 1.0}, how="majority")


@pytest.mark.parametrize(
    ("verdicts", "how", "weights", "expected", "agreement"),
    [
        ([A, A, B], "majority", None, A, 2 / 3),
        ([A, B], "majority", None, INCONSISTENT, 0.0),
        ([A, TIE], "majority", None, INCONSISTENT, 0.0),
        ([TIE, TIE, A], "majority", None, TIE, 2 / 3),
        ([A, FAILED, A], "majority", None, A, 1.0),
        ([FAILED, FAILED], "mean", None, FAILED, math.nan),
        ([A, TIE], "mean", None, A, 0.5),  # +1 and 0
        ([A, B], "mean", None, INCONSISTENT, 0.0),
        ([TIE, TIE], "mean", None, TIE, 1.0),
        ([TIE, INCONSISTENT], "median", None, INCONSISTENT, 0.5),
        ([A, B, B], "weighted", [3, 1, 1], A, 1 / 3),  # +3 - 1 - 1
        ([INCONSISTENT, B, FAILED], "cascade", None, B, 0.5),
    ],
)
def test_pairs_by_hand(verdicts, how: How, weights, expected: PairVerdict, agreement: float):
    named = {f"judge-{k}": v for k, v in enumerate(verdicts)}
    found = combine_pairs(named, how, weights or [1.0] * len(verdicts))
    assert found.verdict == expected
    assert found.agreement == pytest.approx(agreement, nan_ok=True)
    assert found.left_out == verdicts.count(FAILED)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([*PairVerdict]), min_size=2, max_size=6), st.sampled_from(["majority", "mean", "median"])
)
def test_naming_the_pair_the_other_way_round_turns_the_verdict_round(verdicts: list[PairVerdict], how: How):
    named = {str(k): v for k, v in enumerate(verdicts)}
    turned = {str(k): v.flipped() for k, v in enumerate(verdicts)}
    weights = [1.0] * len(verdicts)
    assert combine_pairs(turned, how, weights).verdict == combine_pairs(named, how, weights).verdict.flipped()


def test_a_cascade_of_pairs_takes_an_agreed_tie_for_an_answer():
    first = Scripted("m0", pairs=[TIE, INCONSISTENT, FAILED, A])
    second = Scripted("m1", pairs=[A, B, FAILED, B])
    requests = [PairRequest(RUBRIC, f"a{k}", f"b{k}", sample_ids=(f"a{k}", f"b{k}")) for k in range(4)]
    found = EnsembleJudge([first, second], how="cascade").compare_sync(requests)
    assert found == [TIE, B, FAILED, A]
    assert second.asked == [("a1", "b1"), ("a2", "b2")]


def test_the_two_readers_of_shapes_as_one_judge():
    rubric = generators.build("shapes").generate_sync("a large red circle on a white background")
    pictures = [scene("white", ("circle", "red", 30, 30, 10.5)), scene("white", ("square", "blue", 30, 30, 10.5))]
    requests = [JudgeRequest(rubric, picture, sample_id=str(k)) for k, picture in enumerate(pictures)]
    alone = [judges.build(name).score_sync(requests) for name in ("shapes", "shapes_second")]
    ensemble = judges.build("ensemble", members=["shapes", {"name": "shapes_second"}], how="mean")
    assert isinstance(ensemble, judges.Judge)
    together = ensemble.score_sync(requests)
    for row, *each in zip(together, *alone, strict=True):
        assert [v.criterion_id for v in row] == list(rubric.ids)
        for verdict_, *members in zip(row, *each, strict=True):
            known = [v.met for v in members if v.met is not None]
            assert verdict_.met == (np.mean(known) if known else None)
    assert ensemble.id == "ensemble/1:mean(shapes/1, shapes_second/1)"


def test_ids_tell_rules_and_order_apart():
    members = ["shapes", "shapes_second"]
    built = [
        judges.build("ensemble", members=members),
        judges.build("ensemble", members=members[::-1]),
        judges.build("ensemble", members=members, how="weighted", weights=[1, 2]),
        judges.build("ensemble", members=members, how="weighted", weights=[2, 1]),
        judges.build("ensemble", members=members, how="cascade"),
        judges.build("ensemble", members=members, how="cascade", band=0.3),
    ]
    assert len({judge.id for judge in built}) == len(built)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"members": ["shapes"]}, "two or more members"),
        ({"members": ["shapes", "shapes"]}, "different ids"),
        ({"members": "shapes"}, "must be a list of judges"),
        ({"members": ["shapes", 3]}, r"members\[1\]: expected a judge, its name, or a mapping"),
        ({"members": ["shapes", "shape"]}, "unknown judge 'shape'"),
        ({"how": "unanimous"}, "known: cascade, majority, mean, median, weighted"),
        ({"weights": [1, 2]}, "weights and how='weighted' go together"),
        ({"how": "weighted"}, "weights and how='weighted' go together"),
        ({"how": "weighted", "weights": [1]}, "1 weights for 2 members"),
        ({"how": "weighted", "weights": [1, 0]}, "above 0"),
        ({"how": "weighted", "weights": [1, math.nan]}, r"weights\[1\]"),
        ({"band": 0.1}, "band belongs to how='cascade'"),
        ({"how": "cascade", "band": 0.6}, r"outside \[0, 0.5\]"),
        ({"how": "cascade", "band": 0}, "band must be above 0"),
    ],
)
def test_every_bad_option_is_named(options: dict, message: str):
    with pytest.raises(InputError, match=message):
        judges.build("ensemble", **{"members": ["shapes", "shapes_second"], **options})


def test_what_a_later_member_refuses_is_refused_before_the_first_is_asked():
    first = Scripted("m0", {"c": 1.0})
    vlm_criterion = Rubric(prompt="p", criteria=(YES_NO,))
    ensemble = judges.build("ensemble", members=[first, judges.build("rules")], how="cascade")
    with pytest.raises(InputError, match="criterion 'c' asks for verifier 'vlm'"):
        ensemble.score_sync([JudgeRequest(vlm_criterion, np.zeros((64, 64, 3), np.uint8), sample_id="s")])
    assert first.asked == []


def test_judges_that_do_not_compare_say_so():
    ensemble = judges.build("ensemble", members=["shapes", "shapes_second"])
    with pytest.raises(InputError, match="member 'shapes/1' does not compare pairs"):
        ensemble.compare_sync([PairRequest(RUBRIC, "a", "b")])
