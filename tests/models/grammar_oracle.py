"""Judges by people who never saw our grammars: Python's jsonschema (with its format checkers) and re.

Usage: grammar_oracle.py WRITE_GRAMMAR_SAMPLES. TRAMONTANE_TEST_SCALE (percent) scales the count, TRAMONTANE_TEST_SEED
chooses another run.
"""

import json
import os
import re
import subprocess
import sys

import jsonschema


def fault_of(sample):
    if "regex" in sample:
        # What the two languages spell differently, and our generator writes, is the same in both.
        return None if re.fullmatch(sample["regex"], sample["text"]) else "is not matched"
    try:
        value = json.loads(sample["text"])
    except ValueError as error:
        return f"is not JSON: {error}"
    schema = json.loads(sample["schema"])
    validator = jsonschema.Draft202012Validator(
        schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    )
    errors = [error.message for error in validator.iter_errors(value)]
    return errors[0] if errors else None


def main():
    percent = int(os.environ.get("TRAMONTANE_TEST_SCALE", "100"))
    count = max(100, 2000 * percent // 100)
    seed = int(os.environ.get("TRAMONTANE_TEST_SEED", 20261121))
    print(f"{count} samples, seed {seed}")
    samples = subprocess.run(
        [sys.argv[1], str(count), str(seed)], stdout=subprocess.PIPE, check=True
    ).stdout.decode()
    lines = samples.removesuffix("\n").split("\n")
    assert len(lines) == count, f"{len(lines)} samples came"
    faults = 0
    for line in lines:
        sample = json.loads(line)
        fault = fault_of(sample)
        if fault is not None:
            faults += 1
            print(f"{line}\n  {fault}")
    print(f"{faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
