"""The VLM judge without a server: the same questions to a model in this process, through transformers."""

from __future__ import annotations

from pathlib import Path

from judges.vlm import exemplars as examples
from judges.vlm.exemplars import Exemplars
from judges.vlm.judge import VLMJudge
from judges.vlm.settings import Settings
from judges.vlm.templates import Templates
from mmrubric.images import ImageOptions
from mmrubric.llm_local import LocalLLM
from mmrubric.store import Store

SHAPES = Path(__file__).parent / "assets" / "shapes-vlm"
"""The tiny VLM of the shapes world."""
_PROMPTS = {"shapes": "shapes_v1"}


def local(
    *,
    model: str | Path = "shapes",
    mode: str = "per_criterion",
    read: str = "logprob",
    prompts: str | Path | None = None,
    batch_size: int = 64,
    device: str | None = None,
    dtype: str | None = None,
    store: Store | str | Path | None = None,
    exemplars: Exemplars = (),
    off_mass: float = 0.1,
    position: str = "both",
    seed: int = 0,
    repeat: int = 0,
    temperature: float = 0.0,
    max_tokens: int = 512,
    re_asks: int = 1,
    any_verifier: bool = False,
    max_side: int | None = 2048,
    min_side: int | None = None,
) -> VLMJudge:
    """Build a judge of a model in this process.

    Args:
        model: directory of a vision-language or language model that transformers loads, or 'shapes', the tiny model
            of the shapes world.
        read: logprob (probability of a one-token answer) or json (a written answer, which nothing constrains here).
        prompts: prompt set or file; None = vlm_v1, and shapes_v1 for the model 'shapes'.
        batch_size: questions that go through the model together.
        device: cpu, cuda, cuda:1, ...; None = this rank's GPU if there is one.
        dtype: float32, bfloat16, ...; None = float32 on a CPU, else bfloat16.
        mode, store, exemplars, off_mass, position, seed, repeat, temperature, max_tokens, re_asks, any_verifier,
            max_side, min_side: as for judge 'vlm'.

    Raises:
        InputError: a bad value, or a model that cannot be loaded.
    """
    settings = Settings(
        mode=mode,
        read=read,
        off_mass=off_mass,
        position=position,
        seed=seed,
        repeat=repeat,
        temperature=temperature,
        max_tokens=max_tokens,
        re_asks=re_asks,
        any_verifier=any_verifier,
        images=ImageOptions(max_side=max_side, min_side=min_side),
    )
    templates = Templates.load(prompts or _PROMPTS.get(str(model), "vlm_v1"))
    checked = examples.check(exemplars, mode)
    client = LocalLLM(SHAPES if model == "shapes" else model, batch_size=batch_size, device=device, dtype=dtype)
    return VLMJudge(
        client,
        settings,
        templates,
        checked,
        Store(store) if isinstance(store, (str, Path)) else store,
        # Pictures held in memory; with a question or more each they fill the batches.
        width=2 * batch_size,
    )
