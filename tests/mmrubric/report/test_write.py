import dataclasses
import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from mmrubric.bootstrap import Interval
from mmrubric.errors import InputError
from mmrubric.report import AlignmentReport, Reliability, png_bytes, write_report
from mmrubric.report.page import duration, points, range_text
from mmrubric.report.wording import percent
from tests.mmrubric.report.pages import Page

Build = Callable[..., AlignmentReport]


@pytest.fixture(scope="module")
def written(build: Build, tmp_path_factory: pytest.TempPathFactory):
    report = build(60, 0.2, 0.8)
    return report, write_report(report, tmp_path_factory.mktemp("run"), resamples=500)


def test_the_page_is_whole_and_needs_no_network(written):
    _, out = written
    html = out.html.read_text()
    page = Page(html)
    assert page.open == []
    assert all(link.startswith(("data:", "#")) for link in page.links)
    assert not re.search(r"@import|url\((?!#)|fetch\(|XMLHttpRequest|<link|<iframe", html)
    assert out.html.stat().st_size < 3_000_000


def test_pictures_are_the_first_ones_and_pixelated(written):
    report, out = written
    page = Page(out.html.read_text())
    # 48 prompts in the grid and 10 in the strip, a picture on each side.
    assert len(page.images) == 2 * (48 + 10)
    assert all("px" in (image["class"] or "").split() for image in page.images)
    shown = re.findall(r'<article class="card".*?<h3>(.*?)</h3>', out.html.read_text(), re.S)
    assert [s.replace("&#34;", '"') for s in shown] == [r.text for r in report.results[:48]]
    assert "The first 48 of 60 evaluated prompts" in page.text


def test_every_criterion_has_a_mark_before_and_after(written):
    report, out = written
    html = out.html.read_text()
    cards = html[html.index('id="cards"') : html.index('id="empty"')]
    marks = len(re.findall(r'<span class="mark (?:yes|no|unknown)', cards))
    assert marks == 2 * sum(len(r.rubric.criteria) for r in report.results[:48])
    assert "second reader" in cards  # 3 % of its answers are turned round


def test_headline_notices_and_sections_are_said(written):
    _, out = written
    text = Page(out.html.read_text()).text
    before, after = (100 * out.data[side]["strict_completion"] for side in ("before", "after"))
    assert f"{after:.0f} of 100 pictures, up from {before:.0f}." in " ".join(text.split())
    assert "allow_same_judge is set" in text
    for name in ("rubric quality", "judge fidelity", "saturation and ties", "attack probes"):
        assert name in text.lower()


def test_json_beside_it(written):
    _, out = written
    data = json.loads(out.json.read_text())
    assert data == out.data
    fixed = {"before", "after", "difference", "judged_images", "unknown_share", "seconds", "settings"}
    assert fixed <= set(data)
    for name in ("mean_pass_rate", "strict_completion"):
        low, mid, high = data["difference"][name]
        assert low < mid < high
        assert mid == pytest.approx(data["after"][name] - data["before"][name])
    assert data["allow_same_judge"] is True and data["second_reader"]["agreement"] > 0.9
    assert set(data["per_kind"]) >= {"object", "attribute", "realism"}


@pytest.mark.parametrize("absent", list(Reliability.NAMES))
def test_a_report_without_a_reliability_section_is_refused_by_name(build: Build, tmp_path: Path, absent: str):
    report = build(2)
    broken = dataclasses.replace(report, reliability=dataclasses.replace(report.reliability, **{absent: None}))
    with pytest.raises(InputError, match=f"no reliability section for: {Reliability.NAMES[absent]}\\."):
        write_report(broken, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_an_empty_section_is_no_section(build: Build, tmp_path: Path):
    report = build(2)
    empty = dataclasses.replace(report.reliability.attack_probes, measures=[])  # type: ignore[type-var]
    broken = dataclasses.replace(report, reliability=dataclasses.replace(report.reliability, attack_probes=empty))
    with pytest.raises(InputError, match="attack probes"):
        write_report(broken, tmp_path)


def test_one_judge_for_both_is_refused_unless_allowed(build: Build, tmp_path: Path):
    with pytest.raises(InputError, match="allow_same_judge"):
        write_report(build(2, allow_same_judge=False), tmp_path)
    text = write_report(build(2, allow_same_judge=False, judge="other"), tmp_path, resamples=200).html.read_text()
    assert "allow_same_judge is set" not in text


def test_unpaired_pictures_and_no_prompts_are_refused(build: Build, tmp_path: Path):
    report = build(2)
    odd = dataclasses.replace(report.results[0], after=[])
    with pytest.raises(InputError, match="1 pictures before and 0 after"):
        write_report(dataclasses.replace(report, results=[odd]), tmp_path)
    with pytest.raises(InputError, match="no prompts"):
        write_report(dataclasses.replace(report, results=[]), tmp_path)
    with pytest.raises(InputError, match="twice"):
        write_report(dataclasses.replace(report, results=[report.results[0]] * 2), tmp_path)


def test_text_from_outside_cannot_become_markup(build: Build, tmp_path: Path):
    report = build(2)
    evil = "</script><script>alert(1)</script><img src=x onerror=alert(1)>{{ 7 * 7 }}"
    before = dataclasses.replace(
        report.results[0].before[0],
        verdicts=[dataclasses.replace(v, reason=evil) for v in report.results[0].before[0].verdicts],
    )
    result = dataclasses.replace(report.results[0], text=evil, before=[before])
    changed = dataclasses.replace(report, results=[result], title=evil, notes=[evil])
    html = write_report(changed, tmp_path, resamples=200).html.read_text()
    assert "<script>alert" not in html and "<img src=x" not in html
    assert "{{ 7 * 7 }}" in html
    assert Page(html).open == []


def test_a_fall_and_no_change_are_called_so(build: Build, tmp_path: Path):
    worse = write_report(build(40, 0.9, 0.1), tmp_path / "worse", resamples=500).html.read_text()
    assert "The generator got worse" in worse
    same = write_report(build(20, 0.5, 0.5), tmp_path / "same", resamples=500).html.read_text()
    assert "No clear change" in same


def test_large_pictures_shrink_and_stay_within_the_budget(build: Build, tmp_path: Path):
    report = build(12)
    noise = np.random.default_rng(0).integers(0, 256, (1024, 1024, 3), dtype=np.uint8)
    large = png_bytes(noise)
    results = [
        dataclasses.replace(
            r,
            before=[dataclasses.replace(r.before[0], png=large)],
            after=[dataclasses.replace(r.after[0], png=large)],
        )
        for r in report.results
    ]
    out = write_report(dataclasses.replace(report, results=results), tmp_path, resamples=200)
    html = out.html.read_text()
    assert out.html.stat().st_size < 3_000_000
    assert 'width="512"' in html and "data:image/webp" in html and 'class="pic px' not in html


def test_a_picture_that_is_none_is_named(build: Build, tmp_path: Path):
    report = build(1)
    broken = dataclasses.replace(report.results[0].before[0], png=b"no picture")
    result = dataclasses.replace(report.results[0], before=[broken])
    with pytest.raises(InputError, match="'p0', before"):
        write_report(dataclasses.replace(report, results=[result]), tmp_path)


def test_numbers_as_text():
    assert [percent(v) for v in (0.0, 0.004, 0.5, 0.999, 1.0, float("nan"))] == [
        "0 %", "0.4 %", "50 %", "99.9 %", "100 %", "unknown",
    ]  # fmt: skip
    assert [points(v) for v in (0.034, -0.2, 0.0)] == ["+3.4", "−20", "0"]
    assert range_text(Interval(0.1, 0.2, 0.3)) == "+20 (+10 to +30)"
    assert [duration(s) for s in (4.2, 42, 245, 3720)] == ["4.2 s", "42 s", "4 min 05 s", "1 h 02 min"]
