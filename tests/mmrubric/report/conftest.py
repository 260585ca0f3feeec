"""A report made of the real parts: scenes of the shapes world, rendered and judged by ground truth."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from mmrubric import generators
from mmrubric.report import (
    AlignmentReport,
    CurvePoint,
    Measure,
    Picture,
    PromptResult,
    Reliability,
    Section,
    attack_probes,
    compute,
    judge_fidelity,
    png_bytes,
    rubric_quality,
    saturation_and_ties,
)
from mmrubric.rubric import Rubric
from mmrubric.shapes import Scene, Spec, draw_specs, holds, near_miss, render, scene_for, seen_of
from mmrubric.shapes.sampling import changes_of
from mmrubric.verdict import Verdict


def read(rubric: Rubric, scene: Scene, sample_id: str, rng: np.random.Generator, noise: float = 0.0) -> list[Verdict]:
    """Ground truth, with a share `noise` of the answers turned round."""
    verdicts = []
    for criterion in rubric.criteria:
        met = holds(criterion.arguments, seen_of(scene))
        if met is None:
            verdicts.append(Verdict(sample_id, criterion.id, None, applicable=False, reason="nothing of the kind"))
            continue
        if rng.random() < noise:
            met = not met
        verdicts.append(Verdict(sample_id, criterion.id, float(met), reason=f"{criterion.id}: seen in the pixels"))
    return verdicts


def picture(spec: Spec, rubric: Rubric, good: bool, name: str, rng: np.random.Generator, noise: float) -> Picture:
    """A picture that satisfies the prompt, or one with an attribute changed; grainy, as a generator's is."""
    scene = scene_for(spec, rng) if good else near_miss(spec, str(rng.choice(changes_of(spec))), rng)
    pixels = render(scene).astype(np.int16) + rng.integers(-9, 10, (64, 64, 1))
    return Picture(
        name,
        read(rubric, scene, name, rng),
        read(rubric, scene, name, rng, noise),
        png_bytes(np.clip(pixels, 0, 255).astype(np.uint8)),
    )


def probes_not_run() -> Section:
    """Attack probes of a report without a judge."""
    return Section("No probe was run: this report has no judge.", [Measure("probes", None, note="no judge")])


@pytest.fixture(scope="session")
def build() -> Callable[..., AlignmentReport]:
    return build_report


def build_report(
    prompts: int = 12, before: float = 0.3, after: float = 0.6, seed: int = 0, **changes: object
) -> AlignmentReport:
    """A report in which a picture is right with probability `before` and then `after`."""
    rng = np.random.default_rng(seed)
    generator = generators.build("shapes")
    results = []
    for k, spec in enumerate(draw_specs("heldout", prompts, seed=seed)):
        rubric = generator.generate_sync(spec.text)
        sides = [
            [picture(spec, rubric, rng.random() < share, f"p{k}-{side}", rng, 0.03)]
            for side, share in (("before", before), ("after", after))
        ]
        results.append(PromptResult(f"p{k}", spec.text, rubric, sides[0], sides[1]))
    empty = AlignmentReport("draft", results, {}, 1.0, 0, "judge", Reliability(), second_reader="second")
    numbers = compute(empty, resamples=200)
    reliability = Reliability(
        rubric_quality(results, dropped=0),
        judge_fidelity(results, numbers),
        saturation_and_ties(numbers, tie_share=0.31, zero_variance_share=0.31, note="mean over steps"),
        probes_not_run() if not changes.get("probes") else attack_probes(changes.pop("probes")),
    )
    steps = np.arange(60)
    curve = [
        CurvePoint(
            int(k),
            float(0.66 + 0.2 * (1 - np.exp(-k / 18)) + rng.normal(0, 0.03)),
            float(0.3 + 0.3 * (1 - np.exp(-k / 18)) + rng.normal(0, 0.05)),
        )
        for k in steps
    ]
    values: dict[str, object] = {
        "title": "quickstart",
        "results": results,
        "settings": {
            "run": {"name": "quickstart", "seed": 0, "steps": 60},
            "loss": {"name": "nft", "options": {}},
            "optim": {"lr": 2e-4, "betas": [0.9, 0.99]},
        },
        "seconds": 251.3,
        "judged_images": 7680,
        "judge": "shapes-1",
        "reliability": reliability,
        "train_judge": "shapes-1",
        "second_reader": "shapes_second-1",
        "allow_same_judge": True,
        "curve": curve,
        "method": "RPO: binary preferences train the generator through the DiffusionNFT loss.",
        "timings": {"load": 4.1, "evaluate before": 31.0, "train": 182.0, "evaluate after": 30.0},
    }
    return AlignmentReport(**{**values, **changes})  # type: ignore[arg-type]
