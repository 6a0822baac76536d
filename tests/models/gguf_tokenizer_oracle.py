"""Tokenizers of GGUF files: our ids beside llama.cpp's, for the committed test vocabularies in each kind and `pre`.

Usage: gguf_tokenizer_oracle.py ENCODE_TEXTS [MODEL.gguf ...]. With models: their vocabularies instead.
TRAMONTANE_TEST_SCALE (percent) scales the count of texts, TRAMONTANE_TEST_SEED chooses another run.

Each vocabulary becomes a GGUF file with a model of a few weights, which PyPI's gguf writes and llama.cpp loads. Left out
is what differs on purpose: tekken's letters beyond ASCII, whose case llama.cpp does not know; and texts that become a
control token by a merge, which never happens in ours.
"""

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy

from llama_cpp_server import LlamaServer, random_text

ROOT = Path(__file__).resolve().parent.parent.parent
GOLDEN = ROOT / "tests/golden/tokenizer_json"
TEXTS = 1000  # of each vocabulary
BYTE_LEVEL = [
    ("gpt2", "gpt-2"), ("gpt2", "default"), ("smollm", "smollm"), ("qwen2", "qwen2"), ("llama3", "llama-bpe"),
    ("tekken", "tekken"),
]  # fmt: skip
SENTENCE_PIECE = ["models/breeze/weights/tokenizer.model.v3", "tests/golden/chat_v7_tokenizer/tokenizer.model.v7"]
NORMAL, CONTROL, USER_DEFINED = 1, 3, 4


class Vocabulary:
    def __init__(self, model, pre):
        self.model, self.pre = model, pre
        self.tokens, self.types, self.scores, self.merges = [], [], [], []
        self.bos = self.eos = self.unknown = None


def byte_level(folder, pre) -> Vocabulary:
    file = json.loads((GOLDEN / folder / "tokenizer.json").read_text())
    vocabulary = Vocabulary("gpt2", pre)
    pieces = {id: (text, NORMAL) for text, id in file["model"]["vocab"].items()}
    for token in file["added_tokens"]:
        pieces[token["id"]] = (token["content"], CONTROL if token["special"] else USER_DEFINED)
    for id in range(max(pieces) + 1):
        text, kind = pieces[id]
        vocabulary.tokens.append(text)
        vocabulary.types.append(kind)
    vocabulary.merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in file["model"]["merges"]]
    vocabulary.bos = vocabulary.eos = vocabulary.types.index(CONTROL)
    return vocabulary


def sentence_piece(path) -> Vocabulary:
    import sentencepiece

    model = sentencepiece.SentencePieceProcessor(str(ROOT / path))
    vocabulary = Vocabulary("llama", "default")
    for id in range(model.vocab_size()):
        vocabulary.tokens.append(model.id_to_piece(id))
        vocabulary.scores.append(model.get_score(id))
        kinds = {"unknown": 2, "control": CONTROL, "unused": 5, "byte": 6}
        kind = [number for name, number in kinds.items() if getattr(model, f"is_{name}")(id)]
        vocabulary.types.append(kind[0] if kind else NORMAL)
    vocabulary.unknown, vocabulary.bos, vocabulary.eos = model.unk_id(), model.bos_id(), model.eos_id()
    return vocabulary


def write_model(vocabulary: Vocabulary, path: Path) -> None:
    """One layer of width 32 around the vocabulary."""
    writer = gguf.GGUFWriter(str(path), "llama")
    writer.add_context_length(256)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(32)
    writer.add_head_count(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(32)
    writer.add_vocab_size(len(vocabulary.tokens))
    writer.add_tokenizer_model(vocabulary.model)
    writer.add_tokenizer_pre(vocabulary.pre)
    writer.add_token_list(vocabulary.tokens)
    writer.add_token_types(vocabulary.types)
    if vocabulary.scores:
        writer.add_token_scores(vocabulary.scores)
    if vocabulary.merges:
        writer.add_token_merges(vocabulary.merges)
    for name, id in (("bos", vocabulary.bos), ("eos", vocabulary.eos), ("unk", vocabulary.unknown)):
        if id is not None:
            getattr(writer, f"add_{name}_token_id")(id)
    rng = numpy.random.default_rng(0)
    shapes = {"token_embd": (len(vocabulary.tokens), 32), "output": (len(vocabulary.tokens), 32), "output_norm": (32,)}
    shapes |= {f"blk.0.{name}": (32, 32) for name in ("attn_q", "attn_k", "attn_v", "attn_output")}
    shapes |= {f"blk.0.{name}": (32, 32) for name in ("ffn_gate", "ffn_up", "ffn_down")}
    shapes |= {"blk.0.attn_norm": (32,), "blk.0.ffn_norm": (32,)}
    for name, shape in shapes.items():
        writer.add_tensor(name + ".weight", rng.normal(0, 0.1, shape).astype(numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def special_tokens(path) -> tuple[dict[int, str], str]:
    """Control tokens by id, and the name of the pre-tokenizer."""
    fields = gguf.GGUFReader(path).fields
    types = fields["tokenizer.ggml.token_type"].contents()
    tokens = fields["tokenizer.ggml.tokens"].contents()
    pre = fields["tokenizer.ggml.pre"].contents() if "tokenizer.ggml.pre" in fields else ""
    return {id: tokens[id] for id, kind in enumerate(types) if kind == CONTROL}, pre


def compare(encoder, path, count, seed) -> int:
    """The number of texts whose ids differ."""
    special, pre = special_tokens(path)
    rng = random.Random(f"{seed} {pre} {len(special)}")
    texts = {}  # no text twice
    while len(texts) < count:
        texts[random_text(rng, list(special.values()), foreign=pre != "tekken")] = None
    lines = "".join(json.dumps(text) + "\n" for text in texts)
    answered = subprocess.run([encoder, str(path)], input=lines, capture_output=True, text=True, check=False)
    if answered.returncode != 0:
        raise SystemExit(f"{path}: {answered.stderr}")
    server = LlamaServer(path)
    wrong = compared = 0
    for text, line in zip(texts, answered.stdout.splitlines(), strict=True):
        for ours, parse_special in zip(json.loads(line), (False, True), strict=True):
            theirs = server.tokenize(text, parse_special)
            if not parse_special and any(id in special for id in theirs):
                continue  # by a merge
            compared += 1
            if ours != theirs:
                wrong += 1
                if wrong <= 5:
                    print(f"{path} {pre} parse_special={parse_special}: {text!r}\n  ours   {ours}\n  theirs {theirs}")
    print(f"{Path(path).name}: {count} texts, {compared} comparisons, {wrong} differ, seed {seed}", flush=True)
    if compared < count:
        raise SystemExit("too few were compared")
    return wrong


def main() -> None:
    encoder, *models = sys.argv[1:]
    count = max(100, TEXTS * int(os.environ.get("TRAMONTANE_TEST_SCALE", "100")) // 100)
    seed = os.environ.get("TRAMONTANE_TEST_SEED", "7")
    with tempfile.TemporaryDirectory() as folder:
        if not models:
            made = {f"{folder}/{name}_{pre}.gguf": byte_level(name, pre) for name, pre in BYTE_LEVEL}
            made |= {f"{folder}/{Path(path).name}.gguf": sentence_piece(path) for path in SENTENCE_PIECE}
            for path, vocabulary in made.items():
                write_model(vocabulary, Path(path))
            models = list(made)
        wrong = sum(compare(encoder, path, count, seed) for path in models)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
