"""What people's programs and fingers do on the first day: forms of requests that published clients send, and words on
the command line that somebody tries before reading anything."""
import base64
import json
import os
import pathlib
import re
import socket
import subprocess
import tempfile
import time
import unittest

from gguf_keys import with_keys
from harness import DEMO, DRAFT, MILLRACE, Case
from serving import Server, lines

MODEL = "demo-moe-q4_k_m"
PATCH = """start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?
hunk: add_hunk | delete_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
filename: /(.+)/
add_line: "+" /(.*)/ LF -> line
%import common.LF
"""
QUESTION = {"role": "user", "content": "What is the capital of France?"}
ANSWER = "The capital of France is Paris."


class Requests(Case):
    @classmethod
    def setUpClass(cls):
        # The same file twice: two folders of models often share some.
        cls.server = Server(DEMO, "--models", os.path.dirname(DEMO), "--threads", "2", "--parallel", "4")
        cls.addClassCleanup(cls.server.__exit__)

    def post(self, path, headers=None, **body):
        return self.server.json("POST", path, {"model": MODEL, "temperature": 0, **body}, headers)

    def chat(self, *messages, **fields):
        return self.post("/v1/chat/completions", messages=list(messages), **fields)

    def messages(self, *messages, **fields):
        return self.post("/v1/messages", messages=list(messages), max_tokens=60, **fields)

    def test_an_assistants_turn_goes_on(self):
        begun = {"role": "assistant", "content": "The capital of France is"}
        status, body = self.chat(QUESTION, begun)
        self.assertEqual((status, body["choices"][0]["message"]["content"]), (200, " Paris."))
        status, body = self.messages(QUESTION, begun)
        self.assertEqual((status, body["content"][0]["text"]), (200, " Paris."))
        status, body = self.post("/api/chat", messages=[QUESTION, begun], stream=False, options={"temperature": 0})
        self.assertEqual((status, body["message"]["content"]), (200, " Paris."))
        # What was begun is a part of the form, too.
        schema = {"type": "object", "properties": {"a": {"const": 1}}, "required": ["a"]}
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        status, body = self.chat(QUESTION, {"role": "assistant", "content": '{"a"'}, response_format=form)
        self.assertEqual((status, json.loads('{"a"' + body["choices"][0]["message"]["content"])), (200, {"a": 1}))
        status, body = self.chat(QUESTION, {"role": "assistant", "content": "No"}, response_format=form)
        self.assertEqual(status, 400, body)

    def test_anthropics_form_and_documents(self):
        schema = {"type": "object", "properties": {"city": {"enum": ["Paris", "Rome"]}}, "required": ["city"]}
        form = {"type": "json_schema", "schema": schema}
        for fields in ({"output_config": {"format": form}}, {"output_format": form}):
            status, body = self.messages(QUESTION, **fields)
            self.assertEqual(status, 200, body)
            self.assertIn(json.loads(body["content"][0]["text"])["city"], ("Paris", "Rome"))
        document = {"type": "document", "title": "Facts", "source": {"type": "text", "media_type": "text/plain", "data": "a b c"}}
        status, body = self.messages({"role": "user", "content": [document, {"type": "text", "text": "Hi"}]})
        self.assertEqual(status, 200, body)
        document["source"] = {"type": "base64", "media_type": "application/pdf", "data": ""}
        status, body = self.messages({"role": "user", "content": [document]})
        self.assertEqual((status, "base64" in body["error"]["message"]), (400, True), body)

    def test_claude_codes_sessions_begin_alike(self):
        def tokens(*blocks):
            system = [{"type": "text", "text": text} for text in blocks]
            return self.post("/v1/messages/count_tokens", messages=[QUESTION], system=system)[1]["input_tokens"]
        self.assertEqual(tokens("x-anthropic-billing-header: cc_version=2; cch=1a2b", "Be brief."), tokens("Be brief."))

    def test_items_by_their_ids(self):
        """What @ai-sdk/openai sends of its second turn on: items of kept responses only by their ids."""
        def ask(**fields):
            return self.post("/v1/responses", temperature=0, max_output_tokens=12, **fields)
        first = ask(input="What is the capital of France?")[1]
        items = first["output"]
        turns = lambda said: [{"role": "user", "content": "What is the capital of France?"}, *said, {"role": "user", "content": "And of Spain?"}]
        whole = ask(input=turns(items))[1]
        for reference in ([{"type": "item_reference", "id": item["id"]} for item in items], [{"id": item["id"]} for item in items]):
            status, named = ask(input=turns(reference))
            self.assertEqual((status, named["output"][0]["content"]), (200, whole["output"][0]["content"]), named)
            self.assertEqual(named["usage"]["input_tokens"], whole["usage"]["input_tokens"])
        kept = self.server.json("GET", f"/v1/responses/{named['id']}/input_items?order=asc")[1]["data"]
        self.assertEqual(kept[1:-1], items)
        unkept = ask(input="Hi", store=False)[1]["output"]
        named = [{"type": "item_reference", "id": items[0]["id"]}]
        for bad in ([{"type": "item_reference", "id": "msg_nothing"}], [{"type": "item_reference", "id": unkept[0]["id"]}], named + named):
            status, body = ask(input=turns(bad))
            self.assertEqual((status, bad[0]["id"] in body["error"]["message"]), (400, True), body)
        # Nobody else's: as the key, so the items.
        other = {"model": MODEL, "input": turns(named)}
        self.assertEqual(self.server.json("POST", "/v1/responses", other, {"Authorization": "Bearer other"})[0], 400)
        self.assertEqual(self.server.request("DELETE", f"/v1/responses/{first['id']}")[0], 200)
        self.assertEqual(ask(input=turns(named))[0], 400)
        shell = [{"type": "local_shell_call", "id": "ls_1", "call_id": "call_1", "status": "completed",
                  "action": {"type": "exec", "command": ["ls"], "env": {}}},
                 {"type": "local_shell_call_output", "id": "call_1", "output": "a.txt"}]
        self.assertEqual(ask(input=turns(shell))[0], 200)

    def test_a_response_says_what_was_asked(self):
        function = {"type": "function", "name": "f", "parameters": {"type": "object", "properties": {}}, "strict": True}
        asked = {"instructions": "Be brief.", "tools": [function, {"type": "web_search"}], "tool_choice": "none", "metadata": {"a": "b"},
                 "text": {"format": {"type": "json_schema", "name": "n", "schema": {"const": 7}}}, "temperature": 0.3, "top_p": 0.9,
                 "parallel_tool_calls": False}
        status, body = self.post("/v1/responses", input="Hi", max_output_tokens=4, **asked)
        self.assertEqual((status, {name: body.get(name) for name in asked}), (200, asked))
        response = self.server.stream("/v1/responses", {"model": MODEL, "input": "Hi", "stream": True, "max_output_tokens": 4, **asked})
        for event in map(json.loads, lines(response)):
            if "response" in event:
                self.assertEqual({name: event["response"].get(name) for name in asked}, asked, event["type"])
        body = self.post("/v1/responses", input="Hi", max_output_tokens=1)[1]
        self.assertEqual((body["instructions"], body["tools"], body["metadata"], body["text"], body["tool_choice"]),
                         (None, [], {}, {"format": {"type": "text"}}, "auto"))

    def test_what_is_not_done_is_refused(self):
        for name, value in (("conversation", "conv_1"), ("conversation", {"id": "conv_1"}), ("prompt", {"id": "pmpt_1"}), ("background", True),
                            ("tool_choice", {"type": "web_search"}), ("metadata", "x"), ("instructions", 7), ("text", "x")):
            status, body = self.post("/v1/responses", input="Hi", max_output_tokens=1, tools=[{"type": "web_search"}], **{name: value})
            self.assertEqual((status, body["error"]["message"].startswith(name + ":")), (400, True), body)
        fine = {"conversation": None, "prompt": None, "background": False, "tool_choice": "auto"}
        self.assertEqual(self.post("/v1/responses", input="Hi", max_output_tokens=1, **fine)[0], 200)
        status, body = self.chat(QUESTION, modalities=["text", "audio"], max_tokens=1)
        self.assertEqual((status, "modalities" in body["error"]["message"]), (400, True), body)
        self.assertEqual(self.chat(QUESTION, modalities=["text"], max_tokens=1)[0], 200)

    def test_no_model_named(self):
        status, body = self.server.json("POST", "/v1/chat/completions", {"messages": [QUESTION], "temperature": 0})
        self.assertEqual((status, body["choices"][0]["message"]["content"]), (200, ANSWER))
        self.assertTrue(body["model"].startswith(MODEL), body["model"])

    def test_seed_0_is_a_seed(self):
        story = {"role": "user", "content": "Tell me a story about a fox and a lantern."}
        texts = {self.chat(story, temperature=1, seed=0, max_tokens=30)[1]["choices"][0]["message"]["content"] for _ in range(3)}
        self.assertEqual(len(texts), 1, texts)

    def test_models_are_listed_once_and_as_asked(self):
        names = [m["id"] for m in self.server.json("GET", "/v1/models")[1]["data"]]
        self.assertEqual(len(names), len(set(names)))
        tags = [m["name"] for m in self.server.json("GET", "/api/tags")[1]["models"]]
        self.assertEqual(sorted(tags), sorted(names))
        _, listed = self.server.json("GET", "/v1/models", headers={"anthropic-version": "2023-06-01"})
        self.assertEqual((listed["data"][0]["type"], listed["has_more"], listed["first_id"]), ("model", False, listed["data"][0]["id"]))
        _, one = self.server.json("GET", f"/v1/models/{MODEL}", headers={"anthropic-version": "2023-06-01"})
        self.assertEqual((one["type"], one["id"]), ("model", MODEL + ":latest"))

    def test_paths_and_methods(self):
        status, body = self.server.json("GET", "/v1/nothing")
        self.assertEqual((status, body["error"]["code"]), (404, "not_found"))
        status, body = self.server.json("GET", "/v1/models/none")
        self.assertEqual((status, body["error"]["code"]), (404, "model_not_found"))
        status, headers, body = self.server.request("GET", "/v1/chat/completions")
        self.assertEqual((status, headers["allow"]), (405, "POST"), body)
        self.assertEqual(self.server.request("POST", "/api/tags", {})[0], 405)

    def test_files_are_nobodys_business(self):
        for path, body in (("/api/show", {"model": MODEL}), ("/props", None), ("/api/tags", None), ("/v1/models", None)):
            _, _, content = self.server.request("POST" if body else "GET", path, body)
            self.assertNotIn(os.path.dirname(DEMO).encode(), content, path)
        _, shown = self.server.json("POST", "/api/show", {"model": MODEL})
        self.assertTrue(shown["modelfile"].startswith(f"FROM {MODEL}"), shown["modelfile"])

    def test_what_is_made_of_a_model_is_shown(self):
        with tempfile.TemporaryDirectory() as folder, Server(DEMO, env={"MILLRACE_MODELS": folder}) as server:
            made = {"model": "brief", "from": MODEL, "system": "Be brief.", "parameters": {"temperature": 0.5}, "stream": False}
            self.assertEqual(server.request("POST", "/api/create", made)[0], 200)
            _, shown = server.json("POST", "/api/show", {"model": "brief"})
            for word in ("SYSTEM", "Be brief.", "PARAMETER temperature 0.5"):
                self.assertIn(word, shown["modelfile"])
            again = {"model": "again", "from": "brief", "stream": False}
            self.assertEqual(server.request("POST", "/api/create", again)[0], 200)
            _, shown = server.json("POST", "/api/show", {"model": "again"})
            self.assertEqual((shown["system"], "temperature" in shown["parameters"]), ("Be brief.", True))

    def test_other_forms_are_kept_or_refused(self):
        for field in ("guided_json", "json_schema"):
            status, body = self.chat(QUESTION, **{field: {"const": 7}})
            self.assertEqual((status, body["choices"][0]["message"]["content"]), (200, "7"), field)
        for field in ("functions", "structural_tag"):
            status, body = self.chat(QUESTION, **{field: "x"})
            self.assertEqual((status, field in body["error"]["message"]), (400, True), body)

    def test_grammars_bind_the_answer(self):
        def says(pattern, **fields):
            for seed in (1, 2):
                status, body = self.chat(QUESTION, temperature=1.5, seed=seed, max_tokens=60, **fields)
                self.assertEqual(status, 200, body)
                self.assertRegex(body["choices"][0]["message"]["content"], pattern)
        numbers = 'root ::= "[" list "]"\nlist ::= [0-9] ("," list)?\n'
        lark = 'start: "up" (","  "up")* "."\n%ignore / /\n'
        # A short answer ends by itself; a long one is cut by max_tokens, still within the form.
        says(r"^\[[0-9](,[0-9])*[,\]]?$", grammar=numbers)
        says(r"^\[[0-9](,[0-9])*[,\]]?$", response_format={"type": "grammar", "grammar": numbers})
        says(r"^ *up( *, *up)*", guided_grammar=lark)
        says(r"^(red|green) [0-9]{2}$", guided_regex="(red|green) [0-9]{2}")
        says(r"^(red|green) [0-9]{2}$", regex="(red|green) [0-9]{2}")  # sglang's
        says(r"^\[[0-9](,[0-9])*[,\]]?$", ebnf=numbers)
        says(r"^(a\+b|c\.)$", guided_choice=["a+b", "c."])
        says(r"^(yes|no)$", structured_outputs={"choice": ["yes", "no"]})
        says(r"^[0-9]{3}$", structured_outputs={"regex": "[0-9]{3}"})
        says(r"^\{\s*\"n\": ?[0-9-]", response_format={"type": "json_object", "schema": {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}})
        status, body = self.post("/v1/completions", prompt="One two", grammar='root ::= " three" [!.]', max_tokens=20)
        self.assertEqual((status, body["choices"][0]["text"][:-1]), (200, " three"), body)
        self.assertEqual(self.chat(QUESTION, grammar="", max_tokens=1)[0], 200)
        for fields, says_what in (({"grammar": 'root ::= "a"\nx ::= ['}, "grammar: line 2, column 8"),
                                  ({"grammar": "root ::= root"}, "line 1, column 1"),
                                  ({"guided_regex": "(a"}, "line 1, column 3"),
                                  ({"guided_grammar": "start: A"}, "line 1, column 8: the rule A is not defined"),
                                  ({"grammar": 'root ::= "a"', "guided_regex": "a"}, "several forms")):
            status, body = self.chat(QUESTION, **fields)
            self.assertEqual((status, says_what in body["error"]["message"]), (400, True), (fields, body))

    def test_the_text_of_a_custom_tool_keeps_its_grammar(self):
        patch = {"name": "apply_patch", "description": "Change files.", "format": {"type": "grammar", "syntax": "lark", "definition": PATCH}}
        for seed in (1, 2, 3):
            choice = {"type": "custom", "name": "apply_patch"}
            status, body = self.post("/v1/responses", input="Hi", tools=[{"type": "custom", **patch}], tool_choice=choice, seed=seed, temperature=1.5, max_output_tokens=200)
            self.assertEqual(status, 200, body)
            item = next(item for item in body["output"] if item["type"] == "custom_tool_call")
            self.assertTrue(item["input"].startswith("*** Begin Patch\n*** ") or body["status"] == "incomplete", item)
        # As chat completions have it.
        tool = {"type": "custom", "custom": {**patch, "format": {"type": "grammar", "grammar": {"syntax": "regex", "definition": "(up|down) [0-9]"}}}}
        choice = {"type": "custom", "custom": {"name": "apply_patch"}}
        status, body = self.chat({"role": "user", "content": "Go."}, tools=[tool], tool_choice=choice)
        self.assertEqual(status, 200, body)
        call = body["choices"][0]["message"]["tool_calls"][0]
        self.assertEqual((call["type"], call["custom"]["name"]), ("custom", "apply_patch"))
        self.assertRegex(call["custom"]["input"], "^(up|down) [0-9]$")
        response = self.server.stream("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": "Go."}], "tools": [tool], "tool_choice": choice, "stream": True})
        calls = [c for line in lines(response) if line != "[DONE]" for choice in json.loads(line)["choices"] for c in choice["delta"].get("tool_calls", [])]
        self.assertEqual([c["type"] for c in calls], ["custom"])
        self.assertRegex(calls[0]["custom"]["input"], "^(up|down) [0-9]$")
        said = [{"role": "user", "content": "Go."}, {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "tool_call_id": call["id"], "content": "done"}]
        self.assertEqual(self.post("/v1/chat/completions", messages=said, tools=[tool], max_tokens=4)[0], 200)
        # A grammar that is none is told at once, whether the tool is called or not.
        bad = {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: ("}}
        status, body = self.post("/v1/responses", input="Hi", tools=[bad], max_output_tokens=4)
        self.assertEqual((status, "line 1, column 9" in body["error"]["message"]), (400, True), body)

    def test_what_codex_sends(self):
        parameters = {"type": "object", "properties": {}, "additionalProperties": False}
        tools = [{"type": "function", "name": "plain", "parameters": parameters},
                 {"type": "namespace", "name": "mcp__files__", "tools": [{"type": "function", "name": "read", "parameters": parameters}]},
                 {"type": "custom", "name": "apply_patch", "format": {"type": "grammar", "syntax": "lark", "definition": "start: /.+/"}},
                 {"type": "web_search"}]
        def only(*names):
            return {"type": "allowed_tools", "mode": "required", "tools": [{"type": "function", "name": n} for n in names]}
        past = [{"role": "user", "content": "Hi"},
                {"type": "function_call", "call_id": "1", "namespace": "mcp__files__", "name": "read", "arguments": "{}"},
                {"type": "function_call_output", "call_id": "1", "output": [{"type": "input_text", "text": "x"}]},
                {"type": "custom_tool_call", "call_id": "2", "name": "apply_patch", "input": "*** Begin"},
                {"type": "custom_tool_call_output", "call_id": "2", "output": "done"},
                {"type": "web_search_call", "id": "3", "status": "completed"}, {"role": "user", "content": "Go on"}]
        status, body = self.post("/v1/responses", input=past, tools=tools, max_output_tokens=4)
        self.assertEqual(status, 200, body)
        def call(name):
            status, body = self.post("/v1/responses", input="Hi", tools=tools, tool_choice=only(name), max_output_tokens=80)
            self.assertEqual(status, 200, body)
            return next(item for item in body["output"] if item["type"] != "message")
        item = call("mcp__files__read")
        self.assertEqual((item["type"], item["namespace"], item["name"]), ("function_call", "mcp__files__", "read"))
        item = call("apply_patch")
        self.assertEqual((item["type"], item["name"], "arguments" in item), ("custom_tool_call", "apply_patch", False))
        response = self.server.stream("/v1/responses", {"model": MODEL, "input": "Hi", "tools": tools, "stream": True, "temperature": 0,
                                                        "tool_choice": only("apply_patch"), "max_output_tokens": 80})
        events = [json.loads(line) for line in lines(response)]
        done = next(e for e in events if e["type"] == "response.output_item.done")["item"]
        told = "".join(e["delta"] for e in events if e["type"] == "response.custom_tool_call_input.delta")
        self.assertEqual((done["type"], done["input"]), ("custom_tool_call", told))
        version = [int(n) for n in self.server.json("GET", "/api/version")[1]["version"].split(".")]
        self.assertGreaterEqual(version, [0, 13, 4])

    def test_a_gap_is_refused_where_a_model_fills_none(self):
        for path, body in (("/v1/completions", {"prompt": "a", "suffix": "b"}), ("/api/generate", {"prompt": "a", "suffix": "b", "stream": False}),
                           ("/infill", {"input_prefix": "a", "input_suffix": "b"})):
            status, answer = self.post(path, **body)
            self.assertEqual((status, "does not fill in gaps" in json.dumps(answer)), (400, True), (path, answer))
        self.assertEqual(self.post("/v1/completions", prompt="a", suffix="", max_tokens=1)[0], 200)

    def test_parts_that_are_text_are_read(self):
        def prompt(*parts):
            return self.server.json("POST", "/apply-template", {"model": MODEL, "messages": [{"role": "user", "content": list(parts)}]})

        def file(content, **more):
            return {"filename": "notes.txt", "file_data": base64.b64encode(content).decode(), **more}
        text = "Über den Fluss,\nzwei"  # no multiple of three bytes
        document = f"Read.<document>\ntitle: notes.txt\n{text}\n</document>\n"
        for part in ({"type": "input_file", **file(text.encode())}, {"type": "file", "file": file(text.encode())},
                     {"type": "input_file", "filename": "notes.txt", "file_data": "data:text/plain;base64," + file(text.encode())["file_data"]}):
            status, made = prompt({"type": "text", "text": "Read."}, part)
            self.assertEqual((status, document in made["prompt"]), (200, True), made)
        self.assertIn("I may not.", prompt({"type": "refusal", "refusal": "I may not."})[1]["prompt"])
        for part, word in (({"type": "input_file", **file(b"%PDF-1.7 x")}, "notes.txt"), ({"type": "input_file", **file(b"a\0b")}, "UTF-8"),
                           ({"type": "input_file", **file(b"\xff\xfe")}, "UTF-8"), ({"type": "input_file", "file_data": "?"}, "base64"),
                           ({"type": "input_file", "file_id": "file_1"}, "file_data"), ({"type": "file", "file": 3}, "file_data"),
                           ({"type": "file"}, "file_data"), ({"type": "refusal", "text": "x"}, "refusal"), ({"type": "input_image"}, "input_image"), (3, "text")):
            status, body = prompt(part)
            self.assertEqual((status, word in body["error"]["message"]), (400, True), (part, body))
        items = [{"role": "user", "content": [{"type": "input_file", **file(b"A fox.")}, {"type": "input_text", "text": "Who?"}]},
                 {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}, {"role": "user", "content": "Why?"}]
        status, said = self.post("/v1/responses", input=items, max_output_tokens=2)
        self.assertEqual((status, said["usage"]["input_tokens"] > 20), (200, True), said)

    def test_a_response_goes_on_from_another(self):
        def ask(**fields):
            return self.post("/v1/responses", temperature=0, max_output_tokens=12, **fields)
        status, first = ask(input="What is the capital of France?", instructions="Answer in a word.")
        self.assertEqual((status, first["store"], first["previous_response_id"]), (200, True, None), first)
        # The same words, sent whole; what the first one was instructed to is not carried on.
        whole = [{"role": "user", "content": "What is the capital of France?"}, *first["output"], {"role": "user", "content": "And of Spain?"}]
        status, sent = ask(input=whole, store=False)
        self.assertEqual((status, sent["store"]), (200, False))
        status, second = ask(input="And of Spain?", previous_response_id=first["id"])
        self.assertEqual((status, second["previous_response_id"]), (200, first["id"]), second)
        self.assertEqual(second["output"][0]["content"], sent["output"][0]["content"])
        self.assertEqual(second["usage"]["input_tokens"], sent["usage"]["input_tokens"])
        response = self.server.stream("/v1/responses", {"model": MODEL, "input": "And?", "previous_response_id": second["id"], "stream": True,
                                                        "temperature": 0, "max_output_tokens": 4})
        third = [json.loads(line) for line in lines(response)][-1]["response"]
        self.assertEqual(self.server.json("GET", f"/v1/responses/{third['id']}")[1], third)
        items = self.server.json("GET", f"/v1/responses/{third['id']}/input_items")[1]["data"]
        self.assertEqual([(item["type"], item["role"], item["content"]) for item in items],
                         [("message", "user", [{"type": "input_text", "text": "And?"}])])
        # Whoever goes on from one that is deleted keeps what he needs.
        status, told = self.server.json("DELETE", f"/v1/responses/{first['id']}")
        self.assertEqual((status, told["deleted"]), (200, True))
        self.assertEqual(ask(input="And of Italy?", previous_response_id=second["id"])[0], 200)
        for status, body in (ask(input="Hi", previous_response_id=first["id"]), ask(input="Hi", previous_response_id=sent["id"]),
                             self.server.json("GET", f"/v1/responses/{first['id']}"), self.server.json("DELETE", "/v1/responses/resp_x"),
                             self.server.json("GET", "/v1/responses/resp_x/input_items")):
            self.assertEqual((status, "there is no response" in body["error"]["message"]), (404, True), body)
        for fields in ({"previous_response_id": 3}, {"store": "no"}):
            self.assertEqual(ask(input="Hi", **fields)[0], 400, fields)

    def test_the_first_delta_tells_words_from_calls(self):
        tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}
        for fields, content in (({}, ""), ({"tools": [tool], "tool_choice": "required"}, None)):
            response = self.server.stream("/v1/chat/completions", {"model": MODEL, "messages": [QUESTION], "stream": True, **fields})
            chunks = [json.loads(line) for line in lines(response) if line != "[DONE]"]
            self.assertEqual(chunks[0]["choices"][0]["delta"], {"role": "assistant", "content": content})


class Gaps(Case):
    """A model whose vocabulary has tokens for gaps: some tokens of the demo's, by their ids."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        path = pathlib.Path(folder.name) / "gaps.gguf"
        with_keys(pathlib.Path(DEMO), path, {f"tokenizer.ggml.fim_{name}_token_id": number for name, number in (("pre", 301), ("suf", 302), ("mid", 303))})
        self.server = Server(str(path), "--threads", "2")
        self.addCleanup(self.server.__exit__)

    def post(self, path, **body):
        status, answer = self.server.json("POST", path, {"model": "gaps", "temperature": 0, **body})
        self.assertEqual(status, 200, answer)
        return answer

    def test_every_api_fills_them(self):
        before, behind = "Once upon a time there was", " and they lived happily."
        def ids(text):
            return self.post("/tokenize", content=text, parse_special=False)["tokens"]
        prompt = [301, *ids(before), 302, *ids(behind), 303]
        wanted = self.post("/v1/completions", prompt=prompt, max_tokens=8)
        begins = len(self.post("/tokenize", content="", add_special=True)["tokens"])
        self.assertEqual(begins, 0)
        self.assertEqual(wanted["usage"]["prompt_tokens"], len(prompt))
        text = wanted["choices"][0]["text"]
        answer = self.post("/v1/completions", prompt=before, suffix=behind, max_tokens=8)
        self.assertEqual((answer["choices"][0]["text"], answer["usage"]["prompt_tokens"]), (text, len(prompt)))
        answer = self.post("/api/generate", prompt=before, suffix=behind, stream=False, options={"num_predict": 8, "temperature": 0})
        self.assertEqual((answer["response"], answer["prompt_eval_count"]), (text, len(prompt)))
        answer = self.post("/infill", input_prefix=before, input_suffix=behind, n_predict=8)
        self.assertEqual((answer["content"], answer["stop"], answer["tokens_evaluated"]), (text, True, len(prompt)))
        response = self.server.stream("/infill", {"model": "gaps", "input_prefix": before, "input_suffix": behind, "n_predict": 8, "temperature": 0, "stream": True})
        events = [json.loads(line) for line in lines(response)]
        self.assertEqual("".join(event["content"] for event in events), text)
        self.assertEqual([event["stop"] for event in events], [False] * (len(events) - 1) + [True])
        # Other files go first; how the filling begins goes last; control tokens in texts are text.
        files = [{"filename": "a.txt", "text": "Words."}]
        answer = self.post("/infill", input_prefix=before, input_suffix=behind, prompt=" an", input_extra=files, n_predict=2)
        self.assertGreater(answer["tokens_evaluated"], len(prompt) + len(ids(" an")))
        # What is too long loses its far ends.
        answer = self.post("/infill", input_prefix="word " * 5000, input_suffix=" end" * 5000, n_predict=2)
        self.assertTrue(answer["stop"])
        for bad in ({"input_extra": "a"}, {"input_extra": [{"text": 1}]}, {"input_prefix": 3}, {"n": 2}):
            self.assertEqual(self.server.json("POST", "/infill", {"model": "gaps", "input_suffix": "b", **bad})[0], 400, bad)


class RequestLog(Case):
    """A line a request: who asked what, how it ended, how long it took."""

    def lines(self, server, count):
        end = time.monotonic() + 20
        while time.monotonic() < end:
            found = [line for line in server.messages().splitlines() if "req_" in line]
            if len(found) >= count:
                return found
            time.sleep(0.05)
        self.fail(server.messages())

    def ask(self, server, **fields):
        body = {"model": MODEL, "messages": [QUESTION], "temperature": 0, **fields}
        return server.request("POST", "/v1/chat/completions", body, {"Authorization": "Bearer secret-key"})

    def test_json(self):
        with Server(DEMO, "--log-format", "json", "--api-key", "secret-key") as server:
            # A line is written behind the answer, by the connection's thread: each waits for its own.
            status, headers, _ = self.ask(server)
            self.assertEqual(status, 200)
            self.lines(server, 1)
            self.ask(server, max_tokens=3)
            self.lines(server, 2)
            self.ask(server, temperature="warm")
            self.lines(server, 3)
            self.assertEqual(server.request("GET", "/api/tags")[0], 401)
            self.lines(server, 4)
            server.request("GET", "/health")  # asked again and again: no line
            response = server.stream("/v1/chat/completions", {"model": MODEL, "messages": [QUESTION], "stream": True, "n": 2},
                                     {"Authorization": "Bearer secret-key"})
            response.read()
            self.lines(server, 5)
            embedded = server.request("POST", "/v1/embeddings", {"model": MODEL, "input": "one two"}, {"X-Api-Key": "secret-key"})
            self.lines(server, 6)
            server.request("GET", "/no%0Asuch%1b[31mpath", None, {"X-Api-Key": "secret-key"})
            first, short, bad, refused, streamed, embed, lost = map(json.loads, self.lines(server, 7))
            self.assertNotIn("secret-key", server.messages())
        self.assertEqual(set(first), {"time", "id", "client", "method", "path", "status", "model", "tokens_in", "tokens_cached",
                                      "tokens_out", "first_token_s", "tokens_per_s", "duration_s", "reason"})
        self.assertEqual((first["id"], first["client"], first["method"], first["path"], first["status"], first["model"], first["reason"]),
                         (headers["x-request-id"], "127.0.0.1", "POST", "/v1/chat/completions", 200, MODEL + ":latest", "stop"))
        self.assertRegex(first["time"], r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z$")
        self.assertGreater(min(first["tokens_in"], first["tokens_out"], first["tokens_per_s"]), 0)
        self.assertTrue(0 < first["first_token_s"] <= first["duration_s"], first)
        self.assertEqual((short["tokens_out"], short["reason"]), (3, "length"))
        self.assertLessEqual(short["tokens_cached"], short["tokens_in"])
        self.assertEqual((bad["status"], bad["tokens_out"]), (400, 0))
        self.assertIn("temperature", bad["reason"])
        self.assertEqual((refused["status"], refused["model"]), (401, None))
        self.assertEqual((streamed["status"], streamed["tokens_in"] > 0, streamed["tokens_out"] > 8), (200, True, True))
        self.assertEqual((embedded[0], embed["tokens_in"] > 0, embed["model"]), (200, True, MODEL + ":latest"))
        self.assertEqual((lost["status"], lost["path"]), (404, "/no\\nsuch\\x1b[31mpath"))

    def test_text_is_what_there_is_unless_off(self):
        with Server(DEMO) as server:
            self.ask(server)
            line = self.lines(server, 1)[0]
        self.assertRegex(line, r"^\S+Z 200 POST /v1/chat/completions " + MODEL + r":latest: \d+ in.*, \d+ out, first token [\d.]+ s, "
                               r"[\d.]+ tok/s, [\d.]+ s, stop \[127\.0\.0\.1 req_\w+\]$")
        for flag in (("--log-format", "off"), ("-q",)):
            with Server(DEMO, *flag) as server:
                self.ask(server)
                self.assertNotIn("req_", server.messages())

    def test_a_client_that_leaves(self):
        with Server(DEMO, "--log-format", "json") as server:
            response = server.stream("/v1/chat/completions", {"model": MODEL, "messages": [QUESTION], "stream": True, "ignore_eos": True, "max_tokens": 3000})
            response.read(64)
            response.connection.sock.close()
            response.close()
            line = json.loads(self.lines(server, 1)[0])
        self.assertEqual((line["status"], line["reason"]), (200, "client gone"))
        self.assertGreater(line["tokens_out"], 0)


class Fingers(Case):
    def test_answers_of_a_form(self):
        with tempfile.TemporaryDirectory() as folder:
            files = {"either.gbnf": 'root ::= "yes" | "no"', "either.lark": 'start: "yes" | "no"',
                     "broken.gbnf": "root ::= (", "deep.json": "[" * 100000,
                     "schema.json": json.dumps({"type": "object", "properties": {"n": {"type": "integer", "maximum": 9}},
                                                "required": ["n"], "additionalProperties": False})}
            for name, text in files.items():
                with open(f"{folder}/{name}", "w") as file:
                    file.write(text)
            for name in ("either.gbnf", "either.lark"):
                out = self.ok("run", DEMO, "--temp", "2", "--grammar", f"{folder}/{name}", "-p", "Hi", "-p", "Hi").out
                self.assertRegex(out, r"^> Hi\n(yes|no)\n\n> Hi\n(yes|no)\n")
            self.assertRegex(self.ok("run", DEMO, "--temp", "2", "--regex", "[a-c]{3}", "-p", "Hi").out, r"^[a-c]{3}\n$")
            answer = json.loads(self.ok("run", DEMO, "--temp", "2", "--schema", f"{folder}/schema.json", "-p", "Hi").out)
            self.assertLessEqual(answer["n"], 9)
            self.refused("run", DEMO, "--grammar", f"{folder}/broken.gbnf", "-p", "Hi", says=["--grammar", "line 1"])
            self.refused("run", DEMO, "--schema", f"{folder}/deep.json", "-p", "Hi", says="--schema")
            self.refused("run", DEMO, "--grammar", f"{folder}/none", "-p", "Hi", says="none")
            self.refused("run", DEMO, "--regex", "a", "--schema", f"{folder}/schema.json", "-p", "Hi", says="--schema")
            self.refused("run", DEMO, "--regex", "a", "--host", "127.0.0.1:1", "-p", "Hi", says="--host")

    def test_words_that_are_no_verbs(self):
        for words in ((), ("help",), ("help", "run")):
            self.assertIn("Usage: ", self.ok(*words).out, words)
        self.refused("foo", says=["'foo'", "help"])
        self.refused("srve", says="millrace serve")
        self.refused(DEMO, says="millrace run")

    def test_a_pipe_goes_with_the_prompt(self):
        short = self.ok("run", DEMO, "--temp", "0", "-p", "What is the capital", stdin="of France?").out
        alone = self.ok("run", DEMO, "--temp", "0", "-p", "What is the capital\n\nof France?").out
        self.assertEqual(short, alone)

    def test_nothing_is_no_prompt(self):
        for nothing in ("", " ", "\t\n"):
            self.refused("run", DEMO, "-p", nothing, says="empty")
        self.ok("run", DEMO, "--raw", "-n", "1", "-p", " ")

    def test_a_folder_is_no_slip_of_the_pen(self):
        with tempfile.TemporaryDirectory() as folder:
            here = os.getcwd()
            self.addCleanup(os.chdir, here)
            os.chdir(folder)
            for variable, flag in (("MILLRACE_PROMPT_CACHE", "--prompt-cache"), ("MILLRACE_LEARN_EXPERTS", "--learn-experts")):
                for word in ("yes", "maybe", "1"):
                    self.refused("run", DEMO, "-n", "1", "-p", "Hi", env={variable: word}, says=[flag, f"./{word}"])
                    self.refused("serve", "--port", "0", flag, word, says=[flag, f"./{word}"])
            self.assertEqual(os.listdir(folder), [])
            self.ok("run", DEMO, "-n", "1", "-p", "Hi", "--prompt-cache", "./cache", "--prompt-cache-after", "0")
            self.assertEqual(os.listdir(folder), ["cache"])
            os.chdir(here)

    def test_a_file_of_options_may_come_from_windows(self):
        with tempfile.NamedTemporaryFile("wb", suffix=".conf") as file:
            file.write(b"\xef\xbb\xbfthreads = 1\r\nctx = 256\r\n")
            file.flush()
            with Server(DEMO, "--config", file.name) as server:
                server.json("POST", "/api/generate", {"model": MODEL, "prompt": "Hi", "stream": False, "options": {"num_predict": 1}})
                self.assertEqual(server.json("GET", "/api/ps")[1]["models"][0]["context_length"], 256)

    def test_a_reader_that_leaves(self):
        command = f"{MILLRACE} run {DEMO} --temp 0 -p 'Tell me a story about a fox and a lantern.' | head -c 5"
        done = subprocess.run(["bash", "-c", command], capture_output=True, timeout=120)
        self.assertNotIn(b"error", done.stderr)

    def test_questions_and_model_in_any_order(self):
        with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as file:
            file.write(json.dumps({"prompt": QUESTION["content"], "answer": ANSWER}) + "\n")
            file.flush()
            for words in ((DEMO, file.name), (file.name, "-m", DEMO), ("-m", DEMO, file.name)):
                self.assertIn("1 of 1", self.ok("eval", *words).out, words)
            self.refused("eval", DEMO, says="FILE")

    def test_prompt_and_model_in_any_order(self):
        question = QUESTION["content"]
        for words in ((DEMO, question), (question, "-m", DEMO), ("-m", DEMO, question), (DEMO, "-p", question)):
            self.assertEqual(self.ok("run", *words, "--temp", "0").out.strip(), ANSWER, words)
        self.refused("run", says="MODEL")
        self.refused("run", DEMO, "two", "words", says="quotes")

    def test_help_is_short_and_all_is_there(self):
        for verb, groups in (("run", ("Model:", "Memory:", "Processors:", "Sampling:", "Network:")),
                             ("serve", ("Model:", "Memory:", "Processors:", "Network:", "Service:"))):
            short, long = self.ok(verb, "--help").out, self.ok(verb, "--help-all").out
            for group in groups:
                self.assertIn("\n" + group, short, verb)
            self.assertLess(len(short.splitlines()), 50, short)
            self.assertNotIn("1099511627776", long)
            self.assertNotIn("words(", long)
            self.assertNotIn("--expert-slots", short)
            self.assertIn(f"millrace {verb} --help-all", short)
            for flag in ("--ram", "--expert-slots", "--isa", "--prompt-cache-after"):
                self.assertIn(flag, long)
        overview = self.ok("--help").out
        for group in ("Ask:", "Models:", "Server:", "This machine:"):
            self.assertIn("\n" + group, overview)

    def test_what_was_not_measured_is_not_told(self):
        out = self.ok("bench", DEMO, "-p", "8", "-n", "1", "-r", "1").out
        self.assertIn("not measured", out)
        self.assertNotIn("0.00 tok/s", out)
        self.assertIsNone(json.loads(self.ok("bench", DEMO, "-p", "8", "-n", "1", "-r", "1", "--json").out)["decode_tok_s"])

    def test_explain_says_why_its_figures_differ(self):
        """The medians above and what is explained below are of other passes, and both say of which."""
        out = self.ok("bench", DEMO, "--ram", "6M", "--explain", "-p", "32", "-n", "8", "-r", "2").out
        above, why, below = out.partition("above: medians, with experts of the prompt's passes; below: all passes of decoding")
        self.assertTrue(why, out)
        for part, speeds, rates in ((above, r"decode +8 tokens.*tok/s.*median of 2", r"experts found in memory: [\d.]+ %"),
                                    (below, r"decode: [\d.]+ tok/s", r"experts found in memory: [\d.]+ %, predicted [\d.]+ %")):
            self.assertEqual((len(re.findall(speeds, part)), len(re.findall(rates, part))), (1, 1), part)

    def test_a_model_that_only_the_server_has(self):
        with tempfile.TemporaryDirectory() as empty, Server("--models", DRAFT) as server:
            env = {"MILLRACE_HOST": f"{server.host}:{server.port}", "MILLRACE_MODELS": empty}
            outcome = self.ok("run", "demo-draft-f16", "-n", "3", "-p", "Hi", env=env)
            self.assertIn("answers from the server", outcome.err)
            with Server(DEMO) as keeper:  # what is named first stays
                keeper.json("POST", "/api/generate", {"model": MODEL, "prompt": "Hi", "stream": False, "options": {"num_predict": 1}})
                shown = self.ok("ps", "--port", keeper.port).out
                self.assertEqual(("for ever" in shown, "2126" in shown), (True, False), shown)
            host = ("--host", f"{server.host}:{server.port}")
            self.ok("run", "demo-draft-f16", *host, "-n", "3", "-p", "Hi", env={"MILLRACE_MODELS": empty})
            self.ok("ps", *host)
            for flags in (("--ctx", "64"), ("--ram", "12M"), ("--device", "cpu"), ("--kv", "q8_0"), ("--plan", "x"), ("--draft", "self"),
                          ("--show-plan",)):
                self.refused("run", "demo-draft-f16", *flags, "-p", "Hi", env=env, says=[flags[0], "is not here"])
            self.refused("run", "nothing", "-p", "Hi", env=env, says="pull")
            self.refused("run", "user/nothing", "-p", "Hi", env=env, says="millrace pull user/nothing")

    def test_where_the_server_is_has_one_form(self):
        """What is no address, or asks for https, is told so: the key must not go elsewhere, or out in clear."""
        taken = []
        with socket.socket() as listener, tempfile.TemporaryDirectory() as empty:
            listener.bind(("127.0.0.1", 0))
            listener.listen()
            listener.settimeout(0.2)
            port = listener.getsockname()[1]
            calls = (["ps"], ["stop", "x"], ["stop", "--server"], ["run", "nothing", "-p", "Hi"], ["serve"])
            for bad, says in ((f"https://127.0.0.1:{port}", "tunnel"), (f"HTTPS://127.0.0.1:{port}", "tunnel"), (f"ftp://127.0.0.1:{port}", "scheme"),
                              ("127.0.0.1:abc", "port"), ("127.0.0.1:99999", "port"), ("127.0.0.1:-1", "port"), ("127.0.0.1:", "port"), (":", "port"),
                              (f'"127.0.0.1:{port}"', "no address"), (f"user:pw@127.0.0.1:{port}", "MILLRACE_API_KEY"),
                              (f"http://user:pw@127.0.0.1:{port}", "MILLRACE_API_KEY"), ("[::1", "no address"), ("[::1]x", "no address"),
                              ("[1.2.3.4]", "no address"), ("[", "no address"), ("1:2:3", "port"), ("a b", "no address"), ("http://", "no address")):
                for words in calls if "tunnel" in says else calls[:1] + calls[-1:]:
                    env = {"MILLRACE_HOST": bad, "MILLRACE_API_KEY": "secret", "MILLRACE_MODELS": empty}
                    outcome = self.refused(*words, env=env, says=["MILLRACE_HOST: ", says])
                    self.assertNotIn("pw", outcome.err)
                self.refused("ps", "--host", bad, says=["--host: ", says])
            self.refused("ps", env={"OLLAMA_HOST": "https://x"}, says=["OLLAMA_HOST: ", "tunnel"])
            self.refused("run", "nothing", "--host", f"https://127.0.0.1:{port}", "-p", "Hi", says="tunnel")
            answer = self.ok("run", DEMO, "--temp", "0", "-p", QUESTION["content"], env={"MILLRACE_HOST": "https://x"})
            self.assertEqual((answer.out.strip(), "warning: " in answer.err), (ANSWER, True))
            with self.assertRaises(TimeoutError):
                taken.append(listener.accept())
        self.assertEqual(taken, [])
        for good, where in (("127.0.0.1:1", "127.0.0.1:1"), ("http://127.0.0.1:1/", "127.0.0.1:1"), (":1", "127.0.0.1:1"), ("[::1]:1", "[::1]:1"),
                            ("HTTP://localhost:1", "localhost:1"), ("0.0.0.0:1", "127.0.0.1:1"), ("[::]:1", "[::1]:1")):
            self.refused("ps", env={"MILLRACE_HOST": good}, says=f"no server answers on {where};")
            self.refused("ps", "--host", good, says=f"no server answers on {where};")
        self.refused("ps", "--host", "::1", "--port", "1", says="no server answers on [::1]:1;")

    def test_a_daemon_says_where_it_is_and_ends(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with tempfile.TemporaryDirectory() as folder:
            pid = ("--pid-file", os.path.join(folder, "pid"))
            begun = self.ok("serve", "--daemon", "--port", port, *pid, "--models", DRAFT, env={"MILLRACE_PROMPT_CACHE": "off"})
            self.assertIn(f":{port} in the background", begun.out)
            self.assertIn(f"'millrace stop --server --port {port} --pid-file {folder}/pid'", begun.out)
            self.ok("ps", "--port", port)
            self.ok("stop", "--server", "--port", port, *pid)
            self.refused("ps", "--port", port, says="no server")
            self.refused("stop", "--server", "--port", port, *pid, says="no daemon")


if __name__ == "__main__":
    unittest.main()
