"""Writes what mistral-common makes of random chats: chat_v*.json and chat_tekken_v*.json.

Usage: python tests/golden/make_chat_goldens.py      (needs `pip install mistral-common protobuf`)

The tests read the files alone; this script is only for writing them anew. Every format is rendered with Breeze's
vocabulary, whose control pieces serve v1 to v3. For v7 the script also writes chat_v7_tokenizer/tokenizer.model.v7: the same
vocabulary with the control pieces of v7 at their ids and a few user-defined pieces, as Mistral's own file has them.

The chat_tekken files are rendered with chat_tekken_tokenizer/tekken.json, a byte-level vocabulary that this script trains
on its own texts; its special tokens serve all versions. Their messages also come in parts, think, and ask for an effort.

A case is {"messages", "tools", "reasoning_effort"} with either {"ids", "text"} or {"rejected": true}; mistral-common runs
in serving mode. With both, mistral-common refuses the chat and takes it once it is mended as models/chat/mistral_chat.h says: those are the
departures. Each file starts with the name of the tokenizer's folder.
"""

import base64
import collections
import json
import random
import shutil
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path

import regex
from jsonschema import Draft7Validator
from mistral_common.protocol.instruct.chunk import TextChunk, ThinkChunk
from mistral_common.protocol.instruct.messages import AssistantMessage, SystemMessage, ToolMessage, UserMessage
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.protocol.instruct.tool_calls import Function, FunctionCall, Tool, ToolCall
from mistral_common.protocol.instruct.validator import MistralRequestValidator, ValidationMode
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from sentencepiece import sentencepiece_model_pb2

SEED = 20250
ACCEPTED = 60
REJECTED = 30
DEPARTURES = 20
GAPS = 10  # more departures, whose calls lack results

GOLDEN = Path(__file__).resolve().parent
BREEZE = GOLDEN.parent.parent / "models/breeze/weights/tokenizer.model.v3"
V7_CONTROLS = [
    "[IMG]", "[PREFIX]", "[MIDDLE]", "[SUFFIX]", "[IMG_BREAK]", "[IMG_END]",
    "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
]  # fmt: skip
V7_USER_DEFINED = ["[/REF]", "[REF]", "[REFERENCE_DOC_1]", "[REFERENCE_DOC_10]"]

TEXTS = [
    "Hi", "a", "  two leading", "two trailing  ", " ", "", "[INST] x [/INST]", "</s><s>", "café 你好 🙂", "x\n\ny\t",
    "\n", "▁▁", "[REF]1[/REF] [REFERENCE_DOC_10]2", '"quoted"', "\u007f\u00a0",
]  # fmt: skip
JSON_TEXTS = [
    "", "{}", "[]", "22", "-0", "-0.0", "1e20", "1.50", "1E-7", "0.0001", "1e16", "123456789012345678901234567890",
    "1e400", "NaN", "[-Infinity]", "null", '{"a": 1.0, "b": [true, null], "a": 2}', '  {"x" : [ ] }  ', '{"a":1,}',
    '"\\ud83d\\ude00 \\u00e9\\/\\n"', '"\\u0001\\u007f"', '"\\ud800"', "not json {", "01", "1.", "tru", "\ufeff{}",
    '{"city":"Zürich","n":1e3}', "[5e-324, 1.7976931348623157e308, 123456.789e3]",
]  # fmt: skip
SCHEMAS = [
    "{}",
    '{"type":"object","properties":{"city":{"type":"string","description":"Stadt ü"}},"required":["city"]}',
    '{"maximum":1e20,"type":["string","null"],"minItems":2.0,"anyOf":[true,{"not":{}}]}',
]
BAD_SCHEMAS = [
    '{"type":"objekt"}', '{"required":["a","a"]}', '{"items":[]}', '{"properties":{"a":1}}', '{"minLength":-1}',
    '{"multipleOf":0}', '{"minItems":2.5}', '{"dependencies":{"a":["b","b"]}}', '{"description":1}',
]  # fmt: skip
TEKKEN_PATTERN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
TEKKEN_MERGES = 160
TEKKEN_SPECIAL_TOKENS = 48
TEKKEN_NAMED = {
    **dict(enumerate([
        "<unk>", "<s>", "</s>", "[INST]", "[/INST]", "[AVAILABLE_TOOLS]", "[/AVAILABLE_TOOLS]", "[TOOL_RESULTS]",
        "[/TOOL_RESULTS]", "[TOOL_CALLS]", "[IMG]", "<pad>", "[IMG_BREAK]", "[IMG_END]", "[PREFIX]", "[MIDDLE]",
        "[SUFFIX]", "[SYSTEM_PROMPT]", "[/SYSTEM_PROMPT]", "[TOOL_CONTENT]",
    ])),
    32: "[ARGS]", 33: "[CALL_ID]", 34: "[THINK]", 35: "[/THINK]", 36: "[MODEL_SETTINGS]", 37: "[/MODEL_SETTINGS]",
}  # fmt: skip
TEKKEN_SETTINGS = {
    "reasoning_effort": {"type": "enum", "accepts_none": True, "values": ["none", "high"], "default": "none"}
}
FOLLOWERS = {
    "system": ["user", "assistant", "system"],
    "user": ["assistant", "assistant", "user", "system"],
    "assistant": ["user", "user", "tool", "assistant"],
    "tool": ["assistant", "user", "tool"],
}


def call_id(rng: random.Random) -> str:
    if rng.random() < 0.97:
        return rng.choice(["aB3dE5gH7", "123456789"])
    return rng.choice(["", "null", "call_1", "12345678", "abcdefghi\n", "äbcdefghi"])


def function_name(rng: random.Random) -> str:
    if rng.random() < 0.97:
        return rng.choice(["f", "get_weather", "a-b_9", "x" * 64])
    return rng.choice(["", "a b", "x" * 129, "f\n", "é"])


def assistant(rng: random.Random, is_last: bool) -> dict:
    message: dict = {"role": "assistant"}
    calls = [
        {"id": call_id(rng), "name": function_name(rng), "arguments": rng.choice(JSON_TEXTS)}
        for _ in range(rng.choice([1, 1, 2]))
    ]
    kind = rng.random()
    if kind < 0.55:
        message["content"] = rng.choice(TEXTS) or "ok  "
    elif kind < 0.93:
        message["tool_calls"] = calls
    elif kind < 0.97:
        message["content"] = "both"
        message["tool_calls"] = calls
    else:
        message["content"] = rng.choice([None, ""])
    if rng.random() < (0.85 if is_last else 0.02):
        message["prefix"] = True
    return message


def message_of(rng: random.Random, role: str, is_last: bool) -> dict:
    if role == "assistant":
        return assistant(rng, is_last)
    if role != "tool":
        return {"role": role, "content": rng.choice(TEXTS + JSON_TEXTS[:4])}
    message = {"role": "tool", "content": rng.choice(JSON_TEXTS + TEXTS)}
    if rng.random() < 0.98:
        message["tool_call_id"] = call_id(rng)
    if rng.random() < 0.5:
        message["name"] = function_name(rng)
    return message


def conversation(rng: random.Random) -> dict:
    """A chat that is mostly legal: calls mostly get their results."""
    length = rng.choice([1, 2, 3, 3, 4, 5, 6, 7])
    role = rng.choice(["user", "user", "system", "assistant"])
    messages: list[dict] = []
    open_calls = 0
    while len(messages) < length:
        if open_calls > 0 and rng.random() < 0.95:
            role = "tool"
        elif role == "tool" and rng.random() < 0.9:
            role = "user"
        message = message_of(rng, role, len(messages) + 1 >= length)
        if role == "tool":
            open_calls = max(0, open_calls - 1)
        elif messages:
            open_calls += len(message.get("tool_calls", []))
        messages.append(message)
        role = rng.choice(FOLLOWERS[role]) if rng.random() < 0.97 else rng.choice(list(FOLLOWERS))
    messages += [message_of(rng, "tool", False) for _ in range(open_calls)]
    chat: dict = {"messages": messages}
    if rng.random() < 0.4:
        chat["tools"] = [
            {
                "name": function_name(rng),
                "description": rng.choice(["", 'Wetter für "heute"\n']),
                "parameters": rng.choice(SCHEMAS) if rng.random() < 0.9 else rng.choice(BAD_SCHEMAS),
            }
            for _ in range(rng.choice([1, 2]))
        ]
    return chat


def in_parts(rng: random.Random, text: str, role: str) -> list[dict]:
    parts = [{"type": "text", "text": text}]
    for _ in range(rng.choice([0, 1, 1, 2])):
        parts.insert(rng.randrange(len(parts) + 1), {"type": "text", "text": rng.choice(["", "", *TEXTS])})
    if rng.random() < {"assistant": 0.6, "system": 0.2}.get(role, 0.02):
        thinking = {"type": "thinking", "thinking": rng.choice([*TEXTS, "Hm."]), "closed": rng.random() < 0.8}
        parts.insert(rng.choice([0, 0, 0, len(parts)]), thinking)
    return parts


def richer(rng: random.Random, chat: dict, version: int) -> dict:
    """The chat with contents in parts, calls of several ids, results in another order, and an effort."""
    # Half a surrogate pair is refused by us, and by mistral-common with SentencePiece; with tekken it shows U+FFFD.
    messages = json.loads(json.dumps(chat["messages"]).replace("ud800", "u0800"))
    for message in messages:
        text = message.get("content")
        if text is not None and rng.random() < 0.4:
            role = message["role"] if version >= 13 or rng.random() < 0.05 else "user"
            message["content"] = in_parts(rng, text, role)
    if rng.random() < 0.9:
        give_results_their_ids(rng, messages)
    chat = {**chat, "messages": messages}
    if rng.random() < (0.5 if version >= 15 else 0.05):
        chat["reasoning_effort"] = rng.choice(["none", "high", "high", "low", "much"])
    return chat


def give_results_their_ids(rng: random.Random, messages: list[dict]) -> None:
    open_ids: list[str] = []
    for number, message in enumerate(messages):
        for i, call in enumerate(message.get("tool_calls", [])):
            if rng.random() < 0.97:
                call["id"] = f"call{number:02}{i:03}"
            open_ids.append(call["id"])
        if message["role"] == "tool" and open_ids and rng.random() < 0.99:
            message["tool_call_id"] = open_ids.pop(rng.randrange(len(open_ids)))


def content_of(content: str | list | None) -> str | list | None:
    if not isinstance(content, list):
        return content
    return [
        TextChunk(text=part["text"])
        if part["type"] == "text"
        else ThinkChunk(thinking=part["thinking"], closed=part["closed"])
        for part in content
    ]


def says_something(content: str | list | None) -> bool:
    if not isinstance(content, list):
        return bool(content)
    return any(part["type"] == "thinking" or part["text"] for part in content)


def to_request(chat: dict) -> ChatCompletionRequest:
    messages: list = []
    for message in chat["messages"]:
        match message["role"]:
            case "user":
                messages.append(UserMessage(content=content_of(message["content"])))
            case "system":
                messages.append(SystemMessage(content=content_of(message["content"])))
            case "assistant":
                calls = [
                    ToolCall(id=call["id"], function=FunctionCall(name=call["name"], arguments=call["arguments"]))
                    for call in message.get("tool_calls", [])
                ]
                messages.append(
                    AssistantMessage(
                        content=content_of(message.get("content")),
                        tool_calls=calls or None,
                        prefix=message.get("prefix", False),
                    )
                )
            case "tool":
                messages.append(
                    ToolMessage(
                        content=content_of(message["content"]),
                        tool_call_id=message.get("tool_call_id"),
                        name=message.get("name"),
                    )
                )
    tools = [
        Tool(
            function=Function(
                name=tool["name"], description=tool["description"], parameters=json.loads(tool["parameters"])
            )
        )
        for tool in chat.get("tools", [])
    ]
    return ChatCompletionRequest(
        model="breeze", messages=messages, tools=tools or None, reasoning_effort=chat.get("reasoning_effort")
    )


def is_left_out(message: dict) -> bool:
    nothing = not says_something(message.get("content")) and not message.get("tool_calls")
    return message["role"] == "assistant" and nothing


def without_thoughts(messages: list[dict]) -> list[dict]:
    """Of the assistant; a message that only thought says nothing any more."""

    def rest(message: dict) -> dict:
        content = message.get("content")
        if message["role"] != "assistant" or not isinstance(content, list):
            return message
        return {**message, "content": [part for part in content if part["type"] != "thinking"]}

    return [rest(message) for message in messages]


def with_all_results(messages: list[dict]) -> list[dict]:
    """A result for each call that has none, but for calls of the first message, and those that nothing follows."""
    filled: list[dict] = []
    open_calls: list[dict] = []
    state = "outside"
    pending: list[dict] = []  # messages that are left out, behind those that count

    def close() -> None:
        nonlocal open_calls
        for call in open_calls:
            filled.append(
                {"role": "tool", "content": '{"error": "no result"}', "tool_call_id": call["id"], "name": call["name"]}
            )
        open_calls = []

    by_order = 0
    for number, message in enumerate(messages):
        if is_left_out(message):
            pending.append(message)
            continue
        continues = state == "calls" and message["role"] == "assistant" and not message.get("tool_calls")
        if state != "outside" and message["role"] == "tool":
            state = "results"
            same = [call for call in open_calls if call["id"] == (message.get("tool_call_id") or "")]
            if same:
                open_calls.remove(same[0])
            else:
                by_order += 1
        elif not continues:
            open_calls = open_calls[by_order:]
            close()
            by_order = 0
            calls = message.get("tool_calls", []) if message["role"] == "assistant" and number > 0 else []
            open_calls = list(calls)
            state = "calls" if calls else "outside"
        filled += pending + [message]
        pending = []
    if state == "results":
        open_calls = open_calls[by_order:]
        close()
    return filled + pending


def mended(chat: dict, version: int) -> dict:
    """The chat with all results, and without what an assistant cannot have said: nothing at all, or, before v7, text
    beside calls, or, before v13, thoughts."""
    messages = with_all_results(without_thoughts(chat["messages"]) if version < 13 else chat["messages"])
    chat = {**chat, "messages": messages}
    messages = [message for message in messages if not is_left_out(message)]
    last = chat["messages"][-1]
    if (
        all(message is not last for message in messages)
        and last.get("prefix")
        and messages
        and messages[-1]["role"] == "assistant"
    ):
        messages[-1] = {**messages[-1], "prefix": True}
    if version < 7 and messages and messages[0].get("tool_calls") and messages[0] is not chat["messages"][0]:
        messages.insert(0, {"role": "system", "content": ""})  # calls of the first message would not count
    turns: list[list[dict]] = []
    for message in messages:
        if message["role"] == "assistant" and turns and turns[-1][-1]["role"] == "assistant":
            turns[-1].append(message)
        else:
            turns.append([message])
    for turn in turns:
        calls = [call for message in turn for call in message.get("tool_calls", [])]
        if turn[0]["role"] != "assistant" or not calls:
            continue
        if version >= 7 and turn is turns[0] and messages[0].get("tool_calls"):
            continue  # calls of the first message do not count, others would
        # Text behind the calls is moved in front of them, where it is rendered anyway.
        turn.sort(key=lambda message: bool(message.get("tool_calls")))
        if version < 7:
            first_is_text = turn is turns[0] and not messages[0].get("tool_calls")
            turn[:] = [{k: v for k, v in m.items() if k != "content"} for m in turn if m.get("tool_calls")]
            if first_is_text:  # calls of the first message would not count
                turn.insert(0, {"role": "system", "content": ""})
    return {**chat, "messages": [message for turn in turns for message in turn]}


def has_place_for_system_messages(chat: dict, version: int) -> bool:
    """Before v7 they go to a user's turn, so that an answer at the end would be left without a question."""
    kept = [m for m in chat["messages"] if version >= 7 or m["role"] != "system"]
    return not kept or kept[-1]["role"] != "assistant" or kept[-1].get("prefix", False)


class AnySchema:
    """While it lasts, a tool's parameters are not checked to be a sound JSON Schema."""

    def __enter__(self) -> None:
        self.original = Draft7Validator.check_schema
        Draft7Validator.check_schema = lambda schema: None

    def __exit__(self, *_: object) -> None:
        Draft7Validator.check_schema = self.original


class AnyPlaceForSystemMessages:
    """While it lasts, a system message may follow any other; a result still follows a call or a result."""

    def __enter__(self) -> None:
        self.original = MistralRequestValidator._validate_message_order

        def validate(validator: MistralRequestValidator, messages: list) -> None:
            for before, after in zip(messages, messages[1:]):
                if after.role != "system":
                    self.original(validator, [before, after])

        MistralRequestValidator._validate_message_order = validate

    def __exit__(self, *_: object) -> None:
        MistralRequestValidator._validate_message_order = self.original


def thinks(chat: dict) -> bool:
    contents = [message.get("content") for message in chat["messages"]]
    return any(part["type"] == "thinking" for content in contents if isinstance(content, list) for part in content)


def render(tokenizer: MistralTokenizer, chat: dict, version: int) -> dict:
    try:
        result = tokenizer.encode_chat_completion(to_request(chat))
        return {"ids": result.tokens, "text": result.text}
    except Exception:  # its rejections have many types: pydantic's, its own, and pybind's for half a surrogate pair
        pass
    instead = mended(chat, version)
    if version < 13 and thinks(instead):
        return {"rejected": True}
    if not has_place_for_system_messages(instead, version):
        return {"rejected": True}
    try:
        with AnyPlaceForSystemMessages(), AnySchema():
            result = tokenizer.encode_chat_completion(to_request(instead))
    except Exception:
        return {"rejected": True}
    return {"rejected": True, "ids": result.tokens, "text": result.text}


def write_goldens(version: int, tokenizer_file: Path) -> None:
    rng = random.Random(SEED + version)
    with tempfile.TemporaryDirectory() as folder:
        named = Path(folder) / f"tokenizer.model.v{version}"  # the name is what decides the version
        shutil.copy(tokenizer_file, named)
        tokenizer = MistralTokenizer.from_file(named, mode=ValidationMode.serving)
        cases = choose_cases(tokenizer, version, lambda: conversation(rng), rng)
    write_cases(GOLDEN / f"chat_v{version}.json", tokenizer_file.parent, version, cases)


def write_tekken_goldens(version: int, tokenizer_file: Path) -> None:
    rng = random.Random(SEED + 100 + version)
    contents = json.loads(tokenizer_file.read_bytes())
    contents["config"]["version"] = f"v{version}"
    if version < 15:
        del contents["model_settings_builder"]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "tekken.json"
        file.write_text(json.dumps(contents), encoding="utf-8")
        tokenizer = MistralTokenizer.from_file(file, mode=ValidationMode.serving)
        cases = choose_cases(tokenizer, version, lambda: richer(rng, conversation(rng), version), rng)
    write_cases(GOLDEN / f"chat_tekken_v{version}.json", tokenizer_file.parent, version, cases)


def choose_cases(
    tokenizer: MistralTokenizer, version: int, next_chat: Callable[[], dict], rng: random.Random
) -> list[dict]:
    wanted = {(False, True): ACCEPTED, (True, False): REJECTED, (True, True): DEPARTURES}
    cases = []
    while any(wanted.values()):
        chat = next_chat()
        result = render(tokenizer, chat, version)
        kind = ("rejected" in result, "ids" in result)
        if wanted[kind] > 0:
            wanted[kind] -= 1
            cases.append({**chat, **result})
    while version > 1 and len(cases) < ACCEPTED + REJECTED + DEPARTURES + GAPS:
        chat = without_some_results(rng, next_chat())
        result = render(tokenizer, chat, version)
        if "no result" in str(with_all_results(chat["messages"])) and {"rejected", "ids"} <= result.keys():
            cases.append({**chat, **result})
    return cases


def without_some_results(rng: random.Random, chat: dict) -> dict:
    messages = [m for m in chat["messages"] if m["role"] != "tool" or rng.random() < 0.5]
    return {**chat, "messages": messages}


def write_cases(path: Path, tokenizer_folder: Path, version: int, cases: list[dict]) -> None:
    lines = ",\n".join(json.dumps(case, ensure_ascii=False, separators=(",", ":")) for case in cases)
    header = json.dumps(tokenizer_folder.relative_to(GOLDEN.parent.parent).as_posix())
    path.write_text(f'{{"tokenizer":{header},"version":{version},"cases":[\n{lines}\n]}}\n', encoding="utf-8")


def trained_merges(texts: list[str], count: int) -> list[bytes]:
    """Byte-pair merges of `texts`, the most frequent pair first; of equals the smaller bytes."""
    words = collections.Counter(piece.encode() for text in texts for piece in regex.findall(TEKKEN_PATTERN, text))
    split = {word: [bytes([byte]) for byte in word] for word in words}
    merges: list[bytes] = []
    while len(merges) < count:
        pairs: collections.Counter = collections.Counter()
        for word, parts in split.items():
            for pair in zip(parts, parts[1:]):
                pairs[pair] += words[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        if best[0] + best[1] not in merges:
            merges.append(best[0] + best[1])
        for word, parts in split.items():
            i = 0
            while i + 1 < len(parts):
                if (parts[i], parts[i + 1]) == best:
                    parts[i : i + 2] = [best[0] + best[1]]
                i += 1
    return merges


def write_tekken_tokenizer(path: Path) -> None:
    texts = [text for text in TEXTS + JSON_TEXTS if not text.startswith('"\\ud8')] + SCHEMAS
    tool = {"type": "function", "function": {"name": "get_weather", "description": "", "parameters": {}}}
    call = {"name": "f", "arguments": {}, "id": "call01000", "content": "", "reasoning_effort": "high"}
    texts += [json.dumps([tool]), json.dumps(call)]
    tokens = [bytes([byte]) for byte in range(256)] + trained_merges(texts, TEKKEN_MERGES)
    vocab = [
        {"rank": rank, "token_bytes": base64.b64encode(token).decode(), "token_str": None}
        for rank, token in enumerate(tokens)
    ]
    special = [
        {"rank": rank, "token_str": TEKKEN_NAMED.get(rank, f"<SPECIAL_{rank}>"), "is_control": True}
        for rank in range(max(TEKKEN_NAMED) + 1)
    ]
    config = {
        "pattern": TEKKEN_PATTERN,
        "num_vocab_tokens": len(vocab),
        "default_vocab_size": len(vocab) + TEKKEN_SPECIAL_TOKENS,
        "default_num_special_tokens": TEKKEN_SPECIAL_TOKENS,
        "version": "v15",
    }
    path.parent.mkdir(exist_ok=True)
    entries = [f'"{key}":{json.dumps(value)}' for key, value in {
        "config": config, "model_settings_builder": TEKKEN_SETTINGS, "version": 1, "type": "Tekken",
    }.items()]  # fmt: skip
    for key, rows in {"special_tokens": special, "vocab": vocab}.items():
        lines = ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows)
        entries.append(f'"{key}":[\n{lines}\n]')
    path.write_text("{" + ",\n".join(entries) + "}\n", encoding="utf-8")


def write_v7_tokenizer(path: Path) -> None:
    source = sentencepiece_model_pb2.ModelProto()
    source.ParseFromString(BREEZE.read_bytes())
    pieces = list(source.pieces)
    first_byte = next(i for i, piece in enumerate(pieces) if piece.type == piece.BYTE)
    control = sentencepiece_model_pb2.ModelProto.SentencePiece.CONTROL
    user_defined = sentencepiece_model_pb2.ModelProto.SentencePiece.USER_DEFINED
    model = sentencepiece_model_pb2.ModelProto()
    model.CopyFrom(source)
    del model.pieces[:]
    model.pieces.extend(pieces[:first_byte])
    for text in V7_CONTROLS:
        model.pieces.add(piece=text, type=control, score=0)
    model.pieces.extend(pieces[first_byte:])
    for text in V7_USER_DEFINED:
        model.pieces.add(piece=text, type=user_defined, score=0)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(model.SerializeToString(deterministic=True))


def main() -> None:
    warnings.filterwarnings("ignore")
    for version in (1, 2, 3):
        write_goldens(version, BREEZE)
    v7_tokenizer = GOLDEN / "chat_v7_tokenizer" / "tokenizer.model.v7"
    write_v7_tokenizer(v7_tokenizer)
    write_goldens(7, v7_tokenizer)
    tekken = GOLDEN / "chat_tekken_tokenizer" / "tekken.json"
    write_tekken_tokenizer(tekken)
    for version in (3, 7, 11, 13, 15):
        write_tekken_goldens(version, tekken)


if __name__ == "__main__":
    main()
