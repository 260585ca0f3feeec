"""Train the shipped editor of the shapes world: `python -m pipelines.shapes.train_edit`.

It goes on where it stopped. The VAE is the shipped one of the text-to-image generator and stays as it is. The shipped
weights were trained by these defaults but for the rate: 2e-3 at first, falling to 6e-4 by step 1,300, then 1.2e-3 with
a schedule that was shortened and lengthened on the way. A step takes 0.4 s on one core.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from diffusers import FluxKontextPipeline
from rich.progress import track
from torch import Tensor, nn

from mmrubric.shapes.edits import draw_cases
from mmrubric.shapes.world import SIZE, render
from pipelines.diffusion import DEPLOYED_FILE
from pipelines.flux import positions
from pipelines.load import SHAPES
from pipelines.packed import pack
from pipelines.samplers import Sampler
from pipelines.shapes.edit_models import MAX_TOKENS, build_edit_pipeline, instructions, tokenize
from pipelines.shapes.muon import muon_and_adamw
from pipelines.shapes.state import Stage
from pipelines.shapes.train import load_vae, save
from pipelines.shapes.train_flow import DROP_TEXT, LOGIT_MEAN
from pipelines.shapes.train_vae import encode

DEPLOYED = Sampler(steps=8, shift=2.0, height=SIZE, width=SIZE, max_sequence_length=MAX_TOKENS)
"""How the shipped editor is sampled when nothing else is said."""


@dataclass(frozen=True)
class Pairs:
    """Edits for training: scaled latents float16 [N, 8, 8, 8] before and after, and the row of each instruction in
    `instructions()`, int64 [N]."""

    source: Tensor
    target: Tensor
    text: Tensor


class EditModel(nn.Module):
    """Transformer and text encoders as one module, with the pipeline's own way from text to embeddings."""

    def __init__(self, pipeline: FluxKontextPipeline) -> None:
        super().__init__()
        self.transformer = pipeline.transformer
        self.text_encoder = pipeline.text_encoder
        self.text_encoder_2 = pipeline.text_encoder_2
        clip, t5 = tokenize(pipeline, instructions())
        self.register_buffer("clip_ids", clip, persistent=False)
        self.register_buffer("t5_ids", t5, persistent=False)

    def forward(self, noised: Tensor, source: Tensor, text: Tensor, sigma: Tensor) -> Tensor:
        """Velocity of the sample's tokens [B, 16, 32] at noise levels sigma [B], for tokens of the source and rows of
        `instructions()` [B]."""
        # There are few instructions: all are encoded once, and each row takes its own.
        pooled = self.text_encoder(self.clip_ids).pooler_output[text]
        embeds = self.text_encoder_2(self.t5_ids)[0][text]
        side = round(noised.shape[1] ** 0.5)
        places = [positions(side, side, noised.device, picture) for picture in (0, 1)]
        velocity = self.transformer(
            hidden_states=torch.cat([noised, source], 1),
            timestep=sigma,
            encoder_hidden_states=embeds,
            pooled_projections=pooled,
            txt_ids=noised.new_zeros(embeds.shape[1], 3),
            img_ids=torch.cat(places),
            return_dict=False,
        )[0]
        return velocity[:, : noised.shape[1]]


def draw_pairs(pipeline: FluxKontextPipeline, count: int, seed: int, folder: Path) -> Pairs:
    """Draw, render and encode training cases, about 8 ms each, or read them from `folder`."""
    path = folder / f"edits-{count}-{seed}.npz"
    if not path.exists():
        cases = draw_cases("train", count, np.random.default_rng(seed))
        rows = {text: row for row, text in enumerate(instructions())}
        scenes = {"source": [case.source for case in cases], "target": [case.target for case in cases]}
        latents = {}
        for name, given in scenes.items():
            pixels = np.stack([render(scene) for scene in track(given, description=f"drawing {name}s")])
            latents[name] = encode(pipeline.vae, torch.from_numpy(pixels)).numpy()
        np.savez(path, **latents, text=np.array([rows[case.edit.text] for case in cases]))
    with np.load(path) as file:
        return Pairs(*(torch.from_numpy(file[name]) for name in ("source", "target", "text")))


def train_edit(pipeline: FluxKontextPipeline, pairs: Pairs, stage: Stage) -> None:
    """Train to the end of the stage, going on where it stopped; the averaged weights end in the pipeline."""
    sources, targets = pack(pairs.source), pack(pairs.target)

    def step(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(sources), (stage.batch,), generator=generator)
        x0 = targets[rows].float()
        dropped = torch.rand(stage.batch, generator=generator) < DROP_TEXT
        noise = torch.randn(x0.shape, generator=generator)
        sigma = (torch.randn(stage.batch, generator=generator) + LOGIT_MEAN).sigmoid()
        level = sigma.view(-1, 1, 1)
        text = torch.where(dropped, 0, pairs.text[rows])
        velocity = model((1 - level) * x0 + level * noise, sources[rows].float(), text, sigma)
        return (velocity - (noise - x0)).square().mean()

    model = EditModel(pipeline)
    stage.run(model, step)


def export(pipeline: FluxKontextPipeline, out: Path) -> None:
    """Write the pipeline with float16 weights and its deployed sampler, in place of what is there."""
    save(pipeline, out)
    config = out / "vae" / "config.json"
    # Where the VAE was read from on this machine is no part of the model.
    kept = {key: value for key, value in json.loads(config.read_text()).items() if key != "_name_or_path"}
    config.write_text(json.dumps(kept, indent=2) + "\n")
    (out / DEPLOYED_FILE).write_text(json.dumps(DEPLOYED.model_dump(exclude_defaults=True)) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/shapes-edit"))
    parser.add_argument("--out", type=Path, help="where the finished pipeline goes; default FOLDER/pipeline")
    parser.add_argument("--vae", type=Path, default=SHAPES / "vae", help="folder of a trained VAE")
    parser.add_argument("--pairs", type=int, default=24_000)
    parser.add_argument("--steps", type=int, default=4_400)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rate", type=float, default=1.2e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=250)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    options.folder.mkdir(parents=True, exist_ok=True)

    pipeline = build_edit_pipeline(load_vae(options.vae).eval().requires_grad_(False))
    out = options.out or options.folder / "pipeline"
    pairs = draw_pairs(pipeline, options.pairs, 0, options.folder)
    stage = Stage(
        "edit", options.folder, options.steps, options.batch, options.rate, decay_share=0.45,
        save_every=options.save_every, on_save=lambda step: export(pipeline, out), optimizers=muon_and_adamw,
    )  # fmt: skip
    train_edit(pipeline, pairs, stage)
    export(pipeline, out)
    print(f"pipeline: {out}")


if __name__ == "__main__":
    main()
