"""Writes tests/golden/quantized/: one small model in each form of quantised weights, and what the weights are in f32.

    pip install torch compressed-tensors safetensors numpy
    python3 tests/golden/make_quantized_goldens.py [FORM ..]     # all of them, or those that are named

Each folder is a model as users have them, of random weights. weights.json says of each of its matrices the SHA-256 of
its values in float32, little-endian: scale times (number - zero point), rounded once.

Folders named ct_* but ct_actorder* are written by compressed-tensors, whose decompression must agree: exactly where scales are f32, else
after a rounding to the type of the scales. The others have no writer that runs without a GPU; they follow the published
layouts of AutoAWQ's gemm, of GPTQ, of Hugging Face's fp8 and of Mistral's own.
"""

import hashlib
import json
import pathlib
import re
import shutil
import sys

import numpy as np
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme
from compressed_tensors.quantization.utils import calculate_qparams
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent / "quantized"
HIDDEN, INTER, HEADS, KV_HEADS, HEAD, VOCAB = 64, 160, 2, 1, 32, 48
CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "dtype": "bfloat16",
    "vocab_size": VOCAB,
    "hidden_size": HIDDEN,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "head_dim": HEAD,
    "intermediate_size": INTER,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 512,
    "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
LINEARS = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.v_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    "mlp.gate_proj": (INTER, HIDDEN),
    "mlp.up_proj": (INTER, HIDDEN),
    "mlp.down_proj": (HIDDEN, INTER),
}
EXPERTS = 3
EXPERT = {"w1": (INTER, HIDDEN), "w3": (INTER, HIDDEN), "w2": (HIDDEN, INTER)}
MISTRAL = {
    "model.embed_tokens": "tok_embeddings",
    "model.norm": "norm",
    "lm_head": "output",
    "model.layers.0.input_layernorm": "layers.0.attention_norm",
    "model.layers.0.post_attention_layernorm": "layers.0.ffn_norm",
    "self_attn.q_proj": "attention.wq",
    "self_attn.k_proj": "attention.wk",
    "self_attn.v_proj": "attention.wv",
    "self_attn.o_proj": "attention.wo",
    "mlp.gate_proj": "feed_forward.w1",
    "mlp.down_proj": "feed_forward.w2",
    "mlp.up_proj": "feed_forward.w3",
}
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]


def matrices(name):
    """Modules that a form quantises, in each of the models that there are."""
    linears = {f"model.layers.0.{module}": shape for module, shape in LINEARS.items()}
    if name.endswith("_tied"):
        return {"model.embed_tokens": (VOCAB, HIDDEN)} | linears
    if not name.endswith("_experts"):
        return linears
    attention = {module: shape for module, shape in linears.items() if "attn" in module}
    stem = "model.layers.0.block_sparse_moe.experts"
    return attention | {f"{stem}.{e}.{part}": shape for e in range(EXPERTS) for part, shape in EXPERT.items()}


def config_of(name):
    if name.endswith("_tied"):
        return CONFIG | {"tie_word_embeddings": True}
    if not name.endswith("_experts"):
        return CONFIG
    # Every token has every expert: a choice between two that score alike would be another after a rounding.
    mixture = {"num_local_experts": EXPERTS, "num_experts_per_tok": EXPERTS}
    return CONFIG | {"architectures": ["MixtralForCausalLM"], "model_type": "mixtral"} | mixture


def plain_tensors(random, name):
    """What no form quantises."""
    normal = lambda *shape: torch.from_numpy(random.standard_normal(shape).astype("f4")).bfloat16()
    tensors = {
        "model.embed_tokens.weight": normal(VOCAB, HIDDEN),
        "model.norm.weight": (1 + normal(HIDDEN) / 4).bfloat16(),
        "model.layers.0.input_layernorm.weight": (1 + normal(HIDDEN) / 4).bfloat16(),
        "model.layers.0.post_attention_layernorm.weight": (1 + normal(HIDDEN) / 4).bfloat16(),
        "lm_head.weight": normal(VOCAB, HIDDEN),
    }
    if name.endswith("_tied"):
        del tensors["model.embed_tokens.weight"], tensors["lm_head.weight"]
    if name.endswith("_experts"):
        tensors["model.layers.0.block_sparse_moe.gate.weight"] = normal(EXPERTS, HIDDEN)
    return tensors


def words(numbers, bits):
    """int32 [rows, columns * bits / 32] of numbers [rows, columns], the first one lowest."""
    per_word = 32 // bits
    shifted = numbers.reshape(len(numbers), -1, per_word).astype("u8") << (bits * np.arange(per_word, dtype="u8"))
    return torch.from_numpy(np.bitwise_or.reduce(shifted, axis=-1).astype("u4").view("i4"))


def spread(values, rows, columns, block):
    """Scales or zero points, one for each number: each stands for a block of rows and columns."""
    tall = np.repeat(values, block[0] or rows, axis=0)[:rows]
    return np.repeat(tall, block[1] or columns, axis=1)[:, :columns]


def product(scales, numbers):
    return scales.astype("f4") * numbers.astype("f4")


def f32(tensor):
    return tensor.float().numpy()


# ---- forms: each gives arrays of one module's matrix, by what follows its name, and its values ------------------


def compressed_tensors(form, arguments, dtype):
    scheme = QuantizationScheme(targets=["Linear"], weights=QuantizationArgs(**arguments), format=form)
    compressor = BaseCompressor.get_value_from_registry(form)
    bits = arguments["num_bits"]
    blocks = {"tensor": (0, 0), "channel": (1, 0), "group": (1, arguments.get("group_size"))}
    block = arguments.get("block_structure") or blocks[arguments["strategy"]]

    def encode(random, weight, module):
        rows, columns = weight.shape
        down, across = -(-rows // (block[0] or rows)), -(-columns // (block[1] or columns))
        least, most = np.full((down, across), np.inf), np.full((down, across), -np.inf)
        for r in range(down):
            for c in range(across):
                high, wide = block[0] or rows, block[1] or columns
                part = weight[r * high : (r + 1) * high, c * wide : (c + 1) * wide]
                least[r, c], most[r, c] = part.min(), part.max()
        scale, zero = calculate_qparams(
            torch.from_numpy(least.astype("f4")), torch.from_numpy(most.astype("f4")), scheme.weights
        )
        state = {"weight": torch.from_numpy(weight).to(dtype), "weight_scale": scale.to(dtype), "weight_zero_point": zero}
        if arguments["strategy"] == "tensor":
            state["weight_scale"], state["weight_zero_point"] = scale.to(dtype).reshape(1), zero.reshape(1)
        arrays = compressor.compress(dict(state), scheme)
        assert ("weight_zero_point" in arrays) == (not arguments["symmetric"])
        restored = compressor.decompress(dict(arrays), scheme)["weight"]
        scales = spread(f32(state["weight_scale"]).reshape(down, across), rows, columns, block)
        # Numbers by division: the nearest to what decompression gave.
        zeros = spread(zero.float().numpy().reshape(down, across), rows, columns, block)
        if form == "float-quantized":
            numbers = f32(arrays["weight"])
        else:
            numbers = np.rint(f32(restored) / scales)
            assert np.abs(numbers + zeros).max() <= 1 << (bits - 1)
        values = product(scales, numbers)
        assert torch.equal(torch.from_numpy(values).to(dtype), restored.to(dtype)), "decompression disagrees"
        return arrays, values

    quantization = QuantizationConfig(
        config_groups={"group_0": scheme}, format=form, ignore=["lm_head"], quantization_status="compressed"
    ).model_dump(mode="json")
    return encode, quantization


def awq(group):
    def encode(random, weight, module):
        out, columns = weight.shape
        groups = columns // group
        q = random.integers(0, 16, (out, columns))
        z = random.integers(0, 16, (out, groups))
        s = (random.uniform(0.5, 1, (out, groups)) / 60).astype("f2")
        order = lambda numbers: numbers.T.reshape(numbers.shape[1], -1, 8)[:, :, AWQ_ORDER].reshape(numbers.shape[::-1])
        arrays = {
            "qweight": words(order(q), 4),
            "qzeros": words(order(z), 4),
            "scales": torch.from_numpy(np.ascontiguousarray(s.T)),
        }
        values = product(spread(s, out, columns, (1, group)), q - spread(z, out, columns, (1, group)))
        return arrays, values

    return encode, {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True}


def in_any_order(random, columns, group):
    """The group of each column: as many in each, as activation ordering leaves them."""
    groups = np.arange(columns, dtype="i4") // group
    random.shuffle(groups)
    return groups


def gptq(bits, group, v2=False, symmetric=False, desc_act=False):
    orders = {}

    def encode(random, weight, module):
        out, columns = weight.shape
        step = columns if group == -1 else group
        groups = columns // step
        top = 1 << bits
        q = random.integers(0, top, (out, columns))
        # As stored; of the first version it stands for one more, and 255 of 8 bits is not used.
        stored = random.integers(0, min(top, 255), (out, groups))
        if symmetric:
            stored[:] = top // 2 - (0 if v2 else 1)
        s = (random.uniform(0.5, 1, (out, groups)) / (4 * top)).astype("f2")
        arrays = {
            "qweight": words(q, bits).T.contiguous(),
            "qzeros": words(stored.T, bits),
            "scales": torch.from_numpy(np.ascontiguousarray(s.T)),
        }
        g_idx = np.arange(columns, dtype="i4") // step
        if desc_act:
            # Gate and up share an order, in each expert another, keys and values too, but queries have another;
            # or each has its own.
            expert = re.search(r"experts\.\d+", module)
            which = (columns, out == HIDDEN, desc_act == "each" and len(orders), expert and expert[0])
            g_idx = orders.setdefault(which, in_any_order(random, columns, step))
        arrays["g_idx"] = torch.from_numpy(g_idx.copy())
        return arrays, product(s[:, g_idx], q - (stored + (0 if v2 else 1))[:, g_idx])

    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "desc_act": bool(desc_act), "sym": symmetric}
    return encode, config | {"checkpoint_format": "gptq_v2" if v2 else "gptq", "damp_percent": 0.01}


def pack_quantized_by_groups(group, targets=("Linear",)):
    """actorder "group": what compressed-tensors wrote before release 0.20, which no longer knows it."""

    def encode(random, weight, module):
        rows, columns = weight.shape
        g_idx = in_any_order(random, columns, group)
        q = random.integers(0, 16, (rows, columns))
        # An embedding's numbers are of the size of one.
        s = (random.uniform(0.5, 1, (rows, columns // group)) / (4 if rows == VOCAB else 60)).astype("f4")
        arrays = {
            "weight_packed": words(q, 4),
            "weight_scale": torch.from_numpy(s),
            "weight_shape": torch.tensor([rows, columns]),
            "weight_g_idx": torch.from_numpy(g_idx),
        }
        return arrays, product(s[:, g_idx], q - 8)

    weights = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": group}
    return encode, {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "config_groups": {"group_0": {"targets": list(targets), "weights": weights | {"actorder": "group"}}},
        "ignore": [] if "Embedding" in targets else ["lm_head"],
    }


def fp8(block, name, scale_dtype):
    def encode(random, weight, module):
        rows, columns = weight.shape
        down, across = -(-rows // (block[0] or rows)), -(-columns // (block[1] or columns))
        numbers = torch.from_numpy((weight * 100).astype("f4")).clamp(-448, 448).to(torch.float8_e4m3fn)
        scales = torch.from_numpy((random.uniform(0.5, 1, (down, across)) / 100).astype("f4")).to(scale_dtype)
        arrays = {"weight": numbers, name: scales if block[0] else scales.reshape(())}
        return arrays, product(spread(f32(scales), rows, columns, block), f32(numbers))

    return encode


def forms():
    ct = compressed_tensors
    group32 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 32}
    yield "ct_int4", *ct("pack-quantized", group32 | {"symmetric": True}, torch.bfloat16)
    yield "ct_int4_zero_points", *ct("pack-quantized", group32 | {"symmetric": False}, torch.float32)
    channel8 = {"num_bits": 8, "type": "int", "strategy": "channel", "symmetric": True}
    yield "ct_int8_packed", *ct("pack-quantized", channel8, torch.float16)
    yield "ct_int8", *ct("int-quantized", channel8, torch.bfloat16)
    f8 = {"num_bits": 8, "type": "float", "symmetric": True}
    yield "ct_fp8_channel", *ct("float-quantized", f8 | {"strategy": "channel"}, torch.bfloat16)
    yield "ct_fp8_tensor", *ct("float-quantized", f8 | {"strategy": "tensor"}, torch.float32)
    yield "awq", *awq(32)
    yield "gptq_int4", *gptq(4, 32)
    yield "gptq_int8", *gptq(8, 32, symmetric=True)
    yield "gptq_v2_channel", *gptq(4, -1, v2=True)
    yield "gptq_desc_act", *gptq(4, 32, desc_act=True)
    yield "gptq_int8_desc_act", *gptq(8, 32, v2=True, desc_act="each")
    yield "gptq_desc_act_experts", *gptq(4, 32, desc_act=True)
    yield "ct_actorder", *pack_quantized_by_groups(32)
    yield "ct_actorder_tied", *pack_quantized_by_groups(32, ("Linear", "Embedding"))
    config = {"quant_method": "fp8", "activation_scheme": "dynamic", "modules_to_not_convert": ["lm_head"]}
    blocks = config | {"weight_block_size": [128, 128]}
    yield "fp8_blocks", fp8((128, 128), "weight_scale_inv", torch.float32), blocks
    yield "mistral_fp8", fp8((0, 0), "qscale_weight", torch.bfloat16), {
        "qformat_weight": "fp8_e4m3",
        "qscheme_act": "NO_SCALES",
    }


def params():
    return {
        "dim": HIDDEN,
        "n_layers": 1,
        "n_heads": HEADS,
        "n_kv_heads": KV_HEADS,
        "head_dim": HEAD,
        "hidden_dim": INTER,
        "norm_eps": 1e-5,
        "vocab_size": VOCAB,
        "rope_theta": 10000.0,
        "max_seq_len": 512,
    }


def in_mistrals_names(name):
    for ours, theirs in MISTRAL.items():
        if ours in name:
            return name.removeprefix("model.").replace(ours.removeprefix("model."), theirs)
    raise KeyError(name)


def write(name, encode, quantization):
    folder = HERE / name
    folder.mkdir(parents=True)
    random = np.random.default_rng(17)
    tensors, hashes = plain_tensors(random, name), {}
    for module, shape in matrices(name).items():
        weight = (random.standard_normal(shape) / 8).astype("f4")
        arrays, values = encode(random, weight, module)
        for suffix, array in arrays.items():
            tensors[f"{module}.{suffix}"] = array.contiguous()
        values = np.ascontiguousarray(values, dtype="<f4")
        hashes[f"{module}.weight"] = hashlib.sha256(values.tobytes()).hexdigest()
    native = name.startswith("mistral")
    if native:
        tensors = {in_mistrals_names(n): v for n, v in tensors.items()}
        hashes = {in_mistrals_names(n): v for n, v in hashes.items()}
        (folder / "params.json").write_text(json.dumps(params() | {"quantization": quantization}, indent=1) + "\n")
    else:
        config = config_of(name) | {"quantization_config": quantization}
        (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    save_file(tensors, folder / ("consolidated.safetensors" if native else "model.safetensors"))
    (folder / "weights.json").write_text(json.dumps(hashes, indent=1) + "\n")


def main():
    for name, encode, quantization in forms():
        if len(sys.argv) > 1 and name not in sys.argv[1:]:
            continue
        shutil.rmtree(HERE / name, ignore_errors=True)
        write(name, encode, quantization)


if __name__ == "__main__":
    main()
