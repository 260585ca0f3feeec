"""Preference data beside rubrics: pairs, lists and scored samples of Auto-Rubric as Reward, pairs of OpenRubrics.

Source: Auto-Rubric as Reward, arXiv 2605.08354 (its code's keys); OpenRubrics, arXiv 2510.07743.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from mmrubric.bulk import SUFFIXES
from mmrubric.errors import InputError
from mmrubric.formats.base import Place
from mmrubric.formats.fields import container, record, text_of
from mmrubric.group import PairVerdict
from mmrubric.pairs import PreferencePair

_SOURCES = ("source_image", "base_image", "original_image", "input_image", "reference_image", "ref_image")
_EDITED = tuple(f"{name}_image{s}" for name in ("edited", "target", "output", "result") for s in ("s", ""))
_PLAIN = ("responses", "response", "images", "image_paths", "image")
_MAY_BE_TEXTS = ("responses", "response")
_PROMPTS = ("query", "prompt", "instruction")
_SUFFIXES = ", ".join(sorted(SUFFIXES))
_URL = re.compile(r"(?:[a-z][a-z0-9+.-]*://|data:)\S+", re.IGNORECASE)


@dataclass(frozen=True)
class RankedCandidates:
    """A row of preference data as published: a pair, ties among them, a ranked list, or one scored candidate.

    Wider than `mmrubric.pairs.PreferencePair`, which is two candidates of which one is preferred.
    """

    prompt: str
    candidates: tuple[str | bytes, ...]
    """Images (path, URL or encoded bytes) or texts, in file order."""
    ranks: tuple[int, ...] | None = None
    """Rank of each candidate, 1 = best; equal ranks are a tie. None without a label."""
    score: int | None = None
    """Label of a pointwise row."""
    source: str | bytes | None = None
    """The image that an editing prompt starts from; never ranked."""
    kind: Literal["image", "text"] = "image"
    """What the candidates are."""
    id: str = ""
    extra: dict[str, Any] = field(default_factory=dict)
    """Keys of the record that are not read."""

    @property
    def label(self) -> PairVerdict:
        """The verdict of a labelled pair.

        Raises:
            InputError: there are not exactly two ranked candidates.
        """
        if self.ranks is None or len(self.ranks) != 2:
            raise InputError(f"pair {self.id!r}: a label needs two ranked candidates, got ranks {self.ranks}")
        first, second = self.ranks
        if first == second:
            return PairVerdict.TIE
        return PairVerdict.WIN_A if first < second else PairVerdict.WIN_B

    def pair(self, folder: str | Path = "") -> PreferencePair:
        """The row as generators learn from it; a tie, and a row without ranks, has no preferred candidate.

        Args:
            folder: where relative image paths begin, as a rule that of the file; "" = the working directory.

        Raises:
            InputError: there are not exactly two candidates, or an image is a URL.
        """
        if len(self.candidates) != 2:
            raise InputError(f"pair {self.id!r}: needs two candidates, got {len(self.candidates)}")
        first, second = (self._media(one, folder) if self.kind == "image" else one for one in self.candidates)
        winner = {PairVerdict.WIN_A: 0, PairVerdict.WIN_B: 1}.get(self.label) if self.ranks is not None else None
        sources = () if self.source is None else (self._media(self.source, folder),)
        return PreferencePair(self.prompt, (first, second), winner, sources, self.id)

    def _media(self, value: str | bytes, folder: str | Path) -> Path | bytes:
        """An image's name as a path, so that it is not taken for a text."""
        if isinstance(value, bytes):
            return value
        if _URL.fullmatch(value):
            raise InputError(f"pair {self.id!r}: {value[:80]!r} is a URL; download it first and give its path")
        return Path(folder) / value


def from_arr_pairs(raw: Any, place: Place) -> RankedCandidates:
    """Read `{query, response[2], label_rank}`, `{query, source_image, edited_images[2], label_rank}`, `label_score`.

    Without a key of a source image, the first of `response` is the source when there is one more response than
    labels, when two responses have a `label_score`, when `response_includes_base` is set, or when three or more
    have no label. A response is an image when it is bytes, a URL or a name with the suffix of one, else a text, and
    of texts none is a source.
    """
    data, place = record(raw, place)
    prompt_key = next((key for key in _PROMPTS if data.get(key) is not None), _PROMPTS[0])
    prompt = text_of(data.pop(prompt_key, None), prompt_key, place)
    key = next((key for key in (*_EDITED, *_PLAIN) if data.get(key) is not None), None)
    if key is None:
        raise place.error(f"no candidates; one of these keys must hold them: {', '.join((*_EDITED, *_PLAIN))}")
    found = data.pop(key)
    if isinstance(found, str) and found.lstrip().startswith("["):
        found = container(found, key, place)
    images = [_image(image, key, place) for image in (found if isinstance(found, list) else [found])]
    kind = _kind(images, key, place)
    ranks = container(data.pop("label_rank", None), "label_rank", place)
    score = data.pop("label_score", None)
    source_key = next((name for name in _SOURCES if data.get(name) is not None), None)
    source = None if source_key is None else _image(data.pop(source_key), source_key, place)
    includes = bool(data.pop("response_includes_base", False))
    if source is None and key in _PLAIN and kind == "image":
        extra = isinstance(ranks, list) and len(images) == len(ranks) + 1
        unlabelled = ranks is None and score is None and len(images) >= 3
        if includes or extra or unlabelled or (score is not None and len(images) == 2):
            source, images = images[0], images[1:]
    if not images:
        raise place.error(f"field {key!r}: holds no candidate")
    if score is not None and (isinstance(score, bool) or not isinstance(score, int)):
        raise place.error(f"field 'label_score': expected an integer, got {score!r}")
    return RankedCandidates(
        prompt, tuple(images), _ranks(ranks, len(images), place), score, source, kind, _id(data), data
    )


def from_openrubrics_pairs(raw: Any, place: Place) -> RankedCandidates:
    """Read the pair form of OpenRubrics: `response_a, response_b, winner` ("A" or "B") and the optional `pair_id`."""
    data, place = record(raw, place)
    prompt = text_of(data.pop("instruction", None), "instruction", place)
    texts = tuple(text_of(data.pop(key, None), key, place) for key in ("response_a", "response_b"))
    winner = data.pop("winner", None)
    if winner not in ("A", "B"):
        raise place.error(f"field 'winner': expected 'A' or 'B', got {winner!r}")
    ranks = (1, 2) if winner == "A" else (2, 1)
    return RankedCandidates(prompt, texts, ranks, kind="text", id=_id(data), extra=data)


def _id(data: dict[str, Any]) -> str:
    return str(next((data[key] for key in ("id", "pair_id", "unique_id") if data.get(key) is not None), ""))


def _image(value: Any, key: str, place: Place) -> str | bytes:
    """An image as path, URL or bytes; a parquet image column holds {bytes, path}."""
    if isinstance(value, dict):
        value = value.get("bytes") or value.get("path")
    if isinstance(value, list) and len(value) == 1:
        return _image(value[0], key, place)
    if not isinstance(value, (str, bytes)) or not value:
        raise place.error(f"field {key!r}: expected an image (path, URL or bytes), got {type(value).__name__}")
    return value


def _kind(values: Sequence[str | bytes], key: str, place: Place) -> Literal["image", "text"]:
    """What the candidates under a key are; `response` holds images or texts."""
    images = {isinstance(v, bytes) or bool(_URL.fullmatch(v)) or Path(v).suffix.lower() in SUFFIXES for v in values}
    if key not in _MAY_BE_TEXTS or images == {True}:
        return "image"
    if len(images) == 2:
        raise place.error(f"field {key!r}: image names and texts together; an image name ends in {_SUFFIXES}")
    return "text"


def _ranks(value: Any, candidates: int, place: Place) -> tuple[int, ...] | None:
    if value is None:
        return None
    whole = isinstance(value, list) and all(isinstance(rank, int) and not isinstance(rank, bool) for rank in value)
    if not whole or not value or min(value) != 1:
        raise place.error(f"field 'label_rank': expected whole ranks from 1 (the best), got {value!r}")
    if len(value) != candidates:
        raise place.error(f"field 'label_rank': {len(value)} ranks for {candidates} candidates")
    return tuple(value)
