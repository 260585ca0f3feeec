"""Options of the VLM judge that decide its answers; each acts, or is refused in the mode where it could not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from mmrubric.checks import number, one_of, switch
from mmrubric.errors import InputError
from mmrubric.images import ImageOptions

MODES = ("per_criterion", "batched", "joint_rank")
READS = ("json", "logprob")
POSITIONS = ("both", "random", "first")


@dataclass(frozen=True)
class Settings:
    """How the judge asks and reads.

    Raises:
        InputError: a bad value, or an option that does nothing in this mode.
    """

    mode: str = "per_criterion"
    """per_criterion: one call per criterion; batched: one call per candidate; joint_rank: two candidates a call."""
    read: str = "json"
    """json: a written answer with a reason; logprob: probability of a one-token answer (per_criterion only)."""
    off_mass: float = 0.1
    """logprob: probability outside the possible answers, in [0, 1), above which a verdict is unknown."""
    position: str = "both"
    """joint_rank: ask in both orders, in one random order that the content decides, or only a first."""
    seed: int = 0
    """Shuffles the criteria of a batch and the random position; sent to the server if temperature > 0."""
    repeat: int = 0
    """Number of the asking: 1, 2, ... ask the same again past the store, to measure the judge's noise."""
    temperature: float = 0.0
    max_tokens: int = 512
    """Budget of a written answer; each further criterion of a batch adds a quarter of it."""
    re_asks: int = 1
    """How often an answer that cannot be read, or the missing part of a batch, is asked for again."""
    any_verifier: bool = False
    """Answer criteria of other verifiers as well (ocr, clip, rule:...), by their text."""
    images: ImageOptions = field(default_factory=ImageOptions)
    extra_body: Mapping[str, Any] | None = None
    """Server parameters beyond the OpenAI ones, such as {"chat_template_kwargs": {"enable_thinking": False}}."""

    def __post_init__(self) -> None:
        one_of("mode", self.mode, MODES)
        one_of("read", self.read, READS)
        one_of("position", self.position, POSITIONS)
        number("off_mass", self.off_mass, 0.0, 1.0)
        number("temperature", self.temperature, 0.0)
        switch("any_verifier", self.any_verifier)
        for name, least in (("seed", 0), ("repeat", 0), ("re_asks", 0), ("max_tokens", 1)):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int) or value < least:
                raise InputError(f"{name}: {value!r} is not an integer of at least {least}")
        if self.read == "logprob" and self.mode != "per_criterion":
            raise InputError(f"read: 'logprob' reads one answer a call; mode {self.mode!r} needs read='json'")
        if self.off_mass == 1.0:
            raise InputError("off_mass: 1.0 would accept an answer without any probability; use less")
        for name, acts in (
            ("off_mass", self.read == "logprob"),
            ("max_tokens", self.read == "json"),
            ("re_asks", self.read == "json"),
            ("position", self.mode == "joint_rank"),
            ("any_verifier", self.mode != "joint_rank"),
        ):
            if not acts and getattr(self, name) != getattr(type(self), name):
                raise InputError(f"{name}: does nothing with mode {self.mode!r} and read {self.read!r}; leave it out")

    def identity(self) -> dict[str, Any]:
        """All of it as JSON, for the judge's id."""
        return asdict(self)

    @property
    def sampling_seed(self) -> int | None:
        """Seed for the server; other repeats draw other samples."""
        return self.seed + self.repeat if self.temperature > 0 else None
