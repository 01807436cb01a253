"""Answers that keep a form: JSON, schemas and tools that must be called, through the server."""
import json
import unittest

from harness import DEMO, Case
from serving import Server

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

    def test_what_is_not_understood_is_said(self):
        for schema, says in (({"type": "array", "uniqueItems": True}, "uniqueItems"), ({"not": {}}, "not"), ({"type": "x"}, "x")):
            status, body = self.openai(response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
            self.assertEqual(status, 400, body)
            self.assertIn(says, body["error"]["message"])
            self.assertEqual(self.openai(max_tokens=2)[0], 200)


if __name__ == "__main__":
    unittest.main()
