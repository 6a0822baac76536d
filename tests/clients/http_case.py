"""What the tests of HTTP clients share: a server for the class, and questions whose answers by Breeze are known.

The answers are greedy and no token of them is a close call, so any correct arithmetic gives them."""

import os
import sys
import unittest

from server_process import ServerProcess

os.environ["NO_PROXY"] = "127.0.0.1"  # some clients would ask a proxy for this address too

GREETING = "Hi!"
GREETING_ANSWER = "Hello! I am Breeze. How can I help you?"

WEATHER_QUESTION = "What's the weather in Toulouse?"
TWO_CITIES_QUESTION = "What is the weather in Turin and Riga?"
WEATHER_TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Get the current weather in a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "description": "The city"}},
            "required": ["city"],
        },
    },
}


def user(text: str) -> list[dict]:
    return [{"role": "user", "content": text}]


class HttpCase(unittest.TestCase):
    """A test with a server of its class's own."""

    binary = ""

    @classmethod
    def setUpClass(cls):
        cls.server = ServerProcess(cls.binary)
        cls.url = cls.server.url

    @classmethod
    def tearDownClass(cls):
        status = cls.server.stop()
        assert status == 0, f"the server ended with {status}"


def main() -> None:
    """Runs the tests of the script: python SCRIPT SERVER_BINARY"""
    HttpCase.binary = sys.argv.pop(1)
    unittest.main()
