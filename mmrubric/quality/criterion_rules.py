"""Rules that look at one criterion alone.

The principles are those of RubricHub's P_meta (arXiv 2601.08430): atomic, clear, verifiable, independent of the answer.
The leak rule is Proxy-GRM's (arXiv 2603.16600). Quoted strings are left out of every wording rule: a sign may say
'better and cheaper'.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from mmrubric.quality.finding import Finding, Severity
from mmrubric.rubric import Criterion, Rubric
from mmrubric.similar import COLOURS, NEGATIONS, NUMBERS, quoted, tokens, without_quoted, word_set

CriterionRule = Callable[[Criterion, Rubric], Iterator[Finding]]

_COLOUR = "|".join(sorted(COLOURS))
_NUMBER = "|".join([*NUMBERS, r"\d+"])
# 'and' and 'or' that join no second fact: a pattern of colours, a place between two things, an open number.
_ONE_FACT = re.compile(
    rf"\b(?:{_COLOUR})(?:,? (?:{_COLOUR}))*,?[ -]and[ -](?:{_COLOUR})\b"
    rf"|\bbetween\b.+?\band\b|\b(?:up and down|back and forth|salt and pepper)\b"
    rf"|\b(?:{_NUMBER}) or (?:more|fewer|less|{_NUMBER})\b|\b(?:more|fewer|less) or (?:less|fewer)\b|\bwhether or not\b"
)
_JOIN = re.compile(r";|\bas well as\b|\band/or\b|(?<!-)\b(?:and|or)\b(?!-)")
_HIDDEN = word_set(
    "intent intention intentions intended purpose meaning creative creatively creativity imaginative originality feels "
    "feel feeling feelings evokes evoke conveys mood atmosphere tries attempts aims seems seemingly beautiful "
    "beautifully aesthetic aesthetically pleasing interesting impressive appropriate appropriately suitable suitably "
    "proper properly nice good faithful faithfully effective effectively thoughtful overall"
)
_WISH = word_set("should must shall ought")
# What stands behind a number that is a size, not a name: 'a photo 4 inches wide'.
_SIZE = (
    r"(?:\.\d+)?[ -]?(?:inch(?:es)?|feet|foot|ft|mm|cm|m|millimet\w+|centimet\w+|met(?:er|re)s?|pixels?|px|%|percent"
    r"|times|years?|(?:x|×|by) ?\d+)"
)
# Where a picture within the picture is: 'the second picture on the wall'.
_PLACED = (
    r"(?! (?:(?:that |which )?(?:is |are )?(?:hanging|standing|leaning|lying)|hangs?|stands?|leans?|lies|lie|on|above"
    r"|below|under|over|behind|beside|next to)\b)"
)
_CANDIDATE = (
    r"\b(?:image|picture|photo|response|answer|candidate|option|output|sample|chatbot|assistant|model)"
    rf" ?#?(?:\d+\b(?!{_SIZE}(?!\w))|(?-i:[A-D]\b))"
)
_NAMES_CANDIDATE = re.compile(
    rf"(?P<name>{_CANDIDATE}|\b(?:first|second|other|both|two) "
    rf"(?:(?:responses?|answers?|candidates?)\b|(?:image|picture)s?\b{_PLACED}))"
    # The whole sample against another one; 'one tower is taller than the other' is about one picture.
    rf"|^(?:is |does |has )?(?:it|(?:this|the) (?:image|picture|photo|response|answer|candidate)\b{_PLACED})\b"
    r".*(?P<other>\bthan the other\b)",
    re.IGNORECASE,
)
# Before a name: then it is text within the picture ('the label says option B'), or one of several things ('a second
# picture').
_IN_THE_PICTURE = re.compile(
    r"\b(?:says?|reads?|spells?|labell?ed|marked|numbered|titled|captioned|an?)(?: as)?(?: the)? \Z", re.IGNORECASE
)
_COMPARES = re.compile(
    rf"\b(?:better|worse|best|worst)\b|\b(?:more|less) (?!(?:or|{_NUMBER})\b)\w+(?: \w+){{0,3}} than\b"
    rf"|\bmore than (?!(?:{_NUMBER}|half|an?)\b)|\bthan the other\b|\bcompared (?:to|with)\b"
)
_CANDIDATE_DOES = re.compile(
    rf"(?P<name>{_CANDIDATE}) "
    r"(?:mentions|includes|shows|has|is|does|contains|fails|lacks|depicts|omits|wins|states|uses)\b",
    re.IGNORECASE,
)
_TELLS_RESULT = re.compile(
    r"\b(?:score|grade|rate)(?: of)? \d+ (?:if|when|for)\b"
    r"|\b(?:give|award|deduct|assign|subtract)\b.*\b(?:points?|score)\b"
    r"|\b(?:answer|mark|reply|respond)(?: it)?(?: with| as)? (?:yes|no|pass|fail|true|false|met|1|0)\b"
    r"|\bcorrect (?:answer|response|choice)\b",
    re.IGNORECASE,
)
_REFERENCE = re.compile(
    r"\bground[- ]truth\b|\bgold(?:en)? (?:answer|standard|image)\b|\bthe reference\b"
    r"|\breference (?:image|picture|photo|answer|caption|text)\b"
    r"|\b(?:expected|model|target) (?:answer|output|image|response)\b",
    re.IGNORECASE,
)
_UNWANTED = word_set(
    "distorted distortion distortions deformed deformity malformed mutated disfigured blurry blurred artifact "
    "artifacts artefact artefacts watermark watermarks glitch glitches noisy pixelated extra unwanted wrong incorrect "
    "incorrectly mistake mistakes error errors missing garbled illegible unreadable cropped truncated duplicated "
    "unrealistic unnatural"
)
_FREE_OF = re.compile(r"\bfree (?:of|from)\b|\babsence of\b|\bavoids?\b")
_OCR_CATEGORY = word_set("text ocr typography lettering spelling")
_READS = re.compile(r"\b(?:reads?|says?|spells?|spelled|spelt|written|words?|letters?|captioned|labelled|labeled)\b")


def wants_true(criterion: Criterion) -> bool:
    """Whether the criterion is satisfied when its statement is true; weight sign and expected answer decide."""
    return (criterion.weight > 0) != (criterion.expected == "no")


def negated(text: str) -> bool:
    """Whether a statement denies something: 'no text', 'not blurry', 'free of artifacts'."""
    plain = without_quoted(text).casefold()
    return bool(NEGATIONS & set(tokens(plain))) or bool(_FREE_OF.search(plain))


def _found(rule: str, severity: Severity, criterion: Criterion, message: str) -> Finding:
    return Finding(rule, severity, (criterion.id,), message)


def atomic(criterion: Criterion, rubric: Rubric) -> Iterator[Finding]:
    """One criterion states one fact, or a partly right sample cannot be judged."""
    plain = _ONE_FACT.sub(" ", without_quoted(criterion.text).casefold())
    joined = sorted(set(_JOIN.findall(plain)))
    if joined:
        words = ", ".join(f"'{word}'" for word in joined)
        yield _found("atomic", "warning", criterion, f"{words} joins two facts: make one criterion of each")


def observable(criterion: Criterion, rubric: Rubric) -> Iterator[Finding]:
    """A judge sees pixels, not intentions."""
    words = set(tokens(without_quoted(criterion.text)))
    if hidden := sorted(words & _HIDDEN):
        listed = ", ".join(f"'{word}'" for word in hidden)
        message = f"{listed} cannot be seen: write what is visible when it holds"
        yield _found("observable", "warning", criterion, message)
    if wish := sorted(words & _WISH):
        listed = ", ".join(f"'{word}'" for word in wish)
        yield _found("observable", "note", criterion, f"{listed} states a wish: write what is true of the picture")


def _named(pattern: re.Pattern[str], text: str, prompt: str) -> re.Match[str] | None:
    """The first sample that a text names, by a pattern with the group 'name'.

    What the prompt itself names is part of the picture: 'a diptych of two images'.
    """
    for match in pattern.finditer(text):
        name = match["name"]
        inside = name and (name.casefold() in prompt.casefold() or _IN_THE_PICTURE.search(text[: match.start()]))
        if not inside:
            return match
    return None


def non_comparative(criterion: Criterion, rubric: Rubric) -> Iterator[Finding]:
    """A criterion is asked of one sample alone."""
    plain = without_quoted(criterion.text)
    if match := _named(_NAMES_CANDIDATE, plain, rubric.prompt):
        name = match["name"] or match["other"]
        message = f"'{name}' names another sample, but each is judged alone: state what one sample shows"
        yield _found("non_comparative", "error", criterion, message)
    if match := _COMPARES.search(plain.casefold()):
        message = f"'{match[0].strip()}' compares: fine for two things within one picture, else write what is visible"
        yield _found("non_comparative", "warning", criterion, message)


def leak(criterion: Criterion, rubric: Rubric) -> Iterator[Finding]:
    """A criterion holds neither the result nor what the judge is not shown."""
    plain = without_quoted(criterion.text)
    if match := _named(_CANDIDATE_DOES, plain, rubric.prompt) or _TELLS_RESULT.search(plain):
        message = f"'{match[0].strip()}' tells the judge the result: state the fact and leave the result to the judge"
        yield _found("leak", "error", criterion, message)
    if match := _REFERENCE.search(plain):
        message = f"'{match[0].strip()}' is out of sight of most judges: write what it shows, or give it as grounding"
        yield _found("leak", "warning", criterion, message)


def polarity(criterion: Criterion, rubric: Rubric) -> Iterator[Finding]:
    """Sign of the weight and wording point the same way."""
    denies = negated(criterion.text)
    why = "its weight is negative" if criterion.weight < 0 else "the expected answer is 'no'"
    if denies and not wants_true(criterion):
        message = f"double negative: the text denies and {why}; drop one of the two"
        yield _found("polarity", "warning", criterion, message)
    bad = set(tokens(without_quoted(criterion.text))) & _UNWANTED
    # What the prompt itself asks for is wanted: 'a blurred background'.
    unasked = sorted(bad - set(tokens(rubric.prompt)))
    if unasked and not denies and wants_true(criterion):
        listed = ", ".join(f"'{word}'" for word in unasked)
        message = f"pays for {listed}: deny it ('no ...'), or make the weight negative"
        yield _found("polarity", "warning", criterion, message)


def literal(criterion: Criterion, rubric: Rubric) -> Iterator[Finding]:
    """Text that is to be read is quoted, so that reader and judge look for the same string."""
    if quoted(criterion.text) or criterion.arguments.get("text"):
        return
    if criterion.verifier == "ocr":
        in_prompt = len(quoted(rubric.prompt)) == 1
        said = "only the prompt quotes it" if in_prompt else "nothing says which text to look for"
        severity: Severity = "note" if in_prompt else "error"
        message = f"{said}: quote the literal text in the criterion, or set arguments.text"
        yield _found("literal", severity, criterion, message)
    elif _asks_for_text(criterion):
        message = "the text to read is not quoted: write it between quotation marks"
        yield _found("literal", "warning", criterion, message)


def _asks_for_text(criterion: Criterion) -> bool:
    if not _OCR_CATEGORY & set(tokens(criterion.category)) or not wants_true(criterion) or negated(criterion.text):
        return False
    return bool(_READS.search(criterion.text.casefold()))


CRITERION_RULES: tuple[CriterionRule, ...] = (atomic, observable, non_comparative, leak, polarity, literal)
