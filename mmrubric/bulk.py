"""Judges many pictures by one rubric: in chunks, with a progress bar, kept in a store so that a killed run goes on."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from mmrubric.errors import InputError, RunError
from mmrubric.judging import Judge, JudgeRequest
from mmrubric.rubric import Rubric
from mmrubric.store import Store, request_key
from mmrubric.verdict import Verdict

CHUNK = 64
"""Pictures judged, and then stored, at a time."""
_SEE_ALL = "--max-failure-share 1 shows what was answered; --store keeps it for the next run."
SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm"})


def pictures_in(folders: Iterable[Path]) -> list[Path]:
    """Every picture file below the folders, by suffix, each folder in the order of its names.

    Raises:
        InputError: no such folder, or no picture in it.
    """
    found: list[Path] = []
    for folder in folders:
        if not folder.is_dir():
            raise InputError(f"--images {folder}: there is no such folder")
        inside = sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
        if not inside:
            raise InputError(f"--images {folder}: no pictures in it ({', '.join(sorted(SUFFIXES))})")
        found += inside
    return found


def judge_pictures(
    judge: Judge,
    rubric: Rubric,
    paths: Sequence[Path],
    store: Store | None = None,
    max_failure_share: float = 1.0,
    advance: Callable[[int], None] = lambda count: None,
) -> list[list[Verdict]]:
    """Verdicts for each picture, in rubric order.

    A picture is known by its bytes, the rubric by its hash and the judge by its id: what is in the store under all
    three is not judged again, whatever the file is called now. Verdicts of a picture with a failure among them are
    not stored, so that the next run asks again.

    Args:
        judge: who judges.
        rubric: by what.
        paths: picture files; equal pictures are judged once.
        store: verdicts of earlier runs; None = nothing is kept.
        max_failure_share: judging stops as soon as more than this share of all verdicts must be failures.
        advance: gets the number of pictures that are done.

    Raises:
        InputError: a file cannot be read, or the judge refuses the rubric.
        RunError: too many failures; what was answered is stored.
    """
    check = getattr(judge, "check", None)
    if check is not None and paths:
        check([JudgeRequest(rubric=rubric, candidate=paths[0], sample_id="0")])
    keys = [_key(judge, rubric, path) for path in paths]
    known: dict[str, list[Verdict]] = {}
    for key in dict.fromkeys(keys):
        stored = None if store is None else store.get(key, "", rubric.ids)
        if stored is not None:
            known[key] = stored
    by_key = {key: path for key, path in zip(keys, paths, strict=True) if key not in known}
    counts = Counter(keys)
    advance(sum(key in known for key in keys))
    failed, limit = 0, max_failure_share * len(paths) * len(rubric.criteria)
    left = list(by_key)
    for begin in range(0, len(left), CHUNK):
        chunk = left[begin : begin + CHUNK]
        requests = [JudgeRequest(rubric=rubric, candidate=by_key[key], sample_id=key) for key in chunk]
        for key, verdicts in zip(chunk, judge.score_sync(requests), strict=True):
            known[key] = list(verdicts)
            if store is not None:
                store.put(key, known[key])
            failed += counts[key] * sum(verdict.failure is not None for verdict in verdicts)
        advance(sum(counts[key] for key in chunk))
        if failed > limit:
            verdicts = [verdict for row in known.values() for verdict in row]
            raise RunError(_too_many(failed, max_failure_share, verdicts, store is not None))
    return [known[key] for key in keys]


def _key(judge: Judge, rubric: Rubric, path: Path) -> str:
    try:
        with path.open("rb") as file:
            content = hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"{path}: cannot be read: {error.strerror}") from error
    return request_key(["picture", judge.id, rubric.hash, content])


def _too_many(failed: int, limit: float, verdicts: Sequence[Verdict], kept: bool) -> str:
    first = next(verdict for verdict in verdicts if verdict.failure is not None)
    assert first.failure is not None
    return (
        f"the judge failed on {failed} verdicts, more than max_failure_share={limit:g} of all allows; the first was "
        f"{first.failure.value}: {first.reason}. "
        + ("What was answered is kept: see to the judge and run this again." if kept else _SEE_ALL)
    )
