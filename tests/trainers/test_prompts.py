"""Prompt files and the prompts of a step."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.config import load_config
from mmrubric.errors import InputError
from mmrubric.prompt import Prompt
from trainers import prompts
from trainers.config import TrainConfig
from trainers.distributed import split_rows
from trainers.prompts import PromptSampler, PromptSet


def numbered(count: int) -> PromptSet:
    return PromptSet.of([Prompt(id=f"p{i}", text=f"text {i}") for i in range(count)])


def write(path, lines) -> str:
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return str(path)


def test_jsonl_and_txt(tmp_path):
    (tmp_path / "a.png").write_bytes(b"png")
    lines = [
        json.dumps({"id": "x", "text": "a red circle", "negative": "blur", "sources": ["a.png"]}),
        json.dumps({"prompt": "ein grünes Dreieck"}, ensure_ascii=False),
    ]
    found = prompts.load(write(tmp_path / "p.jsonl", lines)).prompts
    assert found[0] == Prompt(id="x", text="a red circle", negative="blur", sources=(tmp_path / "a.png",))
    assert found[1].text == "ein grünes Dreieck"
    from_text = prompts.load(write(tmp_path / "p.txt", ["ein grünes Dreieck", "  two stars "])).prompts
    assert [p.text for p in from_text] == ["ein grünes Dreieck", "two stars"]
    assert from_text[0].id == found[1].id  # named by the text


def test_count_takes_the_first_and_refuses_more_than_there_are(tmp_path):
    path = write(tmp_path / "p.txt", ["a", "b", "c"])
    assert [p.text for p in prompts.load(path, 2).prompts] == ["a", "b"]
    with pytest.raises(InputError, match="4 prompts asked for, the file has 3"):
        prompts.load(path, 4)
    with pytest.raises(InputError, match="count 0"):
        prompts.load(path, 0)


def test_broken_json_names_file_and_line(tmp_path):
    lines = [json.dumps({"text": f"prompt {i}"}) for i in range(20)]
    lines[16] = '{"text": "unclosed'
    with pytest.raises(InputError, match=r"p\.jsonl, line 17: not valid JSON \(.* at column \d+\)"):
        prompts.load(write(tmp_path / "p.jsonl", lines))


@pytest.mark.parametrize(
    ("name", "lines", "message"),
    [
        ("p.jsonl", [], "the file is empty"),
        ("p.txt", ["", "  "], "the file is empty"),
        (
            "p.jsonl",
            ['{"text": "a", "id": "1"}', '{"text": "b", "id": "1"}'],
            "line 2: prompt id '1' is used already in line 1",
        ),
        ("p.txt", ["a", "b", "a"], "line 3: prompt id .* is used already in line 1"),
        ("p.jsonl", ['{"text": "a"}', '{"text": "  "}'], "line 2: blank prompt text"),
        ("p.txt", ["a", "", "b"], "line 2: blank prompt text"),
        ("p.jsonl", ['{"text": "a", "tag": "x"}'], r"line 1: tag: .*known keys: id, text"),
        ("p.jsonl", ['{"text": 3}'], "line 1: text: .*string"),
        ("p.jsonl", ['{"text": "a", "prompt": "b"}'], "line 1: give the prompt under 'text'"),
        ("p.jsonl", ['{"id": "1"}'], "line 1: give the prompt under 'text'"),
        ("p.jsonl", ["[1]"], "line 1: expected an object"),
        ("p.jsonl", ['{"text": "a", "id": " "}'], "line 1: blank id"),
        ("p.jsonl", ['{"text": "a", "sources": ["none.png"]}'], "line 1: no such source image"),
        ("p.csv", ["a"], r"\.jsonl or \.txt"),
    ],
)
def test_bad_files_say_where_and_what(tmp_path, name, lines, message):
    with pytest.raises(InputError, match=message) as error:
        prompts.load(write(tmp_path / name, lines))
    assert name in str(error.value)


def test_missing_and_binary_files(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        prompts.load(tmp_path / "none.txt")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not UTF-8"):
        prompts.load(tmp_path / "b.txt")


def test_shapes_prompts_are_drawn_by_split():
    train, held = prompts.load("shapes:train", 24), prompts.load("shapes:heldout", 24)
    assert len(train) == 24 and not {p.text for p in train.prompts} & {p.text for p in held.prompts}
    with pytest.raises(InputError, match="test"):
        prompts.load("shapes:test")


def test_lists_are_checked():
    with pytest.raises(InputError, match="no prompts"):
        PromptSet.of([])
    with pytest.raises(InputError, match="prompt 2: blank"):
        PromptSet.of([Prompt(id="a", text="x"), Prompt(id="b", text=" ")])


@given(st.integers(1, 23), st.integers(1, 23), st.integers(0, 3), st.booleans())
@settings(max_examples=50, deadline=None)
def test_every_prompt_once_per_epoch_and_none_twice_in_a_step(total, per_step, seed, shuffle):
    per_step = min(per_step, total)
    sampler = PromptSampler(numbered(total), per_step, seed, shuffle)
    steps = [sampler.at(n) for n in range(4 * total // per_step + 2)]
    assert all(len(set(step)) == per_step for step in steps)
    stream = [i for step in steps for i in step]
    for epoch in range(4):
        assert sorted(stream[epoch * total : (epoch + 1) * total]) == list(range(total))


def test_steps_are_a_pure_function_of_seed_and_number():
    one, other = PromptSampler(numbered(50), 8, seed=3), PromptSampler(numbered(50), 8, seed=3)
    forward = [one.at(n) for n in range(30)]
    assert [other.at(n) for n in reversed(range(30))] == forward[::-1]
    assert [PromptSampler(numbered(50), 8, seed=4).at(n) for n in range(30)] != forward
    assert forward[0] != list(range(8))


def test_short_sets_do_not_depend_on_history_either():
    one = PromptSampler(numbered(7), 5, seed=1)
    forward = [one.at(n) for n in range(40)]
    assert PromptSampler(numbered(7), 5, seed=1).at(39) == forward[39]


def test_epochs_differ_in_order():
    sampler = PromptSampler(numbered(32), 32, seed=0)
    assert sampler.at(0) != sampler.at(1)
    assert PromptSampler(numbered(4), 2, shuffle=False).at(3) == [2, 3]


def test_position_is_state():
    sampler = PromptSampler(numbered(10), 4, seed=2)
    sampler.take()
    state = json.loads(json.dumps(sampler.state_dict()))
    expected = [sampler.take() for _ in range(5)]
    resumed = PromptSampler(numbered(10), 4, seed=2)
    resumed.load_state_dict(state)
    assert resumed.step == 1 and [resumed.take() for _ in range(5)] == expected and resumed.epoch == 2
    for other in (
        PromptSampler(numbered(11), 4, 2),
        PromptSampler(numbered(10), 4, 3),
        PromptSampler(numbered(10), 5, 2),
    ):
        with pytest.raises(InputError, match="checkpoint used"):
            other.load_state_dict(state)
    changed = PromptSet.of([Prompt(id=f"p{i}", text=f"other {i}") for i in range(10)])
    with pytest.raises(InputError, match="fingerprint"):
        PromptSampler(changed, 4, 2).load_state_dict(state)


def test_tf27_each_prompt_exactly_k_times():
    # 10 prompts, 4 per step, K = 3: in each epoch every prompt is drawn 3 times, with 1 to 4 ranks
    sampler = PromptSampler(numbered(10), 4, seed=5)
    for world in (1, 2, 3, 4):
        drawn: list[tuple[int, int]] = []  # (place of the prompt in the stream, prompt)
        for step in range(15):
            chosen = sampler.at(step)
            for shard in split_rows(4, 3, world):
                drawn += [(step * 4 + int(row), chosen[row]) for row in shard.prompt_rows[shard.real]]
        for epoch in range(6):
            counts = Counter(prompt for place, prompt in drawn if place // 10 == epoch)
            assert counts == dict.fromkeys(range(10), 3)


def test_tf28_bad_combinations_raise_before_loading():
    with pytest.raises(InputError, match="3 prompts cannot fill a step of 4 distinct ones"):
        PromptSampler(numbered(3), 4)
    with pytest.raises(InputError, match="at least 1"):
        PromptSampler(numbered(3), 0)
    for override in ("rollout.group_size=3", "rollout.group_size=1", "run.processes=64", "data.limit=8"):
        with pytest.raises(InputError, match=override.split("=")[0]):
            load_config(TrainConfig, None, [override])
    for prompts_, samples, world in ((0, 2, 1), (2, 0, 1), (2, 2, 0)):
        with pytest.raises(InputError, match="must each be at least 1"):
            split_rows(prompts_, samples, world)
