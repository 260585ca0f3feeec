"""Train the shipped generator of the shapes world: `python -m pipelines.shapes.train`.

Every stage goes on where it stopped. `--vae DIR` takes a trained VAE (the shipped one, say) instead of training one.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch
from diffusers import AutoencoderKL

from pipelines.shapes.data import Pictures, draw_collages, draw_pictures
from pipelines.shapes.models import build_pipeline, build_vae
from pipelines.shapes.muon import muon_and_adamw
from pipelines.shapes.state import Stage
from pipelines.shapes.train_flow import train_flow
from pipelines.shapes.train_vae import refine_decoder, train_vae

KEEP_EVERY = 1_000
"""Steps between pipelines that stay, so that the generator's scores can be followed."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/shapes-generator"))
    parser.add_argument("--out", type=Path, help="where the finished pipeline goes; default FOLDER/pipeline")
    parser.add_argument("--vae", type=Path, help="folder of a trained VAE; trained here when not given")
    parser.add_argument("--scenes", type=int, default=60_000)
    parser.add_argument("--collages", type=int, default=4_000)
    parser.add_argument("--vae-steps", type=int, default=4_500)
    parser.add_argument("--free-scenes", type=int, default=8_000)
    parser.add_argument("--decoder-steps", type=int, default=2_500)
    parser.add_argument("--flow-steps", type=int, default=4_700)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--save-every", type=int, default=250)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    options.folder.mkdir(parents=True, exist_ok=True)

    pictures = draw_pictures(options.scenes, 0, options.folder)
    vae = load_vae(options.vae) if options.vae else make_vae(options, pictures)
    vae.eval().requires_grad_(False)

    pipeline = build_pipeline(vae)
    out = options.out or options.folder / "pipeline"

    def export(step: int) -> None:
        save(pipeline, out)
        if step % KEEP_EVERY == 0 or step == options.flow_steps:
            save(pipeline, out.with_name(f"{out.name}-{step}"))

    stage = Stage(
        "flow", options.folder, options.flow_steps, 128, 2e-3, decay_share=0.45,
        save_every=options.save_every, on_save=export, optimizers=muon_and_adamw,
    )  # fmt: skip
    train_flow(pipeline, pictures, stage)
    save(pipeline, out)
    print(f"pipeline: {out}")


def load_vae(folder: Path) -> AutoencoderKL:
    return AutoencoderKL.from_pretrained(folder, torch_dtype=torch.float32)


def make_vae(options: argparse.Namespace, pictures: Pictures) -> AutoencoderKL:
    """Train the VAE on crowded pictures, then its decoder on whole scenes."""
    vae, folder, save_every = build_vae(), options.folder, options.save_every
    collages = draw_collages(options.collages, 0, folder)
    train_vae(vae, collages, pictures, Stage("vae", folder, options.vae_steps, 32, 4e-3, save_every=save_every))
    free = draw_pictures(options.free_scenes, 1, folder, grid=False)
    refine_decoder(vae, free, Stage("decoder", folder, options.decoder_steps, 12, 2e-3, save_every=save_every))
    return vae


def save(pipeline, out: Path) -> None:
    """Write the pipeline with float16 weights, in place of what is there."""
    temporary = out.with_name(out.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    pipeline.save_pretrained(temporary)
    half(temporary)
    shutil.rmtree(out, ignore_errors=True)
    temporary.replace(out)


def half(folder: Path) -> None:
    """Rewrite every safetensors file below a folder in float16."""
    from safetensors.torch import load_file, save_file

    for path in folder.rglob("*.safetensors"):
        tensors = {k: v.half() if v.is_floating_point() else v for k, v in load_file(path).items()}
        save_file(tensors, path, metadata={"format": "pt"})


if __name__ == "__main__":
    main()
