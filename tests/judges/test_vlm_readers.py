"""Readers of the VLM judge: log-probabilities to shares, answers to `met` (JF08, JF10, JF15, JF23 to JF27, JF57)."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judges.vlm.readers import expected_value, form, read_shares, yes_probability
from judges.vlm.replies import read_batch, read_rank
from judges.vlm.scales import codes, judged_answer, judged_shares
from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.llm_json import BadAnswer
from mmrubric.rubric import Criterion
from mmrubric.verdict import Failure

RED = Criterion(id="red", text="The car is red")
SHARP = Criterion(id="sharp", text="Sharpness", scale="ordinal", anchors=["blurred", "soft", "sharp"])
COLOUR = Criterion(
    id="colour",
    text="Colour of the car",
    scale="nominal",
    options=[{"label": "red", "value": 1.0}, {"label": "pink", "value": 0.5}, {"label": "no car", "na": True}],
)


def top(**shares):
    return [(token, math.log(share)) for token, share in shares.items()]


def pairs(*items):
    return [(token, math.log(share)) for token, share in items]


def failure_of(call, *args):
    with pytest.raises(BadAnswer) as caught:
        call(*args)
    return caught.value.failure


def test_jf23_all_spellings_of_an_answer_are_summed():
    # yes: .3 + .2 + .1 + .05 = .65; no: .2 + .1 = .3; .65 / .95
    tokens = pairs(("yes", 0.3), (" yes", 0.2), ("▁Yes", 0.1), ("ĠYES", 0.05), ("No", 0.2), ("\nno", 0.1))
    assert yes_probability(tokens) == pytest.approx(0.65 / 0.95)
    # one text may belong to two tokens
    assert yes_probability(pairs(("yes", 0.4), ("yes", 0.4), ("no", 0.2))) == pytest.approx(0.8)


def test_jf23_expected_score_sums_duplicates_instead_of_overwriting_them():
    # (4 x (.5 + .2) + 5 x .2) / .9 = 4.22; with ' 4' overwriting '4' it would be (4 x .2 + 5 x .2) / .4 = 4.5
    shares = read_shares(pairs(("4", 0.5), (" 4", 0.2), ("5", 0.2)), ["1", "2", "3", "4", "5"], off_mass=0.2)
    assert expected_value(shares.of, {str(k): k for k in range(1, 6)}) == pytest.approx(3.8 / 0.9)
    assert shares.off_mass == pytest.approx(0.1)


def test_jf24_a_digit_inside_another_token_is_no_score():
    assert failure_of(read_shares, pairs(("Of", 0.9), ("5objects", 0.05)), ["1", "5"]) == Failure.unparsable
    # in a written answer only the field counts, whatever numbers the reason holds
    assert judged_answer(SHARP, {"reason": "Of 5 objects 3 are sharp", "level": 2}).met == 0.5


def test_jf25_no_log_probs_is_a_failure_and_no_other_scale():
    assert failure_of(yes_probability, []) == Failure.unparsable


def test_jf26_neither_answer_seen_is_unknown_and_not_zero():
    assert failure_of(yes_probability, pairs(("It", 0.6), ("The", 0.3))) == Failure.unparsable
    # .45 + .4 known, so .15 elsewhere: more than .1, less than .2
    tokens = pairs(("yes", 0.45), ("no", 0.4), ("The", 0.1))
    assert failure_of(yes_probability, tokens) == Failure.unparsable
    assert yes_probability(tokens, off_mass=0.2) == pytest.approx(0.45 / 0.85)


def test_jf27_levels_of_two_digits_are_answered_by_letters():
    ten = Criterion(id="c", text="Score", scale="ordinal", anchors=[f"level {k}" for k in range(11)])
    assert list(codes(ten)) == list("ABCDEFGHIJK") and codes(ten)["K"] == 11
    assert codes(SHARP) == {"1": 1, "2": 2, "3": 3}
    # P(K) = 1 is the highest level of 11; read by digits '1' would have been the lowest
    assert judged_shares(ten, read_shares(pairs(("K", 1.0)), list(codes(ten)))).met == 1.0
    with pytest.raises(InputError, match=r"27 answers.*use read='json'"):
        codes(Criterion(id="c", text="Score", scale="ordinal", anchors=[str(k) for k in range(27)]))


@pytest.mark.parametrize("broken", [float("nan"), 0.5])
def test_broken_log_probs_are_refused(broken):
    assert failure_of(yes_probability, [("yes", broken), ("no", -3.0)]) == Failure.unparsable
    assert failure_of(yes_probability, pairs(("yes", 0.9), ("Yes", 0.9))) == Failure.unparsable


def test_vllm_writes_minus_infinity_as_minus_9999():
    assert yes_probability([("yes", -0.0001), ("no", -9999.0)]) == 1.0
    assert yes_probability([("yes", 0.0), ("no", -math.inf)]) == 1.0


def test_shares_become_met_by_scale():
    read = read_shares(top(yes=0.6, no=0.3), ["yes", "no"])
    assert judged_shares(RED, read).met == pytest.approx(2 / 3)
    assert judged_shares(RED.model_copy(update={"expected": "no"}), read).met == pytest.approx(1 / 3)
    # levels 1, 2, 3 are worth 0, .5, 1: .2 x 0 + .3 x .5 + .5 x 1 = .65
    levels = read_shares(pairs(("1", 0.2), ("2", 0.3), ("3", 0.5)), list(codes(SHARP)))
    assert judged_shares(SHARP, levels).met == pytest.approx(0.65)
    assert "P(3) 0.5" in judged_shares(SHARP, levels).reason
    uneven = Criterion(
        id="s", text="Sharpness", scale="ordinal", anchors=["a", {"text": "b", "value": 0.9}, "c"]
    )  # .3 x .9 + .5 = .77
    assert judged_shares(uneven, levels).met == pytest.approx(0.77)


def test_an_answer_that_does_not_apply_decides_by_half_and_else_is_left_out():
    # A red 1.0, B pink .5, C no car. (.4 x 1 + .2 x .5) / .6 = .5 / .6
    some = read_shares(pairs(("A", 0.4), ("b", 0.2), (" C", 0.4)), list(codes(COLOUR)))
    assert judged_shares(COLOUR, some).met == pytest.approx(0.5 / 0.6)
    most = read_shares(pairs(("A", 0.3), ("C", 0.7)), list(codes(COLOUR)))
    assert judged_shares(COLOUR, most).met is None


@pytest.mark.parametrize(
    ("criterion", "entry", "met"),
    [
        (RED, {"reason": "it is", "met": "yes"}, 1.0),
        (RED, {"met": " No "}, 0.0),
        (RED, {"met": "unknown", "reason": "no car"}, None),
        (RED.model_copy(update={"expected": "no"}), {"met": "no"}, 1.0),
        (SHARP, {"level": 1}, 0.0),
        (SHARP, {"level": 3, "met": "no"}, 1.0),
        (COLOUR, {"label": "pink"}, 0.5),
        (COLOUR, {"label": "no car"}, None),
    ],
)
def test_written_answers(criterion, entry, met):
    assert judged_answer(criterion, entry).met == met


@pytest.mark.parametrize("level", [0, -3, 4, 11])
def test_jf10_a_level_outside_the_scale_is_out_of_range_and_not_clamped(level):
    assert failure_of(judged_answer, SHARP, {"level": level}) == Failure.out_of_range


@pytest.mark.parametrize("level", ["9/10", "2", True, float("nan"), 2.0, None, [2]])
def test_jf10_what_is_no_integer_is_no_level(level):
    assert failure_of(judged_answer, SHARP, {"level": level}) == Failure.unparsable


@pytest.mark.parametrize("entry", [{}, {"score": [4]}, {"reason": "fine"}, {"met": None}, {"met": ["yes"]}])
def test_jf15_absent_fields_are_failures_and_not_neutral(entry):
    assert failure_of(judged_answer, RED, entry) == Failure.unparsable
    assert failure_of(judged_answer, SHARP, entry) == Failure.unparsable


@pytest.mark.parametrize("met", ["yes it is", "not", "maybe", "", "1", True, 1, 0.7])
def test_jf57_only_the_words_of_the_scale_count(met):
    assert failure_of(judged_answer, RED, {"met": met}) == Failure.unparsable


def test_jf16_answers_join_by_id_and_only_those_given_once_count():
    blue, green = (Criterion(id=name, text=f"The car is {name}") for name in ("blue", "green"))
    reply = {
        "verdicts": [
            {"id": "sharp", "level": 3, "reason": "crisp"},
            {"id": "blue", "met": "no"},
            {"id": "blue", "met": "no"},
            {"id": "grey", "met": "yes"},
            {"id": "red", "met": "yes"},
            "green",
            {"met": "yes"},
        ]
    }
    batch = read_batch([RED, blue, green, SHARP], {"red", "blue", "green", "sharp"}, reply)
    assert {id: judged.met for id, judged in batch.judged.items()} == {"red": 1.0, "sharp": 1.0}
    assert {id: problem.failure for id, problem in batch.problems.items()} == {
        "blue": Failure.missing,
        "green": Failure.missing,
    }
    assert "2 times" in str(batch.problems["blue"]) and batch.invented == ("grey",)
    assert batch.entries == [reply["verdicts"][4], reply["verdicts"][0]]
    out = read_batch([SHARP], {"sharp"}, {"verdicts": [{"id": "sharp", "level": 9}]})
    assert out.problems["sharp"].failure == Failure.out_of_range


@pytest.mark.parametrize("reply", [{}, [], "yes", None, {"verdicts": {"red": "yes"}}])
def test_jf15_a_batch_without_its_list_is_unparsable(reply):
    assert failure_of(read_batch, [RED], {"red"}, reply) == Failure.unparsable


def test_ranks():
    assert read_rank({"reason": "x", "rank": [1, 2]}) == PairVerdict.WIN_A
    assert read_rank({"rank": [2, 1]}) == PairVerdict.WIN_B
    assert read_rank({"rank": [1, 1]}) == PairVerdict.TIE


@pytest.mark.parametrize("rank", [[2, 2], [1], [1, 2, 3], [0, 1], [True, 2], [1.0, 2], "12", None, ["1", "2"]])
def test_jf17_what_is_no_rank_of_two_is_refused(rank):
    assert failure_of(read_rank, {"rank": rank}) == Failure.unparsable
    assert failure_of(read_rank, rank) == Failure.unparsable


spellings = st.sampled_from(["yes", " yes", "Yes", "▁YES", "no", "NO", "Ġno", "It", " the", ""])
distributions = st.lists(st.tuples(spellings, st.floats(0.001, 1.0)), min_size=1, max_size=8).map(
    lambda items: pairs(*((token, share / sum(s for _, s in items)) for token, share in items))
)


@settings(deadline=None)
@given(distributions, st.floats(0.0, 0.99))
def test_p_yes_is_a_probability_or_a_failure(tokens, limit):
    yes = sum(math.exp(p) for token, p in tokens if form(token) == "yes")
    no = sum(math.exp(p) for token, p in tokens if form(token) == "no")
    try:
        p = yes_probability(tokens, limit)
    except BadAnswer as problem:
        assert problem.failure == Failure.unparsable and yes + no < 1 - limit + 1e-9
    else:
        assert 0.0 <= p <= 1.0 and p == pytest.approx(yes / (yes + no))


@settings(deadline=None)
@given(distributions)
def test_the_order_of_tokens_does_not_matter_and_swapped_words_give_the_complement(tokens):
    try:
        p = yes_probability(tokens, 0.9)
    except BadAnswer:
        return
    assert yes_probability(tokens[::-1], 0.9) == pytest.approx(p)
    swap = {"yes": "no", "no": "yes"}
    assert yes_probability([(swap.get(form(t), t), lp) for t, lp in tokens], 0.9) == pytest.approx(1 - p)


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=9), st.lists(st.floats(0.001, 1.0), min_size=9, max_size=9))
def test_an_expected_value_lies_between_the_values(values, masses):
    shares = {str(k): mass for k, mass in enumerate(masses[: len(values)])}
    mean = expected_value(shares, {str(k): value for k, value in enumerate(values)})
    assert min(values) <= mean <= max(values)
    with pytest.raises(ValueError, match="no share"):
        expected_value({"a": 0.0}, {"a": 1.0})
