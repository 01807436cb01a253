"""The Python package against the bundled model.  MILLRACE_LIBRARY=build/release/libmillrace.so python3 -m unittest discover python/tests"""
import ctypes
import gc
import pathlib
import struct
import sys
import tempfile
import threading
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "python"))
import millrace

DEMO = ROOT / "models/demo-moe-q4_k_m.gguf"
QUESTION = [{"role": "user", "content": "What is the capital of France?"}]


class EngineTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.engine = millrace.Engine(DEMO, device="cpu", ram_bytes=100_000_000, max_sequences=4)

    @classmethod
    def tearDownClass(cls):
        cls.engine.close()

    def test_an_answer_comes_in_pieces(self):
        pieces = []
        answer = self.engine.generate(QUESTION, on_text=pieces.append, temperature=0)
        self.assertEqual(answer.text, "The capital of France is Paris.")
        self.assertEqual("".join(pieces), answer.text)
        self.assertGreater(len(pieces), 1)
        self.assertEqual((answer.finish, answer.answer_tokens > 3, answer.prompt_tokens > 5), ("stop", True, True))

    def test_ids_and_messages_ask_the_same(self):
        ids = self.engine.chat_tokens(QUESTION)
        self.assertEqual(self.engine.generate(ids, temperature=0).text, self.engine.generate(QUESTION, temperature=0).text)
        self.assertIn("capital of France", self.engine.detokenize(ids, with_special=True))
        self.assertEqual(self.engine.detokenize(self.engine.tokenize("Ünïcode, too")), "Ünïcode, too")
        self.assertEqual(self.engine.tokenize(""), [])

    def test_stop_length_and_the_callback_end_an_answer(self):
        self.assertEqual(self.engine.generate(QUESTION, temperature=0, stop=[" Paris"]).text, "The capital of France is")
        self.assertEqual(self.engine.generate(QUESTION, temperature=0, max_tokens=2).finish, "length")
        story = [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]
        self.assertEqual(self.engine.generate(story, temperature=0, on_text=lambda _: False).finish, "cancelled")

    def test_what_the_callback_raises_arrives(self):
        with self.assertRaises(ZeroDivisionError):
            self.engine.generate(QUESTION, on_text=lambda _: 1 / 0)

    def test_threads_share_an_engine(self):
        answers = [None] * 4

        def ask(i):
            answers[i] = self.engine.generate(QUESTION, temperature=0).text

        threads = [threading.Thread(target=ask, args=(i,)) for i in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        self.assertEqual(set(answers), {"The capital of France is Paris."})

    def test_embeddings_are_rows_of_length_one(self):
        vectors = self.engine.embed(["one text", "another"])
        view = vectors.view
        self.assertEqual((view.shape, view.format), (vectors.shape, "f"))
        for row in vectors.tolist():
            self.assertAlmostEqual(sum(x * x for x in row), 1, places=5)
        self.assertEqual(self.engine.embed(["another"]).tolist()[0], vectors.tolist()[1])
        del vectors
        gc.collect()
        self.assertAlmostEqual(sum(x * x for x in view.tolist()[0]), 1, places=5)  # the view keeps the memory

    def test_the_plan_and_what_was_moved(self):
        self.assertIsInstance(self.engine.plan(), dict)
        self.assertEqual(millrace.plan(DEMO, device="cpu", ram_bytes=100_000_000).keys(), self.engine.plan().keys())
        self.assertGreater(self.engine.counters()["passes"], 0)

    def test_errors_say_what_to_do(self):
        with self.assertRaises(millrace.MillraceError) as refused:
            millrace.Engine(DEMO, device="cpu", ram_bytes=1_000)
        self.assertEqual(refused.exception.code, "out_of_budget")
        self.assertIn("the least", str(refused.exception))
        with self.assertRaises(millrace.MillraceError) as missing:
            millrace.Engine("/nowhere.gguf")
        self.assertEqual(missing.exception.code, "not_found")

    def test_the_version_is_the_projects(self):
        self.assertIn(f"project(millrace VERSION {millrace.__version__} ", (ROOT / "CMakeLists.txt").read_text())
        self.assertIn(f'version = "{millrace.__version__}"', (ROOT / "python/pyproject.toml").read_text())


class LoaderTest(unittest.TestCase):
    def test_a_file_is_its_bytes_by_every_backend(self):
        expected = DEMO.read_bytes()
        for backend in ("auto", "pread", "mmap"):
            self.assertEqual(bytes(millrace.load_file(DEMO, backend=backend).view), expected, backend)
        with millrace.Loader(DEMO) as loader:
            self.assertEqual(bytes(loader.read(12_345, 67_890).view), expected[12_345:80_235])
            self.assertEqual(loader.file_bytes, len(expected))
            self.assertTrue(loader.backend)

    def test_tensors_lie_where_the_file_has_them(self):
        expected = DEMO.read_bytes()
        model = millrace.ModelFile(DEMO)
        self.assertEqual(model.metadata["general.architecture"], "qwen3moe")
        self.assertGreater(len(model), 50)
        for tensor in model:
            view = model.view_tensor(tensor.name).view
            self.assertEqual(view.nbytes, tensor.nbytes)
            self.assertEqual(view.tobytes(), expected[tensor.offset:tensor.offset + tensor.nbytes])
        norm = model.view_tensor("output_norm.weight")
        self.assertEqual((norm.shape, norm.format), ((256,), "f"))
        del model
        gc.collect()
        self.assertTrue(all(abs(x) < 100 for x in norm.tolist()))  # the tensor keeps the file's memory

    def test_damaged_headers_are_errors(self):
        good = DEMO.read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "x.gguf"
            for bad in (b"", b"GGUF", good[:1000], b"GGML" + good[4:], good[:8] + struct.pack("<QQ", 1 << 60, 1 << 60) + good[24:], good[:-1]):
                path.write_bytes(bad)
                with self.assertRaises(millrace.MillraceError):
                    millrace.ModelFile(path)


class DlpackTest(unittest.TestCase):
    def test_a_capsule_that_nobody_takes_lets_go(self):
        from millrace import _array
        array = millrace.load_file(DEMO)
        before = len(_array._lent)
        capsule = array.__dlpack__()
        self.assertEqual(len(_array._lent), before + 1)
        del capsule
        gc.collect()
        self.assertEqual(len(_array._lent), before)

    def test_numpy_takes_it_without_a_copy(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("skipped: numpy is not there")
        model = millrace.ModelFile(DEMO)
        array = model.view_tensor("output_norm.weight")
        taken = numpy.from_dlpack(array)
        self.assertEqual(taken.__array_interface__["data"][0], ctypes.addressof(array._memory))
        self.assertEqual(taken.tolist(), array.tolist())
        del model, array
        gc.collect()
        self.assertTrue(numpy.isfinite(taken).all())


if __name__ == "__main__":
    unittest.main()
