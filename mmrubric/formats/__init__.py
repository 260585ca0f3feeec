"""Rubric files of others: import of every published layout, export of those that have a full round trip.

`read(path)` streams rubrics, `write(rubrics, path, format)` streams them back; `from_record` and `to_record` do one
record; `read_pairs` reads preference data. `names()` lists the formats, `names(export=True)` the writable ones.
The table of all formats is `mmrubric.formats.registry.FORMATS`.
"""

from mmrubric.formats.pairs import RankedCandidates
from mmrubric.formats.registry import from_record, names, pair_from_record, pair_names, to_record
from mmrubric.formats.streams import Written, detect, read, read_pairs, write

__all__ = [
    "RankedCandidates",
    "Written",
    "detect",
    "from_record",
    "names",
    "pair_from_record",
    "pair_names",
    "read",
    "read_pairs",
    "to_record",
    "write",
]
