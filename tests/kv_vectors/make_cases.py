#!/usr/bin/env python3
"""Writes cases/*.json: vector files of every kind, from definitions in double precision.

Nothing here shares code with the project: keys are explicit sets of positions, softmax is a sum over them, pages are
dictionaries. Standard library only; the same files every time.

    tests/kv_vectors/make_cases.py FOLDER
"""
import base64
import json
import math
import os
import random
import struct
import sys

SCALE = 1 / 64


# ---- tensors

def shape_size(shape):
    return math.prod(shape)


def ints(values, dtype="i32", shape=None):
    values = list(values)
    return {"dtype": dtype, "shape": [len(values)] if shape is None else list(shape), "data": values}


def packed(values, dtype, shape, scale=None):
    letter = {"f32": "f", "f16": "e", "i8": "b", "u8": "B"}[dtype]
    data = struct.pack("<%d%s" % (len(values), letter), *values)
    tensor = {"dtype": dtype, "shape": list(shape), "b64": base64.b64encode(data).decode()}
    if scale is not None:
        tensor["scale"] = scale
    return tensor


def f32(values, shape):
    return packed(values, "f32", shape)


def f32_round(x):
    return struct.unpack("<f", struct.pack("<f", x))[0]


def f16_round(x):
    return struct.unpack("<e", struct.pack("<e", x))[0]


class Rows:
    """Random rows of heads: small numbers over 64, exact in every type."""

    def __init__(self, rng, rows, heads, dim, spread=96):
        self.shape = [rows, heads, dim]
        self.stored = [rng.randint(-spread, spread) for _ in range(rows * heads * dim)]

    def tensor(self, scale=SCALE):
        return packed(self.stored, "i8", self.shape, scale)

    def at(self, row, head):
        _, heads, dim = self.shape
        begin = (row * heads + head) * dim
        return [v * SCALE for v in self.stored[begin:begin + dim]]


def case(kind, name, attrs, inputs, outputs, tol=None, **more):
    made = {"kind": kind, "name": name, "attrs": attrs, "in": inputs, "out": outputs, **more}
    if tol is not None:
        made["tol"] = {"f32": tol[0], "bf16": tol[1]}
    return made


# ---- attention by definition

def attend(query, keys, values, scale):
    """Output and base-2 log-sum-exp over explicit lists of key and value vectors."""
    if not keys:
        return None, -math.inf
    scores = [scale * sum(a * b for a, b in zip(query, key)) for key in keys]
    top = max(scores)
    weights = [math.exp(s - top) for s in scores]
    total = sum(weights)
    dim = len(values[0])
    out = [sum(w * v[d] for w, v in zip(weights, values)) / total for d in range(dim)]
    return out, (top + math.log(total)) / math.log(2)


def cumulative(lengths):
    starts = [0]
    for length in lengths:
        starts.append(starts[-1] + length)
    return starts


def page_tables(rng, lengths, page_size, spare):
    pages = [-(-length // page_size) for length in lengths]
    pool = list(range(sum(pages) + spare))
    rng.shuffle(pool)
    indptr = cumulative(pages)
    return {"kv_indptr": ints(indptr), "kv_page_indices": ints(pool[:indptr[-1]]),
            "kv_last_page_len": ints([length - (count - 1) * page_size if count else 0
                                      for length, count in zip(lengths, pages)])}, len(pool)


# ---- FlashInfer

def flashinfer_mask(rng, q_lens, kv_lens):
    lengths = [q * k for q, k in zip(q_lens, kv_lens)]
    bits = [rng.randint(0, 1) for _ in range(sum(lengths))]

    def pack(flags):
        out = [0] * (-(-len(flags) // 8))
        for i, flag in enumerate(flags):
            out[i // 8] |= flag << (i % 8)
        return out
    starts = cumulative(lengths)
    segments = [pack(bits[a:b]) for a, b in zip(starts, starts[1:])]
    return case("flashinfer.mask", "mask %s x %s" % (q_lens, kv_lens), {},
                {"qo_indptr": ints(cumulative(q_lens)), "kv_indptr": ints(cumulative(kv_lens)),
                 "mask_data": ints(bits, "u8")},
                {"mask_indptr": ints(starts), "packed": ints(pack(bits), "u8"),
                 "segment_packed": ints(sum(segments, []), "u8"),
                 "segment_packed_indptr": ints(cumulative(len(s) for s in segments))})


def flashinfer_attention(rng, q_lens, kv_lens, q_heads, kv_heads, dim, page_size, causal, window_left, mask):
    tables, pages = page_tables(rng, kv_lens, page_size, 2)
    q = Rows(rng, sum(q_lens), q_heads, dim)
    k, v = Rows(rng, sum(kv_lens), kv_heads, dim), Rows(rng, sum(kv_lens), kv_heads, dim)
    scale = dim ** -0.5
    kv_starts = cumulative(kv_lens)
    flags, out, lse, row = [], [], [], 0
    for b, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens)):
        for i in range(q_len):
            at = kv_len - q_len + i
            if mask == "none":
                seen = [j for j in range(kv_len)
                        if (not causal or j <= at) and (window_left < 0 or at - j <= window_left)]
            else:
                seen = [j for j in range(kv_len) if rng.random() < 0.5]
            flags += [1 if j in seen else 0 for j in range(kv_len)]
            for h in range(q_heads):
                kv_head = h // (q_heads // kv_heads)
                o, l = attend(q.at(row, h), [k.at(kv_starts[b] + j, kv_head) for j in seen],
                              [v.at(kv_starts[b] + j, kv_head) for j in seen], scale)
                out += o if o is not None else [0.0] * dim
                lse.append(l)
            row += 1
    inputs = {"q": q.tensor(), "k": k.tensor(), "v": v.tensor(), "qo_indptr": ints(cumulative(q_lens)),
              "ragged_kv_indptr": ints(kv_starts), **tables}
    lengths = [a * b for a, b in zip(q_lens, kv_lens)]
    if mask == "bool":
        inputs["custom_mask"] = ints(flags, "u8")
        inputs["mask_indptr"] = ints(cumulative(lengths))
    if mask == "packed":
        data, starts = [], cumulative(lengths)
        for a, b in zip(starts, starts[1:]):
            segment = [0] * (-(-(b - a) // 8))
            for i, flag in enumerate(flags[a:b]):
                segment[i // 8] |= flag << (i % 8)
            data += segment
        inputs["packed_custom_mask"] = ints(data, "u8")
        inputs["packed_mask_indptr"] = ints(cumulative(-(-length // 8) for length in lengths))
    rows = sum(q_lens)
    return case("flashinfer.attention",
                "q%s kv%s %d/%dx%d page %d causal %s left %d mask %s" % (
                    q_lens, kv_lens, q_heads, kv_heads, dim, page_size, causal, window_left, mask),
                {"page_size": page_size, "num_pages": pages, "causal": causal, "window_left": window_left,
                 "sm_scale": scale, "mask": mask}, inputs,
                {"o": f32(out, [rows, q_heads, dim]), "lse": f32(lse, [rows, q_heads])}, (2e-5, 0.03))


def flashinfer_append(rng, layout, storage, lengths, new, heads, dim, page_size):
    tables, pages = page_tables(rng, lengths, page_size, 2)
    k, v = Rows(rng, sum(new), heads, dim), Rows(rng, sum(new), heads, dim)
    fill = -2.0
    axes = [page_size, heads] if layout == "NHD" else [heads, page_size]
    half = page_size * heads * dim
    pool = [int(fill / SCALE)] * (pages * 2 * half)
    indptr, indices = tables["kv_indptr"]["data"], tables["kv_page_indices"]["data"]
    row = 0
    for b, count in enumerate(new):
        for i in range(count):
            position = lengths[b] - count + i
            page, slot = indices[indptr[b] + position // page_size], position % page_size
            for h in range(heads):
                place = slot * heads + h if layout == "NHD" else h * page_size + slot
                for which, rows in enumerate((k, v)):
                    at = (page * 2 + which) * half + place * dim
                    begin = (row * heads + h) * dim
                    pool[at:at + dim] = rows.stored[begin:begin + dim]
            row += 1
    outputs = {"kv_len": ints(lengths)}
    if storage == "single":
        outputs["kv_data"] = packed(pool, "i8", [pages, 2] + axes + [dim], SCALE)
    else:
        for which, name in enumerate(("k_data", "v_data")):
            part = [x for p in range(pages) for x in pool[(p * 2 + which) * half:(p * 2 + which + 1) * half]]
            outputs[name] = packed(part, "i8", [pages] + axes + [dim], SCALE)
    return case("flashinfer.append", "append %s %s page %d %s" % (layout, storage, page_size, lengths),
                {"layout": layout, "page_size": page_size, "num_pages": pages, "num_kv_heads": heads,
                 "head_dim": dim, "storage": storage, "fill": fill},
                {"append_key": k.tensor(), "append_value": v.tensor(), "append_indptr": ints(cumulative(new)),
                 **tables}, outputs)


def flashinfer_mla(rng, q_lens, kv_lens, heads, ckv_dim, kpe_dim, page_size, causal):
    tables, pages = page_tables(rng, kv_lens, page_size, 2)
    q_nope, q_pe = Rows(rng, sum(q_lens), heads, ckv_dim), Rows(rng, sum(q_lens), heads, kpe_dim)
    ckv, kpe = Rows(rng, sum(kv_lens), 1, ckv_dim), Rows(rng, sum(kv_lens), 1, kpe_dim)
    scale = (ckv_dim + kpe_dim) ** -0.5
    starts, out, lse, row = cumulative(kv_lens), [], [], 0
    for b, (q_len, kv_len) in enumerate(zip(q_lens, kv_lens)):
        for i in range(q_len):
            seen = [starts[b] + j for j in range(kv_len) if not causal or j <= kv_len - q_len + i]
            for h in range(heads):
                o, l = attend(q_nope.at(row, h) + q_pe.at(row, h), [ckv.at(j, 0) + kpe.at(j, 0) for j in seen],
                              [ckv.at(j, 0) for j in seen], scale)
                out += o if o is not None else [0.0] * ckv_dim
                lse.append(l)
            row += 1
    width = ckv_dim + kpe_dim
    cache = [-128] * (pages * page_size * width)
    indptr, indices = tables["kv_indptr"]["data"], tables["kv_page_indices"]["data"]
    for b, kv_len in enumerate(kv_lens):
        for j in range(kv_len):
            at = (indices[indptr[b] + j // page_size] * page_size + j % page_size) * width
            token = starts[b] + j
            cache[at:at + width] = (ckv.stored[token * ckv_dim:(token + 1) * ckv_dim] +
                                    kpe.stored[token * kpe_dim:(token + 1) * kpe_dim])
    drop = lambda rows: {**rows.tensor(), "shape": [rows.shape[0], rows.shape[2]]}
    return case("flashinfer.mla",
                "mla q%s kv%s %dx(%d+%d) causal %s" % (q_lens, kv_lens, heads, ckv_dim, kpe_dim, causal),
                {"page_size": page_size, "num_pages": pages, "head_dim_ckv": ckv_dim, "head_dim_kpe": kpe_dim,
                 "causal": causal, "sm_scale": scale, "fill": -2.0},
                {"q_nope": q_nope.tensor(), "q_pe": q_pe.tensor(), "ckv": drop(ckv), "kpe": drop(kpe),
                 "qo_indptr": ints(cumulative(q_lens)), "ragged_kv_indptr": ints(starts), **tables},
                {"o": f32(out, [row, heads, ckv_dim]), "lse": f32(lse, [row, heads]),
                 "mla_paged_kv_cache": packed(cache, "i8", [pages, page_size, width], SCALE)}, (2e-5, 0.03))


def flashinfer_cascade(rng, name, lengths, rows_of, row_position, window=0, page_size=4, heads=2, dim=16):
    """Levels of nodes: keys of each, rows under each. A node begins where the first that has its first row ends."""
    rows = len(row_position)
    firsts, ends = [], [0] * rows  # position after a row's keys so far
    for node_lengths, node_rows in zip(lengths, rows_of):
        starts = cumulative(node_rows)
        firsts.append([ends[min(start, rows - 1)] for start in starts[:-1]])
        for node, length in enumerate(node_lengths):
            for row in range(starts[node], starts[node + 1]):
                ends[row] = firsts[-1][node] + length
    q = Rows(rng, rows, heads, dim)
    scale = dim ** -0.5
    pool = list(range(sum(-(-n // page_size) for level in lengths for n in level) + 2))
    rng.shuffle(pool)
    inputs, outputs = {"q": q.tensor(), "row_position": ints(row_position)}, {}
    seen_by_row = [([], []) for _ in row_position]
    used = 0
    for level, node_lengths in enumerate(lengths):
        k, v = Rows(rng, sum(node_lengths), 1, dim), Rows(rng, sum(node_lengths), 1, dim)
        pages = [-(-n // page_size) for n in node_lengths]
        prefix = "level%d." % level
        inputs.update({
            prefix + "qo_indptr": ints(cumulative(rows_of[level])), prefix + "kv_page_indptr": ints(cumulative(pages)),
            prefix + "kv_page_indices": ints(pool[used:used + sum(pages)]),
            prefix + "kv_last_page_len": ints([n - (p - 1) * page_size if p else 0
                                               for n, p in zip(node_lengths, pages)]),
            prefix + "first_position": ints(firsts[level]), prefix + "ragged_kv_indptr": ints(cumulative(node_lengths)),
            prefix + "k": k.tensor(), prefix + "v": v.tensor()})
        used += sum(pages)
        starts, row, level_lse = cumulative(node_lengths), 0, []
        for node, count in enumerate(rows_of[level]):
            for _ in range(count):
                at = row_position[row]
                seen = [starts[node] + j for j in range(node_lengths[node])
                        if firsts[level][node] + j <= at and (window == 0 or at - firsts[level][node] - j < window)]
                keys, values = [k.at(j, 0) for j in seen], [v.at(j, 0) for j in seen]
                seen_by_row[row][0].extend(keys)
                seen_by_row[row][1].extend(values)
                level_lse += [attend(q.at(row, h), keys, values, scale)[1] for h in range(heads)]
                row += 1
        outputs[prefix + "lse"] = f32(level_lse, [rows, heads])
    out, lse = [], []
    for row, (keys, values) in enumerate(seen_by_row):
        for h in range(heads):
            o, l = attend(q.at(row, h), keys, values, scale)
            out += o
            lse.append(l)
    outputs.update({"o": f32(out, [rows, heads, dim]), "lse": f32(lse, [rows, heads])})
    return case("flashinfer.cascade", "cascade %s window %d" % (name, window),
                {"num_levels": len(lengths), "page_size": page_size, "num_pages": len(pool), "window": window,
                 "sm_scale": scale},
                inputs, outputs, (2e-5, 0.03))


def cascade_in_page(rng, window, **shape):
    """A prefix of 10 tokens under three requests of 5, 1 and 0 own ones, which begin within its last page."""
    return flashinfer_cascade(rng, "two levels", [[10], [5, 1, 0]], [[4], [2, 1, 1]], [13, 14, 10, 9], window, **shape)


def cascade_of_pages(rng, window, **shape):
    """Whole pages over the last level: a system prompt, two documents and a turn, and requests, one without a turn."""
    return flashinfer_cascade(rng, "whole pages", [[8], [4, 8], [5, 1, 0, 7]], [[7], [4, 3], [3, 1, 1, 2]],
                              [16, 14, 12, 12, 13, 22, 18], window, **shape)


def cascade_shared(rng, window, rows=32):
    """As long as the CPU's attention shares: 512 keys under all rows, 512 more under either part, and a row's own."""
    first = rows // 2 + 2  # not by fours, which read together: two of them go with two of the others
    own = [1 + row % 5 for row in range(rows)]
    position = [1024 + rng.randrange(n) for n in own]
    return flashinfer_cascade(rng, "shared", [[512], [512, 512], own], [[rows], [first, rows - first], [1] * rows],
                              position, window, 16, 2, 4)


def cascade_wide(rng, rows=256, other=6):
    """As much as the CUDA kernels share: 4 tiles of 64 keys under 250 rows and 1 under all save 8 MiB of a layer."""
    position = [320 + rng.randrange(8) for _ in range(rows)]
    return flashinfer_cascade(rng, "wide", [[64], [264, 264]], [[rows], [rows - other, other]], position, 0, 16, 1, 32)


# ---- OpenPPL

def openppl(rng, mode, layout, bits, group, repeat, t1, t3, page_size=3):
    layers, heads, dim, layer = 2, 2, 8, rng.randint(0, 1)
    batch, tokens = 2, 24
    held = [[], []]  # positions' rows of each sequence
    x_bytes = dim // 2 if bits == 4 else dim
    groups = dim // group

    def index(width, token, which, head):
        place = {0: ((token * layers + layer) * 2 + which) * heads + head,
                 1: ((layer * tokens + token) * 2 + which) * heads + head,
                 2: ((layer * 2 + which) * tokens + token) * heads + head,
                 3: ((layer * 2 + which) * heads + head) * tokens + token}[layout]
        return place * width
    lead = {0: [tokens, layers, 2, heads], 1: [layers, tokens, 2, heads], 2: [layers, 2, tokens, heads],
            3: [layers, 2, heads, tokens]}[layout]
    bare = t1 == "i8"  # whole numbers as they come
    scale = None if bare else SCALE
    cache = [77 if bits else -128] * shape_size(lead + [x_bytes])
    scales = [-3.0] * shape_size(lead + [groups])
    starts = [2, 13] if mode == 0 else [[5, 0, 17, -1], [9, 21, 12, -1]]

    def slot(b, p):
        return starts[b] + p if mode == 0 else starts[b][p // page_size] + p % page_size

    round_t1 = f16_round if t1 == "f16" else f32_round
    round_t3 = f16_round if t3 == "f16" else f32_round

    def store(token, which, head, stored):
        """Writes a row of numbers over 64; returns what reads give back."""
        row = stored if bare else [v * SCALE for v in stored]
        if bits == 0:
            at = index(dim, token, which, head)
            cache[at:at + dim] = stored
            return row
        most = 2 ** (bits - 1) - 1
        back, codes = [], []
        for g in range(groups):
            part = row[g * group:(g + 1) * group]
            # The quotient of two f32 in double, rounded to f32, is the f32 division.
            s = round_t3(max(f32_round(max(abs(x) for x in part) / most), f32_round(1e-5)))
            scales[index(groups, token, which, head) + g] = s
            for x in part:
                code = max(-most, min(most, round(f32_round(x / s))))
                codes.append(code)
                back.append(round_t1(f32_round(code * s)))
        if bits == 4:
            codes = [(codes[i] & 15) | ((codes[i + 1] & 15) << 4) for i in range(0, dim, 2)]
            codes = [c - 256 if c > 127 else c for c in codes]
        at = index(x_bytes, token, which, head)
        cache[at:at + x_bytes] = codes
        return back

    calls = []
    for seqlens in ([4, 1], [1, 3], [3, 2]):
        start_pos = [len(h) for h in held]
        k, v = Rows(rng, sum(seqlens), heads, dim, 127), Rows(rng, sum(seqlens), heads, dim, 127)
        row = 0
        for b, count in enumerate(seqlens):
            for _ in range(count):
                token = slot(b, len(held[b]))
                part = lambda rows, h: rows.stored[(row * heads + h) * dim:(row * heads + h + 1) * dim]
                held[b].append([[store(token, which, h, part(rows, h)) for h in range(heads)]
                                for which, rows in enumerate((k, v))])
                row += 1
        out = {}
        for which, name in enumerate(("key", "value")):
            numbers = [x for b in range(batch) for token in held[b] for h in range(heads * repeat)
                       for x in token[which][h // repeat]]
            out[name] = packed(numbers, "i8" if bare else "f32", [sum(len(h) for h in held), heads * repeat, dim])
        kvlens = [len(h) for h in held]
        calls.append({"in": {
            "current_key": k.tensor(scale), "current_value": v.tensor(scale), "seqstarts": ints(cumulative(seqlens), "i64"),
            "kvstarts": ints(cumulative(kvlens), "i64"), "start_pos": ints(start_pos, "i64"),
            "cachestarts": ints(starts, "i64") if mode == 0 else ints(sum(starts, []), "i64", [2, 4]),
            "max_seqlen": ints([max(seqlens)], "i64", []), "max_kvlen": ints([max(kvlens)], "i64", [])}, "out": out})
    inputs = {"cache": {"dtype": "i8" if bits else t1, "shape": lead + [x_bytes],
                        "fill": 77 if bits else -128 if bare else -2.0}}
    outputs = {"cache": packed(cache, "i8", lead + [x_bytes], None if bits else scale)}
    if bits:
        inputs["scale"] = {"dtype": t3, "shape": lead + [groups], "fill": -3.0}
        outputs["scale"] = packed(scales, t3, lead + [groups])
    return case("openppl.key_value_cache", "mode %d layout %d bits %d group %d repeat %d %s %s" % (
                    mode, layout, bits, group, repeat, t1, t3),
                {"num_layer": layers, "layer_idx": layer, "quant_bit": bits, "quant_group": group,
                 "num_repeat": repeat, "cache_mode": mode, "cache_layout": layout, "page_size": page_size, "t1": t1,
                 "t3": t3}, inputs, outputs, calls=calls)


# ---- Ascend

def ascend_shape(window, head_size, rule):
    block = 128 if head_size <= 128 else (64 if rule == "python" else 16384 // head_size // 16 * 16)
    if window <= 3 * block:
        return block, window
    rest = window % block
    return block, 3 * block if rule == "python" and rest == 0 else 2 * block + rest


def band(size, window):
    return {"first": ints([max(0, i - window + 1) for i in range(size)], "i16"),
            "end": ints([i + 1 for i in range(size)], "i16")}


def ascend_full(maxseq, window, value):
    return case("ascend.mask", "full %d window %d value %g" % (maxseq, window, value),
                {"form": "full", "maxseq": maxseq, "window": window, "masked_value": value}, {}, band(maxseq, window))


def ascend_compressed(window, head_size, rule):
    block, compressed = ascend_shape(window, head_size, rule)
    return case("ascend.mask", "compressed window %d head %d %s" % (window, head_size, rule),
                {"form": "compressed", "maxseq": 512, "window": window, "head_size": head_size, "rule": rule,
                 "masked_value": -65536.0}, {},
                {"block": ints([block], shape=[]), "compressed_window": ints([compressed], shape=[]),
                 **band(512, compressed)})


def ascend_tiles(seqlen, window, head_size, rule):
    """Tiles found by looking: the compressed tile whose pattern is that of the full mask."""
    block, compressed = ascend_shape(window, head_size, rule)

    def pattern(d, w):
        return [0 <= d * block + m - n < w for m in range(block) for n in range(block)]
    tiles = []
    for d in range(-(-seqlen // block)):
        wanted = pattern(d, window)
        if not any(wanted):
            tiles.append(-2)
        elif all(wanted):
            tiles.append(-1)
        else:
            tiles.append(next(t for t in range(512 // block) if pattern(t, compressed) == wanted))
    return case("ascend.tiles", "tiles %d window %d head %d %s" % (seqlen, window, head_size, rule),
                {"seqlen": seqlen, "window": window, "head_size": head_size, "rule": rule}, {},
                {"block": ints([block], shape=[]), "compressed_window": ints([compressed], shape=[]),
                 "tile": ints(tiles)})


# ---- the article

def article_trace(seqlens, window, chunk, decode_steps):
    rings = [[-1] * window for _ in seqlens]
    seen = [0] * len(seqlens)
    steps = []

    def step(phase, counts):
        made = {"phase": phase, "seen": list(seen), "q_len": counts, "kv_len": [], "positions": [],
                "cache_positions": [], "key_positions": [], "mask": [], "ring": []}
        before = [list(ring) for ring in rings]
        for b, count in enumerate(counts):
            new = list(range(seen[b], seen[b] + count))
            for p in new[-window:]:
                rings[b][p % window] = p
                made["cache_positions"].append(p % window + b * window)
            keys = rings[b] if phase == "decode" else sorted(p for p in before[b] if p >= 0) + new
            made["positions"].append(new)
            made["key_positions"].append(list(keys))
            made["kv_len"].append(sum(p >= 0 for p in keys))
            made["ring"].append(list(rings[b]))
            seen[b] += count
        width = sum(len(keys) for keys in made["key_positions"])
        column = 0
        for new, keys in zip(made["positions"], made["key_positions"]):
            for p in new:
                row = ["0"] * width
                for j, key in enumerate(keys):
                    if 0 <= key <= p and p - key < window:
                        row[column + j] = "1"
                made["mask"].append("".join(row))
            column += len(keys)
        steps.append(made)
    for begin in range(0, max(seqlens), chunk):
        step("first_prefill" if begin == 0 else "subsequent_prefill",
             [max(0, min(chunk, length - begin)) for length in seqlens])
    for _ in range(decode_steps):
        step("decode", [1] * len(seqlens))
    return case("article.trace", "trace %s window %d chunk %d" % (seqlens, window, chunk),
                {"seqlens": seqlens, "window": window, "chunk": chunk, "decode_steps": decode_steps}, {},
                {"steps": steps})


def article_attention(rng, seqlens, window, chunk, decode_steps, q_heads=2, kv_heads=1, dim=32):
    totals = [length + decode_steps for length in seqlens]
    starts = cumulative(totals)
    q = Rows(rng, starts[-1], q_heads, dim)
    k, v = Rows(rng, starts[-1], kv_heads, dim), Rows(rng, starts[-1], kv_heads, dim)
    scale = dim ** -0.5
    out = []
    for b, total in enumerate(totals):
        for p in range(total):
            seen = [starts[b] + j for j in range(max(0, p - window + 1), p + 1)]
            for h in range(q_heads):
                kv_head = h // (q_heads // kv_heads)
                out += attend(q.at(starts[b] + p, h), [k.at(j, kv_head) for j in seen],
                              [v.at(j, kv_head) for j in seen], scale)[0]
    return case("article.attention", "rolling %s window %d chunk %d" % (seqlens, window, chunk),
                {"seqlens": seqlens, "window": window, "chunk": chunk, "decode_steps": decode_steps,
                 "sm_scale": scale},
                {"q": q.tensor(), "k": k.tensor(), "v": v.tensor(), "indptr": ints(starts)},
                {"o": f32(out, [starts[-1], q_heads, dim])}, (2e-5, 0.03))


# ---- endless contexts

class Context:
    """The tokens held, one by one: no formula."""

    def __init__(self, policy, n_ctx, n_keep, n_discard):
        self.policy, self.n_ctx, self.n_keep, self.n_discard = policy, n_ctx, n_keep, n_discard
        self.held, self.discarded = [], 0

    def events(self, prompt, tokens):
        """(token, count, tokens seen by its last row with their positions, its query position, left)."""
        for first, count in [(0, prompt)] + [(t, 1) for t in range(prompt, tokens)]:
            again = False
            if self.policy == "sinks":
                self.held += range(first, first + count)
                self.held = self.held[:self.n_keep] + self.held[self.n_keep:][-(self.n_ctx - self.n_keep):]
            else:
                while len(self.held) + count > self.n_ctx:
                    del self.held[self.n_keep:self.n_keep + self.n_discard]
                    self.discarded += self.n_discard
                    again = self.policy == "reevaluate"
                self.held += range(first, first + count)
            left = next((t for t in self.held if t >= self.n_keep), self.n_keep)
            if again:
                yield left, first + count - left, list(self.held), left
            else:
                yield first, count, list(self.held), left

    def position(self, token):
        return token if self.policy == "sinks" else self.held.index(token)


def plan_attrs(policy, n_ctx, n_keep, n_discard, prompt, tokens):
    return {"policy": policy, "n_ctx": n_ctx, "n_keep": n_keep, "n_discard": n_discard, "prompt": prompt,
            "tokens": tokens}


def streaming_plan(policy, n_ctx, n_keep, n_discard, prompt, tokens):
    context = Context(policy, n_ctx, n_keep, n_discard)
    columns = {name: [] for name in ("token", "count", "discarded", "first_row", "query_position", "held", "left")}
    row = 0
    for token, count, held, left in context.events(prompt, tokens):
        last = token + count - 1
        values = (token, count, context.discarded, row, context.position(last), len(held), left)
        for column, value in zip(columns.values(), values):
            column.append(value)
        row += count
    return case("streaming.plan",
                "plan %s %d/%d/%d prompt %d of %d" % (policy, n_ctx, n_keep, n_discard, prompt, tokens),
                plan_attrs(policy, n_ctx, n_keep, n_discard, prompt, tokens), {},
                {name: ints(column) for name, column in columns.items()})


def rotate(vector, position, theta, style):
    half = len(vector) // 2
    out = list(vector)
    for j in range(half):
        a, b = (j, j + half) if style == "half" else (2 * j, 2 * j + 1)
        angle = position * theta ** (-2 * j / len(vector))
        out[a] = vector[a] * math.cos(angle) - vector[b] * math.sin(angle)
        out[b] = vector[a] * math.sin(angle) + vector[b] * math.cos(angle)
    return out


def streaming_attention(rng, policy, n_ctx, n_keep, n_discard, prompt, tokens, window, style, q_heads=2, kv_heads=1,
                        dim=16):
    plan = streaming_plan(policy, n_ctx, n_keep, n_discard, prompt, tokens)["out"]
    rows = sum(plan["count"]["data"])
    theta, scale = 10000.0, dim ** -0.5
    q, k, v = (Rows(rng, rows, heads, dim) for heads in (q_heads, kv_heads, kv_heads))
    context = Context(policy, n_ctx, n_keep, n_discard)
    row_of, out, first_row = {}, [], 0
    for token, count, _, _ in context.events(prompt, tokens):
        for j in range(count):
            row_of[token + j] = first_row + j
        for j in range(count):
            at = token + j
            # An earlier row of the event sees what it would have seen as the last one.
            if policy == "sinks":
                seen = [t for t in range(at + 1) if t < n_keep or t > at - (n_ctx - n_keep)]
            else:
                seen = [t for t in context.held if t <= at]
            position = context.position if policy != "sinks" else (lambda t: t)
            seen = [t for t in seen if window == 0 or position(at) - position(t) < window or
                    (policy == "sinks" and t < n_keep)]
            for h in range(q_heads):
                kv_head = h // (q_heads // kv_heads)
                query = rotate(q.at(row_of[at], h), position(at), theta, style)
                out += attend(query, [rotate(k.at(row_of[t], kv_head), position(t), theta, style) for t in seen],
                              [v.at(row_of[t], kv_head) for t in seen], scale)[0]
        first_row += count
    return case("streaming.attention", "attention %s %d/%d/%d prompt %d of %d window %d %s" % (
                    policy, n_ctx, n_keep, n_discard, prompt, tokens, window, style),
                {**plan_attrs(policy, n_ctx, n_keep, n_discard, prompt, tokens), "window": window, "rope_style": style,
                 "rope_theta": theta, "sm_scale": scale},
                {**{name: plan[name] for name in ("token", "count", "discarded", "first_row")}, "q": q.tensor(),
                 "k": k.tensor(), "v": v.tensor()}, {"o": f32(out, [rows, q_heads, dim])}, (5e-5, 0.06))


def rope_shift(rng, style, delta, dim):
    rows, heads, theta = 4, 2, 10000.0
    k = Rows(rng, rows, heads, dim)
    positions = [rng.randint(3, 5000) for _ in range(rows)]
    turned = {name: [x for r in range(rows) for h in range(heads)
                     for x in rotate(k.at(r, h), positions[r] + by, theta, style)]
              for name, by in (("rotated", 0), ("shifted", delta))}
    return case("rope.shift", "rope %s dim %d delta %d" % (style, dim, delta),
                {"style": style, "theta": theta, "delta": delta}, {"k": k.tensor(), "position": ints(positions)},
                {name: f32(values, k.shape) for name, values in turned.items()}, (1e-5, 0.02))


# ---- prefix hits

def prefix_hit(rng, prompt, page_size, groups, drop, cached=None):
    """groups: (window, n_keep). The hit is found by trying every length. cached: pages, of each group."""
    pages = -(-prompt // page_size)
    made = [{"window": window, "n_keep": n_keep,
             "cached": [p for p in range(pages) if rng.random() >= drop or p < 2]} for window, n_keep in groups]
    if cached is not None:
        made = [dict(group, cached=cached) for group in made]

    def suffices(length):
        for group in made:
            first = 0 if group["window"] == 0 else max(0, length - group["window"] + 1)
            wanted = set(range(first, length)) | set(range(min(group["n_keep"], length)))
            if any(position // page_size not in group["cached"] for position in wanted):
                return False
        return True
    hit = max(length for length in range(0, prompt, page_size) if suffices(length))
    which = "drop %g" % drop if cached is None else "pages %s" % cached
    return case("prefix.hit", "prefix %d page %d %s %s" % (prompt, page_size, groups, which),
                {"prompt": prompt, "page_size": page_size, "groups": made}, {}, {"hit_tokens": hit})


# ---- fp8

def e4m3_values():
    for code in range(127):
        exponent, mantissa = code >> 3, code & 7
        yield mantissa / 512 if exponent == 0 else (8 + mantissa) * 2.0 ** (exponent - 10)


def fp8():
    values = list(e4m3_values())
    x = [0.0, -0.0, 448.0, 449.0, 1e9, -1e9, 464.0, 1e-9, -1e-9, 2.0 ** -10, 3 * 2.0 ** -10]
    x += [(a + b) / 2 for a, b in zip(values, values[1:])]  # ties
    x += [-(a + b) / 2 * 1.001 for a, b in zip(values, values[1:])]
    x = [f32_round(value) for value in x]
    codes = []
    for value in x:
        size = min(abs(value), 448.0)
        code = min(range(127), key=lambda c: (abs(values[c] - size), c & 1))
        codes.append(code | (128 if math.copysign(1, value) < 0 else 0))
    decoded = [values[c & 127] * (-1 if c & 128 else 1) for c in codes]
    return case("fp8.e4m3", "fp8 ties and ends", {}, {"x": f32(x, [len(x)])},
                {"code": ints(codes, "u8"), "decoded": f32(decoded, [len(x)])})


def files():
    rng = random.Random(20)
    yield "flashinfer", [
        flashinfer_mask(rng, [3, 0, 5], [7, 4, 5]), flashinfer_mask(rng, [1], [1]),
        flashinfer_append(rng, "NHD", "pair", [6, 0, 3], [6, 0, 1], 2, 4, 4),
        flashinfer_append(rng, "HND", "single", [5, 2], [2, 2], 3, 4, 1),
        flashinfer_attention(rng, [3, 1, 0], [9, 21, 5], 4, 2, 32, 4, True, -1, "none"),
        flashinfer_attention(rng, [11, 2], [11, 70], 2, 2, 32, 16, True, 4, "none"),
        flashinfer_attention(rng, [3, 2], [2, 0], 2, 1, 8, 4, True, -1, "none"),
        flashinfer_attention(rng, [4, 2], [9, 6], 2, 1, 8, 5, False, -1, "none"),
        flashinfer_attention(rng, [4, 2], [9, 6], 2, 1, 8, 5, False, 2, "none"),
        flashinfer_attention(rng, [5, 0, 3], [7, 3, 13], 6, 2, 16, 4, False, -1, "bool"),
        flashinfer_attention(rng, [10, 1], [70, 9], 2, 1, 8, 16, True, 1, "packed"),
        flashinfer_mla(rng, [2, 1], [6, 9], 3, 24, 8, 4, True), flashinfer_mla(rng, [12], [12], 2, 16, 4, 5, False),
        cascade_in_page(rng, 0), cascade_in_page(rng, 3)]
    yield "openppl", [
        openppl(rng, mode, layout, bits, group, repeat, t1, t3)
        for mode, layout, bits, group, repeat, t1, t3 in (
            (0, 0, 0, 8, 2, "f32", "f32"), (0, 1, 8, 4, 1, "f32", "f32"), (0, 2, 4, 8, 1, "f16", "f16"),
            (0, 3, 0, 8, 1, "f16", "f32"), (1, 0, 4, 2, 2, "f32", "f16"), (1, 1, 0, 8, 1, "f32", "f32"),
            (1, 2, 8, 8, 1, "f16", "f16"), (1, 3, 4, 4, 3, "f32", "f32"))] + [
        openppl(random.Random(34), mode, layout, 0, 8, repeat, "i8", "f32")
        for mode, layout, repeat in ((0, 0, 1), (1, 3, 2))]
    yield "ascend", [
        ascend_full(9, 1, -65536.0), ascend_full(6, 100, 1.0), ascend_compressed(385, 128, "python"),
        ascend_compressed(700, 200, "cpp"), ascend_compressed(5, 64, "python"),
        ascend_tiles(1100, 385, 64, "python"), ascend_tiles(1100, 512, 128, "cpp"),
        ascend_tiles(1100, 512, 128, "python"), ascend_tiles(260, 64, 1024, "cpp"), ascend_tiles(130, 1, 16, "cpp"),
        ascend_tiles(600, 200, 256, "python")]
    yield "article", [
        article_trace([4, 1, 3], 3, 2, 3), article_trace([9, 5], 3, 4, 2), article_trace([1], 1, 3, 2),
        article_trace([20, 2, 33], 6, 7, 4), article_attention(rng, [7, 1, 3], 3, 2, 3),
        article_attention(rng, [20], 5, 20, 2, dim=8), article_attention(rng, [4, 9], 1, 3, 2, 4, 2, 8)]
    yield "streaming", [
        streaming_plan("sinks", 8, 3, 0, 8, 20), streaming_plan("shift", 8, 0, 3, 5, 20),
        streaming_plan("reevaluate", 8, 2, 6, 8, 24), streaming_plan("shift", 6, 5, 1, 1, 12),
        streaming_attention(rng, "sinks", 8, 3, 0, 6, 20, 0, "half"),
        streaming_attention(rng, "sinks", 8, 2, 0, 8, 20, 3, "interleaved"),
        streaming_attention(rng, "shift", 8, 2, 3, 7, 24, 0, "interleaved"),
        streaming_attention(rng, "shift", 10, 3, 4, 4, 24, 6, "half", 4, 2),
        streaming_attention(rng, "reevaluate", 8, 2, 3, 8, 20, 0, "half"),
        streaming_attention(rng, "reevaluate", 8, 3, 5, 5, 20, 4, "interleaved"),
        rope_shift(rng, "half", -3, 16), rope_shift(rng, "interleaved", 1000, 12),
        streaming_plan("shift", 6, 0, 6, 2, 16), streaming_plan("reevaluate", 5, 0, 5, 5, 16),
        streaming_plan("sinks", 8, 3, 0, 5, 5),
        # The window leaves the sinks before they fill their page: what a discard leaves begins in front of them.
        streaming_attention(random.Random(22), "reevaluate", 20, 18, 2, 20, 24, 1, "half", dim=8)]
    yield "prefix", [
        prefix_hit(rng, 65, 16, [(0, 0)], 0), prefix_hit(rng, 64, 16, [(0, 0)], 0),
        prefix_hit(rng, 100, 1, [(9, 0)], 0.1), prefix_hit(rng, 120, 8, [(0, 0), (20, 3)], 0.1),
        prefix_hit(rng, 200, 5, [(13, 7), (1, 0)], 0.2), prefix_hit(rng, 7, 16, [(0, 0)], 0),
        # Windows that begin with a page: one token more would be in the page before it, which is not there.
        prefix_hit(rng, 18, 4, [(5, 0)], 0, cached=[3]), prefix_hit(rng, 18, 4, [(5, 3)], 0, cached=[0, 3])]
    yield "fp8", [fp8()]
    # Heads as wide as the CUDA kernels take them.
    rng = random.Random(21)
    yield "wide", [
        streaming_attention(rng, "sinks", 8, 3, 0, 6, 20, 0, "half", 4, 2, 32),
        streaming_attention(rng, "shift", 10, 3, 4, 4, 24, 6, "interleaved", 2, 1, 64),
        streaming_attention(rng, "reevaluate", 8, 2, 3, 8, 20, 0, "half", 2, 1, 32),
        flashinfer_attention(rng, [5, 0, 3], [7, 3, 13], 6, 2, 32, 4, False, -1, "bool"),
        flashinfer_attention(rng, [10, 1], [70, 9], 2, 1, 64, 16, True, 1, "packed"),
        flashinfer_attention(rng, [4, 2], [9, 6], 2, 1, 32, 5, False, 2, "none"),
        flashinfer_attention(rng, [3, 2], [2, 0], 2, 1, 32, 4, True, -1, "none"),
        cascade_in_page(rng, 3, dim=32)]
    # Prefixes that one Attention shares.
    rng = random.Random(23)
    yield "cascade", [
        cascade_of_pages(rng, 0), cascade_of_pages(rng, 6), cascade_of_pages(rng, 0, dim=32),
        cascade_shared(rng, 0), cascade_shared(rng, 900), cascade_wide(rng)]


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    for name, cases in files():
        with open(os.path.join(sys.argv[1], name + ".json"), "w") as file:
            lines = ",\n".join(json.dumps(made, separators=(",", ":")) for made in cases)
            file.write('{"format":"tramontane-kv-vectors","version":1,"cases":[\n%s\n]}\n' % lines)


if __name__ == "__main__":
    main()
