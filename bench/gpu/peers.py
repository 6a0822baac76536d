"""What PyTorch's kernels take for the rows of gpu_tables, on the same machine and in the same run.

    python3 peers.py OUT.json

Writes {table: {row: {peer: seconds}}}; names are those of attention_tables.cc, linear_table.cc and pointwise_table.cc.
Attention here reads dense keys, not pages: the easier task. Timed as there: calls captured in a graph over rotating
copies that no cache holds, median of 25 replays.
"""

import json
import statistics
import sys

import torch
import torch.nn.functional as F

DEVICE = torch.device("cuda")
KV_HEADS, GROUP, HEAD_DIM = 8, 4, 128
HEADS = KV_HEADS * GROUP
K = 1024


def median_seconds(copies, call):
    """call(i) runs the i-th copy's work once."""
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for i in range(copies):
            call(i)
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        for i in range(copies):
            call(i)
    times = []
    for replay in range(28):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        graph.replay()
        end.record()
        end.synchronize()
        if replay >= 3:
            times.append(begin.elapsed_time(end) * 1e-3 / copies)
    return statistics.median(times)


def copies_beyond_cache(size):
    cache = torch.cuda.get_device_properties(0).L2_cache_size
    return max(1, min(64, 4 * cache // max(size, 1) + 1))


def random(*shape, scale=1.0):
    return torch.randn(*shape, device=DEVICE, dtype=torch.bfloat16) * scale


def tokens(count):
    return f"{count // K}k" if count % K == 0 else str(count)


def attention(batch, context, queries):
    size = 2 * batch * context * KV_HEADS * HEAD_DIM * 2
    copies = copies_beyond_cache(size)
    keys = [random(batch, KV_HEADS, context, HEAD_DIM) for _ in range(copies)]
    values = [random(batch, KV_HEADS, context, HEAD_DIM) for _ in range(copies)]
    query = random(batch, HEADS, queries, HEAD_DIM)
    causal = queries > 1

    def call(i):
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(query, keys[i], values[i], is_causal=causal, enable_gqa=True)

    return median_seconds(copies, call)


def linear(n_in, n_out, rows):
    copies = copies_beyond_cache(n_in * n_out * 2)
    weights = [random(n_out, n_in, scale=0.02) for _ in range(copies)]
    x = random(rows, n_in)
    return median_seconds(copies, lambda i: F.linear(x, weights[i]))


def add(table, row, peer, measure):
    """A peer that cannot run a shape has no entry; why is said."""
    try:
        table.setdefault(row, {})[peer] = measure()
    except RuntimeError as error:
        print(f"{peer}, {row}: {error}", file=sys.stderr)
    torch.cuda.empty_cache()


def main():
    peers = {}
    decode = peers.setdefault("Decode attention", {})
    shapes = [(1, 1), (1, 4), (1, 32), (8, 1), (8, 4), (8, 32), (16, 4), (32, 4), (128, 1)]
    for batch, thousands in shapes:
        name = f"{batch} x {thousands}k"
        add(decode, name, "PyTorch flash", lambda b=batch, c=thousands * K: attention(b, c, 1))
    prefill = peers.setdefault("Prefill attention", {})
    for batch, count in [(1, 512), (1, 2 * K), (1, 8 * K), (1, 16 * K), (4, 2 * K)]:
        name = f"{batch} x {tokens(count)}"
        add(prefill, name, "PyTorch flash", lambda b=batch, c=count: attention(b, c, c))
    products = {"qkv": (4096, 6144), "attention out": (4096, 4096), "gate and up": (4096, 28672),
                "down": (14336, 4096), "head": (4096, 32000)}
    linears = peers.setdefault("Linear layers, few rows", {})
    for name, (n_in, n_out) in products.items():
        for rows in (1, 2, 4, 8, 16):
            add(linears, f"{name}, {rows}", "cuBLAS, no fusion", lambda i=n_in, o=n_out, r=rows: linear(i, o, r))
    with open(sys.argv[1], "w", encoding="utf-8") as out:
        json.dump(peers, out, indent=1)


main()
