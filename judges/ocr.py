"""Text fidelity: what is written in a picture, read by OCR and compared with the text that was asked for.

    verifier: ocr
    arguments: {text: "OPEN LATE", mode: contains}

Without `text` the literal is what the criterion, or else the prompt, puts in quotes; never the whole prompt.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, Self

import numpy as np
from PIL import Image
from pydantic import Field, model_validator

from judges.literal import contains, edit_similarity, normalized, word_accuracy
from judges.pictures import Answer, Arguments, ThreadedJudge, foreign, parse
from mmrubric import images
from mmrubric.checks import number, one_of
from mmrubric.errors import InputError
from mmrubric.judging import JudgeRequest
from mmrubric.rubric import Criterion, Rubric
from mmrubric.similar import quoted
from mmrubric.store import Store, request_key
from mmrubric.verdict import Failure

VERIFIER = "ocr"
_SHOWN = 200
"""Characters of a reading that a reason quotes."""


@dataclass(frozen=True)
class Line:
    """One line of text as OCR read it."""

    text: str
    confidence: float
    """In [0, 1]."""
    left: float
    top: float
    height: float
    """Of the box around the line, in pixels of the normalised picture."""


class Reader(Protocol):
    """An OCR engine. `read` may be called from several threads."""

    @property
    def id(self) -> str:
        """Name and version; equal ids read equal pictures alike."""
        ...

    def read(self, picture: Image.Image) -> list[Line]:
        """All lines of an RGB picture, in any order; none when nothing is written."""
        ...


class TextArguments(Arguments):
    """Arguments of a criterion with the verifier `ocr`."""

    text: str | None = None
    """The literal; "" with mode exact asks for a picture without writing."""
    mode: Literal["exact", "contains", "similarity"] = "contains"
    """exact: nothing else is written. contains: the literal is there, as whole words. similarity: `score`."""
    score: Literal["edit", "words"] | None = None
    """Of mode similarity: edit (default) = 1 - Levenshtein / longer length; words = share of the words."""
    threshold: Annotated[float, Field(gt=0, le=1)] | None = None
    """Of mode similarity: the score from which the criterion is met; without it met is the score itself."""
    case_sensitive: bool = False

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.mode != "similarity" and (self.threshold is not None or self.score is not None):
            raise ValueError(f"threshold and score belong to mode similarity, not to mode {self.mode}")
        if self.text is not None and not self.text.strip() and self.mode != "exact":
            raise ValueError("text is blank; only mode exact can ask for a picture without writing")
        return self


@dataclass(frozen=True)
class TextPlan:
    """A literal and how to compare it."""

    literal: str
    arguments: TextArguments

    def answer(self, read: str) -> Answer:
        """Compare a reading with the literal."""
        options = self.arguments
        asked, got = (normalized(text, options.case_sensitive) for text in (self.literal, read))
        shown = f"reads {read[:_SHOWN]!r}" if read else "nothing is written"
        if not asked:
            return Answer(float(not got), f"{shown}, asked: no writing")
        edit, words = edit_similarity(asked, got), word_accuracy(asked, got)
        if options.mode == "similarity":
            met = score = words if options.score == "words" else edit
            how = "words" if options.score == "words" else "edit similarity"
            if options.threshold is not None:
                met, how = float(score >= options.threshold), f"{how} at least {options.threshold:g}"
        else:
            met = float(asked == got if options.mode == "exact" else contains(asked, got))
            how = options.mode
        return Answer(met, f"{shown}, asked: {self.literal!r} ({how}); edit similarity {edit:.3f}, words {words:.3f}")


class _EngineFailed(RuntimeError):
    """The OCR engine broke on one picture."""


class OcrJudge(ThreadedJudge[TextPlan]):
    """A `Judge` of criteria whose verifier is `ocr`; every picture is read once for all of them.

    Args:
        reader: the OCR engine.
        min_confidence: lines that the engine is less sure of are left out; in [0, 1].
        threads: pictures read at the same time, each by an engine of its own.
        store: keeps readings; a picture read before is not read again.
    """

    def __init__(
        self, reader: Reader, min_confidence: float = 0.5, threads: int | None = None, store: Store | None = None
    ) -> None:
        self._min_confidence = number("min_confidence", min_confidence, 0.0, 1.0)
        super().__init__(f"ocr/1:{reader.id}:{self._min_confidence:g}", "ocr", threads)
        self._reader = reader
        self._store = store

    def plan(self, criterion: Criterion, rubric: Rubric) -> TextPlan:
        """See `ThreadedJudge`."""
        if criterion.verifier != VERIFIER:
            raise foreign(criterion, self.id, repr(VERIFIER))
        arguments = parse(TextArguments, criterion)
        return TextPlan(literal_of(criterion, rubric) if arguments.text is None else arguments.text, arguments)

    def answers(self, request: JudgeRequest, plans: Sequence[TextPlan]) -> Iterator[Answer]:
        """See `ThreadedJudge`. An error inside the engine is a `server_error` of this picture."""
        picture = images.normalize(request.candidate)
        try:
            lines = self._lines(picture)
        except _EngineFailed as error:
            yield from [Answer(None, str(error), Failure.server_error)] * len(plans)
            return
        read = " ".join(line.text for line in in_reading_order(lines) if line.confidence >= self._min_confidence)
        for plan in plans:
            yield plan.answer(read)

    def _lines(self, picture: Image.Image) -> list[Line]:
        if self._store is None:
            return self._read(picture)
        key = request_key({"judge": "ocr", "reader": self._reader.id, "image": images.pixel_hash(picture)})
        kept = self._store.get_json(key, kind="ocr")
        if kept is None:
            lines = self._read(picture)
            self._store.put_json(key, [asdict(line) for line in lines], kind="ocr")
            return lines
        return [Line(**line) for line in kept]

    def _read(self, picture: Image.Image) -> list[Line]:
        try:
            return self._reader.read(picture)
        except Exception as error:
            # Engines raise whatever their runtime does; the other pictures of the batch are still read.
            raise _EngineFailed(f"{self._reader.id} failed: {type(error).__name__}: {error}") from error


def literal_of(criterion: Criterion, rubric: Rubric) -> str:
    """The one quoted string of a criterion's text or, when it quotes nothing, of the prompt.

    Raises:
        InputError: nothing is quoted, or several strings.
    """
    for where, text in (("its text", criterion.text), ("the prompt", rubric.prompt)):
        found = quoted(text)
        if len(found) > 1:
            raise InputError(
                f"criterion {criterion.id!r}: {where} quotes several strings ({', '.join(map(repr, found))}); say "
                "which one in arguments.text"
            )
        if found:
            return found[0]
    raise InputError(
        f"criterion {criterion.id!r}: no literal to look for; put it in quotes in the criterion, or in arguments.text"
    )


def in_reading_order(lines: Sequence[Line]) -> list[Line]:
    """Rows from top to bottom, each from left to right; a row holds the lines that begin within half a height."""
    rows: list[list[Line]] = []
    for line in sorted(lines, key=lambda line: line.top):
        if rows and line.top - rows[-1][0].top <= rows[-1][0].height / 2:
            rows[-1].append(line)
        else:
            rows.append([line])
    return [line for row in rows for line in sorted(row, key=lambda line: line.left)]


class _Engines(ABC):
    """Engines that are not safe for several threads: each call borrows one, and makes one if all are busy."""

    def __init__(self) -> None:
        self._idle: deque[Any] = deque()

    @abstractmethod
    def _make(self) -> Any:
        """A new engine; loading takes about a second."""

    @contextmanager
    def _borrow(self) -> Iterator[Any]:
        try:
            engine = self._idle.pop()
        except IndexError:
            engine = self._make()
        try:
            yield engine
        finally:
            self._idle.append(engine)


class RapidReader(_Engines):
    """PP-OCR by rapidocr, whose wheel holds the models: nothing is fetched. Writing upside down is not read.

    Raises:
        InputError: rapidocr or onnxruntime is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        _need("rapidocr", "onnxruntime", hint="pip install mmrubric[ocr]")
        self.id = f"rapidocr-{version('rapidocr')}"

    def _make(self) -> Any:
        from rapidocr import RapidOCR

        # The default minimum side of 736 pixels is ten times slower and reads no better. One thread per engine.
        return RapidOCR(
            params={
                "Global.use_cls": False,
                "Global.text_score": 0.0,
                "Global.log_level": "error",
                "Det.limit_side_len": 256,
                "Det.limit_type": "min",
                "EngineConfig.onnxruntime.intra_op_num_threads": 1,
                "EngineConfig.onnxruntime.inter_op_num_threads": 1,
            }
        )

    def read(self, picture: Image.Image) -> list[Line]:
        """See `Reader`."""
        with self._borrow() as engine:
            found = engine(_bgr(picture))
        if found.txts is None:
            return []
        return [_line(*parts) for parts in zip(found.txts, found.scores, found.boxes, strict=True)]


class PaddleReader(_Engines):
    """PaddleOCR 3, where it is installed; it fetches its models on first use.

    Raises:
        InputError: paddleocr or paddle is not installed.
    """

    def __init__(self) -> None:
        super().__init__()
        _need("paddleocr", "paddle", hint="pip install paddleocr paddlepaddle, or use backend rapidocr")
        self.id = f"paddleocr-{version('paddleocr')}"

    def _make(self) -> Any:
        from paddleocr import PaddleOCR  # pyright: ignore[reportMissingImports]

        return PaddleOCR(
            use_doc_orientation_classify=False,
            use_doc_unwarping=False,
            use_textline_orientation=False,
            text_det_limit_side_len=256,
            text_det_limit_type="min",
            text_rec_score_thresh=0.0,
        )

    def read(self, picture: Image.Image) -> list[Line]:
        """See `Reader`."""
        with self._borrow() as engine:
            (found,) = engine.predict(_bgr(picture))
        return [
            _line(*parts) for parts in zip(found["rec_texts"], found["rec_scores"], found["rec_polys"], strict=True)
        ]


READERS: dict[str, type[RapidReader] | type[PaddleReader]] = {"rapidocr": RapidReader, "paddleocr": PaddleReader}


def _need(*modules: str, hint: str) -> None:
    missing = [module for module in modules if find_spec(module) is None]
    if missing:
        raise InputError(f"OCR needs {' and '.join(missing)}, not installed: {hint}")


def _bgr(picture: Image.Image) -> np.ndarray:
    return np.ascontiguousarray(np.asarray(picture)[:, :, ::-1])


def _line(text: str, confidence: float, corners: Any) -> Line:
    x, y = np.asarray(corners, dtype=float).T
    return Line(text, float(confidence), float(x.min()), float(y.min()), float(np.ptp(y)))


def ocr(
    backend: str = "rapidocr",
    min_confidence: float = 0.5,
    threads: int | None = None,
    store: Store | str | Path | None = None,
) -> OcrJudge:
    """The judge of writing.

    Args:
        backend: rapidocr (default, works offline) or paddleocr.
        min_confidence: lines that the engine is less sure of are left out; in [0, 1].
        threads: pictures read at the same time; by default the number of processors, at most 4.
        store: keeps readings, or the path of one that does; a picture read before is not read again.

    Raises:
        InputError: unknown backend, or one that is not installed.
    """
    reader = READERS[one_of("backend", backend, READERS)]()
    return OcrJudge(reader, min_confidence, threads, Store(store) if isinstance(store, (str, Path)) else store)
