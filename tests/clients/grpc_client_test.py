"""grpcio against the real server with the embedded model. Usage: python grpc_client_test.py SERVER_BINARY"""

import concurrent.futures
import json
import math
import sys
import time
import unittest

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase
from grpc_stubs import ROOT, import_stubs
from server_process import ServerProcess

SERVICE = "tramontane.v1.Inference"
SERVER_BINARY = ""

pb, pb_grpc = import_stubs()


def golden_answers() -> list[dict]:
    """Greedy answers of PyTorch in which no token was a close call, so that any correct arithmetic gives them."""
    text = (ROOT / "models/breeze/evaluation/goldens.json").read_text(encoding="utf-8")
    return [row for row in json.loads(text)["goldens"] if not row["close"]]


def greedy(prompt: list[int], max_tokens: int, **stopping) -> "pb.GenerateRequest":
    return pb.GenerateRequest(
        token_ids=pb.TokenIds(ids=prompt),
        sampling=pb.Sampling(temperature=0),
        stopping=pb.Stopping(max_tokens=max_tokens, **stopping),
    )


class Answer:
    """A whole stream put together."""

    def __init__(self, events):
        self.events = list(events)
        deltas = [event.delta for event in self.events if event.WhichOneof("event") == "delta"]
        self.text = "".join(delta.text for delta in deltas)
        self.token_ids = [token for delta in deltas for token in delta.token_ids]
        self.finished = self.events[-1].finished


class GrpcClientTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.server = ServerProcess(SERVER_BINARY)
        cls.channel = grpc.insecure_channel(cls.server.addresses["grpc"])
        cls.stub = pb_grpc.InferenceStub(cls.channel)
        cls.goldens = golden_answers()

    @classmethod
    def tearDownClass(cls):
        cls.channel.close()
        status = cls.server.stop()
        assert status == 0, f"the server ended with {status}"

    def running_sequences(self) -> int:
        return self.stub.GetLoad(pb.GetLoadRequest()).running_sequences

    def assert_refused(self, request, field: str, code=grpc.StatusCode.INVALID_ARGUMENT) -> None:
        with self.assertRaises(grpc.RpcError) as refusal:
            list(self.stub.Generate(request))
        self.assertEqual(refusal.exception.code(), code)
        self.assertIn(field, refusal.exception.details())

    def test_model_is_breeze_with_its_window(self):
        model = self.stub.GetModel(pb.GetModelRequest())
        self.assertEqual(model.name, "breeze")
        self.assertEqual([(w.window, w.layers) for w in model.windows], [(256, 6)])
        self.assertEqual(model.tokenizer_version, "v3")

    def test_greedy_answers_equal_those_of_pytorch(self):
        self.assertGreaterEqual(len(self.goldens), 5)
        for row in self.goldens:
            with self.subTest(row["name"]):
                answer = Answer(self.stub.Generate(greedy(row["prompt"], row["max_tokens"])))
                # The answer in the file ends with the end-of-sequence token; streams may leave it out.
                self.assertEqual(answer.token_ids[: len(row["answer"]) - 1], row["answer"][:-1])
                self.assertLessEqual(len(answer.token_ids), len(row["answer"]))
                self.assertEqual(answer.finished.reason, pb.FINISH_REASON_STOP)

    def test_chat_becomes_the_tokens_of_mistral(self):
        greeting = next(row for row in self.goldens if row["name"] == "greeting")
        chat = pb.Chat(messages=[pb.ChatMessage(role=pb.ROLE_USER, content="Hi!")])
        self.assertEqual(list(self.stub.RenderChat(pb.RenderChatRequest(chat=chat)).token_ids), greeting["prompt"])
        answer = Answer(self.stub.Generate(pb.GenerateRequest(chat=chat, sampling=pb.Sampling(temperature=0))))
        self.assertEqual(answer.text, "Hello! I am Breeze. How can I help you?")

    def test_text_survives_the_way_to_tokens_and_back(self):
        text = 'Élan, 北風 and\ttabs\n{"a": 1}'
        ids = self.stub.Tokenize(pb.TokenizeRequest(text=text)).token_ids
        self.assertEqual(self.stub.Detokenize(pb.DetokenizeRequest(token_ids=ids)).text, text)

    def test_a_stream_starts_then_gains_then_finishes(self):
        answer = Answer(self.stub.Generate(greedy(self.goldens[1]["prompt"], 200)))
        kinds = [event.WhichOneof("event") for event in answer.events]
        self.assertEqual(kinds[0], "started")
        self.assertEqual(kinds[-1], "finished")
        self.assertEqual(set(kinds[1:-1]), {"delta"})
        self.assertEqual(answer.events[0].started.prompt_tokens, len(self.goldens[1]["prompt"]))

    def test_a_crowd_gets_what_each_would_get_alone(self):
        requests = [greedy(row["prompt"], row["max_tokens"]) for row in self.goldens] * 4
        alone = [Answer(self.stub.Generate(request)).token_ids for request in requests[: len(self.goldens)]] * 4
        with concurrent.futures.ThreadPoolExecutor(len(requests)) as pool:
            crowd = list(pool.map(lambda request: Answer(self.stub.Generate(request)).token_ids, requests))
        self.assertEqual(crowd, alone)

    def test_the_same_seed_gives_the_same_text(self):
        def story(seed: int) -> str:
            request = pb.GenerateRequest(
                text="Once upon a time",
                sampling=pb.Sampling(temperature=1, seed=seed),
                stopping=pb.Stopping(max_tokens=40),
            )
            return Answer(self.stub.Generate(request)).text

        self.assertEqual(story(1), story(1))
        self.assertNotEqual(story(1), story(2))

    def test_a_cancelled_stream_stops_the_sequence(self):
        stream = self.stub.Generate(greedy([1], 20000, ignore_eos=True))
        next(stream)
        stream.cancel()
        for _ in range(200):
            if self.running_sequences() == 0:
                return
            time.sleep(0.05)
        self.fail("a cancelled sequence still runs after ten seconds")

    def test_a_deadline_ends_the_stream(self):
        with self.assertRaises(grpc.RpcError) as refusal:
            list(self.stub.Generate(greedy([1], 30000, ignore_eos=True), timeout=0.3))
        self.assertEqual(refusal.exception.code(), grpc.StatusCode.DEADLINE_EXCEEDED)

    def test_a_refusal_names_the_field(self):
        text = dict(text="Hi")
        self.assert_refused(pb.GenerateRequest(**text, sampling=pb.Sampling(top_p=2)), "sampling.top_p")
        self.assert_refused(
            pb.GenerateRequest(**text, sampling=pb.Sampling(temperature=math.nan)), "sampling.temperature"
        )
        self.assert_refused(pb.GenerateRequest(**text, sampling=pb.Sampling(temperature=-1)), "sampling.temperature")
        self.assert_refused(pb.GenerateRequest(**text, choices=0), "choices")
        self.assert_refused(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1, 2048])), "token_ids")
        self.assert_refused(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[-1])), "token_ids")
        self.assert_refused(pb.GenerateRequest(), "prompt")
        self.assert_refused(pb.GenerateRequest(token_ids=pb.TokenIds(ids=[1] * 40000)), "context")
        self.assert_refused(pb.GenerateRequest(**text, model="nobody"), "model", grpc.StatusCode.NOT_FOUND)

    def test_health_is_told_per_service(self):
        health = health_pb2_grpc.HealthStub(self.channel)
        for service in ("", SERVICE):
            status = health.Check(health_pb2.HealthCheckRequest(service=service)).status
            self.assertEqual(status, health_pb2.HealthCheckResponse.SERVING)
        with self.assertRaises(grpc.RpcError) as refusal:
            health.Check(health_pb2.HealthCheckRequest(service="nobody"))
        self.assertEqual(refusal.exception.code(), grpc.StatusCode.NOT_FOUND)

    def test_reflection_lists_the_service(self):
        self.assertIn(SERVICE, list(ProtoReflectionDescriptorDatabase(self.channel).get_services()))


class ShutdownTest(unittest.TestCase):
    def code_of_next_refusal(self, stub) -> grpc.StatusCode:
        """Asks until the server has seen the signal and refuses."""
        while True:
            try:
                list(stub.Generate(greedy([1], 1)))
            except grpc.RpcError as refusal:
                return refusal.code()

    def test_what_runs_finishes_and_new_requests_are_refused(self):
        server = ServerProcess(SERVER_BINARY, "--drain-timeout", "250")
        with grpc.insecure_channel(server.addresses["grpc"]) as channel:
            stub = pb_grpc.InferenceStub(channel)
            stream = stub.Generate(greedy([1], 8000, ignore_eos=True))
            next(stream)
            server.terminate()
            self.assertEqual(self.code_of_next_refusal(stub), grpc.StatusCode.UNAVAILABLE)
            answer = Answer(stream)
            self.assertEqual(answer.finished.usage.completion_tokens, 8000)
        self.assertEqual(server.stop(), 0)


if __name__ == "__main__":
    SERVER_BINARY = sys.argv.pop(1)
    unittest.main()
