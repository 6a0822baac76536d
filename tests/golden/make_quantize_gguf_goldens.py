"""Writes tests/golden/quantize_gguf.json: what PyPI's `gguf` and llama.cpp find in GGUF files of quantize.

    pip install gguf numpy xllamacpp sentencepiece
    python3 tests/golden/make_quantize_gguf_goldens.py build/release/bin/tramontane build/release/bin/encode_texts

runs: of small golden models, each tensor's type, shape and the SHA-256 of its bytes. The bytes are those that
`gguf.quants.quantize` makes of the source's numbers, rows of queries and keys with rotated pairs side by side.

llama_cpp: Breeze in llama.cpp's server. Texts have the ids that sentencepiece gives; greedy tokens are those of our own
server on the same file, up to near ties. And the same of models of random weights with a tekken.json, one of each kind
of config: texts have the ids that tekken gives, by the merges that quantize made of its ranks.
"""

import base64
import hashlib
import json
import pathlib
import random
import re
import subprocess
import sys
import tempfile

import gguf
import numpy as np
import sentencepiece

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "tests/models"))

import make_gguf_goldens as goldens  # noqa: E402
import smollm2_oracle  # noqa: E402
from llama_cpp_server import LlamaServer, random_text  # noqa: E402

BREEZE = "models/breeze/weights"
MODELS = [BREEZE] + [
    f"tests/golden/{name}" for name in ("llama", "llama3_scaling", "mixtral", "ministral3", "layer_types", "tied")
]
TYPES = ["Q8_0", "Q4_0"]
KEPT = ("token_embd.weight", "output.weight")
TEKKEN = HERE / "chat_tekken_tokenizer"
TEXTS = 300
LAYERS = 2
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 16}
LLAMA3 = {"rope_type": "llama3", "rope_theta": 10000.0, "factor": 8.0, "original_max_position_embeddings": 64}
# What is random weights' config besides their sizes.
KINDS = {
    "llama": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "rope_parameters": LLAMA3 | {"low_freq_factor": 1.0, "high_freq_factor": 4.0},
    },
    "ministral3": {
        "architectures": ["Ministral3ForCausalLM"],
        "model_type": "ministral3",
        "rope_parameters": YARN | {"mscale": 1.0, "mscale_all_dim": 1.0, "llama_4_scaling_beta": 0.1},
    },
    "mistral_yarn": {
        "architectures": ["MistralForCausalLM"],
        "model_type": "mistral",
        "sliding_window": None,
        "rope_parameters": YARN,
    },
    "mixtral": {
        "architectures": ["MixtralForCausalLM"],
        "model_type": "mixtral",
        "rope_theta": 1e6,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
}


def quantize(program, source, out, type_name):
    subprocess.run([program, "quantize", str(source), str(out), "--format", f"gguf:{type_name}"], check=True)


def wanted_tensors(model, type_name):
    """name -> (bytes, type, shape)"""
    config = json.loads((ROOT / model / "config.json").read_text())
    config = config.get("text_config", config)
    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    kind = gguf.GGMLQuantizationType[type_name]
    wanted = {}
    rope = config.get("rope_parameters", {})
    if rope.get("rope_type") == "llama3":
        divisors = goldens.rotary_divisors(rope, config["head_dim"])
        wanted["rope_freqs.weight"] = (divisors.tobytes(), gguf.GGMLQuantizationType.F32, divisors.shape)
    tensors = {
        name: value
        for name, value in goldens.safetensors_of(ROOT / model / "model.safetensors").items()
        if "vision_tower" not in name and "multi_modal_projector" not in name
    }
    for name, (dtype, values) in goldens.stacked_experts(tensors).items():
        part = name.split(".")[-2]
        if part in heads:
            values = goldens.pairs_side_by_side(values, heads[part])
        if values.ndim == 1 or part == "ffn_gate_inp" or name in KEPT or values.shape[-1] % 32 != 0:
            data, of = goldens.stored(name, dtype, values)
        else:
            data, of = gguf.quants.quantize(np.ascontiguousarray(values), kind), kind
        wanted[name] = (np.ascontiguousarray(data).tobytes(), of, values.shape)
    return wanted


def run(program, model, type_name, scratch):
    out = scratch / f"{pathlib.Path(model).name}.{type_name}.gguf"
    quantize(program, ROOT / model, out, type_name)
    wanted = wanted_tensors(model, type_name)
    tensors = {}
    for tensor in gguf.GGUFReader(out).tensors:
        data, kind, shape = wanted.pop(tensor.name)
        found = np.ascontiguousarray(tensor.data).tobytes()
        assert tensor.tensor_type == kind, (tensor.name, tensor.tensor_type, kind)
        assert tuple(tensor.shape[::-1]) == tuple(shape), (tensor.name, tensor.shape, shape)
        # Of rope_freqs the last bit depends on who computes the powers.
        if tensor.name == "rope_freqs.weight":
            assert np.allclose(np.frombuffer(found, "<f4"), np.frombuffer(data, "<f4"), rtol=2e-7, atol=0)
        else:
            assert found == data, tensor.name
        tensors[tensor.name] = {
            "type": kind.name,
            "shape": [int(size) for size in shape],
            "sha256": hashlib.sha256(found).hexdigest(),
        }
    assert not wanted, wanted.keys()
    return {"model": model, "type": type_name, "tensors": tensors}


def texts():
    rng = random.Random(3)
    return [random_text(rng, []) for _ in range(TEXTS)]


def run_breeze(program, type_name, scratch):
    out = scratch / f"breeze.{type_name}.gguf"
    quantize(program, ROOT / BREEZE, out, type_name)
    ours, theirs = smollm2_oracle.Ours(program, out), LlamaServer(out, context=512)
    try:
        pieces = sentencepiece.SentencePieceProcessor(model_file=str(ROOT / BREEZE / "tokenizer.model.v3"))
        for text in texts():
            assert theirs.tokenize(text, False) == pieces.encode(text), text
        smollm2_oracle.check_greedy(ours, theirs)
    finally:
        ours.server.stop()
    return {"model": "breeze", "type": type_name, "texts_with_the_same_ids": TEXTS, "greedy_tokens_agree": True}


def write_safetensors(path, tensors):
    header, data = {}, b""
    for name, values in tensors.items():
        raw = values.astype("<f4").tobytes()
        header[name] = {"dtype": "F32", "shape": list(values.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data)


def sayable(tekken):
    """[vocabulary]: whether a token is ASCII. Of others llama.cpp's server may give no text, nor probabilities."""
    sizes = tekken["config"]
    special = sizes["default_num_special_tokens"]
    tokens = [base64.b64decode(entry["token_bytes"]) for entry in tekken["vocab"]]
    return np.array([False] * special + [token.isascii() for token in tokens[: sizes["default_vocab_size"] - special]])


def write_random_model(folder, may_say, kind):
    """One of KINDS: sizes and weights are the same but for what its config says."""
    hidden, heads, wide, experts = 64, 4, 128, 4
    vocab = len(may_say)
    config = {"vocab_size": vocab, "hidden_size": hidden, "num_hidden_layers": LAYERS, "intermediate_size": wide}
    config |= {"num_attention_heads": heads, "num_key_value_heads": heads, "head_dim": hidden // heads}
    config |= {"max_position_embeddings": 512, "rms_norm_eps": 1e-5, "hidden_act": "silu"}
    config |= {"bos_token_id": 1, "eos_token_id": 2} | KINDS[kind]
    (folder / "config.json").write_text(json.dumps(config))
    rng = np.random.default_rng(1)

    def matrix(rows, columns):
        return rng.standard_normal((rows, columns)) / np.sqrt(columns)

    tensors = {"model.embed_tokens.weight": rng.standard_normal((vocab, hidden)), "model.norm.weight": np.ones(hidden)}
    # So small that the roundings of activations, which llama.cpp makes, move a log-probability by less than 0.1 in the mean.
    tensors["lm_head.weight"] = 0.25 * rng.standard_normal((vocab, hidden)) * may_say[:, None]
    for number in range(LAYERS):
        layer = f"model.layers.{number}."
        tensors |= {layer + f"{norm}_layernorm.weight": np.ones(hidden) for norm in ("input", "post_attention")}
        tensors |= {layer + f"self_attn.{part}_proj.weight": 2 * matrix(hidden, hidden) for part in "qkvo"}
        if "num_local_experts" not in KINDS[kind]:
            tensors |= {layer + f"mlp.{part}_proj.weight": matrix(wide, hidden) for part in ("gate", "up")}
            tensors[layer + "mlp.down_proj.weight"] = matrix(hidden, wide)
            continue
        tensors[layer + "block_sparse_moe.gate.weight"] = 4 * matrix(experts, hidden)
        for expert in range(experts):
            stem = layer + f"block_sparse_moe.experts.{expert}."
            tensors |= {stem + f"{part}.weight": matrix(wide, hidden) for part in ("w1", "w3")}
            tensors[stem + "w2.weight"] = matrix(hidden, wide)
    write_safetensors(folder / "model.safetensors", tensors)


def run_tekken(program, encode_texts, kind, scratch):
    folder = scratch / kind
    folder.mkdir()
    tekken = json.loads((TEKKEN / "tekken.json").read_text())
    (folder / "tekken.json").write_text(json.dumps(tekken))
    write_random_model(folder, sayable(tekken), kind)
    out = scratch / f"{kind}.gguf"
    quantize(program, folder, out, "Q8_0")
    ours, theirs = smollm2_oracle.Ours(program, out), LlamaServer(out, context=512)
    try:
        # Letters beyond ASCII are cut by their case in tekken, which llama.cpp does not know.
        rng = random.Random(4)
        plain = [random_text(rng, [], foreign=False) for _ in range(TEXTS)]
        for text, ids in zip(plain, encode(encode_texts, folder / "tekken.json", plain), strict=True):
            assert theirs.tokenize(text, False) == ids, text
        smollm2_oracle.check_greedy(ours, theirs)
    finally:
        ours.server.stop()
    return {
        "model": f"{kind}, random weights",
        "type": "Q8_0",
        "texts_with_the_same_ids": TEXTS,
        "greedy_tokens_agree": True,
    }


def encode(encode_texts, tokenizer, lines):
    told = "".join(json.dumps(line) + "\n" for line in lines)
    answer = subprocess.run([encode_texts, str(tokenizer)], input=told, check=True, capture_output=True, text=True)
    return [json.loads(line)[0] for line in answer.stdout.splitlines()]


def main():
    program, encode_texts = sys.argv[1:3]
    with tempfile.TemporaryDirectory() as name:
        scratch = pathlib.Path(name)
        found = {"runs": [run(program, model, kind, scratch) for model in MODELS for kind in TYPES]}
        found["llama_cpp"] = [run_breeze(program, kind, scratch) for kind in TYPES]
        found["llama_cpp"] += [run_tekken(program, encode_texts, kind, scratch) for kind in KINDS]
    # A line for each tensor.
    text = json.dumps(found, indent=1)
    tensor = re.compile(r'\{\s*("type": [^{}]*?"sha256"[^{}]*?)\s*\}')
    text = tensor.sub(lambda match: "{" + " ".join(match[1].split()) + "}", text)
    (HERE / "quantize_gguf.json").write_text(text + "\n")


if __name__ == "__main__":
    main()
