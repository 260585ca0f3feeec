"""What a report is made of: typed objects only, so that any run (or script) can fill one in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from mmrubric.errors import InputError
from mmrubric.rubric import Rubric
from mmrubric.verdict import Verdict

Unit = Literal["share", "count", "number", "points", "text"]


@dataclass(frozen=True)
class Picture:
    """One sample of a prompt with its verdicts."""

    sample_id: str
    verdicts: Sequence[Verdict]
    """The judge's, one per criterion; joined by sample id and criterion id, never by position."""
    second: Sequence[Verdict] = ()
    """The second reader's, or empty when there was none."""
    png: bytes | None = None
    """The picture as PNG bytes; None where it is not to be shown."""


@dataclass(frozen=True)
class PromptResult:
    """A prompt, its checklist, and what the generator drew before and after alignment."""

    prompt_id: str
    text: str
    rubric: Rubric
    before: Sequence[Picture]
    after: Sequence[Picture]
    """Same seeds as `before`, in the same order."""


@dataclass(frozen=True)
class CurvePoint:
    """One training step: means over the pictures judged in that step, None where nothing was scorable."""

    step: int
    reward: float | None
    strict: float | None = None
    """Share of pictures that met their whole checklist, in [0, 1]."""


@dataclass(frozen=True)
class Measure:
    """One line of a reliability section."""

    name: str
    value: float | int | str | None
    """None = not measured; `note` then says why."""
    unit: Unit = "number"
    """`share` is in [0, 1] and printed as per cent; `points` is a difference of shares."""
    note: str = ""
    look: bool = False
    """Worth a reader's attention."""


@dataclass(frozen=True)
class Section:
    """One reliability section: a plain sentence and what was measured."""

    summary: str
    measures: Sequence[Measure]


@dataclass(frozen=True)
class Reliability:
    """The four sections that every report carries (survey of rubrics, arXiv 2606.08625)."""

    rubric_quality: Section | None = None
    judge_fidelity: Section | None = None
    saturation_and_ties: Section | None = None
    attack_probes: Section | None = None

    NAMES: ClassVar[dict[str, str]] = {
        "rubric_quality": "rubric quality",
        "judge_fidelity": "judge fidelity",
        "saturation_and_ties": "saturation and ties",
        "attack_probes": "attack probes",
    }

    def require_all(self) -> None:
        """Check that all four sections are there and say something.

        Raises:
            InputError: names every section that is missing or empty.
        """
        absent = []
        for key, name in self.NAMES.items():
            section: Section | None = getattr(self, key)
            if section is None or not section.measures or not section.summary.strip():
                absent.append(name)
        if absent:
            raise InputError(
                f"the report has no reliability section for: {', '.join(absent)}. "
                "Every report carries all four (rubric quality, judge fidelity, saturation and ties, "
                "attack probes); measure the missing ones or state in the section why that was not possible"
            )

    def items(self) -> list[tuple[str, str, Section]]:
        """(key, printed name, section) of the four sections, in order; call `require_all` first."""
        return [(key, name, getattr(self, key)) for key, name in self.NAMES.items()]


@dataclass(frozen=True)
class AlignmentReport:
    """Everything that the report writer shows about one alignment run."""

    title: str
    results: Sequence[PromptResult]
    """All evaluated prompts in evaluation order; only the first few are shown with pictures."""
    settings: Mapping[str, Any]
    """The run's configuration as plain JSON values; nested mappings become groups of the settings table."""
    seconds: float
    """Wall time from model load to report."""
    judged_images: int
    """Pictures judged in training."""
    judge: str
    """Id of the judge that evaluated."""
    reliability: Reliability
    train_judge: str | None = None
    """Id of the judge that trained; None where nothing was trained."""
    second_reader: str | None = None
    """Id of the second reader; None where there was none."""
    allow_same_judge: bool = False
    curve: Sequence[CurvePoint] = ()
    method: str = ""
    """One plain sentence on what was done."""
    notes: Sequence[str] = ()
    """Sentences the reader must see, such as a run that stopped early."""
    held_out: bool = True
    """Whether training never used the evaluated prompts."""
    timings: Mapping[str, float] = field(default_factory=dict)
    """Seconds per phase, in order."""

    def check(self) -> None:
        """Refuse a report that cannot be read honestly.

        Raises:
            InputError: no prompts; a reliability section is missing (named); a prompt without pictures on one
                side or with a different number of them; one judge for training and evaluation without
                `allow_same_judge`.
        """
        self.reliability.require_all()
        if not self.results:
            raise InputError("the report has no prompts: evaluate at least one before writing it")
        seen: set[str] = set()
        for result in self.results:
            if result.prompt_id in seen:
                raise InputError(f"prompt id {result.prompt_id!r} is in the report twice; ids must be unique")
            seen.add(result.prompt_id)
            if not result.before or len(result.before) != len(result.after):
                raise InputError(
                    f"prompt {result.prompt_id!r} has {len(result.before)} pictures before and "
                    f"{len(result.after)} after; the comparison is paired, so both need the same number"
                )
        if self.train_judge is not None and self.train_judge == self.judge and not self.allow_same_judge:
            raise InputError(
                f"judge {self.judge!r} both trained and evaluated this run; evaluate with another judge, "
                "or set allow_same_judge: true, which the report then says"
            )
