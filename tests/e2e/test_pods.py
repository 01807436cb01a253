"""Pods of Kubernetes (packaging/leaderworkerset.yaml): what the manifest starts is what the program takes, and the leader starts mpirun once
its workers let it in. No cluster is asked: ssh and mpirun are stand-ins that say what they were told."""
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

from harness import ROOT, Case

try:
    import yaml
except ImportError:
    yaml = None
SCRIPT = ROOT / "packaging/cluster-pod.sh"


class Pods(Case):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "id_ed25519").write_text("a key")
        (self.folder / "id_ed25519.pub").write_text("its other half")

    def stand_in(self, name, text):
        path = self.folder / name
        path.write_text("#!/bin/sh\n" + text)
        path.chmod(0o755)

    def pod(self, *words, **env):
        return subprocess.run([SCRIPT, *words], capture_output=True, text=True, timeout=60, check=False,
                              env={**os.environ, "PATH": f"{self.folder}:{os.environ['PATH']}", "TMPDIR": str(self.folder),
                                   "MILLRACE_SSH": str(self.folder), **env})

    def test_the_leader_waits_for_its_workers(self):
        self.stand_in("mpirun", 'echo "$@"\n')
        # The second worker is not there when it is asked first.
        self.stand_in("ssh", f'case "$*" in *0-2.*) [ -e {self.folder}/asked ] || {{ touch {self.folder}/asked; exit 255; }};; esac\n')
        done = self.pod("leader", "serve", "/models/m.gguf", "--ram", "28G", LWS_LEADER_ADDRESS="millrace-0.millrace.ns", LWS_GROUP_SIZE="3")
        self.assertEqual(done.returncode, 0, done.stderr)
        words = done.stdout.split()
        host = subprocess.run(["hostname"], capture_output=True, text=True, check=True).stdout.strip()
        self.assertEqual(words[words.index("--host") + 1], f"{host},millrace-0-1.millrace.ns,millrace-0-2.millrace.ns")
        self.assertEqual(words[words.index("-np") + 1], "3")
        self.assertEqual(words[-5:], ["millrace", "serve", "/models/m.gguf", "--ram", "28G"])
        self.assertIn(f"-i {self.folder}/millrace-ssh/id", done.stdout)

    def test_says_what_it_wants(self):
        for words in ([], ["serve"]):
            done = self.pod(*words)
            self.assertEqual(done.returncode, 2)
            self.assertIn("usage", done.stderr)

    @unittest.skipIf(shutil.which("shellcheck") is None, "there is no shellcheck")
    def test_the_script_is_plain(self):
        subprocess.run(["shellcheck", SCRIPT], check=True)

    @unittest.skipIf(yaml is None, "there is no yaml for Python (Debian: python3-yaml)")
    def test_the_manifest_starts_what_there_is(self):
        kinds = {one["kind"]: one for one in yaml.safe_load_all((ROOT / "packaging/leaderworkerset.yaml").read_text())}
        template = kinds["LeaderWorkerSet"]["spec"]["leaderWorkerTemplate"]
        pods = {role: template[f"{role}Template"] for role in ("leader", "worker")}
        for role, pod in pods.items():
            self.assertEqual(pod["spec"]["containers"][0]["args"][0], role)
            self.assertTrue(kinds["NetworkPolicy"]["spec"]["podSelector"]["matchLabels"].items() <= pod["metadata"]["labels"].items())
            names = {volume["name"] for volume in pod["spec"]["volumes"]}
            self.assertEqual({mount["name"] for mount in pod["spec"]["containers"][0]["volumeMounts"]}, names)
        self.assertEqual(kinds["Service"]["spec"]["selector"], pods["leader"]["metadata"]["labels"])
        leader = pods["leader"]["spec"]["containers"][0]
        for words in (leader["args"][1:], leader["lifecycle"]["preStop"]["exec"]["command"][1:]):
            self.refused(*[str(self.folder / "none") if word.startswith(("/models", "/tmp")) else word for word in words], says="none")


if __name__ == "__main__":
    unittest.main()
