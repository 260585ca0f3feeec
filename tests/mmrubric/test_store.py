"""The verdict store: identity of requests (JF21, JF40 to JF43), validity, threads, processes, kills."""

from __future__ import annotations

import json
import multiprocessing
import os
import pickle
import signal
import sqlite3
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.errors import InputError, RunError
from mmrubric.store import Store, canonical_json, is_valid, request_key
from mmrubric.verdict import Cost, Failure, Verdict

REQUEST = {
    "base_url": "http://a/v1",
    "model": "m",
    "temperature": 0.0,
    "messages": [{"role": "user", "text": "a:b"}],
}


def verdict(met=1.0, **fields):
    return Verdict("s1", fields.pop("criterion_id", "c1"), met, **fields)


def test_same_request_same_key_whatever_the_order_of_its_keys():
    assert request_key(REQUEST) == request_key(dict(reversed(REQUEST.items())))
    assert len(request_key(REQUEST)) == 64


@pytest.mark.parametrize(
    "other",
    [
        REQUEST | {"base_url": "http://b/v1"},
        REQUEST | {"seed": None},
        REQUEST | {"temperature": 0},
        REQUEST | {"temperature": "0.0"},
        REQUEST | {"messages": [{"role": "user", "text": "a:b "}]},
    ],
)
def test_everything_sent_is_part_of_the_key(other):
    assert request_key(REQUEST) != request_key(other)


def test_fields_do_not_run_together_and_repeats_differ():
    assert request_key(["a:b", "c"]) != request_key(["a", "b:c"])
    assert request_key(True) != request_key(1) != request_key(1.0)
    assert request_key(REQUEST, repeat=1) != request_key(REQUEST)
    with pytest.raises(InputError, match="repeat"):
        request_key(REQUEST, repeat=-1)


# A few letters of every kind; the whole of Unicode costs eight seconds of tables on a fresh machine.
texts = st.text(alphabet='aB1 :"\\\n\x00é€😀\ud800')
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=10,
)


@settings(max_examples=50, deadline=None)
@given(json_values)
def test_canonical_json_reads_back(value):
    text = canonical_json(value)
    assert json.loads(text) == value and canonical_json(json.loads(text)) == text and text.isascii()


@pytest.mark.parametrize(
    ("bad", "where"),
    [({"a": [1, float("nan")]}, r"request\.a\[1\]"), ({1: 2}, "key 1"), ({"a": b"x"}, r"request\.a: bytes"),
     ({"a": {"b": {1}}}, r"request\.a\.b: set")],
)  # fmt: skip
def test_what_is_not_json_is_refused(bad, where):
    with pytest.raises(InputError, match=where):
        canonical_json(bad)


def test_round_trip_under_the_callers_names(tmp_path):
    with Store(tmp_path / "v.db") as store:
        key = request_key(REQUEST)
        assert store.get(key, "s1") is None and key not in store
        answers = [
            verdict(0.25, reason="blau", read="logprob", cost=Cost(1, 10, 2)),
            verdict(None, applicable=False),
        ]
        assert store.put(key, answers)
        back = store.get(key, "s9", criterion_ids=["x", "y"])
        assert back == [
            Verdict("s9", "x", 0.25, reason="blau", read="logprob", cost=Cost(cached=True)),
            Verdict("s9", "y", None, applicable=False, cost=Cost(cached=True)),
        ]
        with pytest.raises(InputError, match="holds 2 verdicts, but 1"):
            store.get(key, "s9", criterion_ids=["x"])
        assert key in store and len(store) == 1


def test_only_valid_verdicts_are_kept_then_a_good_one_succeeds(tmp_path):
    with Store(tmp_path / "v.db") as store:
        key = request_key(REQUEST)
        assert not store.put(key, [verdict(), verdict(None, failure=Failure.unparsable)])
        assert not store.put(key, [verdict(None)]) and not store.put(key, [])
        assert store.get(key, "s1") is None
        assert store.put(key, [verdict(0.0)]) and store.get(key, "s1")[0].met == 0.0
    assert is_valid(verdict(0.0)) and not is_valid(verdict(None, failure=Failure.timeout))


def test_first_answer_stays(tmp_path):
    with Store(tmp_path / "v.db") as store:
        store.put("k", [verdict(1.0)])
        store.put("k", [verdict(0.0)])
        assert store.get("k", "s1")[0].met == 1.0


def test_an_answer_that_nobody_can_use_gives_way_if_one_says_so(tmp_path):
    with Store(tmp_path / "v.db") as store:
        store.put_json("k", {"answer": "loose"}, kind="text")
        store.put_many_json([("k", {"answer": "strict"}), ("new", 1)], kind="text", replace=True)
        assert store.get_json("k", kind="text") == {"answer": "strict"} and store.get_json("new", kind="text") == 1
        store.put_many_json([("k", {"answer": "later"})], kind="text")
        assert store.get_json("k", kind="text") == {"answer": "strict"}
        # What is stored under the key is another thing: it is no newer answer.
        store.put_many_json([("k", [1, 2])], kind="rank", replace=True)
        assert store.get_json("k", kind="text") == {"answer": "strict"} and len(store) == 2


def test_other_answers_have_a_kind(tmp_path):
    with Store(tmp_path / "v.db") as store:
        store.put_json("k", {"rank": [1, 2]}, kind="rank")
        assert store.get_json("k", kind="rank") == {"rank": [1, 2]}
        with pytest.raises(InputError, match="holds 'rank'"):
            store.get("k", "s1")
        with pytest.raises(InputError, match="None is not an answer"):
            store.put_json("k2", None, kind="rank")
        # All or nothing: the second value is not JSON, so the first is not stored either.
        with pytest.raises(InputError):
            store.put_many_json([("k3", 1), ("k4", object())], kind="rank")
        assert "k3" not in store


def test_survives_reopening_and_pickling_of_the_handle(tmp_path):
    with Store(tmp_path / "v.db") as store:
        store.put("k", [verdict(1.0)])
        with pickle.loads(pickle.dumps(store)) as other:
            assert other.get("k", "s1")[0].met == 1.0
    with pytest.raises(RunError, match="closed"):
        store.get("k", "s1")


def test_many_threads(tmp_path):
    with Store(tmp_path / "v.db") as store:

        def work(thread):
            for i in range(40):
                store.put(f"k{i}", [verdict(thread / 8)])
            return [store.get(f"k{i}", "s")[0].met for i in range(40)]

        with ThreadPoolExecutor(8) as pool:
            seen = list(pool.map(work, range(8)))
        # Whoever came first, all threads read the same value for a key.
        assert len(store) == 40 and all(row == seen[0] for row in seen)


WRITER = """
import sys
from mmrubric.store import Store
from mmrubric.verdict import Verdict
store = Store(sys.argv[1])
for i in range(int(sys.argv[3])):
    store.put(f"{sys.argv[2]}-{i}", [Verdict("s", "c", 1.0)])
    store.put(f"shared-{i}", [Verdict("s", "c", 0.5)])
    print(i, flush=True)
"""


def writer(path, name, count):
    return subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), name, str(count)], stdout=subprocess.PIPE, text=True
    )


def fill(path, name, barrier):
    # All processes make the file at the same moment, then write the same and different keys.
    barrier.wait()
    with Store(path) as store:
        for i in range(20):
            store.put(f"{name}-{i}", [verdict()])
            store.put(f"shared-{i}", [verdict(name / 10)])


@pytest.mark.processes
def test_several_processes_share_one_file(tmp_path):
    context = multiprocessing.get_context("fork")
    for round in range(3):
        path = tmp_path / f"{round}.db"
        barrier = context.Barrier(5)
        workers = [context.Process(target=fill, args=(path, name, barrier)) for name in range(5)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0] * 5
        with Store(path) as store:
            assert len(store) == 5 * 20 + 20


@pytest.mark.processes
def test_a_killed_writer_loses_nothing_it_had_written(tmp_path):
    path = tmp_path / "v.db"
    worker = writer(path, "a", 1_000_000)
    seen = -1
    while seen < 20:
        seen = int(worker.stdout.readline())
    os.kill(worker.pid, signal.SIGKILL)
    seen = max([seen, *(int(line) for line in worker.stdout.read().split("\n")[:-1] if line.strip())])
    worker.wait()
    with Store(path) as store:
        assert all(f"a-{i}" in store and f"shared-{i}" in store for i in range(seen + 1))
        assert store.put("after", [verdict()])


def test_a_fork_opens_its_own_connection(tmp_path):
    with Store(tmp_path / "v.db") as store:
        store.put("parent", [verdict()])
        child = os.fork()
        if child == 0:
            ok = store.get("parent", "s1") is not None and store.put("child", [verdict()])
            os._exit(0 if ok else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert "child" in store


def test_foreign_and_damaged_files_are_refused(tmp_path):
    (tmp_path / "text.db").write_text("not a database at all, but long enough to be read as a header" * 20)
    with pytest.raises(InputError, match=r"text\.db"):
        Store(tmp_path / "text.db")
    other = sqlite3.connect(tmp_path / "other.db")
    other.execute("CREATE TABLE t (x)")
    other.commit()
    other.close()
    with pytest.raises(InputError, match="another program"):
        Store(tmp_path / "other.db")
    with Store(tmp_path / "new.db"):
        pass
    newer = sqlite3.connect(tmp_path / "new.db")
    newer.execute("PRAGMA user_version = 99")
    newer.close()
    with pytest.raises(InputError, match="newer"):
        Store(tmp_path / "new.db")
    with pytest.raises(InputError, match="does not exist"):
        Store(tmp_path / "no" / "v.db")


def test_a_full_disk_is_a_clear_error_and_keeps_what_was_there(tmp_path):
    with Store(tmp_path / "v.db") as store:
        store.put("k", [verdict()])
        # The limit is per connection: the file may not grow, as on a full disk.
        store._connection().execute("PRAGMA max_page_count = 1")
        with pytest.raises(RunError, match=r"v\.db.*full"):
            for i in range(200):
                store.put(f"big{i}", [verdict(reason="x" * 3000)])
        assert store.get("k", "s1")[0].met == 1.0


def test_a_locked_file_waits(tmp_path):
    path = tmp_path / "v.db"
    with Store(path) as store, ThreadPoolExecutor(1) as pool:
        blocker = sqlite3.connect(path, isolation_level=None)
        blocker.execute("BEGIN IMMEDIATE")
        waiting = pool.submit(store.put, "k", [verdict()])
        time.sleep(0.2)
        assert not waiting.done()
        blocker.execute("COMMIT")
        blocker.close()
        assert waiting.result(timeout=10) and "k" in store
