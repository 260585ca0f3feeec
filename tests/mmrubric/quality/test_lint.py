"""Every rule of the rubric linter on a case that breaks it and on one that only looks like it."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric import generators
from mmrubric.generators.showing import check_wording
from mmrubric.quality import RULES, Finding, lint
from mmrubric.rubric import Criterion, Rubric
from mmrubric.shapes import draw_specs
from mmrubric.similar import ngram_encoder

FILL = ("A lamp is lit.", "Snow lies on the roof.", "The road is wet.")
"""Statements without a fault, so that the rubric is large enough."""


def rubric_of(*criteria: str | Criterion, prompt: str = "", fill: bool = True) -> Rubric:
    made = [c if isinstance(c, Criterion) else Criterion(id=f"c{k}", text=c) for k, c in enumerate(criteria)]
    rest = [Criterion(id=f"fill{k}", text=text) for k, text in enumerate(FILL)] if fill else []
    return Rubric(prompt=prompt, criteria=(*made, *rest))


def found(*criteria: str | Criterion, prompt: str = "", **options) -> list[tuple[str, str, tuple[str, ...]]]:
    return [(f.rule, f.severity, f.criteria) for f in lint(rubric_of(*criteria, prompt=prompt), **options)]


def test_a_clean_rubric_has_no_findings():
    assert found() == []
    shapes = generators.build("shapes")
    for spec in draw_specs("heldout", 60, seed=0):
        assert lint(shapes.generate_sync(spec.text)) == []


SPOTTED = [
    ("atomic", "warning", "A cat and a dog are on the sofa."),
    ("atomic", "warning", "A cat sleeps as well as a dog."),
    ("atomic", "warning", "The sky is blue; the sea is calm."),
    ("atomic", "warning", "The tree stands between the cat and the dog and has leaves."),
    ("observable", "warning", "The composition feels creative."),
    ("observable", "note", "The cup should be full."),
    ("non_comparative", "error", "The cat is sharper in image 1."),
    ("non_comparative", "error", "It shows a larger cat than the other."),
    ("non_comparative", "error", "Response A is longer."),
    ("non_comparative", "error", "Image 2 is sharper."),
    ("non_comparative", "error", "It is better than the other image."),
    ("non_comparative", "error", "The second picture is sharper."),
    ("non_comparative", "error", "The colours are richer than in the other image in the pair."),
    ("non_comparative", "error", "Candidate B shows a dog."),
    ("non_comparative", "warning", "One tower is taller than the other."),
    ("non_comparative", "warning", "The dog is small compared to the house."),
    ("non_comparative", "warning", "The cat is drawn in better detail."),
    ("non_comparative", "warning", "The cat is more detailed than the dog."),
    ("leak", "error", "Score 1 if the cat is black."),
    ("leak", "error", "Response 1 mentions a cat."),
    ("leak", "error", "Candidate B shows a dog."),
    ("leak", "error", "Answer yes when a cat is visible."),
    ("leak", "warning", "The face equals that of the reference image."),
    ("leak", "warning", "The pose is that of the ground truth."),
    ("polarity", "warning", "The hand has extra fingers."),
]
FINE = [
    "A black and white cat is visible.",
    "The flag is red, white and blue.",
    "The tree stands between the cat and the dog.",
    "The sign reads 'better and cheaper than image 1; you should feel it'.",
    "Three or more birds fly.",
    "More than three birds fly.",
    "A black-and-tan dog runs.",
    "The hand has no extra fingers.",
    "The picture is free of artifacts.",
    "The scoreboard shows 'score 1 if'.",
    "The cat is larger than the dog.",
    "The second picture on the wall is tilted.",
    "The label says option B.",
    "The button is labelled option B has no effect.",
    "A photo 4 inches wide lies on the desk.",
    "The photo 4.5 cm wide is torn.",
]


@pytest.mark.parametrize(("rule", "severity", "text"), SPOTTED)
def test_wording_is_spotted(rule: str, severity: str, text: str):
    assert (rule, severity, ("c0",)) in found(text)


@pytest.mark.parametrize("text", FINE)
def test_what_only_looks_like_it_is_left_alone(text: str):
    assert found(text) == []


def test_what_the_prompt_names_is_no_fault():
    assert found("Two images hang on the wall.", prompt="two images on a wall") == []
    assert found("The background is blurred.", prompt="a blurred background") == []
    assert [rule for rule, *_ in found("The background is blurred.")] == ["polarity"]
    assert found("The Tesla Model 3 is parked.", prompt="a Tesla Model 3") == []


@pytest.mark.parametrize(
    "text",
    [
        "One tower is taller than the other.",
        "The second picture on the wall is tilted.",
        "The label says option B.",
        "A photo 4 inches wide lies on the desk.",
        "The dog is small compared to the house.",
    ],
)
def test_what_holds_of_one_picture_is_not_refused(text: str):
    check_wording([text], prompt="")


@pytest.mark.parametrize(
    "text",
    [
        "Response 1 mentions a cat.",
        "Image 2 is sharper.",
        "It looks better than the other image.",
        "Candidate B shows a cat.",
        "This picture shows a larger cat than the other.",
        "Is it larger than the other?",
    ],
)
def test_what_names_another_sample_is_refused(text: str):
    with pytest.raises(ValueError, match="names another sample"):
        check_wording([text], prompt="")


def test_a_denial_of_something_unwanted_is_a_double_negative():
    good = Criterion(id="a", text="No text is visible.")
    double = Criterion(id="b", text="The wall is without paint.", weight=-1.0)
    wanted_no = Criterion(id="c", text="Is the door not shut?", expected="no")
    unwanted = Criterion(id="d", text="The hand has extra fingers.", weight=-1.0)
    assert found(good, double, wanted_no, unwanted) == [
        ("polarity", "warning", ("b",)),
        ("polarity", "warning", ("c",)),
    ]


def test_repeats_by_words_and_by_an_encoder():
    assert found("A red cup is on the desk.", "Is a red cup on the desk?") == [("repeats", "warning", ("c0", "c1"))]
    pair = "The coloured lampshade stands near the window.", "The coloured lampshades stand near the window."
    assert found(*pair) == []
    assert found(*pair, encoder=ngram_encoder) == [("repeats", "warning", ("c0", "c1"))]


CONTRADICTIONS = [
    ("error", "A dog is visible.", "No dog is visible."),
    ("error", "There are two cats.", "There are exactly three cats."),
    ("error", "The car is red.", "The car is blue."),
    ("error", "All cubes are red.", "All cubes are blue."),
    ("warning", "The cup is left of the plate.", "The cup is right of the plate."),
    ("warning", "A cup is above a plate.", "A cup is below a plate."),
    ("warning", "The red cup is left of the plate.", "The plate is left of the red cup."),
]
COMPATIBLE = [
    ("A red cube is visible.", "A blue cube is visible."),
    ("There are at least two cats.", "There are three cats."),
    ("There are two cats.", "There are three dogs."),
    ("A cat is on the left.", "A cat is on the right."),
    ("The flag is red.", "The flag is red with white stars."),
    ("The cup is left of the plate.", "The fork is right of the plate."),
]


@pytest.mark.parametrize(("severity", "first", "second"), CONTRADICTIONS)
def test_contradictions(severity: str, first: str, second: str):
    assert found(first, second) == [("contradiction", severity, ("c0", "c1"))]


@pytest.mark.parametrize(("first", "second"), COMPATIBLE)
def test_statements_that_can_both_hold(first: str, second: str):
    assert found(first, second) == []


def test_the_sign_decides_what_contradicts():
    dog, no_dog = Criterion(id="a", text="A dog is visible."), Criterion(id="b", text="No dog is visible.")
    unwanted = Criterion(id="c", text="A dog is visible", weight=-1.0)
    blue = Criterion(id="d", text="The car is blue.", weight=-1.0)
    assert found(dog, unwanted) == [("contradiction", "error", ("a", "c"))]
    # Wanting no dog and not wanting a dog is the same wish twice.
    assert found(no_dog, unwanted) == [("repeats", "warning", ("b", "c"))]
    assert found("The car is red.", blue) == []


def test_dependencies():
    cat = Criterion(id="cat", text="A cat is visible.", category="object")
    dog = Criterion(id="dog", text="A dog is visible.", category="object")
    red = Criterion(id="red", text="The hat is red.", category="colour", depends_on=("cat",))
    beside = Criterion(id="beside", text="The cat lies beside the dog.", category="relation")
    fine = Criterion(id="fine", text="The cat sleeps.", category="attribute", depends_on=("cat",))
    rubric = rubric_of(fine, red, beside, cat, dog, fill=False)  # a parent later in the list is fine
    assert [(f.rule, f.severity, f.criteria) for f in lint(rubric)] == [
        ("dependencies", "warning", ("red",)),
        ("dependencies", "note", ("beside",)),
    ]
    assert "'cat', 'dog'" in lint(rubric)[1].message


def test_the_text_to_read_is_quoted():
    reads = Criterion(id="a", text="The sign reads OPEN.", category="text")
    ocr = Criterion(id="b", text="The opening hours are legible.", verifier="ocr")
    given = Criterion(id="c", text="The phone number is legible.", verifier="ocr", arguments={"text": "9 to 5"})
    clean = Criterion(id="d", text="No words are visible.", category="text")
    assert found(reads, ocr, given, clean) == [("literal", "error", ("b",)), ("literal", "warning", ("a",))]
    # The reader falls back on the one string that the prompt quotes.
    assert found(ocr, prompt="a sign with '9 to 5'") == [("literal", "note", ("b",))]


def test_weights_and_size():
    def sized(count: int, first: float = 1.0) -> list[tuple[str, str, tuple[str, ...]]]:
        words = [chr(97 + k // 26) + chr(97 + k % 26) for k in range(count)]
        criteria = [Criterion(id=w, text=f"A {w}x is seen.", weight=first if w == "aa" else 1.0) for w in words]
        return [(f.rule, f.severity, f.criteria) for f in lint(Rubric(prompt="", criteria=tuple(criteria)))]

    assert sized(3) == sized(25) == []
    assert sized(2) == sized(26) == [("size", "warning", ())]
    # 6 of 6 + 4 is 60 %, not above; 6.2 of 10.2 is 60.8 %; a negative weight counts by its size.
    assert sized(5, 6.0) == [] and sized(5, 6.2) == sized(5, -6.2) == [("weights", "warning", ("aa",))]


texts = st.lists(
    st.sampled_from([text for *_, text in SPOTTED] + FINE + [t for _, *pair in CONTRADICTIONS for t in pair]),
    min_size=1,
    max_size=8,
)


@settings(deadline=None, max_examples=60)
@pytest.mark.filterwarnings("ignore:criteria .* repeat each other")
@given(texts, st.lists(st.sampled_from([-1.0, 1.0, 20.0]), min_size=8, max_size=8), st.randoms(use_true_random=False))
def test_the_order_of_the_criteria_does_not_change_the_findings(statements: list[str], weights: list[float], random):
    criteria = [
        Criterion(id=f"c{k}", text=text, weight=weight)
        for k, (text, weight) in enumerate(zip(statements, weights, strict=False))
    ]
    mixed = list(criteria)
    random.shuffle(mixed)
    findings = lint(rubric_of(*criteria, fill=False), ngram_encoder)
    assert findings == lint(rubric_of(*mixed, fill=False), ngram_encoder)
    assert all(isinstance(f, Finding) and f.rule in RULES and f.message for f in findings)
    assert all(f.criteria == tuple(sorted(set(f.criteria))) for f in findings)
