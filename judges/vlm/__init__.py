"""The judge that asks a vision-language model behind any OpenAI-compatible server (vLLM, SGLang, hosted)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from judges.vlm import exemplars as examples
from judges.vlm.exemplars import Exemplar, Exemplars, RankExemplar
from judges.vlm.judge import VLMJudge
from judges.vlm.ranking import Ranking
from judges.vlm.settings import Settings
from judges.vlm.templates import Templates
from mmrubric.images import ImageOptions
from mmrubric.llm_pool import client_of
from mmrubric.store import Store

__all__ = ["Exemplar", "RankExemplar", "Ranking", "VLMJudge", "vlm"]


def vlm(
    *,
    base_url: str | Sequence[str] = (),
    model: str = "",
    mode: str = "per_criterion",
    read: str = "json",
    timeout: float = 60.0,
    max_retries: int = 3,
    concurrency: int = 32,
    store: Store | str | Path | None = None,
    off_mass: float = 0.1,
    position: str = "both",
    seed: int = 0,
    repeat: int = 0,
    temperature: float = 0.0,
    max_tokens: int = 512,
    re_asks: int = 1,
    any_verifier: bool = False,
    exemplars: Exemplars = (),
    prompts: str | Path = "vlm_v1",
    max_side: int | None = 2048,
    min_side: int | None = None,
    extra_body: Mapping[str, Any] | None = None,
    deadline: float | None = None,
    api_key_env: str = "OPENAI_API_KEY",
    price_prompt: float | None = None,
    price_completion: float | None = None,
) -> VLMJudge:
    """Build a VLM judge.

    Args:
        base_url: address of the server with its version path, or of several servers of the same model; pictures are
            then spread by their content, so that each server's prefix cache serves its own.
        model: name by which the server knows the model.
        mode: per_criterion (one call per criterion), batched (one call per candidate), or joint_rank (two candidates
            and the whole rubric in one call; `compare` only).
        read: json (a written answer with a reason) or logprob (probability of a one-token answer; per_criterion
            only).
        timeout, max_retries, concurrency, deadline, price_prompt, price_completion: see `mmrubric.chat.Endpoint`;
            concurrency is for each server.
        store: verdict store, or its path: what was answered once is not asked again.
        off_mass: logprob: probability outside the possible answers above which a verdict is unknown.
        position: joint_rank: orders to ask in: both, random (one, decided by the content) or first (as given).
        seed: shuffles the criteria of a batch and the random position; sent to the server if temperature > 0.
        repeat: 1, 2, ... asks the same again past the store, to measure the judge's noise.
        temperature: of the sampling.
        max_tokens: budget of a written answer; each further criterion of a batch adds a quarter of it.
        re_asks: how often an unreadable answer, or the missing part of a batch, is asked for again.
        any_verifier: answer criteria of other verifiers (ocr, clip, rule:...) as well, by their text.
        exemplars: worked examples, `Exemplar` or, for joint_rank, `RankExemplar`; or a JSONL file of them.
        prompts: name of a prompt set in `judges/prompts`, or a YAML file of the same form.
        max_side, min_side: larger pictures are scaled down, smaller ones up, in pixels.
        extra_body: server parameters, such as {"chat_template_kwargs": {"enable_thinking": False}}.
        api_key_env: environment variable that holds the key.

    Raises:
        InputError: a bad value, one that does nothing in this mode, or an unreadable file.
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
        extra_body=extra_body,
    )
    client = client_of(
        base_url,
        model,
        "judge 'vlm'",
        timeout=timeout,
        max_retries=max_retries,
        concurrency=concurrency,
        deadline=deadline,
        api_key_env=api_key_env,
        price_prompt=price_prompt,
        price_completion=price_completion,
    )
    return VLMJudge(
        client,
        settings,
        Templates.load(prompts),
        examples.check(exemplars, mode),
        Store(store) if isinstance(store, (str, Path)) else store,
        width=concurrency * (1 if isinstance(base_url, str) else len(base_url)),
    )
