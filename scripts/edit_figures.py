"""Editing in the shapes world before and after alignment: figures and paired intervals from one evaluation.

python scripts/edit_figures.py runs/edit_rpo
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
import typer
from matplotlib.figure import Figure

import judges
import pipelines
from mmrubric import generators
from mmrubric.bootstrap import bootstrap, paired_bootstrap
from mmrubric.generators.shapes_edit import GROUPS
from scripts.figures import BLUE, FOLDER, GRAY, GREEN, RED, clean, read_lines, write_lines
from trainers import prompts
from trainers.evaluate import EvalResult, evaluate
from trainers.judge_worker import JudgeWorker

COLOURS = dict(zip(GROUPS, (BLUE, GREEN, GRAY), strict=True))


def main(
    folder: Annotated[Path, typer.Argument(help="Directory of a run of configs/shapes/edit_rpo.yaml.")],
    count: Annotated[int, typer.Option("--prompts", help="Held-out edits of the comparison.")] = 500,
    seed: Annotated[int, typer.Option(help="Of the draw of the edits and of the noise; not the run's own.")] = 1,
    columns: Annotated[int, typer.Option(help="Edits in the contact sheet.")] = 10,
) -> None:
    """Curve, contact sheet and numbers, written to docs/figures."""
    torch.set_num_threads(1)
    FOLDER.mkdir(parents=True, exist_ok=True)
    draw_curve(folder)
    before, after = (evaluated(model, count, seed) for model in ("shapes-edit", folder / "model"))
    numbers = compare(before, after, seed)
    print(json.dumps(numbers, indent=2))
    (FOLDER / "edit_rpo.json").write_text(json.dumps(numbers, indent=2) + "\n")
    draw_sheet(before, after, columns)


def evaluated(model: str | Path, count: int, seed: int) -> EvalResult:
    """A model on held-out edits as it is deployed, judged by the reader that training did not use."""
    heldout = prompts.load("shapes-edit:heldout", count, seed).prompts
    write = generators.build("shapes_edit")
    rubrics = [write.generate_sync(prompt) for prompt in heldout]
    policy = pipelines.load_policy(model, tune=None)
    with JudgeWorker(judges.build("shapes_edit_second")) as worker:
        return evaluate(policy, heldout, rubrics, worker, seed=seed, batch=64)


def by_group(result: EvalResult) -> dict[str, np.ndarray]:
    """Share of the criteria of each group that hold, and whether all do, [P] each; NaN = unknown."""
    shares: dict[str, list[float]] = {group: [] for group in GROUPS}
    for table in result.tables:
        for group, values in shares.items():
            columns = [k for k, criterion in enumerate(table.rubric.criteria) if criterion.category == group]
            values.append(float(np.nanmean(table.good[:, columns])))
    return {**{group: np.array(values) for group, values in shares.items()}, "all": result.completion_by_prompt()}


def compare(before: EvalResult, after: EvalResult, seed: int) -> dict[str, object]:
    """Means in percent with 95 % intervals, and paired differences in points."""
    old, new = by_group(before), by_group(after)
    rows: dict[str, object] = {"prompts": len(before.prompts), "judge": after.judge_id}
    for name in old:
        sides = {"before": bootstrap(old[name], seed), "after": bootstrap(new[name], seed)}
        sides["difference"] = paired_bootstrap(old[name], new[name], seed)
        rows[name] = {
            side: {key: round(100 * value, 1) for key, value in interval._asdict().items()}
            for side, interval in sides.items()
        }
    return rows


def draw_curve(folder: Path) -> None:
    rows = [row for row in read_lines(folder / "metrics.jsonl") if "eval/follow_mean" in row]
    write_lines(FOLDER / "edit_rpo.jsonl", rows)
    figure = Figure(figsize=(6, 3), layout="constrained")
    axes = figure.subplots()
    for group, colour in COLOURS.items():
        values = [100 * row[f"eval/{group}_mean"] for row in rows]
        axes.plot([row["step"] for row in rows], values, "o-", color=colour, ms=3, label=f"{group} {values[-1]:.0f} %")
    axes.set_ylim(0, 100)
    axes.legend(frameon=False, loc="lower right")
    clean(axes, "held-out criteria met, %")
    figure.savefig(FOLDER / "edit_rpo.png", dpi=110)


def draw_sheet(before: EvalResult, after: EvalResult, columns: int) -> None:
    """Source, before and after of the first edits; a green frame where every criterion holds."""
    figure = Figure(figsize=(1.25 * columns, 4.6), layout="constrained")
    grid = figure.subplots(3, columns)
    for axes, prompt in zip(grid[0], before.prompts, strict=False):
        axes.imshow(prompt.sources[0], interpolation="nearest")
        axes.set_title(prompt.text.replace(" the ", " the\n"), fontsize=7)
    for line, result in zip(grid[1:], (before, after), strict=True):
        for axes, item, complete in zip(line, result.items, result.completion_by_prompt(), strict=False):
            axes.imshow(item.image, interpolation="nearest")
            for spine in axes.spines.values():
                spine.set(color=GREEN if complete else RED, linewidth=3)
    for line, name in zip(grid, ("source", "before", "after"), strict=True):
        line[0].set_ylabel(name, fontsize=10)
    for axes in grid.flat:
        axes.set_xticks([])
        axes.set_yticks([])
    figure.savefig(FOLDER / "edit_before_after.png", dpi=110)


if __name__ == "__main__":
    typer.run(main)
