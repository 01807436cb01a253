"""The Python package against the bundled model.  MILLRACE_LIBRARY=build/release/libmillrace.so python3 -m unittest discover python/tests"""
import array
import ctypes
import gc
import os
import pathlib
import random
import re
import struct
import subprocess
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

    def test_a_stream_is_an_iterator(self):
        self.assertEqual("".join(self.engine.stream(QUESTION, temperature=0)), "The capital of France is Paris.")
        story = self.engine.stream([{"role": "user", "content": "Tell me a story about a fox and a lantern."}], temperature=0)
        self.assertTrue(next(story))
        story.close()  # as leaving a loop does: the answer ends
        with self.assertRaises(millrace.MillraceError):
            list(self.engine.stream(QUESTION, temperature=-1))

    def test_tools_go_to_the_template(self):
        tools = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
        with self.assertRaisesRegex(millrace.MillraceError, "template knows of no tools"):  # as the bundled model's
            self.engine.generate(QUESTION, tools=tools, max_tokens=1)
        self.assertEqual(self.engine.generate(QUESTION, tools=[], temperature=0).text, "The capital of France is Paris.")
        with self.assertRaises(TypeError):
            self.engine.generate("text", tools=tools)

    def test_without_the_library(self):
        said = subprocess.run([sys.executable, "-c", "import millrace"], capture_output=True, text=True,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "MILLRACE_LIBRARY": "/no/such.so"}).stderr
        self.assertIn("ImportError: millrace needs the library", said)

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


def q8_0(data):
    """Plain Python's reading of Q8_0: a float16 scale and 32 int8."""
    out = []
    for at in range(0, len(data), 34):
        d, *q = struct.unpack_from("<e32b", data, at)
        out += [d * x for x in q]
    return out


def q4_0(data):
    """A float16 scale, and 16 bytes: low nibbles are the first 16 weights, high ones the others, 8 being 0."""
    out = []
    for at in range(0, len(data), 18):
        d, *q = struct.unpack_from("<e16B", data, at)
        out += [d * ((x & 15) - 8) for x in q] + [d * ((x >> 4) - 8) for x in q]
    return out


def blocks_of(format, count, seed):
    """`count` blocks with a scale in float16 before bytes, as struct's format says, of random numbers."""
    draw = random.Random(seed)
    return b"".join(struct.pack("<e", draw.uniform(-0.1, 0.1)) + draw.randbytes(struct.calcsize("<" + format) - 2)
                    for _ in range(count))


class ComputeTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = millrace.ModelFile(DEMO)
        draw = random.Random(7)
        cls.x = array.array("f", [draw.gauss(0, 1) for _ in range(4096)])

    def refused(self, code, call, *arguments, **options):
        with self.assertRaises(millrace.MillraceError) as refused:
            call(*arguments, **options)
        self.assertEqual(refused.exception.code, code)
        return str(refused.exception)

    def test_blocks_are_what_plain_python_makes_of_them(self):
        for name, read, format in (("Q8_0", q8_0, "e32b"), ("Q4_0", q4_0, "e16B")):
            data = blocks_of(format, 12, name)
            got = millrace.dequantize(data, type=name, shape=(2, 3, 64))
            self.assertEqual((got.shape, got.format), ((2, 3, 64), "f"))
            flat = got.view.cast("B").cast("f")
            self.assertEqual(list(flat), read(data), name)  # exact: a float16 times a small integer
            self.assertEqual(list(millrace.dequantize(data, type=name.lower()).view), read(data))  # one row of all

    def test_floats_are_themselves(self):
        self.assertEqual(list(millrace.dequantize(self.x).view), list(self.x))
        halves = struct.pack("<4e", 0.5, -2, 65504, 2**-24)
        self.assertEqual(list(millrace.dequantize(halves, type="F16").view), [0.5, -2, 65504, 2**-24])
        bits = (ctypes.c_char * 8)(*halves)
        lent = millrace.Array(ctypes.addressof(bits), (4,), "e", bits)  # as view_tensor gives float16
        self.assertEqual(list(millrace.dequantize(lent).view), [0.5, -2, 65504, 2**-24])
        self.assertEqual((lent.tolist(), lent[1], list(lent)), ([0.5, -2, 65504, 2**-24], -2, [0.5, -2, 65504, 2**-24]))
        rows = millrace.Array(ctypes.addressof(bits), (1, 2, 2), "e", bits)
        self.assertEqual((rows.tolist(), rows[0][1]), ([[[0.5, -2], [65504, 2**-24]]], [65504, 2**-24]))
        if sys.version_info >= (3, 12):
            self.assertEqual(lent.view.tolist(), lent.tolist())
        else:
            with self.assertRaisesRegex(BufferError, "float16; take dequantize"):
                lent.view
        self.assertEqual(list(millrace.gemv(struct.pack("<4f", 2, 1, 0, 0), lent, type="F32", shape=(1, 4)).view), [-1])
        self.assertEqual(list(millrace.dequantize(struct.pack("<2H", 0x3f80, 0xc040), type=30).view), [1, -3])

    def test_any_buffer_will_do(self):
        data = blocks_of("e32b", 8, 1)
        expected = millrace.dequantize(data, type="Q8_0", shape=(4, 64)).tolist()
        aside = memoryview(b"x" + data)[1:]  # not aligned
        for buffer in (bytearray(data), memoryview(data), aside, (ctypes.c_char * len(data)).from_buffer_copy(data)):
            self.assertEqual(millrace.dequantize(buffer, type=8, shape=(4, 64)).tolist(), expected)
        rows = memoryview(data).cast("B", (4, 68))  # as view_tensor gives blocks
        self.assertEqual(millrace.dequantize(rows, type="Q8_0").tolist(), expected)
        file = millrace.load_file(DEMO)
        tensor = next(t for t in self.model if t.dtype == "Q4_K" and len(t.shape) == 2)
        part = file.view[tensor.offset:tensor.offset + tensor.nbytes]
        self.assertEqual(millrace.dequantize(part, type=tensor.dtype, shape=tensor.shape).tolist(),
                         millrace.dequantize(self.model.view_tensor(tensor.name)).tolist())

    def test_products_are_those_of_the_floats(self):
        """Rounding x to int8 moves a term by up to |w| amax / 254, and so the sum by some roots of the mean square."""
        tensors = {t.dtype: t for t in self.model if len(t.shape) == 2}
        self.assertGreaterEqual(len(tensors), 2)
        cases = [(t.dtype, self.model.view_tensor(t.name), t.shape[1], {}) for t in tensors.values()]
        cases += [("F32", millrace.dequantize(self.model.view_tensor(tensors["Q4_K"].name)), tensors["Q4_K"].shape[1], {}),
                  ("F16", struct.pack("<1024e", *self.x[:1024]), 128, {"type": "F16", "shape": (8, 128)}),
                  ("Q8_0", blocks_of("e32b", 40, 2), 128, {"type": "Q8_0", "shape": (10, 128)}),
                  ("Q4_0", blocks_of("e16B", 44, 3), 128, {"type": "Q4_0", "shape": (11, 128)})]
        for name, weight, cols, options in cases:
            x = self.x[:cols]
            amax = max(map(abs, x))
            y = millrace.gemv(weight, x, **options)
            rows = millrace.dequantize(weight, **options).tolist()
            self.assertEqual((y.shape, y.format), ((len(rows),), "f"), name)
            for row, got in zip(rows, y.view):
                norm = sum(w * w for w in row) ** 0.5
                bound = norm * (1e-5 * cols ** 0.5 if name in ("F32", "F16", "BF16") else 6 * amax / 127 / 12 ** 0.5)
                self.assertLess(abs(got - sum(w * v for w, v in zip(row, x))), bound, name)

    def test_threads_and_forms_of_x_change_no_bit(self):
        embeddings = self.model.view_tensor("token_embd.weight")
        x = self.x[:256]
        expected = bytes(millrace.gemv(embeddings, x, threads=1).view)
        for threads in (0, 2, 3):
            self.assertEqual(bytes(millrace.gemv(embeddings, x, threads=threads).view), expected)
        aside = memoryview(b"x" + x.tobytes())[1:].cast("f")
        for same in (list(x), array.array("d", x), memoryview(x), aside, millrace.dequantize(x)):
            self.assertEqual(bytes(millrace.gemv(embeddings, same).view), expected)
        one = bytes(millrace.dequantize(embeddings, threads=1).view)
        self.assertEqual(bytes(millrace.dequantize(embeddings, threads=3).view), one)

    def test_numpy_goes_in_and_comes_out(self):
        try:
            import numpy
        except ImportError:
            self.skipTest("skipped: numpy is not there")
        weight = self.model.view_tensor("token_embd.weight")
        floats = numpy.from_dlpack(millrace.dequantize(weight))
        x = numpy.asarray(self.x[:256])
        y = numpy.from_dlpack(millrace.gemv(weight, x))
        self.assertLess(numpy.abs(y - floats @ x).max(), 0.03 * numpy.abs(y).max())
        exact = numpy.from_dlpack(millrace.gemv(floats, x))
        numpy.testing.assert_allclose(exact, floats @ x, atol=1e-4)
        half = numpy.from_dlpack(millrace.gemv(floats.astype("e"), x.astype("e")))
        numpy.testing.assert_allclose(half, floats @ x, atol=1e-2)
        doubles = numpy.from_dlpack(millrace.gemv(weight, x.astype("d")))
        self.assertEqual(doubles.tolist(), y.tolist())
        experts = next(t for t in self.model if len(t.shape) == 3)  # a mixture's: one of them is a matrix
        blocks = numpy.from_dlpack(self.model.view_tensor(experts.name))
        whole = numpy.from_dlpack(millrace.dequantize(self.model.view_tensor(experts.name)))
        numpy.testing.assert_array_equal(numpy.from_dlpack(millrace.dequantize(blocks[1], type=experts.dtype)), whole[1])
        with self.assertRaises(BufferError):
            millrace.dequantize(floats.T)

        class Lent:  # what torch's tensors have, which are no buffers
            own = millrace.dequantize(weight)

            def __dlpack__(self, **options):
                return self.own.__dlpack__(**options)

            def __dlpack_device__(self):
                return self.own.__dlpack_device__()

        self.assertEqual(numpy.from_dlpack(millrace.gemv(Lent(), x)).tolist(), exact.tolist())

    def test_what_does_not_fit_is_refused(self):
        data, x = blocks_of("e32b", 4, 1), self.x[:64]
        self.assertIn("type=", self.refused("invalid_argument", millrace.dequantize, data))
        self.refused("unsupported", millrace.dequantize, data, type="Q9_9")
        self.refused("unsupported", millrace.dequantize, data, type=5)
        self.refused("unsupported", millrace.dequantize, array.array("i", [1, 2]))
        for shape in ((2, 32), (2, 60), (3, 64), (), (0, 64), (-2, -64), (1 << 40, 64)):
            self.assertIn("shape", self.refused("invalid_argument", millrace.dequantize, data, type="Q8_0", shape=shape))
        self.refused("invalid_argument", millrace.dequantize, data[:-1], type="Q8_0")
        self.refused("invalid_argument", millrace.dequantize, b"", type="Q8_0")
        self.refused("invalid_argument", millrace.gemv, data, self.x[:63], type="Q8_0", shape=(2, 64))
        self.refused("invalid_argument", millrace.gemv, data, x, type="Q8_0", shape=(1, 2, 64))
        self.refused("invalid_argument", millrace.gemv, data, x, type="Q8_0", shape=(2, 64), threads=-1)
        with self.assertRaises(TypeError):
            millrace.dequantize(17, type="Q8_0")

    def test_every_type_that_the_engine_knows_is_known_here(self):
        from millrace.loader import _TYPES
        dtypes, blocks = ((ROOT / "src/tensor" / name).read_text() for name in ("dtype.cpp", "blocks.h"))
        ids = dict(re.findall(r"(\w+) = (\d+),", (ROOT / "src/tensor/dtype.h").read_text()))
        constants = dict(re.findall(r"constexpr int (k\w+) = (\d+);", blocks))
        sizes = dict(re.findall(r"sizeof\((\w+)\) == (\d+)", blocks))
        rows = re.findall(r'DTypeInfo\{DType::(\w+), "(\w+)", (\w+), (?:sizeof\((\w+)\)|(\d+)), (\w+)\}', dtypes)
        self.assertEqual(len(rows), len(ids))
        known = {int(ids[id]): (name, int(constants.get(block, block)), int(sizes[size] if size else number))
                 for id, name, block, size, number, _ in rows}
        self.assertEqual({id: row[:3] for id, row in _TYPES.items()}, known)
        for id, _, _, _, _, computable in rows:
            name, block, block_bytes, _ = _TYPES[int(ids[id])]
            zeros = bytes(block_bytes)  # the library takes a block of this size, or none
            if computable == "true":
                self.assertEqual(millrace.dequantize(zeros, type=name).shape, (block,))
            else:
                self.refused("unsupported", millrace.dequantize, zeros, type=name)


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

    @unittest.skipIf(sys.version_info < (3, 12), "skipped: Python before 3.12 knows no __buffer__")
    def test_an_array_is_a_buffer(self):
        array = millrace.load_file(DEMO)
        self.assertEqual(memoryview(array), array.view)

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
