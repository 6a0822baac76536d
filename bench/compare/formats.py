"""The runs and the tables of bench/compare/formats, which see for how to start it."""

import argparse
import json
import random
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import gguf
import numpy as np
from k_blocks import encode
from llama import ANSWERS_WITHIN, SHAPES, Program, add_vocabulary, words

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/golden"))

from make_gguf_goldens import add_keys, gguf_name, pairs_side_by_side, safetensors_of  # noqa: E402

BREEZE = ROOT / "models/breeze/weights"
TEXTS = {"stories": ROOT / "bench/texts/stories.txt", "essays": ROOT / "bench/texts/essays.txt"}
K_TYPES = ("Q4_K", "Q5_K", "Q6_K")
K_NUMBERS = 256  # of a block
OF_GGUF = ("BF16", "Q8_0", "Q6_K", "Q5_K", "Q5_1", "Q5_0", "Q4_K", "Q4_1", "Q4_0")
OF_QUANTIZE = ("int8/32", "int8/64", "int4/32", "int4/64")  # --type / --group
OF_FP8 = ("fp8",)  # a scale for each row
MODES = ("exact", "int8")


def modes_of(format: str) -> tuple[str, ...]:
    """The others have no products in 8 bits."""
    return MODES if format not in ("BF16", *OF_FP8) else MODES[:1]


# ---- the models


def in_format(values: np.ndarray, format: str) -> tuple[np.ndarray, gguf.GGMLQuantizationType]:
    """uint8 [rows, bytes of a row]; where a block of K does not divide a row, in Q8_0."""
    if format in K_TYPES and values.shape[1] % K_NUMBERS != 0:
        format = "Q8_0"
    kind = gguf.GGMLQuantizationType[format]
    return (encode(values, kind) if format in K_TYPES else gguf.quants.quantize(values, kind)), kind


def write_breeze(path: Path, format: str) -> None:
    """Its layers' matrices in the format, the embedding and the output matrix in bf16."""
    config = json.loads((BREEZE / "config.json").read_text())
    writer = gguf.GGUFWriter(path, "llama")
    add_keys(writer, config)
    writer.add_sliding_window(config["sliding_window"])
    for full_name, (_, values) in safetensors_of(BREEZE / "model.safetensors").items():
        name = gguf_name(full_name)
        for part, heads in (("attn_q", "num_attention_heads"), ("attn_k", "num_key_value_heads")):
            if part + "." in name:
                values = pairs_side_by_side(values, config[heads])
        if values.ndim == 1:
            writer.add_tensor(name, values.astype("<f4"))
        else:
            stored, kind = in_format(values, format if name.startswith("blk.") else "BF16")
            writer.add_tensor(name, stored, raw_dtype=kind)
    write(writer)


def e4m3_values() -> np.ndarray:
    """Of the codes from 0 to 126, which ascend; the next is NaN."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    return np.where(exponent == 0, mantissa * 2.0**-9, (8 + mantissa) * 2.0 ** (exponent - 10.0))


def in_fp8(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Codes, uint8 [rows, columns], the nearest, ties to the even one; and a scale for each row, f32 [rows, 1]."""
    scales = (np.abs(values).max(axis=1, keepdims=True) / 448).astype("<f4")
    scaled = values.astype(np.float64) / np.where(scales == 0, 1, scales)
    known = e4m3_values()
    size = np.minimum(np.abs(scaled), known[-1])
    above = np.clip(np.searchsorted(known, size), 1, len(known) - 1)
    below = above - 1
    to_above, to_below = known[above] - size, size - known[below]
    takes_above = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    codes = np.where(takes_above, above, below).astype(np.uint8)
    return codes | (np.signbit(scaled).astype(np.uint8) << 7), scales


def write_breeze_in_fp8(path: Path) -> None:
    """As compressed-tensors has it: its layers' matrices in e4m3, all else as it is."""
    path.mkdir()
    entries, data = {}, b""

    def add(name: str, dtype: str, shape: list[int], stored: bytes) -> None:
        nonlocal data
        entries[name] = {"dtype": dtype, "shape": shape, "data_offsets": [len(data), len(data) + len(stored)]}
        data += stored

    for name, (_, values) in safetensors_of(BREEZE / "model.safetensors").items():
        if ".layers." in name and values.ndim == 2:
            codes, scales = in_fp8(values)
            add(name, "F8_E4M3", list(values.shape), codes.tobytes())
            add(name + "_scale", "F32", [values.shape[0], 1], scales.tobytes())
        else:  # bf16 widened: the upper halves
            stored = (np.ascontiguousarray(values, "<f4").view("<u4") >> 16).astype("<u2")
            add(name, "BF16", list(values.shape), stored.tobytes())
    header = json.dumps(entries).encode()
    header += b" " * (-len(header) % 8)
    (path / "model.safetensors").write_bytes(len(header).to_bytes(8, "little") + header + data)
    config = json.loads((BREEZE / "config.json").read_text())
    weights = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel", "dynamic": False}
    config["quantization_config"] = {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}},
        "ignore": ["lm_head"],
    }
    (path / "config.json").write_text(json.dumps(config))
    for file in BREEZE.glob("tokenizer.model*"):
        shutil.copy(file, path)


def write_shape(path: Path, shape: str, format: str) -> None:
    """Random weights; matrices of one size are the same numbers."""
    layers, width, heads, kv_heads, hidden, vocabulary, tied = SHAPES[shape]
    config = {"vocab_size": vocabulary, "max_position_embeddings": 4096, "hidden_size": width}
    config |= {"num_hidden_layers": layers, "intermediate_size": hidden, "num_attention_heads": heads}
    config |= {"num_key_value_heads": kv_heads, "head_dim": width // heads, "rope_theta": 10000.0, "rms_norm_eps": 1e-5}
    writer = gguf.GGUFWriter(path, "llama")
    add_keys(writer, config)
    add_vocabulary(writer, vocabulary)
    rng = np.random.default_rng(1)
    made: dict = {}

    def add(name: str, rows: int, columns: int, format: str) -> None:
        key = (rows, columns, format)
        if key not in made:
            made[key] = in_format(rng.standard_normal((rows, columns), np.float32) * 0.02, format)
        stored, kind = made[key]
        writer.add_tensor(name + ".weight", stored, raw_dtype=kind)

    def add_norm(name: str) -> None:
        writer.add_tensor(name + ".weight", np.ones(width, np.float32))

    add("token_embd", vocabulary, width, format)
    add_norm("output_norm")
    if not tied:
        add("output", vocabulary, width, format)
    kv_width = width // heads * kv_heads
    matrices = [("attn_q", width, width), ("attn_k", kv_width, width), ("attn_v", kv_width, width)]
    matrices += [("attn_output", width, width), ("ffn_gate", hidden, width), ("ffn_up", hidden, width)]
    matrices += [("ffn_down", width, hidden)]
    for layer in range(layers):
        add_norm(f"blk.{layer}.attn_norm")
        add_norm(f"blk.{layer}.ffn_norm")
        for name, rows, columns in matrices:
            add(f"blk.{layer}.{name}", rows, columns, format)
    write(writer)


def write(writer: gguf.GGUFWriter) -> None:
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class Model:
    """Breeze, or random weights of a shape, in a format; what it takes in memory as `inspect` plans it."""

    def __init__(self, binary: Path, folder: Path, format: str, shape: str | None):
        self.format = format
        self.path = folder / (format.replace("/", "_") + (".gguf" if format in OF_GGUF else ""))
        if shape:
            write_shape(self.path, shape, format)
        elif format in OF_GGUF:
            write_breeze(self.path, format)
        elif format in OF_FP8:
            write_breeze_in_fp8(self.path)
        else:
            type_name, group = format.split("/")
            command = [binary, "quantize", BREEZE, self.path, "--type", type_name, "--group", group]
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.flags = [] if shape else ["--tokenizer", BREEZE]
        command = [binary, "inspect", self.path, "--device", "cpu", *self.flags]
        said = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
        number = lambda pattern: int(re.search(pattern, said, re.M)[1].replace(",", ""))  # noqa: E731
        self.bytes = number(r"^ *weights +([0-9,]+) bytes$")
        self.bits = 8 * self.bytes / number(r"^parameters +([0-9,]+)")
        self.bytes_per_token = self.bytes - self.embedding_bytes(shape, format)

    @staticmethod
    def embedding_bytes(shape: str | None, format: str) -> int:
        """Of which a token needs one row, where the output matrix is another."""
        if shape is None:
            config = json.loads((BREEZE / "config.json").read_text())
            return config["vocab_size"] * config["hidden_size"] * 2
        _, width, _, _, _, vocabulary, tied = SHAPES[shape]
        numbers, size = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[format]]
        return 0 if tied else vocabulary * width // numbers * size


# ---- quality


def score(binary: Path, model: Model, text: Path, linear: str) -> dict:
    """With keys, values and rows in f32, so that what is told is what the weights' format does."""
    command = [binary, "perplexity", model.path, text, "--against", BREEZE, *model.flags, "--kv-dtype", "f32"]
    command += ["--device", "cpu", "--linear", linear]
    return json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)


def print_quality(binary: Path, models: list[Model], texts: list[str]) -> None:
    header = "| format | MB | bits a weight |"
    for text in texts:
        header += f" {text}: perplexity | KL | same likeliest | KL, `int8` |"
    print("\n" + header + "\n" + "|---" * (header.count("|") - 1) + "|", flush=True)
    for model in models:
        cells = [model.format, f"{model.bytes / 1e6:.2f}", f"{model.bits:.2f}"]
        for text in texts:
            exact = score(binary, model, TEXTS[text], "exact")
            cells += [f"{exact['perplexity']:.4f}", f"{exact['kl']:.5f}", f"{100 * exact['same_likeliest']:.2f} %"]
            in_8_bits = "int8" in modes_of(model.format)
            cells += [f"{score(binary, model, TEXTS[text], 'int8')['kl']:.5f}" if in_8_bits else ""]
        print("| " + " | ".join(cells) + " |", flush=True)


def print_as_it_is(binary: Path, path: Path, texts: list[str]) -> None:
    """A model's perplexity with exact products and with products in 8 bits."""
    print("\n| Text, scored tokens | `--linear exact` | `--linear int8` | more |\n|---|---|---|---|", flush=True)
    for text in texts:
        said = []
        for mode in MODES:
            command = [binary, "perplexity", path, TEXTS[text], "--device", "cpu", "--linear", mode]
            run = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            said.append(json.loads(run.stdout))
        exact, int8 = (report["perplexity"] for report in said)
        tokens = f"{said[0]['scored_tokens']:,}"
        print(f"| `{text}.txt`, {tokens} | {exact:.3f} | {int8:.3f} | {100 * (int8 / exact - 1):.2f} % |", flush=True)


# ---- speed


def processor_seconds(program: Program) -> float:
    """What all threads of a server have taken. They all live as long as it does."""
    tasks = Path(f"/proc/{program.process.pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


def seconds(program: Program, prompt: list[int], tokens: int, clock: str) -> float:
    """Of an answer as a whole: a client that reads tokens one by one would take the processor from the server."""
    body = {"prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}
    request = urllib.request.Request(
        program.url + "/v1/completions", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    now = time.perf_counter if clock == "wall" else lambda: processor_seconds(program)
    begin = now()
    with urllib.request.urlopen(request, timeout=ANSWERS_WITHIN) as answer:
        said = json.load(answer)["usage"]["completion_tokens"]
    if said != tokens:
        raise RuntimeError(f"{program.name}: {said} tokens were said, {tokens} asked for")
    return now() - begin


def prompt_of(rng: random.Random, vocabulary: int, count: int) -> list[int]:
    return [1 + id % (vocabulary - 1) for id in words(rng, count)]


def print_speed(binary: Path, base: Model, models: list[Model], arguments) -> None:
    """In each round all programs in turn; of the rounds' ratios to bf16 the median. Beside decode's stands its share of what
    the bytes of a token alone would make it."""
    vocabulary = SHAPES[arguments.shape][5] if arguments.shape else 2048
    rng = random.Random(1)
    header = "| format | of bf16's bytes for a token | decode | over the bytes' | decode, `int8` | over the bytes' |"
    header += " prefill | prefill, `int8` |"
    print("\n" + header + "\n" + "|---" * (header.count("|") - 1) + "|", flush=True)

    def start(model: Model, mode: str) -> Program:
        command = [binary, "serve", model.path, "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
        command += ["--device", "cpu", "--threads", arguments.threads, "--max-sequences", 1, "--context", 4096]
        return Program(f"{model.format} {mode}", [*command, "--linear", mode, *model.flags])

    def prefill_and_decode(program: Program) -> tuple[float, float]:
        """Tokens/s."""
        few = prompt_of(rng, vocabulary, 16)
        first = seconds(program, few, 1, arguments.clock)
        decode = arguments.tokens / (seconds(program, few, arguments.tokens + 1, arguments.clock) - first)
        prompt = prompt_of(rng, vocabulary, arguments.prompt)
        return arguments.prompt / seconds(program, prompt, 1, arguments.clock), decode

    bf16 = start(base, "exact")
    base_figures = []
    try:
        for model in models:
            programs = [bf16]
            try:
                programs += [start(model, mode) for mode in modes_of(model.format)]
                for program in programs:
                    prefill_and_decode(program)  # warm
                rounds = [[prefill_and_decode(program) for program in programs] for _ in range(arguments.rounds)]
            finally:
                for program in programs[1:]:
                    program.stop()
            base_figures += [figures[0] for figures in rounds]
            prefill, decode = (
                [statistics.median(figures[at][what] / figures[0][what] for figures in rounds) for at in range(1, len(programs))]
                for what in (0, 1)
            )
            share = base.bytes_per_token / model.bytes_per_token
            cells = [model.format, f"{100 / share:.0f} %"]
            absent = len(MODES) - len(decode)
            for ratio in decode:
                cells += [f"{ratio:.2f}", f"{ratio / share:.2f}"]
            cells += [""] * 2 * absent + [f"{ratio:.2f}" for ratio in prefill] + [""] * absent
            print("| " + " | ".join(cells) + " |", flush=True)
        prefill, decode = (statistics.median(figures[what] for figures in base_figures) for what in (0, 1))
        print(f"\nbf16, tokens/s of {arguments.clock} time: prefill of {arguments.prompt:,} {prefill:,.0f}, decode {decode:,.1f}")
        device = re.search(r"cpu \([^)]*\)", bf16.said())
        print(device[0] if device else "")
    finally:
        bf16.stop()


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=Path)
    parser.add_argument("--formats", help="those of the tables; all that the model has")
    parser.add_argument("--shape", choices=SHAPES)
    parser.add_argument("--model", type=Path, help="as it is, exact beside int8, and nothing else")
    parser.add_argument("--only", choices=["quality", "speed"])
    parser.add_argument("--texts", default="stories", help=f"for quality, of {', '.join(TEXTS)}")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument(
        "--clock",
        choices=["processor", "wall"],
        default="processor",
        help="the time that the server's threads take, which other programs do not lengthen much, or that of the wall",
    )
    parser.add_argument("--tokens", type=int, default=256, help="of an answer that is timed")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of a prefill that is timed")
    arguments = parser.parse_args()
    formats = OF_GGUF if arguments.shape else OF_GGUF + OF_QUANTIZE + OF_FP8
    chosen = arguments.formats.split(",") if arguments.formats else formats
    if unknown := set(chosen) - set(formats):
        parser.error(f"no such format here: {', '.join(sorted(unknown))}; there are {', '.join(formats)}")
    texts = arguments.texts.split(",")
    if unknown := set(texts) - set(TEXTS):
        parser.error(f"no such text: {', '.join(sorted(unknown))}; there are {', '.join(TEXTS)}")
    if arguments.model:
        print_as_it_is(arguments.binary, arguments.model, texts)
        return
    with tempfile.TemporaryDirectory() as folder:
        models = [Model(arguments.binary, Path(folder), format, arguments.shape) for format in chosen]
        if not arguments.shape and arguments.only != "speed":
            print_quality(arguments.binary, models, texts)
        if arguments.only != "quality":
            base = next((model for model in models if model.format == "BF16"), None)
            base = base or Model(arguments.binary, Path(folder), "BF16", arguments.shape)
            print_speed(arguments.binary, base, [model for model in models if model is not base], arguments)


if __name__ == "__main__":
    main()
