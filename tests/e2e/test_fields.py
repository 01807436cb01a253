"""What requests ask for and answers say, field by field: as official packages send and read it, and as other servers answer."""
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

from harness import DEMO, ROOT, Case, run
from pypi import python_with
from serving import Server, lines

MODEL = "demo-moe-q4_k_m"
QUESTION = {"role": "user", "content": "What is the capital of France?"}
TOOL = {"name": "look_up", "description": "Looks something up.", "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]}}
TEXT = "The capital of France is Paris. The capital of Italy is Rome."


class Served(Case):
    @classmethod
    def setUpClass(cls):
        cls.server = Server(DEMO, "--threads", "2", "--parallel", "4")
        cls.addClassCleanup(cls.server.__exit__)

    def post(self, path, **body):
        return self.server.json("POST", path, {"model": MODEL, "temperature": 0, **body})

    def good(self, path, **body):
        status, answer = self.post(path, **body)
        self.assertEqual(status, 200, answer)
        return answer

    def chat(self, *messages, **fields):
        return self.post("/v1/chat/completions", messages=list(messages) or [QUESTION], **fields)

    def messages(self, *messages, **fields):
        return self.post("/v1/messages", messages=list(messages) or [QUESTION], **{"max_tokens": 30, **fields})

    def events(self, path, **body):
        return [json.loads(line) for line in lines(self.server.stream(path, {"model": MODEL, "temperature": 0, "stream": True, **body}))
                if line != "[DONE]"]


class Prompts(Served):
    def echo(self, prompt=TEXT, **fields):
        return self.good("/v1/completions", prompt=prompt, **{"echo": True, "logprobs": 1, "max_tokens": 0, **fields})["choices"][0]

    def check_offsets(self, text, logprobs):
        for token, offset in zip(logprobs["tokens"], logprobs["text_offset"]):
            if "\ufffd" not in token:
                self.assertEqual(text[offset:offset + len(token)], token)
        self.assertEqual("".join(logprobs["tokens"]), text)

    def test_an_echo_has_the_prompts_log_probabilities(self):
        for fields in ({}, {"max_tokens": 3}):
            choice = self.echo(**fields)
            found = choice["logprobs"]
            self.check_offsets(choice["text"], found)
            self.assertTrue(choice["text"].startswith(TEXT))
            self.assertEqual({len(found[name]) for name in found}, {len(found["tokens"])})
            self.assertTrue(all(value is not None and value <= 0 for value in found["token_logprobs"][1:]))
            self.assertTrue(all(len(top) == 1 for top in found["top_logprobs"][1:]))

    def test_they_are_those_of_the_same_tokens_in_an_answer(self):
        prompt = "The capital of France is"
        answer = self.good("/v1/completions", prompt=prompt, max_tokens=6, logprobs=2)["choices"][0]
        count = len(answer["logprobs"]["tokens"])
        echo = self.echo(prompt + answer["text"])["logprobs"]
        self.assertEqual(echo["tokens"][-count:], answer["logprobs"]["tokens"])
        for one, other in zip(echo["token_logprobs"][-count:], answer["logprobs"]["token_logprobs"]):
            self.assertAlmostEqual(one, other, delta=0.05)
        self.assertEqual([max(top, key=top.get) for top in echo["top_logprobs"][-count:]], echo["tokens"][-count:])

    def test_ids_batches_and_streams_are_alike(self):
        ids = self.good("/tokenize", content=TEXT)["tokens"]
        whole = self.echo()
        of_ids = self.echo(ids)
        self.assertEqual(of_ids["text"], TEXT)
        self.assertEqual(of_ids["logprobs"]["tokens"], whole["logprobs"]["tokens"])
        both = self.good("/v1/completions", prompt=[ids, ids], echo=True, logprobs=1, max_tokens=1)["choices"]
        self.assertEqual(both[0]["logprobs"], both[1]["logprobs"])
        for prompt in (TEXT, ids):
            chunks = self.events("/v1/completions", prompt=prompt, echo=True, logprobs=1, max_tokens=4)
            text = "".join(chunk["choices"][0]["text"] for chunk in chunks)
            joined = {name: [] for name in ("tokens", "text_offset", "token_logprobs", "top_logprobs")}
            for chunk in chunks:
                for name, values in (chunk["choices"][0]["logprobs"] or {}).items():
                    joined[name] += values
            self.check_offsets(text, joined)
            self.assertEqual(joined, self.echo(prompt, max_tokens=4)["logprobs"])

    def test_offsets_count_characters(self):
        text = "Grüße aus Zürich, 東京 und 🚀!"
        choice = self.echo(text)
        offsets = choice["logprobs"]["text_offset"]
        self.assertEqual(choice["text"], text)
        self.assertEqual(offsets, sorted(offsets))
        self.assertLess(offsets[-1], len(text))

    def test_prompt_logprobs_as_vllm_has_them(self):
        for choice in (self.good("/v1/completions", prompt=TEXT, max_tokens=1, prompt_logprobs=2)["choices"][0],
                       self.good("/v1/chat/completions", messages=[QUESTION], max_tokens=1, prompt_logprobs=2)):
            first, *others = choice["prompt_logprobs"]
            self.assertIsNone(first)
            for one in others:
                self.assertIn(len(one), (2, 3))
                best = min(one.values(), key=lambda token: token["rank"])
                self.assertEqual(best["logprob"], max(token["logprob"] for token in one.values()))
        self.assertEqual(self.post("/v1/completions", prompt=TEXT, stream=True, prompt_logprobs=2)[0], 400)

    def test_lm_eval_scores_as_perplexity_does(self):
        python = python_with("lm-eval", "lm_eval[api]==0.4.13")
        words = "The capital of {} is {}. People there speak {}, and the weather is {} today."
        places = ("France Paris French", "Italy Rome Italian", "Spain Madrid Spanish", "Japan Tokyo Japanese", "Egypt Cairo Arabic")
        texts = [words.format(*place.split(), weather) for place in places for weather in ("mild", "cold", "hot", "windy")]
        self.assertEqual(len(texts), 20)
        items, expected = [], []
        with tempfile.TemporaryDirectory() as folder:
            for text in texts:
                tokens = self.good("/tokenize", content=text, add_special=True, with_pieces=True)["tokens"]
                bare = self.good("/tokenize", content=text)["tokens"]
                self.assertEqual(len(tokens), len(bare), "the demo model puts a BOS first: give the items one, too")
                head = tokens[0]["piece"]
                items.append({"head": head, "rest": text[len(head):]})
                path = pathlib.Path(folder, "text")
                path.write_text(text)
                done = run("perplexity", DEMO, "-f", path, "--ctx", len(tokens), "--stride", len(tokens) - 1, "--threads", "2")
                self.assertEqual(done.code, 0, done.err)
                value = float(re.search(r"perplexity\D+([0-9.]+)", done.out)[1])
                expected.append(-(len(tokens) - 1) * math.log(value))
            pathlib.Path(folder, "items.jsonl").write_text("".join(json.dumps(item) + "\n" for item in items))
            pathlib.Path(folder, "capitals.yaml").write_text(
                "task: capitals\ndataset_path: json\ndataset_kwargs:\n  data_files:\n    test: " + folder + "/items.jsonl\ntest_split: test\n"
                "output_type: loglikelihood\ndoc_to_text: '{{head}}'\ndoc_to_target: '{{rest}}'\ntarget_delimiter: ''\n"
                "metric_list:\n  - metric: perplexity\n  - metric: acc\n")
            arguments = f"model={MODEL},base_url={self.server.url}/v1/completions,num_concurrent=1,max_length=1024,tokenizer_backend=remote"
            done = subprocess.run([python, "-m", "lm_eval", "--model", "local-completions", "--model_args", arguments, "--tasks", "capitals",
                                   "--include_path", folder, "--output_path", folder + "/out", "--log_samples"],
                                  capture_output=True, text=True, timeout=600, env={**os.environ, "HF_HOME": folder, "HF_HUB_OFFLINE": "1"})
            self.assertEqual(done.returncode, 0, done.stderr[-3000:])
            samples = [json.loads(line) for path in pathlib.Path(folder, "out").rglob("samples_*.jsonl") for line in path.read_text().splitlines()]
        self.assertEqual(len(samples), 20)
        for sample in samples:
            found = float(sample["filtered_resps"][0][0])
            self.assertAlmostEqual(found, expected[sample["doc_id"]], delta=0.02 * abs(expected[sample["doc_id"]]) + 0.02)


class Answers(Served):
    def test_stop_sequences_are_told(self):
        status, body = self.messages(stop_sequences=["Paris", "Rome"])
        self.assertEqual((status, body["stop_reason"], body["stop_sequence"]), (200, "stop_sequence", "Paris"), body)
        last = [event for event in self.events("/v1/messages", messages=[QUESTION], max_tokens=30, stop_sequences=["Paris"]) if event["type"] == "message_delta"]
        self.assertEqual(last[0]["delta"], {"stop_reason": "stop_sequence", "stop_sequence": "Paris"})
        status, body = self.messages(stop_sequences=["Berlin"])
        self.assertEqual((body["stop_reason"], body["stop_sequence"]), ("end_turn", None))

    def test_prompts_that_are_too_long_are_refused_in_each_apis_words(self):
        long = {"role": "user", "content": "word and word " * 4000}
        status, body = self.messages(long)
        self.assertEqual(status, 400)
        self.assertRegex(body["error"]["message"], r"^prompt is too long: \d+ tokens > \d+ maximum$")
        status, body = self.post("/v1/messages/count_tokens", messages=[long])
        self.assertEqual(status, 200, body)
        self.assertGreater(body["input_tokens"], 4000)
        status, body = self.chat(long)
        self.assertEqual((status, body["error"]["code"]), (400, "context_length_exceeded"))
        self.assertIn("This model's maximum context length is", body["error"]["message"])
        status, body = self.post("/v1/responses", input=long["content"])
        self.assertEqual((status, body["error"]["code"]), (400, "context_length_exceeded"))
        self.assertIn("exceeds the context window", body["error"]["message"])
        self.assertEqual(self.post("/v1/responses", input=long["content"], truncation="auto", max_output_tokens=2)[0], 200)
        status, body = self.post("/api/chat", messages=[long], truncate=False, stream=False)
        self.assertEqual(status, 400)
        self.assertIn("exceeds the context length", body["error"])

    def test_generate_truncates_as_chat_does(self):
        long = "word and word " * 4000 + QUESTION["content"]
        options = {"temperature": 0, "num_predict": 3}
        for body in ({"prompt": long}, {"prompt": long, "raw": True}, {"messages": [{"role": "user", "content": long}]}):
            status, answer = self.post("/api/chat" if "messages" in body else "/api/generate", stream=False, options=options, **body)
            self.assertEqual(status, 200, answer)
            self.assertGreater(answer["prompt_eval_count"], 500)

    def test_schemas_as_clients_spell_them(self):
        schema = {"type": "object", "properties": {"n": {"const": 7}}, "required": ["n"], "additionalProperties": False}
        named = {"name": "seven", "schema": schema}
        for fields in ({"response_format": {"type": "json_object", "value": schema}}, {"response_format": {"type": "json", "value": schema}},
                       {"response_format": {"type": "json_schema", "value": schema}}, {"response_format": {"type": "json_schema", "value": named}},
                       {"response_format": {"type": "json_object", "schema": schema}}, {"response_format": {"type": "json_schema", "schema": schema}},
                       {"response_format": {"type": "json_schema", "json_schema": named}}, {"grammar": {"type": "json", "value": schema}},
                       {"guided_json": schema}, {"guided_json": json.dumps(schema)}, {"structured_outputs": {"json": schema}}, {"json_schema": schema}):
            status, body = self.chat(**fields)
            self.assertEqual(status, 200, (fields, body))
            self.assertEqual(json.loads(body["choices"][0]["message"]["content"]), {"n": 7}, fields)
        for fields in ({"response_format": {"type": "regex", "value": "[0-9]{3}"}}, {"response_format": {"type": "regex", "pattern": "[0-9]{3}"}},
                       {"grammar": {"type": "regex", "value": "[0-9]{3}"}}):
            status, body = self.chat(**fields)
            self.assertEqual(status, 200, (fields, body))
            self.assertRegex(body["choices"][0]["message"]["content"], "^[0-9]{3}$", fields)
        status, body = self.chat(structured_outputs={"json_object": True}, max_tokens=40)
        self.assertEqual((status, body["choices"][0]["message"]["content"].lstrip()[:1]), (200, "{"), body)
        self.assertEqual(self.chat(response_format={"type": "json_object", "value": 5, "wrong": 1})[0], 400)

    def test_rules_of_picking_have_their_effect(self):
        def says(**fields):
            status, body = self.chat(max_tokens=20, logprobs=True, **fields)
            self.assertEqual(status, 200, (fields, body))
            return body["choices"][0]["message"]["content"], body["choices"][0]["finish_reason"], len(body["choices"][0]["logprobs"]["content"])

        plain, _, length = says()
        self.assertEqual(says(top_k=-1)[0], plain)
        first = self.good("/tokenize", content=plain)["tokens"][2]
        self.assertLess(says(stop_token_ids=[first])[2], length)
        self.assertEqual(says(min_tokens=length + 5)[2] >= length + 5, True)
        self.assertNotIn("Paris", says(bad_words=["Paris"])[0])
        for fields in ({"dry_multiplier": 5, "dry_allowed_length": 1}, {"xtc_probability": 1, "xtc_threshold": 0.01, "temperature": 1},
                       {"typical_p": 0.2, "temperature": 1}, {"top_n_sigma": 1, "temperature": 2}, {"mirostat": 2, "mirostat_tau": 1, "temperature": 1},
                       {"repetition_penalty": 1.3}, {"repeat_last_n": 4, "repeat_penalty": 1.2}):
            says(seed=3, **fields)
        self.assertNotEqual(says(repetition_penalty=5)[0], plain)
        for fields in ({"mirostat": 1}, {"tfs_z": 0.5}, {"best_of": 3}, {"use_beam_search": True}, {"top_logprobs": 3, "logprobs": False}):
            status, body = self.chat(**fields)
            self.assertEqual((status, next(iter(fields)) in body["error"]["message"]), (400, True), body)
        status, body = self.chat({"role": "wizard", "content": "Hi"})
        self.assertEqual((status, "wizard" in body["error"]["message"]), (400, True), body)

    def test_one_answer_where_one_is_given(self):
        for path, fields in (("/v1/responses", {"input": "Hi"}), ("/infill", {"prompt": "Hi"}), ("/completion", {"prompt": "Hi"})):
            status, body = self.post(path, n=2, **fields)
            self.assertEqual((status, body["error"]["param"]), (400, "n"), body)

    def test_llama_servers_completion(self):
        body = self.good("/completion", prompt="Once upon a time", n_predict=4)
        self.assertEqual((body["stop"], body["tokens_predicted"]), (True, 4), body)
        pieces = [event["content"] for event in self.events("/completion", prompt="Once upon a time", n_predict=4)]
        self.assertEqual("".join(pieces), body["content"])

    def test_models_tell_their_context(self):
        _, body = self.server.json("GET", "/v1/models")
        self.assertGreater(body["data"][0]["max_model_len"], 512)
        self.assertEqual(body["data"][0]["context_length"], body["data"][0]["max_model_len"])
        _, body = self.server.json("POST", "/api/show", {"model": MODEL})
        self.assertIn("tools", body["capabilities"])


class Tools(Served):
    def test_one_call_where_one_is_wanted(self):
        function = {"type": "function", "function": TOOL}
        call = '<tool_call>\n{"name": "look_up", "arguments": {"word": "a"}}\n</tool_call>'
        grammar = "root ::= " + " ".join(json.dumps(call) for _ in range(2))
        for parallel, count in ((True, 2), (False, 1)):
            status, body = self.chat(tools=[function], grammar=grammar, parallel_tool_calls=parallel, max_tokens=200)
            self.assertEqual(status, 200, body)
            self.assertEqual(len(body["choices"][0]["message"].get("tool_calls", [])), count, body)
            self.assertEqual(body["choices"][0]["finish_reason"], "tool_calls")
        chunks = [chunk["choices"][0]["delta"] for chunk in self.events("/v1/chat/completions", messages=[QUESTION], tools=[function], grammar=grammar,
                                                                         parallel_tool_calls=False, max_tokens=200)]
        self.assertEqual({piece["index"] for delta in chunks for piece in delta.get("tool_calls", [])}, {0})

    def test_anthropics_choices(self):
        tool = {"name": "look_up", "input_schema": TOOL["parameters"]}
        status, body = self.messages(tools=[tool], tool_choice={"type": "tool", "name": "nobody"})
        self.assertEqual((status, body["error"]["message"]), (400, "tool_choice: no tool is called nobody"))
        status, body = self.messages(tools=[{"type": "web_search_20250305", "name": "web_search"}], tool_choice={"type": "any"})
        self.assertEqual((status, "web_search" in body["error"]["message"]), (400, True), body)
        self.assertEqual(self.messages(tool_choice={"type": "any"})[0], 400)
        status, body = self.messages(tools=[{"type": "web_search_20250305", "name": "web_search"}, tool], tool_choice={"type": "any"}, max_tokens=100)
        self.assertEqual((status, body["content"][0]["name"]), (200, "look_up"), body)
        self.assertEqual(self.messages(tools=[tool], tool_choice={"type": "auto", "disable_parallel_tool_use": True})[0], 200)

    def test_anthropics_own_tools_have_their_schemas(self):
        for kind, name, key in (("bash_20250124", "bash", "command"), ("text_editor_20250728", "str_replace_based_edit_tool", "command"),
                                ("text_editor_20250124", "str_replace_editor", "path"), ("memory_20250818", "memory", "command")):
            status, body = self.messages(tools=[{"type": kind, "name": name}], tool_choice={"type": "tool", "name": name}, max_tokens=300)
            self.assertEqual(status, 200, body)
            call = body["content"][-1]
            self.assertEqual((call["type"], call["name"]), ("tool_use", name))
            self.assertIn(key, call["input"], body)

    def test_a_thread_is_refused_so_that_clients_go_on_without_one(self):
        asked = {"model": MODEL, "messages": [QUESTION], "max_tokens": 2}
        for thread in ({"type": "create"}, {"type": "continue", "previous_message_id": "msg_1"}):
            status, body = self.post("/v1/messages", **asked, thread=thread)
            self.assertEqual(status, 400)
            self.assertEqual(body["error"]["details"], {"error_code": "thread_unsupported_request", "unsupported": ["thread"]})
        self.assertNotIn("details", self.post("/v1/messages", **asked, container="c")[1]["error"])
        self.assertEqual(self.post("/v1/messages", **asked, thread=None)[0], 200)

    def test_pictures_in_what_a_tool_answered(self):
        picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AA=="}}
        turn = [QUESTION, {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look_up", "input": {}}]}]
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [picture, {"type": "text", "text": "x"}]}]}
        used = {"role": "assistant", "content": [{"type": "server_tool_use", "id": "s", "name": "web_search", "input": {"query": "q"}},
                                                 {"type": "web_search_tool_result", "tool_use_id": "s", "content": []}, {"type": "text", "text": "So."}]}
        self.assertEqual(self.messages(*turn, result)[0], 200)
        self.assertEqual(self.messages(QUESTION, used, {"role": "user", "content": "And?"})[0], 200)
        self.assertEqual(self.messages({"role": "user", "content": [picture]})[0], 400)
        call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look_up", "arguments": "{}"}}]}
        url = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA=="}}
        self.assertEqual(self.chat(QUESTION, call, {"role": "tool", "tool_call_id": "a", "content": [url]}, max_tokens=3)[0], 200)
        self.assertEqual(self.chat({"role": "user", "content": [url]})[0], 400)
        answered = {"role": "assistant", "content": "A fox."}
        self.assertEqual(self.chat(QUESTION, {"role": "user", "content": [url]})[0], 400)
        self.assertEqual(self.chat({"role": "user", "content": [url]}, answered, QUESTION, max_tokens=2)[0], 200)
        status, body = self.messages({"role": "user", "content": [picture]})
        self.assertEqual(body["error"]["message"], "messages.0.content.0.image.source.base64: this model reads text only; leave the image out, "
                                                   "or serve the model with the mmproj file that belongs to it (--mmproj)")
        self.assertEqual(self.messages({"role": "user", "content": [picture]}, answered, QUESTION)[0], 200)
        status, body = self.post("/v1/responses", input=[{"role": "user", "content": [{"type": "input_image", "image_url": url["image_url"]["url"]}]}])
        self.assertEqual((status, body["error"]["param"]), (400, "messages"))
        status, body = self.post("/api/generate", prompt="What?", images=["AA=="], stream=False)
        self.assertEqual((status, "reads text only" in body["error"]), (400, True))
        status, body = self.post("/api/generate", prompt="What?", images=["AA=="], raw=True, stream=False)
        self.assertEqual((status, body["error"]), (400, "images: go with neither raw nor suffix"))
        status, body = self.post("/api/chat", messages=[{**QUESTION, "images": ["AA=="]}, answered, QUESTION], stream=False, options={"num_predict": 2})
        self.assertEqual(status, 200, body)
        status, body = self.post("/api/chat", messages=[QUESTION, {"role": "tool", "content": "x", "images": ["AA=="]}], stream=False, options={"num_predict": 2})
        self.assertEqual(status, 200, body)


class Responses(Served):
    def test_input_is_counted_and_listed(self):
        body = self.good("/v1/responses/input_tokens", input="Hi")
        self.assertEqual(body["object"], "response.input_tokens")
        made = self.good("/v1/responses", input="Hi", max_output_tokens=2)
        self.assertEqual(made["usage"]["input_tokens"], body["input_tokens"])
        items = [{"role": "user", "content": "One"}, {"role": "assistant", "content": "Two"}, {"role": "user", "content": "Three"}]
        made = self.good("/v1/responses", input=items, max_output_tokens=2)

        def listed(query=""):
            status, found = self.server.json("GET", f"/v1/responses/{made['id']}/input_items{query}")
            self.assertEqual(status, 200, found)
            return found

        whole = listed("?order=asc")
        self.assertEqual([item["content"][0]["text"] for item in whole["data"]], ["One", "Two", "Three"])
        self.assertEqual([item["content"][0]["type"] for item in whole["data"]], ["input_text", "output_text", "input_text"])
        self.assertEqual((whole["first_id"], whole["last_id"]), (whole["data"][0]["id"], whole["data"][2]["id"]))
        self.assertEqual(listed()["data"], whole["data"][::-1])
        page = listed("?limit=2&order=asc")
        self.assertTrue(page["has_more"])
        self.assertEqual(listed(f"?order=asc&after={page['last_id']}")["data"], whole["data"][2:])
        for query in ("?limit=0", "?limit=x", "?order=odd"):
            self.assertEqual(self.server.json("GET", f"/v1/responses/{made['id']}/input_items{query}")[0], 400)

    def test_a_conversation_is_compacted(self):
        items = [QUESTION, {"role": "assistant", "content": "Paris."}, {"role": "user", "content": "And of Italy?"}]
        made = self.good("/v1/responses/compact", input=items)
        self.assertEqual((made["object"], [item["type"] for item in made["output"]]), ("response.compaction", ["message", "message", "compaction"]))
        self.assertGreater(made["usage"]["output_tokens"], 0)
        again = self.good("/v1/responses", input=made["output"] + [{"role": "user", "content": "Go on."}], max_output_tokens=2)
        self.assertGreater(again["usage"]["input_tokens"], made["usage"]["output_tokens"])

    def test_log_probabilities_come_where_asked_for(self):
        for fields in ({"include": ["message.output_text.logprobs"]}, {"top_logprobs": 2}):
            made = self.good("/v1/responses", input="Hi", max_output_tokens=3, **fields)
            part = made["output"][0]["content"][0]
            self.assertEqual(len(part["logprobs"]), 3, fields)
            self.assertEqual({len(one["top_logprobs"]) for one in part["logprobs"]}, {fields.get("top_logprobs", 0)})
            last = self.events("/v1/responses", input="Hi", max_output_tokens=3, **fields)
            told = [one for event in last if event["type"] == "response.output_text.delta" for one in event["logprobs"]]
            self.assertEqual(told, part["logprobs"])
            self.assertEqual(last[-1]["response"]["output"][0]["content"][0]["logprobs"], part["logprobs"])
        self.assertEqual(self.good("/v1/responses", input="Hi", max_output_tokens=3)["output"][0]["content"][0]["logprobs"], [])


class OfficialPackages(Served):
    """openai and anthropic for Python, as PyPI has them."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        python = python_with("python-clients", "openai==3.57.0", "anthropic==2.14.0")
        done = subprocess.run([python, ROOT / "tests/e2e/clients/sdk_fields.py", cls.server.url, MODEL], capture_output=True, text=True, timeout=600)
        if done.returncode != 0:
            raise AssertionError(done.stderr[-3000:])
        *cls.fields, cls.conversation = [json.loads(line) for line in done.stdout.splitlines()]

    def test_every_field_that_they_send_is_known(self):
        self.assertGreater(len(self.fields), 100)
        self.assertLess(sum(one["status"] == 0 for one in self.fields), 5)
        for one in self.fields:
            if one["status"] == 0:
                continue
            told = (one["api"], one["field"], one.get("message"))
            self.assertIn(one["status"], (200, 400), told)
            if one["status"] == 400:
                self.assertRegex(one["message"], rf"\b{one['field']}:", told)
        self.assertNotIn("nothing here knows the field", self.server.messages())

    def test_responses_are_of_their_types(self):
        found = self.conversation
        for name in ("numbers", "replayed"):
            self.assertEqual(found[name], list(range(len(found[name]))), name)
        self.assertEqual(found["late"], found["replayed"][3:])
        self.assertEqual(found["types"][0], "response.created")
        self.assertEqual(found["text"], found["said_again"])
        self.assertEqual(found["text"], found["replayed_text"])
        self.assertGreater(found["logprobs"], 0)
        self.assertEqual(found["tops"], 2)
        self.assertEqual((found["items"], found["content"]), (["ResponseInputMessageItem"], ["ResponseInputText"]))
        self.assertEqual(found["first"], found["ids"][0])


if __name__ == "__main__":
    unittest.main()
