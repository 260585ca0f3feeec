"""Similarity of picture and text by a CLIP model of open_clip: as a verifier of criteria, and as a baseline reward.

verifier: clip
arguments: {contrast: ["a photo of a dog"]}     # P(text) against other texts, in [0, 1]
arguments: {threshold: 0.28}                    # cosine from which the criterion is met
"""

from __future__ import annotations

import asyncio
import hashlib
import threading
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol

import numpy as np
from PIL import Image
from pydantic import Field, field_validator

from judges.pictures import Answer, Arguments, PictureJudge, count, foreign, parse
from mmrubric import images
from mmrubric.checks import number, one_of
from mmrubric.errors import InputError
from mmrubric.judging import JudgeRequest, run_sync
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Verdict

VERIFIER = "clip"
DEFAULT_MODEL = "hf-hub:laion/CLIP-ViT-B-32-laion2B-s34B-b79K"
PRECISIONS = ("fp32", "bf16", "fp16")
CLIP_SCORE_SCALE = 2.5
_LOCAL = "local-dir:"
_SCHEMAS = (_LOCAL, "hf-hub:")
_LONG = 1024
"""Tokens at which a text is tokenised to find out whether the model would cut it."""
_TEXT_BATCH = 64
_KEPT = 20_000
"""Texts whose vectors are kept (about 40 MB)."""
_keep_alive: list[Any] = []
"""Operator declarations last as long as the object that made them."""


class ClipArguments(Arguments):
    """Arguments of a criterion with the verifier `clip`."""

    text: str | None = None
    """What the picture is compared with; default: the text of the criterion."""
    contrast: str | tuple[str, ...] | None = None
    """One or more texts that would hold instead; met = softmax probability of `text` among them."""
    threshold: Annotated[float, Field(ge=-1, le=1)] | None = None
    """Cosine (or probability, with `contrast`) from which the criterion is met; met is then 0 or 1."""

    @field_validator("text", "contrast")
    @classmethod
    def _not_blank(cls, value: str | tuple[str, ...] | None) -> str | tuple[str, ...] | None:
        texts = (value,) if isinstance(value, str) else value
        if texts is not None and (not texts or not all(text.strip() for text in texts)):
            raise ValueError("must not be blank")
        return value


@dataclass(frozen=True)
class ClipPlan:
    """Texts that a picture is compared with, the asked one first."""

    texts: tuple[str, ...]
    threshold: float | None

    def answer(self, cosines: np.ndarray, scale: float) -> Answer:
        """The answer to the cosines [len(texts)] of a picture; `scale` is the model's logit scale."""
        if len(self.texts) == 1:
            what, value = f"cosine with {self.texts[0]!r}", float(cosines[0])
        else:
            what, value = f"probability of {self.texts[0]!r}", first_probability(cosines, scale)
        if self.threshold is None:
            return Answer(value, f"{what} is {value:.4f} among {len(self.texts)} texts")
        return Answer(float(value >= self.threshold), f"{what} is {value:.4f}, asked: at least {self.threshold:g}")


def first_probability(cosines: np.ndarray, scale: float) -> float:
    """Softmax probability of the first text: exp(scale c_0) / sum_k exp(scale c_k), in [0, 1].

    Args:
        cosines: [K].
        scale: factor of the logits, about 100 for trained models. CLIP, arXiv 2103.00020.
    """
    logits = scale * (cosines.astype(np.float64) - cosines.max())
    weights = np.exp(logits)
    return float(weights[0] / weights.sum())


def clip_score(cosines: np.ndarray) -> np.ndarray:
    """2.5 max(cosine, 0), cut at 1: a reward in [0, 1]. CLIPScore, arXiv 2104.08718; the cut is ours."""
    return np.clip(CLIP_SCORE_SCALE * cosines.astype(np.float64), 0.0, 1.0)


class Encoder(Protocol):
    """Pictures and texts to unit vectors of one space. Safe for several threads."""

    id: str
    """Model, weights and versions."""
    scale: float
    """Factor of the logits."""
    context: int
    """Number of tokens that the model reads; it cuts longer texts."""

    def tokens(self, text: str) -> int:
        """Number of tokens of a text, the special ones included."""
        ...

    def pictures(self, pictures: Sequence[Image.Image]) -> np.ndarray:
        """Unit vectors, float32 [N, D], of RGB pictures."""
        ...

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """Unit vectors, float32 [K, D], of texts."""
        ...


class OpenClip:
    """An `Encoder` by a model of open_clip.

    Args:
        model: see `clip`.
        pretrained, precision, device: see `clip`.

    Raises:
        InputError: open_clip is not installed, or the weights cannot be loaded.
    """

    def __init__(self, model: str, pretrained: str | None, precision: str, device: str | None) -> None:
        if find_spec("open_clip") is None:
            raise InputError("CLIP needs open_clip, not installed: pip install mmrubric[clip]")
        if model.startswith(_SCHEMAS) != (pretrained is None):
            raise InputError(
                f"model {model!r}, pretrained {pretrained!r}: weights come with 'hf-hub:org/name' and "
                f"'{_LOCAL}folder', without pretrained; any other model needs pretrained, a tag of open_clip or a file"
            )
        one_of("precision", precision, PRECISIONS)
        import torch

        _import_torchvision(torch)
        import open_clip  # pyright: ignore[reportMissingImports]

        # 'cuda' without a number is the process's own device, not always the first one.
        self._device = device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            # Raises where no weights are found: a randomly initialised judge would answer as surely as a trained one.
            self._model, self._transform = open_clip.create_model_from_pretrained(
                model, pretrained, precision=precision, device=self._device, weights_only=True
            )
            self._tokenizer = open_clip.get_tokenizer(model)
        except (RuntimeError, ValueError, OSError) as error:
            raise InputError(f"model {model!r}, pretrained {pretrained!r}: cannot be loaded: {error}") from error
        self._model.eval().requires_grad_(False)
        self._dtype = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[precision]
        self._lock = threading.Lock()
        self._known: dict[str, np.ndarray] = {}
        self.context = int(self._tokenizer.context_length)
        self.scale = float(self._model.logit_scale.exp())
        # The weights and not their folder: a copy is the same judge, other weights in the folder are another.
        name = "local" if model.startswith(_LOCAL) else model
        self.id = f"open_clip-{version('open_clip_torch')}:{name}:{_fingerprint(model, pretrained)}:{precision}"

    def tokens(self, text: str) -> int:
        """See `Encoder`."""
        (row,) = self._tokenizer([text], context_length=_LONG).tolist()
        # Whatever stands last is padding, unless the text fills the row.
        return max((k + 1 for k, token in enumerate(row) if token != row[-1]), default=_LONG)

    def pictures(self, pictures: Sequence[Image.Image]) -> np.ndarray:
        """See `Encoder`."""
        import torch

        batch = torch.stack([self._transform(picture) for picture in pictures])
        with self._lock, torch.inference_mode():
            encoded = self._model.encode_image(batch.to(self._device, self._dtype), normalize=True)
        return encoded.float().cpu().numpy()

    def texts(self, texts: Sequence[str]) -> np.ndarray:
        """See `Encoder`; what was encoded before is kept."""
        with self._lock:
            fresh = [text for text in dict.fromkeys(texts) if text not in self._known]
            if len(self._known) + len(fresh) > _KEPT:
                self._known.clear()
                fresh = list(dict.fromkeys(texts))
            for start in range(0, len(fresh), _TEXT_BATCH):
                part = fresh[start : start + _TEXT_BATCH]
                self._known.update(zip(part, self._encode(part), strict=True))
            return np.stack([self._known[text] for text in texts])

    def _encode(self, texts: list[str]) -> np.ndarray:
        import torch

        with torch.inference_mode():
            encoded = self._model.encode_text(self._tokenizer(texts).to(self._device), normalize=True)
        return encoded.float().cpu().numpy()


class ClipJudge(PictureJudge[ClipPlan]):
    """A `Judge` of criteria whose verifier is `clip`, and a baseline reward (`reward`).

    Args:
        encoder: the model.
        threshold: cosine for criteria that give neither `contrast` nor `threshold`; None = those are refused.
        batch_size: pictures encoded at once.
    """

    def __init__(self, encoder: Encoder, threshold: float | None = None, batch_size: int = 64) -> None:
        self._threshold = None if threshold is None else number("threshold", threshold, -1.0, 1.0)
        limit = "" if self._threshold is None else f":{self._threshold:g}"
        super().__init__(f"clip/1:{encoder.id}{limit}", "clip")
        self._encoder = encoder
        self._batch_size = count("batch_size", batch_size)

    def plan(self, criterion: Criterion, rubric: Rubric) -> ClipPlan:
        """See `PictureJudge`. A text that the model would cut is refused: it would be judged by its beginning."""
        if criterion.verifier != VERIFIER:
            raise foreign(criterion, self.id, repr(VERIFIER))
        arguments = parse(ClipArguments, criterion)
        others = (arguments.contrast,) if isinstance(arguments.contrast, str) else arguments.contrast or ()
        threshold = arguments.threshold
        if threshold is None and not others:
            threshold = self._threshold
            if threshold is None:
                raise InputError(
                    f"criterion {criterion.id!r}: give arguments.contrast (a text that would hold instead) or "
                    "arguments.threshold (a cosine), or build the judge with a threshold"
                )
        texts = (arguments.text or criterion.text, *others)
        for text in texts:
            if (tokens := self._encoder.tokens(text)) > self._encoder.context:
                raise InputError(
                    f"criterion {criterion.id!r}: {tokens} tokens, and the model reads {self._encoder.context}; "
                    f"shorten {text[:60]!r}"
                )
        return ClipPlan(texts, threshold)

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """See `PictureJudge`; pictures are encoded in batches."""
        plans = await asyncio.to_thread(self.plans, requests)
        verdicts: list[list[Verdict]] = []
        for start in range(0, len(requests), self._batch_size):
            part = slice(start, start + self._batch_size)
            verdicts += await asyncio.to_thread(self._batch, requests[part], plans[part])
        return verdicts

    def _batch(self, requests: Sequence[JudgeRequest], plans: Sequence[Sequence[ClipPlan]]) -> list[list[Verdict]]:
        return [
            self.verdicts(request, vector if isinstance(vector, InputError) else self._answers(vector, plan))
            for request, plan, vector in zip(requests, plans, self._vectors(requests), strict=True)
        ]

    def _answers(self, vector: np.ndarray, plans: Sequence[ClipPlan]) -> list[Answer]:
        return [plan.answer(self._encoder.texts(plan.texts) @ vector, self._encoder.scale) for plan in plans]

    def _vectors(self, requests: Sequence[JudgeRequest]) -> list[np.ndarray | InputError]:
        """Unit vector [D] of every candidate, or why it cannot be opened."""
        opened = [_opened(request) for request in requests]
        usable = [picture for picture in opened if isinstance(picture, Image.Image)]
        encoded = iter(self._encoder.pictures(usable) if usable else ())
        return [next(encoded) if isinstance(picture, Image.Image) else picture for picture in opened]

    async def reward(self, requests: Sequence[JudgeRequest]) -> np.ndarray:
        """CLIPScore of each candidate with the prompt of its rubric: float64 [N] in [0, 1], NaN = bad picture.

        The criteria are not looked at. A prompt longer than the model reads is cut, with a warning.

        Raises:
            InputError: a candidate is a text, or a rubric has no prompt.
        """
        return await asyncio.to_thread(self._reward, requests)

    def reward_sync(self, requests: Sequence[JudgeRequest]) -> np.ndarray:
        """`reward` for callers outside a coroutine, and inside a running event loop."""
        return run_sync(self.reward(requests))

    def _reward(self, requests: Sequence[JudgeRequest]) -> np.ndarray:
        prompts = [request.rubric.prompt for request in requests]
        for request in requests:
            if isinstance(request.candidate, str) or not request.rubric.prompt.strip():
                raise InputError(
                    f"CLIP reward of sample {request.sample_id!r}: needs a picture and a rubric with a prompt"
                )
        cut = [prompt for prompt in dict.fromkeys(prompts) if self._encoder.tokens(prompt) > self._encoder.context]
        if cut:
            warnings.warn(
                f"{len(cut)} prompts are longer than the {self._encoder.context} tokens that CLIP reads and are cut, "
                f"such as {cut[0][:60]!r}",
                stacklevel=2,
            )
        rewards = np.full(len(requests), np.nan)
        for start in range(0, len(requests), self._batch_size):
            vectors = self._vectors(requests[start : start + self._batch_size])
            for k, vector in enumerate(vectors, start=start):
                if not isinstance(vector, InputError):
                    rewards[k] = clip_score(self._encoder.texts(prompts[k : k + 1]) @ vector)[0]
        return rewards


def _opened(request: JudgeRequest) -> Image.Image | InputError:
    try:
        return images.normalize(request.candidate)
    except InputError as error:
        return error


def _fingerprint(model: str, pretrained: str | None) -> str:
    """What tells weights apart: the tag, or for local files the sha256 of their names and contents."""
    if model.startswith(_LOCAL):
        files = sorted(path for path in Path(model.removeprefix(_LOCAL)).iterdir() if path.is_file())
    elif pretrained is not None and Path(pretrained).is_file():
        files = [Path(pretrained)]
    else:
        return pretrained or "hub"
    digest = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            digest.update(path.name.encode() + hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()[:16]


def _import_torchvision(torch: Any) -> None:
    """Import torchvision also where its compiled operators do not fit a CPU-only torch.

    Its Python part then fails on operators that CLIP never calls; declaring them is enough.
    """
    try:
        import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms" not in str(error):
            raise
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _keep_alive.append(library)
        import_module("torchvision")


def clip(
    model: str = DEFAULT_MODEL,
    pretrained: str | None = None,
    threshold: float | None = None,
    precision: Literal["fp32", "bf16", "fp16"] = "fp32",
    device: str | None = None,
    batch_size: int = 64,
) -> ClipJudge:
    """The judge by CLIP similarity; loads the model.

    Args:
        model: 'hf-hub:org/name', 'local-dir:folder', or a model name of open_clip together with `pretrained`.
        pretrained: a weight tag of open_clip, or a weight file.
        threshold: cosine for criteria that give neither `contrast` nor `threshold`.
        precision: fp16 is slow on a CPU.
        device: such as 'cuda:1'; by default the process's CUDA device, else the CPU.
        batch_size: pictures encoded at once.

    Raises:
        InputError: open_clip is not installed, a bad option, or weights that cannot be loaded.
    """
    return ClipJudge(OpenClip(model, pretrained, precision, device), threshold, batch_size)
