"""Supervision of servers, with a small server in place of vLLM; the real one is in test_vllm.py."""

import os
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import pytest
from pydantic import ValidationError

from judges.serving import Build, Replica, ServeOptions, Servers, command, environment, servers
from mmrubric.errors import InputError, RunError

CPU, GPU = Build("python", "0.32.0", cpu=True), Build("python", "0.32.0", cpu=False)
SERVER = """
import subprocess, sys
from http.server import BaseHTTPRequestHandler, HTTPServer
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
print("child", child.pid, flush=True)
class Handler(BaseHTTPRequestHandler):
    def log_message(self, *_):
        pass

    def do_GET(self):
        self.send_response(200 if self.path == "/health" else 404)
        self.end_headers()
HTTPServer(("127.0.0.1", int(sys.argv[1])), Handler).serve_forever()
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def replica(tmp_path: Path, code: str = SERVER, name: str = "replica") -> Replica:
    port = free_port()
    words = [sys.executable, "-c", code, str(port)]
    return Replica(words, dict(os.environ), f"http://127.0.0.1:{port}/v1", tmp_path / f"{name}.log")


def gone(pid: int) -> bool:
    """Whether a process has ended (a zombie has)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def wait_for(condition, seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.05)


def child_of(one: Replica) -> int:
    """Pid of the process that the latest server of this replica started."""
    wait_for(lambda: "child" in one.tail())
    return [int(line.split()[1]) for line in one.tail().splitlines() if line.startswith("child")][-1]


def test_the_command_has_what_judging_needs():
    options = ServeOptions(model="org/Some-VLM", replicas=2, port=9000, images=2, flags=("--dtype", "float16"))
    words = command(options, GPU, 1)
    assert words[:3] == ["python", "-m", "vllm.entrypoints.openai.api_server"]
    text = " ".join(words)
    assert "--model org/Some-VLM --served-model-name Some-VLM --host 127.0.0.1 --port 9001" in text
    assert '--limit-mm-per-prompt {"image": 2}' in text
    for flag in ("--enable-prefix-caching", "--max-model-len 8192", "--generation-config vllm"):
        assert flag in text
    assert words[-2:] == ["--dtype", "float16"], "a person's flags come last, and so win"
    assert "--block-size 32" in " ".join(command(options, CPU, 0)) and "--block-size" not in text
    assert options.urls == ["http://127.0.0.1:9000/v1", "http://127.0.0.1:9001/v1"]


def test_each_replica_has_gpus_of_its_own():
    options = ServeOptions(model="m", replicas=2, tensor_parallel=2)
    given = [environment(options, GPU, k, {})["CUDA_VISIBLE_DEVICES"] for k in range(2)]
    assert given == ["0,1", "2,3"]
    chosen = [environment(options, GPU, k, {"CUDA_VISIBLE_DEVICES": "4,5,6,7"}) for k in range(2)]
    assert [made["CUDA_VISIBLE_DEVICES"] for made in chosen] == ["4,5", "6,7"]
    with pytest.raises(InputError, match=r"replicas: 2 x 2 GPUs are needed, and CUDA_VISIBLE_DEVICES names 3"):
        environment(options, GPU, 0, {"CUDA_VISIBLE_DEVICES": "0,1,2"})


def test_replicas_on_a_cpu_share_its_cores():
    made = environment(ServeOptions(model="m", replicas=2), CPU, 0, {})
    assert made["OMP_NUM_THREADS"] == str(max(1, (os.cpu_count() or 1) // 2))
    assert made["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment(ServeOptions(model="m"), CPU, 0, {"OMP_NUM_THREADS": "3"})["OMP_NUM_THREADS"] == "3"


def test_bad_input_is_named_before_anything_starts(tmp_path: Path):
    with pytest.raises(InputError, match=r"no vLLM\. Install"):
        Build.find(sys.executable)
    with pytest.raises(InputError, match="/no/python cannot be run"):
        Build.find("/no/python")
    with pytest.raises(InputError, match=r"model: .* holds no config.json"):
        servers(ServeOptions(model=str(tmp_path)), tmp_path, print)
    with pytest.raises(ValidationError, match="replicas"):
        ServeOptions(model="m", replicas=0)


@pytest.mark.processes
def test_a_dead_server_is_started_again_and_all_are_stopped_with_their_children(tmp_path: Path):
    lines: list[str] = []
    both = [replica(tmp_path, name=str(k)) for k in range(2)]
    with Servers(both, 30, 5, lines.append) as running:
        running.wait()
        assert all(one.healthy() for one in both)
        children = [child_of(one) for one in both]

        class Done(Exception):
            """Ends the watch, as Ctrl-C does."""

        def watch() -> None:
            try:
                running.watch(every=0.05)
            except Done:
                return

        first = both[0].process
        assert first is not None
        original = running._look_after
        stop = threading.Event()

        def look_after(one: Replica) -> None:
            if stop.is_set():
                raise Done
            original(one)

        running._look_after = look_after  # pyright: ignore[reportAttributeAccessIssue]
        watcher = threading.Thread(target=watch)
        watcher.start()
        os.kill(first.pid, signal.SIGKILL)
        wait_for(lambda: any("ready again" in line for line in lines))
        assert gone(children[0]), "a child of the dead server must not live on"
        assert both[0].process is not None and both[0].process.pid != first.pid
        assert both[1].deaths == 0
        children = [child_of(one) for one in both]
        stop.set()
        watcher.join()
    assert any("died (exit code -9); it is started again in 1 s" in line for line in lines)
    assert all(gone(pid) for pid in children)
    assert not any(one.healthy() for one in both)


@pytest.mark.processes
def test_a_server_that_ends_before_it_is_ready_shows_its_log(tmp_path: Path):
    broken = replica(tmp_path, "raise SystemExit('no such model: x')")
    fine = replica(tmp_path, name="fine")
    with (
        pytest.raises(RunError, match=r"ended before it was ready(.|\n)*no such model: x"),
        Servers([fine, broken], 30, 5, print) as running,
    ):
        pid = fine.process.pid if fine.process else 0
        running.wait()
    assert gone(pid), "the other server is stopped as well"


@pytest.mark.processes
def test_a_server_that_is_never_ready_ends_the_wait(tmp_path: Path):
    silent = replica(tmp_path, "import time; print('loading', flush=True); time.sleep(600)")
    with (
        pytest.raises(RunError, match=r"was not ready within 2 s(.|\n)*loading"),
        Servers([silent], 2, 5, print) as running,
    ):
        running.wait()


@pytest.mark.processes
def test_a_server_that_keeps_dying_ends_everything(tmp_path: Path):
    broken = replica(tmp_path, "raise SystemExit('out of memory')")
    with (
        pytest.raises(RunError, match=r"died 2 times in a row(.|\n)*out of memory"),
        Servers([broken], 30, 1, lambda line: None) as running,
    ):
        running.watch(every=0.05)


@pytest.mark.processes
def test_a_port_in_use_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(Build, "find", lambda python: CPU)
    there = replica(tmp_path)
    with Servers([there], 30, 0, print) as running:
        running.wait()
        port = int(there.url.split(":")[2].split("/")[0])
        with pytest.raises(InputError, match="something already answers"):
            servers(ServeOptions(model="m", port=port), tmp_path, print)
