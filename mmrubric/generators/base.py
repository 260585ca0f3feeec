"""What every rubric generator is, and the registry of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mmrubric.errors import InputError
from mmrubric.judging import run_sync
from mmrubric.prompt import Grounding, Prompt, Sources
from mmrubric.rubric import Rubric
from mmrubric.tags import Registry


class RubricGenerator(ABC):
    """From a prompt to a `Rubric`."""

    @abstractmethod
    async def generate(
        self,
        prompt: Prompt | str,
        source: Sources = None,
        grounding: Grounding | None = None,
        exemplars: Sequence[Any] = (),
    ) -> Rubric:
        """Write the rubric of one prompt.

        Args:
            prompt: the prompt, or its text.
            source: source image of an editing prompt, or several in order, the one that is edited first.
            grounding: what judges may consult and the policy never sees.
            exemplars: worked examples for generators that take them.

        Raises:
            InputError: the generator cannot serve this prompt, or does not take an argument that was given.
        """

    def generate_sync(
        self,
        prompt: Prompt | str,
        source: Sources = None,
        grounding: Grounding | None = None,
        exemplars: Sequence[Any] = (),
    ) -> Rubric:
        """`generate`, also from inside a running event loop."""
        return run_sync(self.generate(prompt, source, grounding, exemplars))

    async def fit(self, examples: Sequence[Any], judge: Any = None) -> None:
        """Learn from examples, before `generate` is called.

        Args:
            examples: such as `mmrubric.pairs.PreferencePair`; the generator says which kind it takes.
            judge: a `Judge` or `PairJudge`, where the generator needs one.

        Raises:
            InputError: this generator does not learn, or examples or judge are of the wrong kind.
        """
        raise InputError(f"{type(self).__name__} does not learn from examples; call generate")

    def fit_sync(self, examples: Sequence[Any], judge: Any = None) -> None:
        """`fit`, also from inside a running event loop."""
        run_sync(self.fit(examples, judge))


registry: Registry[RubricGenerator] = Registry("generator")
