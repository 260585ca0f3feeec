"""The judge of writing on really rendered text: fonts, sizes, rotations, colours; literals, modes, failures."""

from __future__ import annotations

import asyncio
import importlib.util
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageDraw, ImageFont

import judges
from judges import ocr
from judges.ocr import Line, OcrJudge, in_reading_order
from mmrubric.errors import InputError
from mmrubric.rubric import Criterion, Rubric
from mmrubric.store import Store

needs_rapidocr = pytest.mark.skipif(
    importlib.util.find_spec("rapidocr") is None or importlib.util.find_spec("onnxruntime") is None,
    reason="rapidocr is not installed: pip install mmrubric[ocr]",
)
CASES = [
    # text, font, size of the letters, side, angle in degrees, colour, background
    ("OPEN LATE", "DejaVuSans", 40, 256, 0, "white", "navy"),
    ("Hello World", "DejaVuSerif", 24, 160, 0, "black", "yellow"),
    ("OPEN", "DejaVuSansMono", 14, 64, 0, "black", "white"),
    ("Fresh Bread\nDaily", "DejaVuSans-Bold", 60, 512, 0, "red", "lightgreen"),
    ("CAFE 24", "DejaVuSerif-Bold", 40, 256, 15, "white", "darkred"),
    ("CAFE 24", "DejaVuSans-Oblique", 40, 256, -30, "black", "orange"),
    ("SALE", "DejaVuSansMono-Bold", 100, 384, 45, "purple", "white"),
    ("it's 50% off!", "DejaVuSerif-Italic", 50, 512, 0, "black", "white"),
]


def drawn(
    text: str, font: str = "DejaVuSans", size: int = 40, side: int = 256, angle: float = 0.0,
    colour: str = "black", background: str = "white",
) -> Image.Image:  # fmt: skip
    """A square picture with a text in its middle."""
    import matplotlib

    file = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / f"{font}.ttf"
    layer = Image.new("L", (side, side), 0)
    ImageDraw.Draw(layer).multiline_text(
        (side / 2, side / 2), text, fill=255, font=ImageFont.truetype(str(file), size), anchor="mm", align="center"
    )
    picture = Image.new("RGB", (side, side), background)
    picture.paste(colour, mask=layer.rotate(angle, Image.Resampling.BICUBIC))
    return picture


def asking(statement: str = "writing", /, id: str = "c", expected: str | None = None, **arguments: object) -> Criterion:
    return Criterion(id=id, text=statement, verifier="ocr", expected=expected, arguments=arguments)  # pyright: ignore[reportArgumentType]


def request(picture: object, *criteria: Criterion, prompt: str = "p") -> judges.JudgeRequest:
    return judges.JudgeRequest(Rubric(prompt=prompt, criteria=criteria), picture, sample_id="s")  # pyright: ignore[reportArgumentType]


class Fixed:
    """A reader of what it is told; counts how often it is asked."""

    id = "fixed"

    def __init__(self, *lines: Line) -> None:
        self.lines = list(lines)
        self.asked = 0

    def read(self, picture: Image.Image) -> list[Line]:
        self.asked += 1
        return self.lines


def line(text: str, left: float = 0.0, top: float = 0.0, height: float = 10.0, confidence: float = 0.9) -> Line:
    return Line(text, confidence, left, top, height)


def answer(read: str, criterion: Criterion, prompt: str = "p") -> judges.Verdict:
    judge = OcrJudge(Fixed(line(read)) if read else Fixed())
    return judge.score_sync([request(Image.new("RGB", (8, 8)), criterion, prompt=prompt)])[0][0]


@needs_rapidocr
@pytest.mark.parametrize(("text", "font", "size", "side", "angle", "colour", "background"), CASES)
def test_rendered_text_is_read(
    text: str, font: str, size: int, side: int, angle: float, colour: str, background: str, judge: judges.Judge
):
    picture = drawn(text, font, size, side, angle, colour, background)
    words = text.replace("\n", " ")
    criteria = [
        asking("exact", id="exact", text=words, mode="exact", case_sensitive=True),
        asking("part", id="part", text=words.split()[0]),
        asking("close", id="close", text=words, mode="similarity"),
        asking("wrong", id="wrong", text=words + " NOW", mode="exact"),
    ]
    verdicts = judge.score_sync([request(picture, *criteria)])[0]
    assert [v.met for v in verdicts] == [1.0, 1.0, 1.0, 0.0], verdicts[0].reason
    assert verdicts[0].read == "ocr" and repr(words) in verdicts[0].reason


@needs_rapidocr
def test_one_wrong_letter_shows_and_no_writing_is_a_no(judge: judges.Judge):
    wrong = request(drawn("OPEN LATF"), asking("a", id="exact", text="OPEN LATE", mode="exact"),
                    asking("b", id="close", text="OPEN LATE", mode="similarity"))  # fmt: skip
    empty = request(Image.new("RGB", (256, 256), "teal"), asking("a", id="exact", text="OPEN LATE", mode="exact"),
                    asking("b", id="none", text="", mode="exact"))  # fmt: skip
    (exact, close), (missing, none) = judge.score_sync([wrong, empty])
    assert exact.met == 0.0 and close.met == pytest.approx(1 - 1 / 9)  # 1 of 9 characters
    assert (missing.met, missing.failure, none.met) == (0.0, None, 1.0)
    assert missing.reason.startswith("nothing is written")


@needs_rapidocr
def test_tf40_the_target_is_the_quoted_text_and_not_the_whole_prompt(judge: judges.Judge):
    prompt = 'a cosy bakery at dusk with a wooden sign that says "Fresh Bread" over the door'
    rubric_wide = request(
        drawn("Fresh Bread", side=320), asking("The sign is legible", mode="similarity"), prompt=prompt
    )
    assert judge.score_sync([rubric_wide])[0][0].met == 1.0


@needs_rapidocr
def test_several_threads_read_like_one(judge: judges.Judge):
    words = ["ONE", "TWO", "THREE", "FOUR"]
    requests = [request(drawn(word, size=24, side=128), asking(text=word, mode="exact")) for word in words]
    rows = asyncio.run(judges.build("ocr", threads=2).score(requests))
    assert [row[0].met for row in rows] == [1.0] * 4 and rows == judge.score_sync(requests)


@needs_rapidocr
def test_a_bad_picture_fails_alone(judge: judges.Judge):
    bad, good = judge.score_sync([request(b"no", asking(text="OPEN")), request(drawn("OPEN"), asking(text="OPEN"))])
    assert (bad[0].met, bad[0].failure, bad[0].applicable) == (None, judges.Failure.bad_image, True)
    assert good[0].met == 1.0


@needs_rapidocr
def test_id_names_engine_and_options(judge: judges.Judge):
    assert isinstance(judge, judges.Judge) and judge.id.startswith("ocr/1:rapidocr-") and judge.id.endswith(":0.5")
    assert judges.build("ocr", min_confidence=0.6).id != judge.id
    with pytest.raises(InputError, match=r"min_confidence: 2 is outside \[0, 1\]"):
        judges.build("ocr", min_confidence=2)


@pytest.fixture(scope="module")
def judge() -> judges.Judge:
    return judges.build("ocr", threads=1)


@pytest.mark.parametrize(
    ("read", "arguments", "met"),
    [
        ("Open late", {"text": "OPEN LATE"}, 1.0),
        ("Open late", {"text": "OPEN LATE", "case_sensitive": True}, 0.0),
        ("we are open late", {"text": "OPEN LATE"}, 1.0),
        ("we are open late", {"text": "OPEN LATE", "mode": "exact"}, 0.0),
        ("we are open late", {"text": "OPEN LATE", "mode": "similarity"}, 1 - 7 / 16),
        ("late open", {"text": "OPEN LATE", "mode": "similarity", "score": "words"}, 1.0),
        ("late", {"text": "OPEN LATE", "mode": "similarity", "score": "words"}, 0.5),
        ("late", {"text": "OPEN LATE", "mode": "similarity", "score": "words", "threshold": 0.6}, 0.0),
        ("OPFN LATE", {"text": "OPEN LATE", "mode": "similarity", "threshold": 0.85}, 1.0),  # 8 / 9
        ("", {"text": "OPEN"}, 0.0),
        ("", {"text": "", "mode": "exact"}, 1.0),
        ("graffiti", {"text": "", "mode": "exact"}, 0.0),
    ],
)
def test_modes_by_hand(read: str, arguments: dict[str, object], met: float):
    verdict = answer(read, asking(**arguments))
    assert verdict.met == pytest.approx(met) and verdict.applicable
    assert answer(read, asking(expected="no", **arguments)).met == pytest.approx(1 - met)


def test_reason_names_reading_literal_and_scores():
    assert answer("OPFN LATE", asking(text="OPEN LATE")).reason == (
        "reads 'OPFN LATE', asked: 'OPEN LATE' (contains); edit similarity 0.889, words 0.500"
    )


def test_literal_comes_from_the_criterion_before_the_prompt():
    sign = asking('The sign reads "CLOSED"', mode="exact")
    assert answer("CLOSED", sign, prompt='a shop with a sign "OPEN"').met == 1.0
    assert answer("OPEN", asking("The sign is legible"), prompt='a shop with a sign "OPEN"').met == 1.0
    with pytest.raises(InputError, match=r"'c': its text quotes several strings \('A', 'B'\)"):
        answer("A", asking('reads "A" and "B"'))
    with pytest.raises(InputError, match="the prompt quotes several strings"):
        answer("A", asking("legible"), prompt='"A" and "B"')
    with pytest.raises(InputError, match="'c': no literal to look for"):
        answer("A", asking("The sign is legible"), prompt="a shop with a sign")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"literal": "A"}, "unknown argument 'literal'; known: text, mode, score, threshold, case_sensitive"),
        ({"text": "A", "mode": "fuzzy"}, "argument 'mode'.*'fuzzy'"),
        ({"text": "A", "threshold": 0.8}, "threshold and score belong to mode similarity, not to mode contains"),
        ({"text": "A", "mode": "exact", "score": "words"}, "belong to mode similarity, not to mode exact"),
        ({"text": "A", "mode": "similarity", "threshold": 0}, "argument 'threshold'"),
        ({"text": " "}, "text is blank"),
        ({"text": 5}, "argument 'text'"),
    ],
)
def test_wrong_arguments_are_refused_before_reading(arguments: dict[str, object], message: str):
    reader = Fixed()
    with pytest.raises(InputError, match=rf"criterion 'c', arguments of 'ocr': .*{message}"):
        OcrJudge(reader).score_sync([request(Image.new("RGB", (8, 8)), asking(**arguments))])
    assert reader.asked == 0
    with pytest.raises(InputError, match=r"'c' asks for verifier 'vlm'; judge 'ocr/1:fixed:0\.5' answers only 'ocr'"):
        OcrJudge(reader).score_sync([request(Image.new("RGB", (8, 8)), Criterion(id="c", text="t"))])


def test_reading_order_and_confidence():
    rows = [line("D", 0, 30), line("B", 50, 3), line("A", 0, 0), line("C", 90, 5), line("ghost", 0, 60, confidence=0.4)]
    assert [x.text for x in in_reading_order(rows)] == ["A", "B", "C", "D", "ghost"]
    judge = OcrJudge(Fixed(*rows))
    asked = request(Image.new("RGB", (8, 8)), asking(text="A B C D", mode="exact"))
    assert judge.score_sync([asked])[0][0].met == 1.0
    assert OcrJudge(Fixed(*rows), min_confidence=0.3).score_sync([asked])[0][0].met == 0.0


def test_one_reading_serves_all_criteria_and_the_store_keeps_it(tmp_path: Path):
    black, grey = Image.new("RGB", (8, 8)), Image.new("RGB", (8, 8), "grey")
    criteria = [asking("a", id="a", text="OPEN"), asking("b", id="b", text="CLOSED")]
    with Store(tmp_path / "readings.sqlite") as store:
        reader = Fixed(line("OPEN"))
        first = OcrJudge(reader, store=store).score_sync([request(black, *criteria)])
        assert (reader.asked, [v.met for v in first[0]]) == (1, [1.0, 0.0])
        again = Fixed(line("something else"))
        judge = OcrJudge(again, min_confidence=0.2, store=store)
        assert judge.score_sync([request(black, *criteria)]) == first and again.asked == 0
        assert judge.score_sync([request(grey, *criteria)])[0][0].met == 0.0 and again.asked == 1


def test_an_error_of_the_engine_is_a_failure_of_that_picture_and_is_not_kept(tmp_path: Path):
    class Breaks(Fixed):
        def read(self, picture: Image.Image) -> list[Line]:
            if np.asarray(picture).max() == 0:
                raise RuntimeError("out of memory")
            return super().read(picture)

    with Store(tmp_path / "readings.sqlite") as store:
        judge = OcrJudge(Breaks(line("OPEN")), store=store)
        pictures = [Image.new("RGB", (8, 8)), Image.new("RGB", (8, 8), "white")]
        (broken,), (read,) = judge.score_sync([request(picture, asking(text="OPEN")) for picture in pictures])
        assert (broken.met, broken.failure, broken.applicable) == (None, judges.Failure.server_error, True)
        assert broken.reason == "fixed failed: RuntimeError: out of memory"
        assert read.met == 1.0 and len(store) == 1


def test_a_missing_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(ocr, "find_spec", lambda name: None)
    with pytest.raises(
        InputError, match=r"OCR needs rapidocr and onnxruntime, not installed: pip install mmrubric\[ocr\]"
    ):
        judges.build("ocr")
    with pytest.raises(InputError, match="paddleocr and paddle, not installed: pip install paddleocr paddlepaddle"):
        judges.build("ocr", backend="paddleocr")
    with pytest.raises(InputError, match="backend: unknown value 'tesseract'; known: paddleocr, rapidocr"):
        judges.build("ocr", backend="tesseract")
