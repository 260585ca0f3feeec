"""Reads an English prompt by rules: the things it names, what they are like, and how they stand to each other."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from mmrubric.generators import template_words as words
from mmrubric.generators.template_things import Thing, describes, is_adverb, premodifies, singular, tell_apart, thing_of
from mmrubric.similar import with_quoted

_TOKEN = re.compile(r"§\d+|\w(?:[\w'’-]|\.(?=\w))*|[.,;:!?()]")
_STOPS = frozenset(".,;:!?()")
_MOST_WORDS = max(len(phrase.split()) for phrase in words.RELATIONS)


@dataclass(frozen=True)
class Link:
    """One thing in a relation to another, or doing something to it."""

    first: int
    words: str
    """right of, sitting on, riding, has."""
    second: int
    verb: str = ""
    """The verb in `words`, if any."""


@dataclass
class Reading:
    """What a prompt says; links and doings name things by their index."""

    things: list[Thing] = field(default_factory=list)
    links: list[Link] = field(default_factory=list)
    doings: list[tuple[int, str]] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    """What is to be written in the picture."""
    medium: str = ""
    """a painting, a cartoon, ...; "" = a photograph, or not said."""


def number_word(number: int) -> str:
    """'three'; digits above twenty."""
    return next((word for word, value in words.NUMBERS.items() if value == number and word != "dozen"), str(number))


def read(prompt: str) -> Reading:
    """Read a prompt; words in no list are taken as nouns."""
    texts: list[str] = []

    def keep(literal: str) -> str:
        texts.append(literal)
        return f" §{len(texts) - 1} "

    tokens = _TOKEN.findall(with_quoted(prompt, keep))
    return _Reader(tokens, texts).read()


class _Reader:
    """One pass over the tokens, from left to right."""

    def __init__(self, tokens: Sequence[str], quoted: Sequence[str]) -> None:
        self.raw = list(tokens)
        self.low = [token.lower().replace("’", "'") for token in tokens]
        self.quoted = quoted
        self.made = Reading()
        self.anchor: int | None = None
        """The thing named last: what the next relation starts from."""
        self.verb, self.relation = "", ""
        self.denied = False
        """Whether what comes next is denied, up to the next thing or stop."""

    def read(self) -> Reading:
        at = self._skip_medium()
        while at < len(self.low):
            at = self._step(at)
        self._end_verb()
        self.made.texts = list(dict.fromkeys([*self.quoted, *self.made.texts]))
        tell_apart(self.made.things)
        return self.made

    def _step(self, at: int) -> int:
        word = self.low[at]
        if word in words.NEGATIONS or word.endswith("n't"):
            self._end_verb()
            self.relation, self.denied = "", True
            return at + 1
        if word in _STOPS:
            self._end_verb()
            self.relation, self.denied = "", False
            if word == ".":
                self.anchor = None
            return at + 1
        if word.startswith("§"):
            self.verb = self.relation = ""
            return at + 1
        if word in words.TEXT_VERBS and (taken := self._literal(at + 1)):
            self.verb = self.relation = ""
            return taken
        if length := self._relation_at(at):
            self.relation = words.RELATIONS[" ".join(self.low[at : at + length])]
            return at + length
        if word == "to":
            # An infinitive says what might be done, not what is seen.
            self._end_verb()
            return at + (2 if at + 1 < len(self.low) and self.low[at + 1] not in words.DETERMINERS else 1)
        if word in words.FUNCTION or is_adverb(word):
            if word in ("and", "or", "but", "while", "as"):
                self._end_verb()
                self.relation = ""
                # 'no dogs and cats' denies both, 'no dogs but a cat' does not.
                self.denied = self.denied and word in ("and", "or")
            return at + 1
        if self._is_verb(at, after_noun=self.anchor is not None):
            self._end_verb()
            self.verb = "" if word in words.BARE_VERBS or self.denied else word
            if word in ("has", "have", "having"):
                self.relation = "with"
            return self._predicate(at + 1) if word in words.BARE_VERBS else at + 1
        return self._noun_phrase(at)

    def _predicate(self, at: int) -> int:
        """Index behind what 'is' says of the thing named last: 'is round', 'can be heard'."""
        while at < len(self.low) and (is_adverb(self.low[at]) or self.low[at] in words.BARE_VERBS):
            at += 1
        if at < len(self.low) and self.low[at] in words.NEGATIONS:
            # 'is not round': what is denied names nothing to look for.
            self.denied = True
            return at + 2 if self._ends_at(at + 2) else at + 1
        if at == len(self.low) or self.anchor is None or not self._ends_at(at + 1):
            return at
        word = self.low[at]
        if word in words.COLOURS or describes(word):
            kind = "colour" if word in words.COLOURS else "size" if word in words.SIZES else "quality"
            self.made.things[self.anchor].attributes[word] = kind
            return at + 1
        return at

    def _ends_at(self, at: int) -> bool:
        """Whether a phrase ends before this token."""
        return (
            at >= len(self.low)
            or self.low[at] in _STOPS
            or self.low[at] in words.FUNCTION
            or bool(self._relation_at(at))
        )

    def _skip_medium(self) -> int:
        """Index behind 'a photo of', 'an oil painting showing', ...; keeps the medium."""
        for end in range(1, min(8, len(self.low))):
            if self.low[end] in ("of", "showing", "depicting", "featuring"):
                before = [word for word in self.low[:end] if word not in words.DETERMINERS]
                named = next(
                    (" ".join(before[k:]) for k in range(len(before)) if " ".join(before[k:]) in words.MEDIA), ""
                )
                if named:
                    self.made.medium = words.MEDIA[named]
                return end + 1 if named or (before and before[-1] in words.PLAIN_MEDIA) else 0
        return 0

    def _literal(self, at: int) -> int:
        """Index behind capital words that are to be written, which are kept; 0 where there are none."""
        if at < len(self.low) and self.low[at].startswith("§"):
            return at + 1
        end = at
        while end < len(self.raw) and self.raw[end].isupper():
            end += 1
        if end > at:
            self.made.texts.append(" ".join(self.raw[at:end]))
            return end
        return 0

    def _relation_at(self, at: int) -> int:
        """Number of words of the relation that begins here, or 0."""
        for length in range(_MOST_WORDS, 0, -1):
            if " ".join(self.low[at : at + length]) in words.RELATIONS and at + length <= len(self.low):
                return length
        return 0

    def _is_verb(self, at: int, after_noun: bool) -> bool:
        word = self.low[at]
        if word in words.VERBS:
            return word not in ("light", "plant") and (after_noun or word in words.BARE_VERBS)
        if not after_noun or word in words.ADJECTIVES:
            return False
        if word.endswith("ing") and len(word) > 4:
            return True
        return word.endswith("ed") and len(word) > 4 and word not in words.NOT_PAST and "-" not in word

    def _noun_phrase(self, at: int) -> int:
        end, of = at, None
        while end < len(self.low):
            word = self.low[end]
            begun = any(not (w in words.DETERMINERS or premodifies(w) or is_adverb(w)) for w in self.low[at:end])
            if word == "of" and begun and of is None and singular(self.low[end - 1]) in words.COLLECTIVES:
                of = end
            elif not self._goes_on(end, begun) and self._ends_phrase(end, begun):
                break
            end += 1
        if end == at:
            return at + 1
        if self._is_adjective(at, end):
            return end
        self._take(self.low[at:end], None if of is None else of - at)
        return end

    def _goes_on(self, at: int, begun: bool) -> bool:
        """Whether 'of' or 'and' stands inside a noun phrase: 'a glass of water', 'a red and blue ball'."""
        if self.low[at] == "of":
            return begun and at + 1 < len(self.low) and self.low[at + 1] not in words.DETERMINERS
        return self.low[at] == "and" and self._two_coloured(at)

    def _ends_phrase(self, at: int, begun: bool) -> bool:
        """Whether a noun phrase, of which a noun has `begun` or not, ends before this token."""
        word = self.low[at]
        return bool(
            word in _STOPS
            or word in words.NEGATIONS
            or word == "to"
            or word in words.FUNCTION
            or word.startswith("§")
            or self._relation_at(at)
            or (begun and (is_adverb(word) or word in words.DETERMINERS))
            or self._is_verb(at, after_noun=begun)
        )

    def _two_coloured(self, at: int) -> bool:
        """Whether 'and' stands between two colours of one thing: 'a red and blue ball'."""
        return all(0 <= k < len(self.low) and self.low[k] in words.COLOURS for k in (at - 1, at + 1))

    def _is_adjective(self, at: int, end: int) -> bool:
        """Whether an unknown word is an adjective, as in 'a stout and rectangular build' and 'plump, oblong shapes'."""
        following = self.low[end + 1 : end + 2]
        return (
            end - at == 2
            and self.low[at] in words.DETERMINERS
            and self.low[end : end + 1] in ([","], ["and"])
            and bool(following)
            and premodifies(following[0])
            and following[0] not in words.NUMBERS
        )

    def _take(self, phrase: list[str], of: int | None) -> None:
        number = None
        if of is not None:
            counted = next((w for w in phrase[:of] if singular(w) in words.COLLECTIVES), "")
            # A pair of glasses is one thing.
            number = words.COLLECTIVES[singular(counted)] if counted and phrase[-1] not in words.SPECTACLES else None
            phrase = phrase[of + 1 :]
        first = phrase[0] if phrase else ""
        thing = thing_of([word for word in phrase if word not in words.DETERMINERS], number)
        if thing is None:
            return
        if first in words.SINGULAR and thing.number is None:
            thing.plural = False
        if self.denied:
            self.made.things.append(Thing(thing.noun, None, thing.plural, {}, absent=True))
            self.verb = self.relation = ""
            return
        index = self._place(thing, definite=first in words.DEFINITE)
        if self.anchor is not None and self.anchor != index and (self.verb or self.relation):
            self._link(index)
        self.verb = self.relation = ""
        self.anchor = index

    def _place(self, thing: Thing, definite: bool) -> int:
        """Index of a thing: an earlier one that it names again, or a new one."""
        if definite:
            for index, earlier in enumerate(self.made.things):
                if earlier.head == thing.head:
                    earlier.attributes |= thing.attributes
                    return index
        self.made.things.append(thing)
        return len(self.made.things) - 1

    def _link(self, second: int) -> None:
        assert self.anchor is not None
        if self.relation and not (self.relation in words.VAGUE and not self.verb):
            said = "has" if self.relation == "with" and not self.verb else f"{self.verb} {self.relation}".strip()
            self.made.links.append(Link(self.anchor, said, second, self.verb))
        elif self.verb:
            self.made.links.append(Link(self.anchor, self.verb, second, self.verb))

    def _end_verb(self) -> None:
        stated = self.verb and self.verb not in words.UNSEEN_VERBS
        if stated and not self.relation and self.anchor is not None:
            self.made.doings.append((self.anchor, self.verb))
        self.verb = ""
