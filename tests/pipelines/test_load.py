import json

import pytest

from mmrubric.errors import InputError
from pipelines import LoraOptions, load_policy
from pipelines.policy import Policy


def index(path, content):
    path.mkdir()
    (path / "model_index.json").write_text(content)
    return path


def test_missing_directory(tmp_path):
    with pytest.raises(InputError, match=r"weights directory .*/none does not exist"):
        load_policy(tmp_path / "none")
    with pytest.raises(InputError, match="does not exist"):
        load_policy("./models/sd35")


def test_not_a_pipeline_directory(tmp_path):
    with pytest.raises(InputError, match=r"no model_index\.json"):
        load_policy(tmp_path)
    with pytest.raises(InputError, match="not valid JSON"):
        load_policy(index(tmp_path / "broken", "{"))
    with pytest.raises(InputError, match="names no pipeline class"):
        load_policy(index(tmp_path / "empty", "{}"))
    (tmp_path / "weights.safetensors").write_text("x")
    with pytest.raises(InputError, match="is a file"):
        load_policy(tmp_path / "weights.safetensors")


def test_unsupported_class_lists_what_is_supported(tmp_path):
    other = index(tmp_path / "other", json.dumps({"_class_name": "KandinskyPipeline"}))
    with pytest.raises(InputError, match="is a KandinskyPipeline: supported are StableDiffusion3Pipeline"):
        load_policy(other)


def test_deployed_sampler_is_read_and_checked(tiny, tmp_path):
    folder = tmp_path / "model"
    load_policy(tiny).save_pretrained(folder)
    (folder / "deployed.json").write_text(json.dumps({"steps": 12, "guidance": 2.5, "max_sequence_length": 0}))
    policy = load_policy(folder, tune=None)
    assert (policy.deployed.steps, policy.deployed.guidance, policy.deployed.max_sequence_length) == (
        12,
        2.5,
        0,
    )
    assert policy.deployed.height == policy.deployed.width == 16
    (folder / "deployed.json").write_text(json.dumps({"step": 12}))
    with pytest.raises(InputError, match=r"deployed\.json.*step"):
        load_policy(folder)


def test_without_deployed_json_the_scheduler_decides(policy):
    assert policy.deployed.shift == 3.0 and policy.deployed.schedule == "diffusers" and policy.deployed.steps == 28
    assert policy.deployed.max_sequence_length == 256


@pytest.mark.parametrize(("options", "words"), [
    ({"tune": "partial"}, "full, lora and None"),
    ({"precision": "fp8"}, "fp32, bf16, fp16"),
    ({"lora": LoraOptions()}, "tune='lora'"),
    ({"tune": None, "ema": True}, "trains nothing"),
    ({"batch": 0}, "at least 1"),
])  # fmt: skip
def test_wrong_options_are_errors(tiny, options, words):
    with pytest.raises(InputError, match=words):
        load_policy(tiny, **options)


def test_tf24_lora_targets_that_match_nothing_are_errors(tiny):
    with pytest.raises(InputError, match=r"'to_z' matches no linear layer; there are .*to_q"):
        load_policy(tiny, "lora", LoraOptions(targets=("to_q", "to_z")))
    with pytest.raises(InputError, match="empty"):
        load_policy(tiny, "lora", LoraOptions(targets=()))


def test_tf43_something_trains(tiny):
    for tune in ("full", "lora"):
        parameters = load_policy(tiny, tune).trainable_parameters()
        assert parameters and all(p.requires_grad for _, p in parameters)
    assert load_policy(tiny, None).trainable_parameters() == []


def test_it_is_a_policy(policy):
    assert isinstance(policy, Policy) and {"log_prob", "mean", "velocity"} <= policy.provides
