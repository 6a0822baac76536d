"""Holds our chat templates to Python's jinja2, set as transformers sets it, on the templates of real models.

Usage: jinja_oracle.py RENDERER TEMPLATES_FOLDER

RENDERER reads a line of JSON, {"template", "values"}, and answers {"output"} or {"error"}. Each template is rendered for
each chat below; where Python gives a text, ours is that text, but for the templates of KNOWN. Where Python raises, ours
may not hang or crash; it may render, since ours takes an undefined value in a few places where jinja2 does not.
"""

import datetime
import itertools
import json
import pathlib
import subprocess
import sys

import jinja2
import jinja2.ext
import jinja2.sandbox

NOW = datetime.datetime(2025, 7, 14, 12, 0, 0)

# Templates whose text may differ, and why.
KNOWN = {
    # "..."|safe + text escapes the text as HTML in jinja2, which nobody wanted; here it is joined as it is.
    "meetkai-functionary-medium-v3.1.jinja",
}


def environment():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols, Generation])

    def tojson(x, ensure_ascii=False, indent=None, separators=None, sort_keys=False):
        return json.dumps(x, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    def raise_exception(message):
        raise jinja2.exceptions.TemplateError(message)

    env.filters["tojson"] = tojson
    env.globals["raise_exception"] = raise_exception
    env.globals["strftime_now"] = NOW.strftime
    return env


class Generation(jinja2.ext.Extension):
    """{% generation %} marks what the assistant says, for training; it renders as its body."""

    tags = {"generation"}

    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller):
        return caller()


TOOLS = [{
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather at a place, é \"now\" <b> & 'then'",
        "parameters": {
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Where"},
                "days": {"type": "integer", "minimum": 1, "maximum": 14, "default": 1},
                "unit": {"type": "string", "enum": ["celsius", "fahrenheit"]},
                "threshold": {"type": "number", "maximum": 0.1234567},
            },
            "required": ["city"],
        },
    },
}, {
    "type": "function",
    "function": {"name": "now", "description": "What time it is", "parameters": {"type": "object", "properties": {}}},
}]


def call(name, arguments, id="abcdefghi"):
    return {"id": id, "type": "function", "function": {"name": name, "arguments": arguments}}


USER = {"role": "user", "content": "Hello, wörld! 你好"}
SYSTEM = {"role": "system", "content": "You are terse.\nVery."}
ANSWER = {"role": "assistant", "content": "Hi \"there\""}
THOUGHT = {"role": "assistant", "content": "<think>\nWell, well.\n</think>\n\nHi there"}
REASONED = {"role": "assistant", "content": "Hi there", "reasoning_content": "Well, well."}
CALLS = {"role": "assistant", "content": None, "tool_calls": [call("get_weather", {"city": "Paris", "days": 2, "x": None, "deep": {"a": [1, 2.5, True]}})]}
CALLS_WITHOUT = {k: v for k, v in CALLS.items() if k != "content"}
CALLS_EMPTY = {**CALLS, "content": ""}
CALLS_WITH_TEXT = {**CALLS, "content": "Let me see."}
TWO_CALLS = {"role": "assistant", "content": "", "tool_calls": [
    call("get_weather", {"city": "Paris"}, "aaaaaaaaa"), call("now", {}, "bbbbbbbbb")]}
RESULT = {"role": "tool", "content": "{\"temperature\": 21.5}", "tool_call_id": "abcdefghi", "name": "get_weather"}
TWO_RESULTS = [{**RESULT, "tool_call_id": "aaaaaaaaa"}, {"role": "tool", "content": "12:00", "tool_call_id": "bbbbbbbbb", "name": "now"}]

CHATS = {
    "one turn": [USER],
    "system": [SYSTEM, USER],
    "two turns": [USER, ANSWER, USER],
    "thought": [SYSTEM, USER, THOUGHT, USER],
    "reasoned": [SYSTEM, USER, REASONED, USER],
    "calls": [SYSTEM, USER, CALLS, RESULT],
    "calls, no content": [USER, CALLS_WITHOUT, RESULT],
    "calls, empty content": [SYSTEM, USER, CALLS_EMPTY, RESULT, ANSWER, USER],
    "calls and text": [USER, CALLS_WITH_TEXT, RESULT, ANSWER, USER],
    "two calls": [SYSTEM, USER, TWO_CALLS, *TWO_RESULTS],
    "ends with an answer": [USER, ANSWER],
    "odd characters": [{"role": "user", "content": "  <|im_start|> \t{{ x }} \\n \u2028 😀  \n"}],
    "empty": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, USER],
    "wrong order": [USER, USER, ANSWER, ANSWER],
    "parts": [{"role": "user", "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "you"}]}],
}
KWARGS = [{}, {"enable_thinking": True}, {"enable_thinking": False, "reasoning_effort": "low"}]


def requests():
    for (chat, messages), tools, kwargs, generate in itertools.product(CHATS.items(), [None, TOOLS], KWARGS, [True, False]):
        values = {"messages": messages, "add_generation_prompt": generate, "bos_token": "<s>", "eos_token": "</s>", **kwargs}
        values["tools"] = tools
        yield f"{chat}, tools {bool(tools)}, {kwargs}, generate {generate}", values


# What one template is good for, in jinja2's language: a line each, name and text.
SNIPPETS = json.loads(pathlib.Path(__file__).with_name("jinja_snippets.json").read_text())


def expected(template, values):
    try:
        return template.render(**json.loads(json.dumps(values)))
    except Exception as error:  # whatever Python raises inside of a template
        return error


def main(renderer, folder):
    env = environment()
    cases = []
    texts = {path.name: path.read_bytes().decode() for path in sorted(pathlib.Path(folder).glob("*.jinja"))}
    assert len(texts) > 40, f"only {len(texts)} templates in {folder}"
    for name, text in texts.items():
        try:
            template = env.from_string(text)
        except jinja2.TemplateError as error:
            print(f"{name}: jinja2 itself refuses it: {error}")
            continue
        cases += [(name, text, what, values, expected(template, values)) for what, values in requests()]
    for text in SNIPPETS:
        values = {"messages": CHATS["two calls"], "tools": TOOLS}
        cases.append((text, text, "snippet", values, expected(env.from_string(text), values)))

    lines = "".join(json.dumps({"template": text, "values": values}) + "\n" for _, text, _, values, _ in cases)
    answers = subprocess.run([renderer], input=lines, capture_output=True, text=True, check=True).stdout.removesuffix("\n").split("\n")
    assert len(answers) == len(cases), f"{len(answers)} answers to {len(cases)} cases"

    equal = known = lenient = both = 0
    wrong = []
    for (name, _, what, _, text), answer in zip(cases, map(json.loads, answers)):
        if isinstance(text, Exception):
            both += "error" in answer
            lenient += "output" in answer
        elif answer.get("output") == text:
            equal += 1
        elif name in KNOWN and "output" in answer:
            known += 1
        else:
            wrong.append((name, what, text, answer))
    print(f"{equal} texts are equal, {known} differ as known, both refuse {both}, ours alone renders {lenient}")
    for name, what, text, answer in wrong[:20]:
        ours = answer.get("output", "")
        at = next((i for i, pair in enumerate(zip(text, ours)) if pair[0] != pair[1]), min(len(text), len(ours)))
        print(f"--- {name}: {what}, from character {at}\njinja2: {text[max(0, at - 40):at + 80]!r}\n"
              f"ours:   {answer.get('error') or ours[max(0, at - 40):at + 80]!r}")
    print(f"{len(wrong)} differ")
    return len(wrong) > 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
