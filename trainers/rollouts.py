"""From prompts to what each sample deserves: sample, judge, gather, aggregate, select, advantages.

Only sampling and judging are spread over the ranks. Verdicts are small: they are gathered and sorted by
(prompt row,
sample), every rank computes the same rewards and advantages in numpy, and takes its own rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field

import numpy as np

from mmrubric import images, preference, selection
from mmrubric.advantage import Advantage
from mmrubric.aggregate import Aggregator, Context
from mmrubric.errors import RunError
from mmrubric.group import Group, PairVerdict
from mmrubric.prompt import Prompt
from mmrubric.rubric import Rubric
from mmrubric.scores import ScoreTable
from mmrubric.verdict import Verdict
from pipelines import seeds, windows
from pipelines.policy import Policy, Rollout
from pipelines.samplers import AnySampler
from trainers.asking import Answer, Asker, Comparisons, Matches, Scores
from trainers.config import RolloutSection
from trainers.distributed import Dist, Shard
from trainers.judge_worker import JudgeWorker


@dataclass(frozen=True)
class Judged:
    """One row as all ranks see it."""

    prompt_row: int
    sample: int
    sample_id: str
    image_hash: str
    """Content hash of what the judge saw."""
    verdicts: tuple[Verdict, ...] = ()
    compared: tuple[tuple[int, PairVerdict], ...] = ()
    """(sample number of b, verdict) of the pairs whose a is this sample, where the judge compares."""
    error: str = ""
    """Set when judging broke off on the row's rank; no verdicts then."""


@dataclass
class Sampled:
    """This rank's rows of a step, with the verdicts under way."""

    rollout: Rollout
    """[n] rows in the order of the shard, padding last."""
    shard: Shard
    pending: list[Scores | Comparisons] = field(default_factory=list)
    """Verdicts to come."""

    def cancel(self) -> None:
        """Give up the verdicts."""
        for asked in self.pending:
            asked.future.cancel()


@dataclass(frozen=True)
class Deserved:
    """What every sample of the step deserves, the same on all ranks."""

    groups: list[Group]
    """One per prompt row, all drawn samples."""
    advantage: np.ndarray
    """[P, drawn]."""
    weight: np.ndarray
    """[P, drawn]; 0 = not trained on: unknown, not selected, or without anything to say."""

    def of(self, shard: Shard) -> tuple[np.ndarray, np.ndarray]:
        """Advantages and weights of a rank's rows; padding has weight 0."""
        return (
            self.advantage[shard.prompt_rows, shard.samples],
            self.weight[shard.prompt_rows, shard.samples] * shard.weight,
        )


def draw(
    policy: Policy,
    prompts: Sequence[Prompt],
    rubrics: Sequence[Rubric],
    shard: Shard,
    worker: JudgeWorker,
    *,
    sampler: AnySampler,
    record: frozenset[str],
    run_seed: int,
    step: int,
    batch: int | None = None,
    weights: str | None = None,
    matches: Matches | None = None,
) -> Sampled:
    """Sample this rank's rows; each batch is judged in the background while the next one samples.

    Args:
        policy: samples.
        prompts: [P], of the whole step.
        rubrics: [P].
        shard: which (prompt row, sample) are this rank's.
        worker: judges.
        sampler: its window, if any, is resolved for this step.
        record: what the loss has to replay.
        run_seed, step: decide the noise, together with prompt row and sample; never the rank.
        batch: rows per model call.
        weights: named weights that sample; None = the trained ones.
        matches: which samples of a group are compared; None = each is scored.
    """
    settled = windows.at(sampler, run_seed, step)
    rows, numbers = shard.prompt_rows.tolist(), shard.samples.tolist()
    parts: list[Rollout] = []
    asker = Asker(worker, prompts, rubrics, shard, matches)
    with policy.weights(weights) if weights else nullcontext():
        for start in range(0, len(shard), batch or len(shard)):
            part = slice(start, start + (batch or len(shard)))
            keys = list(zip(rows[part], numbers[part], strict=True))
            rollout = policy.sample(
                [prompts[row] for row, _ in keys],
                [seeds.row_seed(run_seed, step, row, number, settled.same_noise) for row, number in keys],
                settled,
                record,
                prompt_rows=rows[part],
                sample_index=numbers[part],
            )
            asker.drawn(rollout)
            parts.append(rollout)
    return Sampled(Rollout.merge(parts), shard, asker.pending)


def gather(sampled: Sampled, dist: Dist, where: str) -> list[Judged]:
    """Wait for this rank's verdicts and bring all ranks' together, in canonical order. A collective.

    Raises:
        RunError: judging broke off on some rank (all ranks raise, so none waits for ever); it begins with `where`.
    """
    rollout = sampled.rollout
    answers = [Answer() for _ in range(len(rollout))]
    for asked in sampled.pending:
        asked.settle(answers)
    judged = [
        Judged(
            int(rollout.prompt_rows[position]),
            int(rollout.sample_index[position]),
            rollout.sample_ids[position],
            images.content_hash(rollout.images[position]),
            answers[position].verdicts,
            tuple((int(rollout.sample_index[other]), verdict) for other, verdict in answers[position].compared),
            answers[position].error,
        )
        for position in sampled.shard.real.tolist()
    ]
    everything = dist.gather_rows(judged, key=lambda row: (row.prompt_row, row.sample))
    broken = [row for row in everything if row.error]
    if broken:
        raise RunError(f"{where}: judging broke off on {len(broken)} of {len(everything)} images: {broken[0].error}")
    return everything


def tabulate(
    judged: Sequence[Judged], rubrics: Sequence[Rubric], *, permute: tuple[int, int] | None = None
) -> list[ScoreTable]:
    """One table per prompt row, its samples in order of their number.

    Args:
        judged: all rows of the step, in canonical order.
        rubrics: [P].
        permute: (run seed, step) of the control experiment, in which the verdicts of a group change places at
            random: the same rewards, none of them deserved.
    """
    tables = []
    for number, rubric in enumerate(rubrics):
        rows = [row for row in judged if row.prompt_row == number]
        table = ScoreTable.from_verdicts(rubric, [row.sample_id for row in rows], [row.verdicts for row in rows])
        if permute is not None:
            random = np.random.default_rng(seeds.derive("permute", *permute, number))
            table = ScoreTable(rubric, table.met[random.permutation(len(table))], table.sample_ids)
        tables.append(table)
    return tables


def reward(
    tables: Sequence[ScoreTable], prompts: Sequence[Prompt], aggregator: Aggregator, step: int, epoch: int
) -> list[Group]:
    """Tables of all ranks in canonical order to groups with rewards; a stateful aggregator sees them all
    first."""
    contexts = contexts_of(prompts, step, epoch)
    aggregator.observe(tables, contexts)
    return [
        Group(rewards=aggregator(table, ctx), table=table, key=group_key(step, row, ctx.prompt_id))
        for row, (table, ctx) in enumerate(zip(tables, contexts, strict=True))
    ]


def group_key(step: int, prompt_row: int, prompt_id: str) -> str:
    """The name of a group in the whole run."""
    return f"{step}/{prompt_row}/{prompt_id}"


def compared_groups(
    judged: Sequence[Judged], prompt_ids: Sequence[str], step: int, *, permute: tuple[int, int] | None = None
) -> list[Group]:
    """Groups of a judge that compares: pairs as it answered, and the share of comparisons won as the reward.

    Args:
        judged: all rows of the step, in canonical order.
        prompt_ids: [P].
        step: the step.
        permute: see `tabulate`.
    """
    groups = []
    for number, name in enumerate(prompt_ids):
        rows = [row for row in judged if row.prompt_row == number]
        place = np.arange(len(rows))
        if permute is not None:
            place = np.random.default_rng(seeds.derive("permute", *permute, number)).permutation(len(rows))
        pairs = tuple(
            (int(place[row.sample]), int(place[other]), verdict) for row in rows for other, verdict in row.compared
        )
        rewards = preference.win_rates(pairs, len(rows))
        groups.append(Group(rewards=rewards, pairs=pairs, key=group_key(step, number, name)))
    return groups


def contexts_of(prompts: Sequence[Prompt], step: int, epoch: int) -> list[Context]:
    """Where in the run the groups of a step come from."""
    return [Context(step=step, epoch=epoch, prompt_id=prompt.id) for prompt in prompts]


def deserve(
    groups: Sequence[Group],
    advantage: Advantage,
    options: RolloutSection,
    *,
    run_seed: int,
    tie_weight: float = 1.0,
    trained: np.ndarray | None = None,
) -> Deserved:
    """Advantages and weights of all samples, the same numbers on every rank.

    Args:
        groups: one per prompt row, with all drawn samples.
        advantage: what turns rewards or preferences into advantages.
        options: how many of the drawn samples are kept, and how.
        run_seed: seeds the random part of the selection.
        tie_weight: weight of a sample without anything to say; 0 where the loss would still pull on it (nft).
        trained: [P] bool, groups that are trained on; the others have weight 0 and are in no statistic. None = all.
    """
    chosen = [row for row in range(len(groups)) if trained is None or trained[row]]
    kept = [_kept(groups[row], options, run_seed) for row in chosen]
    size = groups[0].size
    values, weights = np.zeros((len(groups), size)), np.zeros((len(groups), size))
    over_all = options.stats_over == "all"
    results = []
    if chosen:
        results = advantage.compute(
            [groups[row] if over_all else groups[row].take(rows) for row, rows in zip(chosen, kept, strict=True)]
        )
    for row, rows, out in zip(chosen, kept, results, strict=True):
        values[row, rows] = out.advantage[rows] if over_all else out.advantage
        weights[row, rows] = out.weight[rows] if over_all else out.weight
    weights[(values == 0) & (weights > 0)] *= tie_weight
    return Deserved(list(groups), values, weights)


def _kept(group: Group, options: RolloutSection, run_seed: int) -> np.ndarray:
    """Rows that are trained on, always `group_size` of them; RubricRL, arXiv 2511.20651."""
    if options.oversample is None:
        return np.arange(group.size)
    chosen = selection.select(
        group.need("rewards", "selection"),
        options.group_size,
        options.best,
        f"{run_seed}/{group.key}",
        options.rescue_variance,
        worst=options.worst,
    ).rows
    # Where too few samples are known, unknown ones fill up: they have weight 0, and pairs need an even group.
    others = [row for row in range(group.size) if row not in chosen]
    return np.sort(np.concatenate([chosen, others[: options.group_size - len(chosen)]]).astype(np.intp))
