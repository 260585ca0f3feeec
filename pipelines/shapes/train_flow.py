"""Stage 2 of the shipped generator: the flow transformer and the text encoders, together."""

from __future__ import annotations

import torch
from diffusers import StableDiffusion3Pipeline
from torch import Tensor, nn

from pipelines.shapes.data import Pictures
from pipelines.shapes.state import Stage
from pipelines.shapes.train_vae import encode_once

DROP_TEXT = 0.1
"""Share of rows that see the empty prompt, so that classifier-free guidance works."""


LOGIT_MEAN = 0.5
"""Centre of the logit-normal noise levels. Above 0, because neighbouring latent values say much the same: the layout is
decided at high noise."""


class FlowModel(nn.Module):
    """Transformer and text encoders as one module, with the pipeline's own way from text to embeddings."""

    def __init__(self, pipeline: StableDiffusion3Pipeline) -> None:
        super().__init__()
        self.transformer = pipeline.transformer
        self.text_encoder = pipeline.text_encoder
        self.text_encoder_2 = pipeline.text_encoder_2

    def forward(self, latents: Tensor, tokens: Tensor, sigma: Tensor) -> Tensor:
        """Velocity [B, 8, 8, 8] at noise levels sigma [B] for token ids [B, L]."""
        first = self.text_encoder(tokens, output_hidden_states=True)
        second = self.text_encoder_2(tokens, output_hidden_states=True)
        return self.transformer(
            hidden_states=latents,
            encoder_hidden_states=torch.cat([first.hidden_states[-2], second.hidden_states[-2]], -1),
            pooled_projections=torch.cat([first[0], second[0]], -1),
            timestep=sigma * 1000,
        ).sample


def train_flow(pipeline: StableDiffusion3Pipeline, pictures: Pictures, stage: Stage) -> None:
    """Train to the end of the stage, going on where it stopped; the averaged weights end in the pipeline."""
    latents = encode_once(pipeline.vae, torch.from_numpy(pictures.pixels), stage.folder)

    def tokenize(texts: list[str]) -> Tensor:
        return pipeline.tokenizer(texts, padding="max_length", return_tensors="pt").input_ids

    tokens, empty = tokenize(pictures.texts), tokenize([""])
    model = FlowModel(pipeline)

    def step(generator: torch.Generator) -> Tensor:
        rows = torch.randint(len(latents), (stage.batch,), generator=generator)
        x0 = latents[rows].float()
        dropped = torch.rand(stage.batch, 1, generator=generator) < DROP_TEXT
        noise = torch.randn(x0.shape, generator=generator)
        sigma = (torch.randn(stage.batch, generator=generator) + LOGIT_MEAN).sigmoid()
        level = sigma.view(-1, 1, 1, 1)
        velocity = model((1 - level) * x0 + level * noise, torch.where(dropped, empty, tokens[rows]), sigma)
        return (velocity - (noise - x0)).square().mean()

    stage.run(model, step)
