"""One judge from several: each criterion goes to the judge that its `verifier` names."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, TypeAlias

from judges.joining import answers_of, compare_by_scores, part_of
from judges.pictures import Checks
from judges.rules import PREFIX
from judges.shapes.edits import VERIFIER as SHAPES_EDIT
from judges.shapes.judge import VERIFIER as SHAPES
from mmrubric import preference
from mmrubric.checks import one_of
from mmrubric.errors import InputError
from mmrubric.group import PairVerdict
from mmrubric.judging import Judge, JudgeRequest, PairRequest, SyncMixin, run_all
from mmrubric.rubric import Rubric
from mmrubric.scores import Rules
from mmrubric.store import Store
from mmrubric.verdict import Verdict

Part: TypeAlias = Judge | Mapping[str, Any]
"""A judge, or the options to build one."""
_HINTS = {
    "vlm": "give routed vlm=, a judge or the options of judge 'vlm', such as {base_url: ..., model: ...}",
    "ocr": "pip install mmrubric[ocr], or give routed ocr=, a judge or the options of judge 'ocr'",
    "clip": "give routed clip=, a judge or the options of judge 'clip'; {} for its defaults",
    "rules": "give routed rules=, a judge or the options of judge 'rules'; {} for its defaults",
    "shapes": "give routed shapes=, a judge or {}",
    "shapes_edit": "give routed shapes_edit=, a judge or {}",
}
_KEEPS_ANSWERS = ("vlm", "ocr")
"""Parts with the option `store`."""
_COMPARE = ("margin", "min_coverage", "dependencies", "gates", "binarize")


class RoutedJudge(SyncMixin):
    """A `Judge` and `PairJudge` that sends each criterion to its verifier and joins the verdicts by id.

    Args:
        parts: judges by the name of their route: vlm, ocr, clip, rules, shapes, shapes_edit.
        compare: options of `preference.compare`.
    """

    def __init__(self, parts: Mapping[str, Judge], compare: Mapping[str, Any] | None = None) -> None:
        for name in parts:
            one_of("part of judge 'routed'", name, _HINTS)
        self._parts = dict(sorted(parts.items()))
        self._compare = _checked(compare or {})

    @property
    def id(self) -> str:
        """Composed of the routes and the ids of their judges."""
        return f"routed/1({', '.join(f'{name}={judge.id}' for name, judge in self._parts.items())})"

    def check(self, requests: Sequence[JudgeRequest]) -> None:
        """Refuse what cannot be judged, before any judge is asked.

        Raises:
            InputError: a criterion has no judge, or its judge refuses it.
        """
        self._checked_routes(requests)

    async def score(self, requests: Sequence[JudgeRequest]) -> list[list[Verdict]]:
        """One verdict per criterion of each request, in rubric order. All judges work at the same time.

        The reason of each verdict ends with the id of the judge that gave it, in brackets.

        Raises:
            InputError: see `check`.
            RunError: a judge answered about other criteria than it was asked.
        """
        routes = await asyncio.to_thread(self._checked_routes, requests)
        answered = await run_all(self._ask(name, asked) for name, (_, asked) in routes.items())
        found: list[dict[str, Verdict]] = [{} for _ in requests]
        for (rows, _), answers in zip(routes.values(), answered, strict=True):
            for row, verdicts in zip(rows, answers, strict=True):
                found[row].update(verdicts)
        return [[verdicts[id] for id in request.rubric.ids] for request, verdicts in zip(requests, found, strict=True)]

    async def compare(self, requests: Sequence[PairRequest]) -> list[PairVerdict]:
        """Scores each candidate once and compares by `preference.compare`; equal candidates are a TIE unasked.

        Raises:
            InputError, RunError: see `score`.
        """
        return await compare_by_scores(self.score, requests, **self._compare)

    def _checked_routes(self, requests: Sequence[JudgeRequest]) -> dict[str, tuple[list[int], list[JudgeRequest]]]:
        routes = self._routes(requests)
        for name, (_, asked) in routes.items():
            judge = self._parts[name]
            if isinstance(judge, Checks):
                judge.check(asked)
        return routes

    def _routes(self, requests: Sequence[JudgeRequest]) -> dict[str, tuple[list[int], list[JudgeRequest]]]:
        """By route: the rows of the requests that it has a share in, and these shares."""
        split: dict[int, dict[str, Rubric]] = {}
        routes: dict[str, tuple[list[int], list[JudgeRequest]]] = {}
        for row, request in enumerate(requests):
            if id(request.rubric) not in split:
                split[id(request.rubric)] = self._split(request.rubric)
            for name, rubric in split[id(request.rubric)].items():
                rows, asked = routes.setdefault(name, ([], []))
                rows.append(row)
                asked.append(request if rubric is request.rubric else replace(request, rubric=rubric))
        return routes

    def _split(self, rubric: Rubric) -> dict[str, Rubric]:
        """The share of each route in a rubric."""
        shares: dict[str, list[str]] = {}
        for criterion in rubric.criteria:
            name = route_of(criterion.verifier)
            if name not in self._parts:
                raise InputError(
                    f"criterion {criterion.id!r} asks for verifier {criterion.verifier!r}, and judge 'routed' has no "
                    f"judge for it: {_HINTS[name]}"
                )
            shares.setdefault(name, []).append(criterion.id)
        if len(shares) == 1:
            return dict.fromkeys(shares, rubric)
        return {name: part_of(rubric, ids) for name, ids in shares.items()}

    async def _ask(self, name: str, requests: Sequence[JudgeRequest]) -> list[dict[str, Verdict]]:
        """Verdicts of one judge by criterion id, one dict per request."""
        judge = self._parts[name]
        answers = await answers_of(judge, requests)
        return [{name: _signed(verdict, judge.id) for name, verdict in row.items()} for row in answers]


def route_of(verifier: str) -> str:
    """The route of a verifier: vlm, ocr and clip their own, rule:shapes 'shapes', rule:shapes_edit 'shapes_edit', any
    other rule 'rules'."""
    if verifier in (SHAPES, SHAPES_EDIT):
        return verifier.removeprefix(PREFIX)
    return "rules" if verifier.startswith(PREFIX) else verifier


def _signed(verdict: Verdict, judge: str) -> Verdict:
    return replace(verdict, reason=f"{verdict.reason} [{judge}]".lstrip())


def _checked(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options of `preference.compare`, refused now rather than after the judges have worked."""
    for name in options:
        one_of("option of compare", name, _COMPARE)
    preference.margin_of(options.get("margin"), options.get("binarize", True))
    Rules(**{name: options[name] for name in ("dependencies", "gates", "min_coverage") if name in options})
    return dict(options)


def _built(name: str, part: Part, store: Store | None) -> Judge:
    if isinstance(part, Mapping):
        import judges

        extra = {"store": store} if store is not None and name in _KEEPS_ANSWERS else {}
        return judges.build(name, **{**extra, **part})
    if not isinstance(part, Judge):
        raise InputError(f"judge 'routed': {name} must be a judge or a mapping of options, got {part!r}")
    return part


def routed(
    vlm: Part | None = None,
    ocr: Part | Literal["installed"] | None = "installed",
    clip: Part | None = None,
    rules: Part | None = None,
    shapes: Part | None = None,
    shapes_edit: Part | None = None,
    compare: Mapping[str, Any] | None = None,
    store: Store | str | Path | None = None,
) -> RoutedJudge:
    """The judge that sends each criterion to its verifier.

    Args:
        vlm, clip: a judge, or options to build one; None = criteria for it are refused.
        ocr: the same; 'installed' (default) = with its defaults where rapidocr is installed.
        rules, shapes, shapes_edit: the same; they need nothing, so None = with their defaults.
        compare: options of `preference.compare`.
        store: keeps the answers of the parts built here from options, where they can be kept (vlm, ocr); a path
            will do.

    Raises:
        InputError: a bad part or option, or a store that no part uses.
    """
    if ocr == "installed":
        ocr = {} if find_spec("rapidocr") and find_spec("onnxruntime") else None
    given = {
        "vlm": vlm,
        "ocr": ocr,
        "clip": clip,
        "rules": {} if rules is None else rules,
        "shapes": {} if shapes is None else shapes,
        "shapes_edit": {} if shapes_edit is None else shapes_edit,
    }
    if store is not None and not any(isinstance(given[name], Mapping) for name in _KEEPS_ANSWERS):
        raise InputError("judge 'routed': no part keeps answers in a store; give vlm or ocr as options, or no store")
    if isinstance(store, (str, Path)):
        store = Store(store)
    return RoutedJudge({name: _built(name, part, store) for name, part in given.items() if part is not None}, compare)
