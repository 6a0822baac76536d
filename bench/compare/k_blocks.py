"""Numbers as blocks of Q4_K, Q5_K and Q6_K: PyPI's gguf reads these and writes none of them.

A plain encoder: the scale of each part of a block comes from its least and its largest number alone. What searches for better
scales, as llama-quantize does, loses less.
"""

import gguf
import numpy as np

BLOCK = 256
HALF = np.dtype("<f2")


def encode(values: np.ndarray, kind: gguf.GGMLQuantizationType) -> np.ndarray:
    """uint8 [rows, bytes of a row] of f32 [rows, columns]. gguf reads them back with an error of half a step or so."""
    rows = values.shape[0]
    blocks = values.astype(np.float32).reshape(-1, BLOCK)
    encoders = {"Q4_K": lambda of: with_least(of, 4), "Q5_K": lambda of: with_least(of, 5), "Q6_K": q6_k}
    encoded = encoders[kind.name](blocks).reshape(rows, -1)
    lost = np.abs(gguf.quants.dequantize(encoded, kind) - values).reshape(-1, BLOCK).max(axis=1)
    step = 2 * np.abs(blocks).max(axis=1) / {"Q4_K": 15, "Q5_K": 31, "Q6_K": 62}[kind.name]
    if np.any(lost > step):
        raise RuntimeError(f"{kind.name}: what gguf reads is not what was written")
    return encoded


def over(numerator, denominator):
    """0 where the denominator is."""
    return np.divide(numerator, denominator, out=np.zeros_like(numerator), where=denominator != 0)


def halves(values) -> tuple[np.ndarray, np.ndarray]:
    """[blocks, 2] bytes of each, and what they say, [blocks, 1]."""
    stored = values.astype(HALF).reshape(-1, 1)
    return stored.view(np.uint8), stored.astype(np.float32)


def with_least(blocks: np.ndarray, bits: int) -> np.ndarray:
    """Q4_K and Q5_K: eight parts of 32, each d scale q - dmin least, with q from 0 to 15 or 31."""
    parts = blocks.reshape(-1, 8, 32)
    levels = (1 << bits) - 1
    least = -np.minimum(parts.min(axis=2), 0)
    steps = (np.maximum(parts.max(axis=2), 0) + least) / levels
    d_bytes, d = halves(steps.max(axis=1) / 63)
    least_bytes, d_least = halves(least.max(axis=1) / 63)
    scale = np.clip(np.rint(over(steps, np.broadcast_to(d, steps.shape))), 0, 63).astype(np.uint8)
    minimum = np.clip(np.rint(over(least, np.broadcast_to(d_least, least.shape))), 0, 63).astype(np.uint8)
    step = np.broadcast_to((d * scale)[:, :, None], parts.shape)
    q = np.clip(np.rint(over(parts + (d_least * minimum)[:, :, None], step)), 0, levels).astype(np.uint8)

    # 12 bytes of eight scales and eight minimums in 6 bits: the upper two of the last four stand over the first four.
    upper = [scale[:, :4] | (scale[:, 4:] >> 4 << 6), minimum[:, :4] | (minimum[:, 4:] >> 4 << 6)]
    lower = (scale[:, 4:] & 15) | ((minimum[:, 4:] & 15) << 4)
    pieces = [d_bytes, least_bytes, *upper, lower]
    if bits == 5:
        fifth = (q >> 4 << np.arange(8, dtype=np.uint8)[:, None]).astype(np.uint8)
        pieces.append(np.bitwise_or.reduce(fifth, axis=1))
    pairs = (q & 15).reshape(-1, 4, 2, 32)
    pieces.append((pairs[:, :, 0] | (pairs[:, :, 1] << 4)).reshape(len(blocks), -1))
    return np.concatenate(pieces, axis=1)


def q6_k(blocks: np.ndarray) -> np.ndarray:
    """16 parts of 16, each d scale q, with q from -32 to 31 and a scale of 8 bits."""
    parts = blocks.reshape(-1, 16, 16)
    steps = np.abs(parts).max(axis=2) / 31
    d_bytes, d = halves(steps.max(axis=1) / 127)
    scale = np.clip(np.rint(over(steps, np.broadcast_to(d, steps.shape))), 0, 127).astype(np.int8)
    step = np.broadcast_to((d * scale)[:, :, None], parts.shape)
    q = (np.clip(np.rint(over(parts, step)), -32, 31) + 32).astype(np.uint8)

    quarters = q.reshape(-1, 2, 4, 32)  # of each half
    low = quarters & 15
    low_bytes = np.concatenate([low[:, :, 0] | (low[:, :, 2] << 4), low[:, :, 1] | (low[:, :, 3] << 4)], axis=2)
    high_bytes = np.bitwise_or.reduce(quarters >> 4 << np.array([0, 2, 4, 6], np.uint8)[:, None], axis=2)
    count = len(blocks)
    pieces = [low_bytes.reshape(count, -1), high_bytes.reshape(count, -1), scale.view(np.uint8), d_bytes]
    return np.concatenate(pieces, axis=1)
