"""What the sections of a configuration must agree on, found before any weights load."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mmrubric import advantage, aggregate, filters, generators, selection
from mmrubric.errors import InputError
from pipelines import windows
from pipelines.samplers import TokenSampler
from trainers import losses
from trainers.losses import kl as kls
from trainers.losses import nft as nft_loss
from trainers.losses import schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainers.config import TrainConfig

logger = logging.getLogger(__name__)
TOKEN_CLIP = 0.2
"""Default clip of a token's ratio, which is no mean over latent dimensions. PPO, arXiv 1707.06347."""


def check(config: TrainConfig) -> None:
    """Raise InputError at the first contradiction; the message names the keys and a way out."""
    parts = (
        _names,
        _groups,
        _shares,
        _noise,
        _samples_differ,
        _loss,
        _late,
        _filters,
        _compares,
        _evaluation,
        _effects,
    )
    for part in parts:
        part(config)
    for text in warnings(config):
        logger.warning(text)


def loss_of(config: TrainConfig) -> losses.Loss:
    """The loss with its options; RPO through nft takes advantage_max 1 and token models clip at 0.2 unless told
    otherwise."""
    options = dict(config.loss.options)
    if config.loss.name == "clip" and config.rollout.sampler.kind == "tokens":
        options.setdefault("clip", TOKEN_CLIP)
    if config.loss.name == "nft" and config.advantage.name == "rpo":
        options.setdefault("advantage_max", nft_loss.RPO_ADVANTAGE_MAX)
    return losses.build(config.loss.name, **options)


def kl_of(config: TrainConfig) -> kls.KL:
    """The distance from the reference, with its coefficient."""
    return kls.build(config.kl_name, config.loss.kl_coefficient, loss_of(config))


def decay_of(config: TrainConfig) -> Callable[[int], float]:
    """Decay of the old policy by step."""
    return schedule.build(config.loss.old_schedule, config.loss.old_decay)


def advantage_options(config: TrainConfig) -> dict:
    """Options of the advantage; RPO through nft means +1 for the preferred and -1 for the other."""
    options = dict(config.advantage.options)
    if config.loss.name == "nft" and config.advantage.name == "rpo":
        options = {"win": nft_loss.RPO_WIN, "loss": nft_loss.RPO_LOSS} | options
    return options


def warnings(config: TrainConfig) -> list[str]:
    """What is allowed but rarely meant."""
    found = []
    if config.loss.name == "nft" and config.advantage.name == "rpo":
        options = advantage_options(config)
        found += nft_loss.rpo_warnings(options["win"], options["loss"], loss_of(config).options)
    if config.rollout.late and config.loss.name == "nft":
        found.append(
            "rollout.late with loss.name=nft: samples are one update older than the old policy of the loss, and "
            "nothing corrects for it (a forward loss has no log-probs); an old policy that moves slowly keeps the gap "
            "small"
        )
    return found


def _names(config: TrainConfig) -> None:
    if not config.rubric.file and config.rubric.generator not in generators.names():
        raise InputError(
            f"rubric.generator: unknown {config.rubric.generator!r}; known: {', '.join(generators.names())}"
        )
    aggregate.build(config.reward.aggregate, **config.reward.options)


def _groups(config: TrainConfig) -> None:
    size, drawn = config.rollout.group_size, config.rollout.oversample
    try:
        advantage.build(config.advantage.name, **advantage_options(config)).check_size(size)
    except InputError as error:
        raise InputError(f"advantage.name={config.advantage.name} with rollout.group_size={size}: {error}") from None
    if drawn is not None:
        if drawn <= size:
            raise InputError(f"rollout.oversample={drawn} must be above rollout.group_size={size}, or null")
        selection.check(drawn, size, config.rollout.best, config.rollout.worst)


def _shares(config: TrainConfig) -> None:
    prompts, rows = config.data.prompts_per_step, config.data.prompts_per_step * config.rollout.drawn
    if rows < config.run.processes:
        raise InputError(
            f"run.processes={config.run.processes}, but a step has {rows} pictures "
            f"(data.prompts_per_step={prompts} x "
            f"{config.rollout.drawn} samples): use fewer processes or more prompts"
        )
    if config.judge.compare and prompts < config.run.processes:
        raise InputError(
            f"run.processes={config.run.processes}, but a step has {prompts} prompts (data.prompts_per_step), whose "
            "samples stay on one rank with judge.compare=true: use fewer processes or more prompts"
        )
    if config.data.limit is not None and prompts > config.data.limit:
        raise InputError(f"data.prompts_per_step={prompts} is above data.limit={config.data.limit}")
    if config.optim.updates_per_rollout > prompts:
        raise InputError(
            f"optim.updates_per_rollout={config.optim.updates_per_rollout} is above "
            f"data.prompts_per_step={prompts}: "
            "each optimizer step takes whole groups; use optim.epochs to pass over them again"
        )


def _noise(config: TrainConfig) -> None:
    sampler = config.rollout.sampler
    if isinstance(sampler, TokenSampler):
        return
    if sampler.same_noise and not sampler.stochastic:
        raise InputError(
            "rollout.sampler: same_noise without step noise makes all samples of a prompt the same picture"
        )
    if sampler.window is not None:
        windows.window_start(sampler.window, sampler.steps, config.run.seed, 0)


def _samples_differ(config: TrainConfig) -> None:
    """A group, and a choice of its best and worst, needs samples that can differ."""
    sampler = config.rollout.sampler
    if isinstance(sampler, TokenSampler):
        if sampler.top_k == 1:
            raise InputError(
                "rollout.sampler.top_k=1 leaves one token to draw, so all samples of a prompt are the same picture: "
                "use 0 (all) or more tokens"
            )
    elif sampler.same_noise and not windows.stochastic_steps(windows.at(sampler, config.run.seed, 0)):
        raise InputError(
            f"rollout.sampler: same_noise with steps={sampler.steps} leaves no step that draws noise, so all samples "
            "of a prompt are the same picture: use at least 2 steps, or same_noise=false"
        )


def _late(config: TrainConfig) -> None:
    if not config.rollout.late:
        return
    if not config.rollout.overlap:
        raise InputError("rollout.late=true judges while the next step samples, but rollout.overlap=false forbids it")
    if getattr(config.rollout.sampler, "log_prob", "gaussian") == "cps" and loss_of(config).kind == "replay":
        raise InputError(
            "rollout.sampler.log_prob=cps with rollout.late=true: it is no log density, so that nothing could correct "
            "for the older weights; use gaussian"
        )
    if config.loss.old_log_prob == "recorded":
        raise InputError(
            "loss.old_log_prob=recorded with rollout.late=true: the recorded log-probs are of weights one update "
            "older, so that clipping would start off its centre; use auto, which corrects for them"
        )


def _filters(config: TrainConfig) -> None:
    try:
        filters.Chain(config.filter.use)
    except InputError as error:
        raise InputError(f"filter.use: {error}") from None
    if "low_std" in config.filter.use and config.rollout.drawn < 2:
        raise InputError("filter.use.low_std with one sample per prompt would drop every group: draw at least 2")


def _compares(config: TrainConfig) -> None:
    if config.eval.judge is not None and config.eval.judge.compare:
        raise InputError("eval.judge.compare=true: an evaluation scores each picture alone; leave it false")
    options = config.advantage.options if config.advantage.name == "rpo" else {}
    source = options.get("source", "auto")
    if not config.judge.compare:
        if source == "pairs":
            raise InputError("advantage.options.source=pairs: only judge.compare=true gives verdicts on pairs")
        return
    if source not in ("auto", "pairs"):
        raise InputError(f"advantage.options.source={source} with judge.compare=true: there are no scores, use auto")
    idle = [name for name in ("margin", "min_coverage", "dependencies", "gates", "binarize") if name in options]
    if idle:
        raise InputError(f"advantage.options.{idle[0]} acts on scores, and with judge.compare=true there are none")
    if config.rollout.group_size < 2:
        raise InputError("judge.compare=true with rollout.group_size=1: there is nothing to compare with")
    if config.rollout.oversample is not None:
        raise InputError("rollout.oversample chooses by scores, and with judge.compare=true there are none")
    if "saturated" in config.filter.use:
        raise InputError("filter.use.saturated looks at scores, and with judge.compare=true there are none")
    if config.advantage.name == "grpo_by_category":
        raise InputError("advantage.name=grpo_by_category takes scores, and with judge.compare=true there are none")
    if config.advantage.name == "reward":
        raise InputError("advantage.name=reward with judge.compare=true: a share of won comparisons has no value")
    if config.eval.every and config.eval.judge is None:
        raise InputError("eval.judge: the judge of judge.compare=true scores no picture alone; name one that does")


def _loss(config: TrainConfig) -> None:
    loss, options, sampler = loss_of(config), config.loss, config.rollout.sampler
    loss.check_sampler(sampler)
    kl = kl_of(config)
    fitting = losses.TOKEN_OUTPUTS if isinstance(sampler, TokenSampler) else losses.FLOW_OUTPUTS
    if kl.active and (not kl.outputs <= fitting or (kl.name == "k3") != isinstance(sampler, TokenSampler)):
        raise InputError(
            f"loss.kl={kl.name} does not fit rollout.sampler.kind={sampler.kind}: token models take k3, flow models "
            "the others"
        )
    if (loss.name == "ppo") != (config.advantage.name == "reward"):
        raise InputError(
            f"loss.name={loss.name} with advantage.name={config.advantage.name}: loss ppo and advantage reward belong "
            "together, for the value head is what the reward is compared with"
        )
    if isinstance(sampler, TokenSampler):
        if options.old_log_prob == "recorded" and (loss.name == "ppo" or sampler.guidance_mode == "cond_is"):
            raise InputError(
                f"loss.old_log_prob=recorded with loss {loss.name} and guidance_mode={sampler.guidance_mode}: the "
                "rollout does not hold what the update starts from; use auto"
            )
        return
    if getattr(loss.options, "ratio", "token") == "sequence":
        raise InputError("loss.options.ratio=sequence acts only on token models (rollout.sampler.kind=tokens)")
    if loss.kind == "forward":
        decay_of(config)
        if options.levels > sampler.steps:
            raise InputError(
                f"loss.levels={options.levels} is above "
                f"rollout.sampler.steps={sampler.steps}: "
                "the noise levels come from the rollout's own grid"
            )
        return
    steps = windows.stochastic_steps(windows.at(sampler, config.run.seed, 0))
    if not steps:
        raise InputError(f"rollout.sampler.steps={sampler.steps} leaves no step to train: use at least 2")
    if len(steps) == 1 and options.timestep_fraction < 1:
        raise InputError(
            f"loss.timestep_fraction={options.timestep_fraction}, but only one step of a sample is trained: use 1"
        )


def _evaluation(config: TrainConfig) -> None:
    evaluation = config.eval
    if evaluation.every and evaluation.judge is None and not evaluation.allow_same_judge:
        raise InputError(
            "eval.judge: an evaluation needs another judge than the one that trains. Name one, "
            "or set eval.allow_same_judge=true (the report then says so)"
        )
    if evaluation.sampler is not None and evaluation.sampler.kind != config.rollout.sampler.kind:
        raise InputError(
            f"eval.sampler.kind={evaluation.sampler.kind}, but rollout.sampler.kind={config.rollout.sampler.kind}: "
            "one model is of one sort"
        )
    if evaluation.weights == "ema" and config.ema.decay is None:
        raise InputError("eval.weights=ema, but ema.decay is null, so no average is kept: set ema.decay or weights=raw")


def _effects(config: TrainConfig) -> None:
    """A setting without effect is an error: every accepted option acts. Values equal to the default may be
    written."""
    idle: list[tuple[str, str]] = []

    def unless(acts: bool, section: str, keys: str, needed: str) -> None:
        values = getattr(config, section)
        usual = type(values)()
        changed = [key for key in keys.split() if getattr(values, key) != getattr(usual, key)]
        if not acts:
            idle.extend((f"{section}.{key}", needed) for key in changed)

    nft = config.loss.name == "nft"
    unless(config.loss.kl_coefficient > 0, "loss", "kl", "loss.kl_coefficient above 0")
    unless(nft, "loss", "levels old_schedule old_decay sample_with", "loss.name=nft")
    unless(not nft, "loss", "old_log_prob", "loss.name=clip, guard or ppo")
    replayed = not nft and config.rollout.sampler.kind == "flow"
    unless(replayed, "loss", "timestep_fraction", "loss.name=clip or guard, and a flow model")
    unless(config.model.tune == "lora", "model", "lora", "model.tune=lora")
    unless(
        config.rollout.oversample is not None,
        "rollout",
        "best worst rescue_variance stats_over",
        "rollout.oversample",
    )
    importance = not nft and (config.rollout.late or getattr(config.rollout.sampler, "guidance_mode", "") == "cond_is")
    unless(importance, "rollout", "importance_cap", "rollout.late or guidance_mode=cond_is, and a loss of log-probs")
    unless(not config.judge.compare, "reward", "aggregate options", "judge.compare=false")
    unless(not config.judge.compare, "guards", "reward_drop", "judge.compare=false")
    unless(config.ema.decay is not None, "ema", "every", "ema.decay")
    unless(config.rubric.file is None, "rubric", "options", "rubric.generator, without rubric.file")
    unless(config.tracking.images_every > 0, "tracking", "images", "tracking.images_every")
    if idle:
        raise InputError("; ".join(f"{key} is set but acts only with {needed}" for key, needed in idle))
