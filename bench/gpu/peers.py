"""What PyTorch's kernels take for the rows of gpu_tables, on the same machine, attention in turn with ours in this process.

    python3 peers.py OUT.json [LIBGPU_CALLS.so [SECONDS]]

Writes {"seconds": {table: {row: {peer: seconds}}}, "left_out": {table: {why: [row]}}} before the first row and after each:
what it has, and what it has not. Names are those of attention_tables.cc and linear_table.cc. With the library ours are
timed too, as "ours, in turn", by the kernels that the server goes by on this device: on compute capability 9.0 Hopper's
own. No row begins later than SECONDS. PyTorch's attention reads dense keys, not pages: the easier task. Its FLASH backend is
FlashAttention 2, its CUDNN backend on Hopper near FlashAttention 3. A contender is its calls captured in a graph over
rotating copies that no cache holds; graphs are replayed in turn, and the median of 25 rounds is taken.
"""

import ctypes
import json
import os
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
NOT_DONE = "not done"  # of rows that this program has not come to, or that it ended at


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


def add(contenders, cannot, name, make):
    """One that cannot run a shape is left out, and why is noted in cannot: a line, by name."""
    try:
        contenders[name] = make()
    except RuntimeError as error:
        print(f"{name}: {error}", file=sys.stderr)
        cannot[name] = (str(error).strip().splitlines() or ["no reason given"])[0]


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
    """Seconds by contender, and what those that cannot run it say."""
    copies = copies_beyond_cache(2 * batch * context * KV_HEADS * HEAD_DIM * 2)
    keys = [random(batch, KV_HEADS, context, HEAD_DIM) for _ in range(copies)]
    values = [random(batch, KV_HEADS, context, HEAD_DIM) for _ in range(copies)]
    query = random(batch, HEADS, queries, HEAD_DIM)

    def by(backend):
        def call(i):
            with sdpa_kernel(backend):
                F.scaled_dot_product_attention(query, keys[i], values[i], is_causal=queries > 1, enable_gqa=True)

        return Contender(copies, call)

    contenders, cannot = {}, {}
    add(contenders, cannot, "PyTorch flash", lambda: by(SDPBackend.FLASH_ATTENTION))
    add(contenders, cannot, "PyTorch cuDNN", lambda: by(SDPBackend.CUDNN_ATTENTION))
    if ours is None:
        return in_turn(contenders), cannot
    calls = ours.open(batch, context, queries)
    try:
        add(contenders, cannot, OURS, lambda: ours.contender(calls))
        return in_turn(contenders), cannot
    finally:
        contenders.clear()
        ours.close(calls)


def linear(n_in, n_out, rows):
    """As attention."""
    copies = copies_beyond_cache(n_in * n_out * 2)
    weights = [random(n_out, n_in, scale=0.02) for _ in range(copies)]
    x = random(rows, n_in)
    contenders, cannot = {}, {}
    add(contenders, cannot, "cuBLAS, no fusion", lambda: Contender(copies, lambda i: F.linear(x, weights[i])))
    return in_turn(contenders), cannot


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


class Found:
    """What is known of every row, and the file that says it."""

    def __init__(self, path, rows):
        self.path = path
        self.seconds = {}
        self.left_out = {}
        for table, row in rows:
            self.leave_out(table, row, NOT_DONE)

    def leave_out(self, table, row, why):
        self.left_out.setdefault(table, {}).setdefault(why, []).append(row)

    def settle(self, table, row):
        """The row is no longer to be done."""
        self.left_out[table][NOT_DONE].remove(row)

    def write(self):
        """Whole or not at all, whoever ends this program meanwhile."""
        left_out = {}
        for table, reasons in self.left_out.items():
            for why, rows in reasons.items():
                if rows:
                    left_out.setdefault(table, {})[why] = rows
        unfinished = self.path + ".unfinished"
        with open(unfinished, "w", encoding="utf-8") as file:
            json.dump({"seconds": self.seconds, "left_out": left_out}, file, indent=1)
        os.replace(unfinished, self.path)


def main():
    out = sys.argv[1]
    ours = Ours(sys.argv[2]) if len(sys.argv) > 2 else None
    end = time.monotonic() + (float(sys.argv[3]) if len(sys.argv) > 3 else float("inf"))
    rows = list(rows_of_tables(ours))
    found = Found(out, [(table, row) for table, row, _ in rows])
    found.write()
    for table, row, measure in rows:
        if time.monotonic() > end:
            found.leave_out(table, row, "for want of time")
        else:
            seconds, cannot = measure()
            found.seconds.setdefault(table, {})[row] = seconds
            for name, why in cannot.items():
                found.leave_out(table, row, f"{name} cannot: {why}")
            torch.cuda.empty_cache()
        found.settle(table, row)
        found.write()


if __name__ == "__main__":
    main()
