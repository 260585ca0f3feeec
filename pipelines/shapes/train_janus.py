"""Train the shipped Janus model of the shapes world: `python -m pipelines.shapes.train_janus`.

Every stage goes on where it stopped.
"""

from __future__ import annotations

import argparse
import json
import shutil
from functools import partial
from pathlib import Path

import torch
from transformers import JanusForConditionalGeneration, JanusVQVAE, PreTrainedTokenizerFast

from mmrubric.shapes.world import SIZE
from pipelines.quiet import quiet
from pipelines.shapes.data import Pictures, draw_collages, draw_pictures
from pipelines.shapes.janus_models import (
    GRID,
    build_janus,
    build_janus_tokenizer,
    build_processor,
    build_vq,
    generation_config,
)
from pipelines.shapes.models import grammar_words
from pipelines.shapes.muon import muon_and_adamw
from pipelines.shapes.state import Stage
from pipelines.shapes.train import half
from pipelines.shapes.train_janus_lm import train_lm
from pipelines.shapes.train_janus_vq import encode_tokens, refine_vq_decoder, train_vq

DEPLOYED = {"kind": "tokens", "guidance": 1.5}
"""Sampler that the model is evaluated with."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("runs/shapes-janus"))
    parser.add_argument("--out", type=Path, help="where the finished model goes; default FOLDER/model")
    parser.add_argument("--scenes", type=int, default=40_000)
    parser.add_argument("--collages", type=int, default=3_000)
    parser.add_argument("--smooth-steps", type=int, default=1_000)
    parser.add_argument("--vq-steps", type=int, default=1_200)
    parser.add_argument("--decoder-steps", type=int, default=1_500)
    parser.add_argument("--lm-steps", type=int, default=1_950)
    parser.add_argument("--lm-batch", type=int, default=64)
    parser.add_argument("--lm-rate", type=float, default=3e-3)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--save-every", type=int, default=250)
    parser.add_argument(
        "--bfloat16", action="store_true", help="train the VQ model in bfloat16, twice as fast on CPUs with AMX"
    )
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    options.folder.mkdir(parents=True, exist_ok=True)

    pictures = draw_pictures(options.scenes, 0, options.folder)
    vq = make_vq(options, pictures)
    tokenizer = build_janus_tokenizer([*grammar_words(), '"'])
    janus = build_janus(vq, tokenizer).eval()
    out = options.out or options.folder / "model"
    stage = Stage(
        "lm", options.folder, options.lm_steps, options.lm_batch, options.lm_rate, decay_share=0.45,
        save_every=options.save_every, on_save=lambda step: save(janus, tokenizer, out), optimizers=muon_and_adamw,
    )  # fmt: skip
    tokens = encode_tokens(vq, pictures)
    print(f"codes in use: {tokens.unique().numel()}", flush=True)
    train_lm(janus, tokenizer, pictures.texts, tokens, stage)
    save(janus, tokenizer, out)
    print(f"model: {out}")


def make_vq(options: argparse.Namespace, pictures: Pictures) -> JanusVQVAE:
    """Train the VQ model on crops, then its decoder on whole scenes."""
    vq, folder = build_vq(), options.folder
    kernels = partial(muon_and_adamw, kernels=True)
    smooth = Stage(
        "vq_smooth", folder, options.smooth_steps, 16, 5e-3, save_every=options.save_every, optimizers=kernels
    )
    codes = Stage(
        "vq", folder, options.vq_steps, 16, 4e-3, decay_share=0.5, save_every=options.save_every, optimizers=kernels
    )
    collages = draw_collages(options.collages, 0, folder)
    train_vq(vq, pictures, collages, smooth, codes, options.bfloat16)
    refine = Stage(
        "vq_decoder", folder, options.decoder_steps, 6, 2e-3, save_every=options.save_every, optimizers=kernels
    )
    refine_vq_decoder(vq, pictures, refine, options.bfloat16)
    return vq.eval().requires_grad_(False)


def save(janus: JanusForConditionalGeneration, tokenizer: PreTrainedTokenizerFast, out: Path) -> None:
    """Write model and processor with float16 weights, in place of what is there."""
    temporary = out.with_name(out.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    janus.generation_config = generation_config(tokenizer, DEPLOYED["guidance"])
    with quiet():
        janus.save_pretrained(temporary)
        build_processor(tokenizer, SIZE, GRID * GRID).save_pretrained(temporary)
    half(temporary)
    (temporary / "deployed.json").write_text(json.dumps(DEPLOYED, indent=2) + "\n")
    shutil.rmtree(out, ignore_errors=True)
    temporary.replace(out)


if __name__ == "__main__":
    main()
