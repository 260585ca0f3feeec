import json

import numpy as np
import pytest
import torch
from torch import nn

from mmrubric.shapes.grammar import enumerate_specs, parse
from pipelines.shapes.data import draw_pictures
from pipelines.shapes.models import MAX_TOKENS, build_tokenizer, grammar_words
from pipelines.shapes.state import Stage


class Stop(Exception):
    pass


def run(folder, stop_at=None):
    with torch.random.fork_rng():
        module = nn.Linear(3, 1)
    for parameter in module.parameters():
        nn.init.constant_(parameter, 0.1)
    calls = []

    def loss_of(generator):
        calls.append(1)
        if stop_at is not None and len(calls) > stop_at:
            raise Stop
        x = torch.randn(8, 3, generator=generator)
        return (module(x) - x.sum(1, keepdim=True)).square().mean()

    Stage("toy", folder, steps=12, batch=8, rate=0.1, save_every=4).run(module, loss_of)
    return module.state_dict(), len(calls)


def test_a_stage_that_was_stopped_ends_with_the_same_weights(tmp_path):
    (tmp_path / "whole").mkdir()
    (tmp_path / "parts").mkdir()
    whole, _ = run(tmp_path / "whole")
    with pytest.raises(Stop):
        run(tmp_path / "parts", stop_at=6)  # step 4 was saved, 5 and 6 are lost
    parts, calls = run(tmp_path / "parts")
    assert calls == 8
    assert all(torch.equal(whole[key], parts[key]) for key in whole)
    curve = [json.loads(line) for line in (tmp_path / "parts" / "toy_curve.jsonl").read_text().splitlines()]
    assert [row["step"] for row in curve] == [4, 8, 12]
    assert curve[0]["seconds"] < curve[1]["seconds"] < curve[2]["seconds"]  # over both parts


def test_every_word_of_the_grammar_is_one_token_and_every_prompt_fits():
    tokenizer = build_tokenizer(grammar_words())
    for word in grammar_words():
        assert len(tokenizer(word).input_ids) == 3, word
    lengths = [
        len(tokenizer(spec.text).input_ids)
        for kind in ("single", "count", "pair", "word")
        for spec in list(enumerate_specs(kind))[::97]
    ]
    longest = "a large red circle left of a small blue square on a white background"
    assert parse(longest) and len(tokenizer(longest).input_ids) == MAX_TOKENS
    assert max(lengths) <= MAX_TOKENS
    assert tokenizer("zebra").input_ids[1:-1] != tokenizer("zebras").input_ids[1:-1]


def test_pictures_are_drawn_from_training_prompts_and_read_again(tmp_path):
    first = draw_pictures(6, 0, tmp_path)
    again = draw_pictures(6, 0, tmp_path)
    assert first.pixels.shape == (6, 64, 64, 3)
    assert np.array_equal(first.pixels, again.pixels) and first.texts == again.texts
    assert all(parse(text).split == "train" for text in first.texts)
