"""What the sections of a configuration must agree on, found before any weights load."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from mmrubric import advantage, aggregate, generators, selection
from mmrubric.errors import InputError
from pipelines import windows
from trainers import losses
from trainers.losses import kl as kls
from trainers.losses import nft as nft_loss
from trainers.losses import schedule

if TYPE_CHECKING:
    from collections.abc import Callable

    from trainers.config import TrainConfig

logger = logging.getLogger(__name__)


def check(config: TrainConfig) -> None:
    """Raise InputError at the first contradiction; the message names the keys and a way out."""
    for part in (_names, _groups, _shares, _noise, _loss, _evaluation, _effects):
        part(config)
    for text in warnings(config):
        logger.warning(text)


def loss_of(config: TrainConfig) -> losses.Loss:
    """The loss with its options; RPO through nft takes advantage_max 1 unless told otherwise."""
    options = dict(config.loss.options)
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
        selection.check(drawn, size, config.rollout.best)


def _shares(config: TrainConfig) -> None:
    prompts, rows = config.data.prompts_per_step, config.data.prompts_per_step * config.rollout.drawn
    if rows < config.run.processes:
        raise InputError(
            f"run.processes={config.run.processes}, but a step has {rows} pictures "
            f"(data.prompts_per_step={prompts} x "
            f"{config.rollout.drawn} samples): use fewer processes or more prompts"
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
    if sampler.same_noise and not sampler.stochastic:
        raise InputError(
            "rollout.sampler: same_noise without step noise makes all samples of a prompt the same picture"
        )
    if sampler.window is not None:
        windows.window_start(sampler.window, sampler.steps, config.run.seed, 0)


def _loss(config: TrainConfig) -> None:
    loss, options = loss_of(config), config.loss
    loss.check_sampler(config.rollout.sampler)
    kl_of(config)
    if loss.kind == "forward":
        decay_of(config)
        if options.levels > config.rollout.sampler.steps:
            raise InputError(
                f"loss.levels={options.levels} is above "
                f"rollout.sampler.steps={config.rollout.sampler.steps}: "
                "the noise levels come from the rollout's own grid"
            )
    elif not windows.stochastic_steps(windows.at(config.rollout.sampler, config.run.seed, 0)):
        raise InputError(
            f"rollout.sampler.steps={config.rollout.sampler.steps} leaves no step to train: use at least 2"
        )


def _evaluation(config: TrainConfig) -> None:
    evaluation = config.eval
    if evaluation.every and evaluation.judge is None and not evaluation.allow_same_judge:
        raise InputError(
            "eval.judge: an evaluation needs another judge than the one that trains. Name one, "
            "or set eval.allow_same_judge=true (the report then says so)"
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
    unless(nft, "loss", "levels old_schedule old_decay sample_with", "loss.name=nft")
    unless(not nft, "loss", "old_log_prob", "loss.name=clip or guard")
    unless(config.model.tune == "lora", "model", "lora", "model.tune=lora")
    unless(
        config.rollout.oversample is not None,
        "rollout",
        "best rescue_variance stats_over",
        "rollout.oversample",
    )
    unless(config.ema.decay is not None, "ema", "every", "ema.decay")
    unless(config.rubric.file is None, "rubric", "options", "rubric.generator, without rubric.file")
    unless(config.tracking.images_every > 0, "tracking", "images", "tracking.images_every")
    if idle:
        raise InputError("; ".join(f"{key} is set but acts only with {needed}" for key, needed in idle))
