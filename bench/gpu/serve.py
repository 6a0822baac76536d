"""A model in the shape of Mistral 7B, random weights, behind `tramontane serve` on a GPU: is it right, and how it answers under load.

    python3 serve.py TRAMONTANE OUT_FOLDER [--shape 7b|tiny] [--rates 4,16,32] [--seconds 8] [--device cuda] [-- SERVE_FLAGS]

Needs numpy; with torch and transformers the log-probabilities of a prompt are compared with transformers' in f32, which is
skipped, and said, where they are missing. The weights go to a temporary folder (TMPDIR; 14.5 GB: a folder in memory is best).
Writes OUT_FOLDER/serve.json and what `tramontane bench` says to OUT_FOLDER/bench_*.json; prints a table.
"""

import argparse
import json
import os
import re
import struct
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

import numpy

SHAPES = {  # layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary, window
    "7b": (32, 4096, 32, 8, 128, 14336, 32000, 4096),
    "tiny": (2, 256, 4, 2, 64, 512, 1024, 64),
}
DEVIATION = 0.02
PROMPT_OF_COMPARISON = 256  # tokens
PROMPT, ANSWER = 512, 128
KEYS = ["completed", "failed", "p50_ttft_ms", "p99_ttft_ms", "p50_tpot_ms", "p99_tpot_ms", "output_throughput"]


def bf16_bits(numbers: numpy.ndarray) -> numpy.ndarray:
    return (numbers.astype(numpy.float32).view(numpy.uint32) >> 16).astype(numpy.uint16)


def tensors(shape: str):
    layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary, _ = SHAPES[shape]
    yield "model.embed_tokens.weight", (vocabulary, hidden)
    for layer in range(layers):
        at = f"model.layers.{layer}."
        yield at + "input_layernorm.weight", (hidden,)
        yield at + "self_attn.q_proj.weight", (heads * head_dim, hidden)
        yield at + "self_attn.k_proj.weight", (kv_heads * head_dim, hidden)
        yield at + "self_attn.v_proj.weight", (kv_heads * head_dim, hidden)
        yield at + "self_attn.o_proj.weight", (hidden, heads * head_dim)
        yield at + "post_attention_layernorm.weight", (hidden,)
        yield at + "mlp.gate_proj.weight", (intermediate, hidden)
        yield at + "mlp.up_proj.weight", (intermediate, hidden)
        yield at + "mlp.down_proj.weight", (hidden, intermediate)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocabulary, hidden)


def write_model(shape: str, folder: Path) -> None:
    """One safetensors file; each matrix is cut from one block of random numbers, from another place."""
    layers, hidden, heads, kv_heads, head_dim, intermediate, vocabulary, window = SHAPES[shape]
    config = {
        "architectures": ["MistralForCausalLM"], "model_type": "mistral", "vocab_size": vocabulary, "hidden_size": hidden,
        "intermediate_size": intermediate, "num_hidden_layers": layers, "num_attention_heads": heads,
        "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_act": "silu", "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "sliding_window": window, "tie_word_embeddings": False,
        "bos_token_id": 1, "eos_token_id": 2, "torch_dtype": "bfloat16",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    words = ["<unk>", "<s>", "</s>"] + [f"<0x{byte:02X}>" for byte in range(256)]
    words += [f"\u2581word{number}" for number in range(len(words), vocabulary)]
    special = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None, "pre_tokenizer": None,
        "normalizer": {"type": "Sequence", "normalizers": [
            {"type": "Prepend", "prepend": "\u2581"},
            {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"}]},
        "post_processor": {"type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}},
                     {"SpecialToken": {"id": "<s>", "type_id": 1}}, {"Sequence": {"id": "B", "type_id": 1}}],
            "special_tokens": {"<s>": {"id": "<s>", "ids": [1], "tokens": ["<s>"]}}},
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "\u2581"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "added_tokens": [{"id": id, "content": words[id], **special} for id in range(3)],
        "model": {"type": "BPE", "dropout": None, "unk_token": "<unk>", "continuing_subword_prefix": None,
            "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": True, "ignore_merges": False,
            "vocab": {word: id for id, word in enumerate(words)}, "merges": []},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))

    header, at = {}, 0
    for name, dims in tensors(shape):
        size = 2 * int(numpy.prod(dims))
        header[name] = {"dtype": "BF16", "shape": list(dims), "data_offsets": [at, at + size]}
        at += size
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    rng = numpy.random.default_rng(1)
    most = max(int(numpy.prod(dims)) for _, dims in tensors(shape))
    block = bf16_bits(rng.standard_normal(1 << 20, numpy.float32) * DEVIATION)
    block = numpy.concatenate([rng.permutation(block) for _ in range(most // len(block) + 2)])
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        for number, (_, dims) in enumerate(tensors(shape)):
            count = int(numpy.prod(dims))
            ones = bf16_bits(numpy.ones(1))[0]
            first = number * 7919 % (len(block) - count + 1)
            numbers = numpy.full(count, ones, numpy.uint16) if len(dims) == 1 else block[first : first + count]
            numbers.tofile(file)


class Server:
    """`tramontane serve`; what it says goes to a log."""

    def __init__(self, binary: str, folder: Path, flags: list[str], log: Path):
        command = [binary, "serve", str(folder), "--grpc-address", "127.0.0.1:0", "--http-address", "127.0.0.1:0"]
        begin = time.monotonic()
        self.process = subprocess.Popen(command + flags, stdout=subprocess.PIPE, stderr=open(log, "w"), text=True)
        word, _, rest = self.process.stdout.readline().partition(" ")
        if word != "ready":
            raise RuntimeError(f"the server did not start:\n{log.read_text()[-3000:]}")
        self.seconds_to_ready = time.monotonic() - begin
        self.url = "http://" + json.loads(rest)["http"]

    def post(self, path: str, body: dict) -> dict:
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def stop(self) -> None:
        self.process.terminate()
        self.process.wait(30)


def prompt_of_comparison(vocabulary: int) -> list[int]:
    return [1] + [int(id) for id in numpy.random.default_rng(5).integers(259, vocabulary, PROMPT_OF_COMPARISON - 1)]


def transformers_logprobs(folder: Path, ids: list[int], device: str) -> list[float]:
    """Of each token but the first, in f32."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map=device, attn_implementation="eager")
    with torch.no_grad():
        logits = model(torch.tensor([ids], device=device)).logits[0].double()
    of_all = torch.log_softmax(logits, -1)
    return [of_all[i - 1, ids[i]].item() for i in range(1, len(ids))]


def bench(binary: str, url: str, out: Path, *flags: str) -> dict:
    command = [binary, "bench", "--target", url, "--prompt-tokens", str(PROMPT), "--output-tokens", str(ANSWER), "--token-ids",
               "300:1000", "--json", str(out), *flags]  # fmt: skip
    run = subprocess.run(command, capture_output=True, text=True, timeout=180)
    if run.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}:\n{run.stdout[-2000:]}{run.stderr[-2000:]}")
    return json.loads(out.read_text())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("binary")
    parser.add_argument("out", type=Path)
    parser.add_argument("--shape", choices=SHAPES, default="7b")
    parser.add_argument("--rates", default="4,16,32")
    parser.add_argument("--seconds", type=int, default=8)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("serve_flags", nargs="*")
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    found: dict = {"shape": given.shape, "rows": []}

    def say(text: str) -> None:
        print(text, flush=True)
        (given.out / "serve.json").write_text(json.dumps(found, indent=1))

    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        begin = time.monotonic()
        write_model(given.shape, folder)
        say(f"weights written in {time.monotonic() - begin:.1f} s")
        server = Server(given.binary, folder, ["--device", given.device, *given.serve_flags], given.out / "serve.log")
        try:
            found["seconds_to_ready"] = server.seconds_to_ready
            say(f"ready after {server.seconds_to_ready:.1f} s")
            ids = prompt_of_comparison(SHAPES[given.shape][6])
            echo = server.post("/v1/completions", {"prompt": ids, "max_tokens": 1, "echo": True, "logprobs": 1, "temperature": 0})
            ours = echo["choices"][0]["logprobs"]["token_logprobs"][1 : len(ids)]
            runs = [("1 stream", ["--concurrency", "1", "--requests", "6", "--warmup-requests", "2"])]
            runs += [(f"{rate} req/s", ["--rate", rate, "--requests", "100000", "--duration", str(given.seconds), "--warmup",
                                        "2"]) for rate in given.rates.split(",")]  # fmt: skip
            for name, flags in runs:
                result = bench(given.binary, server.url, given.out / f"bench_{name.replace(' ', '_').replace('/', '_')}.json", *flags)
                row = {"run": name} | {key: result[key] for key in KEYS}
                found["rows"].append(row)
                say("  ".join(f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in row.items()))
        finally:
            server.stop()
        try:
            theirs = transformers_logprobs(folder, ids, given.device)
        except ImportError as missing:
            say(f"transformers beside it: skipped, {missing}")
            return
        apart = [abs(a - b) for a, b in zip(ours, theirs, strict=True)]
        found["logprobs"] = {"tokens": len(apart), "mean_apart": sum(apart) / len(apart), "most_apart": max(apart)}
        say(f"log-probabilities of {len(apart)} tokens: {sum(apart) / len(apart):.5f} apart on average, {max(apart):.5f} at most")


if __name__ == "__main__":
    sys.exit(main())
