"""One model over several processes under mpirun: the same bits, and every trouble ends with a word and in time."""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.request

from harness import DEMO, DRAFT, MILLRACE, SANITIZED, SYNTH
from hub import Hub

MPIRUN = shutil.which("mpirun")
# Open MPI 5.0.7 (Debian 13) crashes where it is to start several programs: `mpirun -np 1 true : -np 1 true`.
STARTS_SEVERAL = MPIRUN is not None and subprocess.run(
    [MPIRUN, "--allow-run-as-root", "--oversubscribe", "-np", "1", "true", ":", "-np", "1", "true"], capture_output=True, check=False).returncode == 0
SEVERAL = unittest.skipUnless(STARTS_SEVERAL, "this mpirun starts one program alone")
PLUGIN = pathlib.Path(MILLRACE).parent / "libmillrace_mpi.so"
STORM = int(os.environ.get("MILLRACE_CLUSTER_STORM", "120"))  # requests
BENCH = ["bench", DEMO, "--json", "-q", "--hash-prompt", "-r", "1", "--no-warm-up", "-t", "1", "--ram", "100M"]


def mpirun(ranks, *words, **kwargs):
    """Starts millrace as so many ranks. Words that are lists are those of one rank each."""
    command = [MPIRUN, "--allow-run-as-root", "--oversubscribe", "--bind-to", "none"]
    if words and isinstance(words[0], list):
        for rank, own in enumerate(words):
            command += ([":"] if rank > 0 else []) + ["-np", "1", MILLRACE, *own]
    else:
        command += ["-np", str(ranks), MILLRACE, *words]
    env = {**os.environ, "MILLRACE_PROMPT_CACHE": "off", "OMPI_MCA_btl": "self,vader,tcp", "OMPI_MCA_btl_vader_single_copy_mechanism": "none", **kwargs.pop("env", {})}
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=env,
                            start_new_session=True, **kwargs)


def end(process, timeout=60):
    """Its exit code, output and errors; it must end by itself."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        raise AssertionError(f"it did not end within {timeout} s\n{out}\n{err}")
    return process.returncode, out, err


def pid_of(process, rank):
    """The process of a rank that this mpirun started."""
    for folder in pathlib.Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            parent = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            environment = (folder / "environ").read_bytes().split(b"\0")
        except (OSError, ValueError, IndexError):
            continue
        if parent == process.pid and b"OMPI_COMM_WORLD_RANK=%d" % rank in environment:
            return int(folder.name)
    return None


class Supervised:
    """A job of two ranks that serves, started again whenever it ended."""

    def __init__(self, case):
        self.case, self.starts, self.ending = case, 0, False
        self.up = threading.Event()
        self.thread = threading.Thread(target=self.watch)
        self.thread.start()

    def watch(self):
        while not self.ending:
            self.process = self.case.serve()
            self.starts += 1
            self.up.set()
            end(self.process, timeout=600)

    def address(self):
        if not self.up.wait(60):
            raise AssertionError("the job does not start again")
        return self.process.address

    def kill(self, rank):
        if not self.up.is_set():
            return
        self.up.clear()
        os.kill(pid_of(self.process, rank), signal.SIGKILL)

    def end(self):
        self.up.wait(60)
        self.ending = True
        os.kill(pid_of(self.process, 0), signal.SIGTERM)
        self.thread.join(60)


@unittest.skipIf(MPIRUN is None or not PLUGIN.exists(), "there is no mpirun, or millrace was built without mpi.h")
@unittest.skipIf(SANITIZED, "MPI has leaks of its own")
class Cluster(unittest.TestCase):
    def bench(self, ranks, *args):
        code, out, err = end(mpirun(ranks, *BENCH, *args))
        self.assertEqual(code, 0, f"{out}\n{err}")
        return json.loads(out)

    def alone(self, *args):
        return json.loads(subprocess.run([MILLRACE, *BENCH, *args], capture_output=True, text=True, check=True).stdout)

    def test_bits_are_those_of_one_process(self):
        for args in [("-p", "90", "-n", "12"), ("-p", "40", "-n", "6", "-s", "3", "-b", "32")]:
            expected = self.alone(*args)["logits_hash"]
            for ranks in (2, 3):
                report = self.bench(ranks, *args)
                self.assertEqual(report["logits_hash"], expected, (ranks, args))
                self.assertIn(f"first of {ranks} ranks", report["executor"])
        self.assertEqual(self.bench(2, "-p", "90", "-n", "12", "--stages", "0-0,1-5")["logits_hash"],
                         self.alone("-p", "90", "-n", "12")["logits_hash"])

    def test_each_rank_has_its_memory(self):
        """Rank 0 reads and computes with its own layers alone."""
        args = ["-p", "20", "-n", "10"]
        one, two = self.alone(*args), self.bench(2, *args)
        self.assertEqual(two["logits_hash"], one["logits_hash"])
        self.assertLess(two["weight_bytes_per_pass"], 0.7 * one["weight_bytes_per_pass"])

    def test_run_answers(self):
        words = ["run", DEMO, "-p", "What is the capital of France?", "-q", "--temp", "0", "-t", "1", "--ram", "100M"]
        code, out, err = end(mpirun(2, *words))
        self.assertEqual(code, 0, err)
        self.assertIn("Paris", out)

    @SEVERAL
    def test_another_file_on_a_rank_is_refused(self):
        other = [DRAFT if word == DEMO else word for word in BENCH]
        code, out, err = end(mpirun(2, BENCH, other))
        self.assertNotEqual(code, 0, out)
        self.assertIn("error: rank 1 (", err)
        self.assertIn("another file", err)
        code, out, err = end(mpirun(2, BENCH, [word.replace("demo-moe", "nowhere") for word in BENCH]))
        self.assertNotEqual(code, 0, out)
        self.assertIn("error: rank 1 (", err)
        self.assertIn("nowhere", err)

    def serve(self):
        process = mpirun(2, "serve", DEMO, "--port", "0", "-t", "1", "--ram", "100M", "-c", "512")
        line = process.stdout.readline()
        self.assertIn("Listening on", line)
        process.address = line.split()[-1]
        while "loaded in" not in (line := process.stdout.readline()):
            self.assertNotEqual(line, "")
        return process

    def test_what_requests_begin_with_is_computed_once(self):
        """Over two ranks as in one process: the same answers, and of a conversation only what is new is computed."""
        story = "Once upon a time there was a small owl who counted the stars above the barn every night. " * 6
        questions = ["What did the owl count?", "Where did it sit?", "Tell me more about the barn."]

        def talk(address):
            answers, cached = [], []
            with urllib.request.urlopen(f"{address}/api/tags") as tags:
                name = json.load(tags)["models"][0]["name"]
            for opening in (story, story + "It was cold. "):  # the second conversation shares a part with the first
                messages = []
                for question in questions[:2] if answers else questions:
                    messages.append({"role": "user", "content": opening + question if not messages else question})
                    body = json.dumps({"model": name, "messages": messages, "max_tokens": 16, "temperature": 0}).encode()
                    request = urllib.request.Request(f"{address}/v1/chat/completions", body, {"Content-Type": "application/json"})
                    with urllib.request.urlopen(request, timeout=60) as reply:
                        reply = json.load(reply)
                    answers.append(reply["choices"][0]["message"]["content"])
                    cached.append(reply["usage"]["prompt_tokens_details"]["cached_tokens"])
                    messages.append({"role": "assistant", "content": answers[-1]})
            return answers, cached

        def serve(start):
            process = start("serve", DEMO, "--port", "0", "-t", "1", "--ram", "100M", "-c", "1024", "--prompt-cache", "off", "--parallel", "2")
            try:
                address = process.stdout.readline().split()[-1]
                for seconds in (0.05, 0.1, 0.2, 0.4):  # clients that hang up while pieces of their prompts are under way
                    with socket.create_connection(address.removeprefix("http://").rsplit(":", 1)) as client:
                        body = json.dumps({"prompt": story * 3, "max_tokens": 4}).encode()
                        client.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                                       b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
                        time.sleep(seconds)
                return talk(address)
            finally:
                process.send_signal(signal.SIGTERM)
                end(process)

        def alone(*words):
            return subprocess.Popen([MILLRACE, *words], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                    start_new_session=True)

        answers, cached = serve(alone)
        over_ranks, cached_there = serve(lambda *words: mpirun(3, *words))
        self.assertEqual(over_ranks, answers)
        self.assertEqual(cached_there[1:], cached[1:])
        for known in cached[1:]:
            self.assertGreater(known, 64)

    def test_prompts_are_kept_on_the_disk(self):
        """Three ranks, which share a folder, go on with a prompt of an earlier run, each with its layers' KV."""
        story = "Once upon a time there was a small owl who counted the stars above the barn every night. " * 6
        body = json.dumps({"prompt": story, "max_tokens": 16, "temperature": 0}).encode()
        with tempfile.TemporaryDirectory() as folder:
            def ask():
                process = mpirun(3, "serve", DEMO, "--port", "0", "-t", "1", "--ram", "100M", "-c", "1024",
                                 "--prompt-cache", folder, "--prompt-cache-after", "0")
                try:
                    address = process.stdout.readline().split()[-1]
                    request = urllib.request.Request(f"{address}/v1/completions", body, {"Content-Type": "application/json"})
                    with urllib.request.urlopen(request, timeout=60) as reply:
                        reply = json.load(reply)
                    return reply["choices"][0]["text"], reply["usage"]["prompt_tokens_details"]["cached_tokens"]
                finally:
                    process.send_signal(signal.SIGTERM)
                    end(process)

            first, cached_first = ask()
            files = len(os.listdir(folder))
            second, cached_second = ask()
            self.assertEqual((cached_first, files % 3), (0, 0))
            self.assertEqual(cached_second, files // 3 * 64)
            self.assertGreaterEqual(cached_second, 128)
            self.assertEqual(second, first)
            for name in sorted(os.listdir(folder))[:2]:  # of some rank and block: what is lost is computed
                os.remove(os.path.join(folder, name))
            third, cached_third = ask()
            self.assertLess(cached_third, cached_second)
            self.assertEqual(third, first)

    def test_a_rank_that_dies_ends_the_job(self):
        process = self.serve()
        begin = time.monotonic()
        os.kill(pid_of(process, 1), signal.SIGKILL)
        code, _, err = end(process, timeout=15)
        self.assertLess(time.monotonic() - begin, 10)
        self.assertNotEqual(code, 0)
        self.assertRegex(err, "rank 1|Killed|has not been heard of")

    def test_a_rank_that_hangs_ends_the_job(self):
        process = self.serve()
        begin = time.monotonic()
        os.kill(pid_of(process, 1), signal.SIGSTOP)
        with urllib.request.urlopen(f"{process.address}/api/tags") as tags:
            name = json.load(tags)["models"][0]["name"]
        body = json.dumps({"model": name, "prompt": "Once upon a time", "stream": False}).encode()
        with self.assertRaises(urllib.error.HTTPError) as asked:
            urllib.request.urlopen(urllib.request.Request(f"{process.address}/api/generate", body), timeout=20)
        self.assertIn("rank 1", asked.exception.read().decode())
        code, _, err = end(process, timeout=25)
        self.assertLess(time.monotonic() - begin, 20)
        self.assertEqual(code, 3)
        self.assertIn("has not been heard of for 6 s", err)

    def test_when_rank_0_is_told_to_end_all_do(self):
        process = self.serve()
        other = pid_of(process, 1)
        os.kill(pid_of(process, 0), signal.SIGTERM)
        code, _, err = end(process, timeout=15)
        self.assertEqual(code, 0, err)
        self.assertFalse(pathlib.Path(f"/proc/{other}").exists())

    def test_waiting_costs_no_processor(self):
        process = self.serve()
        pid = pid_of(process, 1)

        def ticks():
            fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            return int(fields[11]) + int(fields[12])

        before = ticks()
        time.sleep(3)
        used = (ticks() - before) / os.sysconf("SC_CLK_TCK")
        os.kill(pid_of(process, 0), signal.SIGTERM)
        end(process, timeout=15)
        self.assertLess(used, 0.6, "seconds of 3")

    def test_requests_while_ranks_die(self):
        """A rank is killed again and again, and a supervisor starts the job anew. Every request is answered right, or fails and is
        asked again; no answer is wrong and nobody waits for ever."""
        prompts = [f"Tell me about the number {i}." for i in range(10)]
        expected = {}
        alone = subprocess.Popen([MILLRACE, "serve", DEMO, "--port", "0", "-t", "1", "-c", "512", "-q"], stdout=subprocess.PIPE, text=True)
        address = alone.stdout.readline().split()[-1]
        for prompt in prompts:
            expected[prompt] = self.answer(address, prompt)
        alone.terminate()
        alone.communicate(timeout=20)

        job = Supervised(self)
        outcomes = {"right": 0, "told": 0, "cut": 0}
        lock, turns, wrong = threading.Lock(), iter(range(STORM)), []

        def client():
            while True:
                with lock:
                    turn = next(turns, None)
                    if turn is None:
                        return
                    if turn % max(STORM // 10, 30) == 15:
                        job.kill(turn // 30 % 2)
                prompt = prompts[turn % len(prompts)]
                for _ in range(20):
                    outcome = "right"
                    try:
                        said = self.answer(job.address(), prompt)
                        if said != expected[prompt]:
                            wrong.append((prompt, said))
                    except urllib.error.HTTPError as failure:
                        outcome = "told" if json.load(failure).get("error") else "cut"
                    except (OSError, http.client.HTTPException):
                        outcome = "cut"
                    with lock:
                        outcomes[outcome] += 1
                    if outcome == "right":
                        break
                else:
                    wrong.append((prompt, "never answered"))

        clients = [threading.Thread(target=client) for _ in range(8)]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        job.end()
        self.assertEqual(wrong, [])
        self.assertEqual(outcomes["right"], STORM)
        self.assertGreater(job.starts, 1)
        print(f"{outcomes}, {job.starts} starts", file=sys.stderr)

    def answer(self, address, prompt):
        body = json.dumps({"model": pathlib.Path(DEMO).stem, "prompt": prompt, "stream": False,
                           "options": {"temperature": 0, "num_predict": 24}}).encode()
        with urllib.request.urlopen(urllib.request.Request(f"{address}/api/generate", body), timeout=60) as said:
            return json.load(said)["response"]

    def test_each_rank_fetches_its_share(self):
        name = "tiny-Q4_K_M.gguf"
        data = pathlib.Path(DEMO).read_bytes()
        hub = Hub({name: data})
        self.addCleanup(hub.close)
        with tempfile.TemporaryDirectory() as store:
            env = {"HF_ENDPOINT": hub.url, "MILLRACE_MODELS": store}
            words = ["bench", hub.repository, *BENCH[2:], "-p", "24", "-n", "4", "--fetch-share", "--stages", "0-2,3-5"]
            code, out, err = end(mpirun(2, *words, env=env))
            self.assertEqual(code, 0, err)
            self.assertEqual(json.loads(out)["logits_hash"], self.alone("-p", "24", "-n", "4")["logits_hash"])
            # One folder for each, in which not all is there.
            shares = sorted((pathlib.Path(store) / "shares").iterdir())
            self.assertEqual(len(shares), 2)
            for share in shares:
                fetched = share / name
                self.assertEqual(fetched.stat().st_size, len(data))
                self.assertLess(fetched.stat().st_blocks * 512, 0.9 * len(data))
                refused = subprocess.run([MILLRACE, "run", fetched, "--local", "-p", "Hi"], capture_output=True, text=True, check=False)
                self.assertNotEqual(refused.returncode, 0)
                self.assertIn("only part of this file", refused.stderr)
            before = hub.bytes_sent
            code, out, err = end(mpirun(2, *words, env=env))
            self.assertEqual(code, 0, err)
            self.assertLess(hub.bytes_sent - before, 10_000, "nothing is fetched twice")
            # Other layers: what is missing comes.
            code, out, err = end(mpirun(2, *words[:-1], "0-3,4-5", env=env))
            self.assertEqual(code, 0, err)
            listed = subprocess.run([MILLRACE, "list"], capture_output=True, text=True, check=True, env={**os.environ, **env}).stdout
            self.assertRegex(listed, rf"{hub.repository}:\w+ +[\d.]+ MB  parts for 2 processes of a cluster")
            tag = re.search(rf"({hub.repository}:\w+) ", listed)[1]
            for expected in (0, 1):
                removed = subprocess.run([MILLRACE, "rm", tag], capture_output=True, text=True, check=False, env={**os.environ, **env})
                self.assertEqual(removed.returncode, expected, removed.stderr)
                self.assertEqual(list((pathlib.Path(store) / "shares").iterdir()), [])
            hub.files[name] = data[:-1] + b"x"  # the hub has another file now
            code, out, err = end(mpirun(2, *words, env=env))
            self.assertEqual(code, 0, err)

    def test_without_the_plugin(self):
        with tempfile.TemporaryDirectory() as folder:
            code, _, err = end(mpirun(2, *BENCH, env={"MILLRACE_MPI": f"{folder}/none.so"}))
        self.assertNotEqual(code, 0)
        self.assertIn("libmillrace_mpi.so cannot be loaded", err)

    def test_what_one_process_cannot_heed(self):
        refused = subprocess.run([MILLRACE, *BENCH, "--stages", "0-2,3-5"], capture_output=True, text=True, check=False)
        self.assertEqual(refused.returncode, 2)
        self.assertIn("--stages is for several processes", refused.stderr)


class Planned(unittest.TestCase):
    """What hosts that need not be there would do."""

    RATES = {"disk": 2e9, "ram": 2e10, "cpu_decode": 2e10, "cpu_prefill_macs": 1e11}

    def plan(self, file, *args, model=DEMO):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "cluster.json"
            path.write_text(file if isinstance(file, str) else json.dumps(file))
            outcome = subprocess.run([MILLRACE, "plan", model, "--cluster", str(path), *args], capture_output=True, text=True, check=False)
            return outcome.returncode, outcome.stdout, outcome.stderr.replace(folder, "")

    def test_hosts_are_used_where_they_help(self):
        hosts = [{"name": "box", "ram": "1G", "rates": self.RATES, "count": 3}]
        code, out, err = self.plan({"hosts": hosts})
        self.assertEqual(code, 0, err)
        self.assertIn("2 of 3 hosts have no layers", out)
        self.assertRegex(out, r"box-1 +0-5 ")
        code, out, err = self.plan({"hosts": hosts, "latency_ms": 0, "gbit_per_second": 1e6}, "--sequences", "8")
        self.assertEqual(code, 0, err)
        for host in ("box-1", "box-2", "box-3"):
            self.assertIn(host, out)
        one, several = (float(word) for word in re.findall(r"sequences?: ([\d.e+]+) tok/s", out))
        self.assertGreater(several, 3 * one)

    def test_hosts_with_gpus_that_are_not_here(self):
        rates = {**self.RATES, "host_to_device": 1e10, "host_to_device_busy": 8e9, "cpu_decode_busy": 1e10,
                 "device_memory": 1e12, "device_prefill_macs": 1e14}
        hosts = [{"name": "box", "ram": "1G", "vram": "4G", "rates": rates}, {"name": "other", "ram": "1G", "vram": "2G", "rates": rates}]
        code, out, err = self.plan({"hosts": hosts})
        if code != 0:
            self.assertIn("CUDA", err)  # a build without it says so
            return
        self.assertRegex(out, r"box +0-5 +[\d.]+ MB +\d+ % ")
        self.assertIn("1 of 2 hosts have no layers", out)
        code, out, err = self.plan({"hosts": [hosts[0], {**hosts[1], "vram": "0"}]})
        self.assertEqual(code, 2)
        self.assertIn('box has "vram" and other has none', err)
        code, out, err = self.plan({"hosts": [{**hosts[0], "rates": self.RATES}]})
        self.assertEqual(code, 2)
        self.assertIn("box: its rates lack those of its GPU", err)

    def test_a_machine_that_is_not_here(self):
        machine = {"name": "a PC", "ram": "1G", "processors": 8, "rates": self.RATES}

        def plan(described, *args):
            with tempfile.TemporaryDirectory() as folder:
                path = pathlib.Path(folder) / "machine.json"
                path.write_text(json.dumps(described))
                outcome = subprocess.run([MILLRACE, "plan", DEMO, "--machine", str(path), *args], capture_output=True, text=True, check=False)
                return outcome.returncode, outcome.stdout, outcome.stderr.replace(folder, "")

        speed = lambda out: float(re.search(r"predicted decode: ([\d.]+) tok/s, .*\(a PC\)", out)[1])
        code, out, err = plan(machine)
        self.assertEqual(code, 0, err)
        code, slower, err = plan({**machine, "rates": {**self.RATES, "cpu_decode": 1e9}})
        self.assertEqual(code, 0, err)
        self.assertGreater(speed(out), 2 * speed(slower))
        code, small, err = plan(machine, "--ram", "6M")  # the option goes before the file
        self.assertEqual(code, 0, err)
        self.assertIn("bound by the disk", small)
        for described, args, words in ((machine, ("--device", "cuda"), "a PC has no GPU"), ({**machine, "count": 2}, (), "a plan is for one machine"),
                                       ({**machine, "cpus": 8}, (), '"cpus" is unknown'), (machine, ("--draft", "self"), "leave --draft out"),
                                       (machine, ("--rates", "r.json"), "--rates")):
            code, out, err = plan(described, *args)
            self.assertNotEqual(code, 0, out)
            self.assertIn(words, err)
        for gpus in (0, 9, "2"):
            code, out, err = plan({**machine, "gpus": gpus})
            self.assertEqual(code, 2, out)
            self.assertIn('"gpus" is unknown or has a value of another kind; a host has', err)
        code, out, err = self.plan({"hosts": [{**machine, "gpus": 2}]})
        self.assertEqual(code, 2, out)
        self.assertIn("a PC: each host of a cluster uses one GPU", err)
        rates = {**self.RATES, "host_to_device": 1e10, "device_memory": 1e12}
        code, out, err = plan({**machine, "vram": "4G", "rates": rates})
        if code != 0:
            self.assertIn("a PC has a GPU; --device cpu plans without it: this program was built without its GPU part", err)
            code, out, err = plan({**machine, "vram": "4G", "rates": rates}, "--device", "cpu")
            self.assertEqual(code, 0, err)
        else:
            self.assertIn("bound by VRAM", out)
            code, out, err = plan({**machine, "vram": "4G", "gpus": 2, "rates": rates})
            self.assertEqual(code, 0, err)

    @unittest.skipIf(MPIRUN is None or not PLUGIN.exists() or SANITIZED, "there is no mpirun, or millrace was built without mpi.h")
    @SEVERAL
    def test_hosts_are_started(self):
        # On one host, whose memory is too small for all layers beside a disk that is slow.
        host = {"name": "localhost", "ram": "3M", "rates": {**self.RATES, "disk": 1e6}}
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "cluster.json"
            path.write_text(json.dumps({"hosts": [host, host]}))
            env = {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
            words = ["bench", DEMO, "--cluster", str(path), "--json", "-q", "-r", "1", "-t", "1", "-p", "20", "-n", "8"]
            made = subprocess.run([MILLRACE, *words], capture_output=True, text=True, check=False, env=env)
            self.assertEqual(made.returncode, 0, made.stderr)
            self.assertIn("first of 2 ranks", json.loads(made.stdout)["executor"])
            refused = subprocess.run([MILLRACE, *words, "--ram", "1G"], capture_output=True, text=True, check=False)
            self.assertEqual(refused.returncode, 2)
            self.assertIn("--cluster sets what --ram", refused.stderr)
            lost = subprocess.run([MILLRACE, *words], capture_output=True, text=True, check=False, env={**env, "PATH": folder})
            self.assertEqual(lost.returncode, 1)
            self.assertIn("mpirun cannot be started", lost.stderr)

    @unittest.skipIf(MPIRUN is None or not PLUGIN.exists() or SANITIZED, "there is no mpirun, or millrace was built without mpi.h")
    @SEVERAL
    def test_one_command_makes_the_file(self):
        """What ranks measure of themselves and the way between them is what plan and run take."""
        with tempfile.TemporaryDirectory() as folder:
            path, kept = pathlib.Path(folder) / "cluster.json", {"XDG_CACHE_HOME": folder}
            code, out, err = end(mpirun(2, "calibrate", DEMO, "-t", "1", "--out", str(path), "-q", env=kept), timeout=600)
            self.assertEqual(code, 0, err)
            told = re.search(r"network: ([\d.e-]+) ms one way, ([\d.e+-]+) Gbit/s", out)
            self.assertTrue(told, out)
            file = json.loads(path.read_text())
            # How fast the way is, a machine that does other things cannot say: that the file and the words agree.
            self.assertGreater(min(file["latency_ms"], file["gbit_per_second"]), 0)
            self.assertAlmostEqual(file["latency_ms"] / float(told[1]), 1, delta=0.1)
            self.assertAlmostEqual(file["gbit_per_second"] / float(told[2]), 1, delta=0.1)
            self.assertEqual([host["name"] for host in file["hosts"]], [os.uname().nodename] * 2)
            for host in file["hosts"]:
                self.assertGreater(host["rates"]["cpu_decode"], 0)
            code, out, err = self.plan(file, "--sequences", "4")
            self.assertEqual(code, 0, err)
            self.assertIn("4 sequences:", out)
            code, out, err = end(mpirun(2, ["calibrate", DEMO, "-t", "1", "-q"], ["calibrate", "/nowhere", "-q"], env=kept), timeout=600)
            self.assertEqual(code, 1, out)
            self.assertRegex(err, r"error: rank 1 \([^)]*\): [^\n]*/nowhere")
            code, _, err = end(mpirun(2, "calibrate", "--disk-only", "-q", env=kept))
            self.assertEqual(code, 2)
            self.assertIn("--disk-only is for one process", err)

    def test_a_model_larger_than_each(self):
        """A file of 40 GB that takes no disk: two hosts with room for half of it read nothing from theirs."""
        with tempfile.TemporaryDirectory() as folder:
            big = os.path.join(folder, "big.gguf")
            subprocess.run([SYNTH, "--preset", "llama3-70b", "-d", "Q4_K", "--hollow", big], check=True, capture_output=True)
            self.assertLess(os.stat(big).st_blocks * 512, 50e6)
            def speed(count):
                code, out, err = self.plan({"hosts": [{"name": "box", "ram": "28G", "rates": self.RATES, "count": count}]}, "-c", "4096",
                                           model=big)
                self.assertEqual(code, 0, err)
                return float(re.search(r"one sequence: ([\d.]+)", out).group(1)), out
            self.assertGreater(speed(2)[0], 2.5 * speed(1)[0])
            self.assertIn("100 %", speed(2)[1])

    def test_files_that_say_something_else(self):
        host = {"name": "box", "ram": "1G", "rates": self.RATES}
        for file, says in [("[]", "not a JSON object"), ({"hosts": []}, "names no"), ({"host": []}, '"host" is unknown'),
                           ({"hosts": [{**host, "ram": 5}]}, '"ram"'), ({"hosts": [{"ram": "1G"}]}, '"name"'),
                           ({"hosts": [{**host, "rates": "none.json"}]}, "none.json"), ({"hosts": [{**host, "rates": {}}]}, "rates"),
                           ({"hosts": [{**host, "count": 10**9}]}, "more than"), ({"hosts": [{**host, "ram": "1M"}]}, "box"),
                           ({"hosts": [host], "latency_ms": -1}, "latency_ms"), ({"hosts": [host], "gbit_per_second": 0}, "gbit")]:
            code, out, err = self.plan(file)
            self.assertIn(code, (1, 2), file)
            self.assertEqual(out, "", file)
            self.assertIn(says, err)
            self.assertEqual(err.count("\n"), 1, err)


if __name__ == "__main__":
    unittest.main()
