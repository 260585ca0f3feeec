"""Train the tiny VLM of the shapes world: `python -m trainers.shapes_vlm.train`. It goes on where it stopped."""

from __future__ import annotations

import argparse
import json
import shutil
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from diffusers import AutoencoderKL
from torch import Tensor
from transformers import Idefics3ForConditionalGeneration, Idefics3Processor

from pipelines.load import SHAPES
from pipelines.shapes.muon import muon_and_adamw
from pipelines.shapes.state import Stage
from pipelines.shapes.train import half, load_vae
from trainers.shapes_vlm.model import IMAGE, build_model, build_processor, build_tokenizer, save
from trainers.shapes_vlm.packing import Forward, pack, to_model
from trainers.shapes_vlm.patches import CENTRES, PALETTE, centre_labels, colour_labels
from trainers.shapes_vlm.pictures import Picture, smudged
from trainers.shapes_vlm.questions import TEMPLATES, draw_pair, questions, rank

BANK_PAIRS, BANK_STEPS = 512, 128
"""Pairs of pictures drawn at a time, and the steps that use them (four times each at 32 pictures a step)."""
VISION_BATCH, VISION_BANK_STEPS = 64, 64
WRITTEN_SHARE = 0.1
"""Share of the batches whose answers are JSON."""
RANKING_SHARE = 0.12
"""Share of the batches that rank, from the time on when single questions are learned; the default."""
RANKING_FROM = 0.4
"""That time, as a share of the steps."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/shapes-vlm"))
    parser.add_argument("--out", type=Path, help="where the finished model goes; default FOLDER/model")
    parser.add_argument("--start", type=Path, help="a finished model to go on from, instead of random weights")
    parser.add_argument("--vision-steps", type=int, default=500, help="steps on patch labels alone")
    parser.add_argument("--steps", type=int, default=5_600, help="steps on questions")
    parser.add_argument("--batch", type=int, default=32, help="pictures of a step")
    parser.add_argument("--ranking-share", type=float, default=RANKING_SHARE, help="share of the batches that rank")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=250)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    options.folder.mkdir(parents=True, exist_ok=True)

    processor = processor_in(options.folder / "processor", options.start)
    model, done = (build_model(processor.tokenizer), 0) if options.start is None else load(options.start)
    learner = Forward(model, (len(CENTRES), len(PALETTE)))
    vae = load_vae(SHAPES / "vae").eval().requires_grad_(False)
    out = options.out or options.folder / "model"

    @lru_cache(maxsize=1)
    def bank(kind: int, number: int) -> Bank:
        return Bank.draw(BANK_PAIRS, vae, np.random.default_rng([kind, number]))

    def vision_loss(generator: torch.Generator) -> Tensor:
        step = generator.initial_seed()
        shown = bank(0, step // VISION_BANK_STEPS)
        rows = torch.randint(2 * BANK_PAIRS, (VISION_BATCH,), generator=generator)
        pixels = to_model(shown.pixels[rows.numpy()])
        return learner.patch_loss(pixels, (shown.centres[rows], shown.colours[rows]))[0]

    def loss(generator: torch.Generator) -> Tensor:
        step = generator.initial_seed()
        rng = np.random.default_rng([2, step])
        # A finished model has learned single questions.
        ranks = (done or step >= RANKING_FROM * options.steps) and rng.random() < options.ranking_share
        return torch.stack(
            bank(1, step // BANK_STEPS).losses(learner, processor, options.batch, bool(ranks), rng)
        ).sum()

    def stage(name: str, steps: int, batch: int, **more: Any) -> Stage:
        return Stage(
            name, options.folder, steps, batch, options.rate, save_every=options.save_every,
            optimizers=muon_and_adamw, **more,
        )  # fmt: skip

    if options.start is None:
        stage("vision", options.vision_steps, VISION_BATCH).run(learner, vision_loss)
    last = stage(
        "vlm",
        options.steps,
        options.batch,
        decay_share=0.45,
        on_save=lambda step: export(learner, processor, out, done + step),
    )
    last.run(learner, loss)
    export(learner, processor, out, done + options.steps)
    print(f"model: {out}")


def load(folder: Path) -> tuple[Idefics3ForConditionalGeneration, int]:
    """A finished model in float32, and the steps that it has had."""
    steps = json.loads((folder / "training.json").read_text())["steps"]
    return Idefics3ForConditionalGeneration.from_pretrained(folder, dtype=torch.float32), steps


def processor_in(folder: Path, start: Path | None) -> Idefics3Processor:
    """The processor of a run. It is built once: weights know the tokens that they were trained with."""
    if not folder.exists():
        made = build_processor(build_tokenizer(corpus())) if start is None else Idefics3Processor.from_pretrained(start)
        made.save_pretrained(folder)
    return Idefics3Processor.from_pretrained(folder)


def corpus(count: int = 400) -> list[str]:
    """Texts from which the tokenizer learns its words."""
    rng = np.random.default_rng(0)
    texts = []
    for number in range(count):
        pair = draw_pair("train", rng)
        chats = [*questions(pair[0], number % 2 == 0, rng), rank(pair, rng)]
        texts += [chat.asked.replace(IMAGE, "") + chat.answer for chat in chats]
    return texts


@dataclass(frozen=True)
class Bank:
    """Pairs of pictures for one prompt each, as many steps use them with ever new questions."""

    pairs: list[tuple[Picture, Picture]]
    pixels: np.ndarray
    """uint8 [2 * pairs, 64, 64, 3], smudged."""
    centres: Tensor
    """int64 [2 * pairs, 64]."""
    colours: Tensor
    """int64 [2 * pairs, 64]."""

    @classmethod
    def draw(cls, pairs: int, vae: AutoencoderKL, rng: np.random.Generator) -> Bank:
        """Draw pairs of the training split."""
        drawn = [draw_pair("train", rng) for _ in range(pairs)]
        pictures = [picture for pair in drawn for picture in pair]
        parts = [np.stack([p.pixels for p in pictures[i : i + 64]]) for i in range(0, len(pictures), 64)]
        return cls(
            drawn,
            np.concatenate([smudged(part, vae, rng) for part in parts]),
            torch.from_numpy(np.stack([centre_labels(picture) for picture in pictures])),
            torch.from_numpy(np.stack([colour_labels(picture.pixels) for picture in pictures])),
        )

    def losses(
        self, learner: Forward, processor: Idefics3Processor, size: int, ranks: bool, rng: np.random.Generator
    ) -> tuple[Tensor, ...]:
        """Losses on `size` pictures (see `Forward`), by questions or by rankings."""
        if ranks:
            chosen = rng.choice(len(self.pairs), size // 2, replace=False)
            rows = [[rank(self.pairs[i], rng)] for i in chosen]
            indices = np.stack([2 * chosen, 2 * chosen + 1], 1).reshape(-1)
        else:
            indices = rng.choice(2 * len(self.pairs), size, replace=False)
            written = bool(rng.random() < WRITTEN_SHARE)
            rows = [questions(self.pairs[i // 2][i % 2], written, rng) for i in indices]
        batch = pack(rows, self.pixels[indices], processor.tokenizer)
        return learner(batch, (self.centres[indices], self.colours[indices]))


def export(learner: Forward, processor: Idefics3Processor, out: Path, steps: int) -> None:
    """Write the model with float16 weights, in place of what is there."""
    temporary = out.with_name(out.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    save(learner.model, processor, temporary)
    half(temporary)
    (temporary / "training.json").write_text(json.dumps({"prompts": TEMPLATES.hash, "steps": steps}) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    temporary.replace(out)


if __name__ == "__main__":
    main()
