"""llama.cpp's own server in this process (PyPI's xllamacpp), and texts to try tokenizers with."""

import json
import random
import urllib.request

import xllamacpp

WORDS = [
    "the", "The", "there", "Don't", "DON'T", "it's", "we'll", "I'm", "they've", "quick", "brown", "12345", "1", "10", "007",
    "3.14", "camelCase", "snake_case", "HTTPServer", "f(x)", "a[i]", "{}", "!!", "?!", "...", "--", "/usr/bin", "a/b/c", "#",
    "@", "$5", "100%", "~", "^", "`", "<tag>", "=>", "\\n", '"quoted"', "(and)", ";", ",", ".", "\n", "\n\n", "\r\n", "\t",
    "  ", "   ", " ", " \n", "\n ",
]  # fmt: skip
FOREIGN = [
    "café",
    "naïve",
    "Größe",
    "привет",
    "мир",
    "你好",
    "世界",
    "日本語",
    "한국어",
    "🙂",
    "👍",
    "é",
    "ß",
    "x²",
    "½",
]


class LlamaServer:
    """A model of a GGUF file, one slot; requests go over HTTP."""

    def __init__(self, path, threads=1, context=2048):
        parameters = xllamacpp.CommonParams()
        parameters.model.path = str(path)
        parameters.n_ctx = context
        parameters.n_parallel = 1
        parameters.cpuparams.n_threads = threads
        parameters.cpuparams_batch.n_threads = threads
        parameters.port = 0
        self.server = xllamacpp.Server(parameters)

    def post(self, path, body):
        request = urllib.request.Request(
            self.server.listening_address + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def tokenize(self, text, parse_special):
        body = {"content": text, "add_special": False, "parse_special": parse_special}
        return self.post("/tokenize", body)["tokens"]


def random_text(rng: random.Random, special: list[str], foreign: bool = True) -> str:
    """A few words, some of them no words; `special` are spellings of control tokens."""
    words = WORDS + (FOREIGN if foreign else [])
    parts = []
    for _ in range(rng.randint(1, 14)):
        kind = rng.random()
        if special and kind < 0.06:
            parts.append(rng.choice(special))
        elif kind < 0.2:
            parts.append("".join(chr(rng.randint(32, 126)) for _ in range(rng.randint(1, 6))))
        else:
            parts.append(rng.choice(words))
        if rng.random() < 0.6:
            parts.append(" ")
    return "".join(parts)
