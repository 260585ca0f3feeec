"""Verdicts per second and requests sent by our client and by autorubric 1.6.1, on one local server in one run.

    python -m venv /tmp/peer && /tmp/peer/bin/pip install autorubric==1.6.1
    python tests/benchmarks/judge_throughput.py --peer /tmp/peer/bin/python

The server answers in 50 ms and works on 32 requests at a time; the rest waits. 200 texts are judged by 10 criteria
each: by a call per criterion, and by one call for the whole rubric, which both libraries offer. The peer has an
environment of its own, because its dependencies are not ours; imports and a first request are outside the time.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import multiprocessing
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

ITEMS, CRITERIA, SLOTS, LATENCY = 200, 10, 32, 0.05
CONCURRENCY = 2 * SLOTS
"""Requests that a client may have under way: enough to keep every slot busy."""
PEER = """
import asyncio, json, os, sys, time
os.environ["OPENAI_API_KEY"] = "none"
import litellm
litellm.suppress_debug_info = True
from autorubric import Criterion, LLMConfig, Rubric
from autorubric.graders import CriterionGrader
url, mode, items, criteria, concurrency = sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6])
names = [f"thing number {k}" for k in range(criteria)]
rubric = Rubric([Criterion(name=name, weight=1.0, requirement=f"There is {name}.") for name in names])
config = LLMConfig(model="openai/m", api_base=url, temperature=0.0, max_parallel_requests=concurrency)
grader = CriterionGrader(judge_model_config=config, llm_calls=mode)
async def main():
    await rubric.grade("warm up", grader)
    begun = time.perf_counter()
    reports = await asyncio.gather(*(rubric.grade(f"text number {k}", grader) for k in range(items)))
    seconds = time.perf_counter() - begun
    met = sum(str(c.final_verdict).endswith("MET") and not str(c.final_verdict).endswith("UNMET")
              for r in reports for c in r.report)
    print(json.dumps({"seconds": seconds, "met": met}))
asyncio.run(main())
"""


def answer(body: dict[str, Any]) -> str:
    """What the judge model says: everything is met, in the form that the request's schema wants."""
    schema = body["response_format"]["json_schema"]["schema"]
    known = schema["properties"]
    if "verdicts" in known:
        ids = known["verdicts"]["items"]["properties"]["id"]["enum"]
        return json.dumps({"verdicts": [{"id": id, "reason": "seen", "met": "yes"} for id in ids]})
    if "judgments" in known:
        entry = {"criterion_status": "MET", "selected_option": None, "explanation": "seen"}
        return json.dumps(
            {"judgments": [{"criterion_id": f"c{k}"} | entry for k in range(CRITERIA)], "reasoning": None}
        )
    if "criterion_status" in known:
        return json.dumps({"criterion_status": "MET", "explanation": "seen"})
    return json.dumps({"reason": "seen", "met": "yes"})


def run_server(port: Any, count: Any) -> None:
    """Serves for ever; puts its port and the number of requests into shared values."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            fields = dict(line.split(": ", 1) for line in head.decode().split("\r\n")[1:] if ": " in line)
            lower = {name.lower(): value for name, value in fields.items()}
            body = json.loads(await reader.readexactly(int(lower["content-length"])))
            with count.get_lock():
                count.value += 1
            async with slots:
                await asyncio.sleep(LATENCY)
            choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": answer(body)}}
            usage = {"prompt_tokens": 10, "completion_tokens": 5, "total_tokens": 15}
            reply = {"id": "x", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
            data = json.dumps(reply | {"usage": usage}).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(data) + data
            )
            await writer.drain()

    async def safely(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await handle(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def serve() -> None:
        nonlocal slots
        slots = asyncio.Semaphore(SLOTS)
        server = await asyncio.start_server(safely, "127.0.0.1", 0, backlog=1024)
        port.value = server.sockets[0].getsockname()[1]
        await server.serve_forever()

    slots = asyncio.Semaphore(SLOTS)
    asyncio.run(serve())


def ours(url: str, mode: str) -> dict[str, Any]:
    """Our judge on the same texts."""
    import judges
    from mmrubric.rubric import Criterion, Rubric

    criteria = [Criterion(id=f"c{k}", text=f"There is thing number {k}.") for k in range(CRITERIA)]
    rubric = Rubric(prompt="", criteria=criteria)
    judge = judges.build("vlm", base_url=url, model="m", mode=mode, concurrency=CONCURRENCY)
    judge.score_sync([judges.JudgeRequest(rubric=rubric, candidate="warm up")])
    begun = time.perf_counter()
    rows = judge.score_sync([judges.JudgeRequest(rubric=rubric, candidate=f"text number {k}") for k in range(ITEMS)])
    return {"seconds": time.perf_counter() - begun, "met": sum(v.met == 1.0 for row in rows for v in row)}


def peer(python: str, url: str, mode: str) -> dict[str, Any]:
    """autorubric on the same texts, in its own environment."""
    words = [python, "-c", PEER, url, mode, *map(str, (ITEMS, CRITERIA, CONCURRENCY))]
    done = subprocess.run(words, capture_output=True, text=True)
    if done.returncode:
        raise SystemExit(f"the peer failed:\n{done.stderr[-2000:]}")
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer", help="interpreter of an environment with autorubric 1.6.1; left out: ours alone")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    context = multiprocessing.get_context("spawn")
    port, count = context.Value("i", 0), context.Value("i", 0)
    server = context.Process(target=run_server, args=(port, count), daemon=True)
    server.start()
    while not port.value:
        time.sleep(0.05)
    url = f"http://127.0.0.1:{port.value}/v1"
    runs: dict[str, Any] = {
        "ours, per criterion": lambda: ours(url, "per_criterion"),
        "ours, batched": lambda: ours(url, "batched"),
    }
    if options.peer:
        runs["autorubric, per criterion"] = lambda: peer(options.peer, url, "per_criterion")
        runs["autorubric, per item"] = lambda: peer(options.peer, url, "per_item")
    best: dict[str, dict[str, Any]] = {}
    # Interleaved, so that whatever else the machine does meets all of them.
    for _ in range(options.repeats):
        for name, run in runs.items():
            before = count.value
            result = run() | {"requests": count.value - before}
            if result["met"] != ITEMS * CRITERIA:
                raise SystemExit(f"{name}: {result['met']} of {ITEMS * CRITERIA} verdicts are right")
            if name not in best or result["seconds"] < best[name]["seconds"]:
                best[name] = result
    server.terminate()
    floor = ITEMS * CRITERIA * LATENCY / SLOTS
    print(f"the server alone needs {floor:.2f} s by criterion and {floor / CRITERIA:.2f} s by item")
    for name, result in best.items():
        rate = ITEMS * CRITERIA / result["seconds"]
        print(f"{name:28} {result['seconds']:6.2f} s  {rate:7.0f} verdicts/s  {result['requests']:5} requests")


if __name__ == "__main__":
    main()
