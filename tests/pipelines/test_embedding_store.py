"""Embeddings on disk: found again by the same encoders and the same input, by nothing else, and never damaged ones."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from mmrubric import Prompt
from mmrubric.errors import InputError
from pipelines import Sampler, load_policy
from pipelines.diffusion import FlowPolicy
from pipelines.embedding_store import EmbeddingStore, fingerprint
from pipelines.engine import EngineOptions
from pipelines.seeds import row_seed
from pipelines.testing import PROMPTS, tiny_sd3_directory
from pipelines.testing_flux import tiny_flux_directory

CPU = torch.device("cpu")
SEEDS = [row_seed(0, 0, i, 0) for i in range(4)]
GUIDED = Sampler(steps=2, guidance=2.0)


def cached(model: Path, cache: Path) -> FlowPolicy:
    policy = load_policy(model, device="cpu", engine=EngineOptions(embedding_cache=str(cache)))
    assert isinstance(policy, FlowPolicy)
    return policy


@contextmanager
def counting(policy: FlowPolicy) -> Iterator[list[str]]:
    """Names of the encoders that run inside the block, one per forward; the VAE's encoder as 'vae'."""
    ran: list[str] = []
    parts = {str(number): module for number, module in enumerate(policy.adapter.frozen)}
    parts["vae"] = policy.adapter.pipe.vae.encoder
    hooks = [m.register_forward_hook(lambda *_, n=name: ran.append(n)) for name, m in parts.items()]
    yield ran
    for hook in hooks:
        hook.remove()


def test_a_second_run_encodes_nothing_and_draws_the_same(tiny_t5: Path, tmp_path: Path, prompts: list[Prompt]) -> None:
    plain = load_policy(tiny_t5, device="cpu").sample(prompts, SEEDS, GUIDED).samples
    first = cached(tiny_t5, tmp_path)
    with counting(first) as ran:
        first.encode(prompts, GUIDED)
        # 4 texts and the empty negative one, through CLIP, CLIP and T5
        assert sorted(ran) == sorted(["0", "1", "2"] * 5)
        assert torch.equal(first.sample(prompts, SEEDS, GUIDED).samples, plain) and len(ran) == 15
    assert len(list(tmp_path.rglob("*.safetensors"))) == 5 and not list(tmp_path.rglob(".*"))
    second = cached(tiny_t5, tmp_path)
    with counting(second) as ran:
        rollout = second.sample(prompts, SEEDS, GUIDED, frozenset())
        assert torch.equal(rollout.samples, plain) and ran == []
        # another length of the text is another embedding
        second.sample(prompts[:1], SEEDS[:1], Sampler(steps=1, max_sequence_length=32))
        assert ran == ["0", "1", "2"]


def test_other_weights_or_paths_are_other_models(tmp_path: Path, prompts: list[Prompt]) -> None:
    one, two = tiny_sd3_directory(tmp_path / "one"), tiny_sd3_directory(tmp_path / "two", seed=1)
    cached(one, tmp_path / "cache").encode(prompts[:1])
    policy = cached(two, tmp_path / "cache")
    with counting(policy) as ran:
        policy.encode(prompts[:1])
        assert ran == ["0", "1"]


def test_the_key_changes_with_each_component(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path, "model")
    parts = {"kind": "text", "key": ["a red circle", 256], "types": ["torch.float32"], "device": "cpu"}
    base = store.key(**parts)
    assert base == EmbeddingStore(tmp_path, "model").key(**parts)
    changes = [
        {"key": ["a blue circle", 256]}, {"key": ["a red circle", 128]}, {"types": ["torch.bfloat16"]},
        {"device": "cuda"}, {"kind": "sources"}, {"key": [["0" * 64], 64, 64]}, {"key": [["0" * 64], 64, 32]},
        {"key": [["1" * 64], 64, 64]},
    ]  # fmt: skip
    keys = [base, EmbeddingStore(tmp_path, "other").key(**parts), *(store.key(**(parts | c)) for c in changes)]
    assert len(set(keys)) == len(keys)


def test_the_fingerprint_changes_with_weights_settings_vocabulary_and_place() -> None:
    class Words:
        def __init__(self, *words: str) -> None:
            self.words = words

        def get_vocab(self) -> dict[str, int]:
            return {word: number for number, word in enumerate(self.words)}

    def encoder(bias: float = 0.0, **settings: int) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            module = nn.Linear(64, 64)
        nn.init.constant_(module.bias, bias)
        module.config = settings  # type: ignore[assignment]
        return module

    base = {"text_encoder": encoder(layers=1), "tokenizer": Words("a", "b"), "tokenizer_3": None}
    prints = [
        fingerprint("/m", base),
        fingerprint("/n", base),
        fingerprint("/m", base | {"text_encoder": encoder(0.1, layers=1)}),
        fingerprint("/m", base | {"text_encoder": encoder(layers=2)}),
        fingerprint("/m", base | {"text_encoder": encoder(layers=1).bfloat16()}),
        fingerprint("/m", base | {"tokenizer": Words("b", "a")}),
    ]
    assert len(set(prints)) == len(prints) and prints[0] == fingerprint("/m", dict(reversed(base.items())))
    moved = encoder(layers=1, _name_or_path=3)
    assert fingerprint("/m", base | {"text_encoder": moved}) == prints[0]


@pytest.mark.parametrize("damage", ["cut", "flipped", "empty"])
def test_a_damaged_file_is_encoded_anew_with_a_warning(
    damage: str, tiny: Path, tmp_path: Path, prompts: list[Prompt], caplog: pytest.LogCaptureFixture
) -> None:
    first = cached(tiny, tmp_path)
    first.encode(prompts[:1])
    (file,) = tmp_path.rglob("*.safetensors")
    whole = file.read_bytes()
    flipped = bytearray(whole)
    flipped[-1] ^= 1
    file.write_bytes({"cut": whole[:-10], "flipped": bytes(flipped), "empty": b""}[damage])
    policy = cached(tiny, tmp_path)
    with counting(policy) as ran, caplog.at_level(logging.WARNING):
        policy.encode(prompts[:1])
        assert ran == ["0", "1"] and "is damaged" in caplog.text and str(file) in caplog.text
    assert file.read_bytes() == whole


def test_source_images_count_by_their_pixels(tmp_path: Path) -> None:
    model = tiny_flux_directory(tmp_path / "kontext", kontext=True)
    pixels = np.random.default_rng(0).integers(0, 256, (20, 24, 3), dtype=np.uint8)
    sampler = Sampler(steps=1, height=16, width=16, max_sequence_length=20)

    def encoded(*sources: np.ndarray | Path) -> int:
        policy = cached(model, tmp_path / "cache")
        with counting(policy) as ran:
            policy.encode([Prompt(id=str(n), text=PROMPTS[0], sources=(s,)) for n, s in enumerate(sources)], sampler)
            return ran.count("vae")

    assert encoded(pixels) == 1
    for name in ("a", "b"):
        Image.fromarray(pixels).save(tmp_path / f"{name}.png")
    # the same pixels in files of other names, and pixels that differ in one place
    assert encoded(tmp_path / "a.png", tmp_path / "b.png") == 0
    other = pixels.copy()
    other[0, 0, 0] ^= 128
    assert encoded(other) == 1


def test_many_writers_of_one_key_leave_one_whole_file(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path, "model")
    key, tensor = store.key(kind="text"), torch.arange(5000.0)
    bad = []

    def work() -> None:
        for _ in range(20):
            store.save(key, (tensor,), CPU)
            found = store.load(key, CPU)
            if found is None or not torch.equal(found[0], tensor):
                bad.append(found)

    threads = [Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not bad and [p.name for p in store.path(key).parent.iterdir()] == [f"{key}.safetensors"]


def test_types_and_shapes_come_back(tmp_path: Path) -> None:
    store = EmbeddingStore(tmp_path, "model")
    made = (
        torch.arange(12.0).reshape(3, 4).bfloat16(),
        torch.tensor([2, 3]),
        torch.tensor([True, False]),
        torch.zeros(0, 2),
    )
    store.save("ab" + "0" * 62, made, CPU)
    found = store.load("ab" + "0" * 62, CPU)
    assert found is not None and all(a.dtype == b.dtype and torch.equal(a, b) for a, b in zip(made, found, strict=True))
    assert store.load("cd" + "0" * 62, CPU) is None


def test_a_directory_that_cannot_be_made_is_an_input_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match=r"model\.embedding_cache=.*cannot create"):
        EmbeddingStore(tmp_path / "file" / "below", "model")


def test_prompts_keep_their_own_negative_text(tiny: Path, tmp_path: Path, prompts: list[Prompt]) -> None:
    marked = [dataclasses.replace(prompts[0], negative=PROMPTS[1])]
    cached(tiny, tmp_path).encode(marked, GUIDED)
    cached(tiny, tmp_path).encode(marked)  # without guidance nothing more is read
    assert len(list(tmp_path.rglob("*.safetensors"))) == 2
