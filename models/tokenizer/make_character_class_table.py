#!/usr/bin/env python3
"""Writes character_class_table.cc: the class of every code point by its Unicode general category.

Usage: python models/tokenizer/make_character_class_table.py

Needs a `unicodedata` of Unicode 16.0, which is what the regular expressions behind mistral-common use: that of
Python 3.14, or `pip install unicodedata2==16.0.0`. Another version is refused, since ids would differ.
"""

from pathlib import Path

try:
    import unicodedata2 as unicodedata
except ImportError:
    import unicodedata

UNICODE_VERSION = "16.0.0"
BLOCK = 256  # code points
# The property White_Space, without the line ends, which are a class of their own.
SPACES = {
    0x09, 0x0B, 0x0C, 0x20, 0x85, 0xA0, 0x1680, *range(0x2000, 0x200B), 0x2028, 0x2029, 0x202F, 0x205F, 0x3000,
}  # fmt: skip
NEWLINES = {0x0A, 0x0D}
OTHER, UPPER, LOWER, CASELESS, MARK, NUMBER, SPACE, NEWLINE = "01234567"
LETTERS = {"Lu": UPPER, "Lt": UPPER, "Ll": LOWER, "Lm": CASELESS, "Lo": CASELESS}


def class_of(code_point: int) -> str:
    if code_point in NEWLINES:
        return NEWLINE
    if code_point in SPACES:
        return SPACE
    category = unicodedata.category(chr(code_point))
    if category in LETTERS:
        return LETTERS[category]
    return {"M": MARK, "N": NUMBER}.get(category[0], OTHER)


def main() -> None:
    if unicodedata.unidata_version != UNICODE_VERSION:
        raise SystemExit(f"needs Unicode {UNICODE_VERSION}, this is {unicodedata.unidata_version}")
    blocks: list[str] = []
    numbers: list[int] = []
    for begin in range(0, 0x110000, BLOCK):
        block = "".join(class_of(code_point) for code_point in range(begin, begin + BLOCK))
        if block not in blocks:
            blocks.append(block)
        numbers.append(blocks.index(block))
    lines = [
        f"// Written by make_character_class_table.py from the general categories of Unicode {UNICODE_VERSION}.",
        "// clang-format off",
        '#include "models/tokenizer/character_class.h"',
        "",
        "namespace tramontane {",
        "",
        "const uint8_t kCharacterBlocks[0x110000 / kCharacterBlock] = {",
    ]
    for at in range(0, len(numbers), 20):
        lines.append("    " + " ".join(f"{number}," for number in numbers[at : at + 20]))
    lines += ["};", "", "const char kCharacterClasses[] ="]
    for number, block in enumerate(blocks):
        lines.append(f"    // {number}")
        lines += [f'    "{block[at : at + 64]}"' for at in range(0, BLOCK, 64)]
    lines[-1] += ";"
    lines += ["", "}  // namespace tramontane", ""]
    (Path(__file__).resolve().parent / "character_class_table.cc").write_text("\n".join(lines), encoding="ascii")


if __name__ == "__main__":
    main()
