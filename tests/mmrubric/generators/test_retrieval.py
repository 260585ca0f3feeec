"""BM25 over passages, with the arithmetic by hand."""

from __future__ import annotations

import asyncio
import json
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.errors import InputError
from mmrubric.generators.retrieval import BM25, Passage, Retriever

BIRDS = [
    Passage("robin", "robin robin breast"),
    Passage("wren", "breast tail"),
    Passage("heron", "wader"),
]
WORDS = ["robin", "breast", "tail", "wader", "heron", "wing", "crest"]


def search(index, query, most=3):
    return [passage.id for passage in asyncio.run(index.search(query, most))]


def test_scores_are_lucenes_bm25():
    # robin: 1 of 3 passages has it, twice; lengths 3, 2, 1, mean 2; k1 = 1.5, b = .75:
    # idf = ln(1 + (3 - 1 + .5) / (1 + .5)); tf = 2 / (2 + 1.5 (1 - .75 + .75 * 3/2))
    robin = math.log(1 + 2.5 / 1.5) * 2 / (2 + 1.5 * (0.25 + 0.75 * 1.5))
    breast_of_robin = math.log(1 + 1.5 / 2.5) * 1 / (1 + 1.5 * (0.25 + 0.75 * 1.5))
    breast_of_wren = math.log(1 + 1.5 / 2.5) * 1 / (1 + 1.5 * (0.25 + 0.75 * 1.0))
    scores = BM25(BIRDS).scores("the robin's breast of a robin")
    # "robin's" is one word without its apostrophe, robins, and its stem is robin: so robin is asked for twice.
    np.testing.assert_allclose(scores, [2 * robin + breast_of_robin, breast_of_wren, 0.0], rtol=1e-9)


def test_it_is_a_retriever_that_gives_the_best_first_and_nothing_without_a_common_word():
    index = BM25(BIRDS)
    assert isinstance(index, Retriever)
    assert search(index, "robins with a breast") == ["robin", "wren"]
    assert search(index, "breast", most=1) == ["wren"]
    for nothing in ("ostrich", "", "the of", "?!"):
        assert search(index, nothing) == [] and not index.scores(nothing).any()


corpora = st.lists(st.lists(st.sampled_from(WORDS), min_size=1, max_size=6), min_size=1, max_size=6)


@settings(max_examples=50, deadline=None)
@given(corpora, st.lists(st.sampled_from(WORDS), max_size=4), st.randoms())
def test_the_order_of_the_passages_does_not_matter(corpus, query, random):
    passages = [Passage(f"p{number}", " ".join(words)) for number, words in enumerate(corpus)]
    shuffled = random.sample(passages, len(passages))
    assert search(BM25(passages), " ".join(query), 6) == search(BM25(shuffled), " ".join(query), 6)


@settings(max_examples=50, deadline=None)
@given(corpora, st.lists(st.sampled_from(WORDS), max_size=4))
def test_the_score_is_0_exactly_where_no_word_is_common(corpus, query):
    passages = [Passage(f"p{number}", " ".join(words)) for number, words in enumerate(corpus)]
    for words, score in zip(corpus, BM25(passages).scores(" ".join(query)), strict=True):
        assert (score > 0) == bool(set(words) & set(query)) and score >= 0


def test_corpora_are_read_from_lines_and_from_paragraphs(tmp_path):
    lines = tmp_path / "birds.jsonl"
    lines.write_text("\n".join(json.dumps({"id": p.id, "text": p.text, "url": "x"}) for p in BIRDS) + "\n\n")
    assert BM25.load(lines).passages == tuple(BIRDS)
    paragraphs = tmp_path / "notes.txt"
    paragraphs.write_text("A robin has\na red breast.\n \n\nA heron is a wader.\n")
    assert [(p.id, p.text) for p in BM25.load(paragraphs).passages] == [
        ("notes:1", "A robin has\na red breast."),
        ("notes:2", "A heron is a wader."),
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"id": "x", "text": "wren"}\n{"id": ', "line 2: not JSON"),
        ("a.jsonl", b'{"text": "wren"}', 'line 1: expected an object with "id" and "text"'),
        ("a.jsonl", b'{"id": 3, "text": "wren"}', "line 1: passage 3: field id must be text"),
        ("a.jsonl", b'{"id": "x", "text": " "}', "line 1: passage 'x': field text"),
        ("a.jsonl", b'{"id": "x", "text": "a"}\n{"id": "x", "text": "b"}', "ids are given twice: x"),
        ("a.jsonl", b"", "no passage"),
        ("a.txt", b"the of", "no passage with a word to find"),
        ("a.txt", b"\xff", "not UTF-8"),
        ("a.csv", b"x", "a corpus is a .jsonl or .txt file"),
    ],
)
def test_a_bad_corpus_is_refused_with_file_and_line(tmp_path, name, content, message):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        BM25.load(path)


@pytest.mark.parametrize("options", [{"k1": -1.0}, {"b": 2.0}, {"k1": math.nan}])
def test_bad_constants_are_refused(options):
    with pytest.raises(InputError, match="k1 >= 0 and 0 <= b <= 1"):
        BM25(BIRDS, **options)
