"""The figures of the README, each from the files of the run that it shows.

python scripts/figures.py generator runs/shapes-generator    # follow the shipped generator's training
python scripts/figures.py run runs/nft_long                  # curve of a training run
python scripts/figures.py pictures runs/quickstart/model     # the same prompts and noise before and after
"""

from __future__ import annotations

import json
import re
import sys
import textwrap
from pathlib import Path
from typing import Annotated, Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import torch
import typer
from matplotlib.axes import Axes
from matplotlib.figure import Figure

import judges
import pipelines
from mmrubric import generators
from pipelines.load import SHAPES
from trainers import prompts
from trainers.evaluate import EvalResult, evaluate
from trainers.judge_worker import JudgeWorker

app = typer.Typer(help=__doc__, add_completion=False)
FOLDER = Path("docs/figures")
BLUE, GRAY, GREEN, RED = "#1f6feb", "#8c959f", "#1a7f37", "#cf222e"


def read_lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def clean(axes: Axes, ylabel: str) -> None:
    axes.set_xlabel("training step")
    axes.set_ylabel(ylabel)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color="#d0d7de", lw=0.7)


def plot_shares(axes: Axes, rows: list[dict[str, Any]], strict: str, mean: str) -> None:
    """Strict completion and mean pass rate over steps, in percent, named at their ends."""
    steps = [row["step"] for row in rows]
    for key, name, colour in ((strict, "all met", BLUE), (mean, "criteria met", GRAY)):
        values = [100 * row[key] for row in rows]
        axes.plot(steps, values, "o-", color=colour, ms=3)
        axes.annotate(
            f"{name} {values[-1]:.0f} %", (steps[-1], values[-1]), xytext=(6, 4), textcoords="offset points",
            ha="right", va="bottom", color=colour, fontweight="bold",
        )  # fmt: skip
    axes.set_ylim(0, 100)
    clean(axes, "held-out pictures, %")


@app.command()
def generator(
    folder: Annotated[Path, typer.Argument(help="Folder of pipelines.shapes.train.")],
    count: Annotated[int, typer.Option("--prompts", help="Held-out prompts of an evaluation.")] = 300,
) -> None:
    """Evaluate the pipelines that training kept, and draw loss and scores over steps."""
    scores = [
        {"step": int(match[1]), **shares(evaluate_pipeline(path, count))}
        for path in sorted(folder.glob("pipeline-*"), key=lambda p: int(p.name.split("-")[1]))
        if (match := re.fullmatch(r"pipeline-(\d+)", path.name))
    ]
    losses = read_lines(folder / "flow_curve.jsonl")
    write_lines(FOLDER / "shapes_generator_loss.jsonl", losses)
    write_lines(FOLDER / "shapes_generator_scores.jsonl", scores)
    figure = Figure(figsize=(9, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    left.plot([row["step"] for row in losses], [row["loss"] for row in losses], color=BLUE)
    left.set_yscale("log")
    clean(left, "flow-matching loss")
    plot_shares(right, scores, "strict_completion", "mean_pass_rate")
    figure.savefig(FOLDER / "shapes_generator.png", dpi=110)


def evaluate_pipeline(path: Path, count: int, keep_images: bool = False) -> EvalResult:
    """A pipeline on held-out prompts, by the settings that the shipped one is deployed with."""
    torch.set_num_threads(1)
    heldout = prompts.load("shapes:heldout", count).prompts
    write = generators.build("shapes")
    rubrics = [write.generate_sync(prompt) for prompt in heldout]
    sampler = pipelines.load_policy(SHAPES, tune=None).deployed
    with JudgeWorker(judges.build("shapes")) as worker:
        return evaluate(
            pipelines.load_policy(path, tune=None), heldout, rubrics, worker,
            sampler=sampler, batch=64, keep_images=keep_images,
        )  # fmt: skip


def shares(result: EvalResult) -> dict[str, float]:
    return {
        "strict_completion": result.strict_completion,
        "mean_pass_rate": result.mean_pass_rate,
        "unknown_share": result.unknown_share,
        "prompts": len(result.prompts),
    }


@app.command()
def pictures(
    model: Annotated[Path, typer.Argument(help="Aligned pipeline, such as runs/quickstart/model.")],
    count: Annotated[int, typer.Option("--prompts", help="Pictures in a row.")] = 10,
) -> None:
    """The first held-out prompts before and after alignment; a green frame where every criterion holds."""
    sides = {"before": evaluate_pipeline(SHAPES, count, True), "after": evaluate_pipeline(model, count, True)}
    figure = Figure(figsize=(1.25 * count, 3.3), layout="constrained")
    grid = figure.subplots(2, count)
    for line, (side, result) in zip(grid, sides.items(), strict=True):
        line[0].set_ylabel(side, fontsize=10)
        for axes, item, complete in zip(line, result.items, result.completion_by_prompt(), strict=True):
            axes.imshow(item.image, interpolation="nearest")
            axes.set_xticks([])
            axes.set_yticks([])
            for spine in axes.spines.values():
                spine.set(color=GREEN if complete else RED, linewidth=3)
    for axes, prompt in zip(grid[0], sides["before"].prompts, strict=True):
        axes.set_title(textwrap.fill(prompt.text, 20), fontsize=7)
    FOLDER.mkdir(parents=True, exist_ok=True)
    figure.savefig(FOLDER / "before_after.png", dpi=110)


@app.command()
def run(folder: Annotated[Path, typer.Argument(help="Directory of a training run with eval.every set.")]) -> None:
    """Held-out scores over the steps of a run."""
    rows = [row for row in read_lines(folder / "metrics.jsonl") if "eval/strict_completion" in row]
    write_lines(FOLDER / f"{folder.name}.jsonl", rows)
    figure = Figure(figsize=(6, 3), layout="constrained")
    plot_shares(figure.subplots(), rows, "eval/strict_completion", "eval/mean_pass_rate")
    figure.savefig(FOLDER / f"{folder.name}.png", dpi=110)


if __name__ == "__main__":
    app()
