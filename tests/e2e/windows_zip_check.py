"""The zip for Windows as packaging/make_windows_zip.sh made it with an address: complete, with true sums, and it works when it is unpacked
anywhere. scripts/test_windows.sh runs it. WINE runs programs of Windows."""
import hashlib
import os
import pathlib
import re
import subprocess
import tempfile
import unittest
import zipfile

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
PACKAGES = ROOT / "build/packages-windows"
VERSION = re.search(r"project\(millrace VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text())[1]
NAME = f"millrace-{VERSION}-windows-x86_64"
MODEL, QUESTION = "share/millrace/demo-moe-q4_k_m.gguf", "What is the capital of France?"
# Parts of every Windows 10.
SYSTEM = {"advapi32.dll", "api-ms-win-core-synch-l1-2-0.dll", "bcrypt.dll", "crypt32.dll", "gdi32.dll", "kernel32.dll", "msvcrt.dll", "shell32.dll",
          "user32.dll", "ws2_32.dll"}
LIBRARIES = ("fmtlib", "spdlog", "pcre2", "utf8proc", "xxhash", "nlohmann-json3", "cli11", "libjpeg-turbo", "libpng1.6", "libwebp", "curl", "openssl",
             "cpp-httplib", "prometheus-cpp", "libz-mingw-w64", "mingw-w64", "gcc-mingw-w64")


class Zip(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.zip = PACKAGES / f"{NAME}.zip"
        cls.sum = hashlib.sha256(cls.zip.read_bytes()).hexdigest()
        folder = tempfile.TemporaryDirectory(suffix=" ü")
        cls.addClassCleanup(folder.cleanup)
        with zipfile.ZipFile(cls.zip) as packed:
            cls.names = packed.namelist()
            packed.extractall(folder.name)
        cls.folder = pathlib.Path(folder.name) / NAME

    def wine(self, *words):
        env = {**os.environ, "WINEPATH": "", "MILLRACE_PROMPT_CACHE": "off"}
        return subprocess.run([os.environ["WINE"], *map(str, words)], cwd=self.folder, env=env, capture_output=True, check=True,
                              timeout=120).stdout.decode()

    def test_it_is_complete_and_in_one_folder(self):
        self.assertTrue(all(name.startswith(NAME + "/") for name in self.names))
        files = {name[len(NAME) + 1:] for name in self.names if not name.endswith("/")}
        self.assertEqual(files - {name for name in files if name.startswith(("lib/cmake/", "lib/pkgconfig/"))}, {
            "README.txt", "bin/millrace.exe", "bin/millrace.dll", "include/millrace.h", "lib/libmillrace.dll.a", "lib/millrace.def",
            "share/doc/millrace/LICENSE", "share/doc/millrace/CHANGELOG.md", "share/doc/millrace/THIRD_PARTY.txt",
            "share/doc/millrace/page-licenses.txt", "share/millrace/demo-moe-q4_k_m.gguf"})
        notices = (self.folder / "share/doc/millrace/THIRD_PARTY.txt").read_text()
        for library in LIBRARIES:
            self.assertIn(f"==== {library}", notices)

    def test_sums(self):
        self.assertEqual((PACKAGES / f"{NAME}.zip.sha256").read_text().split()[0], self.sum)
        filled = {"install.ps1": PACKAGES / "install.ps1", **{path.name: path for path in (PACKAGES / "winget").iterdir()}}
        self.assertEqual(len(filled), 4)
        for name, path in filled.items():
            text = path.read_text()
            self.assertNotRegex(text, "@[A-Z0-9]+@", name)
            self.assertIn(VERSION, text, name)
        self.assertIn(self.sum.upper(), filled["install.ps1"].read_text())
        installer = filled["Millrace.Millrace.installer.yaml"].read_text()
        self.assertIn(f"InstallerUrl: https://downloads.invalid/millrace/{NAME}.zip\n    InstallerSha256: {self.sum.upper()}", installer)
        # What winget puts on the PATH is in the zip.
        self.assertIn(re.search("RelativeFilePath: (.*)", installer)[1].replace("\\", "/"), self.names)

    def test_the_demo_runs_from_it(self):
        self.assertEqual(self.wine("bin/millrace.exe", "--version"), f"millrace {VERSION}\n")
        for model in (MODEL, self.folder / MODEL):
            self.assertIn("Paris", self.wine("bin/millrace.exe", "run", model, "--temp", "0", "-p", QUESTION))

    def test_it_needs_no_dll_but_the_systems(self):
        for name in ("millrace.exe", "millrace.dll"):
            imports = subprocess.run(["x86_64-w64-mingw32-objdump", "-p", self.folder / "bin" / name], capture_output=True, check=True, text=True).stdout
            found = {dll.lower() for dll in re.findall("DLL Name: (.*)", imports)}
            self.assertTrue(found)
            self.assertLessEqual(found, SYSTEM, name)

    def test_a_c_program_with_the_library(self):
        made = self.folder / "bin/generate.exe"
        subprocess.run(["x86_64-w64-mingw32-gcc-posix", "-I", self.folder / "include", ROOT / "examples/generate.c", "-L", self.folder / "lib", "-lmillrace",
                        "-o", made], check=True)
        self.assertIn("Paris", self.wine("bin/generate.exe", MODEL, QUESTION))


if __name__ == "__main__":
    unittest.main()
