import dataclasses
import json

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from safetensors import safe_open
from safetensors.torch import save_file

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import windows
from pipelines.policy import Rollout, batches, distinct
from pipelines.rollout_io import load_rollout, save_rollout
from pipelines.samplers import Sampler, Window
from pipelines.seeds import row_seed

SDE = Sampler(steps=4, noise="sde", max_sequence_length=0)
EVERYTHING = frozenset({"states", "log_prob", "mean"})


def draw(policy, prompts, sampler=SDE, record=EVERYTHING, step=0, rows=4):
    chosen = [prompts[i // 2] for i in range(rows)]
    return policy.sample(chosen, [row_seed(0, step, i // 2, i % 2) for i in range(rows)], sampler, record)


def test_tf30_same_noise_with_deterministic_steps_is_refused():
    for fields in ({"noise": "ode"}, {"noise": "sde", "level": 0.0}):
        with pytest.raises(ValidationError, match="same_noise"):
            Sampler(same_noise=True, **fields)
    assert Sampler(same_noise=True, noise="sde").same_noise


@pytest.mark.parametrize(("fields", "words"), [
    ({"steps": 0}, "steps"), ({"guidance": 0.5}, "guidance"),
    ({"noise": "cps", "level": 1.5}, "cps takes a level"),
    ({"noise": "sde", "log_prob": "cps"}, "belongs to noise 'cps'"), ({"stepz": 3}, "stepz"),
    ({"shift": 0}, "shift"), ({"shift_terminal": 0.02, "steps": 1}, "2 or more steps"),
    ({"window": {"size": -1}}, "size"),
])  # fmt: skip
def test_sampler_refuses_wrong_fields(fields, words):
    with pytest.raises(ValidationError, match=words):
        Sampler(**fields)


def test_distinct_keeps_the_order_of_appearance():
    a, b = Prompt(id="a", text="x"), Prompt(id="b", text="x")
    unique, index = distinct([b, a, b, Prompt(id="a", text="x")])
    assert unique == [b, a] and index.tolist() == [0, 1, 0, 1]


def test_batches_cover_everything():
    assert [(s.start, s.stop) for s in batches(5, 2)] == [(0, 2), (2, 4), (4, 5)]
    assert [(s.start, s.stop) for s in batches(5, None)] == [(0, 5)]


def test_rollout_shapes_and_ids(policy, prompts):
    rollout = draw(policy, prompts)
    assert len(rollout) == 4 and rollout.prompts == prompts[:2]
    assert rollout.prompt_index.tolist() == rollout.prompt_rows.tolist() == [0, 0, 1, 1]
    assert rollout.sample_index.tolist() == [0, 1, 0, 1] and len(set(rollout.sample_ids)) == 4
    assert rollout.steps.tolist() == [0, 1, 2] and rollout.sigmas.tolist() == [1, 0.75, 0.5, 0.25, 0]
    assert rollout.images.shape == (4, 16, 16, 3) and rollout.images.dtype == np.uint8
    for name in ("states", "actions", "means"):
        tensor = getattr(rollout, name)
        assert tensor.shape == (4, 3, 4, 8, 8) and tensor.dtype == torch.float32
    assert rollout.log_probs.shape == rollout.mask.shape == (4, 3) and bool(rollout.mask.all())
    assert rollout.sampler.max_sequence_length == 0 and rollout.sampler.height == 16
    # the states chain: the action of a step is the state of the next, and the last step leads to the sample
    assert torch.equal(rollout.actions[:, :-1], rollout.states[:, 1:])


def test_only_what_was_asked_for_is_recorded(policy, prompts):
    rollout = draw(policy, prompts, record=frozenset({"log_prob"}))
    assert rollout.states is None and rollout.means is None and rollout.log_probs is not None
    bare = draw(policy, prompts, record=frozenset())
    assert bare.log_probs is None and torch.equal(bare.samples, rollout.samples)


def test_select_and_merge_are_inverse(policy, prompts):
    rollout = draw(policy, prompts)
    again = Rollout.merge([rollout.select([2, 3]), rollout.select(torch.tensor([0, 1]))])
    back = again.select([2, 3, 0, 1])
    for field in dataclasses.fields(Rollout):
        one, two = getattr(rollout, field.name), getattr(back, field.name)
        same = np.array_equal(one, two) if isinstance(one, np.ndarray) else (
            torch.equal(one, two) if isinstance(one, torch.Tensor) else one == two
        )  # fmt: skip
        assert same, field.name


def test_merge_joins_the_prompts_of_its_parts(policy, prompts):
    first, second = draw(policy, prompts, rows=4), draw(policy, prompts[1:], rows=4, step=1)
    merged = Rollout.merge([first, second])
    assert merged.prompts == prompts[:3] and merged.prompt_index.tolist() == [0, 0, 1, 1, 1, 1, 2, 2]
    shown = [merged.prompts[i] for i in merged.prompt_index.tolist()]
    assert shown == [prompts[i] for i in (0, 0, 1, 1, 1, 1, 2, 2)]


def test_rollouts_that_differ_cannot_be_merged(policy, prompts):
    rollout = draw(policy, prompts)
    with pytest.raises(InputError, match="sampler"):
        Rollout.merge([rollout, draw(policy, prompts, SDE.model_copy(update={"level": 0.5}))])
    with pytest.raises(InputError, match="states"):
        Rollout.merge([rollout, draw(policy, prompts, record=frozenset({"log_prob", "mean"}))])
    with pytest.raises(InputError, match="at least one"):
        Rollout.merge([])


def test_a_saved_rollout_comes_back_bitwise(policy, prompts, tmp_path):
    rollout = draw(policy, prompts, SDE.model_copy(update={"window": Window(size=2)}))
    save_rollout(rollout, tmp_path / "r.safetensors")
    back = load_rollout(tmp_path / "r.safetensors")
    assert torch.equal(back.states, rollout.states) and np.array_equal(back.images, rollout.images)
    assert back.sampler == rollout.sampler and back.seeds == rollout.seeds and back.prompts == rollout.prompts
    with pytest.raises(InputError, match="does not exist"):
        load_rollout(tmp_path / "none.safetensors")


def test_a_rollout_written_before_a_field_was_added_still_loads(policy, prompts, tmp_path):
    rollout = draw(policy, prompts)
    save_rollout(rollout, tmp_path / "new.safetensors")
    with safe_open(tmp_path / "new.safetensors", framework="pt") as file:
        tensors: dict = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - not a dict
        head = json.loads(file.metadata()["rollout"])
    del head["sampler"]["shift_terminal"]
    save_file(tensors, tmp_path / "old.safetensors", metadata={"rollout": json.dumps(head)})
    back = load_rollout(tmp_path / "old.safetensors")
    assert back.sampler == rollout.sampler and torch.equal(back.sigmas, windows.levels(back.sampler))


@pytest.mark.parametrize(("record", "sampler", "words"), [
    ({"latents"}, SDE, "known are log_prob, mean, states"),
    ({"log_prob"}, SDE.model_copy(update={"noise": "ode"}), "no stochastic step"),
    ({"log_prob"}, SDE.model_copy(update={"level": 0.0}), "no stochastic step"),
    ({"log_prob"}, SDE.model_copy(update={"steps": 1}), "no stochastic step"),
    (set(), SDE.model_copy(update={"height": 18}), "multiples of 4"),
    (set(), SDE.model_copy(update={"height": 64, "width": 64}), "goes up to 16"),
])  # fmt: skip
def test_impossible_requests_are_errors(policy, prompts, record, sampler, words):
    with pytest.raises(InputError, match=words):
        draw(policy, prompts, sampler, frozenset(record))


def test_replay_says_what_is_missing(policy, prompts):
    one = torch.tensor([0])
    with pytest.raises(InputError, match="holds no states"):
        policy.log_prob(draw(policy, prompts, record=frozenset()), one, one)
    with pytest.raises(InputError, match="gives no logits, value"):
        policy.log_prob(draw(policy, prompts), one, one, frozenset({"value", "logits"}))
    with pytest.raises(InputError, match="one seed per prompt"):
        policy.sample(prompts, [row_seed(0, 0, 0, 0)], SDE)
