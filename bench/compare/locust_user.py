"""A user of locust that streams completions and says when content came: what bench/compare/load_tools.py runs it with.

TRAMONTANE_LOCUST holds a JSON object: "path", "body" and "requests", how many are sent in all."""

import json
import os
import time

import gevent
from locust import HttpUser, task
from locust.exception import StopUser

SETTINGS = json.loads(os.environ["TRAMONTANE_LOCUST"])
left = SETTINGS["requests"]
under_way = 0


def has_content(line: bytes) -> bool:
    if not line.startswith(b"data: {"):
        return False
    choices = json.loads(line[len(b"data: ") :])["choices"]
    return bool(choices and (choices[0].get("text") or choices[0].get("delta", {}).get("content")))


class Streamer(HttpUser):
    def on_start(self):
        """What a first request of a Python costs is not what this is about."""
        self.stream_one("warm-up ")

    @task
    def stream(self):
        global left, under_way
        if left == 0:
            raise StopUser
        left -= 1
        under_way += 1
        try:
            self.stream_one("")
        finally:
            under_way -= 1
            if left == 0 and under_way == 0:
                gevent.spawn(self.environment.runner.quit)

    def stream_one(self, kind: str):
        begin = time.perf_counter()
        content = []
        answer = self.client.post(SETTINGS["path"], json=SETTINGS["body"], stream=True, name=kind + SETTINGS["path"])
        for line in answer.iter_lines(chunk_size=None):
            if has_content(line):
                content.append(time.perf_counter())
        self.tell(kind + "ttft", content[0] - begin)
        self.tell(kind + "e2e", content[-1] - begin)
        for before, after in zip(content, content[1:]):
            self.tell(kind + "gap", after - before)

    def tell(self, name: str, seconds: float) -> None:
        self.environment.events.request.fire(
            request_type="SSE", name=name, response_time=seconds * 1e3, response_length=0, exception=None, context={}
        )
