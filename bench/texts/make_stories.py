#!/usr/bin/env python3
"""Writes stories.txt: about 70 KB by the generator of Breeze's training text, from a seed that training never used."""

import random
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent.parent / "models/breeze"))

from corpus import stories  # noqa: E402

SEED = 20_261_122
BYTES = 70_000


def main() -> None:
    rng = random.Random(SEED)
    text = ""
    while len(text) < BYTES:
        text += rng.choice([stories.short_raw, stories.long_raw])(rng).strip() + "\n\n"
    (HERE / "stories.txt").write_text(text)


if __name__ == "__main__":
    main()
