"""What PyTorch's kernels take for the rows of gpu_tables, on the same machine, attention in turn with ours in this process.

    python3 peers.py OUT.json [LIBGPU_CALLS.so [SECONDS]]

Writes {table: {row: {peer: seconds}}} after each row; names are those of attention_tables.cc and linear_table.cc. With
the library ours are timed too, as "ours, in turn", by the kernels that the server goes by on this device: on compute
capability 9.0 Hopper's own. No row begins later than SECONDS. PyTorch's attention reads dense keys, not pages: the easier
task. Its FLASH backend is FlashAttention 2, its CUDNN backend on Hopper near FlashAttention 3. A contender is its calls
captured in a graph over rotating copies that no cache holds; graphs are replayed in turn, and the median of 25 rounds is
taken.
"""

import ctypes
import json
import statistics
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

DEVICE = torch.device("cuda")
KV_HEADS, GROUP, HEAD_DIM = 8, 4, 128
HEADS = KV_HEADS * GROUP
K = 1024
OURS = "ours, in turn"
WARM_UPS, ROUNDS = 3, 25


class Contender:
    """Calls in a graph; call(i) runs the i-th copy's work once on the current stream."""

    def __init__(self, copies, call):
        self.copies = copies
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())  # on which its copies are being filled
        with torch.cuda.stream(stream):
            for i in range(copies):
                call(i)
        stream.synchronize()
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            for i in range(copies):
                call(i)

    def seconds(self):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) * 1e-3 / self.copies


def in_turn(contenders):
    """{name: median seconds of a call}."""
    times = {name: [] for name in contenders}
    for round_number in range(WARM_UPS + ROUNDS):
        for name, contender in contenders.items():
            seconds = contender.seconds()
            if round_number >= WARM_UPS:
                times[name].append(seconds)
    return {name: statistics.median(of_one) for name, of_one in times.items()}


def copies_beyond_cache(size):
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return max(1, min(64, 4 * cache // max(size, 1) + 1))


def random(*shape, scale=1.0):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) * scale


def tokens(count):
    return f"{count // K}k" if count % K == 0 else str(count)


def add(contenders, name, make):
    """One that cannot run a shape is left out; why is said."""
    try:
        contenders[name] = make()
    except RuntimeError as error:
        print(f"{name}: {error}", file=sys.stderr)


class Ours:
    """The attention calls of libgpu_calls.so."""

    def __init__(self, path):
        self.library = ctypes.CDLL(path)
        self.library.OpenAttention.restype = ctypes.c_void_p
        self.library.AttentionCopies.argtypes = [ctypes.c_void_p]
        self.library.RunAttentionCall.argtypes = [ctypes.c_void_p, ctypes.c_int, ctypes.c_void_p]
        self.library.CloseAttention.argtypes = [ctypes.c_void_p]

    def open(self, batch, context, queries):
        calls = self.library.OpenAttention(batch, context, queries, 0)
        if calls is None:
            raise RuntimeError("no device")
        return calls

    def contender(self, calls):
        def call(i):
            error = self.library.RunAttentionCall(calls, i, torch.cuda.current_stream().cuda_stream)
            if error != 0:
                raise RuntimeError(f"error {error}")

        return Contender(self.library.AttentionCopies(calls), call)

    def close(self, calls):
        self.library.CloseAttention(calls)


def attention(ours, batch, context, queries):
    copies = copies_beyond_cache(2 * batch * context * KV_HEADS * HEAD_DIM * 2)
    keys = [random(batch, KV_HEADS, context, HEAD_DIM) for _ in range(copies)]
    values = [random(batch, KV_HEADS, context, HEAD_DIM) for _ in range(copies)]
    query = random(batch, HEADS, queries, HEAD_DIM)

    def by(backend):
        def call(i):
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(query, keys[i], values[i], is_causal=queries > 1, enable_gqa=True)

        return Contender(copies, call)

    contenders = {}
    add(contenders, "PyTorch flash", lambda: by(SDPBackend.FLASH_ATTENTION))
    add(contenders, "PyTorch cuDNN", lambda: by(SDPBackend.CUDNN_ATTENTION))
    if ours is None:
        return in_turn(contenders)
    calls = ours.open(batch, context, queries)
    try:
        add(contenders, OURS, lambda: ours.contender(calls))
        return in_turn(contenders)
    finally:
        contenders.clear()
        ours.close(calls)


def linear(n_in, n_out, rows):
    copies = copies_beyond_cache(n_in * n_out * 2)
    weights = [random(n_out, n_in, scale=0.02) for _ in range(copies)]
    x = random(rows, n_in)
    contenders = {}
    add(contenders, "cuBLAS, no fusion", lambda: Contender(copies, lambda i: F.linear(x, weights[i])))
    return in_turn(contenders)


def rows_of_tables(ours):
    """(table, row, measure), those that say most first."""
    for batch, count in [(1, 2 * K), (1, 8 * K), (4, 2 * K), (1, 512), (1, 16 * K)]:
        yield "Prefill attention", f"{batch} x {tokens(count)}", lambda b=batch, c=count: attention(ours, b, c, c)
    for batch, thousands in [(1, 1), (1, 4), (8, 4), (32, 4), (8, 32), (128, 1), (8, 1), (16, 4), (1, 32)]:
        yield ("Decode attention", f"{batch} x {thousands}k",
               lambda b=batch, c=thousands * K: attention(ours, b, c, 1))
    products = {"qkv": (4096, 6144), "attention out": (4096, 4096), "gate and up": (4096, 28672), "down": (14336, 4096),
                "head": (4096, 32000)}
    for rows in (1, 2, 4, 8, 16):
        for name, (n_in, n_out) in products.items():
            yield ("Linear layers, few rows", f"{name}, {rows}", lambda i=n_in, o=n_out, r=rows: linear(i, o, r))
    del products["head"]
    for rows in (17, 24, 32, 48, 64, 96, 128, 256, 512, 2048):
        for name, (n_in, n_out) in products.items():
            yield ("Linear layers, many rows", f"{name}, {rows}", lambda i=n_in, o=n_out, r=rows: linear(i, o, r))


def main():
    out = sys.argv[1]
    ours = Ours(sys.argv[2]) if len(sys.argv) > 2 else None
    end = time.monotonic() + (float(sys.argv[3]) if len(sys.argv) > 3 else float("inf"))
    peers = {}
    for table, row, measure in rows_of_tables(ours):
        if time.monotonic() > end:
            print(f"left out for want of time: {table}, {row}", file=sys.stderr)
            continue
        peers.setdefault(table, {})[row] = measure()
        torch.cuda.empty_cache()
        with open(out, "w", encoding="utf-8") as file:
            json.dump(peers, file, indent=1)


if __name__ == "__main__":
    main()
