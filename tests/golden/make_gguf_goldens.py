"""Writes the golden GGUF files, with PyPI's `gguf` and what it computes.

    pip install gguf numpy
    python3 tests/golden/make_gguf_goldens.py

gguf_types: a file of no model with a tensor of each type that is read, of random blocks, and what `inspect --tensors`
must print of it; besides, the same of folders of safetensors. Scales are any finite half: zero, negative,
subnormal and the largest.

NAME_gguf: the model of the folder NAME a second time, as llama.cpp's converter would write it: its names, rows of
queries and keys with rotated pairs side by side, experts stacked, Llama 3's bands as a tensor of divisors. What it computes is
NAME's golden.json, which is copied.
"""

import hashlib
import json
import math
import pathlib
import re
import shutil
import struct

import gguf
import numpy as np

HERE = pathlib.Path(__file__).resolve().parent
TYPES = ["F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K"]
MODELS = ["llama", "llama3_scaling", "mixtral", "ministral3", "layer_types"]
SPLIT = {"layer_types": 20}  # tensors of a part, where a model is in several
# What follows the layer's number.
NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "block_sparse_moe.gate": "ffn_gate_inp",
}
EXPERTS = {"w1": "ffn_gate_exps", "w3": "ffn_up_exps", "w2": "ffn_down_exps"}
# Where the halves of a block stand, in bytes.
SCALES = {
    "Q8_0": [0],
    "Q4_0": [0],
    "Q4_1": [0, 2],
    "Q5_0": [0],
    "Q5_1": [0, 2],
    "Q4_K": [0, 2],
    "Q5_K": [0, 2],
    "Q6_K": [208],
}
ODD_HALVES = [0.0, -0.0, -0.1, 6e-8, -6.1e-5, 65504.0, -65504.0, 1.0]


def describe(name, type_name, values):
    values = np.ascontiguousarray(values, dtype="<f4")
    return {
        "name": name,
        "type": type_name,
        "shape": list(values.shape),
        "f32_sha256": hashlib.sha256(values.tobytes()).hexdigest(),
        "head": [float(v) for v in values.ravel()[:8]],
    }


def random_blocks(random, type_name, rows, columns):
    """uint8 [rows, bytes of a row]: any bits, with scales that are finite."""
    kind = gguf.GGMLQuantizationType[type_name]
    numbers, size = gguf.GGML_QUANT_SIZES[kind]
    if type_name == "F32":
        return random.standard_normal((rows, columns)).astype("<f4").view(np.uint8)
    if type_name in ("F16", "BF16"):
        bits = random.integers(0, 1 << 16, (rows, columns)).astype("<u2")
        exponent = 0x7C00 if type_name == "F16" else 0x7F80
        return np.where(bits & exponent == exponent, bits & ~np.uint16(0x4000), bits).astype("<u2").view(np.uint8)
    blocks = random.integers(0, 256, (rows * columns // numbers, size), dtype=np.uint8)
    for at in SCALES[type_name]:
        halves = (random.standard_normal(len(blocks)) * 10.0 ** random.integers(-4, 3, len(blocks))).astype("<f2")
        halves[-len(ODD_HALVES) :] = np.roll(np.array(ODD_HALVES, "<f2"), at)[-len(halves) :]
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)
    return blocks.reshape(rows, -1)


def write_types(folder):
    folder.mkdir(exist_ok=True)
    random = np.random.default_rng(17)
    writer = gguf.GGUFWriter(folder / "types.gguf", "no_architecture")
    writer.add_array("some.strings", ["a", "b"])
    lines = []
    for type_name in TYPES:
        kind = gguf.GGMLQuantizationType[type_name]
        raw = random_blocks(random, type_name, 4, 512)
        name = "a." + type_name.lower()
        writer.add_tensor(name, raw, raw_dtype=kind)
        lines.append(describe(name, type_name, gguf.quants.dequantize(raw, kind)))
    cube = random_blocks(random, "Q8_0", 6, 64).reshape(2, 3, -1)
    writer.add_tensor("three.dimensions", cube, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    lines.append(describe("three.dimensions", "Q8_0", gguf.quants.dequantize(cube, gguf.GGMLQuantizationType.Q8_0)))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return lines


def safetensors_of(path):
    """name -> (dtype, values in f32), in the file's order."""
    data = path.read_bytes()
    length = struct.unpack_from("<Q", data)[0]
    header = json.loads(data[8 : 8 + length])
    header.pop("__metadata__", None)
    tensors = {}
    for name, entry in sorted(header.items(), key=lambda item: item[1]["data_offsets"]):
        begin, end = (8 + length + offset for offset in entry["data_offsets"])
        if entry["dtype"] == "BF16":
            values = (np.frombuffer(data[begin:end], "<u2").astype("<u4") << 16).view("<f4")
        else:
            values = np.frombuffer(data[begin:end], {"F32": "<f4", "F16": "<f2"}[entry["dtype"]]).astype("<f4")
        tensors[name] = (entry["dtype"], values.reshape(entry["shape"]))
    return tensors


def gguf_name(name):
    whole = {
        "embed_tokens.weight": "token_embd.weight",
        "norm.weight": "output_norm.weight",
        "lm_head.weight": "output.weight",
    }
    name = name.removeprefix("language_model.").removeprefix("model.").removeprefix("language_model.")
    if name in whole:
        return whole[name]
    layer, rest = re.fullmatch(r"layers\.(\d+)\.(.*)\.weight", name).groups()
    return f"blk.{layer}.{NAMES[rest]}.weight"


def stacked_experts(tensors):
    """The experts of a layer as one tensor each for gate, up and down; the rest as it is."""
    out, stacks = {}, {}
    for name, value in tensors.items():
        expert = re.fullmatch(r"model\.layers\.(\d+)\.block_sparse_moe\.experts\.(\d+)\.(w\d)\.weight", name)
        if expert is None:
            out[gguf_name(name)] = value
        else:
            layer, number, part = expert.groups()
            stacks.setdefault(f"blk.{layer}.{EXPERTS[part]}.weight", {})[int(number)] = value
    for name, of in stacks.items():
        out[name] = (of[0][0], np.stack([of[i][1] for i in range(len(of))]))
    return out


def pairs_side_by_side(values, heads):
    """Rows (i, half + i) of a head become (2i, 2i + 1)."""
    return values.reshape(heads, 2, -1, values.shape[-1]).swapaxes(1, 2).reshape(values.shape)


def rotary_divisors(rope, head_dim):
    """How much longer than by theta the wave of each pair is, in Llama 3's bands."""
    original, slow, fast = (
        rope[k] for k in ("original_max_position_embeddings", "low_freq_factor", "high_freq_factor")
    )
    divisors = []
    for i in range(0, head_dim, 2):
        turns = original * rope["rope_theta"] ** (-i / head_dim) / (2 * math.pi)
        kept = min(max((turns - slow) / (fast - slow), 0.0), 1.0)
        divisors.append(1 / (kept + (1 - kept) / rope["factor"]))
    return np.array(divisors, "<f4")


def add_keys(writer, config):
    rope = config.get("rope_parameters", config)
    writer.add_vocab_size(config["vocab_size"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_dimension_count(config["head_dim"])
    writer.add_rope_freq_base(rope["rope_theta"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    if "num_local_experts" in config:
        writer.add_expert_count(config["num_local_experts"])
        writer.add_expert_used_count(config["num_experts_per_tok"])
    if rope.get("rope_type") == "yarn":
        writer.add_rope_scaling_type(gguf.RopeScalingType.YARN)
        writer.add_rope_scaling_factor(rope["factor"])
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
        writer.add_rope_scaling_yarn_beta_fast(rope["beta_fast"])
        writer.add_rope_scaling_yarn_beta_slow(rope["beta_slow"])
        writer.add_rope_scaling_yarn_log_mul(rope["mscale_all_dim"])
        writer.add_attn_temperature_scale(rope["llama_4_scaling_beta"])
    if "layer_types" in config:
        writer.add_sliding_window(config["sliding_window"])
        writer.add_sliding_window_pattern([kind == "sliding_attention" for kind in config["layer_types"]])


def stored(name, dtype, values):
    """As the type of the safetensors file; norms and routers in f32."""
    if values.ndim == 1 or "ffn_gate_inp" in name or dtype == "F32":
        return values.astype("<f4"), gguf.GGMLQuantizationType.F32
    if dtype == "F16":
        return values.astype("<f2"), gguf.GGMLQuantizationType.F16
    bits = (np.ascontiguousarray(values).view("<u4") >> 16).astype("<u2")
    return bits.view(np.uint8), gguf.GGMLQuantizationType.BF16


def write_model(name):
    source, folder = HERE / name, HERE / f"{name}_gguf"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    shutil.copy(source / "golden.json", folder)
    config = json.loads((source / "config.json").read_text())
    config = config.get("text_config", config)
    tensors = {
        n: v
        for n, v in safetensors_of(source / "model.safetensors").items()
        if "vision_tower" not in n and "multi_modal_projector" not in n
    }
    writer = gguf.GGUFWriter(
        folder / "model.gguf",
        "mistral3" if config["model_type"] == "ministral3" else "llama",
        split_max_tensors=SPLIT.get(name, 0),
    )
    add_keys(writer, config)
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        writer.add_tensor("rope_freqs.weight", rotary_divisors(rope, config["head_dim"]))
    for tensor, (dtype, values) in stacked_experts(tensors).items():
        if tensor.endswith("attn_q.weight"):
            values = pairs_side_by_side(values, config["num_attention_heads"])
        if tensor.endswith("attn_k.weight"):
            values = pairs_side_by_side(values, config["num_key_value_heads"])
        data, kind = stored(tensor, dtype, values)
        writer.add_tensor(tensor, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def main():
    for name in MODELS:
        write_model(name)
    folder = HERE / "gguf_types"
    lines = {"types.gguf": write_types(folder)}
    for name in ("layer_types", "llama"):
        tensors = safetensors_of(HERE / name / "model.safetensors")
        lines[name] = [describe(tensor, *value) for tensor, value in tensors.items()]
    text = ",\n".join(
        f' "{name}": [\n  ' + ",\n  ".join(json.dumps(line) for line in of) + "\n ]" for name, of in lines.items()
    )
    (folder / "tensors.json").write_text("{\n" + text + "\n}\n")


if __name__ == "__main__":
    main()
