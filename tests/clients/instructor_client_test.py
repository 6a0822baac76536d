"""instructor against the real server. Usage: python instructor_client_test.py SERVER_BINARY"""

import http_case
import instructor
import openai
from http_case import WEATHER_QUESTION, HttpCase, user
from pydantic import BaseModel

JSON_QUESTION = "Answer in JSON: name and age: Ada is 36"


class Person(BaseModel):
    name: str
    age: int


class Weather(BaseModel):
    """Get the current weather in a city"""

    city: str


class InstructorTest(HttpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.openai = openai.OpenAI(base_url=cls.url + "/v1", api_key="k")

    def ask(self, mode: instructor.Mode, question: str, response_model: type[BaseModel]) -> BaseModel:
        client = instructor.from_openai(self.openai, mode=mode)
        return client.create(
            model="breeze", messages=user(question), response_model=response_model, temperature=0, max_retries=0
        )

    def test_an_object_comes_as_a_call(self):
        for mode in (instructor.Mode.TOOLS, instructor.Mode.TOOLS_STRICT, instructor.Mode.RESPONSES_TOOLS):
            with self.subTest(mode):
                self.assertEqual(self.ask(mode, WEATHER_QUESTION, Weather).city, "Toulouse")

    def test_an_object_comes_as_text(self):
        for mode in (instructor.Mode.JSON, instructor.Mode.JSON_SCHEMA):
            with self.subTest(mode):
                self.assertIsInstance(self.ask(mode, JSON_QUESTION, Person), Person)

    def test_partial_objects_end_with_a_whole_one(self):
        client = instructor.from_openai(self.openai)
        partial = client.create_partial(
            model="breeze", messages=user(WEATHER_QUESTION), response_model=Weather, temperature=0, max_retries=0
        )
        self.assertEqual(list(partial)[-1].city, "Toulouse")


if __name__ == "__main__":
    http_case.main()
