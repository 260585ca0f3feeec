"""The judge by CLIP: arithmetic by hand, the judge on an encoder of colours, and a tiny real open_clip model."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import judges
from judges import clip
from judges.clip import ClipJudge, clip_score, first_probability
from judges.rules.colour import rgb_of
from mmrubric.errors import InputError
from mmrubric.rubric import Criterion, Rubric

needs_open_clip = pytest.mark.skipif(
    importlib.util.find_spec("open_clip") is None, reason="open_clip is not installed: pip install mmrubric[clip]"
)
TINY = {
    "embed_dim": 16,
    "vision_cfg": {"image_size": 32, "layers": 1, "width": 32, "head_width": 16, "patch_size": 16},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 16, "heads": 2, "layers": 1},
}


class Colours:
    """An encoder whose space is RGB: a picture is its mean colour, a text the colour that its last word names."""

    id = "colours"
    scale = 10.0
    context = 6

    def __init__(self) -> None:
        self.batches: list[int] = []

    def tokens(self, text: str) -> int:
        return len(text.split()) + 2

    def pictures(self, pictures: Sequence[Image.Image]) -> np.ndarray:
        self.batches.append(len(pictures))
        return unit([np.asarray(picture, dtype=float).mean(axis=(0, 1)) for picture in pictures])

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        return unit([rgb_of(text.split()[-1]).astype(float) for text in texts])


def unit(rows: Any) -> np.ndarray:
    vectors = np.asarray(rows, dtype=np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def asking(
    statement: str = "all is red", /, id: str = "c", expected: str | None = None, **options: object
) -> Criterion:
    return Criterion(id=id, text=statement, verifier="clip", expected=expected, arguments=options)  # pyright: ignore[reportArgumentType]


def request(picture: object, *criteria: Criterion, prompt: str = "p") -> judges.JudgeRequest:
    return judges.JudgeRequest(Rubric(prompt=prompt, criteria=criteria), picture, sample_id="s")  # pyright: ignore[reportArgumentType]


def plain(colour: str) -> Image.Image:
    return Image.new("RGB", (8, 8), colour)


def test_probability_of_the_first_text_by_hand():
    # exp(10 * .3) / (exp(10 * .3) + exp(10 * .1)) = 1 / (1 + exp(-2))
    assert first_probability(np.array([0.3, 0.1]), 10.0) == pytest.approx(1 / (1 + math.exp(-2)))
    assert first_probability(np.array([0.2, 0.2, 0.2, 0.2]), 100.0) == pytest.approx(0.25)
    assert first_probability(np.array([-1.0, 1.0]), 1e4) == 0.0  # no overflow


def test_clip_score_by_hand():
    assert clip_score(np.array([0.3, -0.2, 0.4, 0.9])).tolist() == pytest.approx([0.75, 0.0, 1.0, 1.0])


def test_threshold_contrast_and_their_reasons():
    # red with yellow: cosine 1 / sqrt 2 = .7071; red with blue: 0
    asks = [
        asking("yellow", "low", threshold=0.7),
        asking("yellow", "high", threshold=0.71),
        asking("red", "soft", contrast="yellow"),
        asking("red", "hard", contrast=["yellow", "blue"], threshold=0.94),
        asking("anything", "other", expected="no", text="blue", threshold=0.1),
    ]
    (verdicts,) = ClipJudge(Colours()).score_sync([request(plain("red"), *asks)])
    soft = 1 / (1 + math.exp(-10 * (1 - math.sqrt(0.5))))
    assert [v.met for v in verdicts] == [1.0, 0.0, pytest.approx(soft, abs=1e-5), 1.0, 1.0]
    assert soft == pytest.approx(0.9493, abs=1e-4) and all(v.read == "clip" for v in verdicts)
    assert verdicts[0].reason == "cosine with 'yellow' is 0.7071, asked: at least 0.7"
    assert verdicts[2].reason == "probability of 'red' is 0.9493 among 2 texts"


def test_batches_bad_pictures_and_order():
    encoder = Colours()
    pictures = [plain("red"), b"no picture", plain("blue"), plain("red"), plain("blue")]
    requests = [request(picture, asking("red", threshold=0.5)) for picture in pictures]
    rows = ClipJudge(encoder, batch_size=2).score_sync(requests)
    assert [row[0].met for row in rows] == [1.0, None, 0.0, 1.0, 0.0] and encoder.batches == [1, 2, 1]
    assert rows[1][0].failure == judges.Failure.bad_image and rows[1][0].applicable
    assert ClipJudge(encoder).score_sync([]) == []


def test_default_threshold_is_part_of_the_id():
    bare = request(plain("red"), asking("red"))
    with pytest.raises(InputError, match=r"'c': give arguments.contrast .* or arguments.threshold"):
        ClipJudge(Colours()).score_sync([bare])
    judge = ClipJudge(Colours(), threshold=0.9)
    assert judge.score_sync([bare])[0][0].met == 1.0
    assert (judge.id, ClipJudge(Colours()).id) == ("clip/1:colours:0.9", "clip/1:colours")
    # A contrast gives a probability: the threshold of cosines does not apply to it.
    assert 0.9 < (judge.score_sync([request(plain("red"), asking("red", contrast="yellow"))])[0][0].met or 0) < 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"negative": "a dog"}, "unknown argument 'negative'; known: text, contrast, threshold"),
        ({"contrast": [], "threshold": 0.1}, "argument 'contrast.*must not be blank"),
        ({"contrast": " "}, "must not be blank"),
        ({"threshold": 30}, "argument 'threshold'"),
        ({"threshold": 0.3, "text": "a b c d red"}, "7 tokens, and the model reads 6; shorten 'a b c d red'"),
        ({"contrast": "a b c d red"}, "7 tokens"),
    ],
)
def test_wrong_arguments_are_refused_before_encoding(arguments: dict[str, object], message: str):
    encoder = Colours()
    with pytest.raises(InputError, match=rf"criterion 'c'.*{message}"):
        ClipJudge(encoder).score_sync([request(plain("red"), asking(**arguments))])
    assert encoder.batches == []
    with pytest.raises(InputError, match="'c' asks for verifier 'vlm'"):
        ClipJudge(encoder).score_sync([request(plain("red"), Criterion(id="c", text="t"))])
    with pytest.raises(InputError, match="batch_size: 0 is not a whole number"):
        ClipJudge(encoder, batch_size=0)
    with pytest.raises(InputError, match=r"threshold: 2 is outside \[-1, 1\]"):
        ClipJudge(encoder, threshold=2)


def test_reward_is_in_range_and_unknown_for_bad_pictures():
    judge = ClipJudge(Colours(), batch_size=2)
    # cosines 1, 0 and none: min(1, 2.5), 0, NaN; #40c0ff with red: 64 / sqrt(64^2 + 192^2 + 255^2) = .1966
    pictures = {"red": plain("red"), "blue": plain("blue"), "bad": b"no", "sky": plain("#40c0ff")}
    rewards = judge.reward_sync([request(p, asking("x"), prompt="all red") for p in pictures.values()])
    assert rewards.dtype == np.float64
    assert rewards.tolist() == pytest.approx([1.0, 0.0, math.nan, 2.5 * 0.19659], abs=1e-4, nan_ok=True)
    with pytest.raises(InputError, match="needs a picture and a rubric with a prompt"):
        judge.reward_sync([request(plain("red"), asking("x"), prompt="")])
    with pytest.raises(InputError, match="needs a picture and a rubric with a prompt"):
        judge.reward_sync([request("text", asking("x"), prompt="all red")])
    with pytest.warns(UserWarning, match="1 prompts are longer than the 6 tokens"):
        judge.reward_sync([request(plain("red"), asking("x"), prompt="a b c d red")] * 2)


def test_a_missing_open_clip_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(clip, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"CLIP needs open_clip, not installed: pip install mmrubric\[clip\]"):
        judges.build("clip")


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with a random open_clip model, as `local-dir:` takes it."""
    import torch
    from safetensors.torch import save_file

    clip._import_torchvision(torch)
    from open_clip.model import CLIP  # pyright: ignore[reportMissingImports]

    folder = tmp_path_factory.mktemp("tiny_clip")
    torch.manual_seed(0)
    save_file(
        {k: v.contiguous() for k, v in CLIP(**TINY).state_dict().items()}, str(folder / "open_clip_model.safetensors")
    )
    (folder / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY}))
    return f"local-dir:{folder}"


@needs_open_clip
def test_a_real_model_gives_the_softmax_of_its_own_logits(tiny: str):
    import open_clip  # pyright: ignore[reportMissingImports]
    import torch

    judge = judges.build("clip", model=tiny, device="cpu", batch_size=2)
    assert isinstance(judge, judges.Judge)
    pictures = [Image.new("RGB", (40, 50), colour) for colour in ("red", "white", "navy")]
    texts = ["a red square", "a dog"]
    criteria = [asking(texts[0], "soft", contrast=texts[1]), asking(texts[0], "hard", threshold=-1.0)]
    rows = judge.score_sync([request(picture, *criteria) for picture in pictures])
    model, transform = open_clip.create_model_from_pretrained(tiny)
    model.eval()
    with torch.inference_mode():
        tokens = open_clip.get_tokenizer(tiny)(texts)
        logits, _ = model.get_logits(torch.stack([transform(picture) for picture in pictures]), tokens)
    expected = logits.double().softmax(dim=-1)[:, 0]
    assert [row[0].met for row in rows] == pytest.approx(expected.tolist(), abs=1e-5)
    assert [row[1].met for row in rows] == [1.0, 1.0, 1.0]


@needs_open_clip
def test_a_real_model_tells_its_weights_apart_and_refuses_long_texts(tiny: str, tmp_path: Path):
    judge = judges.build("clip", model=tiny, device="cpu")
    assert judges.build("clip", model=tiny, device="cpu").id == judge.id
    with pytest.raises(InputError, match=r"22 tokens, and the model reads 16"):
        judge.score_sync([request(plain("red"), asking("red " * 20, threshold=0.1))])
    assert judge.score_sync([request(plain("red"), asking("red " * 14, threshold=-1.0))])[0][0].met == 1.0
    # The same folder name with other weights is another judge.
    import torch
    from open_clip.model import CLIP  # pyright: ignore[reportMissingImports]
    from safetensors.torch import save_file

    folder = Path(tiny.removeprefix("local-dir:"))
    file = folder / "open_clip_model.safetensors"
    kept = file.read_bytes()
    torch.manual_seed(1)
    save_file({k: v.contiguous() for k, v in CLIP(**TINY).state_dict().items()}, str(file))
    try:
        assert judges.build("clip", model=tiny, device="cpu").id != judge.id
    finally:
        file.write_bytes(kept)


@needs_open_clip
def test_no_weights_is_an_error_and_never_a_random_judge(tiny: str, tmp_path: Path):
    (tmp_path / "open_clip_config.json").write_text(json.dumps({"model_cfg": TINY}))
    with pytest.raises(InputError, match="cannot be loaded"):
        judges.build("clip", model=f"local-dir:{tmp_path}", device="cpu")
    with pytest.raises(InputError, match="any other model needs pretrained"):
        judges.build("clip", model="ViT-B-32")
    with pytest.raises(InputError, match="without pretrained"):
        judges.build("clip", model=tiny, pretrained="openai")
    with pytest.raises(InputError, match="precision: unknown value 'int8'; known: bf16, fp16, fp32"):
        judges.build("clip", model=tiny, precision="int8")
