"""The runs and figures of bench/compare/second_turn, which see for how to start it."""

import argparse
import json
import random
import statistics
import tempfile
import time
import urllib.request
from pathlib import Path

from context_policies import served

NEW_TOKENS = 64  # of a second turn


def post(url: str, body: dict | None = None, method: str = "POST") -> dict:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"}, method=method)
    with urllib.request.urlopen(request, timeout=600) as answer:
        text = answer.read()
    return json.loads(text) if text else {}


def milliseconds(url: str, body: dict | None = None, method: str = "POST") -> tuple[float, dict]:
    begin = time.monotonic()
    answer = post(url, body, method)
    return 1000 * (time.monotonic() - begin), answer


def tokens(count: int) -> list[int]:
    return [random.randrange(300, 2000) for _ in range(count)]


def prefix_turns(url: str, arguments: argparse.Namespace) -> None:
    """Until the first token: of a prompt that nobody knows, and of the same with a little more."""
    first, second = [], []
    for _ in range(arguments.rounds):
        ids = tokens(arguments.tokens)
        body = {"prompt": ids, "max_tokens": 1, "ignore_eos": True}
        first.append(milliseconds(f"{url}/v1/completions", body)[0])
        took, answer = milliseconds(f"{url}/v1/completions", body | {"prompt": ids + tokens(NEW_TOKENS)})
        assert answer["usage"]["prompt_tokens_details"]["cached_tokens"] > arguments.tokens - 64, answer["usage"]
        second.append(took)
    ratio = statistics.median(b / a for a, b in zip(first, second, strict=True))
    print(f"prompt of {arguments.tokens} tokens: {statistics.median(first):.1f} ms until its first token")
    print(f"{NEW_TOKENS} tokens behind it: {statistics.median(second):.1f} ms, {ratio:.3f} times as long")


def session_turns(url: str, arguments: argparse.Namespace) -> None:
    saved, restored, found, anew = [], [], [], []
    for turn in range(arguments.rounds):
        name = f"turn-{turn}"
        ids = tokens(arguments.session_tokens)
        body = {"prompt": ids, "max_tokens": 1, "ignore_eos": True, "cache_salt": name}
        said = post(f"{url}/v1/completions", body | {"session": name, "return_token_ids": True})
        ids += said["choices"][0]["token_ids"]
        session = f"{url}/v1/sessions/{name}"
        saved.append(milliseconds(f"{session}/save")[0])
        post(session, method="DELETE")
        restored.append(milliseconds(f"{session}/restore")[0])
        ids += tokens(NEW_TOKENS)
        found.append(milliseconds(f"{url}/v1/completions", body | {"session": name, "prompt": ids})[0])
        post(session, method="DELETE")
        anew.append(milliseconds(f"{url}/v1/completions", body | {"prompt": ids, "cache_salt": f"{name}-anew"})[0])
    print(f"session of {arguments.session_tokens} tokens: saved in {statistics.median(saved):.1f} ms")
    print(f"restored in {statistics.median(restored):.1f} ms")
    print(f"its next turn: {statistics.median(found):.1f} ms; computed anew {statistics.median(anew):.1f} ms")


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/compare/second_turn")
    parser.add_argument("binary", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--tokens", type=int, default=3000)
    parser.add_argument("--session-tokens", type=int, default=6000)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--threads", type=int, default=1)
    arguments = parser.parse_args()
    random.seed(1)
    with tempfile.TemporaryDirectory() as folder:
        flags = ["--threads", str(arguments.threads), "--session-dir", folder]
        with served(arguments.binary, arguments.model, *flags) as url:
            prefix_turns(url, arguments)
            session_turns(url, arguments)


if __name__ == "__main__":
    main()
