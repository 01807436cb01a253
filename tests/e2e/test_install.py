"""What `cmake --install` leaves: a C program finds the library by pkg-config and by CMake, and answers."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from harness import DEMO, MILLRACE, ROOT, SANITIZED

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


if __name__ == "__main__":
    unittest.main()
