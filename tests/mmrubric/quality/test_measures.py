"""Coverage of the prompt, discriminative power, proxy accuracy and agreement across judges: numbers by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.quality import (
    Power,
    coverage,
    discrimination,
    judge_agreement,
    proxy_accuracy,
    proxy_credit,
    proxy_rewards,
    rank_by_proxy,
)
from mmrubric.report.judge_report_inputs import PairAnswers
from mmrubric.rubric import Criterion, Rubric
from mmrubric.scores import ScoreTable

NAN = math.nan
A, B, TIE, FAILED = PairVerdict.WIN_A, PairVerdict.WIN_B, PairVerdict.TIE, PairVerdict.FAILED


def rubric_of(prompt: str, *texts: str) -> Rubric:
    return Rubric(prompt=prompt, criteria=tuple(Criterion(id=f"c{k}", text=text) for k, text in enumerate(texts)))


def test_coverage_by_hand():
    found = coverage(
        rubric_of(
            "Three red cups and a blue plate on the table, with a sign 'OPEN LATE' in gold",
            "Exactly 3 cups are visible.",
            "The cup is red.",
            "The sign reads 'open late'.",
        )
    )
    assert (found.numbers.spoken, found.numbers.missing) == (("three",), ())
    assert (found.colours.spoken, found.colours.missing) == (("red",), ("blue", "gold"))
    assert (found.words.spoken, found.words.missing) == (("cups", "sign"), ("plate", "table"))
    assert (found.quoted.spoken, found.quoted.missing) == (("OPEN LATE",), ())
    # 1 number, 1 of 3 colours, 2 of 4 words, 1 string: 5 of 9.
    assert found.share == pytest.approx(5 / 9) and found.colours.share == pytest.approx(1 / 3)
    assert found.missing == ("blue", "gold", "plate", "table")


def test_a_prompt_that_names_nothing_has_no_share():
    found = coverage(rubric_of("", "A cat is visible."))
    assert math.isnan(found.share) and found.missing == () and math.isnan(found.quoted.share)


def test_texts_of_scales_and_arguments_speak_too():
    ordinal = Criterion(id="a", text="How sharp?", scale="ordinal", anchors=("blurred fur", "every whisker"))  # type: ignore[arg-type]
    ruled = Criterion(id="b", text="Shape check", verifier="rule:shapes", arguments={"text": "OPEN"})
    found = coverage(Rubric(prompt="fur, whiskers, 'OPEN'", criteria=(ordinal, ruled)))
    assert found.share == 1.0


@settings(deadline=None, max_examples=40)
@given(st.lists(st.sampled_from(["three", "red", "cups", "a", "blue", "plate", "'OPEN'", "on", "the"]), min_size=1))
def test_a_rubric_that_repeats_the_prompt_covers_it_and_more_criteria_never_cover_less(words: list[str]):
    prompt = " ".join(words)
    part, whole = rubric_of(prompt, "A cup."), rubric_of(prompt, "A cup.", prompt)
    shares = coverage(part).share, coverage(whole).share
    assert math.isnan(shares[1]) or (shares[1] == 1.0 and shares[0] <= shares[1])


RUBRIC = Rubric(
    prompt="a red ball",
    criteria=(
        Criterion(id="ball", text="A ball is visible.", category="object"),
        Criterion(id="red", text="The ball is red.", category="colour"),
        Criterion(id="text", text="Text is visible.", category="text", weight=-1.0),
    ),
)
FIRST = ScoreTable(RUBRIC, [[1, 1, 0], [1, 0, 0], [1, NAN, 1]], ["a", "b", "c"])
SECOND = ScoreTable(RUBRIC, [[1, 1, 0], [1, 1, NAN]], ["d", "e"])
PREFERRED = {"a": True, "b": False, "c": False, "d": True, "e": False}


def power(found: list[Power], key: str) -> Power:
    return next(item for item in found if item.key == key)


def test_discrimination_by_hand():
    found = discrimination([FIRST, SECOND], PREFERRED)
    assert [item.key for item in found] == ["ball", "red", "text"]
    ball, red, text = found
    assert (ball.pass_rate, ball.separates, ball.std, ball.gap, ball.saturated) == (1.0, 0.0, 0.0, 0.0, "always")
    # red: known 1 0 | 1 1. Group 1: preferred 1, rejected 0 (c unknown): gap 1; group 2: 1 - 1 = 0. Std .5 and 0.
    assert red.pass_rate == pytest.approx(3 / 4) and red.unknown_share == pytest.approx(1 / 5)
    assert (red.separates, red.std, red.gap, red.gap_columns) == (0.5, 0.25, 0.5, 2)
    # text is not wanted: passed 1 1 0 | 1 unknown. Group 1: 1 - 1/2 = 1/2; group 2 knows no rejected one.
    assert text.pass_rate == pytest.approx(3 / 4) and (text.gap, text.gap_columns, text.separates) == (0.5, 1, 1.0)
    assert text.std == pytest.approx(math.sqrt(2) / 3)  # of 1, 1, 0: variance 2/9
    assert (text.columns, text.verdicts) == (2, 5)


def test_one_table_without_labels_and_by_category():
    assert math.isnan(power(discrimination(FIRST), "red").gap)
    found = discrimination([FIRST, SECOND], [{"a": True, "b": False}, {}], by="category")
    assert [item.key for item in found] == ["colour", "object", "text"]
    assert power(found, "colour").gap == 1.0 and power(found, "colour").gap_columns == 1


def test_nothing_known_is_nan_not_zero():
    found = discrimination(ScoreTable(RUBRIC, [[NAN] * 3] * 2))
    assert all(item.unknown_share == 1.0 and item.saturated == "" for item in found)
    assert all(math.isnan(value) for item in found for value in (item.pass_rate, item.std, item.separates, item.gap))
    assert discrimination([]) == []


def test_labels_that_fit_nothing_are_refused():
    with pytest.raises(InputError, match="none of its 1 sample ids is judged; it names for example 'x', the tables"):
        discrimination([FIRST, SECOND], {"x": True})
    with pytest.raises(InputError, match="1 mappings for 2 tables"):
        discrimination([FIRST, SECOND], [{"a": True}])
    with pytest.raises(InputError, match="by: unknown value 'kind'"):
        discrimination(FIRST, by="kind")  # type: ignore[arg-type]


@settings(deadline=None, max_examples=40)
@given(
    arrays(np.float64, (5, 3), elements=st.sampled_from([0.0, 0.3, 1.0, NAN])),
    st.permutations(range(5)),
    st.permutations(range(3)),
)
def test_rows_and_columns_may_come_in_any_order(met: np.ndarray, rows: list[int], columns: list[int]):
    ids = ["a", "b", "c", "d", "e"]
    mixed = Rubric(prompt="", criteria=tuple(RUBRIC.criteria[k] for k in columns))
    one = discrimination(ScoreTable(RUBRIC, met, ids), PREFERRED)
    other = discrimination(ScoreTable(mixed, met[rows][:, columns], [ids[k] for k in rows]), PREFERRED)
    for first, second in zip(one, other, strict=True):
        assert vars(first) == pytest.approx(vars(second), nan_ok=True)
        assert math.isnan(first.gap) or -1 <= first.gap <= 1


def pair(id: str, forward: PairVerdict, swapped: PairVerdict, preferred: PairVerdict | None = A) -> PairAnswers:
    return PairAnswers(id, forward, swapped, preferred)


ANSWERS = [
    pair("right", A, B),  # the swapped answer names by position: B is the sample a
    pair("wrong", B, A),
    pair("torn", A, A),
    pair("tied", TIE, TIE),
    pair("failed", A, FAILED),
    pair("open", A, B, None),
]


def test_proxy_rewards_by_hand():
    assert proxy_rewards(ANSWERS).tolist()[:4] == [1, -1, 0, 0]
    assert np.isnan(proxy_rewards(ANSWERS)[4:]).all()
    found = proxy_accuracy(ANSWERS)
    assert (found.labelled, found.known, found.accuracy, found.undecided, found.reward) == (5, 4, 0.25, 0.5, 0.0)
    assert math.isnan(found.credit) and found.credited == 0


def test_credit_is_what_the_rubric_adds():
    without = [pair("right", A, B), pair("wrong", A, A), pair("torn", B, A), pair("failed", A, B)]
    credit = proxy_credit(ANSWERS, without)
    # right: 1 - 1; wrong: -1 - 0; torn: 0 - -1; tied was not asked without; failed has no answer with.
    assert credit[:3].tolist() == [0, -1, 1] and np.isnan(credit[3:]).all()
    found = proxy_accuracy(ANSWERS, without)
    assert (found.credit, found.credited) == (0.0, 3)


def test_candidates_are_ranked_by_reward_then_name():
    candidates = {
        "z": [pair("1", A, B), pair("2", A, B)],
        "b": [pair("1", A, B), pair("2", A, A)],
        "a": [pair("1", A, A), pair("2", A, B)],
        "none": [pair("1", FAILED, B)],
    }
    assert [name for name, _ in rank_by_proxy(candidates)] == ["z", "a", "b", "none"]


def test_pairs_that_do_not_fit_are_refused():
    with pytest.raises(InputError, match="no pair was asked both with and without a rubric"):
        proxy_credit(ANSWERS, [pair("else", A, B)])
    with pytest.raises(InputError, match="pair 'right' is labelled WIN_A with a rubric, WIN_B without"):
        proxy_credit(ANSWERS, [pair("right", A, B, B)])
    with pytest.raises(InputError, match="pair 'right' is given twice among the pairs without"):
        proxy_credit(ANSWERS, [pair("right", A, B)] * 2)


outcomes = st.sampled_from([A, B, TIE, FAILED])


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(outcomes, outcomes, st.sampled_from([A, B])), max_size=12))
def test_exchanging_samples_and_label_changes_nothing(drawn: list[tuple[PairVerdict, PairVerdict, PairVerdict]]):
    plain = [pair(str(k), *row) for k, row in enumerate(drawn)]
    # Seen from b: the order that showed b first comes first.
    turned = [pair(str(k), swapped, forward, best.flipped()) for k, (forward, swapped, best) in enumerate(drawn)]
    assert vars(proxy_accuracy(plain)) == pytest.approx(vars(proxy_accuracy(turned)), nan_ok=True)
    assert np.array_equal(proxy_credit(plain, plain), 0 * proxy_rewards(plain), equal_nan=True)


def test_agreement_across_judges_by_hand():
    other = ScoreTable(RUBRIC, [[1, 1, 1], [1, 0, 0], [1, 1, NAN]], ["a", "b", "c"])
    found = {item.key: item for item in judge_agreement({"x": [FIRST], "y": [other]})}
    # Known to both: ball three times equal, red twice equal, text equal once of two: 6 of 7.
    assert found["all"].cells == 7 and found["all"].agreement == pytest.approx(6 / 7)
    assert (found["text"].cells, found["text"].agreement) == (2, 0.5)
    assert math.isnan(found["object"].alpha)  # only one answer occurs
    assert found["colour"].alpha == 1.0
    # Alpha of (0, 1) and (0, 0): one of two units is split: disagreement 1/2 against chance (3 * 1 * 2) / (4 * 3).
    assert found["text"].alpha == pytest.approx(0.0)


def test_agreement_needs_two_judges_and_common_questions():
    with pytest.raises(InputError, match=r"at least two, got \['x'\]"):
        judge_agreement({"x": [FIRST]})
    with pytest.raises(InputError, match="judges x, y answered no question in common"):
        judge_agreement({"x": [FIRST], "y": [SECOND]})
    with pytest.raises(InputError, match="judge 'x' judged sample 'a' twice"):
        judge_agreement({"x": [FIRST, FIRST], "y": [FIRST]})
