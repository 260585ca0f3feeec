"""A scripted OpenAI-compatible server on 127.0.0.1, for tests of everything that talks HTTP."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Answer:
    """One HTTP answer."""

    status: int = 200
    body: Any = None
    """JSON value, or bytes sent as they are."""
    headers: dict[str, str] = field(default_factory=dict)
    delay: float = 0.0
    """Seconds before the answer."""
    drop: bool = False
    """Close the connection instead of answering."""


def completion(text: str | None = "yes", finish: str = "stop", **extra: Any) -> Answer:
    """A chat completion; `extra` goes into the choice, `usage` into the body."""
    usage = extra.pop("usage", {"prompt_tokens": 10, "completion_tokens": 2, "total_tokens": 12})
    message = {"role": "assistant", "content": text, **extra.pop("message", {})}
    choice = {"index": 0, "message": message, "finish_reason": finish, **extra}
    body: dict[str, Any] = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [choice],
    }
    return Answer(body=body if usage is None else body | {"usage": usage})


def error(status: int, message: str = "no", headers: dict[str, str] | None = None, **extra: Any) -> Answer:
    """An error in the OpenAI form."""
    return Answer(status, {"error": {"message": message, "type": "x", **extra}}, headers or {})


class Clock:
    """Time for `LLM(endpoint, sleep=clock, clock=clock.time)`: sleeping only moves it on, and is written down."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    async def __call__(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    def time(self) -> float:
        return self.now


class Stub:
    """Answers in order from `script` (the last one for ever), or by `reply(request body)`."""

    def __init__(self, *script: Answer, reply: Callable[[dict[str, Any]], Answer] | None = None) -> None:
        self.script, self.reply = list(script), reply
        self.requests: list[dict[str, Any]] = []
        self.headers: list[dict[str, str]] = []
        self.in_flight = self.most_in_flight = 0
        self.lock = threading.Lock()
        self.base_url = ""
        self.models = ["m"]
        """What the server says that it serves."""

    def next(self, body: dict[str, Any], headers: dict[str, str]) -> Answer:
        with self.lock:
            self.requests.append(body)
            self.headers.append(headers)
            if self.reply is not None:
                return self.reply(body)
            return self.script.pop(0) if len(self.script) > 1 else self.script[0]


@contextmanager
def serve(stub: Stub) -> Iterator[Stub]:
    """Runs the stub on a free port; `stub.base_url` is its address."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with stub.lock:
                stub.in_flight += 1
                stub.most_in_flight = max(stub.most_in_flight, stub.in_flight)
            try:
                answer = stub.next(body, dict(self.headers))
                time.sleep(answer.delay)
            finally:
                with stub.lock:
                    stub.in_flight -= 1
            if answer.drop:
                self.close_connection = True
                return
            data = answer.body if isinstance(answer.body, bytes) else json.dumps(answer.body).encode()
            try:
                self.send_response(answer.status)
                for name, value in {"Content-Type": "application/json", **answer.headers}.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)
            except (BrokenPipeError, ConnectionResetError):
                # The client gave up waiting, which is what a timeout test wants.
                self.close_connection = True

        def do_GET(self) -> None:
            data = json.dumps(
                {"object": "list", "data": [{"id": id, "object": "model"} for id in stub.models]}
            ).encode()
            self.send_response(200 if self.path.endswith("/models") else 404)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: Any) -> None:
            pass

    class Server(ThreadingHTTPServer):
        # The default of 5 waiting connections resets some of a burst of calls.
        request_queue_size = 512
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            # A client that was killed leaves broken connections behind; their tracebacks would bury everything else.
            if not isinstance(sys.exc_info()[1], ConnectionError | json.JSONDecodeError):
                super().handle_error(request, client_address)

    server = Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
    thread.start()
    stub.base_url = f"http://127.0.0.1:{server.server_port}/v1"
    try:
        yield stub
    finally:
        server.shutdown()
        server.server_close()
