"""The runs and the tables of bench/compare/llama, which see for how to start it."""

import argparse
import concurrent.futures
import contextlib
import json
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import gguf
import numpy

# name: layers, width, heads, key and value heads, feed-forward, vocabulary, one matrix for embedding and logits
SHAPES = {"1.1b": (22, 2048, 32, 4, 5632, 32000, False), "135m": (30, 576, 9, 3, 1536, 32000, True)}
CONTEXT = 4096  # tokens, of all streams together
STREAMS = 32
FIRST_WORD = 300  # ids from here on are words
STARTS_WITHIN = 300  # seconds
ANSWERS_WITHIN = 1800  # seconds, to the next byte


# ---- the weights


def add_vocabulary(writer: gguf.GGUFWriter, words: int) -> None:
    """Bytes and made-up words, as SentencePiece's."""
    writer.add_tokenizer_model("llama")
    pieces = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    pieces += [f"\u2581word{number}" for number in range(len(pieces), words)]
    writer.add_token_list(pieces)
    writer.add_token_scores([-float(id) for id in range(words)])
    writer.add_token_types([2, 3, 3] + [6] * 256 + [1] * (words - 259))
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)


def write_bf16(shape: str, path: Path) -> None:
    """Random weights of the shape around a vocabulary of made-up words, one layer of them in memory at a time."""
    layers, width, heads, kv_heads, hidden, words, tied = SHAPES[shape]
    writer = gguf.GGUFWriter(str(path) + ".part", "llama", use_temp_file=True)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(width)
    writer.add_block_count(layers)
    writer.add_feed_forward_length(hidden)
    writer.add_head_count(heads)
    writer.add_head_count_kv(kv_heads)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // heads)
    writer.add_vocab_size(words)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_BF16)
    add_vocabulary(writer, words)
    rng = numpy.random.default_rng(1)

    def add(name: str, *shape: int) -> None:
        if len(shape) == 1:
            writer.add_tensor(name + ".weight", numpy.ones(shape, numpy.float32))
            return
        values = rng.standard_normal(shape, numpy.float32) * 0.02
        stored = gguf.quants.quantize(values, gguf.GGMLQuantizationType.BF16)
        writer.add_tensor(name + ".weight", stored, raw_dtype=gguf.GGMLQuantizationType.BF16)

    add("token_embd", words, width)
    add("output_norm", width)
    if not tied:
        add("output", words, width)
    kv_width = width // heads * kv_heads
    for layer in range(layers):
        block = f"blk.{layer}."
        add(block + "attn_norm", width)
        add(block + "ffn_norm", width)
        add(block + "attn_q", width, width)
        add(block + "attn_k", kv_width, width)
        add(block + "attn_v", kv_width, width)
        add(block + "attn_output", width, width)
        add(block + "ffn_gate", hidden, width)
        add(block + "ffn_up", hidden, width)
        add(block + "ffn_down", width, hidden)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    Path(str(path) + ".part").rename(path)


def model_file(kept: Path, shape: str, format: str) -> Path:
    folder = kept / "models"
    folder.mkdir(exist_ok=True)
    base = folder / f"{shape}-bf16.gguf"
    if not base.exists():
        write_bf16(shape, base)
    path = folder / f"{shape}-{format}.gguf"
    if not path.exists():
        part = path.with_suffix(".part")
        command = [kept / "build/bin/llama-quantize", base, part, format]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        part.rename(path)
    return path


def bytes_per_token(path: Path) -> int:
    """What decode has to read at an empty context: every matrix once; of an embedding of its own a row."""
    tensors = gguf.GGUFReader(path).tensors
    has_output = any(tensor.name == "output.weight" for tensor in tensors)
    return sum(int(t.n_bytes) for t in tensors if not (has_output and t.name == "token_embd.weight"))


# ---- the bound


class PlainRead:
    """The speed at which this machine reads memory from one end to the other."""

    def __init__(self):
        self.data = numpy.ones(1 << 27, numpy.uint64)  # 1 GiB

    def gigabytes_per_second(self, threads: int) -> float:
        parts = numpy.array_split(self.data, threads)
        with concurrent.futures.ThreadPoolExecutor(threads) as pool:
            best = 0.0
            for _ in range(3):
                begin = time.perf_counter()
                list(pool.map(numpy.bitwise_or.reduce, parts))
                best = max(best, self.data.nbytes / (time.perf_counter() - begin) / 1e9)
        return best


# ---- the programs


class Program:
    """A server on a model, until it is stopped. `system` is what it says of the machine."""

    def __init__(self, name: str, command: list, url: str | None = None):
        self.name = name
        self.log = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen([str(word) for word in command], stdout=subprocess.PIPE if url is None else self.log,
                                        stderr=self.log, text=True)  # fmt: skip
        try:
            self.url = url or self.url_of_ready_line()
            self.wait_until_it_answers()
        except Exception:
            self.stop()
            raise
        self.system = ""

    def said(self) -> str:
        self.log.flush()
        self.log.seek(0)
        return self.log.read()

    def url_of_ready_line(self) -> str:
        word, _, rest = self.process.stdout.readline().partition(" ")
        if word != "ready":
            self.process.wait(10)
            raise RuntimeError(f"{self.name}: {self.said().strip().splitlines()[-1]}")
        return "http://" + json.loads(rest)["http"]

    def wait_until_it_answers(self) -> None:
        end = time.monotonic() + STARTS_WITHIN
        while True:
            with contextlib.suppress(OSError):
                if urllib.request.urlopen(self.url + "/health", timeout=5).status == 200:
                    return
            if self.process.poll() is not None or time.monotonic() > end:
                raise RuntimeError(f"{self.name}: {self.said().strip().splitlines()[-1]}")
            time.sleep(0.1)

    def stop(self) -> None:
        self.process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(20)
        self.process.kill()
        self.log.close()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def ours(name: str, binary: str, model: Path, threads: int, flags: list[str]) -> Program:
    command = [binary, "serve", model, "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    command += ["--threads", threads, "--max-sequences", STREAMS, "--context", CONTEXT, *flags]
    program = Program(name, command)
    found = re.search(r"cpu \([^)]*\)", program.said())
    program.system = found.group(0) if found else "see its log"
    return program


def native(kept: Path, model: Path, threads: int) -> Program:
    port = free_port()
    command = [
        kept / "build/bin/llama-server",
        "-m",
        model,
        "-t",
        threads,
        "-tb",
        threads,
        "-c",
        CONTEXT,
        "-np",
        STREAMS,
    ]
    command += ["--kv-unified", "--host", "127.0.0.1", "--port", port, "--no-webui"]
    program = Program("llama.cpp, native", command, f"http://127.0.0.1:{port}")
    # Told only with more words than a timed server should write, so by another, which finds no file.
    told = subprocess.run([command[0], "-m", "/none.gguf", "-t", str(threads), "-lv", "4"], capture_output=True, text=True)
    program.system = re.search(r"system_info:.*", told.stdout + told.stderr).group(0).rstrip(" |")
    return program


def wheel(kept: Path, model: Path, threads: int) -> Program:
    port = free_port()
    command = [sys.executable, __file__, "--serve-wheel", model, threads, port]
    program = Program("llama.cpp, wheel", command, f"http://127.0.0.1:{port}")
    program.system = subprocess.run(
        [sys.executable, "-c", "import xllamacpp; print(xllamacpp.get_system_info())"], capture_output=True, text=True
    ).stdout.strip()
    return program


def serve_wheel(model: str, threads: str, port: str) -> None:
    import xllamacpp

    parameters = xllamacpp.CommonParams()
    parameters.model.path = model
    parameters.n_ctx = CONTEXT
    parameters.n_parallel = STREAMS
    parameters.kv_unified = True
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = int(threads)
    parameters.port = int(port)
    server = xllamacpp.Server(parameters)  # lives as long as this process
    print(server.listening_address, flush=True)
    while True:
        time.sleep(3600)


INT8 = ["--linear", "int8"]  # as llama.cpp multiplies
# name: what ours is called beside it, with which flags, and what starts the peer, which the tables call by its function
PEERS = {
    "native": ("Tramontane", INT8, native),
    "vnni": ("Tramontane, avx512_vnni", [*INT8, "--cpu-variant", "avx512_vnni"], native),
    "wheel": ("Tramontane, avx2", [*INT8, "--cpu-variant", "avx2"], wheel),
    "exact": ("Tramontane, exact", ["--linear", "exact"], native),
}


def pairs_of(peers: str) -> list[tuple]:
    """Of a list with commas: ours and its flags, the peer's name and what starts it."""
    pairs = []
    for peer in peers.split(","):
        if peer not in PEERS:
            raise argparse.ArgumentTypeError(f"{peer!r} is none of {', '.join(PEERS)}")
        name, flags, start = PEERS[peer]
        pairs.append((name, flags, f"llama.cpp, {start.__name__}", start))
    return pairs


# ---- the requests


def stream(program: Program, prompt: list[int], tokens: int) -> tuple[float, float, float]:
    """When a completion was asked for, and when its first and its last token came."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "stream": True, "ignore_eos": True}
    if "llama" in program.name:
        body["cache_prompt"] = False
    request = urllib.request.Request(
        program.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    begin = time.perf_counter()
    times = []
    with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN) as answer:
        for line in answer:
            if line.startswith(b"data: {") and b'"choices"' in line:
                times.append(time.perf_counter())
    if not times:
        raise RuntimeError(f"{program.name}: nothing was said")
    return begin, times[0], times[-1]


def words(rng: random.Random, count: int) -> list[int]:
    return [1] + [rng.randint(FIRST_WORD, 31000) for _ in range(count - 1)]


def prefill(program, rng):
    begin, first, _ = stream(program, words(rng, 512), 1)
    return 512 / (first - begin)


def decode(program, rng, context, tokens):
    _, first, last = stream(program, words(rng, context), tokens)
    return (tokens - 1) / (last - first)


def crowd(program, rng, streams, context, tokens):
    """Tokens said in all, by the time from the first request to the last token."""
    prompts = [words(rng, context) for _ in range(streams)]
    with concurrent.futures.ThreadPoolExecutor(streams) as pool:
        runs = list(pool.map(lambda prompt: stream(program, prompt, tokens), prompts))
    return streams * tokens / (max(run[2] for run in runs) - min(run[0] for run in runs))


ROWS = [
    ("prefill of 512", prefill),
    ("decode, 1 stream, at 16", lambda program, rng: decode(program, rng, 16, 48)),
    ("decode, 1 stream, at 1,500", lambda program, rng: decode(program, rng, 1500, 32)),
    ("8 streams (64 + 32)", lambda program, rng: crowd(program, rng, 8, 64, 32)),
    ("32 streams (32 + 32)", lambda program, rng: crowd(program, rng, 32, 32, 32)),
]


# ---- the tables


def measure(programs: list[Program], threads: int, rounds: int, read: PlainRead) -> tuple[dict, float]:
    """Tokens/s by row and program, each the median of its rounds, in which the programs take turns; and the plain read."""
    rng = random.Random(1)
    figures: dict = {}
    speeds = []
    for program in programs:
        decode(program, rng, 16, 8)  # warm
    for _ in range(rounds):
        speeds.append(read.gigabytes_per_second(threads))
        for name, run in ROWS:
            for program in programs:
                figures.setdefault((name, program.name), []).append(run(program, rng))
    return {key: statistics.median(values) for key, values in figures.items()}, statistics.median(speeds)


def compare(arguments, threads: int, read: PlainRead) -> None:
    print(
        f"\n## {threads} thread{'s' if threads > 1 else ''}, {arguments.shape}, tokens/s, median of {arguments.rounds}\n"
    )
    header = "| format | row | bound of one read |"
    for name, _, theirs, _ in arguments.peers:
        header += f" {name} | {theirs} | ratio |"
    print(header + "\n" + "|---" * (header.count("|") - 1) + "|", flush=True)
    systems = {}
    for format in arguments.formats.split(","):
        model = model_file(arguments.kept, arguments.shape, format)
        programs: dict[str, Program] = {}  # one of each: of two peers the same program may stand in both pairs
        try:
            for name, flags, theirs, start in arguments.peers:
                if name not in programs:
                    programs[name] = ours(name, arguments.binary, model, threads, flags)
                if theirs not in programs:
                    programs[theirs] = start(arguments.kept, model, threads)
            figures, speed = measure(list(programs.values()), threads, arguments.rounds, read)
        except RuntimeError as error:
            print(f"| {format} | {error} |", flush=True)
            continue
        finally:
            for program in programs.values():
                program.stop()
        systems |= {name: program.system for name, program in programs.items()}
        bound = speed * 1e9 / bytes_per_token(model)
        for row, _ in ROWS:
            cells = [f"{bound:.1f} ({speed:.1f} GB/s)" if row.startswith("decode") else ""]
            for pair in arguments.peers:
                mine, theirs = figures[row, pair[0]], figures[row, pair[2]]
                cells += [f"{mine:.1f}", f"{theirs:.1f}", f"{mine / theirs:.2f}"]
            print(f"| {format} | {row} | " + " | ".join(cells) + " |", flush=True)
    print("\n" + "\n".join(f"{name}: {system}" for name, system in systems.items()), flush=True)


# ---- the same arrivals


# What a person who waits feels, as the load tool names it.
FELT = [("TTFT, median", "median_ttft_ms"), ("TTFT, p99", "p99_ttft_ms"), ("ITL, median", "median_itl_ms"), ("ITL, p99", "p99_itl_ms")]


def same_arrivals(arguments, threads: int, format: str) -> None:
    """By rate, what the load tool finds on both in alternating slices of one run (--ab): its ratio is theirs by ours."""
    model = model_file(arguments.kept, arguments.shape, format)
    programs = [ours("Tramontane", arguments.binary, model, threads, INT8), native(arguments.kept, model, threads)]
    try:
        for program in programs:
            decode(program, random.Random(1), 16, 8)  # warm
        print(f"\n## {format}, {arguments.shape}, {threads} thread{'s' if threads > 1 else ''}: the same arrivals, ms\n")
        print("| requests a second | | Tramontane | llama.cpp | theirs by ours, 95 % |\n|---|---|---|---|---|", flush=True)
        for rate in arguments.arrivals.split(","):
            with tempfile.NamedTemporaryFile() as report:
                command = [arguments.binary, "bench", "--target", programs[0].url, "--ab", programs[1].url]
                command += ["--rate", rate, "--requests", arguments.requests, "--seed", 1, "--json", report.name]
                command += ["--prompt-tokens", arguments.prompt_tokens, "--output-tokens", arguments.output_tokens]
                command += ["--token-ids", f"{FIRST_WORD}:31000", "--drain", ANSWERS_WITHIN, "--timeout", ANSWERS_WITHIN]
                command += ["--extra-body", '{"temperature": 0}']
                subprocess.run([str(word) for word in command], check=True, stdout=subprocess.DEVNULL)
                found = json.loads(Path(report.name).read_text())["ab"]
            for name, key in FELT:
                row = found["ratios"][key]
                low, high = row["ci95"]
                print(f"| {rate} | {name} | {row['a']:.0f} | {row['b']:.0f} | {row['ratio']:.2f} ({low:.2f} to {high:.2f}) |")
            print(f"| {rate} | failed | {found['failed'][0]} | {found['failed'][1]} | |", flush=True)
        print("\n" + "\n".join(f"{program.name}: {program.system}" for program in programs), flush=True)
    finally:
        for program in programs:
            program.stop()


def main() -> None:
    if sys.argv[1] == "--serve-wheel":
        serve_wheel(*sys.argv[2:])
    parser = argparse.ArgumentParser()
    parser.add_argument("binary")
    parser.add_argument("kept", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="1.1b")
    parser.add_argument("--formats", default="bf16,Q8_0,Q4_0,Q4_K_M")
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--peers",
        type=pairs_of,
        default="native,wheel",
        help="some of native, vnni (the native build beside ours without AMX), wheel (PyPI's build beside ours held to AVX2), "
        "exact (the native build beside ours with exact products)",
    )
    parser.add_argument("--arrivals", default="", help="requests a second, some: instead of the rows, what both answer to the same arrivals")
    parser.add_argument("--requests", type=int, default=40, help="with --arrivals: to each, at each rate")
    parser.add_argument("--prompt-tokens", default="uniform:32:512", help="with --arrivals: as tramontane bench takes it")
    parser.add_argument("--output-tokens", default="32", help="with --arrivals: as tramontane bench takes it")
    arguments = parser.parse_args()
    if arguments.arrivals:
        for threads in arguments.threads.split(","):
            for format in arguments.formats.split(","):
                same_arrivals(arguments, int(threads), format)
        return
    read = PlainRead()
    for threads in arguments.threads.split(","):
        compare(arguments, int(threads), read)


if __name__ == "__main__":
    main()
