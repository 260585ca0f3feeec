"""Training by a judge that fails: over real HTTP, with every kind of failure, on both sides of the limits."""

import base64
import io
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import judges
from mmrubric.bootstrap import paired_bootstrap
from mmrubric.errors import RunError
from mmrubric.judging import SyncMixin
from mmrubric.record_reader import RecordReader
from mmrubric.verdict import Failure, Verdict
from tests.mmrubric.stub_server import Answer, Stub, completion, error, serve
from tests.trainers.toys import RedJudge, settings
from trainers import parts
from trainers.loop import Trainer

STEPS = 12


def asked(body: dict[str, Any]) -> list[dict[str, Any]]:
    """The parts of the question; a second chance has further turns behind it."""
    return next(m["content"] for m in body["messages"] if isinstance(m["content"], list))


def redness(content: list[dict[str, Any]]) -> float:
    """How much more red than blue the picture of a question is, in [-1, 1]."""
    url = next(part["image_url"]["url"] for part in content if part["type"] == "image_url")
    pixels = np.asarray(Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2]))), float) / 255
    return float((pixels[..., 0] - pixels[..., 2]).mean())


class Unreliable:
    """Says yes to criteria as far as the picture is red; fails on a share of the requests, in turn in each way."""

    def __init__(self, share: float) -> None:
        self.share, self.random, self.failures = share, random.Random(0), 0

    def __call__(self, body: dict[str, Any]) -> Answer:
        if self.random.random() < self.share:
            self.failures += 1
            return (
                completion(json.dumps({"reason": "", "met": "yes"})[:9], "length"),
                completion(None, message={"refusal": "I would rather not."}),
                completion('{"reason": "", "met": '),
                error(429, headers={"Retry-After": "0"}),
                error(500),
                replace(completion("late"), delay=1.5),
            )[self.failures % 6]
        # Each criterion has a threshold of its own, so that more redness meets more of them.
        text = asked(body)[-1]["text"]
        threshold = (sum(text.encode()) % 21 - 10) / 100
        return completion(json.dumps({"reason": "", "met": "yes" if redness(asked(body)) > threshold else "no"}))


@pytest.mark.slow
def test_rpo_improves_though_30_percent_of_the_answers_fail(tmp_path: Path, tiny_model: Path) -> None:
    flaky = Unreliable(0.3)
    config = settings(
        tmp_path, tiny_model, run__steps=STEPS, data__prompts_per_step=4, rollout__group_size=8,
        loss={"name": "nft", "levels": 2, "old_schedule": "constant", "old_decay": 0.5},
        advantage={"name": "rpo", "options": {"pairing": "round_robin"}}, optim={"lr": 3e-3, "batch_size": 32},
        eval={"prompts": "shapes:heldout", "limit": 16, "every": 100, "judge": {"name": "shapes"}},
    )  # fmt: skip
    with serve(Stub(reply=flaky)) as stub:
        judge = judges.build("vlm", base_url=stub.base_url, model="m", timeout=1.0, any_verifier=True)
        with Trainer(config, parts.build(config, judge=judge, eval_judge=RedJudge())) as trainer:
            before = trainer.evaluate()
            trainer.run()
            after = trainer.evaluate()
    assert flaky.failures > 0.25 * len(stub.requests)
    # by the judge of closed form, which never fails; which requests fail depends on their order, so prompts differ
    gain = paired_bootstrap(*([table.met.mean() for table in found.tables] for found in (before, after)), seed=0)
    assert gain.low > 0, gain
    rows = [
        v
        for g in RecordReader(config.run.directory / "record.jsonl").groups("train")
        for r in g.rows
        for v in r.verdicts
    ]
    unknown = [v for v in rows if v.met is None]
    assert 0 < len(unknown) / len(rows) < 0.2 and all(v.failure is not None for v in unknown)
    assert {v.met for v in rows} == {0.0, 1.0, None}


class Failing(SyncMixin):
    """Fails on the first `fails` of every `of` verdicts."""

    id = "failing/1"

    def __init__(self, fails: int, of: int) -> None:
        self.fails, self.of, self.count = fails, of, 0

    async def score(self, requests):
        return [[self._one(request, criterion.id) for criterion in request.rubric.criteria] for request in requests]

    def _one(self, request: Any, criterion: str) -> Verdict:
        self.count += 1
        if (self.count - 1) % self.of < self.fails:
            return Verdict(request.sample_id, criterion, None, failure=Failure.timeout, reason="late")
        return Verdict(request.sample_id, criterion, float(self.count % 3 == 0))


@pytest.mark.parametrize(("fails", "of", "stops"), [(1, 6, False), (1, 4, True)])
def test_training_stops_above_a_fifth_of_failures(
    fails: int, of: int, stops: bool, tmp_path: Path, tiny_model: Path
) -> None:
    config = settings(tmp_path, tiny_model, run__steps=1)
    with Trainer(config, parts.build(config, judge=Failing(fails, of))) as trainer:
        if stops:
            with pytest.raises(RunError, match=r"step 0: the judge failed on 2\d% .*timeout.*max_failure_share=0.2"):
                trainer.step()
        else:
            assert 0.1 < trainer.step()["judge/fail_rate"] < 0.2


@pytest.mark.parametrize(("fails", "of", "stops"), [(1, 25, False), (1, 12, True)])
def test_an_evaluation_stops_above_a_twentieth_of_failures(
    fails: int, of: int, stops: bool, tmp_path: Path, tiny_model: Path
) -> None:
    heldout = {"prompts": "shapes:heldout", "limit": 24, "every": 100, "judge": {"name": "shapes"}}
    config = settings(tmp_path, tiny_model, run__steps=1, eval=heldout)
    with Trainer(config, parts.build(config, judge=RedJudge(), eval_judge=Failing(fails, of))) as trainer:
        if stops:
            with pytest.raises(RunError, match=r"evaluation at step 0: .*timeout.*max_failure_share=0.05"):
                trainer.evaluate()
        else:
            assert 0 < trainer.evaluate().unknown_share < 0.05
