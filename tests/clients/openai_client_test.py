"""openai against the real server with the embedded model. Usage: python openai_client_test.py SERVER_BINARY"""

import asyncio
import json
import time
import urllib.request

import http_case
import openai
from http_case import (
    GREETING,
    GREETING_ANSWER,
    TWO_CITIES_QUESTION,
    WEATHER_QUESTION,
    WEATHER_TOOL,
    HttpCase,
    user,
)
from pydantic import BaseModel
from server_process import GatewayProcess, ServerProcess

MODEL = "breeze"


class Person(BaseModel):
    name: str
    age: int


class OpenAiCase(HttpCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.client = openai.OpenAI(base_url=cls.url + "/v1", api_key="k", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        cls.client.close()
        super().tearDownClass()

    def chat(self, text: str, **more):
        return self.client.chat.completions.create(model=MODEL, messages=user(text), temperature=0, **more)


class ChatTest(OpenAiCase):
    def test_models_are_listed_and_found_by_name(self):
        self.assertEqual([model.id for model in self.client.models.list()], [MODEL])
        self.assertEqual(self.client.models.retrieve(MODEL).object, "model")
        with self.assertRaises(openai.NotFoundError):
            self.client.models.retrieve("nobody")

    def test_an_answer_is_that_of_the_model(self):
        answer = self.chat(GREETING)
        self.assertEqual(answer.choices[0].message.content, GREETING_ANSWER)
        self.assertEqual(answer.choices[0].message.role, "assistant")
        self.assertIsNone(answer.choices[0].message.tool_calls)
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertEqual(answer.usage.total_tokens, answer.usage.prompt_tokens + answer.usage.completion_tokens)
        self.assertEqual(answer.model, MODEL)

    def test_a_stream_says_the_same_in_pieces(self):
        chunks = list(self.chat(GREETING, stream=True, stream_options={"include_usage": True}))
        self.assertEqual("".join(c.choices[0].delta.content or "" for c in chunks if c.choices), GREETING_ANSWER)
        self.assertEqual(chunks[0].choices[0].delta.role, "assistant")
        self.assertEqual([c.choices[0].finish_reason for c in chunks if c.choices][-1], "stop")
        self.assertEqual(chunks[-1].choices, [])
        self.assertEqual(chunks[-1].usage.completion_tokens, self.chat(GREETING).usage.completion_tokens)
        self.assertEqual(len({c.id for c in chunks}), 1)

    def test_the_stream_helper_puts_it_together(self):
        with self.client.chat.completions.stream(model=MODEL, messages=user(GREETING), temperature=0) as stream:
            for _ in stream:
                pass
            completion = stream.get_final_completion()
        self.assertEqual(completion.choices[0].message.content, GREETING_ANSWER)

    def test_a_crowd_of_200_streams_gets_what_each_would_get_alone(self):
        async def one(client: openai.AsyncOpenAI) -> str:
            stream = await client.chat.completions.create(
                model=MODEL, messages=user(GREETING), temperature=0, stream=True
            )
            return "".join([c.choices[0].delta.content or "" async for c in stream])

        async def crowd() -> list[str]:
            async with openai.AsyncOpenAI(base_url=self.url + "/v1", api_key="k", max_retries=0) as client:
                return await asyncio.gather(*[one(client) for _ in range(200)])

        self.assertEqual(set(asyncio.run(crowd())), {GREETING_ANSWER})

    def test_several_choices_with_a_seed_repeat(self):
        def stories() -> list[str]:
            answer = self.client.chat.completions.create(
                model=MODEL, messages=user("Tell me a story"), n=3, seed=7, max_completion_tokens=20
            )
            self.assertEqual([choice.index for choice in answer.choices], [0, 1, 2])
            self.assertEqual({choice.finish_reason for choice in answer.choices}, {"length"})
            return [choice.message.content for choice in answer.choices]

        self.assertEqual(stories(), stories())
        self.assertEqual(len(set(stories())), 3)

    def test_logprobs_are_of_the_tokens_that_make_the_text(self):
        logprobs = self.chat(GREETING, logprobs=True, top_logprobs=2).choices[0].logprobs.content
        text = b"".join(bytes(token.bytes) for token in logprobs if token.bytes is not None).decode()
        self.assertEqual(text, GREETING_ANSWER)
        self.assertEqual(logprobs[-1].token, "</s>")
        for token in logprobs:
            self.assertEqual(len(token.top_logprobs), 2)
            self.assertAlmostEqual(token.logprob, token.top_logprobs[0].logprob, places=5)  # greedy
            self.assertGreaterEqual(token.top_logprobs[0].logprob, token.top_logprobs[1].logprob)

    def test_a_stop_text_is_not_in_the_answer(self):
        answer = self.chat(GREETING, stop=["Breeze"])
        self.assertEqual(answer.choices[0].message.content, "Hello! I am ")
        self.assertEqual(answer.choices[0].finish_reason, "stop")

    def test_refusals_are_openais_errors_and_name_the_field(self):
        with self.assertRaises(openai.BadRequestError) as refusal:
            self.chat(GREETING, top_p=2)
        self.assertEqual(refusal.exception.param, "top_p")
        self.assertEqual(refusal.exception.type, "invalid_request_error")
        with self.assertRaises(openai.NotFoundError):
            self.client.chat.completions.create(model="nobody", messages=user(GREETING))
        with self.assertRaises(openai.BadRequestError) as refusal:
            self.client.chat.completions.create(model=MODEL, messages=user("word " * 40000))
        self.assertEqual(refusal.exception.code, "context_length_exceeded")

    def test_what_no_retry_mends_is_sent_once(self):
        # With retries as the client has them by default: it tries each 409 again unless it is told not to.
        client = openai.OpenAI(base_url=self.url + "/v1", api_key="k")
        self.assertGreater(client.max_retries, 0)
        ask = {"model": MODEL, "max_tokens": 1, "extra_body": {"session": "edited"}}
        client.chat.completions.create(messages=user(GREETING), **ask)
        before = self.refused("/v1/chat/completions")
        with self.assertRaises(openai.ConflictError) as refused:
            client.chat.completions.create(messages=user("Edited"), **ask)
        self.assertEqual(refused.exception.code, "session_differs")
        self.assertEqual(refused.exception.response.headers["x-should-retry"], "false")
        self.assertEqual(self.refused("/v1/chat/completions"), before + 1)

    def refused(self, handler: str) -> int:
        """How many requests the server has answered with 4xx."""
        with urllib.request.urlopen(self.url + "/metrics") as page:
            name = f'http_requests_total{{handler="{handler}",method="POST",status="4xx"}} '
            counts = [line for line in page.read().decode().splitlines() if line.startswith(name)]
        return int(counts[0].removeprefix(name)) if counts else 0

    def test_hanging_up_ends_the_request(self):
        stream = self.client.chat.completions.create(
            model=MODEL, messages=user("Tell me a story"), stream=True, extra_body={"ignore_eos": True}
        )
        next(iter(stream))
        stream.close()
        for _ in range(200):
            load = self.client.get(self.url + "/load", cast_to=object)
            if load["server_load"] == 0:
                return
            time.sleep(0.05)
        self.fail(f"something still runs ten seconds after the hang-up: {load}")

    def test_answers_are_held_to_a_schema(self):
        answer = self.client.chat.completions.parse(
            model=MODEL,
            messages=user("Answer in JSON: name and age: Ada is 36"),
            response_format=Person,
            temperature=0,
        )
        self.assertEqual(answer.choices[0].message.parsed.age, 36)


class ToolTest(OpenAiCase):
    def weather(self, question: str = WEATHER_QUESTION, **more):
        return self.chat(question, tools=[WEATHER_TOOL], **more).choices[0]

    def test_the_model_calls_and_answers_from_the_result(self):
        choice = self.weather()
        self.assertEqual(choice.finish_reason, "tool_calls")
        self.assertIsNone(choice.message.content)
        [call] = choice.message.tool_calls
        self.assertEqual((call.type, call.function.name), ("function", "get_weather"))
        self.assertEqual(json.loads(call.function.arguments), {"city": "Toulouse"})
        self.assertRegex(call.id, "^[a-zA-Z0-9]{9}$")

        result = {"role": "tool", "tool_call_id": call.id, "content": '{"weather": "sunny", "temperature": 21}'}
        answer = self.client.chat.completions.create(
            model=MODEL, messages=[*user(WEATHER_QUESTION), choice.message, result], tools=[WEATHER_TOOL], temperature=0
        )
        self.assertEqual(answer.choices[0].finish_reason, "stop")
        self.assertIn("sunny", answer.choices[0].message.content)

    def test_ids_of_other_servers_are_taken(self):
        call = {"id": "call_0123456789abcdef", "type": "function"}
        call["function"] = {"name": "get_weather", "arguments": '{"city": "Toulouse"}'}
        history = [
            *user(WEATHER_QUESTION),
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_0123456789abcdef", "content": '{"weather": "sunny"}'},
        ]
        answer = self.client.chat.completions.create(model=MODEL, messages=history, tools=[WEATHER_TOOL], temperature=0)
        self.assertIn("sunny", answer.choices[0].message.content)

    def test_parallel_calls_come_whole_and_in_pieces(self):
        calls = self.weather(TWO_CITIES_QUESTION).message.tool_calls
        self.assertEqual([json.loads(c.function.arguments)["city"] for c in calls], ["Turin", "Riga"])
        self.assertEqual(len({call.id for call in calls}), 2)

        pieces: dict[int, dict] = {}
        chunks = list(self.chat(TWO_CITIES_QUESTION, tools=[WEATHER_TOOL], stream=True))
        for delta in [c.choices[0].delta for c in chunks]:
            for piece in delta.tool_calls or []:
                if piece.id is not None:
                    self.assertNotIn(piece.index, pieces)
                    pieces[piece.index] = {"name": "", "arguments": ""}
                pieces[piece.index]["name"] += piece.function.name
                pieces[piece.index]["arguments"] += piece.function.arguments
        self.assertEqual({call["name"] for call in pieces.values()}, {"get_weather"})
        self.assertEqual([json.loads(pieces[i]["arguments"])["city"] for i in (0, 1)], ["Turin", "Riga"])
        self.assertEqual(chunks[-1].choices[0].finish_reason, "tool_calls")

    def test_without_parallel_calls_there_is_one(self):
        self.assertEqual(len(self.weather(TWO_CITIES_QUESTION, parallel_tool_calls=False).message.tool_calls), 1)

    def test_the_stream_helper_parses_the_calls(self):
        with self.client.chat.completions.stream(
            model=MODEL, messages=user(WEATHER_QUESTION), tools=[WEATHER_TOOL], temperature=0
        ) as stream:
            kinds = {event.type for event in stream}
            [call] = stream.get_final_completion().choices[0].message.tool_calls
        self.assertIn("tool_calls.function.arguments.done", kinds)
        self.assertEqual(json.loads(call.function.arguments), {"city": "Toulouse"})

    def test_a_call_cut_off_stays_in_a_stream(self):
        whole = self.weather()
        [call] = whole.message.tool_calls
        for max_tokens in range(1, self.chat(WEATHER_QUESTION, tools=[WEATHER_TOOL]).usage.completion_tokens):
            ask = dict(tools=[WEATHER_TOOL], max_tokens=max_tokens)
            chunks = [chunk.choices[0] for chunk in self.chat(WEATHER_QUESTION, stream=True, **ask)]
            self.assertEqual("".join(chunk.delta.content or "" for chunk in chunks), "")
            pieces = [piece for chunk in chunks for piece in chunk.delta.tool_calls or []]
            arguments = "".join(piece.function.arguments for piece in pieces)
            self.assertTrue(call.function.arguments.startswith(arguments), arguments)
            self.assertEqual(chunks[-1].finish_reason, "length")
            cut = self.weather(max_tokens=max_tokens)
            self.assertIn(cut.message.content, (None, ""))
            self.assertEqual(cut.finish_reason, "length")

    def test_none_makes_no_call(self):
        choice = self.weather(tool_choice="none")
        self.assertIsNone(choice.message.tool_calls)
        self.assertEqual(choice.finish_reason, "stop")
        self.assertTrue(choice.message.content)

    def test_required_and_named_call_whatever_was_said(self):
        named = {"type": "function", "function": {"name": "get_weather"}}
        for tool_choice in ("required", named):
            with self.subTest(tool_choice):
                choice = self.weather(GREETING, tool_choice=tool_choice, parallel_tool_calls=False)
                self.assertEqual(choice.finish_reason, "tool_calls")
                [call] = choice.message.tool_calls
                self.assertIsInstance(json.loads(call.function.arguments)["city"], str)


class ToolThroughGatewayTest(ToolTest):
    """The same with `tramontane gateway` between the client and the server."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.gateway = GatewayProcess(cls.binary, cls.server.addresses["grpc"])
        cls.client.close()
        cls.client = openai.OpenAI(base_url=cls.gateway.url + "/v1", api_key="k", max_retries=0)

    @classmethod
    def tearDownClass(cls):
        status = cls.gateway.stop()
        super().tearDownClass()
        assert status == 0, f"the gateway ended with {status}"


class CompletionTest(OpenAiCase):
    def complete(self, prompt, **more):
        return self.client.completions.create(model=MODEL, prompt=prompt, temperature=0, **more)

    def test_text_and_ids_and_lists_of_them_are_prompts(self):
        text = "Once upon a time"
        ids = self.client.post("/tokenize", body={"prompt": text}, cast_to=object)["tokens"]
        answers = [choice.text for choice in self.complete([text, text], max_tokens=8).choices]
        for prompt in (text, ids, [ids, ids]):
            answers += [choice.text for choice in self.complete(prompt, max_tokens=8).choices]
        self.assertEqual(len(answers), 6)
        self.assertEqual(len(set(answers)), 1)

    def test_a_stream_says_the_same_in_pieces(self):
        whole = self.complete("Once upon a time", max_tokens=12).choices[0].text
        pieces = self.complete("Once upon a time", max_tokens=12, stream=True)
        self.assertEqual("".join(chunk.choices[0].text for chunk in pieces), whole)

    def test_echo_scores_the_prompt(self):
        answer = self.complete("Once upon a time", max_tokens=0, echo=True, logprobs=2).choices[0]
        self.assertEqual(answer.text, "Once upon a time")
        logprobs = answer.logprobs
        self.assertIsNone(logprobs.token_logprobs[0])
        self.assertEqual(len(logprobs.tokens), len(logprobs.token_logprobs))
        for token, logprob, top in list(zip(logprobs.tokens, logprobs.token_logprobs, logprobs.top_logprobs))[1:]:
            self.assertLessEqual(logprob, max(top.values()) + 1e-6, token)


class ResponsesTest(OpenAiCase):
    TOOL = {"type": "function", **WEATHER_TOOL["function"]}

    def respond(self, text, **more):
        return self.client.responses.create(model=MODEL, input=text, temperature=0, **more)

    def test_an_answer_is_that_of_the_model(self):
        answer = self.respond(GREETING)
        self.assertEqual(answer.output_text, GREETING_ANSWER)
        self.assertEqual(answer.status, "completed")
        self.assertEqual(answer.usage.total_tokens, answer.usage.input_tokens + answer.usage.output_tokens)

    def test_messages_and_instructions_are_a_conversation(self):
        answer = self.respond([{"role": "user", "content": [{"type": "input_text", "text": GREETING}]}])
        self.assertEqual(answer.output_text, GREETING_ANSWER)
        answer = self.respond("Who are you?", instructions="You are Captain Oak, a friendly sailor from Marseille.")
        self.assertIn("Captain Oak", answer.output_text)

    def test_events_come_in_their_order(self):
        events = list(self.respond(GREETING, stream=True))
        self.assertEqual([event.sequence_number for event in events], list(range(len(events))))
        kinds = [event.type for event in events]
        self.assertEqual(
            [kind for i, kind in enumerate(kinds) if i == 0 or kind != kinds[i - 1]],
            [
                "response.created",
                "response.in_progress",
                "response.output_item.added",
                "response.content_part.added",
                "response.output_text.delta",
                "response.output_text.done",
                "response.content_part.done",
                "response.output_item.done",
                "response.completed",
            ],
        )
        self.assertEqual("".join(e.delta for e in events if e.type == "response.output_text.delta"), GREETING_ANSWER)
        self.assertEqual(events[-1].response.output_text, GREETING_ANSWER)

    def test_the_stream_helper_puts_it_together(self):
        with self.client.responses.stream(model=MODEL, input=GREETING, temperature=0) as stream:
            for _ in stream:
                pass
            self.assertEqual(stream.get_final_response().output_text, GREETING_ANSWER)

    def test_the_model_calls_and_answers_from_the_result(self):
        answer = self.respond(WEATHER_QUESTION, tools=[self.TOOL])
        [call] = answer.output
        self.assertEqual((call.type, call.name), ("function_call", "get_weather"))
        self.assertEqual(json.loads(call.arguments), {"city": "Toulouse"})
        history = [
            *user(WEATHER_QUESTION),
            *[item.to_dict() for item in answer.output],
            {"type": "function_call_output", "call_id": call.call_id, "output": '{"weather": "sunny"}'},
        ]
        self.assertIn("sunny", self.respond(history, tools=[self.TOOL]).output_text)

    def test_calls_stream_too(self):
        events = list(self.respond(WEATHER_QUESTION, tools=[self.TOOL], stream=True))
        pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
        self.assertEqual(json.loads("".join(pieces)), {"city": "Toulouse"})
        self.assertEqual(events[-1].response.output[0].name, "get_weather")
        with self.client.responses.stream(
            model=MODEL, input=WEATHER_QUESTION, tools=[self.TOOL], temperature=0
        ) as stream:
            for _ in stream:
                pass
            [call] = stream.get_final_response().output
        self.assertEqual(json.loads(call.arguments), {"city": "Toulouse"})

    def test_a_call_cut_off_is_an_incomplete_item(self):
        events = list(self.respond(WEATHER_QUESTION, tools=[self.TOOL], stream=True, max_output_tokens=18))
        pieces = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
        [call] = events[-1].response.output
        self.assertEqual((events[-1].type, call.status), ("response.incomplete", "incomplete"))
        self.assertEqual(call.arguments, "".join(pieces))

    def test_a_cut_answer_is_incomplete(self):
        answer = self.respond("Tell me a story", max_output_tokens=5)
        self.assertEqual((answer.status, answer.incomplete_details.reason), ("incomplete", "max_output_tokens"))

    def test_what_needs_a_memory_is_refused(self):
        with self.assertRaises(openai.BadRequestError) as refusal:
            self.respond(GREETING, previous_response_id="resp_1")
        self.assertEqual(refusal.exception.param, "previous_response_id")
        with self.assertRaises(openai.BadRequestError):
            self.respond(GREETING, background=True)
        self.assertFalse(self.respond(GREETING, store=True).store)

    def test_answers_are_held_to_a_schema(self):
        answer = self.client.responses.parse(
            model=MODEL, input="Answer in JSON: name and age: Ada is 36", text_format=Person, temperature=0
        )
        self.assertEqual(answer.output_parsed.age, 36)


class FieldTest(OpenAiCase):
    def test_a_misspelt_field_is_refused_by_its_name(self):
        with self.assertRaises(openai.BadRequestError) as refusal:
            self.chat(GREETING, extra_body={"temprature": 1})
        self.assertEqual(refusal.exception.param, "temprature")
        self.assertIn("temperature", refusal.exception.body["message"])

    def test_what_changes_nothing_is_told(self):
        answer = self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=user(GREETING), temperature=0, user="me", store=True
        )
        self.assertEqual(set(answer.headers["x-tramontane-ignored"].split(", ")), {"user", "store"})
        self.assertEqual(answer.parse().choices[0].message.content, GREETING_ANSWER)


class LenientFieldTest(OpenAiCase):
    """A server that takes fields it does not know, and allows two choices."""

    @classmethod
    def setUpClass(cls):
        cls.server = ServerProcess(cls.binary, "--strict-fields", "off", "--max-choices", "2")
        cls.url = cls.server.url
        cls.client = openai.OpenAI(base_url=cls.url + "/v1", api_key="k", max_retries=0)

    def test_a_misspelt_field_is_listed(self):
        answer = self.client.chat.completions.with_raw_response.create(
            model=MODEL, messages=user(GREETING), temperature=0, extra_body={"temprature": 1}
        )
        self.assertEqual(answer.headers["x-tramontane-ignored"], "temprature")
        self.assertEqual(answer.parse().choices[0].message.content, GREETING_ANSWER)

    def test_bounds_are_those_of_the_server(self):
        with self.assertRaises(openai.BadRequestError) as refusal:
            self.chat(GREETING, n=3)
        self.assertIn("from 1 to 2", refusal.exception.body["message"])


if __name__ == "__main__":
    http_case.main()
