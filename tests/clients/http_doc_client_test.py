"""Runs the examples of docs/http.md. Usage: python http_doc_client_test.py SERVER_BINARY"""

import contextlib
import io
import re
from pathlib import Path

import http_case
from http_case import GREETING_ANSWER, HttpCase

PAGE = Path(__file__).resolve().parents[2] / "docs/http.md"


class HttpDocTest(HttpCase):
    def test_the_examples_run_and_say_what_they_promise(self):
        examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
        self.assertGreaterEqual(len(examples), 6)
        said = io.StringIO()
        names: dict = {}
        for example in examples:
            with self.subTest(example), contextlib.redirect_stdout(said):
                exec(example.replace("http://127.0.0.1:8000", self.url), names)
        self.assertIn(GREETING_ANSWER, said.getvalue())
        self.assertIn('get_weather {"city": "Toulouse"}', said.getvalue())


if __name__ == "__main__":
    http_case.main()
