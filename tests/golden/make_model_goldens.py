#!/usr/bin/env python3
"""Writes the tiny random-weight models of tests/golden/ and what Hugging Face transformers computes with them.

Each model is a folder as users have them (config, safetensors) plus golden.json: prompts, the greedy continuation,
log-probabilities of prompt and continuation, the five most likely tokens of each step, and how far the best token led.
tests/models/golden_test.cc compares the server's forward pass with these files; nothing here runs during a test.

    pip install torch transformers safetensors numpy
    tests/golden/make_model_goldens.py            # rewrites tests/golden/*/
    tests/golden/make_model_goldens.py yarn       # that one alone

The reference is the unchanged model class of transformers with eager attention, its weights rounded to the dtype of
the file and then computed with in float64 on the CPU (RMSNorm, softmax and rotary angles stay float32: the class
casts there). Weights are scaled so that attention is peaked and logits are spread; seeds are tried in order until
every greedy choice leads by at least MARGIN and the window matters, so that a test can tell a wrong token from a
rounding error. The same versions give the same files.
"""

import json
import pathlib
import shutil
import sys

import numpy as np
import torch
import transformers
from safetensors.torch import save_file

HERE = pathlib.Path(__file__).resolve().parent
MARGIN = 0.03  # smallest lead of a greedy choice, in logits
ROUTER_MARGIN = 0.02  # smallest lead of a row's last chosen expert over the next one, in standard deviations of scores
STEPS = 32
TOP = 5
EOS = 2

FULL, SLIDING = "full_attention", "sliding_attention"

# name -> transformers class, config, dtype of the files, prompt lengths.
MODELS = {
    # A window shorter than every prompt, on all layers.
    "window16": dict(
        kind="Mistral", dtype=torch.bfloat16, prompts=[40, 57, 70],
        config=dict(vocab_size=320, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=16,
                    rope_theta=1e4)),
    # One full layer, then three with a window; matrices bf16, norms f32, keys of every second layer f32.
    "layer_types": dict(
        kind="Ministral", dtype="mixed", prompts=[41, 64],
        config=dict(vocab_size=288, hidden_size=48, intermediate_size=96, num_hidden_layers=4,
                    num_attention_heads=6, num_key_value_heads=2, head_dim=16, sliding_window=12,
                    layer_types=[FULL, SLIDING, SLIDING, SLIDING], rope_theta=5e5)),
    # head_dim * heads is twice the hidden size; four query heads share a key head; two files and an index.
    "head_dim": dict(
        kind="Mistral", dtype=torch.bfloat16, prompts=[1, 33, 48], shard="120KB",
        config=dict(vocab_size=320, hidden_size=48, intermediate_size=80, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=1, head_dim=24, sliding_window=None,
                    rope_theta=1e6)),
    # No output matrix of its own.
    "tied": dict(
        kind="Mistral", dtype=torch.float32, prompts=[25, 52],
        config=dict(vocab_size=256, hidden_size=32, intermediate_size=96, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=8, sliding_window=20,
                    tie_word_embeddings=True, rope_theta=1e4)),
    # The other architecture: a key head per query head, f16.
    "llama": dict(
        kind="Llama", dtype=torch.float16, prompts=[17, 60],
        config=dict(vocab_size=304, hidden_size=48, intermediate_size=128, num_hidden_layers=3,
                    num_attention_heads=3, num_key_value_heads=3, head_dim=16, rope_theta=1e5)),
    # Three bands of frequencies, all of them in use: turns of 64 positions from 10 to below 1.
    "llama3_scaling": dict(
        kind="Llama", dtype=torch.bfloat16, prompts=[30, 90],
        config=dict(vocab_size=272, hidden_size=48, intermediate_size=96, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16, rope_theta=1e3),
        rope=dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
                  original_max_position_embeddings=64)),
    # The magnitude that a config leaves out, ends of the band between pairs, keys as older releases wrote them.
    "yarn": dict(
        kind="Mistral", dtype="mixed", prompts=[33, 80],
        config=dict(vocab_size=272, hidden_size=48, intermediate_size=96, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=None,
                    rope_theta=1e4),
        rope=dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=64, beta_fast=8.0,
                  beta_slow=0.5, truncate=False)),
    # Queries scaled by position, YaRN of magnitude 1, tied, beside a vision tower.
    "ministral3": dict(
        kind="Ministral3", dtype=torch.bfloat16, prompts=[15, 70], wrapped=True,
        config=dict(vocab_size=256, hidden_size=32, intermediate_size=96, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=None,
                    tie_word_embeddings=True, rope_theta=1e6),
        rope=dict(rope_type="yarn", factor=16.0, original_max_position_embeddings=16, beta_fast=32.0,
                  beta_slow=1.0, mscale=1.0, mscale_all_dim=1.0, llama_4_scaling_beta=0.4)),
    # The same wrapper around an older text model with an output matrix of its own and a theta of 1e9.
    "mistral3": dict(
        kind="Mistral", dtype=torch.bfloat16, prompts=[40, 25], wrapped=True,
        config=dict(vocab_size=256, hidden_size=40, intermediate_size=80, num_hidden_layers=3,
                    num_attention_heads=4, num_key_value_heads=1, head_dim=16, sliding_window=None,
                    rope_theta=1e9)),
    # As many tokens as Nemo and Small have, heads that are not hidden / heads wide. The two large matrices follow from
    # a formula that golden_test.cc knows too; only the rest is a file.
    "large_vocabulary": dict(
        kind="Mistral", dtype=torch.bfloat16, prompts=[24], formula=True,
        config=dict(vocab_size=131072, hidden_size=32, intermediate_size=48, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=None,
                    rope_theta=1e6)),
    # Eight experts, of which each token uses two.
    "mixtral": dict(
        kind="Mixtral", dtype=torch.bfloat16, prompts=[9, 14],
        config=dict(vocab_size=128, hidden_size=32, intermediate_size=24, num_hidden_layers=2,
                    num_attention_heads=4, num_key_value_heads=2, head_dim=16, sliding_window=None,
                    num_local_experts=8, num_experts_per_tok=2, rope_theta=1e4)),
}
# Written a second time in Mistral's own layout: other names, rotated pairs side by side, windows as a list.
NATIVE_OF = {"layer_types_native": "layer_types", "ministral3_native": "ministral3", "mixtral_native": "mixtral"}


def make_model(spec, seed):
    config = dict(spec["config"])
    theta = config.pop("rope_theta")
    config_class = getattr(transformers, spec["kind"] + "Config")
    model_class = getattr(transformers, spec["kind"] + "ForCausalLM")
    rope = spec.get("rope", {"rope_type": "default"})
    model_config = config_class(
        **config, rope_parameters=rope | {"rope_theta": theta}, rms_norm_eps=1e-5,
        max_position_embeddings=2048, bos_token_id=1, eos_token_id=EOS, attn_implementation="eager",
        **({"experts_implementation": "eager"} if "num_local_experts" in config else {}))
    if spec.get("wrapped"):
        vision = transformers.PixtralVisionConfig(hidden_size=8, intermediate_size=8, num_hidden_layers=1,
                                                  num_attention_heads=1, head_dim=8, image_size=16, patch_size=8)
        tied = model_config.tie_word_embeddings
        model_class = transformers.Mistral3ForConditionalGeneration
        model_config = transformers.Mistral3Config(text_config=model_config, vision_config=vision, image_token_index=10,
                                                   tie_word_embeddings=tied, attn_implementation="eager")
    model = model_class(model_config)
    generator = torch.Generator().manual_seed(seed)
    tied = model.config.tie_word_embeddings
    # Standard deviation of a weight, times sqrt(inputs).
    scale = {"q_proj": 1.6, "k_proj": 1.6, "v_proj": 1.0, "o_proj": 1.4 if tied else 1.0, "gate_proj": 1.2,
             "up_proj": 1.0, "down_proj": 1.4 if tied else 1.0, "lm_head": 4.0, "gate_up_proj": 1.1, "gate": 1.5}
    with torch.no_grad():
        for name, weight in model.named_parameters():
            noise = torch.randn(weight.shape, generator=generator)
            of_experts = weight.dim() == 3  # [experts, outputs, inputs], stacked, without ".weight" behind
            part = name.split(".")[-1 if of_experts else -2]
            if "norm" in part:
                weight.copy_(1.0 + 0.2 * noise)
            elif part == "embed_tokens":
                weight.copy_((0.5 if tied else 1.0) * noise)
            else:
                inputs = weight[0, 0].numel() if of_experts else weight[0].numel()
                weight.copy_(scale.get(part, 1.0) * noise / inputs ** 0.5)
            if spec.get("formula") and part in FORMULA:
                weight.copy_(by_formula(*weight.shape, **FORMULA[part]))
            weight.copy_(weight.to(file_dtype(spec, name)))
    return model.double().eval()


# The large matrices of a model with a formula: which one it is, and its largest value.
FORMULA = {"embed_tokens": dict(matrix=0, scale=2.0), "lm_head": dict(matrix=1, scale=1.0)}


def by_formula(rows, columns, matrix, scale):
    """An element's number, hashed, its top byte spread over (-scale, scale): exact in bfloat16."""
    bits = np.arange(rows * columns, dtype=np.uint32) + np.uint32(matrix * rows * columns)
    bits = bits * np.uint32(2654435761)
    bits ^= bits >> np.uint32(16)
    bits *= np.uint32(2246822519)
    values = ((bits >> np.uint32(24)).astype(np.float32) * 2 - 255) / 256 * scale
    return torch.from_numpy(values.reshape(rows, columns))


def file_dtype(spec, name):
    if spec["dtype"] != "mixed":
        return spec["dtype"]
    if "norm" in name or ("k_proj" in name and int(name.split(".")[2]) % 2 == 1):
        return torch.float32
    return torch.bfloat16


def make_prompts(spec, seed):
    random = np.random.default_rng(seed)
    return [[1] + random.integers(3, spec["config"]["vocab_size"], length - 1).tolist() for length in spec["prompts"]]


def logits_of(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens]), use_cache=False).logits[0]


def run(model, prompt):
    """Greedy continuation, or None where a choice is too close or ends the text."""
    tokens = list(prompt)
    out = dict(prompt=prompt, tokens=[], logprobs=[], margins=[], top=[])
    for _ in range(STEPS):
        logits = logits_of(model, tokens)[-1]
        logprobs = torch.log_softmax(logits, -1)
        best = torch.topk(logprobs, TOP)
        margin = float(best.values[0] - best.values[1])
        token = int(best.indices[0])
        if margin < MARGIN or token == EOS:
            return None
        tokens.append(token)
        out["tokens"].append(token)
        out["logprobs"].append(round(float(best.values[0]), 6))
        out["margins"].append(round(margin, 6))
        out["top"].append([[int(i), round(float(v), 6)] for v, i in zip(best.values, best.indices)])
    # Log-probability of each prompt token but the first, given those before it.
    logprobs = torch.log_softmax(logits_of(model, prompt), -1)
    out["prompt_logprobs"] = [round(float(logprobs[i, prompt[i + 1]]), 6) for i in range(len(prompt) - 1)]
    out["min_margin"] = min(out["margins"])
    return out


def window_effect(model, tokens):
    """Largest change of a logit if every window were one key wider: what a test must be able to see."""
    config = model.config.get_text_config()
    window = getattr(config, "sliding_window", None)
    if window is None:
        return None
    right = logits_of(model, tokens)
    config.sliding_window = window + 1
    wrong = logits_of(model, tokens)
    config.sliding_window = window
    return round(float((right - wrong).abs().max()), 6)


def router_margin(model, tokens):
    """Smallest lead of a chosen expert over one that is not, over all tokens and layers, in standard deviations of
    the scores: a choice that is closer than rounding goes the other way in a less exact computation."""
    if "num_local_experts" not in model.config.to_dict():
        return None
    scores = []
    hooks = [m.register_forward_hook(lambda _, __, out: scores.append(out[0]))
             for name, m in model.named_modules() if name.endswith(".gate")]
    logits_of(model, tokens)
    for hook in hooks:
        hook.remove()
    chosen = model.config.num_experts_per_tok
    leads = [(s.sort(dim=-1, descending=True).values, s.std()) for s in scores]
    return round(min(float((v[:, chosen - 1] - v[:, chosen]).min() / std) for v, std in leads), 6)


def clear_run(model, prompt):
    """run(), or None where an expert is chosen too closely."""
    if (router_margin(model, prompt) or ROUTER_MARGIN) < ROUTER_MARGIN:
        return None
    out = run(model, prompt)
    if out is not None and (margin := router_margin(model, out["prompt"] + out["tokens"])) is not None:
        if margin < ROUTER_MARGIN:
            return None
        out["router_margin"] = margin
    return out


def search_prompts(model, spec, seed):
    """A run for each prompt, or None. Experts are chosen at every token: prompts are drawn until all choices are clear."""
    runs = []
    for index in range(len(spec["prompts"])):
        for attempt in range(500 if "num_local_experts" in spec["config"] else 1):
            found = clear_run(model, make_prompts(spec, seed + attempt)[index])
            if found is not None:
                break
        if found is None:
            return None
        runs.append(found)
    return runs


def search(name, spec):
    for seed in range(10_000):
        model = make_model(spec, seed)
        runs = search_prompts(model, spec, seed)
        if runs is not None:
            effect = window_effect(model, runs[-1]["prompt"] + runs[-1]["tokens"])
            print(f"{name}: seed {seed}, smallest margin {min(r['min_margin'] for r in runs)}, window effect {effect}")
            golden = dict(transformers=transformers.__version__, torch=torch.__version__.split("+")[0], seed=seed,
                          one_wider_window_changes_a_logit_by=effect, runs=runs)
            return model, golden
    raise SystemExit(f"{name}: no seed gives margins of {MARGIN}")


def write_json(path, value):
    text = json.dumps(value, indent=1)
    # Lists of numbers on one line.
    import re
    text = re.sub(r"\[[\s\d.,eE+-]*\]", lambda m: re.sub(r"\s+", "", m.group()).replace(",", ", "), text)
    path.write_text(text + "\n")


def write_hugging_face(folder, model, spec):
    if spec["dtype"] == "mixed":
        # As older releases wrote it.
        config = model.config.to_dict()
        keep = ["architectures", "model_type", "hidden_act", "max_position_embeddings", "rms_norm_eps", "bos_token_id",
                "eos_token_id", "tie_word_embeddings", "use_cache"] + [k for k in spec["config"] if k != "rope_theta"]
        old = {k: config[k] for k in keep} | {"rope_theta": spec["config"]["rope_theta"], "torch_dtype": "bfloat16"}
        old["architectures"] = [type(model).__name__]
        if "rope" in spec:
            old["rope_scaling"] = {"type" if k == "rope_type" else k: v for k, v in spec["rope"].items()}
        write_json(folder / "config.json", old)
        tensors = {n: w.detach().to(file_dtype(spec, n)).contiguous() for n, w in model.state_dict().items()}
        save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
        return
    if spec.get("formula"):
        model.config.dtype = spec["dtype"]
        model.config.architectures = [type(model).__name__]
        model.config.save_pretrained(folder)
        tensors = {n: w.detach().to(spec["dtype"]).contiguous() for n, w in model.state_dict().items()
                   if n.split(".")[-2] not in FORMULA}
        save_file(tensors, folder / "model-00001-of-00002.safetensors", metadata={"format": "pt"})
        return
    model.to(spec["dtype"]).save_pretrained(folder, max_shard_size=spec.get("shard", "10GB"))
    model.double()


def one_by_one(tensors):
    """Experts that transformers keeps stacked, each by its names in files."""
    out = {}
    for name, weight in tensors.items():
        prefix = name.rpartition(".")[0]
        if name.endswith(".experts.gate_up_proj"):
            for i, expert in enumerate(weight):
                out[f"{prefix}.{i}.w1.weight"], out[f"{prefix}.{i}.w3.weight"] = expert.chunk(2)
        elif name.endswith(".experts.down_proj"):
            out |= {f"{prefix}.{i}.w2.weight": expert for i, expert in enumerate(weight)}
        else:
            out[name] = weight
    return out


def write_native(folder, model, spec):
    config = model.config.get_text_config()
    half = config.head_dim // 2

    def pairs_side_by_side(weight, heads):  # rows (i, half + i) of a head become (2i, 2i + 1)
        return weight.view(heads, 2, half, -1).transpose(1, 2).reshape(weight.shape)

    rename = {"model.language_model.": "model.", "model.vision_tower": "vision_encoder",
              "model.multi_modal_projector": "vision_language_adapter", "model.embed_tokens": "tok_embeddings",
              "model.norm": "norm", "lm_head": "output", "mlp.gate.": "feed_forward.gate.", "mlp.experts": "feed_forward.experts",
              "self_attn.q_proj": "attention.wq", "self_attn.k_proj": "attention.wk",
              "self_attn.v_proj": "attention.wv",
              "self_attn.o_proj": "attention.wo", "input_layernorm": "attention_norm",
              "post_attention_layernorm": "ffn_norm", "mlp.gate_proj": "feed_forward.w1",
              "mlp.down_proj": "feed_forward.w2", "mlp.up_proj": "feed_forward.w3", "model.layers": "layers"}
    tensors = {}
    for name, weight in one_by_one(model.state_dict()).items():
        if name == "lm_head.weight" and config.tie_word_embeddings:
            continue
        weight = weight.to(file_dtype(spec, name))
        of_text = "vision_tower" not in name
        if of_text and "q_proj" in name:
            weight = pairs_side_by_side(weight, config.num_attention_heads)
        if of_text and "k_proj" in name:
            weight = pairs_side_by_side(weight, config.num_key_value_heads)
        for theirs, native in rename.items():
            name = name.replace(theirs, native)
        tensors[name] = weight.contiguous()
    save_file(tensors, folder / "consolidated.safetensors")
    params = dict(
        dim=config.hidden_size, n_layers=config.num_hidden_layers, head_dim=config.head_dim,
        hidden_dim=config.intermediate_size, n_heads=config.num_attention_heads, n_kv_heads=config.num_key_value_heads,
        norm_eps=config.rms_norm_eps, vocab_size=config.vocab_size, rope_theta=spec["config"]["rope_theta"])
    if "layer_types" in spec["config"]:
        params["sliding_window"] = [config.sliding_window if kind == SLIDING else None for kind in config.layer_types]
    params["max_seq_len"] = config.max_position_embeddings
    if config.tie_word_embeddings:
        params["tied_embeddings"] = True
    if "rope" in spec:
        rope = spec["rope"]
        original = rope["original_max_position_embeddings"]
        params["yarn"] = dict(original_max_position_embeddings=original, factor=rope["factor"],
                              beta=rope["beta_fast"], alpha=rope["beta_slow"], apply_scale=False)
        params["llama_4_scaling"] = dict(original_max_position_embeddings=original, beta=rope["llama_4_scaling_beta"])
    if "num_local_experts" in spec["config"]:
        params["moe"] = dict(num_experts=config.num_local_experts, num_experts_per_tok=config.num_experts_per_tok)
    if spec.get("wrapped"):
        params["vision_encoder"] = dict(hidden_size=8, num_hidden_layers=1, image_size=16, patch_size=8)
    write_json(folder / "params.json", params)


def fresh(name):
    folder = HERE / name
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    return folder


def main():
    torch.set_num_threads(1)
    done = {}
    wanted = sys.argv[1:] or list(MODELS)
    for name, spec in MODELS.items():
        if name not in wanted:
            continue
        model, golden = done[name] = search(name, spec)
        folder = fresh(name)
        write_json(folder / "golden.json", golden)
        write_hugging_face(folder, model, spec)
    for name, source in NATIVE_OF.items():
        if source not in wanted:
            continue
        model, golden = done[source]
        folder = fresh(name)
        write_json(folder / "golden.json", golden)
        write_native(folder, model, MODELS[source])


if __name__ == "__main__":
    main()
