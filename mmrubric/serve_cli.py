"""The command `mmrubric serve-judge`: vLLM servers for judges, until Ctrl-C."""

from __future__ import annotations

import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from mmrubric.errors import InputError

EPILOG = "Example: mmrubric serve-judge --model Qwen/Qwen3-VL-8B-Instruct --replicas 4"


def serve_judge_command(
    model: Annotated[str, typer.Option(help="Directory of a saved model, a model id, or shapes.", show_default=False)],
    replicas: Annotated[int, typer.Option(help="Independent servers; the client spreads pictures over them.")] = 1,
    served_name: Annotated[str, typer.Option(help="Name for clients; default: the last part of the model.")] = "",
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port of the first replica; the others follow.")] = 8000,
    python: Annotated[
        str,
        typer.Option(envvar="MMRUBRIC_VLLM_PYTHON", help="Interpreter of the environment that holds vLLM."),
    ] = sys.executable,
    tensor_parallel: Annotated[int, typer.Option(help="GPUs of one replica.")] = 1,
    images: Annotated[int, typer.Option(help="Pictures in one request at most.")] = 6,
    max_model_len: Annotated[int, typer.Option(help="Tokens of prompt and answer; 0 = what the model says.")] = 8192,
    dtype: Annotated[str, typer.Option(help="auto, bfloat16, float16 or float32.")] = "auto",
    flags: Annotated[str, typer.Option(help="Further flags of vLLM, in one string.")] = "",
    startup_seconds: Annotated[float, typer.Option(help="Time until all replicas must answer.")] = 900.0,
    logs: Annotated[Path, typer.Option(help="Directory of the servers' logs.")] = Path("runs/serve-judge"),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object to standard output.")] = False,
) -> Iterator[tuple[dict[str, Any], str]]:
    """Serve a vision-language model to judges: start vLLM, wait, print the addresses, restart what dies."""
    from judges.serving import ServeOptions, servers

    given: dict[str, Any] = {
        "model": model,
        "replicas": replicas,
        "served_name": served_name,
        "host": host,
        "port": port,
        "python": python,
        "tensor_parallel": tensor_parallel,
        "images": images,
        "max_model_len": max_model_len or None,
        "dtype": dtype,
        "flags": tuple(shlex.split(flags)),
        "startup_seconds": startup_seconds,
    }
    try:
        options = ServeOptions(**given)
    except ValidationError as error:
        raise InputError("; ".join(f"{e['loc'][0]}: {e['msg']}" for e in error.errors())) from error
    # A scheduler's SIGTERM must stop the servers as Ctrl-C does; and a shell's background job ignores SIGINT.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    with servers(options, logs, lambda line: print(line, file=sys.stderr, flush=True)) as running:
        running.wait()
        urls = ",".join(options.urls)
        hint = f"Judge with: mmrubric judge --images DIR --rubric FILE --judge {urls}\nCtrl-C stops the servers."
        yield {"model": options.name, "base_url": options.urls, "logs": str(logs)}, hint
        try:
            running.watch()
        except KeyboardInterrupt:
            # The way to end it.
            return
