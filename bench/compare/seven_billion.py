"""The runs and the table of bench/compare/seven_billion, which see for how to start it."""

import argparse
import os
import random
import re
import subprocess
import tempfile
import threading
import time
from pathlib import Path

import gguf
import numpy
from llama import PlainRead, Program, add_vocabulary, bytes_per_token, stream, words

# Mistral 7B v0.3
LAYERS, WIDTH, HEADS, KV_HEADS, HEAD_DIM, HIDDEN, VOCABULARY = 32, 4096, 32, 8, 128, 14336, 32768
CONTEXT = 4096  # tokens
KV_BYTES = 2 * LAYERS * KV_HEADS * HEAD_DIM * 2  # of a token, bf16
MORE_THAN_PLANNED = 64 << 20  # bytes, of the whole process: its code, its threads and its tokenizer too
DEVIATION = 0.02  # of the weights
WATCHED_EVERY = 0.02  # seconds


# ---- the weights


def random_blocks(rng: numpy.random.Generator, kind: gguf.GGMLQuantizationType, rows: int, columns: int):
    """uint8 [rows, bytes of a row]: numbers of any bits, with one scale for all blocks and a sign for each."""
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (rows * columns // numbers, size), numpy.uint8)
    # The deviation of a block's numbers before its scale: of 4 bits, or of 6 bits times 8 bits.
    spread, at = {"Q4_0": (4.6, 0), "Q6_K": (18.5 * 73.9, size - 2)}[kind.name]
    scale = numpy.float16([DEVIATION / spread, -DEVIATION / spread])
    blocks[:, at : at + 2] = scale[rng.integers(0, 2, len(blocks))].view(numpy.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def tensors() -> list[tuple[str, tuple[int, ...], str]]:
    """Name, shape and type, as llama-quantize's Q4_0 has them: the output matrix in six bits."""
    found = [("token_embd", (VOCABULARY, WIDTH), "Q4_0"), ("output_norm", (WIDTH,), "F32")]
    found += [("output", (VOCABULARY, WIDTH), "Q6_K")]
    for layer in range(LAYERS):
        found += [(f"blk.{layer}.{norm}", (WIDTH,), "F32") for norm in ("attn_norm", "ffn_norm")]
        matrices = {
            "attn_q": (HEADS * HEAD_DIM, WIDTH),
            "attn_k": (KV_HEADS * HEAD_DIM, WIDTH),
            "attn_v": (KV_HEADS * HEAD_DIM, WIDTH),
            "attn_output": (WIDTH, HEADS * HEAD_DIM),
            "ffn_gate": (HIDDEN, WIDTH),
            "ffn_up": (HIDDEN, WIDTH),
            "ffn_down": (WIDTH, HIDDEN),
        }
        found += [(f"blk.{layer}.{name}", shape, "Q4_0") for name, shape in matrices.items()]
    return found


def write_model(path: Path) -> None:
    """One tensor of it in memory at a time."""
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(32768)
    writer.add_embedding_length(WIDTH)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_rope_freq_base(1e6)
    writer.add_vocab_size(VOCABULARY)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_0)
    add_vocabulary(writer, VOCABULARY)
    for name, shape, type_name in tensors():
        kind = gguf.GGMLQuantizationType[type_name]
        numbers, size = gguf.GGML_QUANT_SIZES[kind]
        count = int(numpy.prod(shape)) // numbers * size
        if type_name == "F32":
            writer.add_tensor_info(name + ".weight", shape, numpy.dtype(numpy.float32), count)
        else:
            in_bytes = (*shape[:-1], shape[-1] // numbers * size)
            writer.add_tensor_info(name + ".weight", in_bytes, numpy.dtype(numpy.uint8), count, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    rng = numpy.random.default_rng(1)
    for _, shape, type_name in tensors():
        if type_name == "F32":
            writer.write_tensor_data(numpy.ones(shape, numpy.float32))
        else:
            writer.write_tensor_data(random_blocks(rng, gguf.GGMLQuantizationType[type_name], *shape))
    writer.close()


def file_speed(path: Path) -> float:
    """GB/s at which one thread reads the file, from the disk or from the system's cache, wherever it is."""
    begin = time.perf_counter()
    with open(path, "rb", buffering=0) as file:
        piece = bytearray(8 << 20)
        while file.readinto(piece):
            pass
    return path.stat().st_size / (time.perf_counter() - begin) / 1e9


# ---- the plan and the process


def plan(binary: Path, model: Path, flags: list[str]) -> dict[str, int]:
    """Bytes of weights, workspace and pages, as inspect prints them, and of all."""
    said = subprocess.run(
        [binary, "inspect", model, *flags], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    found = {
        name: int(re.search(rf"^ *{name} +([0-9,]+) bytes", said, re.M)[1].replace(",", ""))
        for name in ("memory", "weights", "workspace")
    }
    pages, page_bytes = (int(n.replace(",", "")) for n in re.search(r"pages +([0-9,]+) of ([0-9,]+) bytes", said).groups())
    found["pages"] = pages * page_bytes
    return found


class Watched(Program):
    """A server whose memory is looked at from its first moment on, in bytes as the kernel counts them."""

    def url_of_ready_line(self) -> str:
        self.largest = {"RssAnon": 0, "RssFile": 0}
        threading.Thread(target=self.watch, daemon=True).start()
        begin = time.perf_counter()
        url = super().url_of_ready_line()
        self.load_seconds = time.perf_counter() - begin
        self.peak_loading = self.memory()["VmHWM"]
        return url

    def memory(self) -> dict[str, int]:
        lines = Path(f"/proc/{self.process.pid}/status").read_text()
        return {name: int(kilobytes) << 10 for name, kilobytes in re.findall(r"(\w+):\s+(\d+) kB", lines)}

    def watch(self) -> None:
        while self.process.poll() is None:
            now = self.memory()
            for name in self.largest:
                self.largest[name] = max(self.largest[name], now.get(name, 0))
            time.sleep(WATCHED_EVERY)


# ---- the table


def measure(binary: Path, model: Path, linear: str, flags: list[str], arguments) -> dict[str, str]:
    planned = plan(binary, model, flags)
    read_file = file_speed(model)
    command = [binary, "serve", model, "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
    program = Watched(linear, [*command, "--linear", linear, *flags])
    read = PlainRead()
    try:
        rng = random.Random(1)
        begin, first, last = stream(program, words(rng, arguments.prompt), arguments.tokens)
        memory = program.memory()
        device = re.search(r"cpu \([^)]*\)", program.said())
    finally:
        program.stop()
    speed = read.gigabytes_per_second(arguments.threads)
    needed = bytes_per_token(model) + arguments.prompt * KV_BYTES
    mib = lambda size: f"{size / 2**20:,.0f} MiB"  # noqa: E731
    return {
        "runs on": device[0] if device else "see its log",
        "plan: weights": mib(planned["weights"]),
        "plan: workspace": mib(planned["workspace"]),
        f"plan: pages of {CONTEXT:,} tokens": mib(planned["pages"]),
        "plan: memory": mib(planned["memory"]),
        "peak while loading (VmHWM)": mib(program.peak_loading),
        "peak in all (VmHWM)": mib(memory["VmHWM"]),
        "over the plan": mib(memory["VmHWM"] - planned["memory"])
        + ("" if memory["VmHWM"] - planned["memory"] <= MORE_THAN_PLANNED else ": MORE THAN 64 MiB"),
        "most anonymous memory (RssAnon)": mib(program.largest["RssAnon"]),
        "most pages of files (RssFile)": mib(program.largest["RssFile"]),
        "at the end: anonymous, of files": f"{mib(memory['RssAnon'])}, {mib(memory['RssFile'])}",
        "from start to ready": f"{program.load_seconds:.1f} s, {model.stat().st_size / program.load_seconds / 1e9:.2f} GB/s",
        "one thread read the file just before at": f"{read_file:.2f} GB/s",
        f"prefill of {arguments.prompt:,}": f"{arguments.prompt / (first - begin):.1f} tokens/s",
        f"decode at {arguments.prompt:,}": f"{(arguments.tokens - 1) / (last - first):.2f} tokens/s",
        "decode, if a plain read were all": f"{speed * 1e9 / needed:.2f} tokens/s ({speed:.1f} GB/s)",
    }


def report(binary: Path, model: Path, arguments) -> None:
    print(f"\n{model.stat().st_size / 1e9:.2f} GB\n", flush=True)
    # By itself a server looks for a GPU, and where there is only CUDA's library, that stays in memory.
    flags = ["--device", "cpu", "--context", str(CONTEXT), "--max-sequences", "1", "--threads", str(arguments.threads)]
    modes = arguments.linear.split(",")
    columns = [measure(binary, model, mode, flags, arguments) for mode in modes]
    print("| | " + " | ".join(f"`--linear {mode}`" for mode in modes) + " |")
    print("|---" * (1 + len(modes)) + "|")
    for row in columns[0]:
        print(f"| {row} | " + " | ".join(column[row] for column in columns) + " |")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("binary", type=Path)
    parser.add_argument("--linear", default="exact,int8")
    parser.add_argument("--prompt", type=int, default=4000, help="tokens")
    parser.add_argument("--tokens", type=int, default=32, help="of the answer")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--file", type=Path, help="where the model is kept; else a temporary folder")
    arguments = parser.parse_args()
    if not (arguments.tokens > 1 and arguments.prompt > 0 and arguments.prompt + arguments.tokens <= CONTEXT):
        parser.error(f"prompt and answer have {CONTEXT} tokens together, the answer at least two")
    with tempfile.TemporaryDirectory() as folder:
        model = arguments.file or Path(folder) / "seven_billion.gguf"
        if not model.exists():
            part = model.with_suffix(".part")
            write_model(part)
            part.rename(model)
        report(arguments.binary, model, arguments)


if __name__ == "__main__":
    main()
