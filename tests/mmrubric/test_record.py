"""The run record: rebuilding rewards, resume, kills, full disks, broken files."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from mmrubric.aggregate.base import Aggregator
from mmrubric.errors import InputError, RunError
from mmrubric.judging import candidate_id
from mmrubric.record import RecordReader, RunRecord, SampleRow, rows_of
from mmrubric.rubric import Criterion, Rubric
from mmrubric.verdict import Cost, Failure, Verdict

RUBRIC = Rubric(
    prompt="a red ball",
    criteria=[
        Criterion(id="ball", text="There is a ball.", weight=3.0),
        Criterion(id="red", text="It is red."),
    ],
)


def row(step=0, sample="s0", met=(1.0, 0.0), **fields):
    verdicts = tuple(Verdict(sample, c, m) for c, m in zip(RUBRIC.ids, met, strict=True))
    values = {
        "prompt_id": "p0",
        "rubric_hash": RUBRIC.hash,
        "sample_hash": "h-" + sample,
        "judge_id": "pixel-1",
    }
    return SampleRow(step=step, sample_id=sample, verdicts=verdicts, **(values | fields))


class Weighted(Aggregator):
    def weigh(self, table, ctx):
        return (table.weights * table.good).sum(axis=1) / table.weights.sum()


def write(path, rows, from_step=0):
    with RunRecord(path, from_step) as record:
        record.append(rows, [RUBRIC])


def test_rewards_are_rebuilt_without_judging(tmp_path):
    path = tmp_path / "record.jsonl"
    write(path, [row(sample="s0", met=(1, 0), reward=0.5), row(sample="s1", met=(0, 1), reward=0.5)])
    [(group, rewards)] = RecordReader(path).rebuild(Weighted())
    # weights 3 and 1: s0 = 3/4, s1 = 1/4; the run itself had used the plain mean, 1/2 each
    assert rewards.tolist() == [0.75, 0.25] and group.rewards.tolist() == [0.5, 0.5]
    assert group.table.sample_ids == ("s0", "s1") and group.rubric == RUBRIC
    assert (group.phase, group.step, group.prompt_id, group.judge_id) == ("train", 0, "p0", "pixel-1")


def test_every_verdict_is_kept_failures_included(tmp_path):
    path = tmp_path / "record.jsonl"
    verdicts = (
        Verdict("s0", "ball", None, failure=Failure.timeout, reason="60 s", cost=Cost(3, 7, 0, 1.5)),
        Verdict("s0", "red", None, applicable=False, read="json", reason="keine Kugel: '\"\n☃"),
    )
    full = row(policy_version=4, prompt_row=2, phase="eval", reward=float("nan"))
    full = SampleRow(**{**full.__dict__, "verdicts": verdicts})
    write(path, [full])
    [back] = RecordReader(path).rows()
    assert back == SampleRow(**{**full.__dict__, "line": 3}) and back.reward is None
    [group] = RecordReader(path).groups()
    assert np.isnan(group.table.met).all() and np.isnan(group.rewards).all()


def test_half_an_emoji_in_a_reason_is_kept(tmp_path):
    path = tmp_path / "record.jsonl"
    reason = "ok \ud83d ünd 😀"
    odd = SampleRow(**{**row().__dict__, "verdicts": (Verdict("s0", "red", 1.0, reason=reason),)})
    write(path, [odd])
    assert [r.verdicts[0].reason for r in RecordReader(path).rows()] == [reason]


def test_rubrics_are_written_once_over_all_attempts(tmp_path):
    path = tmp_path / "record.jsonl"
    for step in range(3):
        with RunRecord(path, from_step=step) as record:
            record.append([row(step)], [RUBRIC, RUBRIC])
            record.append([row(step, sample="s1")])
    kinds = [json.loads(line)["kind"] for line in path.read_text().splitlines()]
    assert kinds.count("rubric") == 1 and kinds.count("attempt") == 3 and kinds.count("sample") == 6
    assert [g.step for g in RecordReader(path).groups()] == [0, 1, 2]


def test_a_resumed_run_counts_each_step_once(tmp_path):
    path = tmp_path / "record.jsonl"
    # First attempt: steps 0 to 4, evaluations after 0, 2 and 4 steps. Resumed at step 3.
    first = [row(step, reward=0.0) for step in range(5)] + [row(s, phase="eval", reward=0.0) for s in (0, 2, 4)]
    write(path, first)
    write(path, [row(step, reward=1.0) for step in (3, 4)] + [row(4, phase="eval", reward=1.0)], from_step=3)
    reader = RecordReader(path)
    assert [(r.step, r.reward) for r in reader.rows("train")] == [(0, 0), (1, 0), (2, 0), (3, 1), (4, 1)]
    assert [(r.step, r.reward) for r in reader.rows("eval")] == [(0, 0), (2, 0), (4, 1)]
    assert sorted((r.phase, r.step) for r in reader.rows(superseded=True)) == [
        ("eval", 4), ("train", 3), ("train", 4)]  # fmt: skip
    assert [a.from_step for a in reader.attempts] == [0, 3]


def test_an_evaluation_at_the_checkpoint_stays_unless_it_is_done_again(tmp_path):
    path = tmp_path / "record.jsonl"
    write(path, [row(3, phase="eval", reward=0.0)])
    write(path, [row(3)], from_step=3)
    assert [r.reward for r in RecordReader(path).rows("eval")] == [0.0]
    write(path, [row(3, phase="eval", reward=1.0)], from_step=3)
    assert [r.reward for r in RecordReader(path).rows("eval")] == [1.0]
    with RunRecord(path, from_step=3) as record, pytest.raises(InputError, match="starts at step 3"):
        record.append([row(2)])


def test_groups_of_one_step_are_told_apart_by_prompt_row_and_judge(tmp_path):
    path = tmp_path / "record.jsonl"
    rows = [
        row(sample=f"{r}{s}{j}", prompt_row=r, judge_id=j) for s in "ab" for r in (0, 1) for j in ("pixel", "second")
    ]
    write(path, rows)
    groups = list(RecordReader(path).groups())
    assert [g.table.sample_ids for g in groups] == [
        ("0apixel", "0bpixel"), ("0asecond", "0bsecond"), ("1apixel", "1bpixel"), ("1asecond", "1bsecond"),
    ]  # fmt: skip
    assert len(list(RecordReader(path).groups(judge_id="second"))) == 2
    assert list(RecordReader(path).groups(phase="eval")) == []


def test_a_stateful_aggregator_lives_through_the_steps_again(tmp_path):
    path = tmp_path / "record.jsonl"
    rows = [row(step, sample=f"{step}{p}", prompt_id=p, epoch=step // 2) for step in (0, 1, 2) for p in "ab"]
    write(path, [row(0, phase="eval"), *rows])

    class Counting(Aggregator):
        def __post_init__(self):
            self.seen, self.ends, self.places = 0, 0, []

        def weigh(self, table, ctx):
            self.places.append((ctx.step, ctx.epoch, ctx.prompt_id))
            return np.full(len(table), self.seen + 0.5 * self.ends)

        def observe(self, tables, ctx):
            assert [c.prompt_id for c in ctx] == ["a", "b"]
            self.seen += len(tables)

        def end_epoch(self):
            self.ends += 1

    counting = Counting()
    # Evaluation teaches nothing; a step is scored before it is observed; epoch 0 ends before step 2.
    assert [r[0] for _, r in RecordReader(path).rebuild(counting)] == [0, 0, 0, 2, 2, 4.5, 4.5]
    assert counting.places[-1] == (2, 1, "b") and counting.ends == 1


def test_rows_of_joins_what_a_judge_returned():
    verdicts = [[Verdict(s, c, 1.0) for c in RUBRIC.ids] for s in ("a", "b")]
    picture = Image.new("RGB", (2, 2), "red")
    rows = rows_of(verdicts, samples=[picture, np.asarray(picture)], rubric=RUBRIC, step=1, prompt_id="p",
                   judge_id="j", reward=[0.5, float("nan")])  # fmt: skip
    assert rows[0].sample_hash == rows[1].sample_hash == candidate_id(picture)
    assert [r.reward for r in rows] == [0.5, None] and rows[0].rubric_hash == RUBRIC.hash
    with pytest.raises(InputError, match="2 verdict lists, 1 samples"):
        rows_of(verdicts, samples=[picture], rubric=RUBRIC, step=1, prompt_id="p", judge_id="j")


def test_a_torn_last_line_is_reported_and_costs_nothing_else(tmp_path):
    path = tmp_path / "record.jsonl"
    write(path, [row(0), row(0, sample="s1"), row(1)])
    whole = path.read_bytes()
    for cut in (1, 2, 30, len(whole.splitlines()[-1])):
        path.write_bytes(whole[:-cut])
        reader = RecordReader(path)
        lost = 0 if cut == 1 else 1
        # Without its line feed the last line is complete; with one byte more gone it is a fragment.
        assert len(list(reader.rows())) == 3 - lost and len(reader.torn) == lost
        write(path, [row(1, reward=1.0)], from_step=1)
        reader = RecordReader(path)
        assert [(r.step, r.sample_id) for r in reader.rows()] == [(0, "s0"), (0, "s1"), (1, "s0")]
        assert [(t.line) for t in reader.torn] == [5] * lost
        write(path, [], from_step=2)
        assert len(list(RecordReader(path).rows())) == 3


@settings(max_examples=50, deadline=None)
@given(cut=st.integers(0, 2000), data=st.data())
def test_any_cut_leaves_all_whole_lines(tmp_path_factory, cut, data):
    path = tmp_path_factory.mktemp("r") / "record.jsonl"
    write(path, [row(step, reward=data.draw(st.floats(0, 1))) for step in range(4)])
    whole = path.read_bytes()
    header = whole.index(b"\n") + 1
    path.write_bytes(whole[: max(header, len(whole) - cut)])
    lines = path.read_bytes()
    parts = [part for part in lines.split(b"\n") if part]
    complete = sum(part in whole.split(b"\n") and b'"sample"' in part[:20] for part in parts)
    with RunRecord(path, from_step=4) as record:
        record.append([row(4)], [RUBRIC])
    assert len(list(RecordReader(path).rows())) == complete + 1


WRITER = """
import sys
sys.path.insert(0, sys.argv[2])
from test_record import RUBRIC, row, RunRecord
with RunRecord(sys.argv[1]) as record:
    for step in range(1_000_000):
        record.append([row(step, sample=f"s{i}") for i in range(5)], [RUBRIC])
        print(step, flush=True)
"""


@pytest.mark.processes
def test_a_killed_writer_keeps_every_step_it_had_appended(tmp_path):
    path = tmp_path / "record.jsonl"
    worker = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), os.path.dirname(__file__)],
        stdout=subprocess.PIPE,
        text=True,
    )
    assert worker.stdout is not None
    for line in worker.stdout:
        if int(line) >= 5:
            break
    os.kill(worker.pid, signal.SIGKILL)
    said = [5, *(int(line) for line in worker.stdout.read().split("\n")[:-1] if line.strip())]
    worker.wait()
    groups = list(RecordReader(path).groups())
    assert [len(g.rows) for g in groups[: max(said) + 1]] == [5] * (max(said) + 1)
    write(path, [row(4)], from_step=4)
    assert [g.step for g in RecordReader(path).groups()] == list(range(5))


def test_threads_do_not_mix_their_lines(tmp_path):
    path = tmp_path / "record.jsonl"
    with RunRecord(path) as record:
        threads = [
            threading.Thread(
                target=lambda t=t: [record.append([row(0, sample=f"{t}-{i}")], [RUBRIC]) for i in range(50)]
            )
            for t in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert len({r.sample_id for r in RecordReader(path).rows()}) == 400


def test_a_full_disk_is_a_clear_error_and_leaves_whole_lines(tmp_path):
    path = tmp_path / "record.jsonl"
    write(path, [row(0)])
    size = path.stat().st_size
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with RunRecord(path, from_step=1) as record:
            # The file may grow by 100 bytes more, less than one line: a short write, then an error.
            resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 100, limits[1]))
            with pytest.raises(RunError, match=r"record\.jsonl.*free space"):
                record.append([row(1)])
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            record.append([row(1)])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    assert path.stat().st_size > size and [r.step for r in RecordReader(path).rows()] == [0, 1]
    assert RecordReader(path).torn == []


def lines_of(path):
    write(path, [row(0), row(1)])
    return path.read_text().splitlines()


@pytest.mark.parametrize(
    ("number", "change", "message"),
    [
        (2, lambda s: s[:-5], "broken JSON"),
        (3, lambda s: s.replace('"step":0', '"step":-1'), "step must be"),
        (3, lambda s: s.replace('"judge_id"', '"judge"'), "unknown fields.*judge"),
        (3, lambda s: s.replace('"met":1.0', '"met":1.5'), r"outside \[0, 1\]"),
        (3, lambda s: s.replace('"attempt":0', '"attempt":7'), "never opened"),
        (2, lambda s: s.replace("red ball", "blue ball"), "edited"),
        (2, lambda s: '{"kind":"torn"}', "rubric .* is not in the record"),
        (4, lambda s: s.replace('"kind":"sample"', '"kind":"note"'), "unknown kind 'note'"),
        (4, lambda s: "[]", "not an object"),
        (1, lambda s: s.replace('"format":1', '"format":9'), "format 9"),
        (1, lambda s: '{"kind":"torn"}', "first line must be an attempt"),
    ],
)
def test_broken_lines_are_errors_with_file_and_line(tmp_path, number, change, message):
    path = tmp_path / "record.jsonl"
    lines = lines_of(path)
    lines[number - 1] = change(lines[number - 1])
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InputError, match=message) as caught:
        RecordReader(path)
    assert "record.jsonl:" in str(caught.value)
    with pytest.raises(InputError):
        RunRecord(path)


def test_the_same_sample_twice_is_an_error(tmp_path):
    path = tmp_path / "record.jsonl"
    write(path, [row(0), row(0)])
    with pytest.raises(InputError, match=r"record\.jsonl:4: sample 's0' is on line 3"):
        list(RecordReader(path).groups())
    write(tmp_path / "b.jsonl", [row(0), row(1), row(0, sample="late")])
    with pytest.raises(InputError, match="ended on line 3"):
        list(RecordReader(tmp_path / "b.jsonl").groups())


def test_bad_calls(tmp_path):
    path = tmp_path / "record.jsonl"
    with RunRecord(path) as record:
        with pytest.raises(InputError, match="not given"):
            record.append([row(0)])
        record.append([row(0)], [RUBRIC])
        record.sync()
    with pytest.raises(RunError, match="closed"):
        record.append([row(1)])
    with pytest.raises(InputError, match="no such run record"):
        RecordReader(tmp_path / "none.jsonl")
    with pytest.raises(InputError, match="of this sample"):
        SampleRow(**{**row().__dict__, "sample_id": "other"})
    with pytest.raises(InputError, match="from_step"):
        RunRecord(path, from_step=-1)
    with pytest.raises(InputError, match="cannot be opened"):
        RunRecord(tmp_path)
    (tmp_path / "foreign.jsonl").write_text('{"prompt": "a"}\n')
    with pytest.raises(InputError, match=r"foreign\.jsonl:1"):
        RunRecord(tmp_path / "foreign.jsonl")
    assert (tmp_path / "foreign.jsonl").read_text() == '{"prompt": "a"}\n'


def test_a_reader_sees_the_file_as_it_was_opened(tmp_path):
    path = tmp_path / "record.jsonl"
    write(path, [row(0), row(1)])
    reader = RecordReader(path)
    write(path, [row(1)], from_step=1)
    assert len(list(reader.rows())) == 2 and len(list(RecordReader(path).rows())) == 2
