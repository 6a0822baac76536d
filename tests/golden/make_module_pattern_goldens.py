"""Writes tests/golden/module_patterns.json: which group of a config compressed-tensors puts each module into.

    pip install torch compressed-tensors
    python3 tests/golden/make_module_pattern_goldens.py

The modules are those of a small Llama. A case has the targets of each group and what is ignored; the answer is a group's
number for every module that is in one.
"""

import json
import pathlib
from collections import OrderedDict

import torch
from compressed_tensors.utils.match import match_named_modules, match_targets

OUT = pathlib.Path(__file__).resolve().parent / "module_patterns.json"
LINEARS = ["q_proj", "k_proj", "v_proj", "o_proj"], ["gate_proj", "up_proj", "down_proj"]


def model():
    top = torch.nn.Module()
    top.model = torch.nn.Module()
    top.model.embed_tokens = torch.nn.Embedding(2, 2)
    layers = []
    for _ in range(11):
        layer = torch.nn.Module()
        layer.self_attn, layer.mlp = torch.nn.Module(), torch.nn.Module()
        for part, names in zip((layer.self_attn, layer.mlp), LINEARS):
            for name in names:
                setattr(part, name, torch.nn.Linear(2, 2))
        layers.append(layer)
    top.model.layers = torch.nn.ModuleList(layers)
    top.lm_head = torch.nn.Linear(2, 2)
    return top


CASES = [
    ([["Linear"]], ["lm_head"]),
    ([["Linear"]], ["re:.*lm_head", "re:model.layers.0.*"]),
    ([["Linear", "Embedding"]], []),
    ([["Embedding"]], ["Linear"]),
    ([["Linear"]], ["Linear"]),
    ([["Module"]], ["Embedding"]),
    ([["linear", "Conv2d", "LlamaAttention"]], []),
    ([["re:.*down_proj"], ["Linear"]], ["lm_head"]),
    ([["Linear"], ["re:.*down_proj"]], ["lm_head"]),
    ([["re:.*layers.1.*"], ["re:.*down_proj$"], ["model.layers.1.mlp.down_proj"]], []),
    ([["model.layers.1.mlp.down_proj"], ["re:.*"], ["Linear"]], ["model.layers.2.mlp.up_proj"]),
    ([["re:b.*", "re:.*z"], ["re:.*q_proj"], ["re:.*(q|k)_proj"]], []),
    ([["re:layers"], ["re:model.layers.3"], ["re:model\\.layers\\.(4|5)\\."]], []),
    ([["re:q_proj"]], []),
    ([["re:.*q_proj$", "re:.*k_proj\\Z", "re:.*v_pro$"]], []),
    ([["re:^model\\.layers\\.(?!0\\.|10\\.).*proj$"]], []),
    ([["re:(?i).*Q_PROJ"], ["re:(?P<x>.*)o_proj"], ["re:\\w+\\.\\w+\\.\\d\\.mlp[.]up_proj"]], []),
    ([["re:.*mlp.(gate|up)_proj"], ["re:.*self_attn.*"]], ["re:.*layers\\.[3-9]\\.", "re:.*layers.10"]),
    ([["model.layers.0"], ["model.layers.0.mlp"], ["q_proj"]], []),
    ([["re:"]], ["re:model.embed_tokens"]),
]


def groups_of(top, groups, ignore):
    group_of = OrderedDict((target, i) for i, targets in enumerate(groups) for target in targets)
    found = {}
    for name, module in match_named_modules(top, group_of, ignore):
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
            found[name] = group_of[match_targets(name, module, group_of)[0]]
    return found


def main():
    top = model()
    modules = [n for n, m in top.named_modules() if isinstance(m, (torch.nn.Linear, torch.nn.Embedding))]
    lines = [json.dumps({"groups": g, "ignore": i, "group_of": groups_of(top, g, i)}) for g, i in CASES]
    head = '{"modules": ' + json.dumps(modules) + ',\n"cases": [\n'
    OUT.write_text(head + ",\n".join(lines) + "\n]}\n")


if __name__ == "__main__":
    main()
