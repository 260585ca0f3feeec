"""Whether two criteria say the same thing: normalised text, token sets, and embeddings.

Two statements repeat each other when their normalised texts are equal, or when they are close in words or in meaning
*and* state the same facts. Closeness alone is not enough: 'two cats' and 'three cats', 'a red cup' and 'a blue cup',
'the cat is left of the dog' and 'the dog is left of the cat' are close and different, and dropping one of them would
lose a requirement. So a merge is conservative (RubricHub, arXiv 2601.08430), and what is dropped may add nothing: 'a
table' repeats 'a wooden table', not the other way round.

    drop = {later for later, _ in duplicates([c.text for c in criteria])}

The word lists are English; other languages are compared by text, tokens and encoder alone.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import combinations
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from mmrubric.checks import number
from mmrubric.errors import InputError

Encoder: TypeAlias = Callable[[Sequence[str]], np.ndarray]
"""N texts -> [N, D] vectors; compared by cosine, so their lengths do not matter."""

JACCARD = 0.8
COSINE = 0.9
_ROUNDING = 1e-9
"""Slack of both thresholds: rounding must not part a text from its twin."""


def word_set(words: str) -> frozenset[str]:
    """A word list as a set."""
    return frozenset(words.split())


NUMBERS = {
    **{"zero": "0", "one": "1", "single": "1", "two": "2", "pair": "2", "three": "3", "four": "4", "five": "5"},
    **{"six": "6", "seven": "7", "eight": "8", "nine": "9", "ten": "10", "eleven": "11", "twelve": "12", "dozen": "12"},
    **{"thirteen": "13", "fourteen": "14", "fifteen": "15", "sixteen": "16", "seventeen": "17", "eighteen": "18"},
    **{"nineteen": "19", "twenty": "20", "thirty": "30", "forty": "40", "fifty": "50", "sixty": "60"},
    **{"seventy": "70", "eighty": "80", "ninety": "90", "hundred": "100"},
}
"""Words for numbers -> digits."""
ORDINALS = {
    **{"first": "1st", "second": "2nd", "third": "3rd", "fourth": "4th", "fifth": "5th", "sixth": "6th"},
    **{"seventh": "7th", "eighth": "8th", "ninth": "9th", "tenth": "10th", "eleventh": "11th", "twelfth": "12th"},
}
"""Words for places in an order -> digits."""
COLOURS = word_set(
    "red orange yellow green blue purple violet pink brown black white grey gold golden silver beige turquoise cyan "
    "magenta teal navy maroon crimson"
)
OPPOSITES = {
    **{"left": "right", "above": "below", "over": "under", "front": "behind", "inside": "outside", "top": "bottom"},
    **{"larger": "smaller", "bigger": "smaller", "taller": "shorter", "closer": "farther", "before": "after"},
    **{"day": "night", "open": "closed", "indoors": "outdoors"},
    **{"north": "south", "east": "west", "northeast": "southwest", "northwest": "southeast"},
    **{"northern": "southern", "eastern": "western"},
}
"""Antonyms; the reverse direction is in `opposites`."""
NEGATIONS = word_set(
    "not no without never none nothing nobody neither nor cannot cant isnt arent doesnt dont didnt wasnt werent hasnt "
    "lack lacks lacking absent"
)
FUNCTION_WORDS = word_set(
    "a an the this that these those is are was were be been being has have had do does did there here it its they "
    "their them he his him she her of as and or but if then than so which who whose what where when while also very "
    "clearly visibly visible image images picture photo photograph scene shown show shows showing depict depicts "
    "depicted contain contains containing include includes including feature features featuring appear appears present "
    "must should can will would"
)
"""Words that carry no claim of their own about a picture."""
RELATING = word_set("in on at by for from with to into onto each every all any some both")
"""Prepositions and quantifiers: nothing to see by themselves, but exchanging one changes the claim."""
_IRREGULAR = {
    **{"men": "man", "women": "woman", "children": "child", "people": "person", "feet": "foot", "teeth": "tooth"},
    **{"mice": "mouse", "geese": "goose", "leaves": "leaf", "wolves": "wolf", "knives": "knife", "shelves": "shelf"},
    **{"gray": "grey", "colored": "coloured", "color": "colour", "colors": "colour"},
}
_UNITS = word_set("one two three four five six seven eight nine")
_TENS = word_set("twenty thirty forty fifty sixty seventy eighty ninety")
# A dash is a sign in front of a number, but not behind a word: 5-10 is a range.
_NUMERAL = re.compile(r"(?<!\w)[-−–]?\d+(?:[.,]\d+)*(?:(?:st|nd|rd|th)(?!\w))?|\d+(?:[.,]\d+)*")
_WHOLE = COLOURS | NEGATIONS | frozenset(NUMBERS) | frozenset(OPPOSITES) | frozenset(OPPOSITES.values())
_NONE: frozenset[str] = frozenset()
_BOTH_WAYS = {
    word: frozenset(other for pair in OPPOSITES.items() if word in pair for other in pair if other != word)
    for word in [*OPPOSITES, *OPPOSITES.values()]
}
_WITHIN_WORD = re.compile(r"(?<=\w)['’](?=\w)")
# A script without spaces between its words is split into its characters.
_TOKEN = re.compile(r"[\u3040-\u30ff\u3400-\u9fff]|[^\s\u3040-\u30ff\u3400-\u9fff]+")
# Straight quotes must open after a blank or bracket and close before none of a word, so that apostrophes and
# inch marks (5") are not taken for quotes.
_QUOTED = re.compile(
    r"“([^“”]+)”|„([^„“”]+)[“”]|«([^«»]+)»|「([^「」]+)」|『([^『』]+)』"
    r"|‘(\S(?:[^‘]*?\S)??)’(?!\w)"
    r"|(?<![^\s(\[{])\"(\S(?:[^\"]*?\S)??)\"(?!\w)"
    r"|(?<![^\s(\[{])'(\S(?:.*?\S)??)'(?!\w)"
)
_OF_THE_PICTURE = re.compile(r"\b(?:in|of|on) (?:the|this) (?:image|picture|photo|photograph|scene)\b")


def quoted(text: str) -> list[str]:
    """The literal strings that a text puts in quotation marks, each once, in order."""
    found = (next(filter(None, match.groups())).strip() for match in _QUOTED.finditer(text))
    return list(dict.fromkeys(literal for literal in found if literal))


def with_quoted(text: str, written: Callable[[str], str]) -> str:
    """The text with every quoted string, its marks included, replaced by what `written` makes of the string."""
    return _QUOTED.sub(lambda match: written(next(filter(None, match.groups())).strip()), text)


def without_quoted(text: str) -> str:
    """The text with every quoted string replaced by empty quotation marks."""
    return with_quoted(text, lambda literal: '""')


def opposites(word: str) -> frozenset[str]:
    """The antonyms of a word, in both directions of `OPPOSITES`."""
    return _BOTH_WAYS.get(word, _NONE)


@lru_cache(maxsize=4096)
def normalise(text: str) -> str:
    """Compatible characters unified, case folded, punctuation to spaces, spaces single; apostrophes in words removed.

    A text of punctuation alone keeps it.
    """
    folded = _WITHIN_WORD.sub("", unicodedata.normalize("NFKC", text).casefold())
    plain = "".join(" " if unicodedata.category(char).startswith("P") else char for char in folded)
    return " ".join(plain.split()) or " ".join(folded.split())


def tokens(text: str) -> list[str]:
    """Words of the normalised text in order; single characters in Chinese and Japanese."""
    return _TOKEN.findall(normalise(text))


def token_set(text: str) -> frozenset[str]:
    """The different words of the normalised text, numbers as digits."""
    return frozenset(_with_digits(tokens(text)))


def _with_digits(words: Iterable[str]) -> list[str]:
    """Numbers and ordinals as digits: 'twenty five' is 25, 'two hundred' is 200."""
    made: list[str] = []
    previous = ""
    for word in words:
        if previous in _TENS and word in _UNITS:
            made[-1] = made[-1][0] + NUMBERS[word]
        elif previous in _UNITS and word == "hundred":
            made[-1] += "00"
        else:
            made.append(NUMBERS.get(word) or ORDINALS.get(word, word))
        previous = word
    return made


@lru_cache(maxsize=4096)
def stem(word: str) -> str:
    """A word without its English plural, -ing, -ed and final e: 'cups' -> 'cup', 'sitting' -> 'sit', 'ride' -> 'rid'.

    A stem is for comparing with other stems; it need not be a word. The words of the lists above stay whole.
    """
    word = _IRREGULAR.get(word, word)
    if word in _WHOLE or not word.isalpha() or not word.isascii():
        return word
    if word.endswith("ies") and len(word) > 4:
        return word[:-3] + "y"
    if word.endswith(("ses", "xes", "zes", "ches", "shes")):
        word = word[:-2]
    elif word.endswith("s") and not word.endswith(("ss", "us", "is")) and len(word) > 3:
        word = word[:-1]
    for ending in ("ing", "ed"):
        base = word.removesuffix(ending)
        if base != word and len(base) >= 3 and re.search("[aeiouy]", base) and not word.endswith("eed"):
            doubled = base[-1] == base[-2] and base[-1] not in "lsz"
            return base[:-1] if doubled else base.removesuffix("e")
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def content(text: str) -> list[str]:
    """Stems of the words that carry a claim or relate such words, in order of the text; numbers as digits."""
    words = _OF_THE_PICTURE.sub("", normalise(text))
    return [stem(word) for word in _with_digits(tokens(words)) if word not in FUNCTION_WORDS]


def facts(text: str) -> frozenset[str]:
    """What may not differ between two texts that say the same.

    Numbers with their signs, ordinals, colours, directions, quoted strings, and 'not' for a text that is negated.
    """
    return _stated(text) | _literals(text)


def _stated(text: str) -> frozenset[str]:
    """The facts of a text, but for its quoted strings as such."""
    folded = unicodedata.normalize("NFKC", text).casefold()
    found = {re.sub("^[−–]", "-", match[0]) for match in _NUMERAL.finditer(folded)}
    words = tokens(text)
    found |= {word for word in _with_digits(filter(str.isalpha, words)) if word[0].isdecimal()}
    for word in words:
        word = _IRREGULAR.get(word, word)
        if word in NEGATIONS:
            found.add("not")
        elif word in COLOURS or opposites(word):
            found.add(word)
    return frozenset(found)


def _literals(text: str) -> frozenset[str]:
    """The quoted strings of a text, in quotation marks; a stop or comma at the end belongs to the sentence."""
    folded = (_WITHIN_WORD.sub("", unicodedata.normalize("NFKC", one).casefold()) for one in quoted(text))
    plain = (" ".join(one.split()) for one in folded)
    return frozenset(f'"{one.rstrip(".,") or one}"' for one in plain)


def token_jaccard(first: str, second: str) -> float:
    """Shared words / all words of two texts, in [0, 1]; 1 for equal normalised texts."""
    return _overlap(token_set(first), token_set(second))


def _overlap(a: frozenset[str], b: frozenset[str]) -> float:
    return len(a & b) / len(a | b) if a or b else 1.0


def cosines(vectors: np.ndarray) -> NDArray[np.float64]:
    """Cosines [N, N] of the rows of [N, D]; a row of zeros has cosine 0 with every other.

    Raises:
        InputError: not two-dimensional, or a value that is not finite.
    """
    rows = np.asarray(vectors, dtype=np.float64)
    if rows.ndim != 2 or not np.isfinite(rows).all():
        raise InputError(f"encoder: vectors must be finite numbers [texts, dimensions], got shape {list(rows.shape)}")
    length = np.linalg.norm(rows, axis=1, keepdims=True)
    unit = np.divide(rows, length, out=np.zeros_like(rows), where=length > 0)
    return unit @ unit.T


def ngram_encoder(texts: Sequence[str]) -> np.ndarray:
    """The built-in encoder: hashed counts of 2 to 4 characters within words, float32 [N, 4096].

    It needs no model and no network and is the same on every machine. It sees spelling, not meaning: 'colour' is close
    to 'coloured', 'big' is far from 'large', and in a long sentence one other noun changes little. Give a sentence
    encoder where meaning matters.
    """
    counts = _vectorizer().transform([normalise(text) for text in texts])
    return counts.toarray().astype(np.float32)


@lru_cache(maxsize=1)
def _vectorizer() -> Any:
    # Importing scikit-learn takes a second, and most users of this module need words only.
    from sklearn.feature_extraction.text import HashingVectorizer

    return HashingVectorizer(analyzer="char_wb", ngram_range=(2, 4), n_features=4096, alternate_sign=False, norm="l2")


def similar_pairs(
    texts: Sequence[str], jaccard: float = JACCARD, cosine: float = COSINE, encoder: Encoder | None = None
) -> list[tuple[int, int]]:
    """All pairs (earlier index, later index) of which one says nothing that the other does not say, sorted.

    Args:
        texts: statements.
        jaccard: least share of common words, in [0, 1]; one text of such a pair may add words, but not exchange or
            reorder those that carry the claim.
        cosine: least cosine of the encoder's vectors, in [-1, 1]; wording is then free.
        encoder: `ngram_encoder` or a sentence encoder; None = words only.

    Raises:
        InputError: a threshold out of range, or vectors that are not one finite row per text.
    """
    same = _Comparer(texts, jaccard, cosine, encoder)
    return [(i, j) for i, j in combinations(range(len(texts)), 2) if same.repeats(i, j) or same.repeats(j, i)]


def duplicates(
    texts: Sequence[str], jaccard: float = JACCARD, cosine: float = COSINE, encoder: Encoder | None = None
) -> list[tuple[int, int]]:
    """(later index, earlier index that it repeats): the later one adds nothing and can be dropped.

    Each text is compared with those that are kept, and is reported once, with the earliest kept text that it repeats.
    Of what is kept, no text repeats an earlier one.
    Arguments and errors as for `similar_pairs`.
    """
    same = _Comparer(texts, jaccard, cosine, encoder)
    kept: list[int] = []
    found = []
    for later in range(len(texts)):
        earlier = next((index for index in kept if same.repeats(later, index)), None)
        if earlier is None:
            kept.append(later)
        else:
            found.append((later, earlier))
    return found


def groups(
    texts: Sequence[str], jaccard: float = JACCARD, cosine: float = COSINE, encoder: Encoder | None = None
) -> list[tuple[int, ...]]:
    """Indices of texts that are linked by `similar_pairs`, each group and the list sorted; texts alone are left out.

    The grouping does not depend on the order of the texts, which that of `duplicates` may.
    """
    group = {index: {index} for index in range(len(texts))}
    for earlier, later in similar_pairs(texts, jaccard, cosine, encoder):
        if group[earlier] is not group[later]:
            group[earlier] |= group[later]
            for index in group[later]:
                group[index] = group[earlier]
    return sorted({tuple(sorted(members)) for members in group.values() if len(members) > 1})


class _Comparer:
    """`repeats(later, earlier)` over fixed texts, with everything that belongs to one text computed once."""

    def __init__(self, texts: Sequence[str], jaccard: float, cosine: float, encoder: Encoder | None) -> None:
        self.jaccard = number("jaccard", jaccard, 0.0, 1.0)
        self.cosine = number("cosine", cosine, -1.0, 1.0)
        self.normal = [normalise(text) for text in texts]
        self.words = [token_set(text) for text in texts]
        # Each word once, at its first place: a dict is an ordered set.
        self.content = [dict.fromkeys(content(text)) for text in texts]
        self.stated = [_stated(text) for text in texts]
        self.literals = [_literals(text) for text in texts]
        self.cosines: NDArray[np.float64] | None = None
        if encoder is not None and len(texts):
            vectors = np.asarray(encoder(texts))
            if len(vectors) != len(texts):
                raise InputError(f"encoder: gave {len(vectors)} vectors for {len(texts)} texts")
            self.cosines = cosines(vectors)

    def repeats(self, i: int, j: int) -> bool:
        """Whether text i says the same as text j, or less."""
        # Before equality: a sign, a decimal point or the marks within a quotation are lost in the normalised text.
        if self.stated[i] != self.stated[j]:
            return False
        said, theirs_said = self.literals[i], self.literals[j]
        if self.normal[i] == self.normal[j] and (said == theirs_said or not said or not theirs_said):
            return True
        mine, theirs = self.content[i].keys(), self.content[j].keys()
        if said != theirs_said or mine > theirs:
            return False
        near = _overlap(self.words[i], self.words[j]) >= self.jaccard - _ROUNDING
        if near and mine <= theirs and self._same_order(i, j):
            return True
        close = self.cosines is not None and self.cosines[i, j] >= self.cosine - _ROUNDING
        directed = any(opposites(word) for word in self.stated[i])
        return close and (not directed or self._same_order(i, j))

    def _same_order(self, i: int, j: int) -> bool:
        """Whether the common words that carry a claim first come in the same order."""
        first, second = self.content[i], self.content[j]
        return [word for word in first if word in second] == [word for word in second if word in first]
