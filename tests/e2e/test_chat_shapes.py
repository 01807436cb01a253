"""Conversations of every shape on every API, through chat templates that refuse whatever breaks their families' rules; thoughts,
forms and required calls; models without a template."""
import json
import pathlib
import re
import tempfile
import unittest

from harness import DEMO, DRAFT, ROOT, Case
from serving import Server

MODEL, BASE = pathlib.Path(DEMO).stem, "bare"
STRICT = dict(re.findall(r'std::string kStrict(\w+) = R"J\((.*?)\)J";', (ROOT / "tests/text/strict_templates.h").read_text(), re.S))
TOOL = {"type": "function", "function": {"name": "look", "description": "Looks.",
                                         "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}}}
ARGUMENTS = ["", None, [], "null", '{"n": 1', '{"n":True}', "look", {"n": 1}]


def said(role, content):
    return {"role": role, "content": content}


def shapes():
    """In the form of chat completions."""
    system, user, answer, late = said("system", "Be brief."), said("user", "Hi"), said("assistant", "Hello"), said("system", "Now in French.")
    developer, more = said("developer", "Be kind."), said("user", "2?")
    call = {"id": "call_0123456789abcdef", "type": "function", "function": {"name": "look", "arguments": '{"n": 1}'}}
    other = {"id": "toolu_2", "type": "function", "function": {"name": "look", "arguments": '{"n": 2}'}}
    calls, both = {**said("assistant", None), "tool_calls": [call]}, {**said("assistant", "Let me see"), "tool_calls": [call, other]}
    result = {**said("tool", "one"), "tool_call_id": call["id"]}
    second = {**said("tool", "two"), "tool_call_id": other["id"]}
    yield from ([user], [system], [system, late, user], [developer, said("developer", "Be brief."), user], [system, user, late],
                [user, late, answer, more], [system, user, answer, late, more], [user, more], [answer, user], [system, answer, user],
                [user, answer, answer, more], [user, calls, result], [user, calls, result, more], [user, calls, result, answer, more],
                [user, both, result, second, more], [user, calls, late, result, more], [user, calls, {**said("function", "one"), "name": "look"}, more],
                [result, user], [user, {**said("assistant", None)}, more], [user, calls, result, {**calls}, result, answer, user])
    for arguments in ARGUMENTS:
        yield [user, {**said("assistant", None), "tool_calls": [{**call, "function": {"name": "look", "arguments": arguments}}]}, result, more]


def as_items(shape):
    """The same as input items of responses."""
    for message in shape:
        if message["role"] in ("tool", "function"):
            yield {"type": "function_call_output", "call_id": message.get("tool_call_id", "x"), "output": message["content"]}
            continue
        if message["content"]:
            yield {"type": "message", "role": message["role"], "content": [{"type": "input_text", "text": message["content"]}]}
        for call in message.get("tool_calls", []):
            arguments = call["function"]["arguments"]
            yield {"type": "function_call", "call_id": call["id"], "name": "look", "arguments": arguments if isinstance(arguments, str) else json.dumps(arguments)}


def as_blocks(shape):
    """The same as Anthropic's messages."""
    for message in shape:
        role = {"developer": "system", "tool": "user", "function": "user"}.get(message["role"], message["role"])
        if message["role"] in ("tool", "function"):
            yield said(role, [{"type": "tool_result", "tool_use_id": message.get("tool_call_id", "x"), "content": message["content"]}])
            continue
        blocks = [{"type": "text", "text": message["content"]}] if message["content"] else []
        for call in message.get("tool_calls", []):
            blocks.append({"type": "tool_use", "id": call["id"], "name": "look", "input": call["function"]["arguments"]})
        yield said(role, blocks or "")


class Shapes(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(DEMO, "-c", "2048", env={"MILLRACE_MODELS": cls.folder.name})
        for name, template in STRICT.items():
            status, told = cls.server.json("POST", "/api/create", {"model": name.lower(), "from": MODEL, "template": template, "stream": False})
            assert status == 200, told

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.folder.cleanup()

    def test_every_shape_on_every_api(self):
        self.assertEqual(len(STRICT), 6)
        for name in map(str.lower, STRICT):
            for i, shape in enumerate(shapes()):
                # With tools and without them: agents leave them out where they ask for a summary.
                tools = [TOOL] if i % 2 else []
                asked = [("/v1/chat/completions", {"messages": shape, "max_tokens": 1, "tools": tools}),
                         ("/api/chat", {"messages": shape, "options": {"num_predict": 1}, "stream": False, "tools": tools}),
                         ("/v1/responses", {"input": list(as_items(shape)), "max_output_tokens": 1}),
                         ("/v1/messages", {"messages": list(as_blocks(shape)), "max_tokens": 1})]
                for path, body in asked:
                    status, told = self.server.json("POST", path, {"model": name, "temperature": 0, **body})
                    self.assertEqual(status, 200, (name, path, body, told))


class Thoughts(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.server = Server(DEMO, "-c", "2048", env={"MILLRACE_MODELS": cls.folder.name})
        for name, template in (("harmony", STRICT["Harmony"]), ("qwen", STRICT["Qwen"])):
            status, told = cls.server.json("POST", "/api/create", {"model": name, "from": MODEL, "template": template, "stream": False})
            assert status == 200, told

    @classmethod
    def tearDownClass(cls):
        cls.server.__exit__()
        cls.folder.cleanup()

    def prompt(self, model, **more):
        """What the template makes of these fields."""
        status, told = self.server.json("POST", "/apply-template", {"model": model, "messages": [said("user", "Hi")], **more})
        self.assertEqual(status, 200, told)
        return told["prompt"]

    def test_controls_reach_the_template(self):
        for effort, given in (("none", "low"), ("minimal", "low"), ("low", "low"), ("medium", "medium"), ("high", "high"), ("xhigh", "high")):
            for fields in ({"reasoning_effort": effort}, {"reasoning": {"effort": effort}}, {"think": effort}, {"output_config": {"effort": effort}}):
                self.assertIn(f"Reasoning: {given}", self.prompt("harmony", **fields), fields)
        self.assertIn("Reasoning: very", self.prompt("harmony", chat_template_kwargs={"reasoning_effort": "very"}))
        for fields in ({"think": False}, {"enable_thinking": False}, {"thinking": {"type": "disabled"}}, {"reasoning": {"effort": "none"}},
                       {"reasoning_effort": "none"}, {"think": "none"}, {"chat_template_kwargs": {"enable_thinking": False}}):
            self.assertTrue(self.prompt("qwen", **fields).endswith("</think>\n\n"), fields)
        for fields in ({}, {"think": True}, {"reasoning_effort": "low"}, {"thinking": {"type": "enabled", "budget_tokens": 1024}}, {"think": "high"}):
            self.assertTrue(self.prompt("qwen", **fields).endswith("<think>\n"), fields)

    def test_controls_have_an_effect_on_every_api(self):
        """Prompt tokens tell one prompt from another."""
        def tokens(path, body):
            status, told = self.server.json("POST", path, {"model": "qwen", "stream": False, **body})
            self.assertEqual(status, 200, told)
            usage = told.get("usage", told)
            return sum(usage.get(name, 0) for name in ("prompt_tokens", "input_tokens", "cache_read_input_tokens", "prompt_eval_count"))
        chat, ask = {"messages": [said("user", "Hi")], "max_tokens": 1}, {"messages": [said("user", "Hi")], "options": {"num_predict": 1}}
        respond = {"input": "Hi", "max_output_tokens": 1}
        for path, body, on, off in (("/v1/chat/completions", chat, {"reasoning_effort": "high"}, {"reasoning_effort": "none"}),
                                    ("/v1/responses", respond, {"reasoning": {"effort": "high"}}, {"reasoning": {"effort": "none"}}),
                                    ("/api/chat", ask, {"think": "high"}, {"think": "none"}),
                                    ("/v1/messages", chat, {"output_config": {"effort": "high"}}, {"thinking": {"type": "disabled"}})):
            self.assertGreater(tokens(path, {**body, **off}), tokens(path, {**body, **on}), path)
            bad = {**body, **{"/v1/responses": {"reasoning": {"effort": "hgih"}}, "/api/chat": {"think": "hgih"},
                              "/v1/messages": {"output_config": {"effort": "hgih"}}}.get(path, {"reasoning_effort": "hgih"})}
            self.assertEqual(self.server.request("POST", path, {"model": "qwen", **bad})[0], 400, path)

    def test_a_budget_ends_the_thought_on_every_api(self):
        """The demo never ends its thought by itself."""
        chat, ask = {"messages": [said("user", "Hi")], "max_tokens": 40, "temperature": 0}, {"messages": [said("user", "Hi")], "options": {"num_predict": 40, "temperature": 0}}
        respond = {"input": "Hi", "max_output_tokens": 40, "temperature": 0}
        for path, body, budget, parts in (
                ("/v1/chat/completions", chat, {"thinking_budget": 3}, lambda told: (told["choices"][0]["message"]["reasoning_content"], told["choices"][0]["message"]["content"])),
                ("/v1/responses", respond, {"reasoning": {"max_tokens": 3}}, lambda told: [one["content"][0]["text"] for one in told["output"]]),
                ("/api/chat", ask, {"thinking_budget": 3}, lambda told: (told["message"]["thinking"], told["message"]["content"])),
                ("/v1/messages", chat, {"thinking": {"type": "enabled", "budget_tokens": 3}}, lambda told: [one.get("thinking") or one["text"] for one in told["content"]])):
            status, told = self.server.json("POST", path, {"model": "qwen", "stream": False, **body, **budget})
            self.assertEqual(status, 200, told)
            thought, answer = parts(told)
            self.assertTrue(answer, told)
            ids = self.server.json("POST", "/tokenize", {"model": "qwen", "content": thought})[1]["tokens"]
            self.assertTrue(1 <= len(ids) <= 4, (thought, "three, whose borders may be written otherwise"))
        _, told = self.server.json("POST", "/v1/chat/completions", {"model": "qwen", **chat, "thinking_budget": 0})
        self.assertFalse(told["choices"][0]["message"].get("reasoning_content"), told)

    def test_forms_follow_a_thought_that_its_budget_ended(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 9}}, "required": ["n"], "additionalProperties": False}
        form = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
        fields = {"messages": [said("user", "Hi")], "max_tokens": 200, "temperature": 1, "thinking_budget": 8}
        thoughts = 0
        for model in ("qwen", "harmony"):
            for seed in range(12):
                _, told = self.server.json("POST", "/v1/chat/completions", {"model": model, "seed": seed, **fields, **form})
                message = told["choices"][0]["message"]
                self.assertEqual(told["choices"][0]["finish_reason"], "stop", told)
                self.assertIsInstance(json.loads(message["content"])["n"], int, told)
                thoughts += 1 if model == "harmony" and message.get("reasoning_content") else 0
        self.assertGreater(thoughts, 0)

    def test_forms_hold_after_a_thought_and_never_end_empty(self):
        schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"], "additionalProperties": False}
        fields = {"messages": [said("user", "Hi")], "max_tokens": 600, "temperature": 1}
        for model in ("qwen", "harmony"):
            for seed in range(6):
                form = {"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}}
                _, told = self.server.json("POST", "/v1/chat/completions", {"model": model, "seed": seed, **fields, **form})
                choice = told["choices"][0]
                if choice["finish_reason"] != "length":
                    self.assertIsInstance(json.loads(choice["message"]["content"])["n"], int, told)
                _, told = self.server.json("POST", "/v1/chat/completions", {"model": model, "seed": seed, **fields, "tools": [TOOL], "tool_choice": "required"})
                choice = told["choices"][0]
                if choice["finish_reason"] != "length":
                    self.assertEqual(choice["message"]["tool_calls"][0]["function"]["name"], "look", told)


class Texts(Case):
    def test_half_a_surrogate_pair_and_where_json_is_wrong(self):
        with Server(DRAFT) as server:
            name = pathlib.Path(DRAFT).stem
            body = '{"model": "%s", "max_tokens": 1, "messages": [{"role": "user", "content": "cut \\ud83d here"}]}' % name
            for path in ("/v1/chat/completions", "/v1/messages"):
                self.assertEqual(server.request("POST", path, body)[0], 200)
            status, _, content = server.request("POST", "/v1/chat/completions", '{"model": "x",\n "messages": [}')
            self.assertEqual(status, 400)
            self.assertIn(b"line 2, column 15", content)

    def test_schemas_with_long_limits_and_errors_that_name_what_is_wrong(self):
        with Server(DRAFT, "-c", "16384") as server:
            def ask(parameters, count=1, **more):
                tools = [{"type": "function", "function": {"name": f"tool{i}", "parameters": parameters}} for i in range(count)]
                return server.json("POST", "/v1/chat/completions", {"model": pathlib.Path(DRAFT).stem, "messages": [said("user", "Hi")], "max_tokens": 1,
                                                                    "tools": tools, "tool_choice": "required", **more})
            text = {"type": "string", "maxLength": 65536}
            many = {f"p{i}": {"type": "string", "maxLength": 30000} for i in range(6)}
            for parameters in ({"type": "OBJECT", "properties": {"a": text}}, {"type": "object", "properties": None}, {"type": "object", "properties": many},
                               {"type": "object", "properties": {"a": {"type": "array", "items": {"type": "integer"}, "maxItems": 100000}}}):
                status, told = ask(parameters)
                self.assertEqual(status, 200, told)
            status, told = ask({"type": "object", "properties": {f"p{i}": {"type": "string"} for i in range(8)}, "required": [f"p{i}" for i in range(8)]}, 60)
            self.assertEqual(status, 200, told)
            status, told = ask({"type": "object", "properties": {"good": {"type": "string"}, "bad": {"type": "string", "pattern": "(?<=a)b"}}})
            self.assertEqual(status, 400)
            self.assertIn("tools: tool0: property bad", told["error"]["message"])


class WithoutTemplate(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name, f"{BASE}.gguf")
        self.path.write_bytes(pathlib.Path(DEMO).read_bytes().replace(b"tokenizer.chat_template", b"tokenizer.chat_templatx"))

    def test_a_base_model_continues_the_text_on_every_api(self):
        with Server(self.path) as server:
            _, raw = server.json("POST", "/api/generate", {"model": BASE, "prompt": "Once upon", "raw": True, "stream": False, "options": {"num_predict": 4, "temperature": 0}})
            ask = {"model": BASE, "temperature": 0}
            _, told = server.json("POST", "/api/generate", {**ask, "prompt": "Once upon", "stream": False, "options": {"num_predict": 4, "temperature": 0}})
            self.assertEqual(told["response"], raw["response"])
            talk = [said("user", "Once upon")]
            _, told = server.json("POST", "/v1/chat/completions", {**ask, "messages": talk, "max_tokens": 4})
            self.assertEqual(told["choices"][0]["message"]["content"], raw["response"])
            for path, body in (("/api/chat", {"messages": talk, "stream": False}), ("/v1/messages", {"messages": talk, "max_tokens": 4}),
                               ("/v1/responses", {"input": "Once upon", "max_output_tokens": 4})):
                self.assertEqual(server.json("POST", path, {**ask, **body})[0], 200, path)
            self.assertIn("no chat template", server.messages())

    def test_the_terminal_says_so_once(self):
        outcome = self.ok("run", self.path, "-n", "4", "-p", "Once upon", "--temp", "0", "--local")
        self.assertEqual(outcome.err.count("no chat template"), 1, outcome.err)
        self.assertEqual(outcome.out.strip(), self.ok("run", self.path, "-n", "4", "-p", "Once upon", "--temp", "0", "--raw", "--local").out.strip())


if __name__ == "__main__":
    unittest.main()
