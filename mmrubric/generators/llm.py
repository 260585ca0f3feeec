"""What generators that ask a language model share: the client, the prompt file, the store, and the way out."""

from __future__ import annotations

import asyncio
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from pydantic import BaseModel, ValidationError

from mmrubric.chat import ChatRequest, ImagePart, Message, TextPart
from mmrubric.chat_client import ChatClient
from mmrubric.checks import number, whole
from mmrubric.errors import InputError, RunError
from mmrubric.generators.base import RubricGenerator, registry
from mmrubric.generators.items import with_unique_ids
from mmrubric.llm_asking import Asker, Reading
from mmrubric.llm_json import BadAnswer
from mmrubric.llm_pool import client_of
from mmrubric.prompt import Grounding, Prompt, Sources, sources_of
from mmrubric.prompt_file import Holes, PromptFile, fenced
from mmrubric.rubric import Criterion, Provenance, Rubric
from mmrubric.store import Store
from mmrubric.verdict import Failure

FOLDER = Path(__file__).resolve().parent / "prompts"
Reply = TypeVar("Reply", bound=BaseModel)
_KIND = "generator answer"


class GenerationFailed(RunError):
    """The model gave no usable answer, second chances included. The generator's `fallback` says what happens then."""


@dataclass(frozen=True)
class Asked:
    """What a rubric is asked for."""

    prompt: str
    sources: tuple[ImagePart, ...] = ()
    grounding: Grounding | None = None
    exemplars: tuple[Any, ...] = ()


@dataclass(frozen=True)
class Draft:
    """Criteria, and how they came to be. Ids that repeat are made unique."""

    criteria: Sequence[Criterion]
    notes: tuple[str, ...] = ()
    """Repairs, drops and fallbacks, in words."""
    provenance: Mapping[str, Any] = field(default_factory=dict)
    """Further fields of `Provenance`."""


@dataclass
class LLMGenerator(RubricGenerator):
    """A generator that asks a model in JSON. A subclass gives `NAME`, `PROMPTS`, `HOLES`, `TAKES` and `write`.

    Args:
        base_url: address of an OpenAI-compatible server with its version path, or of several.
        model: name by which the server knows the model; without `base_url` the directory (or .gguf file) of a model
            that runs in this process.
        client: a chat client, in place of `base_url` and `model`.
        store: store of answers, or its path: what was answered once is not asked again.
        prompts: name of a prompt set in `mmrubric/generators/prompts`, or a YAML file of the same form; "" = the
            generator's own.
        temperature, max_tokens: of the sampling, and the budget of one answer.
        seed: sent to the server if temperature > 0.
        re_asks: how often an unreadable answer is asked for again.
        fallback: generator that writes the rubric when the model fails; the reason is noted. "none" = an error.
        timeout, max_retries, concurrency, api_key_env, price_prompt, price_completion: see `mmrubric.chat.Endpoint`.

    Raises:
        InputError: neither a server nor a model nor a client, or a bad value.
    """

    NAME: ClassVar[str]
    """Name and version, as provenance shows it."""
    PROMPTS: ClassVar[str]
    HOLES: ClassVar[Mapping[str, Sequence[str]]]
    """Steps of the prompt file, and the holes of each question."""
    TAKES: ClassVar[frozenset[str]] = frozenset()
    """Which of source, grounding and exemplars it uses."""

    _: KW_ONLY
    base_url: str | Sequence[str] = ()
    model: str = ""
    client: ChatClient | None = None
    store: Store | str | Path | None = None
    prompts: str | Path = ""
    temperature: float = 0.0
    max_tokens: int = 2048
    seed: int = 0
    re_asks: int = 1
    fallback: str = "template"
    timeout: float = 120.0
    max_retries: int = 3
    concurrency: int = 32
    api_key_env: str = "OPENAI_API_KEY"
    price_prompt: float | None = None
    price_completion: float | None = None

    def __post_init__(self) -> None:
        where = f"generator {self.NAME.partition('/')[0]!r}"
        self._where = where
        if self.client is not None and (self.base_url or self.model):
            raise InputError(f"{where}: give a client, or base_url and model, not both")
        self.chat = self.client or self.client_for(self.base_url, self.model, where)
        holes: Holes = {step: {"system": (), "question": names} for step, names in self.HOLES.items()}
        self.texts = PromptFile.read(self.prompts or self.PROMPTS, FOLDER, holes)
        self._store = Store(self.store) if isinstance(self.store, (str, Path)) else self.store
        whole(f"{where}: re_asks", self.re_asks, 0)
        whole(f"{where}: max_tokens", self.max_tokens, 1)
        number(f"{where}: temperature", self.temperature, low=0.0)
        self._fallback = self._other()

    async def generate(
        self,
        prompt: Prompt | str,
        source: Sources = None,
        grounding: Grounding | None = None,
        exemplars: Sequence[Any] = (),
    ) -> Rubric:
        given = sources_of(source, self._where)
        self._refuse(source=given, grounding=grounding, exemplars=exemplars)
        text = prompt.text if isinstance(prompt, Prompt) else prompt
        pictures = tuple([await asyncio.to_thread(ImagePart.of, source) for source in given])
        return await self.finish(text, self.write(Asked(text, pictures, grounding, tuple(exemplars))))

    @abstractmethod
    async def write(self, asked: Asked) -> Draft:
        """The criteria of a prompt.

        Raises:
            GenerationFailed: the model gave nothing that can be used.
        """

    async def finish(self, prompt: str, writing: Any) -> Rubric:
        """The rubric that `writing` (an awaitable `Draft`) gives, or that of the fallback, with its provenance."""
        try:
            draft: Draft = await writing
            if not draft.criteria:
                raise GenerationFailed("no criterion was left")
            return Rubric(
                prompt=prompt,
                criteria=tuple(with_unique_ids(draft.criteria)),
                provenance=self._provenance(draft.notes, **draft.provenance),
            )
        except (GenerationFailed, ValidationError) as error:
            if self._fallback is None:
                raise GenerationFailed(f"{self._where}: no rubric for {prompt[:80]!r}: {error}") from error
            made = await self._fallback.generate(prompt)
            note = f"written by {self.fallback!r}, because {self.NAME} failed: {error}"
            return made.model_copy(update={"provenance": self._provenance((note, *made.provenance.notes))})

    def models_asked(self) -> list[ChatClient]:
        """Every model that it asks, for counting what it spends."""
        return [self.chat]

    async def ask(
        self,
        step: str,
        reply: type[Reply],
        *,
        pictures: Sequence[tuple[str, ImagePart]] = (),
        check: Callable[[Reply], None] = lambda reply: None,
        temperature: float | None = None,
        repeat: int = 0,
        **values: str,
    ) -> Reply:
        """One question of the prompt file, answered in the form of `reply`.

        Args:
            step: section of the prompt file.
            reply: pydantic model of the answer.
            pictures: (label, picture) pairs, shown before the question.
            check: raises ValueError with a complaint that the model can act on.
            temperature: in place of the generator's.
            repeat: number of the asking: other numbers do not see one another's answers, and sample other ones.
            values: what goes into the holes. Text of strangers goes through `fenced` first.

        Raises:
            GenerationFailed: no usable answer, with the type of the failure and the last complaint.
        """
        heat = self.temperature if temperature is None else temperature

        def read(found: Any) -> Reading[Reply]:
            try:
                made = reply.model_validate(found)
                check(made)
            except ValidationError as error:
                raise BadAnswer(complaint(error)) from None
            except BadAnswer:
                raise
            except ValueError as error:
                raise BadAnswer(str(error)) from None
            return Reading(made, found)

        request = ChatRequest(
            messages=self._messages(step, pictures, values),
            max_tokens=self.max_tokens,
            temperature=heat,
            seed=self.seed + repeat if heat > 0 else None,
            response_format={
                "type": "json_schema",
                "json_schema": {"name": step, "schema": reply.model_json_schema()},
            },
        )
        asker = Asker(self.chat, self._store, repeat, _KIND)
        answer = await asker.json(request, read, pictures[0][1].sha256 if pictures else None, self.re_asks)
        if answer.value is None:
            failure = answer.failure or Failure.unparsable
            raise GenerationFailed(f"step {step!r}: {failure.value}: {answer.detail}")
        return answer.value

    def _other(self) -> RubricGenerator | None:
        """The fallback; one that asks a model asks the same one."""
        if self.fallback == "none":
            return None
        if self.fallback not in registry.names():
            raise InputError(
                f"{self._where}: fallback {self.fallback!r} is no generator; known: none, {', '.join(registry.names())}"
            )
        shared = {"client": self.chat, "store": self._store, "fallback": "none"}
        known = registry.options(self.fallback)
        try:
            return registry.build(self.fallback, **{name: value for name, value in shared.items() if name in known})
        except InputError as error:
            raise InputError(f"{self._where}: fallback {self.fallback!r} cannot stand in: {error}") from error

    def _messages(
        self, step: str, pictures: Sequence[tuple[str, ImagePart]], values: Mapping[str, str]
    ) -> tuple[Message, ...]:
        parts: list[TextPart | ImagePart] = []
        for label, picture in pictures:
            parts += [TextPart(label), picture]
        question = Message.of("user", *parts, self.texts.fill(step, "question", **values))
        system = self.texts.fill(step, "system")
        return (Message.of("system", system), question) if system.strip() else (question,)

    def client_for(self, base_url: str | Sequence[str], model: str, where: str) -> ChatClient:
        """A client of a model, with the timeout, retries, key and prices of this generator.

        Raises:
            InputError: neither an address nor a local model, no model, or a bad value; the message begins with `where`.
        """
        if not base_url and model and Path(model).exists():
            from mmrubric.llm_local import LocalLLM

            return LocalLLM(model)
        return client_of(
            base_url,
            model,
            where,
            timeout=self.timeout,
            max_retries=self.max_retries,
            concurrency=self.concurrency,
            api_key_env=self.api_key_env,
            price_prompt=self.price_prompt,
            price_completion=self.price_completion,
        )

    def _refuse(self, **given: Any) -> None:
        for name, value in given.items():
            missing = value is None if name == "grounding" else len(value) == 0
            if name not in self.TAKES and not missing:
                raise InputError(f"{self._where} takes no {name}")

    def _provenance(self, notes: Sequence[str], **more: Any) -> Provenance:
        return Provenance(
            generator=self.NAME, model=self.chat.model, template_hash=self.texts.hash, notes=tuple(notes), **more
        )


def complaint(error: ValidationError) -> str:
    """What is wrong with an answer, in words that a model can act on."""
    faults = [f"{'.'.join(map(str, fault['loc'])) or 'the object'}: {fault['msg']}" for fault in error.errors()]
    return "; ".join(faults)


def fenced_prompt(prompt: str) -> str:
    """The prompt of a picture between two lines that it does not itself contain."""
    return fenced("prompt", prompt)
