"""The settings of a training run: one typed class per concern, and every check that needs no weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from pydantic import ConfigDict, Field, model_validator

from mmrubric.config import Config
from pipelines.engine import EngineOptions
from pipelines.load import LoraOptions
from pipelines.samplers import AnySampler, Sampler
from trainers.guards import GuardConfig
from trainers.sharding import Shard


class Section(Config):
    """Base of all sections: frozen, unknown keys refused. The text under a field is its help."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class RunSection(Section):
    name: str = "run"
    """Directory name of the run below `output_dir`."""
    output_dir: str = "runs"
    """Where runs are written."""
    seed: int = 0
    """Decides prompts, initial noise, path noise, pairs and permutations."""
    steps: int = Field(default=50, ge=0)
    """Rollouts to train on; a fixed number, never a clock."""
    processes: int = Field(default=1, ge=1)
    """Ranks that must start. Fewer is an error, never a silent single process."""
    threads: int | None = Field(default=None, ge=1)
    """CPU threads of torch per process. null leaves torch's own choice; 1 per rank when ranks share cores."""
    save_every: int = Field(default=0, ge=0)
    """Steps between checkpoints; one more is written at the end. 0: only at the end."""
    keep: int = Field(default=2, ge=1)
    """Newest checkpoints that stay on the disk."""
    resume: str | None = None
    """null starts anew, 'auto' continues the newest checkpoint if there is one, else a path."""
    final_model: bool = True
    """Write the trained weights to `<run>/model`, loadable by plain diffusers, at the end."""
    strict: bool = False
    """Turn every warning of the guards into an error."""

    @property
    def directory(self) -> Path:
        """`output_dir/name`."""
        return Path(self.output_dir) / self.name


class ModelSection(Section, EngineOptions):
    path: str = "shapes"
    """Model directory or hub id; 'shapes' is the generator that ships with the package."""
    tune: Literal["full", "lora"] = "full"
    """All weights of the denoiser, or low-rank adapters."""
    lora: LoraOptions = LoraOptions()
    """Acts with tune=lora."""
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    """Autocast around the model call. Trainable weights and the step arithmetic are fp32 always."""
    device: str | None = None
    """null: the accelerator's device."""
    gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    shard: Shard | None = None
    """fsdp2: weights, gradients, optimizer and weight copies in 1/N on each of N ranks; zero3: the same by DeepSpeed;
    zero2: gradients and optimizer, by DeepSpeed; none: whole on each. null takes what `accelerate launch` was
    configured for."""

    @property
    def engine(self) -> EngineOptions:
        """The options that `load_policy` takes as one."""
        return EngineOptions.model_validate({name: getattr(self, name) for name in EngineOptions.model_fields})


class DataSection(Section):
    prompts: str = "shapes:train"
    """'shapes:train', 'shapes:heldout', or a .txt (one prompt a line) or .jsonl file of prompts."""
    limit: int | None = Field(default=None, ge=1)
    """Take only the first so many prompts."""
    prompts_per_step: int = Field(default=16, ge=1)
    """Groups per rollout, over all ranks."""
    shuffle: bool = True
    """A new order of the prompts in each epoch, from the run's seed."""


class RubricSection(Section):
    generator: str = "shapes"
    """Name in mmrubric.generators."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the generator."""
    file: str | None = None
    """Rubrics written before (.jsonl), by prompt; prompts without one are an error. Then the generator is
    not used."""


class JudgeSection(Section):
    name: str = "shapes"
    """Name in the judges registry."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the judge."""
    compare: bool = False
    """In training: the judge compares the samples of a prompt in pairs (vlm and local with mode joint_rank in one call,
    others by their scores) and scores none alone. A sample's reward is the share of its comparisons that it wins; rpo
    takes the verdicts as they are. Which pairs: advantage.options.pairing of rpo, else all."""
    store: str | None = None
    """SQLite file of verdicts; a picture judged before is not judged again."""
    price_per_call: float | None = Field(default=None, ge=0)
    """Money for one judged picture, all its criteria, or for one comparison in all its orders; acts in the estimate of
    --dry-run. null: unknown."""
    max_failure_share: float = Field(default=0.2, ge=0, le=1)
    """The run stops when more of a step's verdicts are judge failures, after retries."""


class RolloutSection(Section):
    group_size: int = Field(default=2, ge=1)
    """Samples per prompt that are trained on."""
    oversample: int | None = Field(default=None, ge=2)
    """Samples drawn per prompt, of which `group_size` are kept (RubricRL). null: group_size."""
    best: int = Field(default=0, ge=0)
    """Of the kept samples, how many are the best."""
    worst: int = Field(default=0, ge=0)
    """Of the kept samples, how many are the worst; best + worst + random = group_size."""
    rescue_variance: bool = True
    """With oversampling: if the kept samples are all alike and the drawn ones are not, keep the worst as
    well."""
    stats_over: Literal["selected", "all"] = "selected"
    """With oversampling: whose mean and deviation the advantages use."""
    batch_size: int | None = Field(default=None, ge=1)
    """Rows sampled at once on a rank. null: all of them."""
    overlap: bool = True
    """Judge one batch while the next one samples."""
    late: bool = False
    """Judge one step while the next one samples: samples are one update older than the weights that they train, which
    importance weights correct (not with nft, see `importance_cap`). Takes a copy of the trained weights of memory, and
    a resumed run judges the samples that were under way again."""
    importance_cap: float = Field(default=3.0, gt=0)
    """Largest weight of an item (sample and step, or token) by the ratio of the policy before the update to what
    sampled it, where they differ: min(exp(log p_before - log p_sampled), cap), without gradient (decoupled PPO). As
    everywhere, log-probs of flow models are means over latent dimensions, so the ratio is per dimension."""
    sampler: AnySampler = Sampler()
    """Steps, guidance, shift, noise and window of the rollout, or with `kind: tokens` guidance, temperature and cuts;
    saved with every trajectory."""

    @property
    def drawn(self) -> int:
        """Samples drawn per prompt."""
        return self.oversample or self.group_size


class RewardSection(Section):
    aggregate: str = "mean"
    """Name in mmrubric.aggregate."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the aggregator: dependencies, gates, min_coverage and its own."""


class FilterSection(Section):
    use: dict[str, dict[str, Any]] = Field(default_factory=dict)
    """Filters by name in mmrubric.filters, each with its options: saturated (threshold, patience, cooldown) bans
    prompts that the policy has mastered, low_std (min_std) leaves groups whose rewards hardly differ out of the
    update."""


class AdvantageSection(Section):
    name: str = "rpo"
    """Name in mmrubric.advantage: 'grpo', 'grpo_by_category', 'rpo', and 'reward' for loss.name=ppo."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the advantage. grpo, grpo_by_category: scale, ddof, eps, clamp, weights, ...; rpo: win, loss (+1 and
    -0.1; +1 and -1 with nft), pairing, margin, dependencies, ..."""
    permute_within_groups: bool = False
    """Control experiment: verdicts change places at random within each group, so nothing can be learned."""


class LossSection(Section):
    name: str = "nft"
    """Name in trainers.losses: 'clip', 'guard', 'nft', and for token models 'clip', 'ppo'."""
    options: dict[str, Any] = Field(default_factory=dict)
    """Options of the loss. clip, guard: clip, clip_high, delta, advantage_clip; nft: beta, advantage_max (1
    with rpo)."""
    kl: Literal["mu_no_dt", "gaussian", "velocity", "sample", "k3"] | None = None
    """Which KL (field names); null takes velocity with nft, k3 with token models and mu_no_dt otherwise."""
    kl_coefficient: float = Field(default=0.0, ge=0)
    """Weight of the KL to the reference; 0 does not run the reference at all."""
    levels: int = Field(default=4, ge=1)
    """nft: noise levels per image, drawn from the rollout's own grid."""
    timestep_fraction: float = Field(default=1.0, gt=0, le=1)
    """Share of its recorded steps that each sample of a flow model is trained on: a random choice of its own, rounded
    down, at least 1. The loss is the mean over those, so that a share is no smaller rate. Not for nft: see `levels`."""
    old_schedule: Literal["type0", "type1", "type2", "constant"] = "type1"
    """nft: decay d of v_old <- d v_old + (1 - d) v: 0; min(0.001 step, 0.5); 0 up to step 75, then rising; or
    `old_decay`."""
    old_decay: float | None = Field(default=None, ge=0, lt=1)
    """nft: d of old_schedule=constant."""
    sample_with: Literal["old", "trained"] = "old"
    """nft: the weights that draw the training samples (the paper: the old policy)."""
    old_log_prob: Literal["auto", "recorded", "recompute"] = "auto"
    """Log-probs of the rollout, or of the weights before the update; auto takes the latter where they may differ: for
    token models, for late judging, and when the update's batch size is not the rollout's, as kernels depend on it."""
    skip_zero: bool = True
    """Leave out forwards whose loss and KL gradient are exactly 0. Changes no number, only the time."""


class OptimSection(Section):
    lr: float = Field(default=1e-4, gt=0)
    """Learning rate of AdamW."""
    warmup: int = Field(default=0, ge=0)
    """Optimizer steps over which the rate rises from 0."""
    decay: float = Field(default=0.0, ge=0, le=1)
    """Last share of `run.steps` over which the rate falls linearly towards 0; a resumed run must then keep
    `run.steps`. 0: it stays."""
    betas: tuple[float, float] = (0.9, 0.999)
    """AdamW."""
    eps: float = Field(default=1e-8, gt=0)
    """AdamW."""
    weight_decay: float = Field(default=1e-4, ge=0)
    """AdamW."""
    grad_clip: float | None = Field(default=1.0, gt=0)
    """Largest gradient norm; null does not clip."""
    batch_size: int = Field(default=8, ge=1)
    """(row, step) items per forward and backward on a rank. Gradients accumulate to one optimizer step."""
    updates_per_rollout: int = Field(default=1, ge=1)
    """Optimizer steps that share out a rollout's groups. With 1 (and epochs 1) the ratio is always 1."""
    epochs: int = Field(default=1, ge=1)
    """Passes over each rollout."""


class EmaSection(Section):
    decay: float | None = Field(default=None, ge=0, lt=1)
    """Averaged weights: ema <- decay ema + (1 - decay) w. null keeps none."""
    every: int = Field(default=1, ge=1)
    """Rollouts between updates of the average."""


class EvalSection(Section):
    prompts: str = "shapes:heldout"
    """Held-out prompts, as data.prompts. Never used to choose a checkpoint."""
    limit: int | None = Field(default=64, ge=1)
    """Take only the first so many."""
    samples: int = Field(default=1, ge=1)
    """Pictures per prompt."""
    every: int = Field(default=0, ge=0)
    """Steps between evaluations; before the first and after the last step as well. 0: none."""
    batch_size: int = Field(default=32, ge=1)
    """Pictures sampled at once on a rank; its own setting, whatever the training uses."""
    seed: int = 0
    """Noise of the evaluation, a function of (seed, prompt id, sample)."""
    weights: Literal["raw", "ema"] | None = None
    """Which weights are evaluated; null takes the average where one is kept."""
    sampler: AnySampler | None = None
    """null: the model's deployed sampler."""
    judge: JudgeSection | None = None
    """null: the training judge, which needs allow_same_judge."""
    allow_same_judge: bool = False
    """Let the judge that trains evaluate. The report says so."""
    max_failure_share: float = Field(default=0.05, ge=0, le=1)
    """An evaluation with more judge failures is an error."""


class TrackingSection(Section):
    trackers: tuple[Literal["wandb", "tensorboard"], ...] = ()
    """Trackers besides metrics.jsonl, which is always written."""
    project: str = "mmrubric"
    """Project name of the trackers."""
    images_every: int = Field(default=0, ge=0)
    """Steps between saved picture grids; 0: none."""
    images: int = Field(default=16, ge=1)
    """Pictures in a grid."""
    progress: bool = True
    """Show the progress bar."""


class TrainConfig(Section):
    """Everything that a run is made of; `trainers.train --config FILE section.key=value`."""

    run: RunSection = RunSection()
    model: ModelSection = ModelSection()
    data: DataSection = DataSection()
    rubric: RubricSection = RubricSection()
    judge: JudgeSection = JudgeSection()
    rollout: RolloutSection = RolloutSection()
    reward: RewardSection = RewardSection()
    filter: FilterSection = FilterSection()
    advantage: AdvantageSection = AdvantageSection()
    loss: LossSection = LossSection()
    optim: OptimSection = OptimSection()
    ema: EmaSection = EmaSection()
    guards: GuardConfig = GuardConfig()
    eval: EvalSection = EvalSection()
    tracking: TrackingSection = TrackingSection()

    @model_validator(mode="after")
    def _fits_together(self) -> TrainConfig:
        from trainers.checks import check  # the checks need the class

        check(self)
        return self

    @property
    def kl_name(self) -> str:
        """The KL in use."""
        if self.loss.kl is None and self.rollout.sampler.kind == "tokens":
            return "k3"
        return self.loss.kl or ("velocity" if self.loss.name == "nft" else "mu_no_dt")
