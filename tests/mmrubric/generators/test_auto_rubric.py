"""ARR's generator with scripted answers (arXiv 2605.08354)."""

from __future__ import annotations

import base64
import io
import re
import warnings

import numpy as np
import pytest
from PIL import Image

from mmrubric import generators
from mmrubric.errors import InputError
from mmrubric.generators import auto_rubric  # noqa: F401  (registers the name)
from mmrubric.generators.llm import GenerationFailed
from mmrubric.images import content_hash
from mmrubric.pairs import PreferencePair
from mmrubric.store import Store
from mmrubric.verdict import Failure
from tests.mmrubric.generators.scripted import Scripted, pictures_of, step_of, text_of

PROMPT = "a red cup on a table"
FIVE = [
    "A cup is visible.",
    "The cup is red.",
    "A table is visible.",
    "The cup stands on the table.",
    "Nothing is deformed.",
]
NO_FAULTS = {"faults": []}
STRUCTURE = {
    "themes": [
        {"theme": "Local detail", "grain": "fine", "tips": [{"text": "Edges are sharp.", "statements": [1]}]},
        {"theme": "Agreement", "grain": "coarse", "tips": [{"text": "All that was asked for is there.",
                                                            "statements": [1]}]},
    ]
}  # fmt: skip


def said(*criteria):
    return {"reason": "seen", "criteria": list(criteria)}


def pair(id="p", preferred=0, good="good work", bad="bad work", **more):
    candidates = (good, bad) if preferred == 0 else (bad, good)
    return PreferencePair(PROMPT, candidates, preferred, id=id, **more)


def rank_of_first(text):
    """The candidate that is shown first, by the words that only good work has."""
    return [1, 2] if text.index("good") < text.index("bad") else [2, 1]


class Model:
    """Plays all steps; `passes(number of the criteria's version)` says whether `apply` ranks rightly."""

    def __init__(self, right_after=0, tie=False, structure=STRUCTURE):
        self.right_after, self.tie, self.structure = right_after, tie, structure

    def __call__(self, request):
        step, text = step_of(request), text_of(request)
        if step == "contrast":
            return said("Version 0 is visible.")
        if step == "refine":
            version = int(re.search(r"Version (\d+)", text)[1])
            return said(f"Version {version + 1} is visible.")
        if step == "apply":
            version = int(re.search(r"Version (\d+)", text)[1])
            right = rank_of_first(text)
            if version < self.right_after:
                return {"reason": "misled", "rank": [1, 1] if self.tie else right[::-1]}
            return {"reason": "clear", "rank": right}
        if step == "structure":
            return self.structure
        raise AssertionError(step)


def make(answers, **options):
    client = Scripted(answers)
    return client, generators.build("auto_rubric", client=client, **options)


def fit(generator, pairs):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        generator.fit_sync(pairs)


def steps(client):
    return [step_of(request) for request in client.asked]


# Fitted


@pytest.mark.parametrize("position", ["both", "first"])
@pytest.mark.parametrize("t", [0, 1, 5])
def test_kept_after_t_refinements(t, position):
    client, arr = make(Model(right_after=t), position=position)
    fit(arr, [pair()])
    assert arr.rubric.provenance.refinements == t
    assert arr.rubric.provenance.extra["refinements"] == {"p": t}
    assert arr.rubric.provenance.evidence == ("p",) and arr.rubric.provenance.verified_by == "label"
    # t wrong verifications end at their first order, the right one asks all orders.
    assert steps(client).count("apply") == t + (2 if position == "both" else 1)
    assert steps(client).count("refine") == t


@pytest.mark.parametrize("tie", [False, True])
def test_discarded_when_the_sixth_verification_fails(tie):
    client, arr = make(Model(right_after=6, tie=tie), position="first")
    with pytest.raises(GenerationFailed, match=r"no rubric was verified.*p: not verified after the last refinement"):
        fit(arr, [pair()])
    assert steps(client).count("apply") == 6 and steps(client).count("refine") == 5


def test_a_tie_fails_and_the_critique_names_expected_and_actual_ranks():
    client, arr = make(Model(right_after=1, tie=True))
    fit(arr, [pair(preferred=1)])
    [refine] = [request for request in client.asked if step_of(request) == "refine"]
    assert "Expected were the ranks [2, 1]." in text_of(refine) and "[1, 1]: misled" in text_of(refine)


def test_a_model_that_always_names_the_first_passes_one_order_only():
    def first(request):
        answer = Model()(request)
        return {"reason": "first", "rank": [1, 2]} if step_of(request) == "apply" else answer

    _, arr = make(first, position="first")
    fit(arr, [pair()])
    assert arr.rubric is not None
    _, arr = make(first)
    with pytest.raises(GenerationFailed, match="no rubric was verified"):
        fit(arr, [pair()])


def test_structure_is_coarse_to_fine_and_used_for_every_prompt():
    client, arr = make(Model())
    fit(arr, [pair("a"), pair("b", preferred=1)])
    assert arr.rubric.prompt == ""
    assert [(c.grain, c.extra["theme"], c.category) for c in arr.rubric.criteria] == [
        ("coarse", "Agreement", "agreement"),
        ("fine", "Local detail", "local_detail"),
    ]
    # Both pairs wrote the same statement, so it stands on both.
    assert arr.rubric.criteria[0].extra["pairs"] == ["a", "b"]
    asked = len(client.asked)
    one, two = arr.generate_sync("a dog"), arr.generate_sync("a cat")
    assert (one.prompt, two.prompt) == ("a dog", "a cat") and one.criteria == two.criteria == arr.rubric.criteria
    assert one.provenance.evidence == ("a", "b") and one.provenance.verified_by == "label"
    assert len(client.asked) == asked


@pytest.mark.parametrize(
    "bad",
    [
        {"themes": []},
        "no JSON",
        {"themes": [{"theme": "t", "grain": "fine", "tips": [{"text": "It is sharp.", "statements": [9]}]}]},
    ],
)
def test_when_structuring_fails_a_flat_list_stays(bad):
    _, arr = make(Model(structure=bad))
    fit(arr, [pair()])
    [criterion] = arr.rubric.criteria
    assert criterion.text == "Version 0 is visible." and criterion.grain is None
    assert criterion.extra == {"pairs": ["p"]}
    assert any("a flat list, because structuring failed" in note for note in arr.rubric.provenance.notes)


def test_what_the_structure_leaves_out_is_noted():
    def model(request):
        if step_of(request) == "contrast":
            return said("Version 0 is visible.", "The cup shines.")
        return Model()(request)

    _, arr = make(model)
    fit(arr, [pair()])
    assert len([note for note in arr.rubric.provenance.notes if note.startswith("not in the structure")]) == 1


def test_an_empty_list_is_asked_for_five_times():
    client, arr = make(lambda request: said())
    with pytest.raises(GenerationFailed, match="no statement was written in 5 tries"):
        fit(arr, [pair()])
    assert steps(client) == ["contrast"] * 5
    assert [request.temperature for request in client.asked] == [0.0, 0.7, 0.7, 0.7, 0.7]
    assert len({request.seed for request in client.asked}) == 5


def test_no_rubric_is_allowed_when_it_is_asked_for():
    def model(request):
        return {"write": said(*FIVE), "check": NO_FAULTS}.get(step_of(request), said())

    _, arr = make(model, allow_no_rubric=True)
    fit(arr, [pair()])
    made = arr.generate_sync(PROMPT)
    assert len(made.criteria) == 5 and "fit verified no rubric" in made.provenance.notes[0]


def test_the_verifier_learns_neither_label_nor_reason():
    client, arr = make(Model())
    fit(arr, [pair(rationale="SECRET taste")])
    for request in client.asked:
        told = "SECRET" in text_of(request), "People preferred" in text_of(request)
        assert told == ((True, True) if step_of(request) == "contrast" else (False, False))


def test_identical_candidates_are_not_asked_about():
    client, arr = make(Model())
    fit(arr, [pair("a"), pair("same", good="good bad", bad="good bad")])
    assert arr.rubric.provenance.extra["discarded"] == {"same": "both candidates are the same"}
    assert steps(client).count("contrast") == 1


def test_a_failing_model_is_unknown_and_too_many_failures_end_it():
    def failing(share):
        def model(request):
            number = int(re.search(r"good (\d+)", text_of(request) + " good 0")[1])
            return Failure.server_error if number < share * 10 and step_of(request) == "contrast" else Model()(request)

        return model

    pairs = [pair(f"p{n}", preferred=n % 2, good=f"good {n}") for n in range(10)]
    _, arr = make(failing(0.2))
    fit(arr, pairs)
    assert set(arr.rubric.provenance.extra["failed"]) == {"p0", "p1"} and not arr.rubric.provenance.extra["discarded"]
    _, arr = make(failing(0.3))
    with pytest.raises(GenerationFailed, match=r"failed on 3 of 10 pairs, more than max_failure_share=0.2"):
        fit(arr, pairs)


def test_a_killed_fit_goes_on_from_the_store(tmp_path):
    with Store(tmp_path / "s.sqlite") as store:
        one, first = make(Model(right_after=2), store=store)
        fit(first, [pair("a"), pair("b", preferred=1)])
        two, second = make(lambda request: pytest.fail("asked again"), store=store)
        fit(second, [pair("a"), pair("b", preferred=1)])
        assert first.rubric == second.rubric and one.asked and not two.asked


# Pictures, consistency, proxy


def bright(request):
    """The rank that a model gives which prefers the brighter of two pictures."""
    values = [
        np.asarray(Image.open(io.BytesIO(base64.b64decode(part.url.partition(",")[2])))).mean()
        for part in pictures_of(request)[-2:]
    ]
    return [1, 2] if values[0] > values[1] else [2, 1]


def picture(value):
    return np.full((40, 40, 3), value, dtype=np.uint8)


def test_real_pictures_are_judged_in_both_orders():
    def model(request):
        if step_of(request) == "apply":
            return {"reason": "brighter", "rank": bright(request)}
        return Model()(request)

    client, arr = make(model)
    pairs = [
        PreferencePair(PROMPT, (picture(250), picture(10)), 0, sources=(picture(99),), id="light"),
        PreferencePair(PROMPT, (picture(20), picture(240)), 1, id="second"),
        PreferencePair(PROMPT, (picture(30), picture(230)), 0, id="wrong"),
    ]
    fit(arr, pairs)
    assert arr.rubric.provenance.evidence == ("light", "second")
    assert set(arr.rubric.provenance.extra["discarded"]) == {"wrong"}
    [forward, back] = [r for r in client.asked if step_of(r) == "apply" and len(pictures_of(r)) == 3]
    source, first, second = pictures_of(forward)
    assert pictures_of(back) == [source, second, first], "the source stays first and is not ranked"
    assert "Candidate 1: the picture of that name above." in text_of(forward)


def test_all_sources_of_a_pair_are_shown():
    client, arr = make(lambda r: {"reason": "", "rank": bright(r)} if step_of(r) == "apply" else Model()(r))
    sources = (picture(99), picture(98))
    fit(arr, [PreferencePair(PROMPT, (picture(250), picture(10)), 0, sources=sources, id="light")])
    shown = [request for request in client.asked if len(pictures_of(request)) == 4]
    assert {step_of(request) for request in shown} == {"contrast", "apply"}
    for request in shown:
        assert [part.sha256 for part in pictures_of(request)[:2]] == [content_hash(source) for source in sources]
        assert "Source picture 2 (to be edited" in text_of(request)


def test_a_bad_picture_names_its_pair():
    _, arr = make(Model())
    with pytest.raises(InputError, match="pair 'x'"):
        fit(arr, [PreferencePair(PROMPT, (b"no picture", picture(1)), 0, id="x")])


def test_consistency_needs_no_label_and_does_not_look_at_it():
    client, arr = make(Model(), verify="consistency")
    fit(arr, [pair("a", preferred=0)])
    other, twin = make(Model(), verify="consistency")
    flipped = PreferencePair(PROMPT, ("good work", "bad work"), 1, id="a", rationale="SECRET")
    fit(twin, [flipped])
    assert arr.rubric == twin.rubric and arr.rubric.provenance.verified_by == "consistency"
    assert client.asked == other.asked, "label and reason change no request"
    # The swap, and three samples at a temperature, of both orders.
    applied = [request for request in client.asked if step_of(request) == "apply"]
    assert [request.temperature for request in applied] == [0.0, 0.0, 0.7, 0.7, 0.7]
    assert "Nobody has said" in text_of(client.asked[0])


@pytest.mark.parametrize(
    ("votes", "kept"), [("rrr", True), ("rrw", True), ("rww", False), ("rFF", False), ("rrF", True), ("rtt", False)]
)
def test_more_than_half_of_the_samples_must_agree(votes, kept):
    left = list(votes)

    def model(request):
        if step_of(request) != "apply" or request.temperature == 0.0:
            return Model()(request)
        right = rank_of_first(text_of(request))
        return {
            "r": {"rank": right},
            "w": {"rank": right[::-1]},
            "t": {"rank": [1, 1]},
            "F": Failure.server_error,
        }[left.pop(0)]

    _, arr = make(model, verify="consistency", max_refinements=0, allow_no_rubric=True)
    fit(arr, [pair()])
    assert (arr.rubric is not None) == kept


def test_a_verdict_that_stays_with_the_place_is_inconsistent():
    def first(request):
        return {"reason": "x", "rank": [1, 2]} if step_of(request) == "apply" else Model()(request)

    client, arr = make(first, verify="consistency")
    with pytest.raises(GenerationFailed, match="not verified"):
        fit(arr, [pair()])
    assert "must name the same candidate in both orders" in text_of(client.asked[3])


def other_model(answers):
    client = Scripted(answers)
    client.model = "other"
    return client


def test_a_proxy_decides_with_the_rubric_alone():
    client, proxy = Scripted(Model()), other_model(Model())
    arr = generators.build("auto_rubric", client=client, verify="proxy", proxy=proxy)
    fit(arr, [pair(rationale="SECRET")])
    assert steps(proxy) == ["apply", "apply"] and "apply" not in steps(client)
    for request in proxy.asked:
        assert "SECRET" not in text_of(request) and "seen" not in text_of(request), "neither reason nor reasoning"
    assert arr.rubric.provenance.verified_by == "proxy" and arr.rubric.provenance.extra["proxy_model"] == "other"


def test_statements_that_name_a_candidate_are_refused():
    client, arr = make([said("Candidate 1 shows a red cup."), said("Candidate 1 shows a red cup.")])
    with pytest.raises(GenerationFailed, match=r"failed on 1 of 1 pairs.*names another sample"):
        fit(arr, [pair()])
    assert "names another sample" in text_of(client.asked[1])


# More than 100 pairs


def many(count):
    return [pair(f"p{n}", preferred=n % 2, good=f"good {n}") for n in range(count)]


def by_number(statement):
    def model(request):
        step, text = step_of(request), text_of(request)
        if step == "contrast":
            return said(statement(int(re.search(r"good (\d+)", text)[1])))
        if step == "apply":
            return {"rank": rank_of_first(text)}
        return STRUCTURE

    return model


def test_over_a_hundred_pairs_stop_when_nothing_new_comes():
    things = ["cup", "horse", "violin"]
    client, arr = make(by_number(lambda n: f"A {things[n % 3]} is visible."))
    fit(arr, many(101))
    # Round 1 chooses; rounds 2 and 3 bring repeats alone: 30 of 101 pairs were asked.
    assert steps(client).count("contrast") == 30
    extra = arr.rubric.provenance.extra
    assert extra["rounds"] == 3 and extra["stopped"] == "gain below 0.002 in 2 rounds" and extra["pairs"] == 30
    [structure] = [request for request in client.asked if step_of(request) == "structure"]
    assert all(thing in text_of(structure) for thing in things)


def test_a_hundred_pairs_are_used_all_at_once():
    client, arr = make(by_number(lambda n: "A cup is visible."))
    fit(arr, many(100))
    assert steps(client).count("contrast") == 100 and len(arr.rubric.provenance.evidence) == 100


# Warnings and bad input


def test_few_pairs_and_one_position_are_warned_of():
    _, arr = make(Model())
    with pytest.warns(UserWarning, match="2 pairs are few"), pytest.warns(UserWarning, match="always number 1"):
        arr.fit_sync([pair("a"), pair("b", good="good x")])
    _, arr = make(by_number(lambda n: "A cup is visible."))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        arr.fit_sync(many(20))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"verify": "hope"}, "known: consistency, label, proxy"),
        ({"verify": "consistency", "position": "first"}, "needs both orders"),
        ({"samples": 2}, "3 or more"),
        ({"verify": "consistency", "samples": 0}, "3 or more"),
        ({"criteria": 0}, "criteria: 0 is no whole number"),
        ({"max_refinements": 1.5}, "max_refinements"),
        ({"max_failure_share": 2.0}, "max_failure_share"),
        ({"verify": "proxy"}, "proxy: give base_url"),
        ({"proxy": Scripted([])}, "verify='proxy' only"),
        ({"verify": "proxy", "proxy": Scripted([])}, "must be another model"),
        ({"verify": "proxy", "proxy": Scripted([]), "proxy_model": "m"}, "not both"),
    ],
)
def test_bad_options_are_refused_at_once(options, message):
    with pytest.raises(InputError, match=message):
        make([], **options)


@pytest.mark.parametrize(
    ("pairs", "message"),
    [([], "at least one pair"), (["x"], "takes mmrubric.pairs.PreferencePair, got str"),
     ([pair("a"), pair("a")], "'a' is given twice")],
)  # fmt: skip
def test_bad_pairs_are_refused(pairs, message):
    _, arr = make([])
    with pytest.raises(InputError, match=message):
        arr.fit_sync(pairs)


def test_a_judge_is_refused_and_so_are_exemplars_once_fitted():
    _, arr = make(Model())
    with pytest.raises(InputError, match="fit takes no judge"):
        arr.fit_sync([pair()], judge=object())
    fit(arr, [pair()])
    with pytest.raises(InputError, match="no exemplars once it is fitted"):
        arr.generate_sync(PROMPT, exemplars=[pair()])


# By prompt


def test_five_criteria_from_the_prompt_alone():
    client, arr = make([said(*FIVE), NO_FAULTS, NO_FAULTS, NO_FAULTS])
    made = arr.generate_sync(PROMPT)
    assert [c.text for c in made.criteria] == FIVE and made.provenance.verified_by == "consistency"
    assert made.provenance.refinements == 0 and made.provenance.evidence == ()
    assert "exactly 5 criteria" in text_of(client.asked[0]) and not any(map(pictures_of, client.asked))
    assert [request.seed for request in client.asked[1:]] == [0, 1, 2]


def test_four_criteria_are_asked_for_again():
    client, arr = make([said(*FIVE[:4]), said(*FIVE)], samples=0)
    made = arr.generate_sync(PROMPT)
    assert len(made.criteria) == 5 and made.provenance.verified_by == ""
    assert "give exactly 5" in text_of(client.asked[1])


def fault(number):
    return {"faults": [{"statement": number, "why": "not asked for"}]}


def test_what_half_of_the_samples_refuse_is_written_anew():
    answers = [said(*FIVE), fault(5), fault(5), fault(1), said("The table is bare."), NO_FAULTS, NO_FAULTS, fault(2)]
    client, arr = make(answers)
    made = arr.generate_sync(PROMPT)
    assert [c.text for c in made.criteria] == [*FIVE[:4], "The table is bare."] and made.provenance.refinements == 1
    amend = client.asked[4]
    assert step_of(amend) == "amend" and "5: not asked for" in text_of(amend) and "exactly 1 criteria" in text_of(amend)


def test_what_is_still_refused_after_the_last_refinement_is_dropped():
    _, arr = make([said(*FIVE), fault(5), fault(5), fault(5)], max_refinements=0)
    made = arr.generate_sync(PROMPT)
    assert [c.text for c in made.criteria] == FIVE[:4]
    assert any("'Nothing is deformed.': not asked for" in note for note in made.provenance.notes)


def test_failed_samples_refuse_nothing_and_verify_nothing():
    _, arr = make([said(*FIVE), Failure.server_error, Failure.server_error, fault(1)])
    made = arr.generate_sync(PROMPT)
    assert len(made.criteria) == 5 and made.provenance.verified_by == ""
    assert "not verified: most samples" in made.provenance.notes[0]


def test_exemplars_are_shown_as_they_are():
    example = PreferencePair(
        "a blue dog", (picture(5), picture(200)), 1, id="ex", rationale="it <is> a dog", sources=(picture(7),)
    )
    client, arr = make([said(*FIVE), NO_FAULTS, NO_FAULTS, NO_FAULTS])
    made = arr.generate_sync(PROMPT, exemplars=[example])
    text = text_of(client.asked[0])
    assert "a blue dog" in text and "it <is> a dog" in text and "Preferred: candidate 2." in text
    assert len(pictures_of(client.asked[0])) == 3 and "Example 1, candidate 2" in text
    assert made.provenance.evidence == ("ex",)
    assert all("a blue dog" not in text_of(request) for request in client.asked[1:]), "the check sees the prompt alone"


def test_the_source_of_an_edit_is_shown():
    client, arr = make([said(*FIVE)], samples=0)
    arr.generate_sync("make the cup red", source=[picture(3)])
    assert len(pictures_of(client.asked[0])) == 1 and "Source picture" in text_of(client.asked[0])


def test_when_the_model_fails_the_rules_write_it():
    _, arr = make([Failure.refused])
    assert any("auto_rubric/1 failed" in note for note in arr.generate_sync(PROMPT).provenance.notes)


def test_unlabelled_pairs_are_for_consistency_alone():
    bare = [PreferencePair(PROMPT, ("good work", "bad work"), id="a")]
    client, arr = make(Model(), verify="consistency")
    fit(arr, bare)
    assert arr.rubric.provenance.verified_by == "consistency"
    assert not any("People preferred" in text_of(request) for request in client.asked)
    _, arr = make(Model())
    with pytest.raises(InputError, match="pair 'a': field preferred is missing"):
        fit(arr, bare)
