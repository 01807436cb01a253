"""Answers that keep a form: JSON, schemas and tools that must be called, through the server."""
import json
import unittest

from harness import DEMO, Case
from serving import Server, lines

MODEL = "demo-moe-q4_k_m"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]
CITY = {"type": "object", "properties": {"city": {"type": "string", "maxLength": 12}, "size": {"enum": ["small", "big"]},
                                         "rank": {"type": "integer", "minimum": 1, "maximum": 9}},
        "required": ["city", "size", "rank"], "additionalProperties": False}


class Form(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(DEMO, "--threads", "2", "--parallel", "4")
        cls.addClassCleanup(cls.server.__exit__)

    def openai(self, **fields):
        body = {"model": MODEL, "messages": QUESTION, "temperature": 1, "max_tokens": 150, **fields}
        return self.server.json("POST", "/v1/chat/completions", body)

    def check_city(self, text):
        city = json.loads(text)
        self.assertEqual(list(city), ["city", "size", "rank"])
        self.assertLessEqual(len(city["city"]), 12)
        self.assertIn(city["size"], ("small", "big"))
        self.assertIn(city["rank"], range(1, 10))

    def test_a_schema_holds_whatever_the_temperature(self):
        asked = {"type": "json_schema", "json_schema": {"name": "city", "strict": True, "schema": CITY}}
        for seed in range(4):
            status, body = self.openai(response_format=asked, seed=seed + 1, temperature=1.5)
            self.assertEqual((status, body["choices"][0]["finish_reason"]), (200, "stop"), body)
            self.check_city(body["choices"][0]["message"]["content"])

    def test_a_schema_that_need_not_be_kept(self):
        cannot = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?<=x)y"}}, "required": ["a"]}
        tool = {"type": "function", "function": {"name": "f", "parameters": cannot, "strict": False}}
        for strict, status in ((False, 200), (True, 400), (None, 400)):
            asked = {"type": "json_schema", "json_schema": {"name": "x", "schema": cannot, "strict": strict}}
            self.assertEqual(self.openai(response_format=asked, max_tokens=8)[0], status, strict)
            tool["function"]["strict"] = strict
            self.assertEqual(self.openai(tools=[tool], tool_choice="required", max_tokens=8)[0], status, strict)

    def test_a_schema_through_ollama(self):
        status, body = self.server.json("POST", "/api/chat", {"model": MODEL, "messages": QUESTION, "format": CITY, "stream": False,
                                                              "options": {"num_predict": 150}})
        self.assertEqual((status, body["done_reason"]), (200, "stop"))
        self.check_city(body["message"]["content"])

    def test_json_is_an_object(self):
        status, body = self.openai(response_format={"type": "json_object"}, logit_bias={"1": -100}, temperature=0)
        self.assertEqual(status, 200, body)
        text = body["choices"][0]["message"]["content"]
        if body["choices"][0]["finish_reason"] == "stop":
            self.assertIsInstance(json.loads(text), dict)
        self.assertTrue(text.lstrip().startswith("{"))

    def test_a_tool_that_must_be_called(self):
        place = {"type": "object", "properties": {"at": {"$ref": "#/$defs/at"}}, "required": ["at"],
                 "$defs": {"at": {"type": "string", "enum": ["home", "sea"]}}}
        tools = [{"type": "function", "function": {"name": name, "parameters": place}} for name in ("weather", "tide")]
        for choice, names in (("required", ("weather", "tide")), ({"type": "function", "function": {"name": "tide"}}, ("tide",))):
            status, body = self.openai(tools=tools, tool_choice=choice)
            self.assertEqual((status, body["choices"][0]["finish_reason"]), (200, "tool_calls"), body)
            call = body["choices"][0]["message"]["tool_calls"][0]["function"]
            self.assertIn(call["name"], names)
            self.assertIn(json.loads(call["arguments"])["at"], ("home", "sea"))

    def events(self, path, body):
        """The data of a stream's events, and how many came."""
        got = [line.removeprefix("data: ") for line in lines(self.server.stream(path, {"model": MODEL, "messages": QUESTION, **body}))]
        return [json.loads(data) for data in got if data.startswith("{")]

    def test_calls_stream_as_they_are_made(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "minLength": 20, "maxLength": 40}, "n": {"type": "integer"}},
                  "required": ["city", "n"], "additionalProperties": False}
        tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
        forced = {"tools": tools, "tool_choice": "required", "temperature": 0, "max_tokens": 150}
        whole = self.openai(**forced)[1]["choices"][0]["message"]["tool_calls"][0]["function"]
        self.assertEqual(list(json.loads(whole["arguments"])), ["city", "n"])

        choices = [c["choices"][0] for c in self.events("/v1/chat/completions", {**forced, "stream": True}) if c["choices"]]
        self.assertEqual(choices[-1]["finish_reason"], "tool_calls")
        pieces = [call for c in choices for call in c["delta"].get("tool_calls", [])]
        self.assertGreater(len(pieces), 3)
        self.assertEqual((pieces[0]["index"], pieces[0]["type"], pieces[0]["function"]["name"]), (0, "function", "weather"))
        self.assertTrue(pieces[0]["id"])
        self.assertTrue(all(p["index"] == 0 and set(p) == {"index", "function"} and set(p["function"]) == {"arguments"} for p in pieces[1:]))
        self.assertEqual("".join(p["function"]["arguments"] for p in pieces), whole["arguments"])

        events = self.events("/v1/messages", {"max_tokens": 150, "temperature": 0, "stream": True, "tool_choice": {"type": "any"},
                                              "tools": [{"name": "weather", "input_schema": schema}]})
        block = next(e["content_block"] for e in events if e["type"] == "content_block_start")
        self.assertEqual((block["type"], block["name"], block["input"]), ("tool_use", "weather", {}))
        partial = [e["delta"]["partial_json"] for e in events if e["type"] == "content_block_delta"]
        self.assertGreater(len(partial), 3)
        self.assertEqual("".join(partial), whole["arguments"])
        self.assertEqual([e["delta"]["stop_reason"] for e in events if e["type"] == "message_delta"], ["tool_use"])

        events = self.events("/v1/responses", {"input": QUESTION[0]["content"], "max_output_tokens": 150, "temperature": 0, "stream": True,
                                               "tool_choice": "required", "tools": [{"type": "function", "name": "weather", "parameters": schema}]})
        told = [e["delta"] for e in events if e["type"] == "response.function_call_arguments.delta"]
        self.assertGreater(len(told), 3)
        self.assertEqual("".join(told), whole["arguments"])
        item = next(e["item"] for e in events if e["type"] == "response.output_item.done")
        self.assertEqual((item["name"], item["arguments"], item["status"]), ("weather", whole["arguments"], "completed"))
        self.assertEqual(events[-1]["response"]["output"], [item])

    def test_a_call_that_is_cut_comes_as_far_as_it_came(self):
        schema = {"type": "object", "properties": {"city": {"type": "string", "minLength": 200}}, "required": ["city"]}
        tools = [{"type": "function", "function": {"name": "weather", "parameters": schema}}]
        cut = {"tools": tools, "tool_choice": "required", "temperature": 0, "max_tokens": 60}
        choice = self.openai(**cut)[1]["choices"][0]
        self.assertEqual(choice["finish_reason"], "length")
        call = choice["message"]["tool_calls"][0]["function"]
        self.assertEqual(call["name"], "weather")
        self.assertTrue(call["arguments"].startswith('{"city":"'), call)
        streamed = [c["choices"][0] for c in self.events("/v1/chat/completions", {**cut, "stream": True}) if c["choices"]]
        self.assertEqual(streamed[-1]["finish_reason"], "length")
        self.assertEqual("".join(t["function"]["arguments"] for c in streamed for t in c["delta"].get("tool_calls", [])), call["arguments"])
        status, message = self.server.json("POST", "/v1/messages", {
            "model": MODEL, "messages": QUESTION, "max_tokens": 60, "temperature": 0, "tool_choice": {"type": "any"},
            "tools": [{"name": "weather", "input_schema": schema}]})
        self.assertEqual((status, message["stop_reason"]), (200, "max_tokens"))
        self.assertTrue(message["content"][0]["input"]["city"])

    def test_what_is_not_understood_is_said(self):
        for schema, says in (({"type": "array", "uniqueItems": True, "items": {"type": "object"}}, "uniqueItems"), ({"not": {"uniqueItems": True}}, "not"), ({"type": "x"}, "x")):
            status, body = self.openai(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
            self.assertEqual(status, 400, body)
            self.assertIn(says, body["error"]["message"])
            self.assertEqual(self.openai(max_tokens=2)[0], 200)


if __name__ == "__main__":
    unittest.main()
