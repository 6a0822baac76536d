"""The runs and the table of bench/compare/load_tools, which see for how to start it."""

import argparse
import dataclasses
import importlib.metadata
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path

TTFT_MS = 200  # of the scripted server
GAP_MS = 20
SCRIPTED_PROMPT_TOKENS = 7  # what its usage says of any prompt
TOKENIZER = "bytes"  # folder of one that takes a byte for a token
BYTES_OF_A_TOKEN = 3  # of breeze's, roughly
MOST = 0.02  # of what was measured, beyond which two tools differ
RUN_WITHIN = 180  # seconds
ATTEMPTS = 3  # of a comparison that must hold: a fault of a tool is in each, what else the machine did is not

Figures = dict[str, float]  # by metric, ms, means


def mean(values) -> float:
    values = list(values)
    if not values:
        raise RuntimeError("no request succeeded")
    return statistics.fmean(values)


# ---- the servers


class Server:
    """A program that says `ready {"http": ...}`, until it is stopped."""

    name = ""
    model = ""
    prompt = 0  # tokens of a prompt, roughly where it is text

    def __init__(self, command: list):
        self.log = tempfile.TemporaryFile("w+")
        words = [str(word) for word in command]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=self.log, text=True)
        word, _, rest = self.process.stdout.readline().partition(" ")
        if word != "ready":
            self.process.kill()
            self.log.seek(0)
            raise RuntimeError(f"{command[0]} is not ready: {self.log.read()}")
        self.url = "http://" + json.loads(rest)["http"]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(60)
        self.process.stdout.close()


class ScriptedServer(Server):
    """What it did is in a log that it writes when it ends: the truth, from the receipt of each request."""

    name = f"scripted, TTFT {TTFT_MS} ms, gap {GAP_MS} ms"
    model = "scripted"
    prompt = 64
    prompt_tokens = SCRIPTED_PROMPT_TOKENS

    def __init__(self, binaries: Path, folder: Path, tokens: int):
        self.path = folder / "log"
        self.tokens = tokens
        super().__init__(
            [binaries / "load_scripted_server", "--ttft-ms", TTFT_MS, "--gap-ms", GAP_MS, "--log", self.path]
        )

    def stop(self) -> Figures:
        super().stop()
        logs = [json.loads(line) for line in self.path.read_text().splitlines()]
        begun = [(log["received_ns"], log["content_ns"]) for log in logs]
        begun = [(received, content) for received, content in begun if len(content) == self.tokens]  # no tool's probes
        return {
            "ttft": mean((content[0] - received) / 1e6 for received, content in begun),
            "e2e": mean((content[-1] - received) / 1e6 for received, content in begun),
            "gap": mean((b - a) / 1e6 for _, content in begun for a, b in zip(content, content[1:])),
            "tpot": mean((content[-1] - content[0]) / 1e6 / (len(content) - 1) for _, content in begun),
        }


class TramontaneServer(Server):
    """`tramontane serve` with the embedded model; the truth is what its metrics say of the requests of a run."""

    name = "tramontane serve, breeze"
    model = "breeze"
    prompt = 6000  # for a TTFT like the scripted server's
    prompt_tokens = 0  # known when one has asked

    def __init__(self, binaries: Path, tokens: int):
        free = "127.0.0.1:0"
        super().__init__(
            [binaries / "tramontane", "serve", "--grpc-address", free, "--http-address", free, "--threads", "1"]
        )
        self.tokens = tokens

    def stop(self) -> Figures:
        with urllib.request.urlopen(self.url + "/metrics") as answer:
            lines = [line.split() for line in answer.read().decode().splitlines() if not line.startswith("#")]
        sums = {words[0].partition("{")[0]: float(words[-1]) for words in lines if len(words) > 1}
        super().stop()

        def mean_ms(histogram: str) -> float:
            return 1e3 * sums[f"vllm:{histogram}_seconds_sum"] / sums[f"vllm:{histogram}_seconds_count"]

        ttft, gap = mean_ms("time_to_first_token"), mean_ms("inter_token_latency")
        TramontaneServer.prompt_tokens = round(
            sums["vllm:prompt_tokens_total"] / sums["vllm:time_to_first_token_seconds_count"]
        )
        return {"ttft": ttft, "gap": gap, "tpot": gap, "e2e": ttft + gap * (self.tokens - 1)}


# ---- the tools


@dataclasses.dataclass
class Load:
    """A closed loop: so many requests, so many of them at once, answers of so many tokens."""

    requests: int
    streams: int
    tokens: int


@dataclasses.dataclass
class Place:
    """Where things are: our programs, an environment of Python for each tool, and a folder for what a run writes."""

    binaries: Path
    environments: Path
    folder: Path

    def program(self, tool: str) -> Path:
        return self.environments / tool / "bin" / tool


def run(command: list, place: Place, environment: dict | None = None) -> None:
    with open(place.folder / "said", "w+") as said:
        words = [str(word) for word in command]
        kept = {key: value for key, value in os.environ.items() if key != "HF_HUB_OFFLINE"}
        kept |= {"NO_PROXY": "127.0.0.1", "no_proxy": "127.0.0.1"} | (environment or {})
        ended = subprocess.run(words, stdout=said, stderr=said, cwd=place.folder, env=kept, timeout=RUN_WITHIN)
        if ended.returncode != 0:
            said.seek(0)
            raise RuntimeError(f"{words[0]} ended with {ended.returncode}: {said.read()[-2000:]}")


def run_ours(endpoint: str, server: Server, load: Load, place: Place) -> dict[str, Figures]:
    """Its latencies from a request's send, as all tools here begin; by the name of the definition."""
    lines = place.folder / "ours.jsonl"
    command = [place.binaries / "tramontane", "bench", "--target", server.url, "--model", server.model]
    command += ["--endpoint", endpoint, "--concurrency", load.streams, "--requests", load.requests]
    command += ["--prompt-tokens", server.prompt_tokens, "--output-tokens", load.tokens, "--jsonl", lines]
    run(command, place)
    records = [json.loads(line) for line in lines.read_text().splitlines()]
    records = [record for record in records if record["outcome"] == "ok"]
    if len(records) < load.requests:
        raise RuntimeError(f"tramontane bench: {len(records)} of {load.requests} requests succeeded")
    after_first = [record["output_tokens"] - 1 for record in records]
    return {
        "ttft_sent": mean(record["ttft_sent_ms"] for record in records),
        "e2el_sent": mean(record["e2el_ms"] - record["ttft_ms"] + record["ttft_sent_ms"] for record in records),
        "done": mean(record["done_ms"] for record in records),
        "headers": mean(record["headers_ms"] for record in records),
        "itl": mean(gap for record in records for gap in record["itl_ms"]),
        "tpot": mean(record["tpot_ms"] for record in records),
        "e2el of a token": mean(
            (record["e2el_ms"] - record["ttft_ms"] + record["ttft_sent_ms"]) / record["output_tokens"]
            for record in records
        ),
        "tpot to done": mean(
            (record["done_ms"] - record["ttft_sent_ms"]) / tokens for record, tokens in zip(records, after_first)
        ),
    }


def run_locust(server: Server, load: Load, place: Place) -> Figures:
    body = {"model": server.model, "prompt": [1300 + i % 700 for i in range(server.prompt)], "max_tokens": load.tokens}
    body |= {"stream": True, "ignore_eos": True, "stream_options": {"include_usage": True}}
    settings = {"path": "/v1/completions", "body": body, "requests": load.requests}
    if server.model == "scripted":
        del body["ignore_eos"]
    result = place.folder / "locust"
    command = [place.program("locust"), "-f", Path(__file__).with_name("locust_user.py"), "--headless", "--skip-log"]
    command += ["--users", load.streams, "--spawn-rate", load.streams, "--host", server.url, "--json-file", result]
    run([*command, "--run-time", RUN_WITHIN], place, {"TRAMONTANE_LOCUST": json.dumps(settings)})
    rows = {row["name"]: row for row in json.loads(result.with_suffix(".json").read_text())}
    if rows["ttft"]["num_requests"] != load.requests:
        raise RuntimeError(f"locust: {rows['ttft']['num_requests']} of {load.requests} requests succeeded")
    return {name: row["total_response_time"] / row["num_requests"] for name, row in rows.items()}


def make_tokenizer(tool: str, place: Place) -> Path:
    """A tokenizer's folder for tools that want one; the servers' usage is what they count by."""
    folder = place.environments / TOKENIZER
    if not (folder / "tokenizer.json").exists():
        code = (
            "import sys, tokenizers as t, transformers\n"
            "words = {word: id for id, word in enumerate(sorted(t.pre_tokenizers.ByteLevel.alphabet()) + ['</s>'])}\n"
            "one = t.Tokenizer(t.models.BPE(vocab=words, merges=[]))\n"
            "one.pre_tokenizer = t.pre_tokenizers.ByteLevel(add_prefix_space=False)\n"
            "one.decoder = t.decoders.ByteLevel()\n"
            "fast = transformers.PreTrainedTokenizerFast(tokenizer_object=one, eos_token='</s>')\n"
            "fast.save_pretrained(sys.argv[1])\n"
        )
        run([place.environments / tool / "bin/python", "-c", code, folder], place)
    return folder


def run_aiperf(server: Server, load: Load, place: Place) -> Figures:
    command = [place.program("aiperf"), "profile", "-m", server.model, "--url", server.url, "--endpoint-type", "chat"]
    command += ["--streaming", "--tokenizer", make_tokenizer("aiperf", place), "--use-server-token-count"]
    command += ["--concurrency", load.streams, "--request-count", load.requests, "--workers-max", 1]
    command += ["--warmup-request-count", load.streams]
    command += ["--synthetic-input-tokens-mean", server.prompt * BYTES_OF_A_TOKEN]
    command += ["--synthetic-input-tokens-stddev", 0]
    command += ["--output-tokens-mean", load.tokens, "--output-tokens-stddev", 0, "--extra-inputs", "ignore_eos:true"]
    command += ["--artifact-dir", place.folder / "aiperf", "--ui", "none", "--no-server-metrics", "--no-gpu-telemetry"]
    run(command, place)
    result = json.loads(next(place.folder.glob("aiperf/**/profile_export_aiperf.json")).read_text())
    if result["request_count"]["avg"] != load.requests:
        raise RuntimeError(f"aiperf: {result['request_count']['avg']} of {load.requests} requests succeeded")
    names = ("time_to_first_token", "request_latency", "inter_token_latency", "inter_chunk_latency")
    return {name: result[name]["avg"] for name in names if name in result}


def run_genai_bench(server: Server, load: Load, place: Place) -> Figures:
    command = [place.program("genai-bench"), "benchmark", "--api-backend", "vllm", "--api-base", server.url]
    command += ["--api-key", "none", "--api-model-name", server.model, "--task", "text-to-text"]
    command += ["--model-tokenizer", make_tokenizer("genai-bench", place)]
    command += ["--traffic-scenario", f"D({server.prompt * BYTES_OF_A_TOKEN},{load.tokens})"]
    command += ["--num-concurrency", load.streams, "--max-requests-per-run", load.requests, "--max-time-per-run", 5]
    command += ["--experiment-base-dir", place.folder / "genai"]
    run(command, place)
    for path in place.folder.glob("genai/**/*.json"):
        result = json.loads(path.read_text())
        if "aggregated_metrics" in result:
            stats = result["aggregated_metrics"]["stats"]
            return {name: 1e3 * stats[name]["mean"] for name in ("ttft", "e2e_latency", "tpot")}
    raise RuntimeError("genai-bench wrote no metrics")


def run_guidellm(server: Server, load: Load, place: Place) -> Figures:
    result = place.folder / "guidellm.json"
    backend = f"kind=openai_http,target={server.url},model={server.model},validate_backend=false"
    command = [place.program("guidellm"), "run", "--backend", backend, "--disable-console"]
    command += ["--profile", f"kind=concurrent,streams={load.streams}"]
    command += ["--constraint", f"kind=max_requests,count={load.requests}"]
    command += ["--tokenizer", f"kind=hf_auto,model={make_tokenizer('guidellm', place)}"]
    sizes = f"prompt_tokens={server.prompt * BYTES_OF_A_TOKEN},output_tokens={load.tokens}"
    command += ["--data", f"kind=synthetic_text,{sizes}", "--output", f"kind=json,path={result}"]
    run(command, place)
    metrics = json.loads(result.read_text())["benchmarks"][0]["metrics"]
    means = {name: metrics[name]["successful"] for name in GUIDELLM_SCALES}
    if means["time_to_first_token_ms"]["count"] != load.requests:
        raise RuntimeError(f"guidellm: {means['time_to_first_token_ms']['count']} of {load.requests} requests succeeded")
    return {name: scale * means[name]["mean"] for name, scale in GUIDELLM_SCALES.items()}


# Of its figures, to ms.
GUIDELLM_SCALES = {
    "time_to_first_token_ms": 1,
    "inter_token_latency_ms": 1,
    "time_per_output_token_ms": 1,
    "request_latency": 1e3,
}


@dataclasses.dataclass
class Row:
    """A figure of a tool, what ours calls the same, and what the server knows of it: None where it knows nothing."""

    theirs: str
    ours: str
    truth: str | None


@dataclasses.dataclass
class Tool:
    endpoint: str
    run: Callable[[Server, Load, Place], Figures]
    rows: list[Row]


TOOLS = {
    "locust": Tool(
        "completions",
        run_locust,
        [
            Row("ttft", "ttft_sent", "ttft"),
            Row("gap", "itl", "gap"),
            Row("e2e", "e2el_sent", "e2e"),
            Row("/v1/completions", "headers", None),
        ],
    ),
    "aiperf": Tool(
        "chat",
        run_aiperf,
        [
            Row("time_to_first_token", "ttft_sent", "ttft"),
            Row("inter_chunk_latency", "itl", "gap"),
            Row("inter_token_latency", "tpot", "tpot"),
            Row("request_latency", "e2el_sent", "e2e"),
        ],
    ),
    "genai-bench": Tool(
        "chat",
        run_genai_bench,
        [
            Row("ttft", "ttft_sent", "ttft"),
            Row("tpot", "tpot to done", "tpot"),
            Row("e2e_latency", "done", "e2e"),
        ],
    ),
    "guidellm": Tool(
        "chat",
        run_guidellm,
        [
            Row("time_to_first_token_ms", "ttft_sent", "ttft"),
            Row("inter_token_latency_ms", "tpot", "tpot"),
            Row("time_per_output_token_ms", "e2el of a token", None),
            Row("request_latency", "done", "e2e"),
        ],
    ),
}
DEFAULT_TOOLS = "locust,aiperf,genai-bench"


def version_of(tool: str, place: Place) -> str:
    site = next((place.environments / tool / "lib").glob("python3*/site-packages"))
    found = importlib.metadata.distributions(path=[str(site)])
    return next(one.version for one in found if one.name.replace("_", "-") == tool)


# ---- the comparison


class Sleeper:
    """A thread that only sleeps; its noise is what this machine adds to any time."""

    def __init__(self):
        self.late_ms: list[float] = []
        self.ends = threading.Event()
        self.thread = threading.Thread(target=self.sleep)
        self.thread.start()

    def sleep(self) -> None:
        while not self.ends.is_set():
            begin = time.perf_counter()
            time.sleep(0.005)
            self.late_ms.append((time.perf_counter() - begin - 0.005) * 1e3)

    def p99(self) -> float:
        self.ends.set()
        self.thread.join()
        return statistics.quantiles(self.late_ms, n=100)[-1]


def start(name: str, load: Load, place: Place) -> Server:
    if name == "scripted":
        return ScriptedServer(place.binaries, place.folder, load.tokens)
    return TramontaneServer(place.binaries, load.tokens)


def one_run(name: str, load: Load, place: Place, ask: Callable[[Server], Figures]) -> tuple[Figures, Figures]:
    """What a tool says of a server that is its alone, and what the server says."""
    server = start(name, load, place)
    try:
        figures = ask(server)
    except BaseException:
        server.process.kill()
        raise
    return figures, server.stop()


def compare(name: str, server: str, load: Load, place: Place) -> tuple[list[str], bool]:
    """Rows of the table, and whether no figure is too far from ours."""
    tool = TOOLS[name]
    sleeper = Sleeper()
    try:
        theirs, their_truth = one_run(server, load, place, lambda it: tool.run(it, load, place))
        ours, our_truth = one_run(server, load, place, lambda it: run_ours(tool.endpoint, it, load, place))
    finally:
        noise = sleeper.p99()
    holds = True
    lines = []
    for row in tool.rows:
        if row.theirs not in theirs:
            continue
        cells = [f"{name}: {row.theirs}", f"{theirs[row.theirs]:.2f}"]
        if row.truth is None:
            cells += ["", f"`{row.ours}`", f"{ours[row.ours]:.2f}", "", "", ""]
        else:
            their_rest = theirs[row.theirs] - their_truth[row.truth]
            our_rest = ours[row.ours] - our_truth[row.truth]
            apart = (their_rest - our_rest) / our_truth[row.truth]
            within = abs(their_rest - our_rest) <= MOST * our_truth[row.truth] + noise
            holds = holds and within
            cells += [f"{their_truth[row.truth]:.2f}", f"`{row.ours}`", f"{ours[row.ours]:.2f}"]
            cells += [f"{our_truth[row.truth]:.2f}", f"{100 * apart:+.2f} %", "" if within else "BEYOND"]
        lines.append("| " + " | ".join(cells) + " |")
    lines.append(f"| {name}: a thread that only sleeps, p99 | {noise:.2f} | | | | | | |")
    return lines, holds


def compare_until_it_holds(
    name: str, server: str, load: Load, binaries: Path, environments: Path, attempts: int
) -> bool:
    """Prints the last attempt: the first that holds."""
    for attempt in range(attempts):
        with tempfile.TemporaryDirectory() as folder:
            place = Place(binaries.absolute(), environments.absolute(), Path(folder))
            try:
                lines, holds = compare(name, server, load, place)
            except (RuntimeError, subprocess.TimeoutExpired) as error:
                lines, holds = [f"| {name}: {error} |"], False
        if holds or attempt + 1 == attempts:
            print("\n".join(lines), flush=True)
            return holds
    return False


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("binaries", type=Path)
    parser.add_argument("environments", type=Path)
    parser.add_argument("--tools", default=DEFAULT_TOOLS)
    parser.add_argument("--servers", default="scripted,tramontane")
    parser.add_argument("--requests", type=int, default=40)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--strict", action="store_true", help="fail where a figure differs by more than 2 % and noise")
    arguments = parser.parse_args()
    load = Load(arguments.requests, arguments.streams, arguments.tokens)
    holds = True
    for server in arguments.servers.split(","):
        kind = ScriptedServer if server == "scripted" else TramontaneServer
        shape = f"{load.requests} requests, {load.streams} at once, answers of {load.tokens} tokens"
        print(f"\n{kind.name}; {shape}; means, ms\n")
        print("| figure | it says | server's own | ours | says | server's own | apart | |\n" + "|---" * 8 + "|")
        for tool in arguments.tools.split(","):
            attempts = ATTEMPTS if arguments.strict else 1
            one = compare_until_it_holds(tool, server, load, arguments.binaries, arguments.environments, attempts)
            holds = one and holds
    place = Place(arguments.binaries, arguments.environments, Path())
    print("\n" + ", ".join(f"{tool} {version_of(tool, place)}" for tool in arguments.tools.split(",")))
    return 1 if arguments.strict and not holds else 0


if __name__ == "__main__":
    sys.exit(main())
