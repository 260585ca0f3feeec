"""Judging beside sampling: failures are masked and counted, never 0, and never left waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import judges
from mmrubric import advantage, aggregate
from mmrubric.errors import InputError, RunError
from mmrubric.judging import JudgeRequest, SyncMixin
from mmrubric.prompt import Prompt
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Failure, Verdict
from tests.trainers.toys import RedJudge
from trainers.config import RolloutSection
from trainers.judge_worker import JudgeWorker, check_failures, failure_share, refuse_same_judge
from trainers.rollouts import Judged, deserve, reward, tabulate

RUBRIC = Rubric(
    prompt="a cat",
    criteria=(Criterion(id="cat", text="There is a cat."), Criterion(id="hat", text="It has a hat.")),
)


def _judged(verdicts: list[Verdict], samples: int = 4) -> list[Judged]:
    rows = [[v for v in verdicts if v.sample_id == f"s{i}"] for i in range(samples)]
    return [Judged(0, i, f"s{i}", f"hash{i}", tuple(row)) for i, row in enumerate(rows)]


def test_tf35_judge_failure_is_masked_and_counted() -> None:
    # samples 0..2 meet 2, 1, 0 of 2 criteria: rewards 1, .5, 0; the judge failed on sample 3
    met = [(1.0, 1.0), (1.0, 0.0), (0.0, 0.0)]
    verdicts = [Verdict(f"s{i}", c, m) for i, row in enumerate(met) for c, m in zip(("cat", "hat"), row, strict=True)]
    verdicts += [Verdict("s3", c, None, failure=Failure.timeout) for c in ("cat", "hat")]
    assert check_failures(verdicts, 0.3, "step 0") == failure_share(verdicts) == 0.25
    tables = tabulate(_judged(verdicts), [RUBRIC])
    groups = reward(tables, [Prompt("p", "a cat")], aggregate.build("mean"), 0, 0)
    assert groups[0].rewards is not None and np.isnan(groups[0].rewards[3])
    out = deserve(groups, advantage.build("grpo"), RolloutSection(group_size=4), run_seed=0)
    # mean .5, std .5 over the three known: +1, 0, -1; with the failure as 0 they would be +1.31, .26, ...
    assert out.advantage[0] == pytest.approx([1.0, 0.0, -1.0, 0.0], abs=1e-5)
    assert out.weight.tolist() == [[1.0, 1.0, 1.0, 0.0]]


def test_too_many_failures_stop_the_run_with_their_kinds() -> None:
    verdicts = [Verdict("a", "1", 1.0), Verdict("a", "2", None, failure=Failure.timeout)]
    verdicts += [Verdict("b", c, None, failure=Failure.refused) for c in ("1", "2")]
    with pytest.raises(RunError, match=r"step 3: the judge failed on 75% of 4 verdicts \(2 refused, 1 timeout\)"):
        check_failures(verdicts, 0.2, "step 3")
    not_applicable = [Verdict("a", "1", None, applicable=False)]
    assert check_failures(not_applicable, 0.0, "step 3") == 0.0  # an answer, not a failure


def test_ties_have_no_weight_where_the_loss_would_pull_on_them() -> None:
    verdicts = [Verdict(f"s{i}", c, 1.0) for i in range(2) for c in ("cat", "hat")]
    groups = reward(tabulate(_judged(verdicts, 2), [RUBRIC]), [Prompt("p", "a cat")], aggregate.build("mean"), 0, 0)
    for tie_weight in (1.0, 0.0):
        out = deserve(groups, advantage.build("rpo"), RolloutSection(), run_seed=0, tie_weight=tie_weight)
        assert out.advantage.tolist() == [[0.0, 0.0]] and out.weight.tolist() == [[tie_weight] * 2]


@given(
    st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0, float("nan")]), min_size=6, max_size=6),
    st.integers(0, 4),
)
@settings(max_examples=50, deadline=None)
def test_oversampling_trains_on_exactly_the_group_size_or_less(rewards: list[float], best: int) -> None:
    from mmrubric.group import Group

    options = RolloutSection(group_size=4, oversample=6, best=best)
    for stats_over in ("selected", "all"):
        chosen = options.model_copy(update={"stats_over": stats_over})
        out = deserve([Group(rewards=np.array(rewards), key="0/0/p")], advantage.build("grpo"), chosen, run_seed=3)
        known = ~np.isnan(rewards)
        trained = out.weight[0] > 0
        assert trained.sum() == min(4, known.sum()) and not (trained & ~known).any()
        assert not out.advantage[0][~trained].any()
        if best and known.sum() >= best:
            top = np.sort(np.array(rewards)[known])[::-1][:best]
            kept = np.sort(np.array(rewards)[trained])[::-1][:best]
            assert (kept == top).all()


def test_selected_statistics_match_the_published_example() -> None:
    from mmrubric.group import Group

    # methods/rubricrl.md: keep R = 1, 1, 0, .8 of [.6,1,.2,.8,.8,.4,0,1]: A = [.6301, .6301, -1.4703, .2100]
    group = Group(rewards=np.array([1.0, 1.0, 0.0, 0.8]), key="x")
    out = deserve([group], advantage.build("grpo"), RolloutSection(group_size=4), run_seed=0)
    assert out.advantage[0] == pytest.approx([0.6301, 0.6301, -1.4703, 0.2100], abs=1e-4)


def test_permuted_verdicts_are_the_same_ones_in_other_places() -> None:
    met = np.linspace(0, 1, 8)
    verdicts = [Verdict(f"s{i}", c, m) for i, m in enumerate(met) for c in ("cat", "hat")]
    judged = _judged(verdicts, 8)
    true = tabulate(judged, [RUBRIC])[0].met
    seen = [tabulate(judged, [RUBRIC], permute=(0, step))[0].met for step in range(20)]
    assert all(sorted(map(tuple, table)) == sorted(map(tuple, true)) for table in seen)
    assert sum(np.array_equal(table, true) for table in seen) == 0
    # over many steps a sample's reward tells nothing of what it deserved
    mean = np.mean(
        [table[:, 0] for table in [tabulate(judged, [RUBRIC], permute=(1, s))[0].met for s in range(400)]], 0
    )
    assert np.abs(mean - 0.5).max() < 0.08


class _Slow(SyncMixin):
    id = "slow/1"

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        import asyncio

        await asyncio.sleep(0.2)
        return [[Verdict(str(r.sample_id), c.id, 1.0) for c in r.rubric.criteria] for r in requests]


def _request(name: str = "s0") -> JudgeRequest:
    return JudgeRequest(rubric=RUBRIC, candidate="text", sample_id=name)


def test_judging_runs_while_the_caller_goes_on() -> None:
    with JudgeWorker(_Slow()) as worker:
        began = time.perf_counter()
        futures = [worker.submit([_request(f"s{i}")]) for i in range(5)]
        assert time.perf_counter() - began < 0.15
        assert [f.result()[0][0].sample_id for f in futures] == [f"s{i}" for i in range(5)]
        assert time.perf_counter() - began < 0.9  # side by side, not one after the other
    with JudgeWorker(_Slow(), background=False) as worker:
        began = time.perf_counter()
        assert worker.submit([_request()]).done() and time.perf_counter() - began >= 0.2


def test_leaving_cancels_what_is_under_way() -> None:
    before = set(threading.enumerate())
    with JudgeWorker(_Slow()) as worker:
        future = worker.submit([_request()])
    assert future.cancelled() or future.done()
    assert not [thread for thread in threading.enumerate() if not thread.daemon and thread not in before]


class _Forgetful(_Slow):
    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        return [[Verdict(str(r.sample_id), "cat", 1.0)] for r in requests]


def test_a_judge_that_leaves_a_criterion_out_is_an_error() -> None:
    with JudgeWorker(_Forgetful()) as worker:
        error = worker.submit([_request()]).exception()
    assert isinstance(error, RunError) and "asked about ['cat', 'hat'], answered ['cat']" in str(error)


def test_training_judge_may_not_evaluate_unless_told() -> None:
    refuse_same_judge(RedJudge("a"), RedJudge("b"), False)
    refuse_same_judge(RedJudge("a"), RedJudge("a"), True)
    with pytest.raises(InputError, match="allow_same_judge=true"):
        refuse_same_judge(RedJudge("a"), RedJudge("a"), False)


def test_one_model_asked_in_two_ways_is_one_judge() -> None:
    server = {"base_url": "http://127.0.0.1:9/v1"}
    ranks = judges.build("vlm", **server, model="big", mode="joint_rank")
    scores, other = (judges.build("vlm", **server, model=model) for model in ("big", "small"))
    assert ranks.id != scores.id
    with pytest.raises(InputError, match="or asks its model"):
        refuse_same_judge(ranks, scores, False)
    refuse_same_judge(ranks, other, False)
