"""The survey's vocabulary as enums, and the registry whose components declare it.

Source: From Holistic Evaluation to Structured Criteria, arXiv 2606.08625. The tree is the survey's, the
identifiers are ours.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from enum import StrEnum
from typing import Any, Generic, TypeVar

from mmrubric.checks import switch
from mmrubric.errors import InputError

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


class Construction(StrEnum):
    """Where the criteria come from. A component with two sources declares the one that writes new text."""

    human_expert = "human_expert"
    llm_direct = "llm_direct"
    response_grounded = "response_grounded"
    contrastive_pairs = "contrastive_pairs"
    evidence_driven = "evidence_driven"
    model_internal = "model_internal"
    human_in_the_loop = "human_in_the_loop"


class Optimisation(StrEnum):
    """How criteria are improved after they are written; `none` is ours."""

    none = "none"
    verify = "verify"
    dedup = "dedup"
    refine = "refine"
    confusion_repair = "confusion_repair"
    memory = "memory"
    co_trained = "co_trained"
    adversarial = "adversarial"
    online_elicitation = "online_elicitation"


class Evaluation(StrEnum):
    """How a rubric is used while judging."""

    structural_decomposition = "structural_decomposition"
    format_discretisation = "format_discretisation"
    evidence_anchoring = "evidence_anchoring"
    bias_suppression = "bias_suppression"
    self_refine = "self_refine"
    parallel_selection = "parallel_selection"


class Format(StrEnum):
    """Form of one criterion; declared per criterion, never inferred."""

    boolean = "boolean"
    likert = "likert"
    checklist = "checklist"


class Training(StrEnum):
    """What a rubric does in training."""

    output_level = "output_level"
    process_level = "process_level"
    non_verifiable_extension = "non_verifiable_extension"
    efficient_dynamics = "efficient_dynamics"
    complex_agentic = "complex_agentic"
    preference_optimisation = "preference_optimisation"
    sft = "sft"
    intra_model_loop = "intra_model_loop"
    inter_training_loop = "inter_training_loop"


class Signal(StrEnum):
    """Level of the training signal: the finished output, or its parts."""

    output_level = "output_level"
    process_level = "process_level"


class Loop(StrEnum):
    """Whether rubrics and policy improve each other."""

    none = "none"
    intra_model_loop = "intra_model_loop"
    inter_training_loop = "inter_training_loop"


class Reliability(StrEnum):
    """Axes along which a rubric can fail."""

    generation_quality = "generation_quality"
    execution_fidelity = "execution_fidelity"
    theoretical_limits = "theoretical_limits"
    security = "security"
    boundaries = "boundaries"


class BenchmarkDomain(StrEnum):
    """Domains of rubric benchmarks."""

    general = "general"
    professional = "professional"
    deep_research = "deep_research"
    multimodal = "multimodal"
    academic = "academic"


class Application(StrEnum):
    """Fields of use."""

    health = "health"
    law = "law"
    education = "education"
    finance = "finance"
    society = "society"
    science = "science"


class Depth(StrEnum):
    """How deep a rubric reaches into a model."""

    evaluative = "evaluative"
    training = "training"
    intrinsic = "intrinsic"


class Scope(StrEnum):
    """What a rubric is written for; an axis of ours, apart from its construction."""

    instance = "instance"
    task = "task"
    global_ = "global"


_REQUIRED: dict[str, type[StrEnum]] = {
    "construction": Construction,
    "optimisation": Optimisation,
    "signal": Signal,
    "loop": Loop,
}


@dataclass(frozen=True)
class Tags:
    """The four tags that every registered component declares; all four are required.

    Raises:
        InputError: a value is foreign to its enum; the message lists the known ones. Since components
            register while their module is imported, this is an import-time error.
    """

    construction: Construction
    optimisation: Optimisation
    signal: Signal
    loop: Loop
    shows_rubric_to_policy: bool = False
    """True when the policy reads the rubric that also grades it (a leak risk, so it is declared)."""

    def __post_init__(self) -> None:
        for name, enum in _REQUIRED.items():
            value = getattr(self, name)
            if value not in list(enum):
                known = ", ".join(enum)
                raise InputError(f"tag {name}: unknown value {value!r}; known: {known}")
            object.__setattr__(self, name, enum(value))
        switch("tag shows_rubric_to_policy", self.shows_rubric_to_policy)


class Registry(Generic[T]):
    """Named components of one kind, each with its tags.

    `register` is a plain decorator on a class or factory function; its signature says which options exist.
    """

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._factories: dict[str, Callable[..., T]] = {}
        self._tags: dict[str, Tags] = {}

    def register(self, name: str, tags: Tags) -> Callable[[F], F]:
        """Decorator that adds a class or factory under `name`. A name taken or tags missing: `InputError`."""
        if not isinstance(tags, Tags):
            raise InputError(f"{self.kind} {name!r}: tags must be a Tags object with {', '.join(_REQUIRED)}")
        if name in self._factories:
            raise InputError(f"{self.kind} {name!r} is registered twice")

        def add(factory: F) -> F:
            self._factories[name] = factory
            self._tags[name] = tags
            return factory

        return add

    def names(self) -> list[str]:
        """Names that `build` accepts, sorted."""
        return sorted(self._factories)

    def tags(self, name: str) -> Tags:
        """Tags of the component `name`."""
        self._require(name)
        return self._tags[name]

    def options(self, name: str) -> list[str]:
        """Option names that `build(name, ...)` accepts."""
        self._require(name)
        return [
            key
            for key, parameter in inspect.signature(self._factories[name]).parameters.items()
            if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        ]

    def build(self, name: str, **options: Any) -> T:
        """Build the component `name`.

        Raises:
            InputError: unknown name or unknown option (the message lists the known ones), or a bad value.
        """
        self._require(name)
        known = self.options(name)
        unknown = sorted(set(options) - set(known))
        if unknown:
            listed = ", ".join(known) if known else "none"
            raise InputError(f"{self.kind} {name!r}: unknown option {', '.join(unknown)}; known: {listed}")
        return self._factories[name](**options)

    def filter(self, **tags: str) -> list[str]:
        """Names of the components that declare all the given tags, for example `signal="output_level"`."""
        known = {field.name for field in fields(Tags)}
        for key, value in tags.items():
            if key not in known:
                raise InputError(f"unknown tag {key!r}; known: {', '.join(sorted(known))}")
            if key in _REQUIRED and value not in list(_REQUIRED[key]):
                raise InputError(f"tag {key}: unknown value {value!r}; known: {', '.join(_REQUIRED[key])}")
        return [
            name for name in self.names() if all(getattr(self._tags[name], key) == value for key, value in tags.items())
        ]

    def _require(self, name: str) -> None:
        if name not in self._factories:
            raise InputError(f"unknown {self.kind} {name!r}; known: {', '.join(self.names())}")
