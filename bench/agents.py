"""The runs and figures of bench/agents, which see for how to start it."""

import argparse
import contextlib
import http.client
import itertools
import json
import statistics
import threading
import time
import urllib.request
from pathlib import Path

from context_policies import served

WRITE_FILE = {"path": {"type": "string"}, "content": {"type": "string"}}
MODES = ["insert", "replace"]
fresh = itertools.count()


def tool(name: str, properties: dict) -> dict:
    parameters = {"type": "object", "properties": properties, "required": list(properties)}
    return {"type": "function", "function": {"name": name, "description": name, "parameters": parameters}}


def some_tools(count: int, suffix: str) -> list[dict]:
    return [
        tool(f"tool_{i}", {f"path{suffix}": {"type": "string"}, "line": {"type": "integer"}, "mode": {"enum": MODES}})
        for i in range(count)
    ]


def chat(tools: list[dict], **fields: object) -> dict:
    return {"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": tools, **fields}


def whole_ms(url: str, body: dict) -> float:
    """Of an answer of one token, whatever it is: the same for all, and so comparable."""
    data = json.dumps({**body, "max_tokens": 1, "temperature": 0}).encode()
    begin = time.monotonic()
    with urllib.request.urlopen(
        urllib.request.Request(f"{url}/v1/chat/completions", data, {"content-type": "application/json"})
    ) as answer:
        answer.read()
    return 1000 * (time.monotonic() - begin)


def first_tokens(urls: dict[str, str], arguments: argparse.Namespace) -> None:
    """Answers of one token, the servers in turn; the prompts are equally long."""
    known = some_tools(arguments.tools, "_known")
    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(arguments.rounds):
        for name, url in urls.items():
            new = some_tools(arguments.tools, f"_{next(fresh):05}")
            for kind, body in {
                "auto, known": chat(known),
                "required, known": chat(known, tool_choice="required"),
                "auto, new": chat(new),
                "required, new": chat(some_tools(arguments.tools, f"_{next(fresh):05}"), tool_choice="required"),
            }.items():
                took.setdefault((kind, name), []).append(whole_ms(url, body))
    print(f"answers of one token with {arguments.tools} tools, ms, median of {arguments.rounds}")
    for kind in dict.fromkeys(kind for kind, _ in took):
        medians = {name: statistics.median(took[kind, name]) for name in urls}
        ratio = "" if len(urls) == 1 else f"  old/new {medians['old'] / medians['new']:.3f}"
        print(f"  {kind:16} " + "  ".join(f"{name} {ms:8.2f}" for name, ms in medians.items()) + ratio)


def stream(url: str, body: dict) -> tuple[list[float], int]:
    """When each event came, and how many tokens there were."""
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=600)
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
    connection.request("POST", "/v1/chat/completions", data, {"content-type": "application/json"})
    answer = connection.getresponse()
    times, count = [], 0
    for line in answer:
        if line.startswith(b"data: {"):
            times.append(time.monotonic())
            event = json.loads(line[6:])
            count = (event.get("usage") or {}).get("completion_tokens", count)
    connection.close()
    return times, count


def silence(url: str) -> None:
    """The longest argument of several: its longest silence, and the median gap of events."""
    tools = [tool("write_file", WRITE_FILE)]
    body = chat(tools, tool_choice="required", max_tokens=4000, temperature=1.5)
    runs = [stream(url, {**body, "seed": seed}) for seed in range(12)]
    times, tokens = max(runs, key=lambda run: run[1])
    gaps = [1000 * (b - a) for a, b in itertools.pairwise(times)]
    print(
        f"a call of {tokens} tokens: {len(times)} events, longest silence {max(gaps):.2f} ms, "
        f"median gap {statistics.median(gaps):.2f} ms"
    )


def tokens_a_second(url: str, body: dict, streams: int) -> float:
    counts: list[int] = []

    def run(seed: int) -> None:
        counts.append(stream(url, {**body, "seed": seed})[1])

    threads = [threading.Thread(target=run, args=(seed,)) for seed in range(streams)]
    begin = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts) / (time.monotonic() - begin)


def streams_in_calls(url: str, arguments: argparse.Namespace) -> None:
    """Numbers without end, as an argument and as text that is free: the same length for all."""
    numbers = tool("count", {"numbers": {"type": "array", "items": {"type": "integer"}}})
    length = {"max_tokens": 300, "temperature": 1.0}
    called = chat([numbers], tool_choice="required", **length)
    text = chat([numbers], tool_choice="none", ignore_eos=True, **length)
    rates: dict[str, list[float]] = {"calls": [], "text": []}
    for _ in range(5):
        rates["calls"].append(tokens_a_second(url, called, arguments.streams))
        rates["text"].append(tokens_a_second(url, text, arguments.streams))
    medians = {kind: statistics.median(rate) for kind, rate in rates.items()}
    print(
        f"{arguments.streams} streams: {medians['calls']:.0f} tokens a second in calls, {medians['text']:.0f} in text, "
        f"ratio {medians['calls'] / medians['text']:.3f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/agents")
    parser.add_argument("binary", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--old", type=Path)
    parser.add_argument("--tools", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    flags = ["--threads", str(arguments.threads), "--prefix-cache", "off"]
    with contextlib.ExitStack() as stack:
        urls = {"new": stack.enter_context(served(arguments.binary, arguments.model, *flags))}
        if arguments.old:
            urls["old"] = stack.enter_context(served(arguments.old, arguments.model, *flags))
        first_tokens(urls, arguments)
        silence(urls["new"])
        streams_in_calls(urls["new"], arguments)


if __name__ == "__main__":
    main()
