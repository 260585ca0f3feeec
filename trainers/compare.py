"""One command, one table: {grpo, rpo} x {clip, guard, nft} x seeds on the same budget of judged images.

`python -m trainers.compare --config configs/shapes/compare.yaml --output runs/compare`

A cell that is finished is not run again, a cell that was interrupted goes on from its checkpoint.
"""

from __future__ import annotations

import json
import logging
import math
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from pydantic import Field
from rich.console import Console

from mmrubric.config import Config, load_config
from mmrubric.errors import InputError, RunError
from trainers import parts
from trainers.config import TrainConfig
from trainers.loop import Trainer
from trainers.train import INTERRUPTED, session

logger = logging.getLogger(__name__)


class CompareConfig(Config):
    """What is compared."""

    base: str
    """Configuration that all cells start from (path, relative to this file)."""
    advantages: dict[str, list[str]]
    """Rows: a name, and the settings it changes."""
    losses: dict[str, list[str]]
    """Columns: a name, and the settings it changes."""
    seeds: list[int] = Field(default=[0, 1, 2], min_length=1)
    """Seeds of each cell."""
    images: int = Field(default=3200, ge=1)
    """Judged training images of a cell; run.steps follows from it."""


@dataclass(frozen=True)
class Cell:
    """One finished run."""

    advantage: str
    loss: str
    seed: int
    steps: int
    judged_images: int
    before_mean_pass_rate: float
    before_strict_completion: float
    mean_pass_rate: float
    strict_completion: float
    unknown_share: float
    seconds: float
    """Of the training steps alone."""
    stopped: str = ""


def cell_config(config: CompareConfig, folder: Path, output: Path, advantage: str, loss: str, seed: int) -> TrainConfig:
    """The settings of a cell; its number of steps spends the budget of images.

    Raises:
        InputError: a name or setting is wrong; the message names the cell.
    """
    changes = [*config.losses[loss], *config.advantages[advantage]]
    fixed = [
        f"run.name={advantage}-{loss}-{seed}",
        f"run.output_dir={output}",
        f"run.seed={seed}",
        "run.resume=auto",
    ]
    try:
        made = load_config(TrainConfig, folder / config.base, [*changes, *fixed, "tracking.progress=false"])
    except InputError as error:
        raise InputError(f"cell {advantage} x {loss}: {error}") from None
    steps = max(1, round(config.images / (made.data.prompts_per_step * made.rollout.drawn)))
    return made.model_copy(update={"run": made.run.model_copy(update={"steps": steps})})


def run_cell(config: TrainConfig, advantage: str, loss: str) -> Cell:
    """Train one cell to its end (going on where it was interrupted) and evaluate before and after."""
    judge = parts.make_judge(config.judge)
    eval_judge = parts.make_judge(config.eval.judge) if config.eval.judge is not None else judge
    if eval_judge is judge and not config.eval.allow_same_judge:
        raise InputError("eval.judge: the comparison needs another judge, or eval.allow_same_judge=true")
    notes = config.run.directory / "cell.json"
    known: dict[str, Any] = json.loads(notes.read_text()) if notes.is_file() else {}
    with session(), Trainer(config, parts.build(config, judge=judge, eval_judge=eval_judge)) as trainer:
        if "before" not in known:
            if trainer.done:
                raise InputError(
                    f"{config.run.directory}: the evaluation before training is lost; delete the directory"
                )
            first = trainer.evaluate()
            known = {"before": [first.mean_pass_rate, first.strict_completion], "seconds": {}}
            _write(notes, known)
        while trainer.done < config.run.steps and not trainer.stopped:
            began = time.perf_counter()
            trainer.step()
            known["seconds"][str(trainer.done)] = time.perf_counter() - began
            last_one = trainer.done >= config.run.steps or bool(trainer.stopped)
            if last_one or (config.run.save_every and trainer.done % config.run.save_every == 0):
                _write(notes, known)
                trainer.save()
        last = trainer.evaluate()
        return Cell(
            advantage=advantage,
            loss=loss,
            seed=config.run.seed,
            steps=trainer.done,
            judged_images=trainer.done * config.data.prompts_per_step * config.rollout.drawn,
            before_mean_pass_rate=known["before"][0],
            before_strict_completion=known["before"][1],
            mean_pass_rate=last.mean_pass_rate,
            strict_completion=last.strict_completion,
            unknown_share=last.unknown_share,
            seconds=math.fsum(known["seconds"].values()),
            stopped=trainer.stopped,
        )


def table(cells: Sequence[Cell]) -> str:
    """Markdown: mean over seeds with the spread, per advantage and loss."""
    names = list(dict.fromkeys((cell.advantage, cell.loss) for cell in cells))
    lines = [
        "| advantage | loss | mean pass rate | strict completion | change of the latter | seconds | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    if cells:
        before = {cell.seed: cell for cell in cells}.values()
        passed = _spread([cell.before_mean_pass_rate for cell in before])
        strict = _spread([cell.before_strict_completion for cell in before])
        lines.append(f"| none | before training | {passed} | {strict} | | | {len(before)} |")
    for advantage, loss in names:
        mine = [cell for cell in cells if (cell.advantage, cell.loss) == (advantage, loss)]
        gain = [cell.strict_completion - cell.before_strict_completion for cell in mine]
        note = " (stopped)" if any(cell.stopped for cell in mine) else ""
        lines.append(
            f"| {advantage} | {loss}{note} | {_spread([c.mean_pass_rate for c in mine])} | "
            f"{_spread([c.strict_completion for c in mine])} | {_spread(gain, sign=True)} | "
            f"{np.mean([c.seconds for c in mine]):.0f} | {len(mine)} |"
        )
    return "\n".join(lines) + "\n"


def _spread(values: Sequence[float], sign: bool = False) -> str:
    """Mean and, with several seeds, the range, in percent."""
    plus = "+" if sign else ""
    mean = f"{100 * np.mean(values):{plus}.1f}"
    return mean if len(values) < 2 else f"{mean} ({100 * min(values):{plus}.1f} to {100 * max(values):{plus}.1f})"


def _write(path: Path, data: Any) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_text(json.dumps(data, indent=1))
    os.replace(temporary, path)


def main(
    config: Annotated[Path, typer.Option(help="YAML of the comparison.")] = Path("configs/shapes/compare.yaml"),
    output: Annotated[Path, typer.Option(help="Directory of the runs and of table.md and table.json.")] = Path(
        "runs/compare"
    ),
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as key=value.")] = None,
    cell: Annotated[str | None, typer.Option(help="Only this cell, as advantage,loss,seed.")] = None,
) -> None:
    """Run the comparison, or what is left of it, and write its table.

    Example: python -m trainers.compare --config configs/shapes/compare.yaml seeds=[0] images=320
    """
    console = Console(stderr=True)
    logging.basicConfig(level=logging.WARNING, format="%(message)s")
    try:
        code = run(config, output, overrides or (), cell, console)
    except InputError as error:
        console.print(f"bad input: {error}", markup=False, highlight=False, soft_wrap=True)
        code = 2
    except RunError as error:
        console.print(f"failed: {error}", markup=False, highlight=False, soft_wrap=True)
        code = 1
    except KeyboardInterrupt:
        console.print("interrupted: the same command goes on from here", highlight=False)
        code = INTERRUPTED
    sys.exit(code)


def run(
    path: Path,
    output: Path,
    overrides: Sequence[str] = (),
    cell: str | None = None,
    console: Console | None = None,
) -> int:
    """Run the cells that are not finished, each in a process of its own, then write the table."""
    config, console = load_config(CompareConfig, path, overrides), console or Console(stderr=True)
    wanted = [(a, x, s) for s in config.seeds for a in config.advantages for x in config.losses]
    made = {key: cell_config(config, path.parent, output, *key) for key in wanted}
    if cell is not None:
        key = _key(cell, wanted)
        output.mkdir(parents=True, exist_ok=True)
        _write(_result(output, key), asdict(run_cell(made[key], *key[:2])))
        return 0
    for number, key in enumerate(wanted):
        name = ",".join(map(str, key))
        if _result(output, key).is_file():
            continue
        console.print(f"{number + 1}/{len(wanted)} {name}", highlight=False)
        # A process of its own: seconds and memory of a cell do not depend on the cells before it.
        command = [sys.executable, "-m", "trainers.compare", "--config", str(path), "--output", str(output)]
        done = subprocess.run([*command, "--cell", name, *overrides], check=False)
        if done.returncode:
            raise RunError(f"cell {name} ended with code {done.returncode}; the same command goes on from here")
    cells = [Cell(**json.loads(_result(output, key).read_text())) for key in wanted]
    _write(output / "table.json", [asdict(item) for item in cells])
    (output / "table.md").write_text(table(cells))
    print(table(cells), end="")
    return 0


def _result(output: Path, key: tuple[str, str, int]) -> Path:
    return output / f"{'-'.join(map(str, key))}.json"


def _key(text: str, wanted: Sequence[tuple[str, str, int]]) -> tuple[str, str, int]:
    for key in wanted:
        if ",".join(map(str, key)) == text:
            return key
    raise InputError(f"--cell {text}: no such cell; known: {'; '.join(','.join(map(str, k)) for k in wanted)}")


if __name__ == "__main__":
    typer.run(main)
