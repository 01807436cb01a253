"""`millrace pull` against a hub on this machine that cuts, stalls, lies and refuses; then what the store does by name."""
import base64
import hashlib
import json
import os
import pathlib
import resource
import signal
import subprocess
import tempfile
import time
import unittest

from harness import DEMO, DRAFT, MILLRACE, SYNTH, WINDOWS, Case
from hub import Hub
from seeing import PICTURES, TOWERS, make_seeing
from serving import Server

NAME = "someone/tiny-GGUF"


class StoreCase(Case):
    @classmethod
    def setUpClass(cls):
        cls.model = pathlib.Path(DRAFT).read_bytes()

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.store = pathlib.Path(folder.name) / "models"
        self.hub = Hub({"tiny-Q4_K_M.gguf": self.model, "tiny-Q8_0.gguf": self.model + b"\0" * 64})
        self.addCleanup(self.hub.close)
        self.env = {"MILLRACE_MODELS": str(self.store), "HF_ENDPOINT": self.hub.url, "HF_TOKEN": "", "http_proxy": "",
                    "HTTP_PROXY": ""}
        self.quick = ("--retry-ms", "10", "--no-fit")

    def pull(self, name=f"hf.co/{NAME}:Q4_K_M", *args):
        return self.ok("pull", name, *self.quick, *args, env=self.env)

    def pull_refused(self, says, *args, name=f"hf.co/{NAME}:Q4_K_M"):
        outcome = self.refused("pull", name, *self.quick, *args, says=says, env=self.env)
        self.assertEqual(self.listed(), [], "half a model is listed")
        return outcome

    def listed(self):
        return [model["name"] for model in json.loads(self.ok("list", "--json", env=self.env).out)]

    def blobs(self):
        return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in (self.store / "blobs").iterdir()}

    def check_whole(self, count=1):
        blobs = self.blobs()
        self.assertEqual(len(blobs), count)
        for name, digest in blobs.items():
            self.assertEqual(name, f"sha256-{digest}")
        self.assertFalse(list((self.store / "partial").iterdir()), "a part was left behind")


class PullTest(StoreCase):
    def test_pull_list_run_and_remove(self):
        outcome = self.ok("pull", f"hf.co/{NAME}:q4_k_m", env=self.env)
        for words in ("pulling manifest", "pulling " + hashlib.sha256(self.model).hexdigest()[:12], "fits: ",
                      "verifying sha256 digest", "writing manifest", "success"):
            self.assertIn(words, outcome.err)
        self.assertEqual(self.listed(), [f"{NAME}:Q4_K_M"])
        self.check_whole()
        answers = {self.ok("run", model, "-p", "Hello", "-n", "8", "--temp", "0", env=self.env).out
                   for model in (f"{NAME}:Q4_K_M", f"hf.co/{NAME}", f"{NAME}:q4_k_m", DRAFT)}
        self.assertEqual(len(answers), 1)
        self.assertIn("embedding", self.ok("plan", NAME, env=self.env).out)
        self.ok("rm", NAME, env=self.env)
        self.assertEqual((self.listed(), self.blobs()), ([], {}))
        self.refused("run", NAME, "-p", "x", says="millrace pull", env=self.env)

    def test_splits(self):
        folder = self.store.parent / "made"
        folder.mkdir()
        subprocess.run([SYNTH, str(folder / "big.gguf"), "--split", "400k", "--layers", "4", "--dim", "64", "--ff", "128", "--heads",
                        "2", "--kv-heads", "2", "--head-dim", "32", "--vocab", "600", "--ctx", "256"],
                       check=True, stdout=subprocess.DEVNULL)
        parts = sorted(folder.iterdir())
        self.assertGreater(len(parts), 1)
        self.hub.files = {f"Q8_0/{part.name}": part.read_bytes() for part in parts}
        self.ok("pull", NAME, "--retry-ms", "10", env=self.env)
        self.assertEqual(self.listed(), [f"{NAME}:latest"])
        self.check_whole(len(parts))
        self.ok("run", NAME, "--raw", "-p", "Hello", "-n", "2", env=self.env)
        del self.hub.files[f"Q8_0/{parts[-1].name}"]  # a hole: no model
        self.refused("pull", NAME, *self.quick, says="GGUF", env=self.env)

    def test_the_usual_variant_and_one_that_is_not_there(self):
        self.pull(NAME)
        self.assertEqual(self.listed(), [f"{NAME}:Q4_K_M"])
        self.refused("pull", f"{NAME}:Q5_0", *self.quick, says=["Q5_0", "Q8_0"], env=self.env)

    def test_cut_connections_and_busy_servers(self):
        self.hub.cuts_left, self.hub.errors_left = 12, 2
        self.pull()
        self.check_whole()

    def test_a_server_that_ignores_ranges(self):
        self.hub.behaviour = {"no ranges"}
        self.hub.cuts_left = 3
        self.pull()
        self.check_whole()

    def test_redirects_and_pages(self):
        self.hub.behaviour = {"redirect", "pages"}
        self.pull()
        self.check_whole()
        # One address a connection and file, not one a chunk.
        self.assertLessEqual(len(self.hub.signed), 4 * len(self.hub.files), self.hub.signed)

    def test_what_is_sent_on_gets_no_token_and_is_asked_for_again_when_it_is_over(self):
        self.hub.behaviour = {"redirect"}
        self.hub.token = self.env["HF_TOKEN"] = "hf_secret"
        self.hub.uses_of_an_address = 2
        self.pull()
        self.check_whole()
        self.assertGreater(len(self.hub.signed), 1)

    def test_a_wrong_hash_leaves_nothing(self):
        self.hub.behaviour = {"wrong hash"}
        self.pull_refused("SHA-256")
        self.assertEqual(self.blobs(), {})
        self.hub.behaviour = set()
        self.pull()
        self.check_whole()

    def test_a_wrong_length(self):
        self.hub.behaviour = {"wrong length"}
        self.pull_refused("bytes")
        self.hub.behaviour = {"wrong length", "no ranges"}
        self.pull_refused("bytes")

    def test_a_server_that_stalls(self):
        self.hub.behaviour = {"stall"}
        start = time.monotonic()
        self.pull_refused(self.hub.url, "--stall", "1", "--attempts", "2")
        self.assertLess(time.monotonic() - start, 20)

    def test_refusals(self):
        self.pull_refused("has no repository someone/else; check the name", name="someone/else:Q4_0")
        self.pull_refused("hf.co/user/repo", name="unheard-of")
        self.pull_refused("no model name", name="../../etc/passwd")
        self.hub.files = {"only.safetensors": b"x" * 100}
        self.pull_refused("config.json", name=NAME)
        self.hub.files = {"broken-Q4_0.gguf": b"no model at all" * 9000}
        self.pull_refused("GGUF", name=f"{NAME}:Q4_0")
        self.hub.close()
        self.pull_refused(self.hub.url, "--attempts", "2")

    def test_a_token_where_one_is_asked_for(self):
        self.hub.token = "open sesame"
        self.pull_refused("HF_TOKEN")
        self.env["HF_TOKEN"] = "open sesame"
        self.pull()
        self.check_whole()

    def test_a_proxy(self):
        self.env.update(HF_ENDPOINT="http://hub.invalid", HTTP_PROXY=self.hub.url, NO_PROXY="", no_proxy="")
        del self.env["http_proxy"]
        os.environ.pop("http_proxy", None)
        self.pull()
        self.check_whole()

    def test_killed_in_the_middle_it_goes_on(self):
        self.hub.bytes_per_second = 400_000
        environment = {**os.environ, **self.env}
        process = subprocess.Popen([MILLRACE, "pull", NAME, *self.quick, "--connections", "2"], env=environment,
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while self.hub.bytes_sent < len(self.model) * 0.6 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        self.assertEqual(process.wait(), -signal.SIGKILL)
        self.assertEqual(self.listed(), [])
        self.refused("run", NAME, "-p", "x", says="is not on this machine", env=self.env)
        journal = next((self.store / "partial").glob("*/*.journal"))
        with journal.open("ab") as file:
            file.write(b"1")  # a torn line: it must not count as chunk 1
        time.sleep(0.2)
        self.hub.bytes_per_second, self.hub.bytes_sent = None, 0
        self.pull()
        self.check_whole()
        self.assertLess(self.hub.bytes_sent, len(self.model) * 0.8, "what was there was fetched again")

    def test_interrupted_it_says_so(self):
        self.hub.bytes_per_second = 200_000
        process = subprocess.Popen([MILLRACE, "pull", NAME, *self.quick], env={**os.environ, **self.env},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while self.hub.bytes_sent < 100_000 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=10)
        self.assertEqual(process.returncode, 130)
        self.assertIn(b"pull again", err)

    @unittest.skipIf(WINDOWS, "Windows limits no file")
    def test_a_full_disk(self):
        limit = len(self.model) // 2
        process = subprocess.run([MILLRACE, "pull", NAME, *self.quick], env={**os.environ, **self.env}, capture_output=True,
                                 preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))
        self.assertEqual(process.returncode, 1, process.stderr)
        self.assertIn(b"disk is full", process.stderr)
        self.assertEqual(self.listed(), [])
        self.pull()
        self.check_whole()

    def test_a_model_that_does_not_fit_is_refused_before_its_bytes_come(self):
        outcome = self.refused("pull", NAME, "--ram", "1M", says=["would not run here", "--ram"], env=self.env)
        self.assertNotIn("verifying", outcome.err)
        self.assertEqual(self.listed(), [])
        self.pull()

    def test_two_pulls_at_once_share_no_part(self):
        self.hub.bytes_per_second = 400_000
        first = subprocess.Popen([MILLRACE, "pull", NAME, *self.quick], env={**os.environ, **self.env},
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while self.hub.bytes_sent < 50_000:
            time.sleep(0.01)
        self.refused("pull", NAME, *self.quick, says="another process", env=self.env)
        self.assertEqual(first.wait(), 0)
        self.check_whole()


class PicturesTest(StoreCase):
    """Repositories whose models see: the mmproj file comes along."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        with tempfile.TemporaryDirectory() as folder:
            cls.model = make_seeing(pathlib.Path(folder)).read_bytes()
            cls.tower = (pathlib.Path(folder) / "mmproj-sees.gguf").read_bytes()

    def setUp(self):
        super().setUp()
        self.hub.files = {"tiny-Q4_K_M.gguf": self.model, "mmproj-F32.gguf": b"no tower" * 100, "mmproj-F16.gguf": self.tower,
                          "mmproj-Q8_0.gguf": b"no tower" * 100}

    def asked(self):
        return {path.rsplit("/", 1)[1] for path, _ in self.hub.requests}

    def look(self, name):
        return ("run", name, "what?", "--image", PICTURES / "grey.png", "-n", "2", "--ctx", "512")

    def test_the_tower_comes_along_and_goes_with_the_model(self):
        outcome = self.pull(NAME)
        self.assertIn("with mmproj-F16.gguf", outcome.err)
        self.assertEqual(self.asked(), {"main", "tiny-Q4_K_M.gguf", "mmproj-F16.gguf"})
        self.check_whole(2)
        self.ok(*self.look(NAME), env=self.env)
        self.assertIn("vision (", self.ok("show", NAME, env=self.env).out)
        model, = json.loads(self.ok("list", "--json", env=self.env).out)
        self.assertEqual(model["bytes"], len(self.model) + len(self.tower))
        self.ok("cp", NAME, "mine", env=self.env)
        self.ok("rm", NAME, env=self.env)
        self.assertEqual(len(self.blobs()), 2)
        self.ok(*self.look("mine"), env=self.env)
        with Server("--threads", "2", "--ctx", "512", env=self.env) as server:
            self.assertIn("vision", server.json("POST", "/api/show", {"model": "mine"})[1]["capabilities"])
            listed, = server.json("GET", "/api/tags")[1]["models"]
            self.assertEqual(listed["size"], len(self.model) + len(self.tower))
            status, _, lines = server.request("POST", "/api/pull", {"model": NAME, "stream": False})
            self.assertEqual(status, 200, lines)
            picture = base64.b64encode((PICTURES / "grey.png").read_bytes()).decode()
            status, answer = server.json("POST", "/api/generate", {"model": NAME, "prompt": "what?", "images": [picture], "stream": False,
                                                                   "options": {"num_predict": 2, "num_ctx": 512}})
            self.assertEqual(status, 200, answer)
        self.ok("rm", "mine", env=self.env)
        self.ok("rm", NAME, env=self.env)
        self.assertEqual(self.blobs(), {})

    def test_it_can_be_left_out_and_fetched_later(self):
        outcome = self.pull(NAME, "--no-mmproj")
        self.assertIn("mmproj-F16.gguf is left out", outcome.err)
        self.check_whole(1)
        self.refused(*self.look(NAME), says="reads text only", env=self.env)
        self.hub.bytes_sent = 0
        self.pull(NAME)
        self.assertLess(self.hub.bytes_sent, len(self.model))  # that was here
        self.check_whole(2)
        self.ok(*self.look(NAME), env=self.env)
        self.pull(NAME, "--no-mmproj")
        self.check_whole(1)

    def test_what_it_would_not_see_by_is_left_out(self):
        others = {"another model's": (TOWERS / "gemma3-mmproj.gguf").read_bytes(), "none": b"GGUF" + b"no tower" * 100,
                  "of another kind": self.tower.replace(b"qwen3vl_merger", b"qwen9vl_merger"),
                  "of no kind": self.tower.replace(b"clip.projector_type", b"clip.projector_kind")}
        for what, data in others.items():
            with self.subTest(what):
                self.hub.files["mmproj-F16.gguf"] = data
                said = self.pull(NAME).err
                self.assertIn("mmproj-F16.gguf is left out, so that the model sees no pictures: ", said)
                self.assertNotIn(str(self.store), said)
                self.check_whole(1)
        self.hub.files["mmproj-F16.gguf"] = self.tower
        self.hub.behaviour = {"wrong hash"}
        self.ok("rm", NAME, env=self.env)
        self.pull_refused("SHA-256", name=NAME)

    def test_a_recipe_and_an_upload_take_both(self):
        folder = self.store.parent
        (folder / "m.gguf").write_bytes(self.model)
        (folder / "mmproj-m.gguf").write_bytes(self.tower)
        (folder / "apart").mkdir()
        (folder / "apart/mmproj-m.gguf").write_bytes(self.tower)
        (folder / "mmproj-other.gguf").write_bytes((TOWERS / "gemma3-mmproj.gguf").read_bytes())
        recipe = folder / "Modelfile"
        for lines, says in (("FROM ./m.gguf\nFROM ./apart/mmproj-m.gguf", "in the folder of the model"), ("FROM ./m.gguf\nFROM ./mmproj-other.gguf", "gemma3"),
                            ("FROM ./m.gguf\nFROM ./m.gguf", "comes after FROM"), ("FROM ./mmproj-m.gguf", "FROM is missing"),
                            ("FROM ./m.gguf\nFROM ./mmproj-none.gguf", "mmproj-none.gguf")):
            recipe.write_text(lines + "\n")
            self.refused("create", "seen", "-f", recipe, says=says, env=self.env)
        recipe.write_text("FROM ./m.gguf\nFROM ./mmproj-m.gguf\nPARAMETER temperature 0\n")
        self.ok("create", "seen", "-f", recipe, env=self.env)
        self.ok(*self.look("seen"), env=self.env)
        with Server("--threads", "2", "--ctx", "512", env=self.env) as server:
            digests = {}
            for name, data in (("m.gguf", self.model), ("projector.gguf", self.tower), ("other.gguf", (TOWERS / "gemma3-mmproj.gguf").read_bytes())):
                digests[name] = "sha256:" + hashlib.sha256(data).hexdigest()
                self.assertEqual(server.request("POST", f"/api/blobs/{digests[name]}", data)[0], 201)

            def create(*names):
                return server.json("POST", "/api/create", {"model": "up", "files": {name: digests[name] for name in names}, "stream": False})
            self.assertIn("gemma3", create("m.gguf", "other.gguf")[1]["error"])
            self.assertIn("one GGUF file", create("projector.gguf", "other.gguf")[1]["error"])
            self.assertEqual(create("projector.gguf", "m.gguf"), (200, {"status": "success"}))
            self.assertIn("vision", server.json("POST", "/api/show", {"model": "up"})[1]["capabilities"])
        self.ok(*self.look("up"), env=self.env)
        self.ok("rm", "up", env=self.env)
        self.assertFalse(any(digest[7:] in name for name in self.blobs() for digest in (digests["m.gguf"], digests["projector.gguf"])))

    def test_a_plan_names_it(self):
        self.assertIn("pictures: mmproj-F16.gguf (", self.ok("plan", f"hf.co/{NAME}", env=self.env).out)
        self.assertNotIn("pictures: ", self.ok("plan", f"hf.co/{NAME}", "--mmproj", "off", env=self.env).out)
        self.assertEqual(self.listed(), [])
        self.assertLess(self.hub.bytes_sent, 4 * (len(self.model) + len(self.tower)))
        self.pull(NAME)
        self.assertIn("pictures: mmproj-F16.gguf (", self.ok("plan", NAME, env=self.env).out)


class CheckpointTest(StoreCase):
    """Repositories of safetensors: converted as they come, or by convert."""

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.made = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.made.cleanup)
        for folder, shard in (("whole", "5G"), ("shards", "200k")):
            subprocess.run([MILLRACE, "export", DRAFT, f"{cls.made.name}/{folder}", "--max-shard", shard, "-q"], check=True, stdout=subprocess.DEVNULL)

    def setUp(self):
        super().setUp()
        self.serve("whole")

    def serve(self, folder):
        self.folder = pathlib.Path(self.made.name) / folder
        self.hub.files = {path.name: path.read_bytes() for path in self.folder.iterdir()}

    def check_converted(self, name):
        self.assertEqual(self.listed(), [name])
        self.check_whole()
        self.ok("rm", name, env=self.env)

    def test_it_is_converted_as_it_comes(self):
        for folder in ("whole", "shards"):
            self.serve(folder)
            self.hub.files["onnx/model.safetensors"] = self.hub.files["README.txt"] = b"of no use"
            outcome = self.ok("pull", f"hf.co/{NAME}", "--retry-ms", "10", env=self.env)
            for words in ("converted here", "fits: ", "verifying", "converting", "converted to F16", "are deleted", "success"):
                self.assertIn(words, outcome.err)
            self.assertFalse([path for path, _ in self.hub.requests if "onnx" in path or "README" in path])
            answers = {self.ok("run", model, "-p", "Hello", "-n", "8", "--temp", "0", env=self.env).out for model in (NAME, DRAFT)}
            self.assertEqual(len(answers), 1)
            self.check_converted(f"{NAME}:F16")

    def test_the_type_is_the_tag_or_a_flag(self):
        self.pull(f"{NAME}:q8_0")
        self.check_converted(f"{NAME}:Q8_0")
        self.pull(f"{NAME}:latest", "--dtype", "q4_k_m")
        self.check_converted(f"{NAME}:Q4_K_M")
        self.pull_refused(["safetensors", "Q9_9"], name=f"{NAME}:Q9_9")
        self.pull_refused("two types", "--dtype", "q4_0", name=f"{NAME}:q8_0")
        self.pull_refused("cannot quantize", "--dtype", "q9_9", name=NAME)
        self.hub.files = {"tiny-Q4_K_M.gguf": self.model}
        self.pull_refused("GGUF", "--dtype", "q4_0", name=NAME)

    def test_convert_fetches_it(self):
        here, fetched = self.store.parent / "here.gguf", self.store.parent / "fetched.gguf"
        self.ok("convert", self.folder, "-o", here, "--name", "tiny-GGUF", "--dtype", "q8_0")
        outcome = self.ok("convert", f"hf.co/{NAME}", "-o", fetched, "--dtype", "q8_0", "--retry-ms", "10", env=self.env)
        self.assertIn("are deleted", outcome.err)
        self.assertEqual(here.read_bytes(), fetched.read_bytes())
        self.assertFalse(list((self.store / "partial").iterdir()))
        self.assertEqual(self.listed(), [])
        self.refused("convert", f"hf.co/{NAME}:Q8_0", "-o", fetched, says="repository", env=self.env)
        self.hub.files = {"tiny-Q4_K_M.gguf": self.model}
        self.refused("convert", f"hf.co/{NAME}", "-o", fetched, says="no safetensors", env=self.env)

    def test_killed_in_the_middle_it_goes_on(self):
        self.serve("shards")
        self.hub.bytes_per_second = 300_000
        weights = sum(len(data) for name, data in self.hub.files.items() if name.endswith(".safetensors"))
        process = subprocess.Popen([MILLRACE, "pull", NAME, *self.quick, "--connections", "2"], env={**os.environ, **self.env},
                                   stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while self.hub.bytes_sent < weights * 0.7 and process.poll() is None:
            time.sleep(0.01)
        process.send_signal(signal.SIGKILL)
        self.assertEqual(process.wait(), -signal.SIGKILL)
        self.assertEqual(self.listed(), [])
        time.sleep(0.2)
        self.hub.bytes_per_second, self.hub.bytes_sent = None, 0
        self.pull(NAME)
        self.assertLess(self.hub.bytes_sent, weights * 0.8, "what was there was fetched again")
        self.check_converted(f"{NAME}:F16")

    def test_what_cannot_be_converted_is_refused_before_its_weights_come(self):
        config = json.loads(self.hub.files["config.json"])

        def small(says, **changes):
            self.hub.files["config.json"] = json.dumps(config | changes).encode()
            self.hub.bytes_sent = 0
            self.pull_refused(says, name=NAME)
            self.assertLess(self.hub.bytes_sent, len(self.model) // 2)

        small("nobody", model_type="nobody")
        small("bitsandbytes", quantization_config={"quant_method": "bitsandbytes"})
        self.hub.files["config.json"] = json.dumps(config).encode()
        self.hub.bytes_sent = 0
        self.refused("pull", NAME, "--ram", "1M", says=["would not run here", "--ram"], env=self.env)
        self.assertLess(self.hub.bytes_sent, len(self.model) // 2)
        del self.hub.files["tokenizer.json"]
        small("tokenizer.json")

    def test_what_the_hub_says_of_files_holds(self):
        self.hub.behaviour = {"wrong hash"}
        self.pull_refused("SHA-256", name=NAME)
        self.hub.behaviour = {"wrong git hash"}
        self.pull_refused("hash in git", name=NAME)
        self.hub.behaviour = set()
        self.serve("shards")
        del self.hub.files[sorted(name for name in self.hub.files if name.endswith(".safetensors"))[1]]
        self.pull_refused(["lacks", "00002"], name=NAME)
        self.serve("whole")
        self.pull(NAME)
        self.check_converted(f"{NAME}:F16")


class NamesTest(StoreCase):
    def test_create_copy_show_and_shared_bytes(self):
        recipe = self.store.parent / "Modelfile"
        recipe.write_text(f'# mine\nFROM {NAME}\nPARAMETER temperature 0\nPARAMETER num_predict 3\nPARAMETER stop "###"\n'
                          'SYSTEM """\nYou are brief.\n"""\n')
        self.pull()
        self.ok("create", "brief", "-f", recipe, env=self.env)
        self.ok("cp", "brief", "brief:two", env=self.env)
        self.assertEqual(sorted(self.listed()), ["brief:latest", "brief:two", f"{NAME}:Q4_K_M"])
        self.check_whole()
        shown = self.ok("show", "brief:two", env=self.env).out
        for words in ("brief:two", "temperature", "You are brief."):
            self.assertIn(words, shown)
        made = self.ok("show", "brief", "--modelfile", env=self.env).out
        recipe.write_text(made)
        self.ok("create", "again", "-f", recipe, env=self.env)
        self.assertEqual(self.ok("show", "again", "--modelfile", env=self.env).out.splitlines()[1:], made.splitlines()[1:])
        short = self.ok("run", "brief", "-p", "Tell me a story.", env=self.env).out
        longer = self.ok("run", "brief", "-p", "Tell me a story.", "-n", "40", env=self.env).out
        self.assertLess(len(short), len(longer))  # num_predict holds until -n says otherwise
        self.ok("rm", NAME, "brief", env=self.env)
        self.ok("run", "brief:two", "-p", "Hello", env=self.env)
        self.ok("rm", "brief:two", "again", env=self.env)
        self.assertEqual(self.blobs(), {})

    def test_names_of_one_file_share_what_is_loaded_of_it(self):
        """A server loads it once, and keeps it when one of them goes: of the store's own file, and of one that it was given."""
        self.pull()
        with Server("--models", DEMO, "--threads", "1", env=self.env) as server:
            for name in (f"{NAME}:Q4_K_M", pathlib.Path(DEMO).stem + ":latest"):
                self.assertEqual(server.request("POST", "/api/copy", {"source": name, "destination": "alias"})[0], 200)
                for used in ("alias", name):
                    self.assertEqual(server.request("POST", "/tokenize", {"model": used, "content": "a"})[0], 200)
                loaded = lambda: [one["name"] for one in server.json("GET", "/api/ps")[1]["models"]]
                self.assertLessEqual({"alias:latest", name}, set(loaded()))
                stream = server.stream("/api/generate", {"model": name, "prompt": "a", "options": {"num_predict": 400}})
                stream.readline()
                self.assertEqual(server.request("DELETE", "/api/delete", {"model": "alias"})[0], 200)
                self.assertIn(b'"done":true', stream.read())
                time.sleep(0.2)
                self.assertIn(name, loaded())
                self.assertNotIn("alias:latest", loaded())
            self.assertEqual(len(loaded()), 2)
            self.assertEqual(server.request("DELETE", "/api/delete", {"model": NAME})[0], 200)
            end = time.monotonic() + 60
            while len(loaded()) > 1 and time.monotonic() < end:
                time.sleep(0.05)
            self.assertEqual(len(loaded()), 1, "a file without a name stays loaded")

    def test_create_from_a_file_leaves_it_where_it_is(self):
        recipe = self.store.parent / "Modelfile"
        recipe.write_text(f"FROM {DRAFT}\n")
        self.ok("create", "mine:v1", "-f", recipe, env=self.env)
        self.assertFalse((self.store / "blobs").exists())
        self.ok("run", "mine", "-p", "Hello", "-n", "3", env=self.env)
        self.ok("rm", "mine:v1", env=self.env)
        self.assertTrue(os.path.exists(DRAFT))

    def test_recipes_that_are_refused(self):
        recipe = self.store.parent / "Modelfile"
        for text, says in ((f"FROM {DRAFT}\nADAPTER lora.gguf\n", "ADAPTER"), ("SYSTEM hi\n", "FROM"),
                           (f"FROM {DRAFT}\nPARAMETER heat 3\n", "heat"), (f"FROM {DRAFT}\nFRMO x\n", "line 2"),
                           (f"FROM {DRAFT}\nPARAMETER top_k many\n", "top_k"), ("FROM nowhere\n", "nowhere"),
                           (f"FROM {DRAFT}\nTEMPLATE {{{{ .Tools }}}}\n", ".Tools"), (f'FROM {DRAFT}\nSYSTEM """x\n', "no end")):
            recipe.write_text(text)
            self.refused("create", "bad", "-f", recipe, says=says, env=self.env)
        self.refused("rm", "nobody", says="nobody", env=self.env)
        self.refused("cp", "nobody", "somebody", says="nobody", env=self.env)
        recipe.write_text(f"FROM {DRAFT}\n")
        self.refused("create", "../up", "-f", recipe, says="no model name", env=self.env)

    def test_a_damaged_store_is_an_error_not_a_crash(self):
        self.pull()
        blob = next((self.store / "blobs").iterdir())
        blob.write_bytes(b"short")
        self.refused("run", NAME, "-p", "x", says="instead of", env=self.env)
        blob.unlink()
        self.refused("run", NAME, "-p", "x", says="instead of" if WINDOWS else "gone", env=self.env)  # a hard link there
        manifest = next((self.store / "manifests").rglob("*.json"))
        for text in ("", "[]", '{"format": 3}', '{"format": "gguf", "files": [{"name": "../../x", "bytes": 1}]}'):
            manifest.write_text(text)
            self.refused("run", NAME, "-p", "x", says="pull", env=self.env)
            self.assertEqual(self.listed(), [])


if __name__ == "__main__":
    unittest.main()
