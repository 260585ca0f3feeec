import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import judges
from mmrubric.bulk import CHUNK, judge_pictures, pictures_in
from mmrubric.errors import InputError, RunError
from mmrubric.judging import JudgeRequest, SyncMixin
from mmrubric.rubric import Criterion, Rubric
from mmrubric.store import Store
from mmrubric.verdict import Failure, Verdict
from tests.mmrubric.stub_server import Stub, completion, serve
from tests.mmrubric.test_cli import call

ROOT = Path(__file__).resolve().parents[2]
RUBRIC = Rubric(prompt="red", criteria=[Criterion(id=id, text=f"It is {id}.") for id in ("red", "bright")])


class Counting(SyncMixin):
    """Says that a picture is red and bright by its first pixel; failures at will."""

    id = "counting/1"

    def __init__(self, fails: int = 0) -> None:
        self.asked, self.fails = 0, fails

    async def score(self, requests):
        return [self._one(request) for request in requests]

    def _one(self, request: JudgeRequest) -> list[Verdict]:
        self.asked += 1
        assert isinstance(request.candidate, Path)
        red = float(np.asarray(Image.open(request.candidate))[0, 0, 0] > 127)
        if self.fails:
            self.fails -= 1
            return [
                Verdict(str(request.sample_id), id, None, failure=Failure.timeout, reason="late") for id in RUBRIC.ids
            ]
        return [Verdict(str(request.sample_id), id, red) for id in RUBRIC.ids]


def pictures(folder: Path, count: int, first: int = 0) -> list[Path]:
    """Different pictures, of which every other is red."""
    folder.mkdir(exist_ok=True)
    paths = []
    for k in range(first, first + count):
        path = folder / f"{k:05}.png"
        Image.fromarray(np.full((2, 2, 3), (255 * (k % 2), k // 256, k % 256), np.uint8)).save(path)
        paths.append(path)
    return paths


def test_a_finished_run_is_answered_from_the_store(tmp_path: Path):
    paths, judge, done = pictures(tmp_path / "a", 5), Counting(), []
    with Store(tmp_path / "s.sqlite") as store:
        first = judge_pictures(judge, RUBRIC, paths, store, advance=done.append)
        again = judge_pictures(judge, RUBRIC, paths, store)
    assert judge.asked == 5 and sum(done) == 5
    assert [[v.met for v in row] for row in first] == [[0, 0], [1, 1], [0, 0], [1, 1], [0, 0]]
    assert [[v.met for v in row] for row in again] == [[v.met for v in row] for row in first]
    assert all(v.cost.cached for row in again for v in row)


def test_identity_is_content_not_name(tmp_path: Path):
    paths, judge = pictures(tmp_path / "a", 3), Counting()
    with Store(tmp_path / "s.sqlite") as store:
        judge_pictures(judge, RUBRIC, paths, store)
        moved = tmp_path / "other.png"
        shutil.copy(paths[1], moved)
        assert judge_pictures(judge, RUBRIC, [moved, moved], store)[0][0].met == 1.0
        assert judge.asked == 3, "the same bytes under another name"
        shutil.copy(paths[0], moved)
        assert judge_pictures(judge, RUBRIC, [moved], store)[0][0].met == 0.0, "other bytes under the same name"
        edited = Rubric(
            prompt="red", criteria=[*RUBRIC.criteria[:1], Criterion(id="bright", text="It is very bright.")]
        )
        judge_pictures(judge, edited, paths, store)
        assert judge.asked == 6, "an edited rubric is another question"
        other = Counting()
        other.id = "counting/2"
        judge_pictures(other, RUBRIC, paths, store)
        assert other.asked == 3, "another judge is asked again"


def test_equal_pictures_are_judged_once(tmp_path: Path):
    path, judge = pictures(tmp_path / "a", 1)[0], Counting()
    assert len(judge_pictures(judge, RUBRIC, [path] * 4)) == 4
    assert judge.asked == 1


def test_pictures_with_failures_are_asked_again(tmp_path: Path):
    paths, judge = pictures(tmp_path / "a", 4), Counting(fails=1)
    with Store(tmp_path / "s.sqlite") as store:
        first = judge_pictures(judge, RUBRIC, paths, store)
        assert first[0][0].failure is Failure.timeout and first[0][0].met is None
        again = judge_pictures(judge, RUBRIC, paths, store)
    assert judge.asked == 5 and again[0][0].met == 0.0


def test_too_many_failures_stop_early_and_the_rest_is_kept(tmp_path: Path):
    paths, judge = pictures(tmp_path / "a", 3 * CHUNK), Counting(fails=20)
    with Store(tmp_path / "s.sqlite") as store:
        with pytest.raises(RunError, match=r"failed on 40 verdicts, more than max_failure_share=0.1 .* timeout: late"):
            judge_pictures(judge, RUBRIC, paths, store, max_failure_share=0.1)
        assert judge.asked == CHUNK, "20 of 192 pictures is past 0.1 whatever comes, so the others are not asked"
        assert len(store) == CHUNK - 20
        assert len(judge_pictures(judge, RUBRIC, paths, store, max_failure_share=0.1)) == 3 * CHUNK


def test_failures_up_to_the_limit_are_unknown_verdicts(tmp_path: Path):
    paths = pictures(tmp_path / "a", 10)
    rows = judge_pictures(Counting(fails=1), RUBRIC, paths, max_failure_share=0.1)
    assert sum(v.met is None for row in rows for v in row) == 2


def test_folders_give_their_pictures_in_order(tmp_path: Path):
    pictures(tmp_path / "b", 2)
    (tmp_path / "b" / "notes.txt").write_text("no picture")
    assert [p.name for p in pictures_in([tmp_path / "b"])] == ["00000.png", "00001.png"]
    with pytest.raises(InputError, match="there is no such folder"):
        pictures_in([tmp_path / "none"])
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="no pictures in it"):
        pictures_in([tmp_path / "empty"])


def test_a_judge_refuses_the_rubric_before_any_picture_is_read(tmp_path: Path):
    with pytest.raises(InputError, match="asks for verifier 'vlm'"):
        judge_pictures(judges.build("ocr"), RUBRIC, [tmp_path / "missing.png"])


def test_the_command_judges_a_folder_by_the_address_of_a_server(tmp_path: Path):
    pictures(tmp_path / "a", 12)
    RUBRIC.save(tmp_path / "r.yaml")
    stub = Stub(reply=lambda body: completion(json.dumps({"reason": "seen", "met": "yes"})))
    with serve(stub):
        words = ["judge", "--images", tmp_path / "a", "--rubric", tmp_path / "r.yaml", "--judge", stub.base_url]
        words += ["--store", tmp_path / "s.sqlite", "--out", tmp_path / "rows.jsonl", "--json"]
        first = json.loads(call(*words).stdout)
        assert len(stub.requests) == 24 and {body["model"] for body in stub.requests} == {"m"}
        again = json.loads(call(*words).stdout)
        assert len(stub.requests) == 24, "a finished run asks nothing"
        stub.models = ["m", "n"]
        refused = call(*words)
    assert [row["score"] for row in first["images"]] == [1.0] * 12
    assert [row["verdicts"][0]["met"] for row in again["images"]] == [1.0] * 12
    rows = [json.loads(line) for line in (tmp_path / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 12 and rows[0]["image"].endswith("00000.png") and rows[0]["judge"].startswith("vlm/1:m:")
    assert refused.exit_code == 2 and "serves these models: m, n" in refused.stderr


def test_the_command_stops_when_the_server_fails_too_often(tmp_path: Path):
    pictures(tmp_path / "a", 3)
    RUBRIC.save(tmp_path / "r.yaml")
    with serve(Stub(completion("I would rather not say"))) as stub:
        result = call(
            "judge", "--images", tmp_path / "a", "--rubric", tmp_path / "r.yaml", "--judge", stub.base_url,
            "--store", tmp_path / "s.sqlite",
        )  # fmt: skip
    assert result.exit_code == 1
    assert "max_failure_share=0.05" in result.stderr and "unparsable" in result.stderr and "is kept" in result.stderr


def test_without_a_store_nothing_is_said_to_be_kept(tmp_path: Path):
    with pytest.raises(RunError, match="--max-failure-share 1 shows what was answered"):
        judge_pictures(Counting(fails=1), RUBRIC, pictures(tmp_path / "a", 1), max_failure_share=0.05)


def test_a_broken_picture_is_bad_input_by_name_and_a_failure_in_a_folder(tmp_path: Path):
    (tmp_path / "a").mkdir()
    for name in ("0.png", "1.png"):
        Image.new("RGB", (64, 64), "red" if name == "1.png" else "white").save(tmp_path / "a" / name)
    (tmp_path / "a" / "broken.png").write_bytes(b"broken")
    call("rubric", "two red circles on a white background", "--out", tmp_path / "r.yaml")
    named = call("judge", tmp_path / "a" / "broken.png", "--rubric", tmp_path / "r.yaml")
    assert named.exit_code == 2 and "broken.png" in named.stderr
    words = ["judge", "--images", tmp_path / "a", "--rubric", tmp_path / "r.yaml", "--store", tmp_path / "s.sqlite"]
    stopped = call(*words)
    assert stopped.exit_code == 1 and "bad_image" in stopped.stderr and "broken.png" in stopped.stderr
    rows = json.loads(call(*words, "--max-failure-share", "0.5", "--json").stdout)["images"]
    assert rows[2]["verdicts"][0]["failure"] == "bad_image" and rows[2]["score"] is None, "unknown, not zero"


def test_the_address_is_given_once(tmp_path: Path):
    path = pictures(tmp_path / "a", 1)[0]
    RUBRIC.save(tmp_path / "r.yaml")
    words = ["judge", path, "--rubric", tmp_path / "r.yaml", "--judge", "http://127.0.0.1:1/v1"]
    result = call(*words, "--judge-option", "base_url=http://other/v1")
    assert result.exit_code == 2 and "--judge already gives the address" in result.stderr


@pytest.mark.slow
@pytest.mark.processes
def test_a_killed_run_goes_on(tmp_path: Path):
    """SIGKILL at 600 of 2,000 pictures: what was stored is not judged again, and the result is the same."""
    count = 2_000
    pictures(tmp_path / "a", count)
    RUBRIC.save(tmp_path / "r.yaml")
    stub = Stub(reply=lambda body: completion(json.dumps({"reason": "", "met": "yes"})))
    with serve(stub):
        words = [sys.executable, "-m", "mmrubric.cli", "judge", "--images", str(tmp_path / "a"), "--json"]
        words += ["--rubric", str(tmp_path / "r.yaml"), "--judge", stub.base_url, "--store", str(tmp_path / "s.sqlite")]
        words += ["--judge-option", "mode=batched"]
        stub.reply = lambda body: completion(
            json.dumps({"verdicts": [{"id": id, "reason": "", "met": "yes"} for id in RUBRIC.ids]})
        )
        run = subprocess.Popen(words, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while len(stub.requests) < 600:
            assert run.poll() is None
            time.sleep(0.05)
        run.send_signal(signal.SIGKILL)
        run.wait()
        before = len(stub.requests)
        done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ), check=True)
        again = len(stub.requests) - before
        assert count - before <= again <= count - before + CHUNK, "only the chunk in hand is asked twice"
        subprocess.run(words, cwd=ROOT, capture_output=True, check=True)
        assert len(stub.requests) == before + again, "a finished run asks nothing"
    result = json.loads(done.stdout)
    assert len(result["images"]) == count and all(row["score"] == 1.0 for row in result["images"])
