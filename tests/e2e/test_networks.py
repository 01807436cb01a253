"""Ranks on hosts of their own (network namespaces): the same bits over a slow network, and an end in time when it is cut. Skipped with
a word where there are no namespaces."""
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

import networks
from harness import DEMO, MILLRACE, SANITIZED

PLUGIN = pathlib.Path(MILLRACE).parent / "libmillrace_mpi.so"
MISSING = "there is no mpirun, or millrace was built without mpi.h" if shutil.which("mpirun") is None or not PLUGIN.exists() else networks.unavailable()
BENCH = [MILLRACE, "bench", DEMO, "--json", "--no-warm-up", "-t", "1", "--ram", "100M", "-p", "90"]
SHORT = ["-n", "12", "-r", "1", "--hash-prompt"]


@unittest.skipIf(SANITIZED, "MPI has leaks of its own")
@unittest.skipIf(MISSING, MISSING)
class Networks(unittest.TestCase):
    def hash_of(self, command):
        made = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
        self.assertEqual(made.returncode, 0, made.stderr)
        return json.loads(made.stdout)["logits_hash"]

    def test_bits_over_a_slow_network(self):
        expected = self.hash_of([*BENCH, *SHORT])
        with networks.Network(3, gbit=1, delay_ms=2) as network:
            begin = time.monotonic()
            self.assertEqual(self.hash_of(network.mpirun(*BENCH, *SHORT)), expected)
            self.assertGreater(time.monotonic() - begin, 12 * 3 * 2e-3, "the relay delays nothing")

    def test_a_cut_network_ends_the_job(self):
        for cut in (1, 0):  # a host that follows, and rank 0's
            with self.subTest(cut=cut), networks.Network(2, gbit=1) as network, tempfile.TemporaryFile("w+") as told:
                # So many tokens that it is cut in mid-pass.
                job = subprocess.Popen(network.mpirun(*BENCH, "-n", "400", "-r", "1000", "-v"), stdin=subprocess.DEVNULL,
                                       stdout=subprocess.DEVNULL, stderr=told, start_new_session=True)
                try:
                    self.wait_for(told, "2 ranks: a context", job)
                    time.sleep(1.5)
                    self.assertIsNone(job.poll(), "it ended before the network was cut")
                    begin = time.monotonic()
                    network.cut(cut)
                    job.wait(timeout=60)
                    while left_on(network, "millrace") and time.monotonic() - begin < 10:  # on the other side
                        time.sleep(0.1)
                    self.assertLess(time.monotonic() - begin, 10)
                    said = read(told)
                    self.assertNotEqual(job.returncode, 0, said)
                    self.assertRegex(said, r"error: rank 1 \(host1\)[^\n]*has not been heard of")
                finally:
                    for process in left_on(network):
                        os.kill(process, signal.SIGKILL)
                    job.wait()

    def wait_for(self, told, word, job):
        until = time.monotonic() + 60
        while word not in read(told):
            self.assertIsNone(job.poll(), read(told))
            self.assertLess(time.monotonic(), until, read(told))
            time.sleep(0.1)


def read(file):
    file.seek(0)
    return file.read()


def left_on(network, name=""):
    """Processes of this name that are on these hosts yet."""
    inodes = {os.stat(f"/run/netns/{space}").st_ino for space in network.spaces}
    left = []
    for folder in pathlib.Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and (folder / "ns/net").stat().st_ino in inodes and name in (folder / "comm").read_text():
                left.append(int(folder.name))
        except OSError:
            continue
    return left


if __name__ == "__main__":
    unittest.main()
