"""The runs and the table of bench/compare/kv_dtypes, which see for how to start it."""

import argparse
import json
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DTYPES = ("f32", "bf16", "fp8", "int8/8", "int8/16", "int8/32", "int4/8", "int4/16", "int4/32")
GIB = 1 << 30


def flags_of(dtype: str) -> list[str]:
    name, _, group = dtype.partition("/")
    return ["--kv-dtype", name] + (["--kv-group", group] if group else [])


def run(binary: Path, *arguments: str) -> str:
    command = [str(binary), *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True).stdout


def inspect(binary: Path, model: str, *flags: str) -> str:
    return run(binary, "inspect", *([model] if model else []), "--device", "cpu", "--page-size", "16", *flags)


def number(pattern: str, text: str) -> int:
    (found,) = re.findall(pattern, text)
    return int(found.replace(",", ""))


def token_bytes(plan: str) -> int:
    """Over all layers, as the memory plan has it."""
    groups = len(re.findall(r"^ *group \d+", plan, re.MULTILINE))
    return number(r" of ([\d,]+) bytes: 16 tokens", plan) // 16 * groups


def sequences_of_pages(binary: Path, model: str, flags: list[str], plan: str, size: int) -> int:
    """Of the model's whole context, with what its windows let go, as the memory plan has it."""
    beside = number(r"(?m)^ *weights +([\d,]+) bytes$", plan) + number(r"(?m)^ *workspace +([\d,]+) bytes$", plan)
    return number(r"or ([\d,]+) of the whole context", inspect(binary, model, *flags, "--memory", str(beside + size)))


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench/compare/kv_dtypes")
    parser.add_argument("binary", type=Path)
    parser.add_argument("--model", default="")  # "": the embedded one
    parser.add_argument("--text", default=str(ROOT / "bench/texts/stories.txt"))
    parser.add_argument("--cpu-variant", default="")
    parser.add_argument("--only", default=",".join(DTYPES))
    arguments = parser.parse_args()
    variant = ["--cpu-variant", arguments.cpu_variant] if arguments.cpu_variant else []
    header = ["`kv_dtype` / `kv_group`", "Bytes of a token", "Tokens in a GiB", "Sequences in a GiB"]
    header += ["Perplexity", "KL", "Same likeliest"]
    print("| " + " | ".join(header) + " |\n" + "|---" * len(header) + "|", flush=True)
    exact = None
    for dtype in arguments.only.split(","):
        flags = flags_of(dtype)
        said = json.loads(
            run(arguments.binary, "perplexity", arguments.model, arguments.text, "--against", arguments.model, "--against-kv-dtype", "f32",
                "--device", "cpu", *variant, *flags)
        )  # fmt: skip
        exact = exact or said["perplexity"]
        plan = inspect(arguments.binary, arguments.model, *flags)
        of_token = token_bytes(plan)
        sequences = sequences_of_pages(arguments.binary, arguments.model, flags, plan, GIB)
        change = f" ({100 * (said['perplexity'] / exact - 1):+.2f} %)" if said["perplexity"] != exact else ""
        cells = [dtype, f"{of_token:,}", f"{GIB // of_token:,}", f"{sequences:,}", f"{said['perplexity']:.4f}{change}"]
        cells += [f"{said['kl']:.6f}", f"{100 * said['same_likeliest']:.2f} %"]
        print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
