"""What `cmake --install` leaves: a C program finds the library by pkg-config and by CMake, and answers."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

from harness import DEMO, MILLRACE, ROOT, SANITIZED
from serving import Server

BUILD = pathlib.Path(MILLRACE).parent
QUESTION = "What is the capital of France?"
PROJECT = """cmake_minimum_required(VERSION 3.25)
project(user C)
find_package(millrace 0.1 REQUIRED)
add_executable(user {source})
target_link_libraries(user PRIVATE millrace::millrace)
"""


class Install(unittest.TestCase):
    def setUp(self):
        if SANITIZED or not (BUILD / "libmillrace.so").exists():
            self.skipTest("skipped: a sanitized library, or none")
        for tool in ("cmake", "cc", "pkg-config", "nm"):
            if not shutil.which(tool):
                self.skipTest(f"skipped: {tool} is not there")
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.prefix = pathlib.Path(self.folder.name) / "prefix"
        self.call("cmake", "--install", BUILD, "--prefix", self.prefix)
        self.pc = next(self.prefix.rglob("millrace.pc")).parent
        self.env = {**os.environ, "PKG_CONFIG_PATH": str(self.pc), "LD_LIBRARY_PATH": str(self.pc.parent)}

    def call(self, *command, env=None):
        outcome = subprocess.run([str(word) for word in command], capture_output=True, text=True, env=env, timeout=300)
        self.assertEqual(outcome.returncode, 0, f"{command}\n{outcome.stdout}{outcome.stderr}")
        return outcome.stdout

    def test_pkg_config(self):
        flags = self.call("pkg-config", "--cflags", "--libs", "millrace", env=self.env).split()
        program = self.prefix / "generate"
        self.call("cc", "-std=c11", ROOT / "examples/generate.c", *flags, "-o", program)
        self.assertIn("Paris", self.call(program, DEMO, QUESTION, env=self.env))

    def test_cmake_package(self):
        project = pathlib.Path(self.folder.name) / "project"
        project.mkdir()
        (project / "CMakeLists.txt").write_text(PROJECT.format(source=ROOT / "examples/generate.c"))
        self.call("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.call("cmake", "--build", project / "build")
        self.assertIn("Paris", self.call(project / "build/user", DEMO, QUESTION))

    def test_nothing_but_the_api_is_exported(self):
        library = next(self.prefix.rglob("libmillrace.so.0"))
        names = [line.split()[-1] for line in self.call("nm", "-D", "--defined-only", library).splitlines()]
        self.assertGreater(len(names), 20)
        self.assertEqual([name for name in names if not name.startswith("millrace_")], [])

    def test_its_name_on_pypi_is_its_own(self):
        """`millrace` is another product there."""
        project = (ROOT / "python/pyproject.toml").read_text()
        self.assertRegex(project, r'(?m)^name = "millrace-llm"$')
        self.assertRegex(project, r'(?m)^packages = \["millrace"\]$')
        for page in (ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), ROOT / "python/README.md"):
            self.assertNotRegex(page.read_text(), r"pip install (?:\./)?millrace(?![-_]llm)", page)

    def test_the_version_is_one(self):
        version = re.search(r"^project\(millrace VERSION (\S+)", (ROOT / "CMakeLists.txt").read_text(), re.M)[1]
        self.assertEqual(self.call(MILLRACE, "--version").strip(), f"millrace {version}")
        self.assertEqual(self.call("pkg-config", "--modversion", "millrace", env=self.env).strip(), version)
        self.assertIn(f"## {version}", (ROOT / "CHANGELOG.md").read_text())
        self.assertTrue((self.prefix / "share/doc/millrace/LICENSE").exists())


class ConfigFile(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.path = pathlib.Path(folder.name) / "serve.conf"

    def refused(self, text):
        self.path.write_text(text)
        outcome = subprocess.run([MILLRACE, "serve", "--port", "1", "--config", self.path], capture_output=True, text=True, timeout=60)
        self.assertEqual(outcome.returncode, 2, outcome.stderr)
        return outcome.stderr

    def test_options_come_from_it_and_the_command_line_goes_first(self):
        self.path.write_text(f"# a comment\n\nport = 1\n  api-key=good\napi-key = too\nmodels = {DEMO}\n")
        with Server("--config", self.path) as server:  # says --port 0
            for key, status in (("good", 200), ("too", 200), ("bad", 401)):
                self.assertEqual(server.request("GET", "/v1/models", headers={"X-Api-Key": key})[0], status)

    def test_what_it_cannot_hold_is_named_with_its_line(self):
        self.assertIn("serve.conf:2: there is no option 'prot'", self.refused("\nprot = 1\n"))
        self.assertIn("'ram' needs a value", self.refused("ram\n"))
        self.assertIn("'daemon' takes no value", self.refused("daemon = yes\n"))
        self.assertIn("serve.conf:2: 'ram' appears twice; remove one of the lines", self.refused("ram = 1G\nram = 2G\n"))
        self.assertIn("--parallel", self.refused("parallel = 0\n"))
        self.assertIn("there is no option 'config'", self.refused("config = other\n"))


class Completion(unittest.TestCase):
    def script(self, shell):
        return subprocess.run([MILLRACE, "completion", shell], capture_output=True, text=True, check=True, timeout=60).stdout

    def completed(self, *words):
        call = ('millrace() { printf "NAME SIZE\\nfox:8b 5\\nhen:4b 2\\n"; }; COMP_WORDS=("${@}"); COMP_CWORD=$(($# - 1)); '
                '_millrace; printf "%s\\n" "${COMPREPLY[@]}"')
        outcome = subprocess.run(["bash", "-c", self.script("bash") + call, "-", *words], capture_output=True, text=True, timeout=60)
        return outcome.stdout.split()

    def test_bash_completes_verbs_flags_models_and_files(self):
        self.assertEqual(self.completed("millrace", "qu"), ["quantize"])
        self.assertEqual(self.completed("millrace", "serve", "--conf"), ["--config"])
        self.assertEqual(self.completed("millrace", "-v", "serve", "--kv"), ["--kv", "--kv-tokens"])
        self.assertEqual(self.completed("millrace", "run", "fo"), ["fox:8b"])
        self.assertEqual(self.completed("millrace", "run", str(ROOT / "models/demo-m")), [DEMO])

    def test_bash_completes_what_a_flag_takes(self):
        self.assertEqual(self.completed("millrace", "run", "--device", ""), ["auto", "cpu", "cuda"])
        self.assertEqual(self.completed("millrace", "run", "--device", "=", "c"), ["cpu", "cuda"])  # bash cuts at "="
        self.assertEqual(self.completed("millrace", "run", "--device", "="), ["auto", "cpu", "cuda"])
        self.assertEqual(self.completed("millrace", "bench", "--kv", "q"), ["q8_0", "q4_0", "q3", "q2"])
        self.assertEqual(self.completed("millrace", "bench", "--isa", "avx"), ["avx2", "avx_vnni", "avx512"])
        self.assertEqual(self.completed("millrace", "run", "--storage", "p"), ["pread-direct", "pread"])
        self.assertEqual(self.completed("millrace", "serve", "--prefetch", "o"), ["off", "on"])
        self.assertEqual(self.completed("millrace", "serve", "--log-format", "j"), ["json"])
        self.assertEqual(self.completed("millrace", "serve", "--prompt-cache", "o"), ["on", "off"])
        self.assertEqual(self.completed("millrace", "serve", "--prompt-cache", str(ROOT / "model")), [str(ROOT / "models")])
        self.assertEqual(self.completed("millrace", "run", "--draft", "fo"), ["fox:8b"])

    def test_what_help_hides_no_shell_offers(self):
        self.assertEqual(self.completed("millrace", "pull", "--"), ["--help", "--no-fit", "--no-mmproj", "--ram", "--vram", "--dtype", "--connections", "--verbose", "--quiet"])
        for shell in ("bash", "zsh", "fish"):
            script = self.script(shell)
            self.assertIn("no-fit", script)
            for flag in ("retry-ms", "attempts", "stall", "no-graphs", "inject-fault"):
                self.assertNotRegex(script, rf"(--|-l ){flag}\b", shell)

    def test_other_shells_take_theirs(self):
        for shell in ("zsh", "fish"):
            script = self.script(shell)
            self.assertIn("quantize", script)
            self.assertIn("auto cpu cuda", script)
            if shutil.which(shell):
                with self.subTest(shell=shell):
                    checked = subprocess.run([shell, "-n"], input=script, capture_output=True, text=True, timeout=60)
                    self.assertEqual((checked.returncode, checked.stderr), (0, ""))


if __name__ == "__main__":
    unittest.main()
