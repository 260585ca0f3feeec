"""Launch configurations, the plan of sharded ranks, embeddings on disk in training, refusals before weights load."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from mmrubric.config import save_config
from mmrubric.errors import InputError
from pipelines import LoraOptions, load_policy
from pipelines.testing_flux import tiny_flux_directory
from tests.trainers.toys import SDE, settings, train
from trainers import parts, sharding
from trainers.checkpoint import CheckpointStore
from trainers.config import ModelSection

ROOT = Path(__file__).parents[2]
LAUNCH = ROOT / "configs" / "accelerate"
FILES = ("single_gpu", "ddp", "fsdp2", "deepspeed_zero2", "deepspeed_zero3", "multi_node")
ENVIRONMENT = {
    **os.environ, "ACCELERATE_USE_CPU": "true", "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
    "PYTHONPATH": str(ROOT),
}  # fmt: skip


def test_all_launch_configurations_are_here() -> None:
    assert sorted(path.stem for path in LAUNCH.glob("*.yaml")) == sorted(FILES)


@pytest.mark.parametrize("name", FILES)
def test_accelerate_reads_the_launch_configuration(name: str) -> None:
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    config = load_config_from_file(str(LAUNCH / f"{name}.yaml"))  # refuses unknown keys
    command = ["--config_file", str(LAUNCH / f"{name}.yaml"), "-m", "trainers.train", "--config", "x.yaml"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(command))
    assert args.num_processes == {"single_gpu": 1, "multi_node": 16}.get(name, 2)
    assert args.num_machines == (2 if name == "multi_node" else 1)
    assert args.use_fsdp == (name in ("fsdp2", "multi_node")) and args.use_deepspeed == name.startswith("deepspeed")
    assert args.multi_gpu == (name == "ddp")
    assert args.mixed_precision == "no"  # precision is the run's own
    if args.use_deepspeed:
        assert args.zero_stage == int(name[-1]) == vars(config)["deepspeed_config"]["zero_stage"]


@pytest.mark.parametrize("name", ["fsdp2", "multi_node"])
def test_what_accelerate_makes_of_the_sharded_configurations_is_what_we_read(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_multi_gpu_env

    command = ["--config_file", str(LAUNCH / f"{name}.yaml"), "-m", "trainers.train"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(command))
    monkeypatch.setattr(args, "main_process_port", 0)
    assert sharding.asked(prepare_multi_gpu_env(args)) == sharding.Asked("fsdp2")
    args.fsdp_version, args.fsdp_offload_params = 1, True
    with pytest.raises(InputError, match="fsdp_version: 2"):
        sharding.asked(prepare_multi_gpu_env(args))


@pytest.mark.parametrize("stage", [2, 3])
def test_what_accelerate_makes_of_the_deepspeed_configurations_is_what_we_read(
    stage: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    command = ["--config_file", str(LAUNCH / f"deepspeed_zero{stage}.yaml"), "-m", "trainers.train"]
    args, _, _ = _validate_launch_command(launch_command_parser().parse_args(command))
    monkeypatch.setattr(args, "main_process_port", 0)
    monkeypatch.setattr(args, "deepspeed_fields_from_accelerate_config", "zero_stage", raising=False)
    assert sharding.asked(prepare_deepspeed_cmd_env(args)[1]) == sharding.Asked(f"zero{stage}")


@pytest.mark.parametrize(
    ("environment", "changes", "message"),
    [
        ({"ACCELERATE_MIXED_PRECISION": "bf16"}, {}, r"mixed_precision=bf16, but model\.precision=fp32"),
        ({}, {"model__shard": "fsdp2"}, r"run\.processes=1 shards nothing"),
        ({"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"}, {"model__shard": "none"}, "but this launch asks for"),
    ],
)
def test_launches_that_do_not_fit_the_configuration_are_refused(
    environment: dict[str, str], changes: dict[str, str], message: str, tmp_path: Path, tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(InputError, match=message):
        parts.make_accelerator(settings(tmp_path, tiny_model, **changes))


def test_a_device_of_ones_own_and_sharding_exclude_each_other(tmp_path: Path, tiny_model: Path) -> None:
    config = settings(tmp_path, tiny_model, run__processes=2, model__shard="fsdp2", model__device="cpu")
    with pytest.raises(InputError, match=r"model\.device=cpu with sharding"):
        parts.check_launch(config)


def test_engine_options_are_settings_of_the_model(tmp_path: Path) -> None:
    section = ModelSection(embedding_cache=str(tmp_path), vae_tiling=True, attention="xformers")
    assert section.engine.embedding_cache == str(tmp_path) and section.engine.vae_tiling
    assert section.engine.attention == "xformers" and not section.engine.compile
    assert ModelSection().engine == type(section.engine)()


def test_training_with_embeddings_on_disk_is_bitwise_the_same(tmp_path: Path, tiny_model: Path) -> None:
    found = []
    for name in ("plain", "writes", "reads"):
        extra = {} if name == "plain" else {"model__embedding_cache": str(tmp_path / "cache"),
                                           "model__offload_encoders": name == "reads"}  # fmt: skip
        config = settings(
            tmp_path, tiny_model, run__name=name, rollout__sampler={**SDE, "guidance": 2.0},
            loss={"name": "clip", "options": {"clip": 0.01}}, advantage__name="grpo", **extra,
        )  # fmt: skip
        train(config)
        latest = CheckpointStore(config.run.directory / "checkpoints").latest()
        assert latest is not None
        found.append(latest.load()["policy"])
    for other in found[1:]:
        assert found[0].keys() == other.keys() and all(torch.equal(found[0][k], other[k]) for k in other)
    assert len(list((tmp_path / "cache").rglob("*.safetensors"))) == 5  # 4 prompts and the empty negative text


def test_tf54_the_reference_of_an_adapter_cannot_be_synced(tiny_model: Path) -> None:
    policy = load_policy(tiny_model, "lora", LoraOptions(rank=2), device="cpu", previous=True)
    for change in (lambda: policy.keep_previous("reference"), lambda: policy._copies.update("reference", 0.0)):
        with pytest.raises(InputError, match=r"model without it.*train all weights"):
            change()
    full = load_policy(tiny_model, "full", device="cpu", reference=True, previous=True)
    full.keep_previous("reference")


@pytest.mark.slow
@pytest.mark.processes
def test_dry_run_of_two_ranks_says_what_is_really_sharded(tmp_path: Path) -> None:
    model = tiny_flux_directory(tmp_path / "flux")
    command = [
        sys.executable, "-m", "accelerate.commands.launch", "--config_file", str(LAUNCH / "fsdp2.yaml"),
        "--num_processes", "2", "-m", "trainers.train", "--config", str(ROOT / "configs" / "shapes" / "grpo.yaml"),
        "--dry-run", "--json", f"model.path={model}", f"run.output_dir={tmp_path}",
    ]  # fmt: skip
    done = subprocess.run(command, env=ENVIRONMENT, cwd=ROOT, text=True, capture_output=True, timeout=600)
    assert done.returncode == 0, done.stderr[-4000:]
    (line,) = [text for text in done.stdout.splitlines() if text.startswith("{")]  # rank 0 alone prints
    plan = json.loads(line)
    loaded = load_policy(model, device="cpu").module
    assert plan["model"] == "FluxTransformer2DModel" and plan["shard"] == "fsdp2" and plan["processes"] == 2
    assert plan["parameters"] == sum(p.numel() for p in loaded.parameters())
    spread = plan["sharded"]
    assert spread["dtensors"] == spread["parameter_tensors"] == len(list(loaded.parameters()))
    assert sum(spread["bytes_per_rank"]) == 4 * plan["parameters"] and len(spread["bytes_per_rank"]) == 2
    assert max(spread["bytes_per_rank"]) < 0.55 * 4 * plan["parameters"]
    assert "(fp32, 1/2)" in plan["memory_per_rank"]["trained weights"]
    # 16 prompts x 8 samples
    assert plan["images_per_step"] == plan["judge_calls_per_step"] == 128
    assert plan["judge_cost"].startswith("unknown") and plan["warnings"] == [
        "run.processes=1, but 2 started: the plan is for 2; to train so, set run.processes=2"
    ]
    assert not (tmp_path / "grpo").exists()


def test_a_plan_is_readable_as_text(tmp_path: Path, tiny_model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from trainers.train import run

    save_config(settings(tmp_path, tiny_model, judge__name="shapes"), tmp_path / "config.yaml")
    assert run(tmp_path / "config.yaml", dry_run=True) == 0
    shown = capsys.readouterr().err.splitlines()
    assert "memory_per_rank:" in shown and any(line.startswith("  gradients: ") for line in shown)
    assert any("activations not included" in line for line in shown)
