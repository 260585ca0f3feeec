"""Who says whether a criterion holds.

`build(name, **options).score_sync(requests)` gives verdicts; `names()` lists what can be built.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from judges import calibration, clip, ensemble, local, ocr, routed, rules, vlm
from judges.calibration import CalibratedJudge
from judges.ensemble import EnsembleJudge
from judges.shapes import ShapesEditJudge, ShapesJudge, shapes, shapes_edit, shapes_edit_second, shapes_second
from judges.vlm import Exemplar, RankExemplar, VLMJudge
from mmrubric import images
from mmrubric.errors import InputError
from mmrubric.judging import Candidate, Judge, JudgeRequest, PairJudge, PairRequest, SyncMixin
from mmrubric.verdict import Failure, Verdict

_JUDGES: dict[str, Callable[..., Judge]] = {
    "calibrated": calibration.calibrated,
    "clip": clip.clip,
    "ensemble": ensemble.ensemble,
    "local": local.local,
    "ocr": ocr.ocr,
    "routed": routed.routed,
    "rules": rules.rules,
    "shapes": shapes,
    "shapes_edit": shapes_edit,
    "shapes_edit_second": shapes_edit_second,
    "shapes_second": shapes_second,
    "vlm": vlm.vlm,
}


def names() -> list[str]:
    """Names that `build` accepts, sorted."""
    return sorted(_JUDGES)


def build(name: str, **options: Any) -> Judge:
    """Build a judge.

    Raises:
        InputError: unknown name or option (the message lists the known ones), or a bad value.
    """
    if name not in _JUDGES:
        raise InputError(f"unknown judge {name!r}; known: {', '.join(names())}")
    known = list(inspect.signature(_JUDGES[name]).parameters)
    unknown = sorted(set(options) - set(known))
    if unknown:
        listed = ", ".join(known) or "none"
        raise InputError(f"judge {name!r}: unknown option {', '.join(unknown)}; known: {listed}")
    return _JUDGES[name](**options)


__all__ = [
    "CalibratedJudge",
    "Candidate",
    "EnsembleJudge",
    "Exemplar",
    "Failure",
    "Judge",
    "JudgeRequest",
    "PairJudge",
    "PairRequest",
    "RankExemplar",
    "ShapesEditJudge",
    "ShapesJudge",
    "SyncMixin",
    "VLMJudge",
    "Verdict",
    "build",
    "images",
    "names",
]
