"""Coding agents as they are published, headless: each sends its whole prompt, calls a tool, and prints what the model then says."""
import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import npm
from between import Between, Call
from client_table import SHOWN, hold_row
from harness import DRAFT, ROOT, SANITIZED, Case
from seeing import make_seeing_draft, noise
from serving import Server

MODEL = "coder"
CLAUDE_CODE, CODEX, OPENCODE, QWEN_CODE = "@anthropic-ai/claude-code-linux-x64", "@openai/codex-linux-x64", "opencode-linux-x64", "@qwen-code/qwen-code"
# Calls are told of as JSON and nothing else: a form of the answer can then be a call.
TEMPLATE = """{% if tools %}<|im_start|>system
A call is {"name": NAME, "parameters": {}}
{{ tools | tojson }}<|im_end|>
{% endif %}{% for message in messages %}<|im_start|>{{ message.role }}
{{ message.content }}{% if message.tool_calls %}{{ message.tool_calls | tojson }}{% endif %}<|im_end|>
{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
QUESTION, FILE = "What is written in the file?", "lantern.txt"
TEXT, ANSWER = "The lantern has number 4711.", {"number": 4711}
# The rules of three families, each of which refuses what breaks them; `make test` takes the first alone.
STRICT = dict(re.findall(r'std::string kStrict(\w+) = R"J\((.*?)\)J";', (ROOT / "tests/text/strict_templates.h").read_text(), re.S))
FAMILIES = ("Qwen", "Gemma", "Mistral") if os.environ.get("MILLRACE_CLIENTS") else ("Qwen",)
NUMBER = "number.txt"
CODEX_CONFIG = f"""model = "{MODEL}"
model_provider = "here"
[model_providers.here]
name = "here"
base_url = "@URL@/v1"
wire_api = "responses"
[analytics]
enabled = false
"""
OPENCODE_CONFIG = {"autoupdate": False, "share": "disabled", "model": f"here/{MODEL}", "provider": {"here": {
    "npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "@URL@/v1", "apiKey": "none"},
    "models": {MODEL: {"limit": {"context": 65536, "output": 200}}}}}}
QWEN_CONFIG = {"privacy": {"usageStatisticsEnabled": False}, "general": {"disableAutoUpdate": True}}


def tool_names(asked):
    return [tool.get("function", tool).get("name") for tool in asked.get("tools", [])]


@unittest.skipIf(npm.why_not(), npm.why_not())
@unittest.skipIf(npm.CPU != "x64", "the coding agents are pinned for x86-64 alone")
@unittest.skipIf(SANITIZED, "prompts of 30,000 tokens take minutes under a sanitizer")
class AgentCase(Case):
    """What the model answers is said between agent and server, as the form of the answer: calls of tools, which the agent makes, and what
    is to be printed in the end. Prompts, tools and streams are the agents' own."""

    @classmethod
    def setUpClass(cls):
        npm.install_clients()  # Node
        cls.packages = npm.install_agents()

    def setUp(self):
        self.home = tempfile.TemporaryDirectory()
        self.addCleanup(self.home.cleanup)
        self.file = pathlib.Path(self.home.name) / FILE
        self.store = tempfile.TemporaryDirectory()
        self.addCleanup(self.store.cleanup)
        model = self.model()
        self.server = Server(model, "-c", "65536", "--log-format", "json", env={"MILLRACE_MODELS": self.store.name})
        self.addCleanup(self.server.__exit__)
        self.take_template(TEMPLATE, model)
        self.between = Between(self.server, self.answer)
        self.addCleanup(self.between.close)

    def model(self):
        return DRAFT

    def take_template(self, template, model=DRAFT):
        status, told = self.server.json("POST", "/api/create", {"model": MODEL, "from": pathlib.Path(model).stem, "template": template, "stream": False})
        self.assertEqual(status, 200, told)

    def answer(self, asked):
        """The session's requests that have the next call's tool are told to make it, every other one what to say."""
        if not self.calls or self.calls[0][0] not in tool_names(asked):
            return ANSWER
        name, arguments = self.calls.pop(0)
        return Call(name) if self.strict else {"name": name, "parameters": arguments}

    def run_agent(self, words, files, env):
        home = pathlib.Path(self.home.name)
        self.file.write_text(TEXT + "\n")
        for name, text in files.items():
            (home / name).parent.mkdir(parents=True, exist_ok=True)
            (home / name).write_text(text.replace("@URL@", self.between.url))
        env = {name: text.replace("@URL@", self.between.url) for name, text in env.items()}
        done = subprocess.run(list(map(str, words)), cwd=home, capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=900,
                              env={**os.environ, "HOME": str(home), "PWD": str(home), **env})
        went_by = [(one.method, one.path, one.status, one.told[-300:]) for one in self.between.exchanges]
        self.seen = f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{went_by}\n{self.server.messages()[-2000:]}"
        self.assertEqual(done.returncode, 0, self.seen)
        return done.stdout

    @staticmethod
    def own(exchanges, path, tool):
        """The turns of the conversation, without questions for a title and the like."""
        return [one for one in exchanges if one.path.split("?")[0] == path and tool in tool_names(one.asked)]

    def claude_code(self):
        env = {"ANTHROPIC_BASE_URL": "@URL@", "ANTHROPIC_AUTH_TOKEN": "none", "ANTHROPIC_MODEL": MODEL, "ANTHROPIC_SMALL_FAST_MODEL": MODEL,
               "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "CLAUDE_CODE_MAX_OUTPUT_TOKENS": "200"}
        return [self.packages / CLAUDE_CODE / "claude", "-p", QUESTION], {"env": env}

    def codex(self):
        return [self.packages / CODEX / "vendor/x86_64-unknown-linux-musl/bin/codex", "exec", "--skip-git-repo-check"], {
            "files": {".codex/config.toml": CODEX_CONFIG}}

    def opencode(self, **of_model):
        config = json.loads(json.dumps(OPENCODE_CONFIG))
        config["provider"]["here"]["models"][MODEL].update(of_model)
        return [self.packages / OPENCODE / "bin/opencode", "run", QUESTION], {
            "files": {".config/opencode/opencode.json": json.dumps(config)},
            "env": {"OPENCODE_DISABLE_MODELS_FETCH": "1", "OPENCODE_DISABLE_LSP_DOWNLOAD": "1"}}

    def qwen_code(self, **of_model):
        return [npm.NODE, self.packages / QWEN_CODE / "cli-entry.js", "--auth-type", "openai", "-p", QUESTION], {
            "files": {".qwen/settings.json": json.dumps({**QWEN_CONFIG, **({"model": {"generationConfig": of_model}} if of_model else {})})},
            "env": {"OPENAI_API_KEY": "none", "OPENAI_BASE_URL": "@URL@/v1", "OPENAI_MODEL": MODEL}}

    def hold(self, name, folder, path, tally, heading="agent (npm)"):
        version = json.loads((self.packages / folder / "package.json").read_text())["version"].removesuffix("-linux-x64")
        hold_row(self, heading, name, version, f"`{path}`", tally)


class Agents(AgentCase):
    def session(self, path, tool, arguments, words, files=(), env=()):
        """The agent sends its prompt, makes the call that it is told, sends what came of it and prints the answer. Gives what passed and
        what was refused."""
        self.calls, self.strict, begin = [(tool, arguments)], False, len(self.between.exchanges)
        self.between.narrowed = {}
        printed = self.run_agent(words, dict(files), dict(env))
        exchanges = self.between.exchanges[begin:]
        own = self.own(exchanges, path, tool)
        self.assertGreaterEqual(len(own), 2, f"no result of the tool came back\n{self.seen}")
        for one in own[:2]:
            self.assertTrue(one.status == 200 and one.kind.startswith("text/event-stream"), (one.status, one.kind, self.seen))
        self.assertNotIn(TEXT, json.dumps(own[0].asked))
        self.assertIn(TEXT, json.dumps(own[1].asked), "what the tool found is not in the next request")
        self.assertEqual(json.loads(printed), ANSWER, self.seen)
        refused = {one.told: f"{one.method} {one.path}" for one in exchanges if one.status >= 400}
        self.assertLess(max(one.status for one in exchanges), 500, self.seen)
        return {"passed": ["the prompt with its tools as a stream", f"a call of `{tool}`", "its result and the answer as a stream"],
                "refused": [{"what": what, "why": why} for why, what in refused.items()]}

    def task(self, path, calls, words, files=(), env=()):
        """Under the rules of each family the agent makes its calls, of which one writes a file, and prints the answer."""
        number = pathlib.Path(self.home.name) / NUMBER
        for family in FAMILIES:
            with self.subTest(family=family):
                number.unlink(missing_ok=True)
                self.take_template(STRICT[family])
                self.calls, self.strict, begin = list(calls), True, len(self.between.exchanges)
                self.between.narrowed = dict(calls)
                printed = self.run_agent(words, dict(files), dict(env))
                exchanges = self.between.exchanges[begin:]
                own = self.own(exchanges, path, calls[0][0])
                self.assertEqual((self.calls, len(own)), ([], len(calls) + 1), self.seen)
                self.assertEqual([one.status for one in own], [200] * len(own), self.seen)
                self.assertIn(TEXT, json.dumps(own[1].asked), "what the first call found is not in the next request")
                self.assertEqual(number.read_text().strip(), "4711", self.seen)
                self.assertEqual(json.loads(printed), ANSWER, self.seen)

    def test_claude_code(self):
        path, (words, here) = "/v1/messages", self.claude_code()
        session = lambda: self.session(path, "Read", {"file_path": str(self.file)}, [*words, "--max-turns", "3"], **here)
        tally, begin = session(), len(self.between.exchanges)
        session()
        first = self.own(self.between.exchanges[begin:], path, "Read")[0]
        anew, cached = map(int, re.findall(r'"input_tokens":(\d+),.*?"cache_read_input_tokens":(\d+)', first.told)[-1])
        self.assertGreater(cached, 20 * anew, "the second session's prompt was computed anew")
        tally["passed"].append("a second session that starts from the cache")
        read, write = ("Read", {"file_path": str(self.file)}), ("Write", {"file_path": f"{self.home.name}/{NUMBER}", "content": "4711"})
        self.task(path, [read, write, read], [*words, "--max-turns", "6", "--permission-mode", "acceptEdits"], **here)
        self.hold("@anthropic-ai/claude-code", CLAUDE_CODE, path, tally)

    def test_codex(self):
        path, (words, here) = "/v1/responses", self.codex()
        tally = self.session(path, "exec_command", {"cmd": f"cat {FILE}"}, [*words, QUESTION], **here)
        both = ("exec_command", {"cmd": f"cat {FILE} && printf 4711 >{NUMBER}"})
        self.task(path, [both] * 3, [*words, "--sandbox", "danger-full-access", QUESTION], **here)
        self.hold("@openai/codex", CODEX, path, tally)

    def test_opencode(self):
        path, (words, here) = "/v1/chat/completions", self.opencode()
        tally = self.session(path, "read", {"filePath": str(self.file)}, words, **here)
        number = f"{self.home.name}/{NUMBER}"
        read, write = ("read", {"filePath": str(self.file)}), ("write", {"filePath": number, "content": "4711"})
        self.task(path, [read, write, read], words, **here)
        self.hold("opencode-ai", OPENCODE, path, tally)

    def test_qwen_code(self):
        path, (words, here) = "/v1/chat/completions", self.qwen_code()
        tally = self.session(path, "read_file", {"file_path": str(self.file)}, words, **here)
        number = f"{self.home.name}/{NUMBER}"
        read, write = ("read_file", {"file_path": str(self.file)}), ("write_file", {"file_path": number, "content": "4711"})
        self.task(path, [read, write, read], [*words, "--approval-mode", "auto-edit"], **here)
        self.hold("@qwen-code/qwen-code", QWEN_CODE, path, tally)


PICTURE_TYPES = ("image", "image_url", "input_image")


def pictures_in(value):
    """The parts of a request that are pictures, in any API's form."""
    if isinstance(value, list):
        return [part for one in value for part in pictures_in(one)]
    if not isinstance(value, dict):
        return []
    return [value] if value.get("type") in PICTURE_TYPES else pictures_in(list(value.values()))


def without_pictures(value):
    if isinstance(value, list):
        return [without_pictures(one) for one in value if not (isinstance(one, dict) and one.get("type") in PICTURE_TYPES)]
    return {name: without_pictures(one) for name, one in value.items()} if isinstance(value, dict) else value


@unittest.skipUnless(os.environ.get("MILLRACE_CLIENTS"), "`make test-clients` lets the agents look at pictures")
class AgentsThatLook(AgentCase):
    """Each agent's own tool reads a PNG, and shows it to a model that sees."""

    def model(self):
        return make_seeing_draft(pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())))

    def setUp(self):
        super().setUp()
        self.picture = pathlib.Path(self.home.name) / "picture.png"
        self.picture.write_bytes(noise(64, 48))

    def prompt_tokens(self, path, asked):
        most = "max_output_tokens" if "/responses" in path else "max_tokens"
        status, told = self.server.json("POST", path, {**asked, "stream": False, "stream_options": None, most: 16})
        self.assertEqual(status, 200, told)
        return sum(told["usage"].get(name) or 0 for name in ("input_tokens", "prompt_tokens", "cache_read_input_tokens", "cache_creation_input_tokens"))

    def look(self, path, tool, arguments, words, files=(), env=()):
        self.calls, self.strict, self.between.narrowed = [(tool, arguments)], False, {}
        printed = self.run_agent(words, dict(files), dict(env))
        own = self.own(self.between.exchanges, path, tool)
        self.assertEqual([one.status for one in own[:2]], [200, 200], self.seen)
        self.assertEqual(pictures_in(own[0].asked), [])
        shown = pictures_in(own[1].asked)
        self.assertEqual(len(shown), 1, f"{json.dumps(own[1].asked)[-3000:]}\n{self.seen}")
        rows = self.prompt_tokens(path, own[1].asked) - self.prompt_tokens(path, without_pictures(own[1].asked))
        self.assertEqual(rows, 4 * 3 + 3, "the model saw no picture of 64 x 48 pixels")  # a token for 16 x 16, and one that ends a row
        self.assertEqual(json.loads(printed), ANSWER, self.seen)
        return {"passed": [f"a picture by `{tool}`"], "refused": []}

    def test_claude_code(self):
        path, (words, here) = "/v1/messages", self.claude_code()
        tally = self.look(path, "Read", {"file_path": str(self.picture)}, [*words, "--max-turns", "3"], **here)
        self.hold("@anthropic-ai/claude-code", CLAUDE_CODE, path, tally, SHOWN + "agent (npm)")

    def test_codex(self):
        path, (words, here) = "/v1/responses", self.codex()
        tally = self.look(path, "view_image", {"path": str(self.picture)}, [*words, QUESTION], **here)
        self.hold("@openai/codex", CODEX, path, tally, SHOWN + "agent (npm)")

    def test_opencode(self):
        path, (words, here) = "/v1/chat/completions", self.opencode(attachment=True, modalities={"input": ["text", "image"], "output": ["text"]})
        tally = self.look(path, "read", {"filePath": str(self.picture)}, words, **here)
        self.hold("opencode-ai", OPENCODE, path, tally, SHOWN + "agent (npm)")

    def test_qwen_code(self):
        path, (words, here) = "/v1/chat/completions", self.qwen_code(modalities={"image": True})
        tally = self.look(path, "read_file", {"file_path": str(self.picture)}, words, **here)
        self.hold("@qwen-code/qwen-code", QWEN_CODE, path, tally, SHOWN + "agent (npm)")


if __name__ == "__main__":
    unittest.main()
