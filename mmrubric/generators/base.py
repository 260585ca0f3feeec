"""What every rubric generator is, and the registry of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from mmrubric.judging import run_sync
from mmrubric.prompt import Grounding, Media, Prompt
from mmrubric.rubric import Rubric
from mmrubric.tags import Registry


class RubricGenerator(ABC):
    """From a prompt to a `Rubric`."""

    @abstractmethod
    async def generate(
        self,
        prompt: Prompt | str,
        source: Media | None = None,
        grounding: Grounding | None = None,
        exemplars: Sequence[Any] = (),
    ) -> Rubric:
        """Write the rubric of one prompt.

        Args:
            prompt: the prompt, or its text.
            source: source image of an editing prompt.
            grounding: what judges may consult and the policy never sees.
            exemplars: worked examples for generators that take them.

        Raises:
            InputError: the generator cannot serve this prompt, or does not take an argument that was given.
        """

    def generate_sync(
        self,
        prompt: Prompt | str,
        source: Media | None = None,
        grounding: Grounding | None = None,
        exemplars: Sequence[Any] = (),
    ) -> Rubric:
        """`generate`, also from inside a running event loop."""
        return run_sync(self.generate(prompt, source, grounding, exemplars))


registry: Registry[RubricGenerator] = Registry("generator")
