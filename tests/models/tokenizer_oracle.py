"""Thousands of new texts in each shape of tokenizer.json, encoded by Hugging Face's `tokenizers` and by ours.

Usage: tokenizer_oracle.py TOKENIZER_TEST. TRAMONTANE_TEST_SCALE (percent) scales the count, TRAMONTANE_TEST_SEED
chooses another run.
"""

import os
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "golden"))
import make_tokenizer_json_goldens

TEXTS = 1500  # of each shape


def main():
    count = max(150, TEXTS * int(os.environ.get("TRAMONTANE_TEST_SCALE", "100")) // 100)
    seed = os.environ.get("TRAMONTANE_TEST_SEED", "7")
    with tempfile.TemporaryDirectory() as folder:
        texts = make_tokenizer_json_goldens.write(Path(folder), count, seed)
        print(f"{texts} texts, seed {seed}", flush=True)
        environment = os.environ | {"TRAMONTANE_TOKENIZER_JSON_CASES": folder}
        command = [sys.argv[1], "--gtest_filter=*TokenizerJsonGoldenTest*", "--gtest_brief=1"]
        sys.exit(subprocess.run(command, env=environment, check=False).returncode)


if __name__ == "__main__":
    main()
