"""The tables of bench/compare/llama.py over servers that only count: who is started, with which flags, in which columns."""

import json
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

LLAMA = Path(__file__).parents[2] / "bench/compare/llama.py"

# What stands for both servers: notes its arguments, and answers any completion with its tokens at once. Ours says where it
# listens; the other is told.
SERVER = '''#!{python}
import http.server, json, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        for _ in range(body["max_tokens"]):
            self.wfile.write(b'data: {{"choices": []}}\\n\\n')
            self.wfile.flush()
    def log_message(self, *words):
        pass
class Server(http.server.ThreadingHTTPServer):
    request_queue_size = 64
words = sys.argv[1:]
if "-lv" in words:
    sys.exit("system_info: a machine |")
with open("{log}", "a") as log:
    log.write(json.dumps(words) + "\\n")
server = Server(("127.0.0.1", int(words[words.index("--port") + 1]) if "--port" in words else 0), Handler)
if words[0] == "serve":
    print("ready " + json.dumps({{"http": "127.0.0.1:%d" % server.server_port}}), flush=True)
server.serve_forever()
'''

NUMPY = """
class Array:
    nbytes = 1 << 30
uint64 = None
ones = lambda *_: Array()
array_split = lambda data, parts: [data] * parts
class bitwise_or:
    reduce = staticmethod(lambda part: part)
"""

GGUF = """
import types
GGUFWriter = None
tensor = types.SimpleNamespace(name="output.weight", n_bytes=1000)
GGUFReader = lambda path: types.SimpleNamespace(tensors=[tensor])
"""


class CompareLlamaTest(unittest.TestCase):
    def setUp(self):
        holder = tempfile.TemporaryDirectory()
        self.addCleanup(holder.cleanup)
        self.folder = Path(holder.name)
        (self.folder / "modules").mkdir()
        (self.folder / "modules/numpy.py").write_text(NUMPY)
        (self.folder / "modules/gguf.py").write_text(GGUF)
        (self.folder / "kept/models").mkdir(parents=True)
        for format in ("bf16", "Q4_0"):
            (self.folder / f"kept/models/1.1b-{format}.gguf").touch()
        (self.folder / "kept/build/bin").mkdir(parents=True)
        for name in ("tramontane", "kept/build/bin/llama-server"):
            (self.folder / name).write_text(SERVER.format(python=sys.executable, log=self.folder / "log"))
            (self.folder / name).chmod(0o755)

    def run_llama(self, *words):
        command = [sys.executable, LLAMA, self.folder / "tramontane", self.folder / "kept", *words]
        command += ["--formats", "Q4_0", "--threads", "1", "--rounds", "1"]
        environment = os.environ | {"PYTHONPATH": str(self.folder / "modules")}
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=200)

    def started(self):
        """The arguments of every server, ours and theirs apart."""
        lines = [json.loads(line) for line in (self.folder / "log").read_text().splitlines()]
        return [words for words in lines if words[0] == "serve"], [words for words in lines if words[0] != "serve"]

    def header_and_rows(self, run):
        self.assertEqual(run.returncode, 0, run.stderr)
        lines = [line for line in run.stdout.splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return cells[0], cells[2:]

    def test_exact_products_stand_in_columns_of_their_own_beside_the_same_build(self):
        run = self.run_llama("--peers", "native,exact")
        header, rows = self.header_and_rows(run)
        pairs = ["Tramontane", "llama.cpp, native", "ratio", "Tramontane, exact", "llama.cpp, native", "ratio"]
        self.assertEqual(header[3:], pairs)
        self.assertEqual(len(rows), 5)
        for row in rows:
            self.assertEqual(len(row), len(header))
            self.assertEqual(row[4], row[7])  # one program, measured once
        ours, theirs = self.started()
        self.assertEqual([words[words.index("--linear") + 1] for words in ours], ["int8", "exact"])
        self.assertEqual(len(theirs), 1)
        self.assertEqual([line.partition(":")[0] for line in run.stdout.splitlines()[-3:]], ["Tramontane", "llama.cpp, native", "Tramontane, exact"])

    def test_exact_alone_brings_the_build_that_it_stands_beside(self):
        header, rows = self.header_and_rows(self.run_llama("--peers", "exact"))
        self.assertEqual(header[3:], ["Tramontane, exact", "llama.cpp, native", "ratio"])
        self.assertEqual(len(rows), 5)
        ours, theirs = self.started()
        self.assertEqual((len(ours), len(theirs)), (1, 1))

    def test_of_every_other_peer_ours_multiplies_in_8_bits(self):
        self.header_and_rows(self.run_llama("--peers", "native,vnni"))
        ours, theirs = self.started()
        self.assertEqual([words[words.index("--linear") + 1] for words in ours], ["int8", "int8"])
        self.assertEqual([("--cpu-variant" in words) for words in ours], [False, True])
        self.assertEqual(len(theirs), 1)

    def test_a_peer_that_nobody_knows_is_refused_before_anything_is_started(self):
        run = self.run_llama("--peers", "native,exakt")
        self.assertEqual(run.returncode, 2)
        self.assertIn("'exakt' is none of native, vnni, wheel, exact", run.stderr)
        self.assertFalse((self.folder / "log").exists())


if __name__ == "__main__":
    unittest.main()
