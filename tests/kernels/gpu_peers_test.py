"""What bench/gpu/peers.py writes of rows that it left out, where modules that only have PyTorch's names stand for it."""

import json
import sys
import tempfile
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "bench/gpu"))
for name in ["torch", "torch.nn", "torch.nn.functional", "torch.nn.attention"]:
    sys.modules[name] = types.ModuleType(name)
sys.modules["torch"].device = lambda name: name
sys.modules["torch"].cuda = types.SimpleNamespace(empty_cache=lambda: None)
sys.modules["torch"].nn = sys.modules["torch.nn"]
sys.modules["torch.nn"].functional = sys.modules["torch.nn.functional"]
sys.modules["torch.nn.attention"].SDPBackend = sys.modules["torch.nn.attention"].sdpa_kernel = None
import peers  # noqa: E402

ROWS_OF_TABLES = peers.rows_of_tables


class PeersTest(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = Path(folder.name) / "peers.json"
        peers.Ours = lambda path: None

    def written(self):
        return json.loads(self.path.read_text())

    def run_rows(self, rows, seconds="1000"):
        peers.rows_of_tables = lambda ours: iter(rows)
        sys.argv = ["peers.py", str(self.path), "libgpu_calls.so", seconds]
        peers.main()

    def test_rows_for_which_there_is_no_time_are_named(self):
        rows = list(ROWS_OF_TABLES(None))
        self.run_rows(rows, seconds="-1")
        left_out = {}
        for table, row, _ in rows:
            left_out.setdefault(table, {}).setdefault("for want of time", []).append(row)
        self.assertEqual(self.written(), {"seconds": {}, "left_out": left_out})
        self.assertIn("16 x 4k", left_out["Decode attention"]["for want of time"])

    def test_a_row_that_ends_the_program_is_not_done_and_neither_are_those_behind_it(self):
        def lost():
            raise KeyboardInterrupt

        with self.assertRaises(KeyboardInterrupt):
            self.run_rows([("A", "1", lambda: ({"PyTorch flash": 0.5}, {})), ("A", "2", lost), ("B", "3", lost)])
        self.assertEqual(
            self.written(),
            {"seconds": {"A": {"1": {"PyTorch flash": 0.5}}}, "left_out": {"A": {"not done": ["2"]}, "B": {"not done": ["3"]}}},
        )

    def test_who_cannot_run_a_shape_is_named_with_what_it_says(self):
        def measured():
            contenders, cannot = {}, {}

            def fails():
                raise RuntimeError("No available kernel. Aborting execution.\nMore of it")

            peers.add(contenders, cannot, "PyTorch cuDNN", fails)
            peers.add(contenders, cannot, "PyTorch flash", lambda: 0.5)
            return contenders, cannot

        self.run_rows([("A", "1", measured), ("A", "2", lambda: ({}, {}))])
        self.assertEqual(
            self.written(),
            {
                "seconds": {"A": {"1": {"PyTorch flash": 0.5}, "2": {}}},
                "left_out": {"A": {"PyTorch cuDNN cannot: No available kernel. Aborting execution.": ["1"]}},
            },
        )

    def test_nothing_else_is_left_in_the_folder(self):
        self.run_rows([("A", "1", lambda: ({"PyTorch flash": 0.5}, {}))])
        self.assertEqual(self.written(), {"seconds": {"A": {"1": {"PyTorch flash": 0.5}}}, "left_out": {}})
        self.assertEqual([path.name for path in self.path.parent.iterdir()], ["peers.json"])


if __name__ == "__main__":
    unittest.main()
