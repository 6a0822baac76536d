"""Writes tokenizer.json files of each shape that is read, and what Hugging Face's `tokenizers` makes of texts.

Usage: python tests/golden/make_tokenizer_json_goldens.py [COUNT [FOLDER]]   (needs `pip install tokenizers`)

The tests read the files alone; this script is only for writing them anew, or for many more texts in a FOLDER that
TRAMONTANE_TOKENIZER_JSON_CASES then names to the test.

Each folder of tokenizer_json/ is a shape: a tokenizer.json with a vocabulary of a few hundred pieces, which this script
trains on its own texts, in half of the shapes with the merges as strings ("a b") and in the other half as pairs; perhaps a
tokenizer_config.json; and encodings.json, a list of {"text", "ids", "parsed", "decoded"}: the ids where special tokens are
text (`encode_special_tokens`), the ids where they are not, if these differ, and the text of "parsed" (or "ids") without its
special tokens, if it differs from "text". Characters that Unicode had not assigned by version 14 are left out: the
library's tables and ours may be of different versions. So are texts that become control tokens by a merge and texts of
six characters that become a byte's piece with `ignore_merges`, which never happens in ours; and, where PCRE2 cuts, U+180E,
which it takes for a space.
"""

import collections
import itertools
import json
import random
import sys
import unicodedata
from pathlib import Path

import regex
from tokenizers import Tokenizer

SEED = 1616
COUNT = 130
GOLDEN = Path(__file__).resolve().parent / "tokenizer_json"

GPT2 = r"""'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"""
LLAMA3 = (
    r"""(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"""
    r"""|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
QWEN2 = LLAMA3.replace("{1,3}", "")
TEKKEN = (
    r"""[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"""
    r"""|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"""
    r"""|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"""
)
MARK = "\u2581"

PARAGRAPHS = """The quick brown fox jumps over the lazy dog. Don't panic: it's only 12345 words, they've said. We'll see.
    def merge(left, right):  # returns the pair
        return {"left": left, "right": right, "count": 1000, "name": "MergedPair"}
Привет, мир! Как дела? Это пример текста. Ça va très bien, merci. Größe, Straße und Übermut. naïve café déjà vu
你好,世界。今天天气很好。日本語のテキスト、カタカナとひらがな。한국어 문장입니다. مرحبا بالعالم. שלום עולם. नमस्ते दुनिया
🙂🙂🙂 👍🏽 👩‍👩‍👧 x² ½ ① ٣٤٥   \t\n\n  - item one\n  - item two\n\n== Heading ==\n\n1. first\n2. second\n10. tenth
HTTPServer camelCase snake_case SCREAMING_CASE the The THE theory there their then that this these those
if a < b / c > d: return
"""
TRAINING = 3 * PARAGRAPHS

WORDS = [
    "the", "The", "there", "Don't", "DON'T", "it's", "we'll", "I'm", "they've", "'sup", "'ſ", "quick", "brown", "12345", "1",
    "10", "٣٤٥", "x²", "½", "é", "e\u0301", "café", "Привет", "мир", "你好", "世界", "日本語", "한국어", "مرحبا", "नमस्ते",
    "🙂", "👍🏽", "👩‍👩‍👧", "𠮷", "\u200b", "\u00a0", "\u3000", "\u180e", "\u2028", "\x00", "\x7f", "ﬁ", "ß", "İ", "Ǆ", "ǅ", "ʰ",
    "{", "}", "==", "//", "\\", "...", "?!", "_a_", "camelCase", "HTTPServer", "a.b.c", MARK, MARK + "the", MARK * 2,
    "<0x0A>", "<0x41>", "<unk>", "<s", "|>",
]  # fmt: skip
GAPS = ["", " ", " ", " ", "  ", "\n", "\n\n", "\t", "\r\n", " \n ", "     ", "/"]


def byte_alphabet():
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = (chr(0x100 + n) for n in range(256))
    return {byte: chr(byte) if byte in printable else next(others) for byte in range(256)}


def train(cuts, count):
    """Merges by the definition, over symbols that are characters."""
    words = collections.Counter(tuple(cut) for cut in cuts)
    merges = []
    while len(merges) < count:
        pairs = collections.Counter()
        for word, times in words.items():
            for pair in itertools.pairwise(word):
                pairs[pair] += times
        if not pairs:
            break
        best = max(pairs, key=lambda pair: (pairs[pair], pair))
        merges.append(best)
        merged = collections.Counter()
        for word, times in words.items():
            symbols, i = [], 0
            while i < len(word):
                if word[i : i + 2] == best:
                    symbols.append(word[i] + word[i + 1])
                    i += 2
                else:
                    symbols.append(word[i])
                    i += 1
            merged[tuple(symbols)] += times
        words = merged
    return merges


def added(token, content, special=True, **flags):
    entry = {"id": token, "content": content, "single_word": False, "lstrip": False, "rstrip": False}
    return {**entry, "normalized": not special, "special": special, **flags}


class Shape:
    """A tokenizer.json in the making."""

    def __init__(self, name, special, pattern=None, merges=320, random_merges=0, merges_as_pairs=False):
        self.name = name
        self.config = None
        self.vocab = {}
        self.added_tokens = []
        for content in special:
            self.add_token(content)
        if pattern:
            spelled = byte_alphabet()
            cuts = ["".join(spelled[b] for b in cut.encode()) for cut in regex.findall(pattern, TRAINING)]
            symbols = list(spelled.values())
        else:
            cuts = [MARK + word for word in TRAINING.split(" ")]
            symbols = [f"<0x{byte:02X}>" for byte in range(256)] + sorted({c for cut in cuts for c in cut})
        for symbol in symbols:
            self.vocab.setdefault(symbol, len(self.vocab))
        pairs = train(cuts, merges)
        # Merges that training would not give: their results have several ways to come about.
        rng = random.Random(name)
        plain = [symbol for symbol in symbols if not symbol.startswith("<0x")]
        for _ in range(random_merges):
            pieces = [*plain, *(left + right for left, right in pairs)]
            pair = (rng.choice(pieces), rng.choice(pieces))
            if pair not in pairs and len(pair[0] + pair[1]) < 12:
                pairs.insert(rng.randrange(len(pairs)), pair)
                self.vocab.setdefault(pair[0] + pair[1], len(self.vocab))
        for left, right in pairs:
            self.vocab.setdefault(left + right, len(self.vocab))
        self.file = {
            "version": "1.0", "truncation": None, "padding": None, "added_tokens": None, "normalizer": None,
            "pre_tokenizer": None, "post_processor": None, "decoder": None,
            "model": {
                "type": "BPE", "dropout": None, "unk_token": None, "continuing_subword_prefix": None,
                "end_of_word_suffix": None, "fuse_unk": False, "byte_fallback": pattern is None, "ignore_merges": False,
                "vocab": self.vocab,
                "merges": [list(pair) for pair in pairs] if merges_as_pairs else [" ".join(pair) for pair in pairs],
            },
        }  # fmt: skip
        if pattern:
            byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
            self.file["decoder"] = byte_level
        else:
            self.file["model"]["unk_token"] = "<unk>"
            self.file["model"]["fuse_unk"] = True
            self.file["decoder"] = {
                "type": "Sequence",
                "decoders": [
                    {"type": "Replace", "pattern": {"String": MARK}, "content": " "},
                    {"type": "ByteFallback"},
                    {"type": "Fuse"},
                    {"type": "Strip", "content": " ", "start": 1, "stop": 0},
                ],
            }

    @property
    def spells_bytes_whole(self):
        return self.file["model"]["byte_fallback"] and self.file["model"]["ignore_merges"]

    def add_token(self, content, in_vocab=True, **flags):
        token = self.vocab.get(content)
        if token is None:
            token = max([len(self.vocab), *(entry["id"] + 1 for entry in self.added_tokens)])
            if in_vocab:
                self.vocab[content] = token
        self.added_tokens.append(added(token, content, **flags))

    def split_by(self, *steps):
        byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
        patterns = [
            {"type": "Split", "pattern": {"Regex": step}, "behavior": "Isolated", "invert": False}
            if isinstance(step, str)
            else step
            for step in steps
        ]
        use_regex = not any(isinstance(step, str) for step in steps)
        self.file["pre_tokenizer"] = {
            "type": "Sequence",
            "pretokenizers": [*patterns, {**byte_level, "use_regex": use_regex}],
        }

    def add_bos(self, bos):
        token = (
            self.vocab[bos] if bos in self.vocab else next(a["id"] for a in self.added_tokens if a["content"] == bos)
        )
        template = {
            "type": "TemplateProcessing",
            "single": [{"SpecialToken": {"id": bos, "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
            "pair": [
                {"SpecialToken": {"id": bos, "type_id": 0}},
                {"Sequence": {"id": "A", "type_id": 0}},
                {"SpecialToken": {"id": bos, "type_id": 1}},
                {"Sequence": {"id": "B", "type_id": 1}},
            ],
            "special_tokens": {bos: {"id": bos, "ids": [token], "tokens": [bos]}},
        }
        byte_level = {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": False, "use_regex": True}
        is_bytes = not self.file["model"]["byte_fallback"]
        self.file["post_processor"] = (
            {"type": "Sequence", "processors": [byte_level, template]} if is_bytes else template
        )


def metaspace(**options):
    return {"type": "Metaspace", "replacement": MARK, **options}


def make_shapes():
    chatml = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
    spm = ["<unk>", "<s>", "</s>"]
    mistral = ["<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[TOOL_CALLS]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]"]

    gpt2 = Shape("gpt2", [], GPT2, random_merges=60)
    gpt2.add_token("<|endoftext|>", normalized=True)
    gpt2.file["pre_tokenizer"] = gpt2.file["post_processor"] = gpt2.file["decoder"]
    del gpt2.file["model"]["type"]  # as the oldest files
    gpt2.config = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>", "model_max_length": 1024}
    yield gpt2

    llama3 = Shape("llama3", [], LLAMA3, merges_as_pairs=True)
    llama3.split_by(LLAMA3)
    llama3.file["model"]["ignore_merges"] = True
    for piece in ["Ġpanic", "ick", "Ġbrown", "Hell", "ðŁĺ", "Camel"]:  # pieces that no merge makes
        llama3.vocab.setdefault(piece, len(llama3.vocab))
    for content in ["<|begin_of_text|>", "<|end_of_text|>", "<|eot_id|>", "<|start_header_id|>", "<|end_header_id|>"]:
        llama3.add_token(content, in_vocab=False)
    llama3.add_bos("<|begin_of_text|>")
    llama3.config = {"bos_token": "<|begin_of_text|>", "eos_token": "<|eot_id|>"}
    yield llama3

    qwen2 = Shape("qwen2", [], QWEN2, merges_as_pairs=True)
    qwen2.split_by(QWEN2)
    for content in chatml:
        qwen2.add_token(content, in_vocab=False)
    for content in ["<tool_call>", "</tool_call>", "<|fim_prefix|>"]:
        qwen2.add_token(content, in_vocab=False, special=False, normalized=False)
    qwen2.config = {"bos_token": None, "eos_token": {"content": "<|im_end|>"}, "add_bos_token": False}
    yield qwen2

    smollm = Shape("smollm", chatml + ["<repo_name>", "<filename>"], GPT2)
    smollm.split_by({"type": "Digits", "individual_digits": True})
    smollm.config = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "add_bos_token": False}
    yield smollm

    tekken = Shape("tekken", mistral, TEKKEN, merges_as_pairs=True)
    tekken.split_by(TEKKEN)
    tekken.file["model"]["ignore_merges"] = True
    tekken.add_bos("<s>")
    yield tekken

    # A pattern of its own, which leaves text out, behind runs of digits; tokens with every flag.
    other = Shape("other_pattern", ["<s>"], GPT2, random_merges=60)
    other.split_by({"type": "Digits", "individual_digits": False}, r"\p{Lu}?\p{Ll}+|[^\p{L}\p{N}\s]{1,3}|\s+$")
    other.add_token("the quick", special=False, single_word=True, normalized=True)
    other.add_token("<left>", in_vocab=False, lstrip=True)
    other.add_token("<right>", in_vocab=False, rstrip=True)
    other.add_token("<both>", in_vocab=False, special=False, lstrip=True, rstrip=True, normalized=False)
    other.add_token("word", in_vocab=False, special=False, single_word=True, normalized=False)
    other.add_token("wor", in_vocab=False, special=False, normalized=True)
    other.add_token("<<s>>", in_vocab=False, special=False, normalized=False)
    yield other

    llama2 = Shape("llama2", spm, random_merges=60)
    llama2.file["normalizer"] = {
        "type": "Sequence",
        "normalizers": [
            {"type": "Prepend", "prepend": MARK},
            {"type": "Replace", "pattern": {"String": " "}, "content": MARK},
        ],
    }
    # Conversions of SentencePiece list merges into control pieces.
    for piece in ["</", "s>"]:
        llama2.vocab.setdefault(piece, len(llama2.vocab))
    llama2.file["model"]["merges"] += ["< /", "s >", "</ s>"]
    llama2.add_token("[PAD]", special=False, normalized=False)
    llama2.add_token("the", special=False, normalized=True)
    llama2.add_token("a b", special=False, normalized=True)
    llama2.add_bos("<s>")
    llama2.config = {"bos_token": {"content": "<s>"}, "eos_token": {"content": "</s>"}, "add_bos_token": True}
    yield llama2

    first = Shape("metaspace_first", mistral, merges_as_pairs=True)
    first.file["pre_tokenizer"] = metaspace(prepend_scheme="first", split=False)
    first.add_bos("<s>")
    yield first

    always = Shape("metaspace_always", spm, random_merges=60, merges_as_pairs=True)
    always.file["pre_tokenizer"] = metaspace(add_prefix_space=True)
    always.file["model"]["ignore_merges"] = True
    always.file["decoder"]["decoders"].pop()
    always.add_token("<extra>", special=False, normalized=True)
    yield always

    never = Shape("metaspace_never", spm, random_merges=60)
    never.file["pre_tokenizer"] = metaspace(prepend_scheme="never", split=False)
    never.file["model"]["ignore_merges"] = True
    never.file["decoder"]["decoders"][3]["start"] = 0
    yield never


class Texts:
    def __init__(self, rng, spellings):
        self.rng = rng
        self.spellings = spellings
        self.planes = [
            (0, 0x80),
            (0x80, 0x800),
            (0x800, 0x10000),
            (0x10000, 0x11000),
            (0x1D000, 0x20000),
            (0x20000, 0x110000),
        ]

    def character(self):
        while True:
            code = self.rng.randrange(*self.rng.choice(self.planes))
            if unicodedata.category(chr(code)) not in ("Cn", "Cs"):
                return chr(code)

    def text(self):
        kind = self.rng.randrange(6)
        pick = self.rng.choice
        if kind <= 1:
            return "".join(pick(WORDS) + pick(GAPS) for _ in range(self.rng.randint(1, 14)))
        if kind == 2:
            return "".join(self.character() for _ in range(self.rng.randint(1, 16)))
        if kind == 3:
            parts = [pick(WORDS), pick(GAPS), pick(self.spellings), pick(GAPS), pick(self.spellings)]
            return "".join(pick(parts) for _ in range(self.rng.randint(1, 12)))
        if kind == 4:
            start = self.rng.randrange(len(TRAINING) - 100)
            return TRAINING[start : start + self.rng.randint(1, 90)]
        unit = pick(
            ["a", " ", "ab", "the", "=", "  ", "你", "\n", "🙂", "'s", MARK, "1", "e\u0301", pick(self.spellings)]
        )
        return pick(["", " ", "x"]) + unit * self.rng.randint(1, 70) + pick(["", "x", " ", "the"])


def encodings(shape, tokenizer, texts, count, special):
    cases = []
    for text in ["", " ", "  ", "a", " a", "a ", "\n", MARK, " " + MARK, *(texts.text() for _ in range(count))]:
        if (shape.spells_bytes_whole and "<0x" in text) or (shape.name == "other_pattern" and "\u180e" in text):
            continue
        tokenizer.encode_special_tokens = True
        ids = tokenizer.encode(text, add_special_tokens=False).ids
        if special.intersection(ids):
            continue  # by a merge, or as a whole with ignore_merges: ours never does this
        tokenizer.encode_special_tokens = False
        parsed = tokenizer.encode(text, add_special_tokens=False).ids
        decoded = tokenizer.decode(parsed, skip_special_tokens=True)
        case = {"text": text, "ids": ids}
        if parsed != ids:
            case["parsed"] = parsed
        if decoded != text:
            case["decoded"] = decoded
        cases.append(case)
    return cases


def write(target, count, seed=SEED):
    """All shapes, with `count` texts each, as folders under `target`; the number of texts."""
    written = 0
    for shape in make_shapes():
        shape.file["added_tokens"] = sorted(shape.added_tokens, key=lambda entry: entry["id"])
        text = json.dumps(shape.file, ensure_ascii=False, separators=(",", ":"))
        tokenizer = Tokenizer.from_str(text)
        for entry in shape.added_tokens:
            assert tokenizer.token_to_id(entry["content"]) == entry["id"], entry
        folder = target / shape.name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "tokenizer.json").write_text(text + "\n")
        if shape.config:
            (folder / "tokenizer_config.json").write_text(json.dumps(shape.config) + "\n")
        spellings = [entry["content"] for entry in shape.added_tokens]
        special = {entry["id"] for entry in shape.added_tokens if entry["special"]}
        texts = Texts(random.Random(f"{seed} {shape.name} {count}"), spellings)
        cases = encodings(shape, tokenizer, texts, count, special)
        lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
        (folder / "encodings.json").write_text("[\n" + lines + "\n]\n")
        print(f"{shape.name}: {len(shape.vocab)} pieces, {len(cases)} texts")
        written += len(cases)
    return written


def main():
    count = int(sys.argv[1]) if len(sys.argv) > 1 else COUNT
    write(Path(sys.argv[2]) if len(sys.argv) > 2 else GOLDEN, count)


if __name__ == "__main__":
    main()
