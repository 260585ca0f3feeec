"""The judge of edits in the shapes world, on rendered pictures."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import judges
from judges import JudgeRequest
from mmrubric import generators
from mmrubric.errors import InputError
from mmrubric.rubric import Criterion, Rubric
from mmrubric.shapes import BACKGROUNDS, COLOURS, SHAPES, Item, Scene, render, seen_of
from mmrubric.shapes.edit_checks import holds_after
from mmrubric.shapes.edits import EditCase, apply, draw_cases, edits_of
from mmrubric.shapes.world import clear_of
from mmrubric.verdict import Failure, Verdict

JUDGES = ("shapes_edit", "shapes_edit_second", "routed")


def rubric_of(case: EditCase) -> Rubric:
    return generators.build("shapes_edit").generate_sync(case.edit.text)


def request(case: EditCase, scene: Scene) -> JudgeRequest:
    return JudgeRequest(rubric_of(case), render(scene), source=(render(case.source),), sample_id="s")


def by_id(verdicts: list[Verdict]) -> dict[str, float | None]:
    return {verdict.criterion_id: verdict.met for verdict in verdicts}


@cache
def cases() -> list[EditCase]:
    return draw_cases("heldout", 120, np.random.default_rng(7))


def near_misses(case: EditCase, rng: np.random.Generator) -> list[Scene]:
    """The source itself, the target with one thing wrong in each way there is, and another edit of the source."""
    target, others = case.target, [item for item in case.source.items if item.shape != case.edit.shape]
    other = others[int(rng.integers(len(others)))]

    def instead(*items: Item) -> Scene:
        return replace(target, items=(*(item for item in target.items if item is not other), *items))

    colour = str(rng.choice([c for c in COLOURS if c != other.colour]))
    scenes = [
        case.source,
        instead(),
        instead(replace(other, colour=colour)),
        replace(target, background=str(rng.choice([b for b in BACKGROUNDS if b != target.background]))),
    ]
    scenes += [apply(case.source, edit) for kind in ("recolour", "move") for edit in edits_of(case.source, kind)[:2]]
    for x, y in rng.uniform(12, 52, (40, 2)).tolist():
        moved = replace(other, x=x, y=y)
        if clear_of(moved, [item for item in target.items if item is not other]):
            scenes.append(instead(moved))
            break
    for shape, x, y in zip(rng.choice(SHAPES, 40), *rng.uniform(12, 52, (2, 40)), strict=True):
        new = Item(str(shape), colour, float(x), float(y), 6.0)
        if clear_of(new, [*target.items, *case.source.items]):
            scenes.append(replace(target, items=(*target.items, new)))
            break
    return scenes


@pytest.mark.parametrize("name", JUDGES)
def test_the_wanted_picture_passes_every_criterion(name: str):
    judge = judges.build(name)
    answers = judge.score_sync([request(case, case.target) for case in cases()])
    failed = [(c.edit.text, v.criterion_id, v.reason) for c, row in zip(cases(), answers, strict=True)
              for v in row if v.met != 1.0]  # fmt: skip
    assert not failed


@pytest.mark.parametrize("name", JUDGES[:2])
def test_near_misses_are_judged_as_the_scenes_themselves_say(name: str):
    rng = np.random.default_rng(8)
    pairs = [(case, scene) for case in cases()[:60] for scene in near_misses(case, rng)]
    answers = judges.build(name).score_sync([request(*pair) for pair in pairs])
    wrong = []
    for (case, scene), verdicts in zip(pairs, answers, strict=True):
        truth = {
            c.id: holds_after(c.arguments, seen_of(case.source), seen_of(scene))
            for c in rubric_of(case).criteria
            if c.id != "pixels"
        }
        met = by_id(verdicts)
        wrong += [(case, scene, id) for id, held in truth.items() if met[id] != float(bool(held))]
    assert len(pairs) > 400 and not wrong


def test_pixels_outside_the_edited_region_are_compared_with_the_source():
    case = next(c for c in cases() if c.edit.kind == "move")
    judge = judges.build("shapes_edit")
    edited, source = render(case.target), render(case.source)
    rubric = rubric_of(case)

    def pixels(candidate: np.ndarray) -> Verdict:
        return {v.criterion_id: v for v in judge.score_sync([JudgeRequest(rubric, candidate, source=(source,))])[0]}[
            "pixels"
        ]

    assert pixels(edited).met == 1.0
    noise = np.random.default_rng(0).normal(0, 30, edited.shape)
    noisy = np.clip(edited + noise, 0, 255).astype(np.uint8)
    # an error of 30 levels is 20 log10(255 / 30) = 18.6 dB, a little better where the range clips it
    verdict = pixels(noisy)
    assert verdict.met == 0.0 and "PSNR outside the mask" in verdict.reason
    mild = np.clip(edited + noise / 6, 0, 255).astype(np.uint8)
    assert pixels(mild).met == 1.0


def test_a_missing_source_is_an_error_and_a_broken_one_a_failure():
    case = cases()[0]
    judge = judges.build("shapes_edit")
    good = request(case, case.target)
    with pytest.raises(InputError, match="sample 's' has none; give prompts with `sources`"):
        judge.score_sync([good, replace(good, source=())])
    with pytest.raises(InputError, match="candidate is a text"):
        judge.score_sync([replace(good, candidate="a red circle")])
    broken = judge.score_sync([replace(good, source=(b"no picture",)), replace(good, candidate=b"no picture"), good])
    for row in broken[:2]:
        assert all(v.failure is Failure.bad_image and v.met is None for v in row)
    assert broken[0][0].reason.startswith("source: ") and all(v.met == 1.0 for v in broken[2])


def test_of_several_sources_the_first_is_the_one_that_is_edited():
    case = cases()[0]
    good, blank = request(case, case.target), np.full((64, 64, 3), 255, np.uint8)
    one, first, second = judges.build("shapes_edit").score_sync(
        [good, replace(good, source=(*good.sources, blank)), replace(good, source=(blank, *good.sources))]
    )
    assert [v.met for v in first] == [v.met for v in one] != [v.met for v in second]


def test_a_source_that_lacks_the_shape_makes_its_criteria_not_apply():
    case = cases()[0]
    missing = next(shape for shape in SHAPES if shape not in {item.shape for item in case.source.items})
    rubric = generators.build("shapes_edit").generate_sync(f"make the {missing} red")
    verdicts = judges.build("shapes_edit").score_sync(
        [JudgeRequest(rubric, render(case.source), (render(case.source),))]
    )
    unknown = {v.criterion_id for v in verdicts[0] if not v.applicable}
    assert unknown == {"edit_done", "edited_place", "pixels"}
    assert all(v.met == 1.0 for v in verdicts[0] if v.applicable)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"verifier": "rule:shapes"}, "asks for verifier 'rule:shapes'"),
        ({"arguments": {"check": "pixels", "shape": "circle"}}, "'x'.*needs the argument 'min_psnr'"),
        ({"arguments": {"check": "pixels", "shape": "circle", "min_psnr": "30"}}, "'30' is not a finite number"),
        ({"arguments": {"check": "moved", "shape": "circle"}}, "'x'.*needs the argument 'direction'"),
    ],
)
def test_a_criterion_for_another_judge_or_with_bad_arguments_is_refused(changes: dict, message: str):
    fields: dict[str, Any] = {"id": "x", "text": "It is so.", "verifier": "rule:shapes_edit",
              "arguments": {"check": "removed", "shape": "circle"}}  # fmt: skip
    rubric = Rubric(prompt="remove the circle", criteria=(Criterion(**{**fields, **changes}),))
    picture = render(cases()[0].source)
    with pytest.raises(InputError, match=message):
        judges.build("shapes_edit").score_sync([JudgeRequest(rubric, picture, source=(picture,))])
