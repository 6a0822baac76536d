"""The requests and the comparison of bench/compare/equality, which see for how to start it.

Half of the requests are sent in turn, the others several at once in a pool that is too small for them: their bits are
to be the same. Of a stream the pieces are joined, since where it is cut depends on time. What the cache knew, and who
was set aside, is no part of an answer; where it differs though requests came in turn is counted beside the answers.
"""

import argparse
import concurrent.futures
import contextlib
import dataclasses
import functools
import json
import random
import re
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

from context_policies import ROOT, started

# What names a request, or says when something happened.
UNEQUAL = ("id", "item_id", "request_id", "created", "created_at", "last_used", "timing", "timings")
OF_THE_CACHE = ("cached_tokens", "kv_tokens", "prefill_chunks", "preemptions")
# A context, and a pool, that most of what is drawn does not fit into with its neighbours.
FLAGS = ("--context", "1024", "--memory", "18000000", "--max-sequences", "16", "--max-step-tokens", "64")
TIERS = ("--host-kv", "1MiB", "--disk-kv-size", "2MiB")
# Nothing is given up because the machine is busy.
PATIENCE = ("--max-constraint-step-us", "5000000", "--max-compile-ms", "60000", "--threads", "1")

WORDS = (ROOT / "bench/texts/stories.txt").read_text().split()
REGEXES = (r"[a-f]{3,9}", r"(yes|no|maybe)( indeed)?\.", r"-?[0-9]{1,6}(\.[0-9]{2})?", r"\w{2,8}(, \w{2,8}){0,3}")
GRAMMARS = ('root ::= ("a" | "b" root) "c"', 'root ::= word (" " word)* "."\nword ::= [a-z]+')
SCHEMAS = (
    {"type": "object", "properties": {"name": {"type": "string", "maxLength": 12}}, "required": ["name"]},
    {"type": "array", "items": {"type": "integer", "minimum": 0, "maximum": 99}, "minItems": 1, "maxItems": 4},
    {"enum": ["red", 7, None, [True]]},
    {"anyOf": [{"type": "boolean"}, {"type": "string", "pattern": "^[a-c]{1,5}$"}]},
)
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 8}}, "required": ["city"]}
TOOL = {"type": "function", "function": {"name": "get_weather", "parameters": CITY}}
CHOICES = (["yes", "no"], ["fox", "a hen"])
LEFT_OUT = """Left out, because they were changed on purpose: a reevaluate's default n_discard, and one below a
sixteenth of n_ctx - n_keep; the length of a saved session's file; a forced call that a stop ends; the words about a
max_tokens that is too large."""
# Each is refused, and says why.
FAULTS = (
    {"temperature": -1},
    {"top_p": 0},
    {"n": 9999},
    {"temprature": 1},
    {"prompt": [1, 999999]},
    {"logit_bias": {"1": 101}},
    {"stop": [""]},
    {"context_policy": {"type": "shift", "n_ctx": 8, "n_keep": 9}},
    {"structured_outputs": {"regex": "("}},
    {"cache_salt": "s" * 257},
)


@dataclasses.dataclass
class Call:
    """A request over HTTP, or the message of one over gRPC."""

    path: str
    body: dict | None = None
    method: str = "POST"


@dataclasses.dataclass
class Turns:
    """Calls that follow each other, where a later one may need what was answered. Nothing else of the run does."""

    kind: str
    features: list[str]
    next_call: Callable[[list[dict]], Call | None]  # of the answers so far; None: that was all


def one(kind: str, features: list[str], call: Call) -> Turns:
    return Turns(kind, features, lambda answers: None if answers else call)


class Draw:
    """Requests from a seed: each feature now and then, beside any others that go with it."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.number = 0
        self.beginnings = [self.text(self.random.randrange(20, 160)) for _ in range(12)]

    def text(self, words: int) -> str:
        begin = self.random.randrange(len(WORDS) - words)
        return " ".join(WORDS[begin : begin + words])

    def may(self, probability: float) -> bool:
        return self.random.random() < probability

    def prompt(self) -> str:
        """Half of them begin as others do."""
        begin = self.random.choice(self.beginnings) + " " if self.may(0.5) else ""
        return begin + self.text(self.random.randrange(1, 40))

    def ids(self, most: int) -> list[int]:
        return [self.random.randrange(300, 2000) for _ in range(self.random.randrange(1, most))]

    def fields(self) -> dict:
        """Of any endpoint's body, but for those of a kind."""
        draw = self.random
        body: dict = {"seed": draw.randrange(1 << 48), "max_tokens": draw.choice((1, 2, 8, 24, 24, 60))}
        choices = {
            "temperature": lambda: draw.choice((0, 0.3, 0.7, 1, 1.6)),
            "top_p": lambda: draw.choice((0.1, 0.5, 0.9)),
            "top_k": lambda: draw.choice((1, 3, 40)),
            "min_p": lambda: draw.choice((0.02, 0.2)),
            "repetition_penalty": lambda: draw.choice((0.8, 1.1, 1.5)),
            "presence_penalty": lambda: draw.choice((-1, 0.4, 2)),
            "frequency_penalty": lambda: draw.choice((-0.5, 0.3, 2)),
            "logit_bias": lambda: {str(draw.randrange(300, 2000)): draw.choice((-100, -3, 4)) for _ in range(4)},
            "stop": lambda: draw.choice(("the", [" a", "\n"], [".", "ing", "and then"])),
            "stop_token_ids": lambda: self.ids(20),
            "include_stop_str_in_output": lambda: True,
            "ignore_eos": lambda: True,
            "skip_special_tokens": lambda: False,
            "min_tokens": lambda: draw.randrange(1, 1 + body["max_tokens"]),
            "cache_salt": lambda: draw.choice(("one", "another")),
            "return_token_ids": lambda: True,
        }
        often = {"temperature": 0.8, "stop": 0.3, "return_token_ids": 0.5, "top_p": 0.3}
        for name, value in choices.items():
            if self.may(often.get(name, 0.15)):
                body[name] = value()
        return body

    def add_policy(self, body: dict) -> None:
        draw = self.random
        kind = draw.choice(("sinks", "shift", "reevaluate"))
        n_ctx = draw.randrange(40, 200)
        n_keep = draw.randrange(0, 8)
        policy = {"type": kind, "n_ctx": n_ctx, "n_keep": n_keep}
        if kind != "sinks":  # a sixteenth at least, and named: what is least, and the default, have changed
            policy["n_discard"] = draw.randrange((n_ctx - n_keep + 15) // 16, n_ctx - n_keep)
        if kind == "reevaluate":
            body.pop("prompt_logprobs", None)
        body["context_policy"] = policy
        body["max_tokens"] = draw.choice((60, 150, 300))
        body["min_tokens"] = min(body.get("min_tokens", 0), 60)

    def add_constraint(self, body: dict) -> None:
        draw = self.random
        form = draw.choice(("regex", "grammar", "choice", "json", "json_schema", "json_object"))
        for name in ("min_tokens", "ignore_eos", "stop_token_ids"):  # that end in errors most of the time
            body.pop(name, None)
        if form == "json_object":
            body["response_format"] = {"type": form}
        elif form == "json_schema":
            schema = {"name": "answer", "schema": draw.choice(SCHEMAS)}
            body["response_format"] = {"type": form, "json_schema": schema}
        else:
            texts = {"regex": REGEXES, "grammar": GRAMMARS, "json": SCHEMAS, "choice": CHOICES}
            body["structured_outputs"] = {form: draw.choice(texts[form])}

    def add_common(self, body: dict) -> None:
        if self.may(0.15):
            body["n"] = self.random.randrange(2, 5)
        if self.may(0.2):
            body["prompt_logprobs"] = self.random.randrange(0, 4)
        if self.may(0.2):
            self.add_policy(body)
        if self.may(0.2):
            self.add_constraint(body)
        if "prompt_logprobs" not in body and self.may(0.4):
            body["stream"] = True
            if self.may(0.5):
                body["stream_options"] = {"include_usage": True}

    def completion(self) -> Turns:
        body = self.fields()
        body["prompt"] = self.prompt() if self.may(0.7) else self.ids(200)
        if self.may(0.1):
            body["prompt"] = [self.prompt() for _ in range(self.random.randrange(2, 4))]
        self.add_common(body)
        if self.may(0.3):
            body["logprobs"] = self.random.randrange(0, 6)
        if self.may(0.15):
            body["echo"] = True
            body.pop("prompt_logprobs", None)
            body.pop("context_policy", None)
        return one("completion", sorted(body), Call("/v1/completions", body))

    def chat(self) -> Turns:
        body = self.fields()
        body["messages"] = [{"role": "user", "content": self.prompt()}]
        if self.may(0.3):
            body["messages"].insert(0, {"role": "system", "content": self.random.choice(self.beginnings)})
        if self.may(0.3):
            body["messages"] += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": self.text(9)}]
        self.add_common(body)
        if self.may(0.3):
            body |= {"logprobs": True, "top_logprobs": self.random.randrange(0, 5)}
        if self.may(0.15):
            body |= {"tools": [TOOL], "tool_choice": self.random.choice(("auto", "required"))}
            body["max_tokens"] = 80
            for name in ("min_tokens", "stop", "stop_token_ids"):
                body.pop(name, None)
        return one("chat", sorted(body), Call("/v1/chat/completions", body))

    def response(self) -> Turns:
        body = {"input": self.prompt(), "temperature": 0, "max_output_tokens": self.random.randrange(16, 60)}
        if self.may(0.5):
            body["stream"] = True
        return one("response", sorted(body), Call("/v1/responses", body))

    def fault(self) -> Turns:
        body = {"prompt": "Once", "max_tokens": 4} | self.random.choice(FAULTS)
        return one("fault", sorted(body), Call("/v1/completions", body))

    def session(self) -> Turns:
        """A conversation: three turns, between them saved, forgotten and restored."""
        self.number += 1
        name = f"session-{self.number}"
        fields = self.fields() | {"session": name, "return_token_ids": True}
        fields.pop("stop", None)
        if self.may(0.4):
            self.add_policy(fields)
            fields["max_tokens"] = 100
        news = [self.ids(120), self.ids(30), self.ids(30)]
        moves = self.may(0.6)
        salt = {"cache_salt": fields["cache_salt"]} if "cache_salt" in fields else {}
        session = f"/v1/sessions/{name}"
        between = [Call(f"{session}/save", salt), Call(session, salt, "DELETE"), Call(f"{session}/restore", salt)]

        def next_call(answers: list[dict]) -> Call | None:
            turns = [answer for answer in answers if "choices" in answer]
            since = len(answers) - answers.index(turns[-1]) - 1 if turns else 0
            if answers and answers[-1].get("error"):
                return None
            if moves and len(turns) in (1, 2) and since < len(between):
                return between[since]
            if len(turns) == len(news):
                return None
            said = [turn["choices"][0]["token_ids"] for turn in turns]
            ids = [i for new, answer in zip(news, said, strict=False) for i in new + answer]
            return Call("/v1/completions", fields | {"prompt": ids + news[len(turns)]})

        features = ["session", *(["saved and restored"] if moves else []), *sorted(fields)]
        return Turns("session", features, next_call)

    def candidates(self) -> Turns:
        texts = [" " + self.text(self.random.randrange(1, 6)) for _ in range(self.random.randrange(1, 12))]
        message = {"text": self.prompt(), "candidates": [{"text": text} for text in texts]}
        if self.may(0.2):
            message["cache_salt"] = "one"
        return one("candidates", ["candidates"], Call("ScoreCandidates", message))

    def grpc(self) -> Turns:
        draw = self.random
        message: dict = {
            "text": self.prompt(),
            "sampling": {"temperature": draw.choice((0, 0.8)), "seed": draw.randrange(1 << 48), "top_k": 9},
            "stopping": {"max_tokens": draw.randrange(0, 40)},
            "output": {"token_ids": True, "logprobs": draw.randrange(0, 4)},
            "choices": draw.choice((1, 1, 3)),
        }
        if self.may(0.4):
            message["output"]["prompt_logprobs"] = draw.randrange(0, 4)
        if self.may(0.3):
            message["constraint"] = {"regex": draw.choice(REGEXES)}
        return one("grpc", ["grpc", *(name for name in message if name == "constraint")], Call("Generate", message))


# How often each is drawn.
KINDS = {"completion": 45, "chat": 25, "session": 8, "candidates": 8, "grpc": 6, "response": 4, "fault": 4}


def join(into: dict, piece: dict) -> dict:
    """A piece of a stream behind those before it: texts and lists go on, and all else is as it was said last."""
    for name, value in piece.items():
        before = into.get(name)
        if name in ("choices", "tool_calls") and isinstance(value, list):
            items = into.setdefault(name, {})
            for item in value:
                join(items.setdefault(str(item.get("index", 0)), {}), item)
            into[name] = dict(sorted(items.items()))
        elif isinstance(value, dict):
            into[name] = join(before if isinstance(before, dict) else {}, value)
        elif isinstance(value, list):
            into[name] = (before or []) + value
        elif name in ("text", "content", "arguments", "reasoning_content", "reasoning") and isinstance(value, str):
            into[name] = (before or "") + value
        elif value is not None or name not in into:
            into[name] = value
    return into


def joined(text: str) -> dict:
    """The events of a stream as one answer."""
    whole: dict = {}
    for event in text.split("\n\n"):
        data = "".join(line[5:].strip() for line in event.split("\n") if line.startswith("data:"))
        if data == "[DONE]":
            whole["done"] = True
        elif data:
            piece = json.loads(data)
            if str(piece.get("type", "")).endswith(".delta"):  # of /v1/responses: the whole text comes at the end
                continue
            piece.pop("sequence_number", None)
            whole = join(whole, piece)
    return whole


def plain(value: object, leave_out: tuple[str, ...]) -> object:
    if isinstance(value, dict):
        if value.get("object") == "session":  # how long its file is, which has had several versions
            leave_out = (*leave_out, "bytes")
        return {name: plain(entry, leave_out) for name, entry in value.items() if name not in leave_out}
    if isinstance(value, list):
        return [plain(entry, leave_out) for entry in value]
    # Those of tool calls follow from the seed, those of requests do not.
    return re.sub(r"\b(cmpl|chatcmpl|resp|msg|fc|rs)[-_][0-9A-Za-z]+", "ID", value) if isinstance(value, str) else value


class Server:
    """One of the two. Any thread."""

    def __init__(self, http: str, grpc: str) -> None:
        self.http = http
        self.stub = None
        with contextlib.suppress(ImportError):
            sys.path.insert(0, str(ROOT / "tests/clients"))
            import grpc as grpc_module
            from google.protobuf import json_format
            from grpc_stubs import import_stubs

            global STUBS
            STUBS = STUBS or import_stubs()
            self.messages, services = STUBS
            self.json_format = json_format
            self.error = grpc_module.RpcError
            self.stub = services.InferenceStub(grpc_module.insecure_channel(grpc))

    def ask(self, call: Call) -> dict:
        if not call.path.startswith("/"):
            return self.ask_grpc(call)
        data = None if call.body is None else json.dumps(call.body).encode()
        headers = {"content-type": "application/json"}
        request = urllib.request.Request(self.http + call.path, data, headers, method=call.method)
        try:
            with urllib.request.urlopen(request, timeout=600) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as refused:
            if refused.code == 429:  # files of sessions are written one at a time
                time.sleep(0.02)
                return self.ask(call)
            return {"status": refused.code} | json.loads(refused.read())
        if text.startswith(("data:", "event:", ":")):
            return joined(text)
        return json.loads(text) if text else {}

    def ask_grpc(self, call: Call) -> dict:
        request = self.json_format.ParseDict(call.body, getattr(self.messages, f"{call.path}Request")())
        as_dict = functools.partial(self.json_format.MessageToDict, preserving_proto_field_name=True)
        try:
            if call.path != "Generate":
                return as_dict(getattr(self.stub, call.path)(request))
            whole: dict = {}
            for event in self.stub.Generate(request):
                for kind, piece in as_dict(event).items():
                    join(whole.setdefault(kind + str(piece.get("choice", 0)), {}), piece)
            return dict(sorted(whole.items()))
        except self.error as refused:
            return {"code": refused.code().name, "details": refused.details()}

    def load(self) -> str:
        with urllib.request.urlopen(self.http + "/metrics", timeout=60) as answer:
            text = answer.read().decode()
        names = "vllm:num_preemptions|vllm:prefix_cache_hits|tramontane_kv_tier_bytes"
        found = re.findall(rf"^((?:{names})\S*) (\S+)$", text, re.M)
        return ", ".join(f"{name} {value}" for name, value in found)


STUBS = None


def answers_of(server: Server, turns: Turns) -> list[dict]:
    answers: list[dict] = []
    while (call := turns.next_call(answers)) is not None:
        answers.append(server.ask(call))
    return answers


class Comparison:
    def __init__(self, old: Server, new: Server) -> None:
        self.servers = (old, new)
        self.kinds: Counter = Counter()
        self.features: Counter = Counter()
        self.calls = 0
        self.refused: Counter = Counter()
        self.differ_by_cache = 0
        self.differ: list[tuple[Turns, str, str]] = []

    def run(self, drawn: list[Turns], at_once: int) -> None:
        with concurrent.futures.ThreadPoolExecutor(2 * at_once) as threads:
            for begin in range(0, len(drawn), at_once):
                some = drawn[begin : begin + at_once]
                asked = [[threads.submit(answers_of, server, turns) for turns in some] for server in self.servers]
                for turns, old, new in zip(some, *asked, strict=True):
                    self.compare(turns, old.result(), new.result(), in_turn=at_once == 1)

    def compare(self, turns: Turns, old: list[dict], new: list[dict], in_turn: bool) -> None:
        self.kinds[turns.kind] += 1
        self.features.update(turns.features)
        self.calls += len(old)
        self.refused[turns.kind] += sum(bool(answer.get("error")) or "code" in answer for answer in old)
        texts = [json.dumps(plain(answers, UNEQUAL + OF_THE_CACHE), ensure_ascii=False) for answers in (old, new)]
        if texts[0] != texts[1]:
            self.differ.append((turns, *texts))
        elif in_turn and plain(old, UNEQUAL) != plain(new, UNEQUAL):
            self.differ_by_cache += 1

    def print(self) -> None:
        print(f"requests: {self.kinds.total()}, as {self.calls} calls, of which {self.refused.total()} were refused")
        for what, counts in (("kinds", self.kinds), ("refused", self.refused), ("features", self.features)):
            print(f"{what}: " + ", ".join(f"{name} {count}" for name, count in counts.most_common()))
        for name, server in zip(("old", "new"), self.servers, strict=True):
            print(f"{name}: {server.load()}")
        print(f"of those in turn, what the cache knew differs, and no more: {self.differ_by_cache}")
        print(f"answers that differ: {len(self.differ)}")
        if self.differ:
            print(f"the first: {json.dumps(self.differ[0][0].next_call([]).__dict__, ensure_ascii=False)}")
        for turns, old, new in self.differ:
            at = next((i for i, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
            begin = max(0, at - 40)
            print(f"{turns.kind}, old: {old[begin : at + 60]}\n{' ' * len(turns.kind)}  new: {new[begin : at + 60]}")


@contextlib.contextmanager
def server_of(binary: Path, model: str, folder: Path) -> Iterator[Server]:
    flags = (*FLAGS, *TIERS, *PATIENCE, "--disk-kv", str(folder), "--session-dir", str(folder))
    with started(binary, model, *flags) as ready:
        yield Server(f"http://{ready['http']}", ready["grpc"])


def main() -> int:
    parser = argparse.ArgumentParser(prog="bench/compare/equality")
    parser.add_argument("old", type=Path)
    parser.add_argument("new", type=Path)
    parser.add_argument("--model", default="")
    parser.add_argument("--requests", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-once", type=int, default=24)
    parser.add_argument("--kinds", default=",".join(KINDS))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}. {LEFT_OUT}")
    with contextlib.ExitStack() as stack:
        servers = []
        for binary in (arguments.old, arguments.new):
            folder = stack.enter_context(tempfile.TemporaryDirectory())
            servers.append(stack.enter_context(server_of(binary, arguments.model, Path(folder))))
        kinds = [kind for kind in arguments.kinds.split(",") if servers[0].stub or kind not in ("candidates", "grpc")]
        if servers[0].stub is None:
            print("this Python has no grpcio and grpcio-tools: no candidates, nothing over gRPC")
        draw = Draw(arguments.seed)
        weights = [KINDS[kind] for kind in kinds]
        drawn = [getattr(draw, draw.random.choices(kinds, weights)[0])() for _ in range(arguments.requests)]
        comparison = Comparison(*servers)
        comparison.run(drawn[: len(drawn) // 2], 1)
        comparison.run(drawn[len(drawn) // 2 :], arguments.at_once)
        comparison.print()
    return 1 if comparison.differ else 0


if __name__ == "__main__":
    sys.exit(main())
