"""Writes the problems that the server's own tests solve. Usage: python write_problems.py

evaluation/problems.json: the first problems of some tasks of the model card, as token numbers, with what makes an
answer right and what the model answered here. evaluation/goldens.json: greedy answers to a few prompts, one of them
longer than the attention window and one answer longer than four windows.

Answers are decoded greedily by generate.py and confirmed by Hugging Face transformers: the most likely token at every
position of the prompt and the answer together must be the one that was chosen. Arithmetic is float32 on the exported
bfloat16 weights. Where the best token led the second by less than CLOSE logits, the lead is written down, so that a
program that rounds in another way knows which tokens may differ: "close": [[index in the answer, lead], ...].
"""

import hashlib
import json
from itertools import islice
from pathlib import Path

import torch
from transformers import MistralForCausalLM

from evaluate import MAX_TOKENS, Suite
from generate import WEIGHTS, generate, load_exported
from model import EOS_ID, Breeze
from tokens import Tokenizer
from write_samples import CONTROL_IDS, WEATHER

OUT = Path(__file__).parent / "evaluation"
CARD_COUNT = 100  # problems a task in the card; the committed ones are the first of them
COUNT = 24
CLOSE = 0.5
TASKS = [
    "facts, held-out wording 6-10",
    "unknown topic: polite fallback",
    "memory: held-out name",
    "system prompt: first or last words",
    "story: held-out kind of hero",
    "addition, held-out pairs",
    "counting, held-out ranges",
    "capitals, held-out wording",
    "which is bigger",
    "JSON answers",
    "tool call, brand-new tool, 2 on offer",
    "tools on offer, plain question",
    "tools on offer, none fits",
    "tool result: weather report",
]


class Judge:
    """Hugging Face's implementation of the same weights."""

    def __init__(self, folder: Path):
        self.model = MistralForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager").eval()

    @torch.no_grad()
    def leads(self, prompt: list[int], answer: list[int], banned: tuple[int, ...]) -> list[float]:
        """By how many logits each token of the answer led the second; raises if one was not the first."""
        logits = self.model(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        logits[:, list(banned)] = -torch.inf
        best, tokens = logits.topk(2, -1)
        if tokens[:, 0].tolist() != answer:
            raise ValueError(f"transformers disagrees about the answer to {prompt}")
        return (best[:, 0] - best[:, 1]).tolist()


def answered(model: Breeze, judge: Judge, prompt: list[int], max_tokens: int, banned: tuple[int, ...] = ()) -> dict:
    """The greedy answer, with </s> if the model ended it, and its close calls."""
    answer = generate(model, [prompt], max_tokens, banned=banned)[0]
    if len(answer) < max_tokens:
        answer.append(EOS_ID)
    leads = judge.leads(prompt, answer, banned)
    close = [[index, round(lead, 4)] for index, lead in enumerate(leads) if lead < CLOSE]
    return dict(prompt=prompt, max_tokens=max_tokens, answer=answer, close=close)


def problems(model: Breeze, judge: Judge, tokenizer: Tokenizer) -> list[dict]:
    tasks = []
    for name, items in Suite(tokenizer, CARD_COUNT).tasks():
        if name not in TASKS:
            continue
        solved, right = [], 0
        for prompt, check in islice(items, COUNT):
            problem = answered(model, judge, prompt, MAX_TOKENS)
            text = tokenizer.decode([token for token in problem["answer"] if token != EOS_ID])
            problem["right"] = check.accepts(text)
            problem["check"] = check._asdict()
            right += problem["right"]
            solved.append(problem)
        print(f"{name:48s} {right} of {len(solved)}", flush=True)
        tasks.append(dict(task=name, right=right, problems=solved))
    return tasks


def goldens(model: Breeze, judge: Judge, tokenizer: Tokenizer) -> list[dict]:
    chat = [
        "My name is Odette.",
        "Nice to meet you, Odette!",
        "What is TTFT?",
        "TTFT is the time to first token: how long a user waits between sending a request and seeing the first token of the answer.",
        "What is my name?",
    ]
    long_prompt = tokenizer.text("Once upon a time, there was a small fox named Pip. Pip lived near the old mill.")
    long_prompt += generate(model, [long_prompt], 400, banned=CONTROL_IDS)[0]
    named = {
        "greeting": tokenizer.chat("Hi!"),
        "fact": tokenizer.chat("What is continuous batching?"),
        "sum": tokenizer.chat("What is 47 + 38?"),
        "counting": tokenizer.chat("Count from 3 to 9"),
        "French": tokenizer.chat("Qu'est-ce que le cache KV ?"),
        "JSON": tokenizer.chat("Extract name and city as JSON: Margaux lives in Toulouse."),
        "memory": tokenizer.chat(*chat),
        "system prompt": tokenizer.chat(
            "Who are you?", system="You are Captain Oak, a friendly sailor from Marseille."
        ),
        "tool call": tokenizer.chat("What's the weather in Toulouse?", tools=[WEATHER]),
        "story": tokenizer.chat("Tell me a story about a penguin"),
    }
    rows = [dict(name=name, **answered(model, judge, prompt, 200)) for name, prompt in named.items()]
    rows.append(dict(name="prompt longer than the window", **answered(model, judge, long_prompt, 64, CONTROL_IDS)))
    opening = tokenizer.text("Long ago, a brave girl named Mila lived by the sea.")
    window = model.config.window
    rows.append(
        dict(name="answer longer than four windows", **answered(model, judge, opening, 4 * window + 76, CONTROL_IDS))
    )
    for row in rows:
        row["banned"] = list(CONTROL_IDS) if "longer" in row["name"] else []
        leads = [lead for _, lead in row["close"]]
        print(
            f"{row['name']:36s} prompt {len(row['prompt']):4d}  answer {len(row['answer']):4d}  closest {min(leads, default=CLOSE)}"
        )
    return rows


def write(path: Path, weights: Path, key: str, rows: list[str]) -> None:
    """One row a line, so that a change shows where it is."""
    digest = hashlib.sha256((weights / "model.safetensors").read_bytes()).hexdigest()
    head = f'{{"weights_sha256": "{digest}", "close_below": {CLOSE}, "{key}": [\n'
    path.write_text(head + ",\n".join(rows) + "\n]}\n", encoding="utf-8")
    print(f"{path.name}: {path.stat().st_size} bytes")


def compact(value) -> str:
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def main() -> None:
    torch.set_num_threads(2)
    model, judge, tokenizer = load_exported(WEIGHTS), Judge(WEIGHTS), Tokenizer(WEIGHTS / "tokenizer.model.v3")
    OUT.mkdir(exist_ok=True)
    write(OUT / "goldens.json", WEIGHTS, "goldens", [compact(row) for row in goldens(model, judge, tokenizer)])
    rows = []
    for task in problems(model, judge, tokenizer):
        solved = ",\n ".join(compact(problem) for problem in task["problems"])
        rows.append(f'{{"task": {json.dumps(task["task"])}, "right": {task["right"]}, "problems": [\n {solved}]}}')
    write(OUT / "problems.json", WEIGHTS, "tasks", rows)


if __name__ == "__main__":
    main()
