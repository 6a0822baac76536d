"""Judges by people who never saw our grammars: Python's jsonschema with all its format checkers, pydantic's types
with email-validator, and re.

Usage: grammar_oracle.py WRITE_GRAMMAR_SAMPLES, or, for the arguments of calls, grammar_oracle.py --calls ANSWERS_TEST.
TRAMONTANE_TEST_SCALE (percent) scales the count, TRAMONTANE_TEST_SEED
chooses another run.
"""

import datetime
import ipaddress
import json
import os
import re
import subprocess
import sys
import tempfile
import uuid

import jsonschema
import pydantic

FORMATS = jsonschema.Draft202012Validator.FORMAT_CHECKER

# What pydantic writes each of these types as, it must read.
TYPES = {
    "date": [datetime.date],
    "time": [datetime.time],
    "date-time": [datetime.datetime],
    "duration": [datetime.timedelta],
    "uuid": [uuid.UUID],
    "uuid4": [pydantic.UUID4],
    "ipv4": [ipaddress.IPv4Address],
    "ipv6": [ipaddress.IPv6Address],
    "email": [pydantic.EmailStr],
    "uri": [pydantic.AnyUrl, pydantic.HttpUrl],
}
READERS = {name: [pydantic.TypeAdapter(one) for one in types] for name, types in TYPES.items()}


def format_fault_of(name, text):
    for reader in READERS.get(name, []):
        try:
            reader.validate_json(json.dumps(text))
        except pydantic.ValidationError as error:
            return str(error)
    return None


def fault_of(sample):
    if "regex" in sample:
        # What the two languages spell differently, and our generator writes, is the same in both.
        return None if re.fullmatch(sample["regex"], sample["text"]) else "is not matched"
    try:
        value = json.loads(sample["text"])
    except ValueError as error:
        return f"is not JSON: {error}"
    schema = json.loads(sample["schema"])
    validator = jsonschema.Draft202012Validator(schema, format_checker=FORMATS)
    errors = [error.message for error in validator.iter_errors(value)]
    if errors:
        return errors[0]
    # (Beside a pattern, a URI may be one that is not of the web.)
    is_format = schema.keys() == {"type", "format"}
    return format_fault_of(schema["format"], value) if is_format else None


def samples_of_grammars(program, count, seed):
    print(f"{count} samples, seed {seed}")
    samples = subprocess.run([program, str(count), str(seed)], stdout=subprocess.PIPE, check=True).stdout.decode()
    lines = samples.removesuffix("\n").split("\n")
    assert len(lines) == count, f"{len(lines)} samples came"
    return lines


def samples_of_calls(program):
    with tempfile.NamedTemporaryFile() as file:
        subprocess.run(
            [program, "--gtest_filter=*WrittenForAnOracle*"],
            env={**os.environ, "TRAMONTANE_CALL_SAMPLES": file.name},
            check=True,
        )
        lines = file.read().decode().split("\n")[:-1]
    if not lines:
        print("this build has no structured output")
        sys.exit(77)
    return lines


def main():
    percent = int(os.environ.get("TRAMONTANE_TEST_SCALE", "100"))
    count = max(100, 2000 * percent // 100)
    seed = int(os.environ.get("TRAMONTANE_TEST_SEED", 20261121))
    lacking = sorted({*TYPES, "idn-hostname", "iri", "json-pointer", "uri-template"} - {*FORMATS.checkers, "uuid4"})
    assert not lacking, f"jsonschema does not check {lacking}"
    if sys.argv[1] == "--calls":
        lines = samples_of_calls(sys.argv[2])
    else:
        lines = samples_of_grammars(sys.argv[1], count, seed)
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
