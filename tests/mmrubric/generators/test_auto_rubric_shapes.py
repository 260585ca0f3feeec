"""`auto_rubric` on labelled pairs of the world of shapes: verification keeps good rubrics and drops bad ones.

The model is scripted but for what it sees: rubrics are applied to the pictures of the request by the pixel judge.
"""

from __future__ import annotations

import base64
import re
import warnings

import numpy as np
import pytest

from judges.shapes.first import read
from mmrubric import generators, shapes
from mmrubric.chat import ImagePart
from mmrubric.generators.shapes import criteria_of
from mmrubric.images import normalize
from mmrubric.pairs import PreferencePair
from mmrubric.rubric import Criterion
from mmrubric.shapes.checks import holds, seen_of
from mmrubric.shapes.sampling import changed, changes_of
from tests.mmrubric.generators.scripted import Scripted, pictures_of, step_of, text_of

KINDS = ("good", "blind", "contrary")
"""A statement that only the preferred picture meets; one that both meet; one that only the other picture meets."""


def world(count: int, seed: int) -> tuple[list[PreferencePair], dict[str, dict[str, str]], dict[str, Criterion]]:
    """Pairs of a right picture and a near miss, the statements of each kind by prompt, and all criteria by text."""
    rng = np.random.default_rng(seed)
    pairs, statements, known = [], {}, {}
    for spec in shapes.draw_specs("train", 6 * count, seed):
        if len(pairs) == count:
            break
        other = changed(spec, str(rng.choice(changes_of(spec))), rng)
        scenes = shapes.scene_for(spec, rng), shapes.scene_for(other, rng)
        right, wrong = (seen_of(scene) for scene in scenes)
        pool = {c.text: c for c in (*criteria_of(spec), *criteria_of(other)) if c.id != "nothing_else"}
        truths = {text: (bool(holds(c.arguments, right)), bool(holds(c.arguments, wrong))) for text, c in pool.items()}
        found = {
            kind: next((text for text, truth in truths.items() if truth == wanted), "")
            for kind, wanted in zip(KINDS, ((True, False), (True, True), (False, True)), strict=True)
        }
        if not all(found.values()) or spec.text in statements:
            continue
        pictures = [shapes.render(scene) for scene in scenes]
        first = int(rng.integers(2))
        candidates = (pictures[first], pictures[1 - first])
        pairs.append(PreferencePair(spec.text, candidates, preferred=first, id=f"pair{len(pairs)}"))
        statements[spec.text] = found
        known |= pool
    return pairs, statements, known


class Applier:
    """Writes the statement of one kind for each pair, and applies statements by the pixel judge."""

    def __init__(self, kind_of, statements, known) -> None:
        self._kind_of, self._statements, self._known = kind_of, statements, known

    def __call__(self, request):
        step, text = step_of(request), text_of(request)
        if step in ("contrast", "refine"):
            prompt = next(prompt for prompt in self._statements if f"\n{prompt}\n" in text)
            return {"reason": "seen", "criteria": [self._statements[prompt][self._kind_of(prompt)]]}
        if step == "structure":
            numbers = [int(n) for n in re.findall(r"^(\d+)\. ", text, re.MULTILINE)]
            tips = [{"text": f"Statement {n} holds.", "statements": [n]} for n in numbers[:4]]
            return {"themes": [{"theme": "all", "grain": "mid", "tips": tips}]}
        stated = [self._known[line] for line in re.findall(r"^\d+\. (.+)$", text, re.MULTILINE)]
        first, second = (self._score(picture, stated) for picture in pictures_of(request))
        return {"reason": "pixels", "rank": [1, 1] if first == second else [1, 2] if first > second else [2, 1]}

    def _score(self, picture: ImagePart, criteria: list[Criterion]) -> float:
        """Share of the criteria that the pixel reader finds in a picture as it was sent."""
        image = normalize(base64.b64decode(picture.url.partition(",")[2]))
        [seen] = read(np.asarray(image)[None])
        return float(np.mean([bool(holds(criterion.arguments, seen)) for criterion in criteria]))


def outcome(verify: str, seed: int, count: int = 30):
    """Ids of the pairs whose rubrics were kept, and which were good, blind and contrary."""
    pairs, statements, known = world(count, seed)
    kinds = {pair.prompt: KINDS[number % 3] for number, pair in enumerate(pairs)}
    client = Scripted(Applier(kinds.__getitem__, statements, known))
    arr = generators.build("auto_rubric", client=client, verify=verify, max_refinements=1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        arr.fit_sync(pairs)
    kept = set(arr.rubric.provenance.evidence)
    return kept, {kind: {pair.id for pair in pairs if kinds[pair.prompt] == kind} for kind in KINDS}


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_verification_by_label_keeps_the_good_and_drops_the_bad(seed: int):
    kept, kinds = outcome("label", seed)
    assert [len(kinds[kind]) for kind in KINDS] == [10, 10, 10]
    assert kept == kinds["good"]


def test_verification_by_consistency_drops_what_cannot_tell_but_not_what_is_wrong():
    """Without labels a rubric that steadily prefers the worse picture cannot be found out."""
    kept, kinds = outcome("consistency", 0)
    assert kept == kinds["good"] | kinds["contrary"]
