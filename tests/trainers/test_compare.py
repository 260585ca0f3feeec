"""The comparison table: one budget for all cells, seeds as a range, cells not run twice."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest

from mmrubric.config import load_config
from mmrubric.errors import InputError
from trainers import compare
from trainers.compare import Cell, CompareConfig, cell_config, table

CONFIG = Path(__file__).parents[2] / "configs" / "shapes" / "compare.yaml"


def _cell(advantage: str, loss: str, seed: int, strict: float) -> Cell:
    return Cell(advantage, loss, seed, 25, 3200, 0.6, 0.3, 0.7, strict, 0.0, 100.0)


def test_table_has_mean_and_range_over_seeds() -> None:
    cells = [_cell("rpo", "nft", seed, strict) for seed, strict in enumerate((0.40, 0.45, 0.50))]
    cells += [_cell("grpo", "clip", 0, 0.31)]
    lines = table(cells).splitlines()
    assert lines[2] == "| none | before training | 60.0 (60.0 to 60.0) | 30.0 (30.0 to 30.0) | | | 3 |"
    # gains of 10, 15 and 20 points
    assert lines[3] == ("| rpo | nft | 70.0 (70.0 to 70.0) | 45.0 (40.0 to 50.0) | +15.0 (+10.0 to +20.0) | 100 | 3 |")
    assert lines[4] == "| grpo | clip | 70.0 | 31.0 | +1.0 | 100 | 1 |"


def test_cells_differ_in_what_they_name_and_share_the_budget(tmp_path: Path) -> None:
    config = load_config(CompareConfig, CONFIG)
    cells = {
        (a, x): cell_config(config, CONFIG.parent, tmp_path, a, x, 2) for a in config.advantages for x in config.losses
    }
    for (advantage, loss), made in cells.items():
        assert (made.advantage.name, made.loss.name, made.run.seed) == (advantage, loss, 2)
        assert made.run.steps * made.data.prompts_per_step * made.rollout.drawn == config.images
        assert made.rollout.sampler.stochastic is (loss != "nft")
    assert len({(c.data.prompts, c.rollout.group_size, c.eval.limit, c.model.path) for c in cells.values()}) == 1


def test_a_wrong_setting_names_its_cell(tmp_path: Path) -> None:
    config = load_config(CompareConfig, CONFIG, ["losses={nft: [loss.beta=1]}"])
    with pytest.raises(InputError, match=r"cell grpo x nft: .*unknown key 'loss.beta'"):
        cell_config(config, CONFIG.parent, tmp_path, "grpo", "nft", 0)
    with pytest.raises(InputError, match="no such cell; known: grpo,clip,0"):
        compare.run(CONFIG, tmp_path, (), "rpo,ppo,0")


def test_finished_cells_are_not_run_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for advantage in ("grpo", "rpo"):
        for loss in ("clip", "guard", "nft"):
            path = tmp_path / f"{advantage}-{loss}-0.json"
            path.write_text(json.dumps(asdict(_cell(advantage, loss, 0, 0.4))))
    assert compare.run(CONFIG, tmp_path, ["seeds=[0]"]) == 0
    assert (tmp_path / "table.md").read_text() == capsys.readouterr().out
    assert len(json.loads((tmp_path / "table.json").read_text())) == 6
