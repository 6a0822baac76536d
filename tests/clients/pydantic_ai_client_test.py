"""pydantic-ai against the real server. Usage: python pydantic_ai_client_test.py SERVER_BINARY"""

import asyncio

import http_case
from http_case import GREETING, GREETING_ANSWER, WEATHER_QUESTION, HttpCase
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider


class Person(BaseModel):
    name: str
    age: int


class Weather(BaseModel):
    """Get the current weather in a city"""

    city: str


class PydanticAiTest(HttpCase):
    def agent(self, **more) -> Agent:
        model = OpenAIChatModel("breeze", provider=OpenAIProvider(base_url=self.url + "/v1", api_key="k"))
        return Agent(model, model_settings={"temperature": 0}, **more)

    def test_an_answer_is_that_of_the_model(self):
        self.assertEqual(self.agent().run_sync(GREETING).output, GREETING_ANSWER)

    def test_a_stream_says_the_same_in_pieces(self):
        async def stream() -> str:
            async with self.agent().run_stream(GREETING) as result:
                return "".join([piece async for piece in result.stream_text(delta=True)])

        self.assertEqual(asyncio.run(stream()), GREETING_ANSWER)

    def test_a_tool_is_run_and_its_result_told(self):
        agent, cities = self.agent_with_weather()
        self.assertIn("sunny", agent.run_sync(WEATHER_QUESTION).output)
        self.assertEqual(cities, ["Toulouse"])

    def test_a_call_is_streamed_and_run(self):
        agent, cities = self.agent_with_weather()

        async def stream() -> str:
            async with agent.run_stream(WEATHER_QUESTION) as result:
                return await result.get_output()

        self.assertIn("sunny", asyncio.run(stream()))
        self.assertEqual(cities, ["Toulouse"])

    def agent_with_weather(self) -> tuple[Agent, list[str]]:
        cities: list[str] = []
        agent = self.agent()

        @agent.tool_plain
        def get_weather(city: str) -> dict:
            """Get the current weather in a city

            Args:
                city: The city
            """
            cities.append(city)
            return {"weather": "sunny"}

        return agent, cities

    def test_output_comes_as_a_call(self):
        self.assertEqual(self.agent(output_type=Weather).run_sync(WEATHER_QUESTION).output.city, "Toulouse")

    def test_output_comes_as_text_under_a_schema(self):
        agent = self.agent(output_type=NativeOutput(Person))
        self.assertEqual(agent.run_sync("Answer in JSON: name and age: Ada is 36").output.age, 36)


if __name__ == "__main__":
    http_case.main()
