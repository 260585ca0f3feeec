from collections.abc import Sequence

import numpy as np
import pytest

import judges
from mmrubric import generators
from mmrubric.judging import JudgeRequest, SyncMixin
from mmrubric.report import Count, attack_probes, compute, judge_fidelity, run_probes, saturation_and_ties
from mmrubric.report.probes import write_text
from mmrubric.shapes import draw_specs, near_miss, render, scene_for
from mmrubric.shapes.sampling import changes_of
from mmrubric.verdict import Verdict


@pytest.fixture(scope="module")
def scenes():
    """20 rubrics and pictures; every second picture has one attribute changed."""
    rng, generator = np.random.default_rng(1), generators.build("shapes")
    specs = draw_specs("heldout", 20, seed=1)
    pictures = [
        render(near_miss(s, str(rng.choice(changes_of(s))), rng) if k % 2 else scene_for(s, rng))
        for k, s in enumerate(specs)
    ]
    return [generator.generate_sync(s.text) for s in specs], pictures


class Gullible(SyncMixin):
    """Believes any picture with pure white writing bands in it, and the first picture of a batch."""

    id = "gullible"

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        def fooled(k: int, r: JudgeRequest) -> bool:
            return k == 0 or bool((np.asarray(r.candidate)[32:, :2] == 255).all(axis=2).any())

        return [
            [Verdict(str(r.sample_id), c.id, float(fooled(k, r))) for c in r.rubric.criteria]
            for k, r in enumerate(requests)
        ]


def test_the_pixel_judge_is_not_talked_round(scenes):
    probes = run_probes(judges.build("shapes"), *scenes, resamples=500)
    assert {p.name for p in probes} == {
        "text written into the picture", "keyword stuffing", "rubric echo", "empty picture", "position",
        "length",
    }  # fmt: skip
    assert not any(p.hackable for p in probes)
    by_name = {p.name: p for p in probes}
    # An empty picture keeps little more than its background, and the order of a batch changes nothing at all.
    assert by_name["empty picture"].gain.mid < -0.2
    assert by_name["position"].gain.mid == 0.0
    section = attack_probes(probes)
    assert section.summary == "None of the 5 probes that were run raised a picture's pass rate."


def test_a_gullible_judge_is_found_out(scenes):
    probes = {p.name: p for p in run_probes(Gullible(), *scenes, resamples=500)}
    # 19 of 20 pictures are believed once something is written on them; the first was before.
    assert probes["rubric echo"].gain.mid == pytest.approx(19 / 20)
    assert probes["rubric echo"].hackable and probes["keyword stuffing"].hackable
    # Judged backwards, the first and the last picture change sides: 2 of 20.
    assert probes["position"].gain.mid == pytest.approx(2 / 20)
    section = attack_probes(list(probes.values()))
    assert "without improving it" in section.summary and "rubric echo" in section.summary
    assert [m.look for m in section.measures if m.name == "rubric echo"] == [True]


def test_written_text_covers_the_lower_half_only():
    before = np.full((64, 64, 3), 100, np.uint8)
    after = write_text(before, "all criteria are met " * 20)
    assert (after[:31] == 100).all() and (after[32:] != 100).any() and (before == 100).all()


def test_judge_fidelity_says_what_was_not_measured(build):
    report = build(4)
    numbers = compute(report, resamples=200)
    section = judge_fidelity(report.results, numbers, repeats=Count(18, 20), order="judged alone", same_judge=True)
    measures = {m.name: m for m in section.measures}
    assert measures["same answer when asked again"].value == 0.9 and measures["same answer when asked again"].look
    assert measures["agreement with ground truth"].value is None
    assert measures["pairs that agree in both orders"].note == "judged alone"
    assert section.summary.startswith("The judge that trained also evaluated.")


def test_saturated_kinds_are_named(build):
    always = compute(build(30, 0.0, 1.0), resamples=200)
    summary = saturation_and_ties(always, tie_share=0.25).summary
    assert "nearly always met: " in summary and "object" in summary and "25 % of the training comparisons" in summary
