"""Runs on prompts with source pictures: which rubric belongs to which prompt, training, resuming."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mmrubric.errors import InputError
from mmrubric.generators import RubricGenerator
from mmrubric.prompt import Prompt
from mmrubric.record_reader import RecordReader
from mmrubric.rubric import Criterion, Rubric
from trainers import parts, prompts
from trainers.checkpoint import pack
from trainers.config import TrainConfig
from trainers.loop import Trainer
from trainers.parts import RubricBook

DARK, BRIGHT = (np.full((4, 4, 3), level, np.uint8) for level in (0, 255))


class Looking(RubricGenerator):
    """Its rubric depends on the sources, as that of generator 'edit' does."""

    async def generate(
        self, prompt: Prompt | str, sources: Sequence[Any] = (), grounding: Any = None, exemplars: Sequence[Any] = ()
    ) -> Rubric:
        assert isinstance(prompt, Prompt)
        levels = " and ".join(str(int(source.mean())) for source in sources) or "no"
        return Rubric(prompt=prompt.text, criteria=(Criterion(id="a", text=f"The source has {levels} light."),))


def texts(rubrics: Sequence[Rubric]) -> list[str]:
    return [rubric.criteria[0].text for rubric in rubrics]


def test_prompts_with_one_text_and_different_sources_have_rubrics_of_their_own():
    shown = [
        Prompt("d", "remove the circle", sources=(DARK,)),
        Prompt("b", "remove the circle", sources=(BRIGHT,)),
        Prompt("db", "remove the circle", sources=(DARK, BRIGHT)),
        Prompt("bd", "remove the circle", sources=(BRIGHT, DARK)),
        Prompt("n", "remove the circle"),
        Prompt("m", "remove the circle"),
    ]
    book = RubricBook(Looking())
    expected = [f"The source has {level} light." for level in (0, 255, "0 and 255", "255 and 0", "no", "no")]
    assert texts(book.of(shown)) == expected
    again = RubricBook(None)
    again.load_state_dict(book.state_dict())
    assert texts(again.of(shown[::-1])) == expected[::-1]
    with pytest.raises(InputError, match="holds no rubric for the prompt 'remove the circle'"):
        again.of([Prompt("other", "remove the circle", sources=(DARK,))])


def test_a_rubric_file_serves_every_source_of_its_text():
    written = Rubric(prompt="remove the circle", criteria=(Criterion(id="a", text="It is gone."),))
    book = RubricBook(None, [written])
    assert texts(book.of([Prompt("d", "remove the circle", sources=(DARK,))])) == ["It is gone."]


def test_drawn_edits_are_prompts_whose_fingerprint_is_stable_and_covers_the_pictures():
    one, again, other = (prompts.load("shapes-edit:train", 12, seed) for seed in (0, 0, 1))
    assert one.fingerprint == again.fingerprint != other.fingerprint
    assert all(len(prompt.sources) == 1 for prompt in one.prompts)
    held = prompts.load("shapes-edit:heldout", 12)
    assert not {p.id for p in held.prompts} & {p.id for p in one.prompts}
    with pytest.raises(InputError, match="unknown split 'test'"):
        prompts.load("shapes-edit:test")


def config(directory: Path, name: str, steps: int, **run: Any) -> TrainConfig:
    return TrainConfig.model_validate(
        {
            "run": {"name": name, "output_dir": str(directory), "steps": steps, "seed": 3, **run},
            "model": {"path": "shapes-edit"},
            "data": {"prompts": "shapes-edit:train", "limit": 6, "prompts_per_step": 4},
            "rubric": {"generator": "shapes_edit"},
            "judge": {"name": "shapes_edit"},
            "rollout": {"group_size": 4, "sampler": {"steps": 2, "shift": 2.0}},
            "reward": {"aggregate": "category"},
            "advantage": {"name": "rpo", "options": {"pairing": "round_robin"}},
            "loss": {"name": "nft", "levels": 1},
            "optim": {"lr": 1e-4, "batch_size": 16},
            "eval": {
                "prompts": "shapes-edit:heldout", "limit": 4, "every": 2, "judge": {"name": "shapes_edit_second"},
            },
            "tracking": {"progress": False},
        }
    )  # fmt: skip


@pytest.mark.slow
def test_training_on_edits_moves_the_weights_and_resumes_bitwise(tmp_path: Path):
    with Trainer(config(tmp_path, "straight", 4), parts.build(config(tmp_path, "straight", 4))) as trainer:
        start = {name: p.detach().clone() for name, p in trainer.policy.trainable_parameters()}
        trainer.run()
        expected = state(trainer)
        assert any(not torch.equal(start[name], p) for name, p in trainer.policy.trainable_parameters())
    rows = [row for row in RecordReader(trainer.directory / "record.jsonl").rows() if row.phase == "train"]
    assert len(rows) == 4 * 4 * 4
    assert all(v.met is not None for row in rows for v in row.verdicts)
    # 12 prompts of 6 come in 4 steps of 4: every group was drawn from the picture of its own prompt
    assert len({row.prompt_id for row in rows}) == 6

    with Trainer(config(tmp_path, "halved", 2), parts.build(config(tmp_path, "halved", 2))) as trainer:
        trainer.run()
    torch.manual_seed(99)
    again = config(tmp_path, "halved", 4, resume="auto")
    with Trainer(again, parts.build(again)) as trainer:
        assert trainer.done == 2
        trainer.run()
        resumed = state(trainer)
    assert resumed[1] == expected[1]
    assert all(torch.equal(resumed[0][name], tensor) for name, tensor in expected[0].items())


def state(trainer: Trainer) -> tuple[dict[str, torch.Tensor], Any]:
    """All that the next step depends on, but for where the log file ends."""
    return pack({k: v for k, v in trainer.snapshot().items() if k != "metrics_position"})
