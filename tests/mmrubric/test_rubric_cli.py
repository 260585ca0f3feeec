"""`mmrubric rubric`: one checklist or a file of them, edits, differences, conversions."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

from mmrubric.errors import InputError
from mmrubric.generate_bulk import generate_all, read_prompts
from mmrubric.generators import RubricGenerator
from mmrubric.images import data_url
from mmrubric.rubric import Criterion, Rubric
from tests.mmrubric.stub_server import Stub, completion, error, serve
from tests.mmrubric.test_cli import ROOT, call

APPLES = "three red apples on a blue plate next to a sign saying OPEN"


def written(body) -> dict:
    """A checklist that is about the prompt of the request."""
    prompt = body["messages"][-1]["content"].split("\n")[2]
    kinds = ("object", "count", "attribute", "realism")
    return {"criteria": [{"key": k, "dimension": k, "criterion": f"The {k} of {prompt} is right."} for k in kinds]}


def answering(body):
    return completion(json.dumps(written(body)))


def prompt_file(path: Path, count: int) -> Path:
    path.write_text("".join(json.dumps({"id": f"p{n}", "prompt": f"scene number {n}"}) + "\n" for n in range(count)))
    return path


def direct(url: str, *more: object) -> list[object]:
    return ["--generator", "direct", "--option", f"base_url={url}", "--option", "model=m", *more]


def test_a_prompt_alone_prints_a_table_and_needs_no_model():
    result = call("rubric", APPLES)
    assert result.exit_code == 0 and "Exactly three apples" in result.stdout and "ocr" in result.stdout
    assert call("rubric", "write", APPLES, "--json").stdout == call("rubric", APPLES, "--json").stdout


def test_help_lists_the_commands_and_an_example():
    result = call("rubric", "--help")
    assert all(name in result.stdout for name in ("write", "edit", "diff", "convert", "export-sft"))
    assert "Example: mmrubric rubric" in " ".join(result.stdout.split())
    for name in ("write", "edit", "diff", "convert", "export-sft"):
        shown = call("rubric", name, "--help").stdout
        assert "--json" in shown and "Example" in shown


def test_edit_and_diff(tmp_path: Path):
    call("rubric", APPLES, "--out", tmp_path / "a.yaml")
    words = ["--weight", "count_apples=3", "--polarity", "plate=unwanted", "--disable", "category:realism"]
    words += ["--add", "style=The picture is bright.", "--lock", "sign", "--out", tmp_path / "b.yaml"]
    assert call("rubric", "edit", tmp_path / "a.yaml", *words).exit_code == 0
    made = Rubric.load(tmp_path / "b.yaml")
    assert made.provenance.version == 2 and made.provenance.parent == Rubric.load(tmp_path / "a.yaml").hash
    assert made.criterion("count_apples").weight == 3 and made.criterion("plate").weight == -1
    assert made.criterion("the_picture_is_bright").category == "style"
    found = json.loads(call("rubric", "diff", tmp_path / "a.yaml", tmp_path / "b.yaml", "--json").stdout)
    assert [row["id"] for row in found["added"]] == ["the_picture_is_bright"]
    assert [row["id"] for row in found["removed"]] == ["natural_shapes", "clean"]
    assert {(row["id"], row["field"]) for row in found["changed"]} >= {("count_apples", "weight"), ("plate", "weight")}
    refused = call("rubric", "edit", tmp_path / "b.yaml", "--remove", "sign")
    assert refused.exit_code == 2 and "unlock first" in refused.stderr
    assert call("rubric", "edit", tmp_path / "b.yaml", "--unlock", "sign", "--remove", "sign").exit_code == 0
    assert "No difference" in call("rubric", "diff", tmp_path / "a.yaml", tmp_path / "a.yaml").stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["rubric", "write"], "either a PROMPT or --prompts"),
        (["rubric", "--prompts", "p.jsonl"], "--out FILE.jsonl"),
        (["rubric", "--prompts", "p.jsonl", "--out", "x.yaml"], "known here: .jsonl"),
        (["rubric", "a cat", "--out", "x.txt"], "known here: .yaml"),
        (["rubric", "a cat", "--store", "s.sqlite"], "asks no model"),
        (["rubric", "--prompts", "missing.jsonl", "--out", "x.jsonl"], "missing.jsonl"),
        (["rubric", "edit", "missing.yaml", "--lock", "a"], "missing.yaml"),
    ],
)
def test_bad_words(words, message):
    result = call(*words)
    assert result.exit_code == 2 and message in result.stderr.replace("\n", "")


def test_convert_there_and_back_and_what_does_not_fit(tmp_path: Path):
    row = {"prompt_id": "p", "prompt": [{"role": "user", "content": "Draw a bus"}], "example_tags": [], "rubrics": []}
    row["rubrics"] = [{"criterion": "The bus is red", "points": 5, "tags": []}]
    (tmp_path / "hb.jsonl").write_text(json.dumps(row) + "\n")
    made = json.loads(call("rubric", "convert", tmp_path / "hb.jsonl", "--out", tmp_path / "r.jsonl", "--json").stdout)
    assert made == {"file": str(tmp_path / "r.jsonl"), "rubrics": 1, "dropped": {}}
    words = ["rubric", "convert", tmp_path / "r.jsonl", "--out", tmp_path / "back.jsonl", "--to", "healthbench"]
    assert call(*words).exit_code == 0 and json.loads((tmp_path / "back.jsonl").read_text()) == row
    call("rubric", APPLES, "--out", tmp_path / "a.yaml")
    words = ["rubric", "convert", tmp_path / "a.yaml", "--out", tmp_path / "a.json", "--to", "rar"]
    refused = call(*words)
    assert refused.exit_code == 2 and "cannot hold" in refused.stderr and not (tmp_path / "a.json").exists()
    lossy = call(*words, "--lossy")
    assert lossy.exit_code == 0 and "depends_on, 5 times" in lossy.stdout and "UserWarning" not in lossy.stderr


def test_many_prompts_by_rules(tmp_path: Path):
    (tmp_path / "p.txt").write_text("a red cup\n\ntwo dogs\n")
    result = call("rubric", "--prompts", tmp_path / "p.txt", "--out", tmp_path / "r.jsonl", "--json")
    assert json.loads(result.stdout)["rubrics"] == 2
    made = Rubric.load_many(tmp_path / "r.jsonl")
    assert [rubric.prompt for rubric in made] == ["a red cup", "two dogs"]
    assert [rubric.provenance.extra["prompt_id"] for rubric in made] == ["1", "3"]


def test_many_prompts_by_a_model_in_order_with_their_cost(tmp_path: Path):
    prompt_file(tmp_path / "p.jsonl", 20)
    with (tmp_path / "p.jsonl").open("a") as file:
        file.write(json.dumps({"id": "again", "prompt": "scene number 3"}) + "\n")
    with serve(Stub(reply=answering)) as stub:
        prices = ["--option", "price_prompt=2", "--option", "price_completion=4"]
        words = ["rubric", "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / "r.jsonl", "--json"]
        data = json.loads(call(*words, *direct(stub.base_url, *prices)).stdout)
        assert len(stub.requests) == 20, "an equal prompt is not asked about twice"
        # 20 calls of 10 + 2 tokens: (200 * 2 + 40 * 4) / 1e6
        assert data["price"] == pytest.approx(5.6e-4) and data["calls"] == 20 and data["fell_back"] == 0
        again = json.loads(call(*words, *direct(stub.base_url)).stdout)
        assert len(stub.requests) == 20 and again["calls"] == 0
    made = Rubric.load_many(tmp_path / "r.jsonl")
    assert [r.provenance.extra["prompt_id"] for r in made] == [*(f"p{n}" for n in range(20)), "again"]
    assert made[3].hash == made[20].hash and "scene number 7" in made[7].criteria[0].text


def test_prompts_with_their_sources(tmp_path: Path):
    for name in "ab":
        Image.new("RGB", (64, 64), "red").save(tmp_path / f"{name}.png")
    given = [{"source": "a.png"}, {"sources": ["a.png", "b.png"]}, {"sources": ["b.png", "a.png"]}, {}]
    lines = [{"prompt": "p", **one} for one in (*given, {"sources": ["a.png"]})]
    (tmp_path / "p.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    a, b = tmp_path / "a.png", tmp_path / "b.png"
    prompts = read_prompts(tmp_path / "p.jsonl")
    assert [prompt.sources for prompt in prompts] == [(a,), (a, b), (b, a), (), (a,)]

    asked = []

    class Naming(RubricGenerator):
        async def generate(self, prompt, source=None, grounding=None, exemplars=()):
            asked.append(source)
            names = " ".join(one.name for one in source) or "none"
            return Rubric(prompt=prompt.text, criteria=(Criterion(id="n", text=names),))

    made = generate_all(Naming(), prompts)
    names = [rubric.criteria[0].text for rubric in made.rubrics]
    assert names == ["a.png", "a.png b.png", "b.png a.png", "none", "a.png"]
    assert len(asked) == 4, "the last asks what the first did"


def test_one_prompt_with_several_sources(tmp_path: Path):
    words = []
    for level in (10, 20):
        Image.new("RGB", (64, 64), (level, 0, 0)).save(tmp_path / f"{level}.png")
        words += ["--source", tmp_path / f"{level}.png"]
    groups = ("keep", "follow", "quality")
    criteria = [{"group": group, "criterion": f"Part {n} of {group} is right."} for group in groups for n in range(3)]
    with serve(Stub(reply=lambda body: completion(json.dumps({"criteria": criteria})))) as stub:
        options = ["--generator", "edit", "--option", f"base_url={stub.base_url}", "--option", "model=m"]
        assert call("rubric", "swap the cups", *words, *options).exit_code == 0
        [asked] = stub.requests
    pictures = [part["image_url"]["url"] for part in asked["messages"][-1]["content"] if part["type"] == "image_url"]
    assert pictures == [data_url(tmp_path / f"{level}.png") for level in (10, 20)]


def test_a_refused_prompt_falls_back_and_is_counted(tmp_path: Path):
    prompt_file(tmp_path / "p.jsonl", 5)

    def reply(body):
        return completion("no") if "number 2" in json.dumps(body) else answering(body)

    with serve(Stub(reply=reply)) as stub:
        words = ["rubric", "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / "r.jsonl"]
        result = call(*words, *direct(stub.base_url))
    assert result.exit_code == 0 and "1 by the fallback" in result.stdout
    assert "unparsable" in Rubric.load_many(tmp_path / "r.jsonl")[2].provenance.notes[0]


def test_a_dead_server_is_an_error_and_no_file_of_rules(tmp_path: Path):
    prompt_file(tmp_path / "p.jsonl", 5)
    words = ["rubric", "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / "r.jsonl"]
    result = call(*words, *direct("http://127.0.0.1:1/v1", "--option", "max_retries=0"))
    assert result.exit_code == 1 and "max_failure_share=0.2" in result.stderr and "cannot reach" in result.stderr
    assert not (tmp_path / "r.jsonl").exists()


def test_one_prompt_without_a_checklist_does_not_hold_up_the_others(tmp_path: Path):
    prompt_file(tmp_path / "p.jsonl", 6)

    def reply(body):
        return completion("no") if "number 2" in json.dumps(body) else answering(body)

    with serve(Stub(reply=reply)) as stub:
        words = ["rubric", "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / "r.jsonl", "--json"]
        result = call(*words, *direct(stub.base_url, "--option", "fallback=none"))
    assert result.exit_code == 1 and list(json.loads(result.stdout)["failed"]) == ["p2"]
    made = Rubric.load_many(tmp_path / "r.jsonl")
    assert [rubric.provenance.extra["prompt_id"] for rubric in made] == ["p0", "p1", "p3", "p4", "p5"]


def test_an_edit_that_cannot_be_written_leaves_the_file_alone(tmp_path: Path):
    call("rubric", APPLES, "--out", tmp_path / "a.yaml")
    before = (tmp_path / "a.yaml").read_text()
    result = call("rubric", "edit", tmp_path / "a.yaml", "--weight", "plate=inf")
    assert result.exit_code == 2 and "not a finite number" in result.stderr
    assert (tmp_path / "a.yaml").read_text() == before


def test_a_server_that_refuses_the_key_ends_the_run_at_once(tmp_path: Path):
    prompt_file(tmp_path / "p.jsonl", 50)
    with serve(Stub(error(401, "wrong key"))) as stub:
        words = ["rubric", "--prompts", tmp_path / "p.jsonl", "--out", tmp_path / "r.jsonl"]
        result = call(*words, *direct(stub.base_url, "--option", "concurrency=2"))
    assert result.exit_code == 1 and "401" in result.stderr and not (tmp_path / "r.jsonl").exists()


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_run_goes_on_without_asking_twice(tmp_path: Path):
    """SIGKILL at half of 1,000 prompts."""
    count, width = 1_000, 32
    prompt_file(tmp_path / "p.jsonl", count)
    with serve(Stub(reply=answering)) as stub:
        words = [sys.executable, "-m", "mmrubric.cli", "rubric", "--prompts", str(tmp_path / "p.jsonl"), "--json"]
        words += [
            "--out",
            str(tmp_path / "r.jsonl"),
            *map(str, direct(stub.base_url, "--option", f"concurrency={width}")),
        ]
        run = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(stub.requests) < count // 2:
            assert run.poll() is None
            time.sleep(0.02)
        run.send_signal(signal.SIGKILL)
        run.wait()
        before = len(stub.requests)
        assert before < count and not (tmp_path / "r.jsonl").exists()
        subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ), check=True)
        again = len(stub.requests) - before
        assert count - before <= again <= count - before + width, "only what was in flight is asked twice"
    made = Rubric.load_many(tmp_path / "r.jsonl")
    assert [rubric.prompt for rubric in made] == [f"scene number {n}" for n in range(count)]
    assert not any(rubric.provenance.notes for rubric in made)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"prompt": "a"}\n{"promt": "b"}\n', "p.jsonl:2: no prompt"),
        ('{"prompt": "a"}\nb\n', "p.jsonl:2: not valid JSON"),
        ('{"prompt": "a", "id": "x"}\n{"prompt": "b", "id": "x"}\n', "id 'x' is given twice"),
        ('{"prompt": "a", "source": "no.png"}\n', "field sources: there is no file"),
        ('{"prompt": "a", "source": "a", "sources": ["b"]}\n', "source or sources, not both"),
        ("[1]\n", "expected an object"),
        ("\n", "holds no prompt"),
    ],
)
def test_a_bad_file_of_prompts_names_the_line(tmp_path: Path, text: str, message: str):
    path = tmp_path / "p.jsonl"
    path.write_text(text)
    with pytest.raises(InputError, match=message):
        read_prompts(path)
