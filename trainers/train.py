"""`accelerate launch -m trainers.train --config configs/shapes/rpo.yaml key=value`, or `python -m
trainers.train`."""

from __future__ import annotations

import json
import logging
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Annotated, Any

import torch.distributed
import typer
from rich.console import Console
from rich.logging import RichHandler

from mmrubric.config import load_config, unset_keys
from mmrubric.errors import InputError, RunError
from pipelines import windows
from trainers import checks, outlook, parts
from trainers.checkpoint import fingerprint
from trainers.config import TrainConfig
from trainers.distributed import end_ranks, started_processes
from trainers.loop import Trainer
from trainers.timesteps import trained_count

logger = logging.getLogger(__name__)
console = Console(stderr=True)
INTERRUPTED = 130


@contextmanager
def session() -> Iterator[None]:
    """Ends the process group on the way out, and turns SIGTERM into an ordinary exit so that `with` blocks
    close."""

    def ask_to_end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, ask_to_end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        end_ranks()


def train(config: TrainConfig) -> dict[str, Any]:
    """Train to run.steps, evaluate and export; returns what the command prints.

    Raises:
        InputError: before weights load, for anything that the user can mend.
        RunError: the run could not go on; what was saved stays.
    """
    with session(), Trainer(config) as trainer:
        if trainer.done:
            logger.info("continuing %s at step %d of %d", trainer.directory, trainer.done, config.run.steps)
        trainer.run()
        if config.run.final_model:
            trainer.export()
        latest = trainer.checkpoints.latest()
        return {
            "directory": str(trainer.directory),
            "steps": trainer.done,
            "stopped": trainer.stopped or None,
            "reward": trainer.last.get("reward/mean"),
            "strict_completion": trainer.last.get("reward/strict_completion"),
            "checkpoint": str(latest.path) if latest else None,
            "model": str(trainer.directory / "model") if config.run.final_model else None,
            "main": trainer.dist.main,
        }


@session()
def plan(config: TrainConfig) -> dict[str, Any]:
    """What a run would do and take, after every check that needs no weights. All started ranks call it."""
    config, told = outlook.as_started(config)
    accelerator = parts.make_accelerator(config) if started_processes() > 1 else None
    main = accelerator is None or accelerator.is_main_process
    unset = unset_keys(config)
    world = config.run.processes if accelerator else 1
    inputs = None if unset else parts.read_inputs(config, main=main, world=world)
    if unset:
        told.append(f"not set yet: {', '.join(unset)}. Prompts, rubrics and judge were not looked at")
    loss, rows = checks.loss_of(config), config.data.prompts_per_step * config.rollout.drawn
    sampler = windows.at(config.rollout.sampler, config.run.seed, 0)
    size = 1
    if sampler.kind == "flow" and loss.kind == "replay":
        size = trained_count(len(windows.stochastic_steps(sampler)), config.loss.timestep_fraction)
    return {
        "directory": str(config.run.directory),
        "fingerprint": fingerprint(config.model_dump(mode="json")),
        "steps": config.run.steps,
        "judged_images": config.run.steps * rows,
        "images_per_step": rows,
        "items_per_step": config.data.prompts_per_step
        * config.rollout.group_size
        * (config.loss.levels if loss.kind == "forward" else size),
        "updates_per_step": config.optim.updates_per_rollout * config.optim.epochs,
        "staleness": int(config.rollout.late),
        **({} if inputs is None else _known(inputs)),
        **outlook.of(config, inputs, accelerator),
        "warnings": [*checks.warnings(config), *told],
        "main": main,
    }


def _known(inputs: parts.Inputs) -> dict[str, Any]:
    return {
        "prompts": len(inputs.prompts),
        "heldout": len(inputs.heldout) if inputs.heldout is not None else 0,
        "judge": inputs.judge.id,
        "eval_judge": inputs.eval_judge.id if inputs.eval_judge is not None else None,
    }


def main(
    config: Annotated[Path, typer.Option(help="YAML file, such as configs/shapes/rpo.yaml.")],
    overrides: Annotated[list[str] | None, typer.Argument(help="Settings to change, as section.key=value.")] = None,
    dry_run: Annotated[bool, typer.Option(help="Check everything that needs no weights, print the plan, end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the result as one JSON object.")] = False,
) -> None:
    """Align a generator by rubrics.

    Example: accelerate launch -m trainers.train --config configs/shapes/rpo.yaml run.steps=100 optim.lr=1e-4
    """
    logging.basicConfig(
        level=logging.INFO, format="%(message)s", handlers=[RichHandler(console=console, show_path=False)]
    )
    sys.exit(run(config, overrides or (), dry_run=dry_run, as_json=as_json))


def run(config: Path, overrides: Sequence[str] = (), *, dry_run: bool = False, as_json: bool = False) -> int:
    """The command; returns its exit code: 0 done, 1 failed, 2 bad input, 130 interrupted."""
    try:
        settings = load_config(TrainConfig, config, [_short(text) for text in overrides], keep_unset=dry_run)
        result = plan(settings) if dry_run else train(settings)
    except InputError as error:
        console.print(f"bad input: {error}", markup=False, highlight=False, soft_wrap=True)
        return 2
    except RunError as error:
        console.print(f"failed: {error}", markup=False, highlight=False, soft_wrap=True)
        return 1
    except RuntimeError as error:
        if not lost_rank(error):
            raise
        console.print(
            f"failed: the connection to another rank is lost, see what that rank printed ({error}); continue with "
            "run.resume=auto",
            markup=False, highlight=False, soft_wrap=True,
        )  # fmt: skip
        return 1
    except KeyboardInterrupt:
        console.print("interrupted: nothing half was written; continue with run.resume=auto", highlight=False)
        return INTERRUPTED
    if result.pop("main", True):
        if as_json:
            print(json.dumps(result))
        else:
            for line in _lines(result):
                console.print(line, markup=False, highlight=False, soft_wrap=True)
    return 0


def _short(override: str) -> str:
    """`model=PATH` means `model.path=PATH`; `model={...}` stays a whole section."""
    name, _, value = override.partition("=")
    return f"model.path={value}" if name == "model" and not value.lstrip().startswith("{") else override


def lost_rank(error: RuntimeError) -> bool:
    """Whether a collective broke because another rank is gone. gloo has no type of its own for that."""
    return isinstance(error, torch.distributed.DistError) or "gloo" in str(error).lower()


def _lines(result: dict[str, Any], indent: str = "") -> Iterator[str]:
    for key, value in result.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _lines(value, indent + "  ")
        else:
            yield f"{indent}{key}: {value}"


if __name__ == "__main__":
    typer.run(main)
