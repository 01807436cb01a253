"""What a client of the network can ask for, and what it cannot: names, what is stored, sizes."""
import json
import os
import pathlib
import shutil
import tempfile
import unittest

from harness import DEMO, DRAFT, Case, run
from serving import Server

MODEL = "demo-moe-q4_k_m"


class Stores(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        self.env = {"MILLRACE_MODELS": os.path.join(self.folder, "store"), "HOME": self.folder}
        self.server = Server("--models", DEMO, "--threads", "1", env=self.env)
        self.addCleanup(self.server.__exit__)

    def post(self, path, body, method="POST"):
        status, _, content = self.server.request(method, path, body)
        return status, content.decode()

    def test_paths_are_no_names(self):
        """The same answer whether a file lies there or not."""
        private = os.path.join(self.folder, "private.gguf")
        shutil.copy(DRAFT, private)
        self.assertEqual(self.post("/api/copy", {"source": MODEL, "destination": "dir/private.gguf"})[0], 400)
        os.chdir(self.folder)
        for there, gone in ((private, private.replace("private", "nothing")), (DEMO, DEMO + "x"), ("private.gguf", "nothing.gguf"),
                            ("./private.gguf", "./nothing.gguf"), ("../" * 20 + "etc/passwd", "../" * 20 + "etc/nothing")):
            for method, path, field in (("POST", "/api/show", "model"), ("DELETE", "/api/delete", "model"), ("POST", "/api/copy", "source"),
                                        ("POST", "/api/create", "from"), ("POST", "/api/chat", "model"), ("POST", "/api/generate", "model"),
                                        ("POST", "/api/embed", "model"), ("POST", "/v1/chat/completions", "model"), ("POST", "/v1/messages", "model"),
                                        ("POST", "/v1/responses", "model"), ("POST", "/tokenize", "model")):
                answers = []
                for name in (there, gone):
                    body = {"model": "new", "destination": "new", "messages": [{"role": "user", "content": "x"}], "prompt": "x", "input": "x",
                            "content": "x", "max_tokens": 1, "stream": False, field: name}
                    status, content = self.post(path, body, method)
                    answers.append((status, content.replace(name, "NAME")))
                self.assertEqual(answers[0][0], 404, (path, there, answers))
                self.assertEqual(answers[0], answers[1], (path, there))
        self.assertEqual(self.post("/api/create", {"model": "new", "stream": False, "modelfile": f"FROM {private}"})[0], 404)
        self.assertEqual(self.server.json("GET", "/api/tags")[1]["models"].__len__(), 1)

    def test_what_is_stored_is_checked(self):
        for bad, says in (({"messages": [7]}, "messages"), ({"messages": {}}, "messages"), ({"messages": [{"role": "user"}]}, "messages"),
                          ({"parameters": 7}, "parameters"), ({"parameters": {"temperature": "hot"}}, "temperature"),
                          ({"parameters": {"top_p": 7}}, "top_p"), ({"parameters": {"num_ctx": 1 << 62}}, "num_ctx"),
                          ({"parameters": {"nonsense": 1}}, "nonsense"), ({"template": "{% if messages %}"}, "TEMPLATE"),
                          ({"modelfile": f"FROM {MODEL}\nPARAMETER temperature nan"}, "temperature")):
            status, content = self.post("/api/create", {"model": "bad", "from": MODEL, "stream": False, **bad})
            self.assertEqual(status // 100, 4, (bad, content))
            self.assertIn(says, content)
        self.assertEqual(self.post("/api/show", {"model": "bad"})[0], 404)
        good = {"model": "good", "from": MODEL, "stream": False, "parameters": {"temperature": 0, "stop": "END", "num_ctx": 256},
                "messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}
        self.assertEqual(self.post("/api/create", good)[0], 200)
        ask = {"model": "good", "messages": [{"role": "user", "content": "What is the capital of France?"}], "stream": False}
        self.assertEqual(self.post("/api/chat", ask)[0], 200)
        self.assertEqual(self.post("/api/copy", {"source": "good", "destination": "better"})[0], 200)
        self.assertEqual(self.post("/api/delete", {"model": "good"}, "DELETE")[0], 200)

    def test_what_is_stored_can_be_removed(self):
        for name in ("first", "second"):
            self.assertEqual(self.post("/api/create", {"model": name, "from": MODEL, "stream": False})[0], 200)
            manifest = pathlib.Path(self.env["MILLRACE_MODELS"], "manifests/-", name, "latest.json")
            content = json.loads(manifest.read_text())
            manifest.write_text(json.dumps({**content, "messages": [7]}) if name == "first" else "{")
        self.assertEqual(self.post("/api/delete", {"model": "first"}, "DELETE")[0], 200)
        self.assertEqual(self.post("/api/show", {"model": "first"})[0], 404)
        self.refused("show", "second", says="second", env=self.env)
        self.ok("rm", "second", env=self.env)
        self.assertNotIn("second", self.ok("list", env=self.env).out)


if __name__ == "__main__":
    unittest.main()
