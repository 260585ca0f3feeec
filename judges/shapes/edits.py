"""The judge of edits in the embedded world: reads source and edited picture, answers `rule:shapes_edit`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from judges.pictures import Answer, PictureJudge, foreign
from judges.rules.base import does_not_apply
from judges.rules.relation import Keep
from judges.rules.view import View
from judges.shapes import first, second
from judges.shapes.judge import Reader, open_pixels, read_all
from mmrubric.checks import number
from mmrubric.errors import InputError
from mmrubric.judging import JudgeRequest
from mmrubric.rubric import Criterion, Rubric
from mmrubric.shapes import Seen
from mmrubric.shapes.edit_checks import edit_boxes, holds_after
from mmrubric.verdict import Failure, Verdict

VERIFIER = "rule:shapes_edit"
_NOTHING = Seen(background="")


class ShapesEditJudge(PictureJudge[Criterion]):
    """A `Judge` of edited pictures by a reader of pixels. It compares with the first source, the picture being edited.

    The check `pixels` (arguments `min_psnr` in dB, and `direction` of a move) is the rule `keep` outside the region
    that the edit may change; `mmrubric.shapes.edit_checks.holds_after` documents the others.
    """

    def __init__(self, id: str, reader: Reader) -> None:
        super().__init__(id, "rule")
        self._reader = reader

    def plan(self, criterion: Criterion, rubric: Rubric) -> Criterion:
        """See `PictureJudge`."""
        if criterion.verifier != VERIFIER:
            raise foreign(criterion, self.id, f"{VERIFIER!r} (rubrics of generator 'shapes_edit')")
        try:
            if criterion.arguments.get("check") == "pixels":
                _min_psnr(criterion)
                edit_boxes(criterion.arguments, _NOTHING)
            else:
                holds_after(criterion.arguments, _NOTHING, _NOTHING)
        except InputError as error:
            raise InputError(f"criterion {criterion.id!r}, arguments: {error}") from None
        return criterion

    def plans(self, requests: Sequence[JudgeRequest]) -> list[list[Criterion]]:
        """See `PictureJudge`; a request without source is refused as well."""
        for request in requests:
            if not request.sources:
                raise InputError(
                    f"judge {self.id!r} compares an edit with its source, and the request of sample "
                    f"{request.sample_id!r} has none; give prompts with `sources`, such as shapes-edit:train"
                )
        return super().plans(requests)

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """One verdict per criterion of each request, in rubric order.

        A candidate or source that cannot be opened, is not square or is smaller than 32 pixels gives verdicts with the
        failure `bad_image`.

        Raises:
            InputError: before any picture is read: a candidate is a text, a request has no source, or a criterion is
                not for this judge or has wrong arguments.
        """
        return await asyncio.to_thread(self._score, requests)

    def _score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        self.check(requests)
        candidates = read_all(self._reader, [open_pixels(request.candidate) for request in requests])
        before = read_all(self._reader, [open_pixels(request.sources[0]) for request in requests])
        return [
            self._verdicts(request, source, seen)
            for request, source, seen in zip(requests, before, candidates, strict=True)
        ]

    def _verdicts(self, request: JudgeRequest, source: Seen | InputError, seen: Seen | InputError) -> list[Verdict]:
        if isinstance(seen, InputError):
            return self.verdicts(request, seen)
        if isinstance(source, InputError):
            return self.verdicts(request, InputError(f"source: {source}"))
        return self.verdicts(request, [_answer(request, c, source, seen) for c in request.rubric.criteria])


def _answer(request: JudgeRequest, criterion: Criterion, source: Seen, seen: Seen) -> Answer:
    arguments = criterion.arguments
    if arguments["check"] != "pixels":
        held = holds_after(arguments, source, seen)
        if held is None:
            return does_not_apply(f"the source shows {_named(source)}")
        return Answer(float(held), f"source: {_named(source)}; edited: {_named(seen)}")
    boxes = edit_boxes(arguments, source)
    if boxes is None:
        return does_not_apply(f"the source shows {_named(source)}")
    try:
        return Keep(min_psnr=_min_psnr(criterion), boxes=tuple(boxes))(View(request))
    except InputError as error:
        return Answer(None, str(error), Failure.bad_image)


def _min_psnr(criterion: Criterion) -> float:
    value: Any = criterion.arguments.get("min_psnr")
    if value is None:
        raise InputError("check 'pixels' needs the argument 'min_psnr'")
    return number("argument min_psnr", value, low=0.0)


def _named(seen: Seen) -> str:
    """What is seen, with places in pixels."""
    items = [f"{i.colour} {i.shape} at ({i.x:.0f}, {i.y:.0f})" for i in seen.items]
    writing = [] if seen.word is None else ["writing"]
    return f"{', '.join([*items, *writing]) or 'nothing'} on {seen.background}"


def shapes_edit() -> ShapesEditJudge:
    """The judge of edits in the world of shapes, made for the training loop."""
    return ShapesEditJudge("shapes_edit/1", first.read)


def shapes_edit_second() -> ShapesEditJudge:
    """The same by a second reader, written apart from the first: for checking results that the first one trained."""
    return ShapesEditJudge("shapes_edit_second/1", second.read)
