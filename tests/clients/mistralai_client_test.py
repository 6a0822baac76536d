"""mistralai against the real server with the embedded model. Usage: python mistralai_client_test.py SERVER_BINARY"""

import json

import http_case
from http_case import GREETING, GREETING_ANSWER, WEATHER_QUESTION, WEATHER_TOOL, HttpCase, user
from mistralai.client import Mistral
from pydantic import BaseModel

MODEL = "breeze"


class Person(BaseModel):
    name: str
    age: int


class MistralClientTest(HttpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = Mistral(api_key="k", server_url=cls.url)

    def test_models_are_listed(self):
        [model] = self.client.models.list().data
        self.assertEqual((model.id, model.type), (MODEL, "base"))

    def test_an_answer_and_its_stream_are_those_of_the_model(self):
        answer = self.client.chat.complete(model=MODEL, messages=user(GREETING), temperature=0)
        self.assertEqual(answer.choices[0].message.content, GREETING_ANSWER)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        pieces = self.client.chat.stream(model=MODEL, messages=user(GREETING), temperature=0)
        self.assertEqual("".join(p.data.choices[0].delta.content or "" for p in pieces), GREETING_ANSWER)

    def test_its_own_fields_are_taken(self):
        def story() -> str:
            answer = self.client.chat.complete(
                model=MODEL,
                messages=[
                    {"role": "user", "content": [{"type": "text", "text": "Tell me a story"}]},
                    {"role": "assistant", "content": "Once", "prefix": True},
                ],
                temperature=0.7,
                top_p=0.9,
                max_tokens=12,
                stop=["\n"],
                random_seed=7,
                presence_penalty=0,
                frequency_penalty=0,
                n=1,
                parallel_tool_calls=False,
                safe_prompt=True,
            )
            return answer.choices[0].message.content

        self.assertEqual(story(), story())

    def test_the_model_calls_and_answers_from_the_result(self):
        ask = dict(model=MODEL, tools=[WEATHER_TOOL], temperature=0)
        message = self.client.chat.complete(messages=user(WEATHER_QUESTION), **ask).choices[0].message
        [call] = message.tool_calls
        self.assertEqual(json.loads(call.function.arguments), {"city": "Toulouse"})
        result = {
            "role": "tool",
            "name": call.function.name,
            "tool_call_id": call.id,
            "content": '{"weather": "sunny"}',
        }
        answer = self.client.chat.complete(messages=[*user(WEATHER_QUESTION), message, result], **ask)
        self.assertIn("sunny", answer.choices[0].message.content)

    def test_a_call_is_streamed_in_pieces(self):
        pieces = self.client.chat.stream(
            model=MODEL, messages=user(WEATHER_QUESTION), tools=[WEATHER_TOOL], temperature=0
        )
        calls = [call for piece in pieces for call in piece.data.choices[0].delta.tool_calls or []]
        self.assertEqual({call.index for call in calls}, {0})
        self.assertEqual([call.function.name for call in calls], ["get_weather"] + [""] * (len(calls) - 1))
        self.assertEqual(json.loads("".join(call.function.arguments for call in calls)), {"city": "Toulouse"})

    def test_any_calls_whatever_was_said(self):
        answer = self.client.chat.complete(
            model=MODEL, messages=user(GREETING), tools=[WEATHER_TOOL], tool_choice="any", parallel_tool_calls=False
        )
        self.assertEqual(answer.choices[0].message.tool_calls[0].function.name, "get_weather")

    def test_answers_are_held_to_a_schema(self):
        answer = self.client.chat.parse(
            Person, model=MODEL, messages=user("Answer in JSON: name and age: Ada is 36"), temperature=0
        )
        self.assertEqual(answer.choices[0].message.parsed.age, 36)


if __name__ == "__main__":
    http_case.main()
