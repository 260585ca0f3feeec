"""What a rule is: typed arguments, and a measurement compared with limits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import ClassVar, Self

from pydantic import model_validator

from judges.pictures import Answer, Arguments
from judges.rules.view import View


class Rule(Arguments, ABC):
    """A statement about pixels. Its fields are the arguments of the criterion."""

    @abstractmethod
    def __call__(self, view: View) -> Answer:
        """Measure, and say whether the statement holds (met 0 or 1), or that it does not apply.

        Raises:
            InputError: a picture that the rule needs cannot be used.
        """


class Limits(Rule):
    """A rule whose measurement must lie between `min` and `max`."""

    lowest: ClassVar[float] = 0.0
    highest: ClassVar[float] = float("inf")
    """Range of the measurement; a limit outside it is a slip."""
    min: float | None = None
    """Smallest value that holds."""
    max: float | None = None
    """Largest value that holds."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        given = [limit for limit in (self.min, self.max) if limit is not None]
        if not given:
            raise ValueError("give min, max or both")
        for limit in given:
            if not self.lowest <= limit <= self.highest:
                raise ValueError(f"min and max lie in [{self.lowest:g}, {self.highest:g}], got {limit:g}")
        if given != sorted(given):
            raise ValueError(f"min {self.min:g} is larger than max {self.max:g}")
        return self

    def within(self, what: str, value: float) -> Answer:
        """The answer to a measured value; `what` begins the reason."""
        return limited(what, value, self.min, self.max)


def limited(what: str, value: float, low: float | None, high: float | None, unit: str = "") -> Answer:
    """Whether low <= value <= high, with a reason that names value and limits; None = no limit."""
    met = (low is None or value >= low) and (high is None or value <= high)
    words = [f"at least {low:.6g}{unit}"] if low is not None else []
    words += [f"at most {high:.6g}{unit}"] if high is not None else []
    return Answer(float(met), f"{what} is {value:.6g}{unit}, asked: {' and '.join(words)}")


def does_not_apply(reason: str) -> Answer:
    """The answer to a question that the request gives no ground for."""
    return Answer(None, f"does not apply: {reason}")
