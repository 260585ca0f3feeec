"""How well the judges of shapes agree with the truth of rendered scenes: a table, and JSON for scripts.

Example: `python -m judges.shapes.measure --scenes 5000 --blur 1.0 --json agreement.json`
"""

from __future__ import annotations

import argparse
import io
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from PIL import Image
from rich.console import Console
from rich.table import Table
from scipy import ndimage

from judges.shapes.judge import ShapesJudge, shapes, shapes_second
from mmrubric import generators
from mmrubric.judging import JudgeRequest
from mmrubric.rubric import Rubric
from mmrubric.shapes import Scene, Spec, draw_specs, holds, near_miss, render, scene_for, seen_of
from mmrubric.shapes.sampling import changes_of

Distortion = Callable[[np.ndarray], np.ndarray]
"""Pictures uint8 [N, 64, 64, 3] to pictures of the same shape."""


@dataclass(frozen=True)
class Case:
    """A prompt's rubric and a scene; `change` names the changed attribute of a near miss, else None."""

    spec: Spec
    rubric: Rubric
    scene: Scene
    change: str | None

    def truth(self) -> dict[str, bool | None]:
        """Ground truth for each criterion id."""
        seen = seen_of(self.scene)
        return {c.id: holds(c.arguments, seen) for c in self.rubric.criteria}


@dataclass
class Agreement:
    """Agreement of a judge with the truth; unknown counts as disagreement."""

    judge: str
    scenes: int
    kinds: dict[str, float] = field(default_factory=dict)
    """Share of right verdicts for each kind of criterion, in [0, 1]."""
    verdicts: dict[str, int] = field(default_factory=dict)
    near_misses: float = float("nan")
    """Share of near misses in which exactly the changed criteria failed."""
    true_scenes: float = float("nan")
    """Share of true scenes in which every criterion was met."""
    images_per_second: float = 0.0
    wrong: list[int] = field(default_factory=list)
    """Indices of the cases with a wrong verdict."""

    @property
    def worst(self) -> float:
        """Agreement of the worst kind of criterion."""
        return min(self.kinds.values())


def draw_cases(count: int, seed: int = 0) -> list[Case]:
    """Cases of prompts of all kinds and both splits; half of the scenes are true, the others near misses."""
    rng = np.random.default_rng([seed, 20])
    half = (count + 1) // 2
    # The two splits are drawn one after the other in pairs, so each has true scenes and near misses.
    pairs = zip(draw_specs("train", half, seed), draw_specs("heldout", half, seed), strict=True)
    specs = [spec for pair in pairs for spec in pair][:count]
    generator = generators.build("shapes")
    cases = []
    for index, spec in enumerate(specs):
        change = None if index // 2 % 2 == 0 else str(rng.choice(changes_of(spec)))
        scene = scene_for(spec, rng) if change is None else near_miss(spec, change, rng)
        cases.append(Case(spec, generator.generate_sync(spec.text), scene, change))
    return cases


def measure(judge: ShapesJudge, cases: Sequence[Case], pictures: np.ndarray) -> Agreement:
    """Compare a judge's verdicts with the truth.

    Args:
        judge: the judge.
        cases: N cases.
        pictures: uint8 [N, 64, 64, 3], what each case's scene looks like, perhaps distorted.
    """
    requests = [
        JudgeRequest(c.rubric, p, sample_id=str(k)) for k, (c, p) in enumerate(zip(cases, pictures, strict=True))
    ]
    began = time.process_time()
    answers = judge.score_sync(requests)
    seconds = max(time.process_time() - began, 1e-9)
    right: dict[str, list[bool]] = {}
    whole: dict[bool, list[bool]] = {True: [], False: []}
    wrong = []
    for index, (case, verdicts) in enumerate(zip(cases, answers, strict=True)):
        met = {v.criterion_id: v.met for v in verdicts}
        truth = case.truth()
        flags = {id: met[id] is not None and met[id] == expected for id, expected in truth.items()}
        for criterion in case.rubric.criteria:
            right.setdefault(str(criterion.arguments["check"]), []).append(flags[criterion.id])
        whole[case.change is None].append(all(flags.values()))
        if not all(flags.values()):
            wrong.append(index)
    return Agreement(
        judge.id,
        len(cases),
        {kind: float(np.mean(values)) for kind, values in sorted(right.items())},
        {kind: len(values) for kind, values in sorted(right.items())},
        float(np.mean(whole[False])) if whole[False] else float("nan"),
        float(np.mean(whole[True])) if whole[True] else float("nan"),
        len(cases) / seconds,
        wrong,
    )


def blur(sigma: float, noise: float = 6.0, quality: int = 60, seed: int = 0) -> Distortion:
    """A stand-in for what a VAE does: Gaussian blur (sigma in pixels), noise (sigma in levels), JPEG."""

    def distort(pictures: np.ndarray) -> np.ndarray:
        rng = np.random.default_rng(seed)
        soft = ndimage.gaussian_filter(pictures.astype(np.float32), (0, sigma, sigma, 0))
        noisy = np.clip(soft + rng.normal(0, noise, soft.shape), 0, 255).astype(np.uint8)
        return np.stack([_jpeg(picture, quality) for picture in noisy])

    return distort


def _jpeg(picture: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    # Full colour resolution: a VAE does not smear colours over 16 pixels, as subsampling does.
    Image.fromarray(picture).save(buffer, "JPEG", quality=quality, subsampling=0)
    return np.asarray(Image.open(buffer))


def table(results: Sequence[Agreement]) -> Table:
    """Agreement per kind of criterion, one column for each result."""
    drawn = Table("criterion kind", *(r.judge for r in results), "verdicts")
    for kind in results[0].kinds:
        shares = [f"{100 * r.kinds[kind]:.2f} %" for r in results]
        drawn.add_row(kind, *shares, str(results[0].verdicts[kind]))
    drawn.add_section()
    for name, attribute in (
        ("near misses exactly right", "near_misses"),
        ("true scenes all met", "true_scenes"),
    ):
        drawn.add_row(name, *(f"{100 * getattr(r, attribute):.2f} %" for r in results), "")
    drawn.add_row("images per second", *(f"{r.images_per_second:.0f}" for r in results), "")
    return drawn


def main(arguments: Sequence[str] | None = None, distort: Distortion | None = None) -> list[Agreement]:
    """Run the measurement from the command line; `distort` stands in for `--blur`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--scenes", type=int, default=5000, help="number of scenes")
    parser.add_argument("--seed", type=int, default=0, help="seed of prompts and scenes")
    parser.add_argument("--blur", type=float, help="blur the pictures by this many pixels, add noise and JPEG")
    parser.add_argument("--json", type=Path, help="write the numbers to this file")
    options = parser.parse_args(arguments)
    cases = draw_cases(options.scenes, options.seed)
    pictures = np.stack([render(case.scene) for case in cases])
    if distort is None and options.blur is not None:
        distort = blur(options.blur)
    if distort is not None:
        pictures = distort(pictures)
    results = [measure(judge, cases, pictures) for judge in (shapes(), shapes_second())]
    Console().print(table(results))
    if options.json is not None:
        options.json.write_text(json.dumps([asdict(r) for r in results], indent=1) + "\n")
    return results


if __name__ == "__main__":
    main()
