"""bench/gpu/serve.py with a tiny shape on the CPU: the model that it writes is one, and each load's row is whole.

Usage: gpu_serve_test.py TRAMONTANE
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "bench/gpu/serve.py"
BINARY = sys.argv.pop(1)


class ServeTest(unittest.TestCase):
    def test_each_load_of_a_tiny_model_has_its_row(self):
        with tempfile.TemporaryDirectory() as out:
            command = [sys.executable, str(SCRIPT), BINARY, out, "--shape", "tiny", "--device", "cpu", "--rates", "4,8",
                       "--seconds", "4"]  # fmt: skip
            run = subprocess.run(command, capture_output=True, text=True, timeout=120)
            self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
            found = json.loads((Path(out) / "serve.json").read_text())
        self.assertEqual([row["run"] for row in found["rows"]], ["1 stream", "4 req/s", "8 req/s"])
        for row in found["rows"]:
            self.assertGreater(row["completed"], 0, row)
            self.assertEqual(row["failed"], 0, row)
            self.assertGreater(row["p50_ttft_ms"], 0, row)
        # Whether the numbers are right is asked where transformers is; that nobody asked is said.
        self.assertTrue("logprobs" in found or "transformers beside it: skipped" in run.stdout, run.stdout)


if __name__ == "__main__":
    unittest.main()
