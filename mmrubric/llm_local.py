"""A chat model in this process through transformers, behind the interface of the HTTP client.

Calls that wait at the same time are answered in one batch. Nothing constrains the answer: a JSON schema is not sent,
and what comes is validated as always.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import io
import os
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from PIL import Image

from mmrubric.chat import ChatReply, ChatRequest, ImagePart, Message, TextPart, Token, Usage
from mmrubric.chat_client import Call, ChatClient
from mmrubric.chat_errors import CallFailed
from mmrubric.chat_format import FormatMemory
from mmrubric.chat_reply import hidden_failure
from mmrubric.errors import InputError
from mmrubric.verdict import Cost, Failure


@dataclass
class _Job:
    request: ChatRequest
    done: Future[tuple[ChatReply, Cost]] = field(default_factory=Future)

    @property
    def kind(self) -> tuple[Any, ...]:
        """Jobs of one kind can share a batch."""
        return self.request.max_tokens, self.request.top_logprobs, self.request.temperature > 0


class LocalLLM(ChatClient):
    """A language or vision-language model that `from_pretrained` loads.

    Args:
        folder: directory of the model and its tokenizer or processor, with a chat template; or a .gguf file, which
            needs the package gguf.
        batch_size: calls in one batch at most.
        device: cpu, cuda, cuda:1, ...; None = this rank's GPU if there is one.
        dtype: name of a torch dtype; None = float32 on a CPU, bfloat16 elsewhere.

    Raises:
        InputError: no model there, or one without a chat template.
    """

    def __init__(
        self, folder: str | Path, *, batch_size: int = 64, device: str | None = None, dtype: str | None = None
    ) -> None:
        folder = Path(folder)
        gguf = folder.suffix == ".gguf" and folder.is_file()
        if not gguf and not (folder / "config.json").is_file():
            raise InputError(f"local model: {folder} holds no config.json; give the directory of a saved model")
        if batch_size < 1:
            raise InputError(f"local model: batch_size must be at least 1, got {batch_size}")
        # Never loads code from the folder, so that equal files are equal models.
        address = f"local:{_content_hash(folder)}"
        name = folder.stem if gguf else folder.name
        super().__init__(name, address, Usage(), FormatMemory(refused=("json_schema", "json_object")))
        self._model = _Model.load(folder, device, dtype)
        self._batch_size = batch_size
        self._lock = threading.Lock()
        self._waiting: list[_Job] = []
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="local-llm")

    async def aclose(self) -> None:
        """Nothing is open between calls."""

    async def _answer(self, call: Call) -> ChatReply:
        call.sent = self.formats.apply(call.request)
        if not self._model.sees and any(isinstance(p, ImagePart) for m in call.sent.messages for p in m.parts):
            raise CallFailed(Failure.bad_image, f"{self.model} reads no pictures", retry=False)
        job = _Job(call.sent)
        with self._lock:
            self._waiting.append(job)
        self._worker.submit(self._work)
        try:
            reply, cost = await asyncio.wrap_future(job.done)
        except CallFailed as error:
            call.spent.append(self.usage.attempt(error.usage))
            raise
        call.spent.append(self.usage.attempt(cost))
        return reply

    def _work(self) -> None:
        """Answers one batch of what is waiting; runs once for each job, so that none is left."""
        with self._lock:
            kind = self._waiting[0].kind if self._waiting else None
            batch = [job for job in self._waiting if job.kind == kind][: self._batch_size]
            taken = set(map(id, batch))
            self._waiting = [job for job in self._waiting if id(job) not in taken]
        batch = [job for job in batch if job.done.set_running_or_notify_cancel()]
        if not batch:
            return
        try:
            answers = self._model.answer([job.request for job in batch])
        except BaseException as error:
            for job in batch:
                job.done.set_exception(error)
            return
        for job, answer in zip(batch, answers, strict=True):
            if isinstance(answer, CallFailed):
                job.done.set_exception(answer)
            else:
                job.done.set_result(answer)


class _Model:
    """The weights, and how a batch of requests goes through them."""

    def __init__(self, model: Any, processor: Any, sees: bool) -> None:
        self._model, self._processor, self.sees = model, processor, sees
        self._tokenizer = processor.tokenizer if sees else processor
        self._tokenizer.padding_side = "left"
        if self._tokenizer.pad_token_id is None:
            self._tokenizer.pad_token = self._tokenizer.eos_token
        self._longest = getattr(model.config.get_text_config(), "max_position_embeddings", None)

    @classmethod
    def load(cls, folder: Path, device: str | None, dtype: str | None) -> _Model:
        import torch
        import transformers
        from safetensors import SafetensorError

        device = device or default_device(torch.cuda.is_available(), os.environ)
        kind = getattr(torch, dtype or ("float32" if device == "cpu" else "bfloat16"), None)
        if not isinstance(kind, torch.dtype) or not kind.is_floating_point:
            raise InputError(f"local model: dtype {dtype!r} is none of torch's, such as float32 or bfloat16")
        try:
            file = {"gguf_file": folder.name} if folder.is_file() else {}
            place = folder.parent if file else folder
            config = transformers.AutoConfig.from_pretrained(place, **file)
            sees = hasattr(config, "vision_config")
            loader = transformers.AutoModelForImageTextToText if sees else transformers.AutoModelForCausalLM
            model: Any = loader.from_pretrained(place, dtype=kind, **file)
            model = model.to(device).eval().requires_grad_(False)
            reader = transformers.AutoProcessor if sees else transformers.AutoTokenizer
            processor: Any = reader.from_pretrained(place, **file)
        except (OSError, ValueError, KeyError, RuntimeError, ImportError, SafetensorError) as error:
            raise InputError(f"local model: {folder} cannot be loaded by transformers: {error}") from error
        if not processor.chat_template:
            raise InputError(f"local model: {folder} has no chat template; add chat_template.jinja to it")
        return cls(model, processor, sees)

    def answer(self, requests: Sequence[ChatRequest]) -> list[tuple[ChatReply, Cost] | CallFailed]:
        """One answer, or failure, per request, all of one kind; greedy, or sampled from each request's own seed."""
        inputs = self._encoded(requests)
        most = self._longest - requests[0].max_tokens if self._longest else None
        fits = [most is None or int(row.sum()) <= most for row in inputs["attention_mask"]]
        kept = [request for request, fit in zip(requests, fits, strict=True) if fit]
        if not all(fits) and kept:
            inputs = self._encoded(kept)
        made = self._generate(inputs, kept) if kept else None
        rows = iter(range(len(kept)))
        return [
            self._reply(request, inputs, made, next(rows)) if fit else _too_long(self._longest)
            for request, fit in zip(requests, fits, strict=True)
        ]

    def _generate(self, inputs: Any, requests: Sequence[ChatRequest]) -> Any:
        import torch

        inputs = inputs.to(self._model.device)
        for name, value in inputs.items():
            if value.is_floating_point():
                inputs[name] = value.to(self._model.dtype)
        with torch.inference_mode():
            return self._model.generate(
                **inputs,
                max_new_tokens=requests[0].max_tokens,
                do_sample=False,
                logits_processor=[_Sampling(requests)] if requests[0].temperature > 0 else [],
                output_logits=True,
                return_dict_in_generate=True,
                pad_token_id=self._tokenizer.pad_token_id,
            )

    def _prompt(self, request: ChatRequest) -> str:
        messages = [self._message(message) for message in request.messages]
        options = dict((request.extra_body or {}).get("chat_template_kwargs") or {})
        return self._processor.apply_chat_template(messages, tokenize=False, add_generation_prompt=True, **options)

    def _message(self, message: Message) -> dict[str, Any]:
        if not self.sees:
            return {
                "role": message.role,
                "content": "\n".join(p.text for p in message.parts if isinstance(p, TextPart)),
            }
        parts = [
            {"type": "image"} if isinstance(p, ImagePart) else {"type": "text", "text": p.text} for p in message.parts
        ]
        return {"role": message.role, "content": parts}

    def _encoded(self, requests: Sequence[ChatRequest]) -> Any:
        """The requests as left-padded tensors."""
        texts = [self._prompt(request) for request in requests]
        options: dict[str, Any] = {"add_special_tokens": False, "return_tensors": "pt", "padding": True}
        if not self.sees:
            return self._tokenizer(texts, **options)
        pictures = [[_decoded(p) for m in r.messages for p in m.parts if isinstance(p, ImagePart)] for r in requests]
        given = {"images": pictures} if any(pictures) else {}
        return self._processor(text=texts, **given, **options)

    def _reply(self, request: ChatRequest, inputs: Any, made: Any, row: int) -> tuple[ChatReply, Cost]:
        start = inputs["input_ids"].shape[1]
        ids = made.sequences[row, start:].tolist()
        ends = self._model.generation_config.eos_token_id
        ends = set(ends) if isinstance(ends, list) else {ends}
        stop = next((k for k, id in enumerate(ids) if id in ends), None)
        written = ids if stop is None else ids[:stop]
        count = len(ids) if stop is None else stop + 1
        tokens = ()
        if request.top_logprobs is not None:
            tokens = tuple(self._token(made.logits[k][row], ids[k], request.top_logprobs) for k in range(count))
        text = self._tokenizer.decode(written, skip_special_tokens=True)
        reply = ChatReply(text=text, finish="length" if stop is None else "stop", tokens=tokens)
        failure, detail = hidden_failure(reply, None, request)
        cost = Cost(prompt_tokens=int(inputs["attention_mask"][row].sum()), completion_tokens=count)
        return ChatReply(text, failure, detail, reply.finish, tokens), cost

    def _token(self, logits: Any, chosen: int, top: int) -> Token:
        logprobs = logits.float().log_softmax(-1)
        best = logprobs.topk(min(top, len(logprobs)))
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        alternatives = tuple((self._tokenizer.decode([id]), value) for id, value in pairs)
        return Token(self._tokenizer.decode([chosen]), float(logprobs[chosen]), alternatives)


class _Sampling:
    """Sampling by the Gumbel trick: the greatest of logits / temperature + noise is a draw from their softmax.

    Each request has its own generator, so that an answer depends neither on its batch nor on the process's random
    state, which a trainer beside it must find unchanged.
    """

    def __init__(self, requests: Sequence[ChatRequest]) -> None:
        import torch

        self._temperatures = [request.temperature for request in requests]
        self._generators = []
        for request in requests:
            generator = torch.Generator()
            generator.seed() if request.seed is None else generator.manual_seed(request.seed)
            self._generators.append(generator)

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        import torch

        noise = [torch.empty(scores.shape[-1]).exponential_(generator=g).log() for g in self._generators]
        scale = torch.tensor(self._temperatures, device=scores.device)[:, None]
        return scores / scale - torch.stack(noise).to(scores.device)


def default_device(gpu: bool, environment: Mapping[str, str]) -> str:
    """The GPU of this rank, where there is one: on the first GPU the judges of all ranks would meet."""
    return f"cuda:{environment.get('LOCAL_RANK', 0)}" if gpu else "cpu"


def _too_long(longest: int | None) -> CallFailed:
    return CallFailed(Failure.server_error, f"the prompt and its answer are longer than {longest} tokens", retry=False)


def _decoded(part: ImagePart) -> Image.Image:
    return Image.open(io.BytesIO(base64.b64decode(part.url.partition(",")[2]))).convert("RGB")


_DECIDING = frozenset({".json", ".jinja", ".safetensors", ".bin", ".model", ".txt", ".gguf"})
"""Suffixes of the files that decide the answers of a model."""


def _content_hash(folder: Path) -> str:
    """sha256 over the names and contents of the files that decide the answers."""
    total = hashlib.sha256()
    for path in [folder] if folder.is_file() else sorted(folder.iterdir()):
        if path.is_file() and path.suffix in _DECIDING:
            with path.open("rb") as file:
                total.update(f"{path.name} {hashlib.file_digest(file, 'sha256').hexdigest()}\n".encode())
    return total.hexdigest()[:16]
