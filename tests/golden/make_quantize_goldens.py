"""Writes tests/golden/quantize.json: what PyPI's compressed-tensors makes of models that `tramontane quantize` wrote.

    pip install torch compressed-tensors transformers accelerate safetensors numpy
    python3 tests/golden/make_quantize_goldens.py build/release/bin/tramontane

Of each matrix the SHA-256 of its decompressed values as little-endian float32. Transformers loads each model too, and
must hold the same weights.
"""

import hashlib
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import torch
import transformers
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationConfig
from safetensors.torch import load_file

HERE = pathlib.Path(__file__).resolve().parent
# Rows of 112 in window16's down_proj are no whole groups; of llama only down_proj has more than one group of 64 in a row.
KEEP = ["*down_proj*", "*embed*", "lm_head.*"]
MODELS = (
    ("tied", 32, KEEP[1:]),
    ("window16", 32, KEEP),
    ("llama", 64, ["*self_attn*", "*gate_proj*", "*up_proj*", *KEEP[1:]]),
)
RUNS = [(model, kind, group, keep) for model, group, keep in MODELS for kind in ("int4", "int8")]


def decompressed(folder):
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    scheme = QuantizationConfig.model_validate(config).config_groups["group_0"]
    compressor = BaseCompressor.get_value_from_registry(config["format"])
    modules = {}
    for name, tensor in load_file(folder / "model.safetensors").items():
        stem, _, suffix = name.rpartition(".")
        if suffix.startswith("weight_"):
            modules.setdefault(stem, {})[suffix] = tensor
    return {f"{stem}.weight": compressor.decompress(arrays, scheme)["weight"] for stem, arrays in modules.items()}


def run(program, model, kind, group, keep):
    with tempfile.TemporaryDirectory() as scratch:
        out = pathlib.Path(scratch) / "out"
        options = ["--type", kind, "--group", str(group)] + [f"--keep={pattern}" for pattern in keep]
        subprocess.run([program, "quantize", str(HERE / model), str(out)] + options, check=True)
        weights = decompressed(out)
        loaded = transformers.AutoModelForCausalLM.from_pretrained(
            out, quantization_config=transformers.CompressedTensorsConfig(dequantize=True), dtype="auto"
        ).state_dict()
        for name, weight in weights.items():
            assert torch.equal(loaded[name], weight), name
        hashes = {
            name: hashlib.sha256(np.ascontiguousarray(weight.float().numpy(), "<f4").tobytes()).hexdigest()
            for name, weight in sorted(weights.items())
        }
    dtype = json.loads((HERE / model / "config.json").read_text())["dtype"]
    return {"model": model, "type": kind, "group": group, "keep": keep, "dtype": dtype, "weights": hashes}


def main():
    runs = [run(sys.argv[1], *arguments) for arguments in RUNS]
    (HERE / "quantize.json").write_text(json.dumps(runs, indent=1) + "\n")


if __name__ == "__main__":
    main()
