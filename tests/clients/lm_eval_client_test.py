"""lm-eval's loglikelihoods through HTTP, against sums of log probabilities that come through gRPC.

Usage: python lm_eval_client_test.py SERVER_BINARY
"""

import json
import os
import tempfile
from pathlib import Path

# No data set and no tokenizer from the network, wherever the home folder has its caches.
os.environ.update(HF_HUB_OFFLINE="1", HF_DATASETS_OFFLINE="1", HF_HOME=tempfile.mkdtemp(prefix="tramontane-hf-"))

import grpc
import http_case
import lm_eval
from grpc_stubs import import_stubs
from http_case import HttpCase

pb, pb_grpc = import_stubs()

QUESTIONS = [
    {"question": "The capital of Japan is", "choices": ["Tokyo.", "Paris.", "a cache."], "answer": 0},
    {"question": "The opposite of loud is", "choices": ["loud.", "quiet.", "Tuesday."], "answer": 1},
    {"question": "Once upon a", "choices": ["window", "time", "token"], "answer": 1},
    {"question": "7 x 8 =", "choices": ["54", "65", "56"], "answer": 2},
]


def local_task(folder: str) -> dict:
    data = Path(folder) / "questions.jsonl"
    data.write_text("".join(json.dumps(question) + "\n" for question in QUESTIONS), encoding="utf-8")
    return {
        "task": "questions",
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}",
        "doc_to_choice": "{{choices}}",
        "doc_to_target": "{{answer}}",
        "metric_list": [{"metric": "acc"}],
    }


class LmEvalTest(HttpCase):
    def direct(self, stub, context: str, continuation: str) -> float:
        """The log probability of the continuation, as lm-eval defines it: of what follows the context's tokens."""

        def ids(text: str) -> list[int]:
            return list(stub.Tokenize(pb.TokenizeRequest(text=text, add_bos=False)).token_ids)

        whole, begin = ids(context + continuation), len(ids(context))
        request = pb.GenerateRequest(
            token_ids=pb.TokenIds(ids=whole),
            stopping=pb.Stopping(max_tokens=0),
            output=pb.Output(prompt_logprobs=0),
        )
        started = next(iter(stub.Generate(request))).started
        return sum(logprob.logprob for logprob in started.prompt_logprobs[begin - 1 :])

    def test_loglikelihoods_equal_a_direct_computation(self):
        with tempfile.TemporaryDirectory() as folder:
            results = lm_eval.simple_evaluate(
                model="local-completions",
                model_args={"model": "breeze", "base_url": self.url + "/v1/completions", "batch_size": 2},
                tasks=[local_task(folder)],
                bootstrap_iters=0,
            )
        samples = results["samples"]["questions"]
        self.assertEqual(len(samples), len(QUESTIONS))
        with grpc.insecure_channel(self.server.addresses["grpc"]) as channel:
            stub = pb_grpc.InferenceStub(channel)
            for sample in samples:
                for arguments, [[loglikelihood, _]] in zip(sample["arguments"], sample["resps"]):
                    with self.subTest(arguments):
                        # Both sum the same f32 values in f64; HTTP prints each with the digits that tell
                        # it from its neighbours, up to half of an f32's last place away.
                        self.assertAlmostEqual(loglikelihood, self.direct(stub, *arguments), places=5)
        self.assertGreaterEqual(results["results"]["questions"]["acc,none"], 0.5)


if __name__ == "__main__":
    http_case.main()
