"""What every token adapter must do, on tiny random models of each family."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import LoraOptions, load_policy
from pipelines.policy import Policy, Rollout
from pipelines.quiet import quiet
from pipelines.samplers import TokenSampler
from pipelines.seeds import row_seed
from pipelines.testing_tokens import tiny_emu3_directory, tiny_janus_directory
from pipelines.tokens import TokenPolicy

RECORD = frozenset({"log_prob"})
SEEDS = [row_seed(0, 0, row, 0) for row in range(4)]
ROWS = torch.arange(4)
STEPS = torch.zeros(4, dtype=torch.long)
SAMPLERS = {
    "plain": TokenSampler(),
    "guided": TokenSampler(guidance=5.0),
    "cold": TokenSampler(temperature=0.7),
    "cut": TokenSampler(guidance=3.0, temperature=0.7, top_k=6, top_p=0.9),
}


@dataclasses.dataclass
class Model:
    """A family with its directory and policies that no test changes."""

    kind: str
    path: Path
    policies: dict[str, TokenPolicy]
    prompts: list[Prompt]

    @property
    def policy(self) -> TokenPolicy:
        return self.policies["fp32"]

    def load(self, *args: Any, **options: Any) -> Any:
        return load_policy(self.path, *args, device="cpu", **options)

    def plain(self, directory: Path | None = None) -> Any:
        with quiet():
            kind = getattr(transformers, f"{self.kind}ForConditionalGeneration")
            return kind.from_pretrained(directory or self.path, dtype=torch.float32)


BUILDERS: dict[str, Callable[[Path], Path]] = {"Janus": tiny_janus_directory, "Emu3": tiny_emu3_directory}


@pytest.fixture(scope="module", params=list(BUILDERS))
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, prompts: list[Prompt]) -> Model:
    path = BUILDERS[request.param](tmp_path_factory.mktemp(request.param) / "model")
    policies = {
        precision: load_policy(path, precision=precision, device="cpu") for precision in ("fp32", "bf16", "fp16")
    }
    if request.param == "Emu3":
        prompts = [dataclasses.replace(prompt, negative="a black square") for prompt in prompts]
    return Model(request.param, path, policies, prompts)


def roll_out(policy: TokenPolicy, prompts: list[Prompt], sampler: TokenSampler, batch: int | None = None) -> Rollout:
    return policy.sample(prompts, SEEDS, sampler, RECORD, batch=batch)


def replay(policy: TokenPolicy, rollout: Rollout, *need: str) -> Any:
    wanted = frozenset(need or ("log_prob",))
    return policy.log_prob(rollout, ROWS[: len(rollout)], STEPS[: len(rollout)], wanted)


def move(policy: TokenPolicy) -> None:
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for _, p in policy.trainable_parameters():
            p.add_(0.05 * torch.randn(p.shape, generator=generator))


def difference(one: torch.Tensor | None, two: torch.Tensor | None) -> float:
    assert one is not None and two is not None
    return (one - two).abs().max().item()


@pytest.mark.parametrize("name", SAMPLERS)
def test_tf09_ratio_is_one_on_the_first_pass(model, name):
    rollout = roll_out(model.policy, model.prompts, SAMPLERS[name])
    first, second = replay(model.policy, rollout), replay(model.policy, rollout)
    assert torch.equal(first.log_prob, second.log_prob) and first.log_prob.requires_grad
    assert difference(first.log_prob, rollout.log_probs) <= 2e-5
    assert first.value is None and first.logits is None
    free = rollout.mask
    assert free is not None and rollout.log_probs is not None
    assert (rollout.log_probs[free] < 0).any() and (rollout.log_probs[~free] == 0).all()


def test_what_a_rollout_holds(model):
    rollout = roll_out(model.policy, model.prompts, SAMPLERS["guided"])
    length = len(model.policy.adapter.layout)
    assert rollout.samples.shape == (4, length) and rollout.samples.dtype == torch.int64
    assert rollout.actions is not None and torch.equal(rollout.actions, rollout.samples)
    assert rollout.steps.tolist() == list(range(length)) and rollout.sigmas.numel() == 0
    assert rollout.states is None and rollout.means is None
    assert rollout.images.shape == (4, *model.policy.adapter.size, 3) and rollout.images.std() > 10
    assert len({tuple(row) for row in rollout.samples.tolist()}) == 4
    assert model.policy.sample(model.prompts, SEEDS).log_probs is None
    assert isinstance(model.policy, Policy) and model.policy.kind == "tokens"


@pytest.mark.parametrize("scale", [1.0, 2.0, 5.0])
def test_tf10_the_mismatch_of_conditional_log_probs_shows(model, scale):
    mode = "cond_is" if scale > 1 else "combined"
    sampler = TokenSampler(guidance=scale, guidance_mode=mode)
    rollout = roll_out(model.policy, model.prompts, sampler)
    out = replay(model.policy, rollout, "log_prob", "logits")
    guided = replay(model.policy, dataclasses.replace(rollout, sampler=TokenSampler(guidance=scale)), "logits")
    # KL(sampled || trained) at each free position, from both whole distributions
    sampled, trained = guided.logits.log_softmax(-1), out.logits.log_softmax(-1)
    kl = torch.where(sampled > -torch.inf, sampled.exp() * (sampled - trained), 0.0).sum(-1)[rollout.mask]
    assert (kl.max() < 1e-9) if scale == 1 else (kl.mean() > 0.05)
    assert kl.min() > -1e-6
    ratio = difference(out.log_prob, rollout.log_probs)
    assert ratio <= 2e-5 if scale == 1 else ratio > 0.1
    # without guidance and temperature the conditional log-prob is that of the plain sampler
    plain = replay(model.policy, dataclasses.replace(rollout, sampler=TokenSampler()))
    assert torch.equal(out.log_prob, plain.log_prob)


def test_cond_is_trains_without_cuts(model):
    sampler = TokenSampler(guidance=3.0, guidance_mode="cond_is", temperature=0.7, top_k=2)
    rollout = roll_out(model.policy, model.prompts, sampler)
    uncut = dataclasses.replace(rollout, sampler=TokenSampler(temperature=0.7))
    assert torch.equal(replay(model.policy, rollout).log_prob, replay(model.policy, uncut).log_prob)


def test_logits_are_those_of_the_log_prob(model):
    rollout = roll_out(model.policy, model.prompts, SAMPLERS["guided"])
    out = replay(model.policy, rollout, "log_prob", "logits")
    assert out.logits.shape == (4, len(rollout.steps), model.policy.adapter.vocabulary)
    chosen = out.logits.log_softmax(-1).gather(-1, rollout.samples.unsqueeze(-1)).squeeze(-1)
    free = rollout.mask
    torch.testing.assert_close(chosen[free], out.log_prob[free])


def test_seeds_alone_decide_the_tokens(model):
    whole = roll_out(model.policy, model.prompts, SAMPLERS["guided"])
    split = roll_out(model.policy, model.prompts, SAMPLERS["guided"], batch=3)
    assert torch.equal(split.samples, whole.samples)
    turned = model.policy.sample(model.prompts[::-1], SEEDS[::-1], SAMPLERS["guided"])
    assert torch.equal(turned.samples.flip(0), whole.samples)
    other = [dataclasses.replace(seed, path=seed.path + 1) for seed in SEEDS]
    assert not torch.equal(model.policy.sample(model.prompts, other, SAMPLERS["guided"]).samples, whole.samples)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_half_precision_replays_to_rounding(model, precision):
    policy = model.policies[precision]
    rollout = roll_out(policy, model.prompts, SAMPLERS["plain"])
    out = replay(policy, rollout)
    assert out.log_prob.dtype == torch.float32 and rollout.log_probs.dtype == torch.float32
    assert torch.equal(out.log_prob, replay(policy, rollout).log_prob)
    assert (out.log_prob - rollout.log_probs).abs().mean() < 0.05
    assert 0 < (out.log_prob - replay(model.policy, rollout).log_prob).abs().mean() < 0.2


def test_the_unconditional_branch_has_gradient(model):
    policy = model.load()
    rollout = roll_out(policy, model.prompts, SAMPLERS["guided"])
    shown = {}

    def remember(_module, inputs, output):
        output.retain_grad()
        shown["ids"], shown["embeds"] = inputs[0], output

    handle = policy.adapter.text_model.embed_tokens.register_forward_hook(remember)
    for name in ("log_prob", "logits"):
        # of Emu3 the image tokens, which are embedded first, go through the same table
        replay(policy, rollout, name).__dict__[name].clamp_min(-100).sum().backward()
        grad = shown["embeds"].grad
        assert grad.shape[0] == 8 and (grad[:4].abs().sum((1, 2)) > 0).all() and (grad[4:].abs().sum((1, 2)) > 0).all()
    handle.remove()


def test_an_update_raises_the_log_prob_of_what_it_rewards(model):
    policy = model.load()
    rollout = roll_out(policy, model.prompts, SAMPLERS["guided"])
    before = replay(policy, rollout).log_prob.detach()
    optimizer = torch.optim.SGD([p for _, p in policy.trainable_parameters()], lr=1e-6)
    (-replay(policy, rollout).log_prob).sum().backward()
    assert all(p.grad is not None for _, p in policy.trainable_parameters())
    optimizer.step()
    after = replay(policy, rollout).log_prob
    assert torch.isfinite(after).all() and after.sum() > before.sum()


def test_gradient_checkpointing_gives_the_same_gradient(model):
    grads = []
    for on in (False, True):
        policy = model.load(gradient_checkpointing=on)
        rollout = roll_out(policy, model.prompts, SAMPLERS["guided"])
        replay(policy, rollout).log_prob.sum().backward()
        grads.append([p.grad for _, p in policy.trainable_parameters()])
        assert not any(part.training for part in policy.module.modules())
    for one, two in zip(*grads, strict=True):
        torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-4)


def test_full_weights_are_saved_for_plain_transformers(model, tmp_path):
    policy = model.load()
    move(policy)
    expected = roll_out(policy, model.prompts, SAMPLERS["guided"])
    policy.save_pretrained(tmp_path)
    again = load_policy(tmp_path, device="cpu")
    assert again.deployed == policy.deployed
    assert torch.equal(roll_out(again, model.prompts, SAMPLERS["guided"]).samples, expected.samples)
    state, own = model.plain(tmp_path).state_dict(), policy.adapter.model.state_dict()
    assert state.keys() == own.keys() and all(torch.equal(state[k], own[k]) for k in own)


def test_lora_is_saved_for_plain_transformers_and_peft(model, tmp_path):
    from peft import PeftModel

    policy = model.load("lora", LoraOptions(rank=2, alpha=4.0))
    names = [name for name, _ in policy.trainable_parameters()]
    assert names and all("lora_" in name and "vision" not in name for name in names)
    before = roll_out(model.policy, model.prompts, SAMPLERS["guided"])
    assert torch.equal(roll_out(policy, model.prompts, SAMPLERS["guided"]).samples, before.samples)
    move(policy)
    expected = replay(policy, before).log_prob.detach()
    assert difference(expected, before.log_probs) > 1e-3
    with policy.weights("reference"):
        assert difference(replay(policy, before).log_prob, before.log_probs) <= 2e-5
    policy.save_pretrained(tmp_path)
    for load in (
        lambda plain: plain.load_adapter(str(tmp_path)),
        lambda plain: PeftModel.from_pretrained(plain, str(tmp_path)),
    ):
        fresh = model.load(None)
        with torch.random.fork_rng():
            load(fresh.adapter.model)
        assert difference(replay(fresh, before).log_prob, expected) <= 1e-5


def test_tf24_lora_targets_that_match_nothing_are_errors(model):
    with pytest.raises(InputError, match=r"'to_q' matches no linear layer; there are .*q_proj"):
        model.load("lora", LoraOptions(targets=("to_q",)))
    ends = {"Janus": ("proj_out",), "Emu3": ("gate_proj",)}[model.kind]
    names = [name for name, _ in model.load("lora", LoraOptions(targets=ends)).trainable_parameters()]
    assert names and all(f"{ends[0]}.lora_" in name for name in names)


@pytest.mark.parametrize("tune", ["full", "lora"])
def test_state_dict_resumes_bitwise(model, tune, tmp_path):
    options = {"ema": True, "old": True, "reference": tune == "full", "value_head": True}
    one, two = model.load(tune, **options), model.load(tune, **options)
    move(one)
    one.update_ema(0.5)
    one.version = 3
    two.load_state_dict({name: tensor.clone() for name, tensor in one.state_dict().items()})
    assert two.version == 3 and two.state_dict().keys() == one.state_dict().keys()
    for name in ("old", "ema"):
        with one.weights(name), two.weights(name):
            first, second = (roll_out(p, model.prompts, SAMPLERS["guided"]) for p in (one, two))
        assert torch.equal(first.log_probs, second.log_probs)
    with pytest.raises(InputError, match="another set-up"):
        model.load(tune).load_state_dict(one.state_dict())


def test_a_value_head_reads_what_is_expected_before_each_token(model, tmp_path):
    policy = model.load(value_head=True)
    assert policy.provides == {"log_prob", "logits", "value"}
    rollout = roll_out(policy, model.prompts, SAMPLERS["guided"])
    out = replay(policy, rollout, "log_prob", "value")
    assert out.value.shape == rollout.samples.shape and (out.value == 0).all()
    move(policy)
    value = replay(policy, rollout, "value").value
    # the value at t is known before the token at t: another last token changes nothing
    last = rollout.samples.clone()
    last[:, -1] = 0
    same = replay(policy, dataclasses.replace(rollout, samples=last), "value").value
    assert torch.equal(same, value)
    first = rollout.samples.clone()
    first[:, 0] = first[:, 0].flip(0)
    other = replay(policy, dataclasses.replace(rollout, samples=first), "value").value
    assert difference(other[:, 0], value[:, 0]) <= 1e-6 < difference(other[:, 1:], value[:, 1:])
    value.sum().backward()
    head = dict(policy.trainable_parameters())["value_head.weight"]
    assert head.grad is not None and head.grad.abs().max() > 0
    # asked for the log-prob alone, every parameter has a gradient all the same: DDP waits for it
    policy.module.zero_grad()
    replay(policy, rollout).log_prob.sum().backward()
    assert head.grad is not None and (head.grad == 0).all()
    policy.save_pretrained(tmp_path)
    again = load_policy(tmp_path, value_head=True, device="cpu")
    assert torch.equal(replay(again, rollout, "value").value, value)
    assert load_policy(tmp_path, device="cpu").provides == {"log_prob", "logits"}


def test_samples_from_outside_are_adopted(model):
    rollout = roll_out(model.policy, model.prompts, SAMPLERS["guided"])
    adopted = model.policy.adopt(model.prompts, rollout.samples)
    assert np.array_equal(adopted.images, rollout.images)
    assert adopted.seeds is None and adopted.log_probs is None and torch.equal(adopted.mask, rollout.mask)
    assert adopted.sampler == model.policy.deployed
    assert replay(model.policy, adopted).log_prob.shape == rollout.samples.shape
    encoded = model.policy.adopt(model.prompts, rollout.images)
    assert encoded.samples.shape == rollout.samples.shape and encoded.samples.dtype == torch.int64
    # tokens of pictures obey the layout as well
    model.policy.adopt(model.prompts, encoded.samples)
    wrong = rollout.samples.clone()
    wrong[2, 1] = model.policy.adapter.vocabulary
    with pytest.raises(InputError, match=f"row 2: token {model.policy.adapter.vocabulary} cannot be at position 1"):
        model.policy.adopt(model.prompts, wrong)
    with pytest.raises(InputError, match=r"images are 4 x 4 pixels"):
        model.policy.adopt(model.prompts, np.zeros((4, 4, 4, 3), np.uint8))
    with pytest.raises(InputError, match="tokens must be integers"):
        model.policy.adopt(model.prompts, rollout.samples.float())


def test_wrong_calls_are_errors(model):
    policy = model.policy
    with pytest.raises(InputError, match="cannot record mean, states"):
        policy.sample(model.prompts, SEEDS, None, frozenset({"states", "mean", "log_prob"}))
    rollout = roll_out(policy, model.prompts, SAMPLERS["plain"])
    with pytest.raises(InputError, match="gives no value, velocity: known are log_prob, logits"):
        replay(policy, rollout, "velocity", "value")
    with pytest.raises(InputError, match="no velocity"):
        policy.predict(rollout, ROWS, rollout.samples, torch.zeros(4))
    with pytest.raises(InputError, match="one seed per prompt row"):
        policy.sample(model.prompts, SEEDS[:1])
    long = Prompt(id="long", text="a red circle " * 20)
    with pytest.raises(InputError, match=r"prompt 'long' has \d+ tokens, the model has room for \d+"):
        policy.check_prompts([long])
    with pytest.raises(InputError, match="'foreign' has characters that the tokenizer cannot read"):
        policy.check_prompts([Prompt(id="foreign", text="ein grüner Kreis")])
    with pytest.raises(InputError, match="'edit' has 1 source images, this model reads none"):
        policy.check_prompts([Prompt(id="edit", text="a red circle", sources=(np.zeros((8, 8, 3), np.uint8),))])
