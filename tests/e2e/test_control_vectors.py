"""Control vectors on the command line, in llama.cpp's words: they steer what a model writes, and files that do not fit are refused."""
import os
import pathlib
import random
import struct
import tempfile
import unittest

import checkpoints
import gguf_keys
from harness import DEMO, Case
from serving import Server

ALIGNMENT = 32


def write_vectors(path, vectors):
    """A GGUF file of float32 vectors, as cvector-generator writes it."""
    head = b"GGUF" + struct.pack("<IQQ", 3, len(vectors), 1) + gguf_keys.string("general.architecture") + gguf_keys.value("controlvector")
    data = b""
    for name, numbers in vectors.items():
        head += gguf_keys.string(name) + struct.pack("<IQIQ", 1, len(numbers), 0, len(data))
        data += checkpoints.f32(numbers)
        data += bytes(-len(data) % ALIGNMENT)
    path.write_bytes(head + bytes(-len(head) % ALIGNMENT) + data)
    return path


class ControlVectors(Case):
    def setUp(self):
        room = tempfile.TemporaryDirectory()
        self.addCleanup(room.cleanup)
        self.folder = pathlib.Path(room.name)
        keys = checkpoints.Gguf(DEMO).keys
        architecture = keys["general.architecture"]
        self.dim, self.layers = keys[f"{architecture}.embedding_length"], keys[f"{architecture}.block_count"]
        draw = random.Random(1)
        self.directions = {f"direction.{layer}": [draw.gauss(0, 1) for _ in range(self.dim)] for layer in range(1, self.layers)}
        self.vector = write_vectors(self.folder / "mood.gguf", self.directions)
        self.half = write_vectors(self.folder / "half.gguf", {name: [0.5 * x for x in numbers] for name, numbers in self.directions.items()})
        self.last = self.layers - 1

    def text(self, *flags):
        return self.ok("run", DEMO, "-q", "--temp", "0", "--max-tokens", "24", "--raw", "-p", "Once upon a time", *flags).out

    def test_they_steer(self):
        before = set(pathlib.Path(tempfile.gettempdir()).glob("millrace-control-*"))
        plain, steered = self.text(), self.text("--control-vector", self.vector)
        self.assertNotEqual(plain, steered)
        self.assertEqual(self.text("--control-vector-scaled", f"{self.vector}:0"), plain)
        self.assertEqual(self.text("--control-vector-scaled", f"{self.half}:2"), steered)
        self.assertEqual(self.text("--control-vector", f"{self.half},{self.half}"), steered)
        self.assertEqual(self.text("--control-vector", self.half, "--control-vector", self.half), steered)
        late = self.text("--control-vector", self.vector, "--control-vector-layer-range", self.last, self.last)
        alone = write_vectors(self.folder / "late.gguf", {f"direction.{self.last}": self.directions[f"direction.{self.last}"]})
        self.assertEqual(self.text("--control-vector", alone), late)
        self.assertEqual(self.text("--control-vector", self.vector, "--control-vector-layer-range", 1, 1000), steered)
        self.assertEqual(self.text("--control-vector", self.vector, "--ram", "12M"), steered)
        with Server("-m", DEMO, "--control-vector", self.vector) as server:
            answer = server.json("POST", "/completion", {"prompt": "Once upon a time", "n_predict": 24, "temperature": 0})[1]["content"]
        self.assertIn(answer.strip(), steered)
        self.assertEqual(set(pathlib.Path(tempfile.gettempdir()).glob("millrace-control-*")), before)

    def test_prompts_on_the_disk_are_kept_apart(self):
        """KV of a steered model is another's; that of the same vector is found again, though its file is made anew."""
        cache = ["--prompt-cache", f"{self.folder}/cache", "--prompt-cache-after", "0"]
        prompt = "Once upon a time there was a small house. " * 20
        ask = lambda *flags: self.ok("run", DEMO, "--temp", "0", "--max-tokens", "8", "--raw", "--stats", "-p", prompt, *cache, *flags)
        plain, steered = ask(), ask("--control-vector", self.vector)
        files = lambda: {path for path, _, names in os.walk(self.folder / "cache") for name in names}
        self.assertNotEqual(plain.out, steered.out)
        held = len(files())
        self.assertEqual(ask("--control-vector", self.vector).out, steered.out)
        self.assertEqual(len(files()), held)
        self.assertEqual(ask().out, plain.out)

    def test_what_is_none_is_refused(self):
        cannot = lambda *flags, says: self.refused("run", DEMO, "hi", *flags, says=says)
        cannot("--control-vector", self.folder / "none.gguf", says="none.gguf")
        cannot("--control-vector", DEMO, says="direction.N")
        cannot("--control-vector", self.folder, says="--control-vector")
        for text in (f"{self.vector}", f"{self.vector}:", f"{self.vector}:much", ":1"):
            cannot("--control-vector-scaled", text, says="FILE:SCALE")
        cannot("--control-vector-scaled", f"{self.vector}:nan", says="number")
        cannot("--control-vector-layer-range", 1, 2, says="name some")
        cannot("--control-vector", self.vector, "--control-vector-layer-range", 3, 2, says="before the first")
        cannot("--control-vector", self.vector, "--control-vector-layer-range", 900, 901, says="no layers")
        cannot("--control-vector", write_vectors(self.folder / "wide.gguf", {"direction.1": [0.0] * (self.dim + 1)}), says="another model's")
        cannot("--control-vector", write_vectors(self.folder / "deep.gguf", {f"direction.{self.layers}": [0.0] * self.dim}), says="layers 1 to")
        self.refused("serve", "--control-vector", self.vector, says="--model")


if __name__ == "__main__":
    unittest.main()
