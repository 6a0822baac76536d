"""schemathesis: requests made from /openapi.json, valid and not, against the real server.

No answer may be a 5xx, and every answer must be one that the document describes.
Usage: python schemathesis_client_test.py SERVER_BINARY
"""

import subprocess
import sys
import tempfile
from pathlib import Path

import http_case
from http_case import HttpCase
from server_process import ServerProcess

CHECKS = [
    "not_a_server_error",
    "status_code_conformance",
    "content_type_conformance",
    "response_headers_conformance",
    "response_schema_conformance",
]


class SchemathesisTest(HttpCase):
    @classmethod
    def setUpClass(cls):
        # A small context, so that answers without a limit of their own end soon.
        cls.server = ServerProcess(cls.binary, "--context", "128", "--max-choices", "4")
        cls.url = cls.server.url

    def test_every_answer_is_one_that_the_document_describes(self):
        command = [
            str(Path(sys.executable).with_name("schemathesis")),
            "run",
            self.url + "/openapi.json",
            "--checks=" + ",".join(CHECKS),
            "--phases=examples,coverage,fuzzing",
            "--max-examples=30",
            "--generation-deterministic",
            "--request-timeout=60",
            "--no-color",
        ]
        with tempfile.TemporaryDirectory() as folder:  # where it keeps what it found
            run = subprocess.run(command, check=False, capture_output=True, cwd=folder, text=True)
        self.assertEqual(run.returncode, 0, run.stdout[-8000:] + run.stderr[-2000:])


if __name__ == "__main__":
    http_case.main()
