"""The runs, tables and picture of bench/compare/context_policies, which see for how to start it."""

import argparse
import concurrent.futures
import contextlib
import json
import re
import statistics
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PART = 1000  # tokens of one figure of loss
COLOURS = ("#888888", "#d62728", "#1f77b4", "#2ca02c", "#9467bd")


@contextlib.contextmanager
def started(binary: Path, model: str, *flags: str) -> Iterator[dict]:
    """A server of the model on ports of its own, as the addresses of its doors: `http` and `grpc`."""
    command = [str(binary), "serve", *([model] if model else []), "--device", "cpu"]
    command += ["--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0", *flags]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        yield json.loads(server.stdout.readline().partition(" ")[2])
    finally:
        server.terminate()
        server.wait()


@contextlib.contextmanager
def served(binary: Path, model: str, *flags: str) -> Iterator[str]:
    """The same, as the URL of its HTTP door."""
    with started(binary, model, *flags) as ready:
        yield f"http://{ready['http']}"


def post(url: str, body: dict) -> dict:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=3600) as answer:
        return json.load(answer)


def losses(url: str, ids: list[int], policy: dict) -> list[float]:
    """Of each id but the first, given what the policy lets its row see; nats."""
    body = {"prompt": ids, "max_tokens": 0, "prompt_logprobs": 0, "context_policy": policy}
    scored = post(f"{url}/v1/completions", body)["choices"][0]["prompt_logprobs"]
    return [-entry[str(token)]["logprob"] for token, entry in zip(ids[1:], scored[1:], strict=True)]


def losses_of_reevaluation(url: str, ids: list[int], policy: dict) -> list[float]:
    """The same where rows between two discards are those of a fresh prompt of the tokens left."""
    n_ctx, n_keep, n_discard = policy["n_ctx"], policy["n_keep"], policy["n_discard"]
    found = losses(url, ids[:n_ctx], {"type": "none"})
    discarded = n_discard
    while len(found) + 1 < len(ids):
        held = ids[:n_keep] + ids[n_keep + discarded : n_ctx + discarded]
        fresh = losses(url, held, {"type": "none"})
        found += fresh[n_ctx - 1 - n_discard :]
        discarded += n_discard
    return found[: len(ids) - 1]


def parts_of(values: list[float]) -> list[float]:
    return [statistics.fmean(values[at : at + PART]) for at in range(0, len(values) - PART // 2, PART)]


def policies(n_ctx: int, n_keep: int) -> dict[str, dict]:
    return {
        "whole context": {"type": "none"},
        "window alone": {"type": "sinks", "n_ctx": n_ctx, "n_keep": 0},
        "`sinks`": {"type": "sinks", "n_ctx": n_ctx, "n_keep": n_keep},
        "`shift`": {"type": "shift", "n_ctx": n_ctx, "n_keep": n_keep, "n_discard": 1},
        "`reevaluate`": {
            "type": "reevaluate",
            "n_ctx": n_ctx,
            "n_keep": n_keep,
            "n_discard": (n_ctx - n_keep) // 2,
        },
    }


def measure_loss(url: str, arguments: argparse.Namespace) -> dict[str, list[float]]:
    text = Path(arguments.text).read_text(encoding="utf-8")
    ids = post(f"{url}/tokenize", {"prompt": text})["tokens"]
    ids = (ids * (arguments.tokens // len(ids) + 1))[: arguments.tokens]
    found = {}
    for name, policy in policies(arguments.n_ctx, arguments.n_keep).items():
        score = losses_of_reevaluation if policy["type"] == "reevaluate" else losses
        try:
            found[name] = parts_of(score(url, ids, policy))
        except urllib.error.HTTPError as error:
            print(f"{name}: {json.load(error)['error']['message']}", flush=True)
    return found


def print_loss(found: dict[str, list[float]]) -> None:
    parts = max(len(values) for values in found.values())
    shown = sorted({0, 1, 2, 4, 9, 14, parts - 1} & set(range(parts)))
    print("| Loss of thousand | " + " | ".join(f"{part + 1}." for part in shown) + " | all |")
    print("|---" * (len(shown) + 2) + "|")
    for name, values in found.items():
        cells = [f"{values[part]:.3f}" for part in shown] + [f"{statistics.fmean(values):.3f}"]
        print(f"| {name} | " + " | ".join(cells) + " |")


def measure_speed(url: str, arguments: argparse.Namespace) -> None:
    speeds: dict[str, list[float]] = {}
    prompt = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True}
    for turn in range(arguments.rounds + 1):
        for name, policy in policies(arguments.n_ctx, arguments.n_keep).items():
            body = prompt | {"max_tokens": 4 * arguments.n_ctx, "context_policy": policy, "cache_salt": str(turn)}
            begin = time.monotonic()
            usage = post(f"{url}/v1/completions", body)["usage"]
            seconds = time.monotonic() - begin
            if turn > 0:  # the first warms
                speeds.setdefault(name, []).append(usage["completion_tokens"] / seconds)
    base = speeds["whole context"]
    print("| | tokens/s | ratio |\n|---|---|---|")
    for name, values in speeds.items():
        ratio = statistics.median(value / of for value, of in zip(values, base, strict=True))
        print(f"| {name} | {statistics.median(values):.0f} | {ratio:.2f} |")


def held_pages(url: str) -> int:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        page = answer.read().decode()
    return sum(int(float(held)) for held in re.findall(r'tramontane_kv_pages{[^}]*state="held"[^}]*} (\S+)', page))


def measure_pages(url: str, arguments: argparse.Namespace) -> None:
    """The most that one text holds, of those seen while it is written."""
    print("| | pages held |\n|---|---|")
    for name, policy in policies(arguments.n_ctx, arguments.n_keep).items():
        body = {"prompt": "Once upon a time", "temperature": 0, "ignore_eos": True, "max_tokens": 4 * arguments.n_ctx}
        with concurrent.futures.ThreadPoolExecutor(1) as pool:
            text = pool.submit(post, f"{url}/v1/completions", body | {"context_policy": policy, "cache_salt": name})
            most = 0
            while not text.done():
                most = max(most, held_pages(url))
                time.sleep(0.01)
            text.result()
        print(f"| {name} | {most} |", flush=True)


def draw(found: dict[str, list[float]], title: str) -> str:
    """Loss by thousands of tokens, one line a policy."""
    width, height, left, top, right, bottom = 640, 300, 50, 30, 130, 36
    low = min(min(values) for values in found.values())
    high = max(max(values) for values in found.values())
    count = max(len(values) for values in found.values())

    def place(part: int, value: float) -> str:
        x = left + (width - left - right) * part / max(count - 1, 1)
        y = top + (height - top - bottom) * (high - value) / max(high - low, 1e-9)
        return f"{x:.1f},{y:.1f}"

    lines = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif">']
    lines += [f'<rect width="{width}" height="{height}" fill="white"/>']
    lines += [f'<text x="{left}" y="18" font-size="13">{title}</text>']
    for value in (low, (low + high) / 2, high):
        y = place(0, value).partition(",")[2]
        lines += [f'<line x1="{left}" x2="{width - right}" y1="{y}" y2="{y}" stroke="#ddd"/>']
        lines += [f'<text x="{left - 6}" y="{y}" font-size="11" text-anchor="end">{value:.2f}</text>']
    for part in range(0, count, 5):
        x = place(part, low).partition(",")[0]
        lines += [f'<text x="{x}" y="{height - 14}" font-size="11" text-anchor="middle">{part},000</text>']
    for (name, values), colour in zip(found.items(), COLOURS, strict=False):
        points = " ".join(place(part, value) for part, value in enumerate(values))
        lines += [f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1.6"/>']
        row = list(found).index(name)
        x, y = width - right + 10, top + 14 + 18 * row
        lines += [f'<text x="{x}" y="{y}" font-size="12" fill="{colour}">{name.replace("`", "")}</text>']
    return "\n".join([*lines, "</svg>", ""])


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/compare/context_policies")
    parser.add_argument("binary", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--text", default=str(ROOT / "bench/texts/stories.txt"))
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--n-ctx", type=int, default=512)
    parser.add_argument("--n-keep", type=int, default=4)
    parser.add_argument("--only", choices=("loss", "speed", "pages"))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--svg", type=Path)
    arguments = parser.parse_args()
    with served(arguments.binary, arguments.model, "--max-sequences", "4") as url:
        if arguments.only in (None, "loss"):
            found = measure_loss(url, arguments)
            print_loss(found)
            if arguments.svg:
                arguments.svg.write_text(draw(found, f"Loss by place in the text, n_ctx {arguments.n_ctx}"))
        if arguments.only in (None, "speed"):
            measure_speed(url, arguments)
        if arguments.only in (None, "pages"):
            measure_pages(url, arguments)


if __name__ == "__main__":
    main()
