"""The judge of the embedded world: looks at pixels, answers the criteria whose verifier is `rule:shapes`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
from PIL import Image

from judges.shapes import first, second
from judges.shapes.reasons import explain
from mmrubric import images
from mmrubric.errors import InputError
from mmrubric.judging import JudgeRequest
from mmrubric.rubric import Criterion, Rubric
from mmrubric.shapes import SIZE, Seen, holds
from mmrubric.verdict import Failure, Verdict

VERIFIER = "rule:shapes"
LEAST_SIDE = SIZE // 2
"""Smaller pictures are refused: small shapes cannot be told apart in them."""
_CHUNK = 64
Reader = Callable[[np.ndarray], list[Seen]]
"""Pixels uint8 [N, 64, 64, 3] to what each picture shows; pure, so it may run on any thread."""


class ShapesJudge:
    """A `Judge` of pictures by a reader of pixels; it has no options and keeps nothing between calls.

    Every picture is read once for all criteria of all requests of a call that show it.
    """

    def __init__(self, id: str, reader: Reader) -> None:
        self._id = id
        self._reader = reader

    @property
    def id(self) -> str:
        """Name and version of the reader."""
        return self._id

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """One verdict for each criterion of each request, in rubric order.

        A picture that cannot be opened, is not square or is smaller than 32 pixels gives verdicts with the
        failure `bad_image`. `applicable` is False only where the question speaks of something that need not
        be there and is not (`if_any`).

        Raises:
            InputError: before any picture is read: a criterion is not for this judge or its arguments are
                wrong, or a candidate is a text.
        """
        return await asyncio.to_thread(self.score_sync, requests)

    def score_sync(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """`score` in the calling thread."""
        checked: set[int] = set()
        for request in requests:
            self._check_candidate(request)
            # A group shares one rubric.
            if id(request.rubric) not in checked:
                self._check_rubric(request.rubric)
                checked.add(id(request.rubric))
        read = read_all(self._reader, [open_pixels(request.candidate) for request in requests])
        return [self._verdicts(request, seen) for request, seen in zip(requests, read, strict=True)]

    def see(self, candidates: Sequence[images.ImageLike]) -> list[Seen]:
        """What pictures show, as this judge reads them.

        Raises:
            InputError: a picture cannot be opened, is not square or is too small.
        """
        stack = [to_pixels(candidate) for candidate in candidates]
        return [seen for k in range(0, len(stack), _CHUNK) for seen in self._reader(np.stack(stack[k : k + _CHUNK]))]

    def _check_candidate(self, request: JudgeRequest) -> None:
        if isinstance(request.candidate, str):
            raise InputError(
                f"judge {self.id!r} looks at pictures, and the candidate is a text; give a picture file as "
                "pathlib.Path, or use a judge of texts"
            )

    def _check_rubric(self, rubric: Rubric) -> None:
        for criterion in rubric.criteria:
            if criterion.verifier != VERIFIER:
                raise InputError(
                    f"criterion {criterion.id!r} asks for verifier {criterion.verifier!r}; judge {self.id!r} "
                    f"answers only {VERIFIER!r} (rubrics of generator 'shapes')"
                )
            if criterion.scale != "binary":
                raise InputError(
                    f"criterion {criterion.id!r} has the scale {criterion.scale!r}; judge {self.id!r} answers yes or no"
                )
            try:
                holds(criterion.arguments, Seen(background=""))
            except InputError as error:
                raise InputError(f"criterion {criterion.id!r}, arguments: {error}") from None

    def _verdicts(self, request: JudgeRequest, seen: Seen | InputError) -> list[Verdict]:
        sample = request.sample_id or ""
        if isinstance(seen, InputError):
            return [
                Verdict(sample, c.id, None, failure=Failure.bad_image, reason=str(seen))
                for c in request.rubric.criteria
            ]
        return [_verdict(sample, criterion, seen) for criterion in request.rubric.criteria]


def _verdict(sample: str, criterion: Criterion, seen: Seen) -> Verdict:
    answer = holds(criterion.arguments, seen)
    reason = explain(criterion.arguments, seen)
    if answer is None:
        return Verdict(sample, criterion.id, None, applicable=False, reason=reason)
    return Verdict(sample, criterion.id, criterion.met_of(bool(answer)), reason=reason)


def open_pixels(image: images.ImageLike) -> np.ndarray | InputError:
    """`to_pixels`, or why not."""
    try:
        return to_pixels(image)
    except InputError as error:
        return error


def read_all(reader: Reader, pictures: Sequence[np.ndarray | InputError]) -> list[Seen | InputError]:
    """What pictures show; each distinct one is read once, and the errors of `open_pixels` stay what they are."""
    keys = [picture.tobytes() if isinstance(picture, np.ndarray) else None for picture in pictures]
    distinct = {key: p for key, p in zip(keys, pictures, strict=True) if isinstance(p, np.ndarray)}
    seen: list[Seen] = []
    stack = list(distinct.values())
    for start in range(0, len(stack), _CHUNK):
        seen += reader(np.stack(stack[start : start + _CHUNK]))
    known = dict(zip(distinct, seen, strict=True))
    return [p if isinstance(p, InputError) else known[key] for p, key in zip(pictures, keys, strict=True)]


def to_pixels(image: images.ImageLike) -> np.ndarray:
    """A picture as the readers take it: uint8 [64, 64, 3].

    Raises:
        InputError: it cannot be opened, is not square, or has less than 32 pixels a side.
    """
    picture = images.normalize(image)
    width, height = picture.size
    if width != height or width < LEAST_SIDE:
        raise InputError(
            f"picture of {width} x {height} pixels: the world of shapes is square with at least {LEAST_SIDE} "
            f"pixels a side, {SIZE} at best"
        )
    if width != SIZE:
        way = Image.Resampling.BOX if width % SIZE == 0 else Image.Resampling.BICUBIC
        picture = picture.resize((SIZE, SIZE), way)
    return np.asarray(picture)


def shapes() -> ShapesJudge:
    """The judge of the world of shapes, made for the training loop (hundreds of pictures a second)."""
    return ShapesJudge("shapes/1", first.read)


def shapes_second() -> ShapesJudge:
    """A second reader, written apart from the first: for checking results that the first one trained."""
    return ShapesJudge("shapes_second/1", second.read)
