"""langchain-openai against the real server. Usage: python langchain_client_test.py SERVER_BINARY"""

import http_case
from http_case import GREETING, GREETING_ANSWER, WEATHER_QUESTION, HttpCase
from langchain_core.messages import HumanMessage, ToolMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI, OpenAI
from pydantic import BaseModel, Field

MODEL = "breeze"


@tool
def get_weather(city: str) -> str:
    """Get the current weather in a city"""
    return '{"weather": "sunny"}'


class Person(BaseModel):
    """A person"""

    name: str = Field(description="The name")
    age: int = Field(description="The age")


class LangchainTest(HttpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        common = dict(model=MODEL, base_url=cls.url + "/v1", api_key="k", temperature=0)
        cls.chat = ChatOpenAI(**common, max_tokens=200)
        cls.responses = ChatOpenAI(**common, use_responses_api=True)
        cls.completion = OpenAI(**common, max_tokens=8)

    def test_an_answer_and_its_stream_are_those_of_the_model(self):
        for model in (self.chat, self.responses):
            self.assertEqual(model.invoke(GREETING).text, GREETING_ANSWER)
            self.assertEqual("".join(chunk.text for chunk in model.stream(GREETING)), GREETING_ANSWER)

    def test_a_batch_is_answered(self):
        answers = self.chat.batch([GREETING] * 8)
        self.assertEqual({answer.text for answer in answers}, {GREETING_ANSWER})

    def test_a_completion_goes_on(self):
        self.assertEqual(self.completion.invoke("Once upon a time"), self.completion.invoke("Once upon a time"))

    def test_the_model_calls_and_answers_from_the_result(self):
        model = self.chat.bind_tools([get_weather])
        question = HumanMessage(WEATHER_QUESTION)
        answer = model.invoke([question])
        [call] = answer.tool_calls
        self.assertEqual((call["name"], call["args"]), ("get_weather", {"city": "Toulouse"}))
        result = ToolMessage(get_weather.invoke(call["args"]), tool_call_id=call["id"])
        self.assertIn("sunny", model.invoke([question, answer, result]).text)

    def test_a_call_is_streamed_in_pieces(self):
        for model in (self.chat, self.responses):
            chunks = list(model.bind_tools([get_weather]).stream(WEATHER_QUESTION))
            whole = chunks[0]
            for chunk in chunks[1:]:
                whole += chunk
            [call] = whole.tool_calls
            self.assertEqual((call["name"], call["args"]), ("get_weather", {"city": "Toulouse"}))

    def test_any_calls_whatever_was_said(self):
        answer = self.chat.bind_tools([get_weather], tool_choice="any", parallel_tool_calls=False).invoke(GREETING)
        self.assertEqual([call["name"] for call in answer.tool_calls], ["get_weather"])

    def test_answers_are_held_to_a_schema(self):
        for method in ("function_calling", "json_schema"):
            with self.subTest(method):
                model = self.chat.with_structured_output(Person, method=method)
                person = model.invoke("Answer in JSON: name and age: Ada is 36")
                self.assertIsInstance(person, Person)


if __name__ == "__main__":
    http_case.main()
