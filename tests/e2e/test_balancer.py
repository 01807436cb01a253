"""Two servers behind HAProxy with packaging/haproxy.cfg: conversations stay where their KV is, draining, and a server that dies. Skipped
with a word where there is no haproxy."""
import http.client
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import unittest

from harness import DEMO, ROOT
from serving import Server

HAPROXY = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]


@unittest.skipIf(HAPROXY is None, "there is no haproxy (Debian: haproxy)")
class Balanced(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.servers = [Server(DEMO, "-t", "1", "--ram", "100M", "-c", "512") for _ in range(2)]
        for server in self.servers:
            self.addCleanup(server.__exit__)
        self.port, self.admin = free_port(), f"{self.folder.name}/admin"
        config = (ROOT / "packaging/haproxy.cfg").read_text()
        for here, there in [("bind :11434", f"bind 127.0.0.1:{self.port}"), ("/run/haproxy-millrace.sock mode", f"{self.admin} mode"),
                            ("millrace-1:11434", f"127.0.0.1:{self.servers[0].port}"), ("millrace-2:11434", f"127.0.0.1:{self.servers[1].port}")]:
            self.assertIn(here, config)
            config = config.replace(here, there)
        path = pathlib.Path(self.folder.name) / "haproxy.cfg"
        path.write_text(config)
        balancer = subprocess.Popen([HAPROXY, "-db", "-q", "-f", str(path)], stderr=subprocess.DEVNULL)
        self.addCleanup(balancer.wait)
        self.addCleanup(balancer.kill)
        self.wait_for("UP", "UP")

    def say(self, command):
        with socket.socket(socket.AF_UNIX) as admin:
            admin.connect(self.admin)
            admin.sendall(command.encode() + b"\n")
            return b"".join(iter(lambda: admin.recv(65536), b"")).decode()

    def wait_for(self, *states):
        until = time.monotonic() + 30
        while True:
            try:
                found = [re.search(rf"^millrace,{name},(?:[^,]*,){{15}}([A-Z]+)", self.say("show stat"), re.M).group(1) for name in ("one", "two")]
            except (OSError, AttributeError):
                found = None
            if found == list(states):
                return
            self.assertLess(time.monotonic(), until, found)
            time.sleep(0.1)

    def ask(self, path, body, method="POST"):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, json.dumps(body) if body else None, {"Content-Type": "application/json"})
        response = connection.getresponse()
        said = response.read()
        connection.close()
        self.assertEqual(response.status, 200, said)
        return json.loads(said)

    def chat(self, messages, tokens=4):
        answer = self.ask("/v1/chat/completions", {"messages": messages, "max_tokens": tokens, "temperature": 0})
        return answer["choices"][0]["message"]["content"]

    def asked(self):
        return [server.metric("millrace_runs_total") for server in self.servers]

    def place_of(self, messages, ended=None, ask=None):
        """Which server answers this; another answer may end on server `ended` meanwhile."""
        before = self.asked()
        (ask or self.chat)(messages)
        grown = [after - one for one, after in zip(before, self.asked())]
        if ended is not None and grown[1 - ended] == 1:
            return 1 - ended
        self.assertEqual(sorted(grown), [0, 1])
        return grown.index(1)

    def test_a_conversation_stays_on_its_server(self):
        places = set()
        for number in range(12):
            messages = [{"role": "user", "content": f"Tell me of the number {number}."}]
            if number % 2:
                messages.insert(0, {"role": "system", "content": "You are brief."})
            first = self.place_of(messages)
            for turn in range(2):
                messages += [{"role": "assistant", "content": f"Well, {turn}."}, {"role": "user", "content": f"And then {turn}?"}]
                self.assertEqual(self.place_of(messages), first)
            places.add(first)
        self.assertEqual(places, {0, 1})

    def test_contents_of_parts_count_likewise(self):
        def parts(text):
            return [{"type": "text", "text": text}]

        places = set()
        for number in range(12):
            messages = [{"role": "user", "content": parts(f"Tell me of the number {number}.")}]
            if number % 2:
                messages.insert(0, {"role": "system", "content": parts("You are brief.")})
            first = self.place_of(messages)
            messages += [{"role": "assistant", "content": "Well."}, {"role": "user", "content": parts("And then?")}]
            self.assertEqual(self.place_of(messages), first)
            places.add(first)
        self.assertEqual(places, {0, 1})

    def test_responses_stay_on_their_server(self):
        def respond(body):
            self.last = self.ask("/v1/responses", {"max_output_tokens": 4, "temperature": 0, **body})

        places = set()
        for number in range(12):
            text = f"Tell me of the number {number}."
            first = self.place_of({"input": [text, [{"role": "user", "content": text}],
                                             [{"role": "system", "content": "You are brief."}, {"role": "user", "content": text}]][number % 3]}, ask=respond)
            for turn in range(2):  # the server that has the response goes on from it
                self.assertEqual(self.place_of({"input": f"And then {turn}?", "previous_response_id": self.last["id"]}, ask=respond), first)
            self.assertEqual(self.ask(f"/v1/responses/{self.last['id']}", None, "GET")["id"], self.last["id"])
            places.add(first)
        self.assertEqual(places, {0, 1})

    def test_a_server_that_drains_ends_what_it_has(self):
        messages = [{"role": "user", "content": "Tell me a story about a fox and a lantern."}]
        place = self.place_of(messages)
        name = ("one", "two")[place]
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request("POST", "/v1/chat/completions", json.dumps({"messages": messages, "max_tokens": 400, "temperature": 0, "stream": True}),
                           {"Content-Type": "application/json"})
        answer = connection.getresponse()
        self.assertIn(b"data: ", answer.readline())
        self.say(f"set server millrace/{name} state drain")
        for number in range(6):
            self.assertEqual(self.place_of([{"role": "user", "content": f"Another, {number}"}], ended=place), 1 - place)
        self.assertIn(b"[DONE]", answer.read())
        connection.close()
        self.say(f"set server millrace/{name} state ready")
        self.wait_for("UP", "UP")
        self.assertEqual(self.place_of(messages), place)

    def test_a_server_that_dies_is_left_out(self):
        messages = [{"role": "user", "content": "Who are you?"}]
        place = self.place_of(messages)
        self.servers[place].process.send_signal(signal.SIGKILL)
        self.servers[place].process.wait()
        # At once: a connection that is refused goes to the other one.
        self.assertIsInstance(self.chat(messages), str)
        self.wait_for(*(["DOWN", "UP"] if place == 0 else ["UP", "DOWN"]))
        self.assertIsInstance(self.chat(messages), str)


if __name__ == "__main__":
    unittest.main()
