"""Pictures by every API, and by `run --image`: a tiny random model with a tower (tests/data/vision), whose vocabulary is given the
tokens that pictures need. What it answers has no meaning; that it is the same by every way, and another for another picture, has."""
import base64
import json
import pathlib
import re
import shutil
import tempfile
import unittest

from harness import ROOT, SANITIZED, Case, peak_bytes, run
from seeing import PICTURES, make_seeing, make_seeing_tiles, noise
from serving import Server
from test_terminal import Terminal

ANSWER = 12


def encoded(name):
    return base64.b64encode((PICTURES / name).read_bytes()).decode()


def url(name):
    return f"data:image/{name.rsplit('.')[-1].replace('jpg', 'jpeg')};base64,{encoded(name)}"


def openai(name):
    return {"type": "image_url", "image_url": {"url": url(name)}}


def anthropic(name):
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": encoded(name)}}


class Pictures(Case):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.model = make_seeing(cls.folder)
        cls.server = Server(cls.model, "--threads", "2", "--ctx", "512")
        cls.addClassCleanup(cls.server.__exit__)

    def post(self, path, **body):
        return self.server.json("POST", path, {"model": "sees", "temperature": 0, **body})

    def good(self, path, **body):
        status, answer = self.post(path, **body)
        self.assertEqual(status, 200, answer)
        return answer

    def chat(self, *content, **fields):
        return self.good("/v1/chat/completions", messages=[{"role": "user", "content": list(content)}], max_tokens=ANSWER, **fields)

    def said(self, *content):
        return self.chat(*content)["choices"][0]["message"]["content"]

    def test_all_apis_show_the_model_the_same(self):
        text = {"type": "text", "text": "what is it?"}
        chat = self.chat(openai("baseline.jpg"), text)
        answer, tokens = chat["choices"][0]["message"]["content"], chat["usage"]["prompt_tokens"]
        plain = self.chat(text)
        # 21 x 14 pixels are stretched to 48 x 32: six tokens, between a begin and an end, behind a space that has a token of its own.
        self.assertEqual(tokens, plain["usage"]["prompt_tokens"] + 9)
        self.assertNotEqual(answer, plain["choices"][0]["message"]["content"])
        message = {"messages": [{"role": "user", "content": [anthropic("baseline.jpg"), text]}], "max_tokens": ANSWER}
        self.assertEqual(self.good("/v1/messages", **message)["content"][0]["text"], answer)
        self.assertEqual(self.good("/v1/messages/count_tokens", **message)["input_tokens"], tokens)
        asked = [{"role": "user", "content": [{"type": "input_image", "image_url": url("baseline.jpg")}, {"type": "input_text", "text": "what is it?"}]}]
        response = self.good("/v1/responses", input=asked, max_output_tokens=ANSWER)
        self.assertEqual(response["output"][0]["content"][0]["text"], answer)
        options = {"temperature": 0, "num_predict": ANSWER, "num_ctx": 512}
        turn = {"role": "user", "content": "what is it?", "images": [encoded("baseline.jpg")]}
        self.assertEqual(self.good("/api/chat", messages=[turn], stream=False, options=options)["message"]["content"], answer)
        made = self.good("/api/generate", prompt="what is it?", images=[encoded("baseline.jpg")], stream=False, options=options)
        self.assertEqual(made["response"], answer)
        self.assertTrue(all(token >= 0 for token in made["context"]))
        alone = self.good("/api/generate", images=[encoded("baseline.jpg")], stream=False, options=options)  # asks for itself, and loads nothing
        self.assertGreater(alone["eval_count"], 0)
        outcome = run("run", self.model, "what is it?", "--image", PICTURES / "baseline.jpg", "--temp", "0", "-n", ANSWER, "--ctx", "512")
        self.assertEqual((outcome.code, outcome.out.strip()), (0, answer.strip()), outcome.err)
        outcome = run("run", self.model, "-p", "what is it?", "-p", "what is it?", "--image", PICTURES / "baseline.jpg", "--temp", "0", "-n", ANSWER, "--ctx", "512")
        self.assertEqual((outcome.code, outcome.out.count(answer)), (0, 2), outcome.out)  # each question shows it

    def test_pictures_differ_and_are_found_again(self):
        text = {"type": "text", "text": "what is it?"}
        first, other = self.said(openai("colour.png"), text), self.said(openai("grey.png"), text)
        again = self.chat(openai("colour.png"), text)
        self.assertEqual(again["choices"][0]["message"]["content"], first)
        self.assertNotEqual(first, other)
        both = self.said(openai("colour.png"), {"type": "text", "text": " or "}, openai("grey.png"), text)
        swapped = self.said(openai("grey.png"), {"type": "text", "text": " or "}, openai("colour.png"), text)
        self.assertNotEqual(both, swapped)

    def test_tools_show_pictures(self):
        question = {"role": "user", "content": "look."}
        call = {"role": "assistant", "content": None, "tool_calls": [{"id": "a", "type": "function", "function": {"name": "look", "arguments": "{}"}}]}
        def asked(content):
            return self.good("/v1/chat/completions", messages=[question, call, {"role": "tool", "tool_call_id": "a", "content": content}],
                             max_tokens=ANSWER)
        seen, note = asked([openai("colour.png")]), asked("no")
        self.assertGreater(seen["usage"]["prompt_tokens"], note["usage"]["prompt_tokens"])
        used = {"role": "assistant", "content": [{"type": "tool_use", "id": "a", "name": "look", "input": {}}]}
        result = {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": [anthropic("colour.png")]}]}
        message = self.good("/v1/messages", messages=[question, used, result], max_tokens=ANSWER)
        self.assertEqual(message["content"][0]["text"], seen["choices"][0]["message"]["content"])
        items = [question, {"type": "function_call", "call_id": "a", "name": "look", "arguments": "{}"},
                 {"type": "function_call_output", "call_id": "a", "output": [{"type": "input_image", "image_url": url("colour.png")}]}]
        response = self.good("/v1/responses", input=items, max_output_tokens=ANSWER)
        self.assertEqual(response["output"][0]["content"][0]["text"], seen["choices"][0]["message"]["content"])

    def test_what_is_no_picture_is_refused_when_new_and_noted_when_old(self):
        bad = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
        status, body = self.post("/v1/chat/completions", messages=[{"role": "user", "content": [bad]}])
        self.assertEqual((status, body["error"]["code"]), (400, "invalid_image_format"), body)
        torn = base64.b64encode((PICTURES / "colour.png").read_bytes()[:60]).decode()
        status, body = self.post("/v1/messages", max_tokens=2, messages=[{"role": "user", "content": [
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": torn}}]}])
        self.assertEqual((status, body["error"]["type"]), (400, "invalid_request_error"), body)
        self.assertRegex(body["error"]["message"], r"^messages\.0\.content\.0\.image\.source\.base64: Could not process image: ")
        status, body = self.post("/v1/chat/completions", messages=[{"role": "user", "content": [
            {"type": "image_url", "image_url": {"url": "http://127.0.0.1:1/a.png"}}]}])
        self.assertEqual((status, "fetches no pictures" in body["error"]["message"]), (400, True), body)
        answered = {"role": "assistant", "content": "a fox."}
        self.good("/v1/chat/completions", messages=[{"role": "user", "content": [bad]}, answered, {"role": "user", "content": "and?"}], max_tokens=2)
        status, body = self.post("/api/generate", prompt="what?", images=[base64.b64encode((PICTURES / "bomb.png").read_bytes()).decode()], stream=False)
        self.assertEqual((status, "60000 x 60000" in body["error"]), (400, True), body)

    def test_run_shows_pictures_to_a_server(self):
        def answers(model, *args, env=None):
            outcome = run("run", model, "what is it?", "--image", PICTURES / "baseline.jpg", "--temp", "0", "-n", ANSWER, *args, env=env)
            self.assertEqual(outcome.code, 0, outcome.err)
            return outcome
        env = {"MILLRACE_HOST": f"127.0.0.1:{self.server.port}", "MILLRACE_MODELS": str(self.folder / "none")}
        there, here = answers(self.model, env=env), answers(self.model, "--local", "--ctx", "512", env=env)
        self.assertIn("answers from the server at", there.err)
        self.assertNotIn("answers from the server at", here.err)
        self.assertEqual(there.out, here.out)
        named = answers("sees", "--host", f"127.0.0.1:{self.server.port}", env=env)  # a model that only the server has
        self.assertEqual(named.out, here.out)
        two = answers(self.model, "--image", PICTURES / "colour.png", env=env)
        self.assertEqual(two.out, answers(self.model, "--image", PICTURES / "colour.png", "--local", "--ctx", "512", env=env).out)
        self.assertNotEqual(two.out, here.out)
        with Server(self.model, "--mmproj", "off", "--threads", "2", "--ctx", "512") as blind:
            env["MILLRACE_HOST"] = f"127.0.0.1:{blind.port}"
            outcome = answers(self.model, env=env)
            self.assertIn("shows the model no pictures", outcome.err)
            self.assertEqual(outcome.out, here.out)
            outcome = run("run", "sees", "what?", "--image", PICTURES / "colour.png", "--host", env["MILLRACE_HOST"], env=env)
            self.assertEqual((outcome.code, "reads text only" in outcome.err), (2, True), outcome.err)

    @unittest.skipIf(SANITIZED, "sanitizers multiply memory")
    def test_what_pictures_take_of_requests_memory(self):
        """A copy or five of them, never the work on a text of that size: and no more than is granted."""
        large = base64.b64encode(noise(1000, 1000)).decode()
        with Server(self.model, "--threads", "2", "--ctx", "512", "--ram", "480M") as server:  # 60 MB for requests
            def post(path, **body):
                return server.json("POST", path, {"model": "sees", **body})
            def asked(data, n):
                text = {"type": "text", "text": "and?"}
                parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64," + data}}] * n
                items = [{"type": "input_image", "image_url": "data:image/png;base64," + data}] * n
                blocks = [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": data}}] * n
                return {"/api/chat": {"messages": [{"role": "user", "content": "and?", "images": [data] * n}], "stream": False, "options": {"num_predict": 2}},
                        "/api/generate": {"prompt": "and?", "images": [data] * n, "stream": False, "options": {"num_predict": 2}},
                        "/v1/chat/completions": {"messages": [{"role": "user", "content": [*parts, text]}], "max_tokens": 2},
                        "/v1/messages": {"messages": [{"role": "user", "content": [*blocks, text]}], "max_tokens": 2},
                        "/v1/responses": {"input": [{"role": "user", "content": items}], "max_output_tokens": 2}}
            for path, body in asked(encoded("colour.png"), 2).items():
                self.assertEqual(post(path, **body)[0], 200, path)
            before = peak_bytes(server.process.pid)
            for path, body in asked(large, 2).items():
                status, answer = post(path, **body)
                self.assertEqual(status, 200, (path, answer))
                self.assertLess(peak_bytes(server.process.pid) - before, 60_000_000, path)
            status, answer = post("/api/chat", messages=[{"role": "user", "content": large + large}], stream=False)
            self.assertEqual((status, "send less" in answer["error"]), (413, True), answer)
            self.assertLess(peak_bytes(server.process.pid) - before, 60_000_000)

    def test_names_the_capability(self):
        self.assertIn("vision", self.good("/api/show")["capabilities"])
        listed = self.server.json("GET", "/v1/models")[1]["data"]
        self.assertEqual([(one["id"], one["architecture"]["input_modalities"]) for one in listed], [("sees:latest", ["text", "image"])])
        self.assertIn("vision", run("show", self.model).out)
        alone = self.folder / "alone"
        alone.mkdir()
        shutil.copy(self.model, alone / "blind.gguf")
        self.assertNotIn("vision", run("show", alone / "blind.gguf").out)
        outcome = run("run", alone / "blind.gguf", "what?", "--image", PICTURES / "colour.png", "-n", "2")
        self.assertEqual((outcome.code, "reads text only" in outcome.err), (2, True), outcome.err)
        outcome = run("run", alone / "blind.gguf", "what?", "--mmproj", self.folder / "mmproj-sees.gguf", "--image", PICTURES / "colour.png",
                      "-n", "2", "--ctx", "512")
        self.assertEqual(outcome.code, 0, outcome.err)
        outcome = run("run", self.model, "what?", "--mmproj", "off", "--image", PICTURES / "colour.png", "-n", "2")
        self.assertEqual((outcome.code, "reads text only" in outcome.err), (2, True), outcome.err)

    def test_a_model_sees_once_its_file_is_there(self):
        """What was loaded without is loaded anew when a picture comes."""
        folder = self.folder / "later"
        folder.mkdir()
        shutil.copy(self.model, folder / "later.gguf")
        seen = {"model": "later", "temperature": 0, "max_tokens": ANSWER, "messages": [{"role": "user", "content": [openai("colour.png")]}]}
        text = {"model": "later", "max_tokens": 2, "messages": [{"role": "user", "content": "what?"}]}
        with Server(folder / "later.gguf", "--threads", "2", "--ctx", "512") as server:
            self.assertEqual(server.json("POST", "/v1/chat/completions", text)[0], 200)
            status, body = server.json("POST", "/v1/chat/completions", seen)
            self.assertEqual((status, "reads text only" in body["error"]["message"]), (400, True), body)
            self.assertNotIn("vision", server.json("POST", "/api/show", {"model": "later"})[1]["capabilities"])
            shutil.copy(self.folder / "mmproj-sees.gguf", folder / "mmproj-later.gguf")
            self.assertIn("vision", server.json("POST", "/api/show", {"model": "later"})[1]["capabilities"])
            self.assertEqual(server.json("POST", "/v1/chat/completions", text)[0], 200)
            status, body = server.json("POST", "/v1/chat/completions", seen)
            self.assertEqual(status, 200, body)
            wanted = self.good("/v1/chat/completions", messages=seen["messages"], max_tokens=ANSWER)
            self.assertEqual(body["choices"][0]["message"]["content"], wanted["choices"][0]["message"]["content"])


class Chats(Case):
    """Pictures in a chat on a terminal."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.model = make_seeing(cls.folder)

    def setUp(self):
        self.state = self.enterContext(tempfile.TemporaryDirectory())
        self.spaced = pathlib.Path(self.state) / "My cat's.png"
        shutil.copy(PICTURES / "grey.png", self.spaced)

    def chat(self, *args, model=None, server="127.0.0.1:1"):
        env = {"XDG_STATE_HOME": self.state, "MILLRACE_HOST": server, "HOME": str(PICTURES)}
        terminal = Terminal("run", str(model or self.model), "--temp", "0", "-n", str(ANSWER), *map(str, args), env=env)
        self.assertTrue(terminal.wait_for("is ready"), terminal.seen)
        return terminal

    def type(self, terminal, *exchanges):
        for line, *says in exchanges:
            self.assertTrue(terminal.wait_for(">>> "), (line, terminal.seen))
            terminal.type(line + "\n")
            for one in says:
                self.assertTrue(terminal.wait_for(one), (line, one, terminal.seen))

    def end(self, terminal):
        self.type(terminal, ("/bye",))
        self.assertEqual(terminal.exit_code(), 0)

    def answers(self, name):
        messages = json.loads((pathlib.Path(self.state) / f"millrace/chats/{name}.json").read_text())["messages"]
        return [message["content"] for message in messages if message["role"] == "assistant"]

    def alone(self, *pictures):
        images = [word for picture in pictures for word in ("--image", picture)]
        outcome = run("run", self.model, "what is it?", *images, "--temp", "0", "-n", ANSWER, "--ctx", "512", "--local")
        self.assertEqual(outcome.code, 0, outcome.err)
        return outcome.out.removesuffix("\n")

    def test_image_shows_files_with_the_next_message(self):
        escaped = re.sub(r"([ '])", r"\\\1", str(self.spaced))
        terminal = self.chat("--ctx", "512")
        self.type(terminal, ("/image", "No picture waits"), ("/image /nowhere.png", "/nowhere.png"), (f"/image {ROOT}/README.md", "cannot be shown"),
                  (f"/image {PICTURES}/colour.png {escaped}", r"colour.png \(\d+ x \d+ pixels, ", r"My cat's.png \("), ("/image", "colour.png", "My cat's.png"),
                  ("what is it?",), ("/show history", r"user: \[image colour.png\] \[image My cat's.png\] what is it"), ("/save two", "Saved"),
                  ("/clear", "Forgotten"), ("/image ~/baseline.jpg", "baseline.jpg"), (f"/image {PICTURES}/palette_c\t", "palette_clear.png"), ("/clear", "Forgotten"), ("what is it?",),
                  ("/show history", "user: what is it"), ("/save none", "Saved"))
        self.end(terminal)
        self.assertEqual(self.answers("two"), [self.alone(PICTURES / "colour.png", self.spaced)])
        self.assertEqual(self.answers("none"), [self.alone()])
        self.assertNotEqual(self.answers("none"), self.answers("two"))

    def test_paths_in_messages_are_pictures(self):
        escaped = re.sub(r"([ '])", r"\\\1", str(self.spaced))
        quoted = "'" + str(self.spaced).replace("'", "'\\''") + "'"
        terminal = self.chat("--ctx", "512")
        self.type(terminal, (escaped, r"My cat's.png \(", "Ask about it"), ("what is it?",), ("/save a", "Saved"),
                  ("/clear", "Forgotten"), (quoted + " and is it /nowhere.png or ~/colour.png?", "My cat's.png", "colour.png"),
                  ("/show history", r"user: \[image My cat's.png\] \[image colour.png\] My cat's.png and is it /nowhere.png or colour.png\?"))
        self.end(terminal)
        self.assertEqual(self.answers("a"), [self.alone(self.spaced)])

    def test_image_flag_is_for_the_first_message(self):
        terminal = self.chat("--ctx", "512", "--image", self.spaced)
        self.type(terminal, ("what is it?",), ("/save a", "Saved"), ("/clear", "Forgotten"), ("what is it?",), ("/save b", "Saved"))
        self.end(terminal)
        self.assertEqual(self.answers("a"), [self.alone(self.spaced)])
        self.assertEqual(self.answers("b"), [self.alone()])

    def test_saved_chats_show_their_pictures_again(self):
        terminal = self.chat("--ctx", "512")
        self.type(terminal, (f"/image {PICTURES}/colour.png", "goes with"), ("/image " + str(self.spaced), "goes with"), ("what is it?",), ("/save a", "Saved"),
                  ("and?",), ("/save b", "Saved"))
        self.end(terminal)
        again = self.chat("--ctx", "512")
        self.type(again, ("/load a", "Going on with a"), ("/show history", r"\[image My cat's.png\] what"), ("and?",), ("/save c", "Saved"))
        self.end(again)
        self.assertEqual(self.answers("c"), self.answers("b"))
        shutil.copy(PICTURES / "palette.png", self.spaced)
        changed = self.chat("--ctx", "512")
        self.type(changed, ("/load a", "My cat's.png is not shown again: its file has changed", "Going on"),
                  ("/show history", r"user: \[image colour.png\] \[image My cat's.png: not shown\]what"), ("and?",), ("/save d", "Saved"),
                  ("/load d", "Going on"), ("/show history", r"user: \[image colour.png\] \[image My cat's.png: not shown\]what"))
        self.end(changed)
        self.spaced.unlink()
        gone = self.chat("--ctx", "512")
        self.type(gone, ("/load a", "My cat's.png is not shown again: its file is gone"))
        self.end(gone)

    def test_a_chat_with_a_server(self):
        with Server(self.model, "--threads", "2", "--ctx", "512") as server:
            terminal = self.chat(server=f"127.0.0.1:{server.port}")
            self.type(terminal, ("/image " + str(self.spaced), "goes with"), ("what is it?",), ("/save a", "Saved"))
            self.end(terminal)
        self.assertEqual(self.answers("a"), [self.alone(self.spaced)])

    def test_a_model_that_sees_nothing_says_so(self):
        alone = self.folder / "alone"
        alone.mkdir()
        shutil.copy(self.model, alone / "blind.gguf")
        terminal = self.chat("--ctx", "512", model=alone / "blind.gguf")
        self.type(terminal, (f"/image {PICTURES}/colour.png", "reads text only.*--mmproj"), (f"what is {PICTURES}/colour.png?", "stays a text.*reads text only"),
                  ("/show history", "user: what is .*colour.png"))
        self.end(terminal)


class Tiles(Case):
    """A model whose tower sees pictures in tiles, and the whole behind them."""

    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        model = make_seeing_tiles(cls.folder)
        cls.server = Server(model, "--threads", "2", "--ctx", "512")
        cls.addClassCleanup(cls.server.__exit__)

    def chat(self, *content):
        body = {"model": "tiles", "temperature": 0, "messages": [{"role": "user", "content": list(content)}], "max_tokens": ANSWER}
        status, answer = self.server.json("POST", "/v1/chat/completions", body)
        self.assertEqual(status, 200, answer)
        return answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"]

    def test_each_tile_has_its_rows_and_its_mark(self):
        text = {"type": "text", "text": "what is it?"}
        _, plain = self.chat(text)
        answer, tokens = self.chat(openai("baseline.jpg"), text)
        # 21 x 14 pixels become 2 x 2 tiles of four tokens behind two marks each, a line break behind each row, one before the whole, which is
        # one more such view, and a mark; all behind a space that has a token of its own.
        self.assertEqual(tokens, plain + 4 * 6 + 3 + 6 + 1 + 1)
        self.assertEqual(self.chat(openai("baseline.jpg"), text), (answer, tokens))
        self.assertNotEqual(self.chat(openai("grey.png"), text)[0], answer)
        both = self.chat(openai("baseline.jpg"), openai("grey.png"), text)[1]
        self.assertEqual(both, plain + 2 * (tokens - plain) - 1)


if __name__ == "__main__":
    unittest.main()
