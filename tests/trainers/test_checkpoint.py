"""Checkpoints: exact, whole or absent, and refused where they do not belong."""

from __future__ import annotations

import json
import random
import resource
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from mmrubric.errors import InputError, RunError
from trainers.checkpoint import CheckpointStore, differences, fingerprint, pack, unpack

CONFIG = {"run": {"steps": 5, "seed": 0}, "model": {"tune": "lora"}, "optim": {"lr": 1e-4, "batch_size": 4}}


def _state(step: int = 3) -> dict:
    generator = torch.Generator().manual_seed(step)
    return {"step": step, "policy": {"trainable/w": torch.randn(4, 3, generator=generator)}}


def test_tf50_save_and_load_are_one_pair(tmp_path: Path) -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    optimizer = torch.optim.AdamW([parameter])
    parameter.sum().backward()
    optimizer.step()
    state = {
        "optimizer": optimizer.state_dict(),
        "rng": (random.getstate(), np.random.get_state(), torch.get_rng_state()),
        "numbers": [1, 2.5, float("nan"), float("-inf"), True, None, "text"],
        "odd keys": {0: "a", (1, 2): "b", "__tensor__": "c"},
        "half": torch.tensor([1.5], dtype=torch.bfloat16),
    }
    store = CheckpointStore(tmp_path)
    found = store.save(7, state, CONFIG)
    loaded = found.load()
    assert loaded["optimizer"]["state"][0]["step"] == 1 and loaded["optimizer"]["param_groups"][0]["betas"] == (
        0.9,
        0.999,
    )
    assert loaded["rng"][0] == state["rng"][0] and loaded["odd keys"] == state["odd keys"]
    assert np.array_equal(loaded["rng"][1][1], state["rng"][1][1]) and loaded["rng"][1][1].dtype == np.uint32
    assert torch.equal(loaded["rng"][2], state["rng"][2])
    assert loaded["numbers"][:2] == [1, 2.5] and np.isnan(loaded["numbers"][2]) and loaded["numbers"][3] == -np.inf
    assert torch.equal(loaded["half"], state["half"]) and loaded["half"].dtype == torch.bfloat16
    new = torch.optim.AdamW([torch.nn.Parameter(torch.ones(3))])
    new.load_state_dict(loaded["optimizer"])
    # no pickle anywhere: every file is safetensors or JSON
    assert {path.suffix for path in found.path.iterdir()} == {".safetensors", ".json"}


_leaves = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=5))
_trees = st.recursive(
    _leaves,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(st.text(max_size=3), inner, max_size=3),
        st.tuples(inner, inner),
    ),
    max_leaves=10,
)


@given(_trees)
@settings(max_examples=50, deadline=None)
def test_any_tree_comes_back_equal(tree: object) -> None:
    tensors, plain = pack(tree)
    assert unpack(tensors, json.loads(json.dumps(plain, allow_nan=False))) == tree


def test_what_cannot_be_stored_is_named() -> None:
    with pytest.raises(TypeError, match=r"set at \.a\[1\]"):
        pack({"a": [1, {2}]})


def test_keeps_the_newest_and_finds_them(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path / "checkpoints", keep=2)
    assert store.find("auto") is None and store.find(None) is None
    for step in (1, 2, 3):
        store.save(step, _state(step), CONFIG)
    assert [item.step for item in store.all()] == [2, 3]
    for given_path in ("auto", str(tmp_path), str(tmp_path / "checkpoints"), str(store.all()[-1].path)):
        found = store.find(given_path)
        assert found is not None and found.step == 3
    with pytest.raises(InputError, match="no checkpoint there"):
        store.find(str(tmp_path / "nothing"))


def test_going_back_makes_newer_checkpoints_and_loses_none(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path, keep=3)
    for step in (1, 2, 3, 2):  # step 2 is made again from checkpoint 1
        store.save(step, _state(step), CONFIG)
    assert [item.path.name for item in store.all()] == ["step-00000002", "step-00000003", "step-00000002.r1"]
    assert store.latest().step == 2  # type: ignore[union-attr]


def test_full_disk_leaves_earlier_checkpoints_intact(tmp_path: Path) -> None:
    store = CheckpointStore(tmp_path)
    first = store.save(1, _state(1), CONFIG)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, hard))  # the kernel refuses to write more, as a full disk does
    try:
        with pytest.raises(RunError, match="disk is full while saving step 2"):
            store.save(2, {"w": torch.zeros(100_000)}, CONFIG)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert [path.name for path in tmp_path.iterdir()] == [first.path.name]
    assert torch.equal(first.load()["policy"]["trainable/w"], _state(1)["policy"]["trainable/w"])


def test_damaged_files_are_named(tmp_path: Path) -> None:
    found = CheckpointStore(tmp_path).save(1, _state(1), CONFIG)
    (found.path / "tensors.safetensors").write_bytes(b"short")
    with pytest.raises(InputError, match=r"tensors\.safetensors: cannot be read"):
        found.load()
    (found.path / "state.json").unlink()
    (found.path / "checkpoint.json").write_text("{")
    with pytest.raises(InputError, match=r"checkpoint\.json: cannot be read"):
        CheckpointStore(tmp_path).latest()


def test_tf52_other_tuning_is_an_error(tmp_path: Path) -> None:
    found = CheckpointStore(tmp_path).save(1, _state(1), CONFIG)
    other = {**CONFIG, "model": {"tune": "full"}, "optim": {"lr": 2e-4, "batch_size": 4}}
    with pytest.raises(InputError, match=r"model\.tune: 'lora' -> 'full'") as error:
        found.check(other)
    assert "optim.lr: 0.0001 -> 0.0002" in str(error.value)


def test_benign_settings_may_change(tmp_path: Path) -> None:
    other = {**CONFIG, "run": {"steps": 50, "seed": 0}, "optim": {"lr": 1e-4, "batch_size": 2}}
    CheckpointStore(tmp_path).save(1, _state(1), CONFIG).check(other)
    assert fingerprint(CONFIG) == fingerprint(other) and differences(CONFIG, other) == []
    assert differences(CONFIG, {**CONFIG, "run": {"steps": 5, "seed": 1}}) == ["run.seed: 0 -> 1"]


def test_the_length_of_the_run_matters_where_the_rate_falls_towards_its_end() -> None:
    falling = {**CONFIG, "optim": {"lr": 1e-4, "decay": 0.3}}
    longer = {**falling, "run": {"steps": 50, "seed": 0}}
    assert differences(falling, longer) == ["run.steps: 5 -> 50"] and fingerprint(falling) != fingerprint(longer)


@pytest.mark.slow
@pytest.mark.processes
def test_killed_while_writing_loses_no_written_checkpoint(tmp_path: Path) -> None:
    program = textwrap.dedent(
        f"""
        import torch
        from trainers.checkpoint import CheckpointStore
        store = CheckpointStore({str(tmp_path)!r}, keep=2)
        for step in range(1, 10_000):
            store.save(step, {{"w": torch.full((300_000,), float(step))}}, {{}})
            print(step, flush=True)
        """
    )
    for kill_after in (0.05, 0.11, 0.17):
        child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        seen = [int(child.stdout.readline())]
        time.sleep(kill_after)
        child.send_signal(signal.SIGKILL)
        seen += [int(line) for line in child.stdout.read().split()]
        child.wait()
        store = CheckpointStore(tmp_path)
        latest = store.latest()
        assert latest is not None and latest.step >= seen[-1]
        for found in store.all():
            assert torch.equal(found.load()["w"], torch.full((300_000,), float(found.step)))
        store.clean()
        assert not list(tmp_path.glob(".tmp-*"))
