"""The model card: `README.md` beside exported weights, from what a run's directory holds and nothing else."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

from mmrubric.atomic import write_text
from mmrubric.errors import InputError
from mmrubric.record_reader import RecordReader
from mmrubric.rubric import Rubric
from pipelines.export import LORA_FILE, PEFT_FILE, export_weights
from pipelines.load import DDIM, SHIPPED, read_index, resolve
from pipelines.samplers import Sampler
from pipelines.trained import DEPLOYED_FILE

CARD = "README.md"
_RUBRICS = 3
"""Checklists that a card shows."""
_EVAL = {
    "eval/strict_completion": "every criterion holds, share of pictures",
    "eval/mean_pass_rate": "criteria that hold, mean share",
    "eval/unknown_share": "verdicts unknown",
    "eval/images": "pictures",
}
_KEYS = (
    "run.steps", "run.seed", "model.tune", "model.lora.rank", "model.lora.alpha", "model.precision",
    "data.prompts_per_step", "rollout.group_size", "rollout.sampler.steps", "rollout.sampler.guidance",
    "rollout.sampler.noise", "rollout.sampler.temperature", "reward.aggregate", "advantage.name", "loss.name",
    "loss.kl_coefficient", "optim.lr", "ema.decay",
)  # fmt: skip
"""Settings in the table of a card; all of them follow below it."""


def write_card(run: str | Path, model: str | Path) -> Path:
    """Write `README.md` into a model directory, and the newest picture grid of the run beside it as `samples.png`.

    Args:
        run: directory of the run, with config.yaml and what else it has of metrics.jsonl, record.jsonl and images.
        model: directory that `save_pretrained` wrote.

    Returns:
        The card.

    Raises:
        InputError: no run, or no model of a kind that is known.
    """
    run, model = Path(run), Path(model)
    config = read_settings(run)
    picture = _copy_samples(run, model)
    sections = [
        _front_matter(config, model), f"# {run.name}", _method(config), "## Load it", _usage(config, model),
        "## Results", _results(run, config),
        *([f"![Pictures of training step {picture}](samples.png)"] if picture else []),
        "## Judge and checklists", _judges(run, config), "## Settings", _settings(config),
    ]  # fmt: skip
    write_text(model / CARD, "\n\n".join(sections) + "\n")
    return model / CARD


def export_run(run: Path, out: Path, form: str) -> list[Path]:
    """The model of a run for another program, with a card; see `pipelines.export.export_weights`.

    Raises:
        InputError: no run, no model in it, or a format that does not hold for it.
    """
    config, model = read_settings(run), run / "model"
    if not model.is_dir():
        raise InputError(f"{run} holds no model: it ended early, or run.final_model is false")
    if not (model / CARD).is_file():
        write_card(run, model)
    return export_weights(model, out, form, class_of(config), run.name)


def read_settings(run: Path) -> dict[str, Any]:
    """config.yaml of a run.

    Raises:
        InputError: there is none.
    """
    path = run / "config.yaml"
    if not path.is_file():
        raise InputError(f"{run} is not the directory of a run: it has no config.yaml")
    return yaml.safe_load(path.read_text())


def class_of(config: Mapping[str, Any]) -> str:
    """Class of the pipeline or token model that a run started from.

    Raises:
        InputError: the base model is not there.
    """
    return read_index(resolve(config["model"]["path"]))["_class_name"]


def base_model(config: Mapping[str, Any]) -> str | None:
    """Hub id of the base model; None = a directory, or a model that ships with this package."""
    path = config["model"]["path"]
    return None if path in SHIPPED or Path(path).exists() else path


def _front_matter(config: dict[str, Any], model: Path) -> str:
    name, adapter = _class_name(config, model), _is_adapter(model)
    edits = "Kontext" in name or "Edit" in name
    data: dict[str, Any] = {}
    if (base := base_model(config)) is not None:
        data = {"base_model": base, "base_model_relation": "adapter" if adapter else "finetune"}
    data["library_name"] = "diffusers" if name.endswith("Pipeline") else "transformers"
    data["pipeline_tag"] = "image-to-image" if edits else "text-to-image"
    tags = ["mmrubric", "rubric", "reinforcement-learning", config["advantage"]["name"], config["loss"]["name"]]
    data["tags"] = [*tags, *(["lora"] if adapter else [])]
    return f"---\n{yaml.safe_dump(data, sort_keys=False)}---"


def _method(config: dict[str, Any]) -> str:
    base = base_model(config) or f"`{Path(config['model']['path']).name}`"
    asked = "answers the criteria written for each prompt"
    if _compares(config):
        asked = "ranks two pictures of a prompt by the criteria written for it"
    how = "A LoRA for" if config["model"]["tune"] == "lora" else "All weights of"
    return (
        f"{how} {base}, aligned by checklists with MMRubric: a judge {asked}, and "
        f"`{config['advantage']['name']}` advantages train the generator through the `{config['loss']['name']}` loss. "
        "The licence of the base model applies."
    )


def _compares(config: dict[str, Any]) -> bool:
    return bool(config["judge"].get("compare"))


def _is_adapter(model: Path) -> bool:
    return any((model / file).is_file() for file in (LORA_FILE, PEFT_FILE))


def _class_name(config: Mapping[str, Any], model: Path) -> str:
    """Class that loads the model or, of a LoRA, its base."""
    if _is_adapter(model):
        return class_of(config)
    if not any((model / file).is_file() for file in ("model_index.json", "config.json")):
        raise InputError(f"{model} holds neither a pipeline, nor a model, nor a LoRA: nothing to write a card for")
    return read_index(str(model))["_class_name"]


def _usage(config: dict[str, Any], model: Path) -> str:
    """Code for plain diffusers or transformers."""
    name, adapter = _class_name(config, model), _is_adapter(model)
    source = base_model(config) or resolve(config["model"]["path"]) if adapter else model.name
    if not name.endswith("Pipeline"):
        lines = [
            f"from transformers import AutoProcessor, {name}", "",
            f'processor = AutoProcessor.from_pretrained("{source}")',
            f'model = {name}.from_pretrained("{source}")',
        ]  # fmt: skip
        return _code(
            "\n".join([*lines, *([f'model.load_adapter("{model.name}")  # this directory'] if adapter else [])])
        )
    index = read_index(resolve(config["model"]["path"]) if adapter else str(model))
    parts = [key for key, value in index.items() if value == [None, None] and key.startswith(("text_enc", "tokenizer"))]
    absent = "".join(f", {part}=None" for part in sorted(parts))
    lines = [f"from diffusers import {name}", "", f'pipe = {name}.from_pretrained("{source}"{absent})']
    if adapter:
        lines.append(f'pipe.load_lora_weights("{model.name}")  # this directory')
    if adapter and name in DDIM:
        lines += [
            "from diffusers import DDIMScheduler", "",
            "pipe.scheduler = DDIMScheduler.from_config(pipe.scheduler.config, clip_sample=False)",
        ]  # fmt: skip
    return _code("\n".join([*lines, *_call(name, model, config)]))


def _call(name: str, model: Path, config: dict[str, Any]) -> list[str]:
    """The call that gives what the evaluation saw: with `eval.sampler`, else with `deployed.json`, whose missing fields
    are `Sampler`'s own."""
    file = model / DEPLOYED_FILE
    deployed = json.loads(file.read_text()) if file.is_file() else {}
    sampler = Sampler.model_validate(config.get("eval", {}).get("sampler") or deployed)
    lines, arguments = [], ['prompt="..."']
    if sampler.solver != "euler":
        lines.append(
            f"# The evaluation took the solver {sampler.solver}; this call takes Euler steps at the same levels."
        )
    if "Kontext" in name or "Edit" in name:
        arguments.insert(0, "image=source")
    if name == "StableDiffusion3Pipeline":
        lines.append(f"pipe.scheduler = pipe.scheduler.from_config(pipe.scheduler.config, shift={sampler.shift})")
    if name.startswith("QwenImage"):
        arguments += ['negative_prompt=""', f"true_cfg_scale={sampler.guidance}"]
    else:
        arguments.append(f"guidance_scale={sampler.guidance}")
    arguments.append(f"num_inference_steps={sampler.steps}")
    sizes = ["height", "width"]
    if name not in DDIM:  # whose pipelines take neither
        sizes.append("max_sequence_length")
        if sampler.schedule == "linear":
            arguments.append(f"sigmas=[1 - k / {sampler.steps} for k in range({sampler.steps})]")
    arguments += [f"{key}={value}" for key in sizes if (value := getattr(sampler, key)) is not None]
    return [*lines, f"image = pipe({', '.join(arguments)}).images[0]"]


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _rows(run: Path, kind: str) -> Iterator[dict[str, Any]]:
    path = run / "metrics.jsonl"
    for line in path.read_text().splitlines() if path.is_file() else ():
        row = json.loads(line)
        if row.get("kind") == kind:
            yield row


def _results(run: Path, config: dict[str, Any]) -> str:
    """First and last evaluation; without two of them the reward of training, which is no evaluation."""
    rows = list(_rows(run, "eval"))
    if len(rows) > 1:
        before, after = rows[0], rows[-1]
        lines = [f"| held-out prompts | step {before['step']} | step {after['step']} |", "| --- | --- | --- |"]
        lines += [f"| {text} | {_shown(before.get(key))} | {_shown(after.get(key))} |" for key, text in _EVAL.items()]
        notes = [f"Sampler: {after['eval/sampler']}. Weights: {after['eval/weights']}. Judge: `{after['eval/judge']}`."]
        if after.get("eval/same_judge") == "true":
            notes.append("The judge that evaluated is the one that trained, so the gain may be overstated.")
        return "\n".join(lines) + "\n\n" + " ".join(notes)
    steps = list(_rows(run, "train"))
    if not steps:
        return "Neither training steps nor evaluations were recorded."
    if _compares(config):
        return "No evaluation before and after was made, and a judge that compares gives no reward to follow."
    first, last = steps[0], steps[-1]
    return (
        "No evaluation before and after was made. Mean reward on training prompts: "
        f"{_shown(first.get('reward/mean'))} at step {first['step']}, {_shown(last.get('reward/mean'))} at step "
        f"{last['step']}."
    )


def _shown(value: Any) -> str:
    """A number as text; unknown is never 0."""
    return "unknown" if value is None else f"{value:.4g}"


def _judges(run: Path, config: dict[str, Any]) -> str:
    if not (run / "record.jsonl").is_file():
        return f"Judge: `{config['judge']['name']}`. The run kept no record of its verdicts."
    record = RecordReader(run / "record.jsonl")
    judged: dict[str, list[str]] = {}
    for row in record.rows():
        phases = judged.setdefault(row.judge_id, [])
        if row.phase not in phases:
            phases.append(row.phase)
    lines = [f"- `{judge}` ({', '.join(phases)})" for judge, phases in judged.items()]
    shown = list(record.rubrics.values())[:_RUBRICS]
    return "\n\n".join(["\n".join(lines), f"{len(record.rubrics)} different checklists were used, among them:",
                        *map(_rubric, shown)])  # fmt: skip


def _rubric(rubric: Rubric) -> str:
    lines = [f"`{rubric.hash[:12]}`: {rubric.prompt}", ""]
    return "\n".join([*lines, *(f"- {criterion.text}" for criterion in rubric.criteria)])


def _settings(config: dict[str, Any]) -> str:
    lines = ["| setting | value |", "| --- | --- |"]
    for key in _KEYS:
        if key == "reward.aggregate" and _compares(config):
            continue
        value: Any = config
        for part in key.split("."):
            value = value.get(part) if isinstance(value, dict) else None
        if value is not None and not (key.startswith("model.lora") and config["model"]["tune"] != "lora"):
            lines.append(f"| {key} | {value} |")
    text = yaml.safe_dump(_without_hosts(config), sort_keys=False)
    full = f"<details><summary>All settings</summary>\n\n```yaml\n{text}```\n\n</details>"
    return "\n".join(lines) + "\n\n" + full


def _without_hosts(tree: Any) -> Any:
    """A card is made to be published, and the address of a judge's server is nobody's business."""
    if isinstance(tree, dict):
        return {key: "(left out)" if key == "base_url" else _without_hosts(value) for key, value in tree.items()}
    return [_without_hosts(item) for item in tree] if isinstance(tree, list) else tree


def _copy_samples(run: Path, model: Path) -> int | None:
    """The newest grid of training pictures as samples.png; its step, None = the run kept none."""
    grids = sorted((run / "images").glob("rollout-*.png"))
    if not grids:
        return None
    shutil.copyfile(grids[-1], model / "samples.png")
    return int(grids[-1].stem.rsplit("-", 1)[1])
