"""The runs and figures of bench/agents, which see for how to start it."""

import argparse
import contextlib
import http.client
import itertools
import json
import statistics
import threading
import time
from pathlib import Path

from context_policies import post, served

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


# Its content outlasts every max_tokens here.
LONG_FILE = tool("write_file", {f"part_{i}": {"type": "string", "minLength": 1500} for i in range(8)})


def chat(tools: list[dict], **fields: object) -> dict:
    return {"messages": [{"role": "user", "content": "What is the weather in Rome?"}], "tools": tools, **fields}


def whole_ms(url: str, body: dict, path: str = "chat/completions") -> float:
    """Of an answer of one token, whatever it is: the same for all, and so comparable."""
    begin = time.monotonic()
    post(f"{url}/v1/{path}", {**body, "max_tokens": 1, "temperature": 0})
    return 1000 * (time.monotonic() - begin)


def first_tokens(urls: dict[str, str], arguments: argparse.Namespace) -> None:
    """Answers of one token, the servers in turn, beside the same prompts as ids, with neither tools nor text."""
    known = some_tools(arguments.tools, "_known")
    took: dict[tuple[str, str], list[float]] = {}
    for _ in range(arguments.rounds):
        for name, url in urls.items():
            for age, mode in itertools.product(["known", "new"], ["ids", "auto", "required"]):
                tools = known if age == "known" else some_tools(arguments.tools, f"_{next(fresh):05}")
                body = chat(tools, tool_choice="auto" if mode == "ids" else mode)
                if mode == "ids":
                    ms = whole_ms(url, as_text(url, body), "completions")
                else:
                    ms = whole_ms(url, body)
                took.setdefault((f"{mode}, {age}", name), []).append(ms)
    print(f"answers of one token with {arguments.tools} tools, ms, least and median of {arguments.rounds}")
    for kind in dict.fromkeys(kind for kind, _ in took):
        medians = {name: statistics.median(took[kind, name]) for name in urls}
        ratio = "" if len(urls) == 1 else f"  old/new {medians['old'] / medians['new']:.3f}"
        print(
            f"  {kind:16} "
            + "  ".join(f"{name} {min(took[kind, name]):8.2f} {ms:8.2f}" for name, ms in medians.items())
            + ratio
        )


def as_text(url: str, body: dict) -> dict:
    """Free text behind the same prompt as the chat's, of the same length."""
    shown = {name: body[name] for name in ("messages", "tools")}
    fields = {name: value for name, value in body.items() if name not in (*shown, "tool_choice")}
    return {**fields, "prompt": post(f"{url}/tokenize", shown)["tokens"]}


def stream(url: str, body: dict) -> tuple[list[float], int]:
    """When each event came, and how many tokens there were."""
    host = url.removeprefix("http://")
    connection = http.client.HTTPConnection(host, timeout=600)
    data = json.dumps({**body, "stream": True, "stream_options": {"include_usage": True}})
    path = "/v1/completions" if "prompt" in body else "/v1/chat/completions"
    connection.request("POST", path, data, {"content-type": "application/json"})
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
    """A long argument and a text of the same length, in turn: the gaps between their events."""
    length = {"max_tokens": 4000, "temperature": 1.5, "ignore_eos": True}
    for seed, kind in itertools.product(range(2), ["a call", "text"]):
        called = chat([LONG_FILE], tool_choice="required", seed=seed, **length)
        times, tokens = stream(url, called if kind == "a call" else as_text(url, called))
        gaps = sorted(1000 * (b - a) for a, b in itertools.pairwise(times))
        print(
            f"{kind} of {tokens} tokens: {len(times)} events, gaps in ms: "
            f"longest {gaps[-1]:.2f}, 99 % {gaps[len(gaps) * 99 // 100]:.2f}, median {statistics.median(gaps):.2f}"
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
    """An argument that cannot end and text that is free: the same length for all."""
    length = {"max_tokens": 300, "temperature": 1.0, "ignore_eos": True}
    called = chat([LONG_FILE], tool_choice="required", **length)
    text = as_text(url, called)
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
