"""What every generator does with the criteria that a model wrote: ids, de-duplication, a cap."""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from mmrubric.rubric import Criterion
from mmrubric.similar import Encoder, duplicates

CATEGORIES = ("object", "count", "attribute", "relation", "action", "text", "style", "realism", "aesthetics")
"""What criteria of a picture speak of, most checkable first."""
_ALIASES = {
    "spatial": "relation",
    "ocr": "text",
    "ocr_fidelity": "text",
    "objects": "object",
    "attributes": "attribute",
}
_SLUG_WORDS = 6


def category_of(name: str) -> str:
    """One spelling for a category: snake case, 'spatial' is relation and 'ocr' is text (RubricRL's names)."""
    plain = re.sub(r"[^\w]+", "_", name.strip().casefold()).strip("_")
    return _ALIASES.get(plain, plain) or "general"


def slug(text: str) -> str:
    """A short id from a key or a statement: 'Exactly three apples.' -> exactly_three_apples."""
    plain = unicodedata.normalize("NFKC", text).casefold()
    words = re.findall(r"\w+", plain)[:_SLUG_WORDS]
    return "_".join(words) or "criterion"


def with_unique_ids(criteria: Iterable[Criterion]) -> list[Criterion]:
    """Criteria whose id was taken by an earlier one get _2, _3, ... behind it."""
    seen: Counter[str] = Counter()
    made: list[Criterion] = []
    for criterion in criteria:
        id = criterion.id
        while seen[id]:
            seen[criterion.id] += 1
            id = f"{criterion.id}_{seen[criterion.id]}"
        seen[id] += 1
        made.append(criterion if id == criterion.id else criterion.model_copy(update={"id": id}))
    return made


def without_repeats(
    criteria: Sequence[Criterion], encoder: Encoder | None = None
) -> tuple[list[Criterion], list[tuple[Criterion, Criterion]]]:
    """Criteria that say something new, and (dropped, the earlier one that it repeats)."""
    repeats = duplicates([criterion.text for criterion in criteria], encoder=encoder)
    dropped = {later for later, _ in repeats}
    kept = [criterion for index, criterion in enumerate(criteria) if index not in dropped]
    return _without_lost_parents(kept), [(criteria[later], criteria[earlier]) for later, earlier in repeats]


def check_enough(texts: Sequence[str], least: int, encoder: Encoder | None = None) -> None:
    """Raises ValueError where fewer than `least` of the statements say something of their own."""
    distinct = len(texts) - len(duplicates(texts, encoder=encoder))
    if distinct < least:
        raise ValueError(f"{distinct} different criteria; give at least {least}")


def capped(criteria: Sequence[Criterion], most: int) -> list[Criterion]:
    """At most `most` criteria in their order: the first of every category, then the second of every one, and so on.

    So no category vanishes as long as there is room for one of each (RubricRL, arXiv 2511.20651).
    """
    turn: Counter[str] = Counter()
    ranks = []
    for index, criterion in enumerate(criteria):
        ranks.append((turn[criterion.category], index))
        turn[criterion.category] += 1
    kept = {index for _, index in sorted(ranks)[:most]}
    return _without_lost_parents([criterion for index, criterion in enumerate(criteria) if index in kept])


def _without_lost_parents(criteria: list[Criterion]) -> list[Criterion]:
    ids = {criterion.id for criterion in criteria}
    return [
        criterion
        if ids.issuperset(criterion.depends_on)
        else criterion.model_copy(update={"depends_on": tuple(id for id in criterion.depends_on if id in ids)})
        for criterion in criteria
    ]
