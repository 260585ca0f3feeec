"""How far the pixel judge agrees with a person: sheets to look at, then the comparison.

    python scripts/eyes.py draw --model runs/quickstart/model --out runs/eyes     # half of them by that model
    python scripts/eyes.py score docs/eyes_judge.json docs/eyes.json              # the notes against the judge

A person looks at the sheets only and notes, for each picture, the criteria that fail: {"0": [], "1": ["count"], ...}.
"""

from __future__ import annotations

import json
import random
import sys
import textwrap
from collections import defaultdict
from pathlib import Path
from typing import Annotated

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import typer
from matplotlib.figure import Figure

from pipelines.load import SHAPES
from scripts.figures import evaluate_pipeline

app = typer.Typer(help=__doc__, add_completion=False)
ACROSS, DOWN = 5, 4


@app.command()
def draw(
    model: Annotated[Path, typer.Option(help="Pipeline that paints half of the pictures.")],
    out: Annotated[Path, typer.Option(help="Folder of the sheets.")],
    count: Annotated[int, typer.Option(help="Pictures in all.")] = 200,
) -> None:
    """Paint held-out prompts by both models, as numbered sheets in a mixed order; the judge's answers go apart."""
    cases = []
    for path in (SHAPES, model):
        result = evaluate_pipeline(path, count // 2, keep_images=True)
        cases += [(item, result.prompts[item.row], result.rubrics[item.row]) for item in result.items]
    random.Random(0).shuffle(cases)
    out.mkdir(parents=True, exist_ok=True)
    answers = {
        str(number): {
            "prompt": prompt.text,
            "image": item.image_hash,
            "met": {verdict.criterion_id: verdict.met for verdict in item.verdicts},
            "kind": {criterion.id: criterion.category for criterion in rubric.criteria},
        }
        for number, (item, prompt, rubric) in enumerate(cases)
    }
    lines = [f"{json.dumps(number)}: {json.dumps(answer)}" for number, answer in answers.items()]
    (out / "judge.json").write_text("{\n" + ",\n".join(lines) + "\n}\n")
    for start in range(0, len(cases), ACROSS * DOWN):
        figure = Figure(figsize=(3.2 * ACROSS, 3.4 * DOWN), layout="constrained")
        for axes, number in zip(figure.subplots(DOWN, ACROSS).flat, range(start, start + ACROSS * DOWN), strict=True):
            axes.axis("off")
            if number < len(cases):
                item, prompt, _ = cases[number]
                axes.imshow(item.image, interpolation="nearest")
                axes.set_title(f"{number}: {textwrap.fill(prompt.text, 34)}", fontsize=11)
        figure.savefig(out / f"sheet-{start:03d}.png", dpi=70)


@app.command()
def score(
    judged: Annotated[Path, typer.Argument(help="The judge.json that was written beside the sheets.")],
    seen: Annotated[Path, typer.Argument(help="JSON: number of a picture -> ids of the criteria that fail.")],
) -> None:
    """Agreement per kind of criterion; an unknown verdict counts as disagreement."""
    answers, failing = json.loads(judged.read_text()), json.loads(seen.read_text())
    if set(answers) != set(failing):
        raise typer.BadParameter(f"{seen}: notes for {len(failing)} pictures, {len(answers)} were drawn")
    same: dict[str, list[bool]] = defaultdict(list)
    for number, answer in answers.items():
        if strange := set(failing[number]) - set(answer["met"]):
            raise typer.BadParameter(f"{seen}: picture {number} has no criterion {', '.join(sorted(strange))}")
        agreed = {
            name: met is not None and (met >= 0.5) == (name not in failing[number])
            for name, met in answer["met"].items()
        }
        for name, right in agreed.items():
            same[answer["kind"][name]].append(right)
            same["all"].append(right)
        if wrong := [name for name, right in agreed.items() if not right]:
            print(f"{number}: {answer['prompt']}: differ on {', '.join(wrong)}", file=sys.stderr)
    for kind, values in sorted(same.items()):
        print(f"{kind:10} {sum(values):4} of {len(values):4}  {sum(values) / len(values):.1%}")


if __name__ == "__main__":
    app()
