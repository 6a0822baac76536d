"""litellm against the real server. Usage: python litellm_client_test.py SERVER_BINARY"""

import json
import os

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # or it asks the network when it is imported

import http_case
import litellm
from http_case import GREETING, GREETING_ANSWER, WEATHER_QUESTION, WEATHER_TOOL, HttpCase, user


class LitellmTest(HttpCase):
    def chat(self, provider: str, question: str, **more):
        return litellm.completion(
            model=provider + "/breeze",
            api_base=self.url + "/v1",
            api_key="k",
            messages=user(question),
            temperature=0,
            **more,
        )

    def test_each_provider_gives_the_models_answer(self):
        for provider in ("openai", "hosted_vllm", "mistral"):
            with self.subTest(provider):
                self.assertEqual(self.chat(provider, GREETING).choices[0].message.content, GREETING_ANSWER)
                pieces = self.chat(provider, GREETING, stream=True)
                self.assertEqual("".join(p.choices[0].delta.content or "" for p in pieces), GREETING_ANSWER)

    def test_a_seed_is_understood_in_each_dialect(self):
        for provider in ("openai", "mistral"):
            self.assertEqual(self.chat(provider, GREETING, seed=7).choices[0].message.content, GREETING_ANSWER)

    def test_a_completion_goes_on(self):
        answer = litellm.text_completion(
            model="text-completion-openai/breeze",
            api_base=self.url + "/v1",
            api_key="k",
            prompt="Once upon a time",
            max_tokens=8,
            temperature=0,
        )
        self.assertTrue(answer.choices[0].text)

    def test_the_model_calls(self):
        message = self.chat("openai", WEATHER_QUESTION, tools=[WEATHER_TOOL]).choices[0].message
        [call] = message.tool_calls
        self.assertEqual(json.loads(call.function.arguments), {"city": "Toulouse"})

    def test_a_call_is_streamed_in_pieces(self):
        for provider in ("openai", "hosted_vllm", "mistral"):
            with self.subTest(provider):
                chunks = list(self.chat(provider, WEATHER_QUESTION, tools=[WEATHER_TOOL], stream=True))
                [call] = litellm.stream_chunk_builder(chunks).choices[0].message.tool_calls
                self.assertEqual(call.function.name, "get_weather")
                self.assertEqual(json.loads(call.function.arguments), {"city": "Toulouse"})


if __name__ == "__main__":
    http_case.main()
