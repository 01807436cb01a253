"""Pictures that clients name by URL: refused by default, fetched from the hosts of --image-urls alone. Another server on this machine
stands for what only the server can reach: no spelling of an address and no redirect may lead there."""
import http.server
import json
import pathlib
import tempfile
import threading
import time
import unittest

from harness import Case
from seeing import PICTURES, make_seeing
from serving import Server
from test_pictures import url

PICTURE = (PICTURES / "colour.png").read_bytes()


class Site:
    """Pictures at an address, and ways to be led elsewhere. `asked` has the paths that were asked for."""

    def __init__(self, elsewhere=""):
        self.asked, self.elsewhere, self.stop = [], elsewhere, threading.Event()
        handler = type("Bound", (Handler,), {"site": self})
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.stop.set()
        self.server.shutdown()
        self.server.server_close()


class Handler(http.server.BaseHTTPRequestHandler):
    site = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        self.site.asked.append((self.path, dict(self.headers)))
        name, _, to = self.path.partition("?")
        headers, body, status = {}, PICTURE, 200
        if name == "/to":
            status, headers, body = 302, {"Location": to}, b""
        elif name == "/loop":
            status, headers, body = 307, {"Location": "/loop"}, b""
        elif name == "/missing":
            status, body = 404, b"the secret of this network"
        elif name == "/text":
            body = b"the secret of this network"
        self.send_response(status)
        for key, value in headers.items():
            self.send_header(key, value)
        if name in ("/endless", "/slow"):
            self.end_headers()
            return self.go_on(name)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def go_on(self, name):
        try:
            while not self.site.stop.is_set():
                self.wfile.write(b"\0" * 65536 if name == "/endless" else b"\x89")
                if name == "/slow":
                    time.sleep(0.1)
        except OSError:
            pass


class ImageUrls(Case):
    @classmethod
    def setUpClass(cls):
        folder = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.model = make_seeing(folder)
        cls.inner, cls.allowed = Site(), Site()
        cls.addClassCleanup(cls.inner.close)
        cls.addClassCleanup(cls.allowed.close)
        cls.site = f"http://127.0.0.1:{cls.allowed.port}"
        # A proxy would look names up itself, and is never used for these.
        cls.env = {"http_proxy": f"http://127.0.0.1:{cls.inner.port}", "ALL_PROXY": f"http://127.0.0.1:{cls.inner.port}", "no_proxy": "", "NO_PROXY": ""}
        cls.server = Server(cls.model, "--threads", "2", "--ctx", "512", "--image-urls", f"pictures.invalid,127.0.0.1:{cls.allowed.port}",
                            "--image-url-seconds", "2", env=cls.env)
        cls.addClassCleanup(cls.server.__exit__)

    def setUp(self):
        self.inner.asked.clear()
        self.allowed.asked.clear()

    def ask(self, address, server=None):
        part = {"type": "image_url", "image_url": {"url": address}}
        body = {"model": "sees", "messages": [{"role": "user", "content": [part, {"type": "text", "text": "what?"}]}], "max_tokens": 4, "temperature": 0}
        return (server or self.server).json("POST", "/v1/chat/completions", body)

    def refused(self, address, *says, server=None):
        status, body = self.ask(address, server)
        self.assertEqual(status, 400, (address, body))
        message = body["error"]["message"]
        for one in says:
            self.assertIn(one, message, address)
        self.assertNotIn("secret", message)
        return message

    def test_pictures_are_those_that_come_themselves(self):
        for name in ("/a.png", "/to?/a.png", f"/to?{self.site}/to?/a.png"):
            status, body = self.ask(self.site + name)
            self.assertEqual(status, 200, body)
            self.assertEqual(body["choices"], self.ask(url("colour.png"))[1]["choices"])
        for _, headers in self.allowed.asked:
            self.assertEqual({key.lower() for key in headers}, {"host", "user-agent", "accept"})
        self.allowed.asked.clear()
        source = {"type": "image", "source": {"type": "url", "url": self.site + "/a.png"}}
        message = {"model": "sees", "max_tokens": 2, "messages": [{"role": "user", "content": [source, source, {"type": "text", "text": "what?"}]}]}
        self.assertEqual(self.server.json("POST", "/v1/messages", message)[0], 200)
        self.assertEqual(len(self.allowed.asked), 1)  # of two that are the same
        self.assertEqual(self.server.json("POST", "/v1/messages/count_tokens", message)[0], 200)
        item = {"role": "user", "content": [{"type": "input_image", "image_url": self.site + "/a.png"}]}
        self.assertEqual(self.server.json("POST", "/v1/responses", {"model": "sees", "input": [item], "max_output_tokens": 2})[0], 200)
        self.assertEqual(self.server.json("POST", "/v1/responses/input_tokens", {"model": "sees", "input": [item]})[0], 200)
        self.assertEqual(self.server.json("POST", "/api/generate", {"model": "sees", "prompt": "what?", "images": [self.site + "/a.png"], "stream": False,
                                                                    "options": {"num_predict": 2, "num_ctx": 512}})[0], 200)
        self.assertEqual(self.inner.asked, [])

    def test_other_hosts_are_not_asked(self):
        inner, port = self.inner.port, self.allowed.port
        for address in (f"http://127.0.0.1:{inner}/a.png", f"http://localhost:{inner}/a.png", f"http://localhost:{port}/a.png", f"http://127.0.0.2:{port}/a.png",
                        f"http://[::1]:{port}/a.png", f"http://[::ffff:127.0.0.1]:{inner}/a.png", f"http://[::ffff:7f00:1]:{port}/a.png", f"http://127.1:{inner}/",
                        f"http://2130706433:{inner}/", f"http://0x7f000001:{inner}/", f"http://0177.0.0.1:{inner}/", f"http://0:{inner}/",
                        f"http://127.0.0.1:{port}@127.0.0.1:{inner}/", f"http://user:pass@127.0.0.1:{port}/a.png", f"http://127.0.0.1:{inner}#@127.0.0.1:{port}/",
                        f"http://127.0.0.1:{inner}\\@127.0.0.1:{port}/", f"http://127.0.0.1:{port}.example.org/", "http://169.254.169.254/latest/meta-data/",
                        f"http://127.0.0.1:{inner}\r\nHost: 127.0.0.1:{port}", "http:///a.png", "http://", "https://127.0.0.1/", "http://pictures.invalid:8080/a.png"):
            self.refused(address, "Could not process image")
        for address in ("ftp://127.0.0.1/a.png", "file:///etc/passwd", f"gopher://127.0.0.1:{inner}/_GET", "dict://127.0.0.1/", f"//127.0.0.1:{inner}/", "a.png"):
            self.refused(address, "fetches no pictures")
        self.assertEqual((self.inner.asked, self.allowed.asked), ([], []))
        self.refused("http://pictures.invalid/a.png", "pictures.invalid cannot be reached")

    def test_redirects_lead_to_allowed_hosts_alone(self):
        for to in (f"http://127.0.0.1:{self.inner.port}/a.png", f"//127.0.0.1:{self.inner.port}/a.png", f"http://localhost:{self.allowed.port}/a.png", "file:///etc/passwd",
                   f"http://[::ffff:127.0.0.1]:{self.inner.port}/", "ftp://127.0.0.1/", f"gopher://127.0.0.1:{self.inner.port}/_x", "http://user@127.0.0.1/"):
            self.refused(f"{self.site}/to?{to}", "Could not process image")
        self.refused(self.site + "/loop", "more than 5 times")
        self.assertEqual(self.inner.asked, [])

    def test_a_name_that_leads_to_this_machine_is_not_asked(self):
        with Server(self.model, "--threads", "2", "--ctx", "512", "--image-urls", f"localhost:{self.allowed.port}", env=self.env) as server:
            said = self.refused(f"http://localhost:{self.allowed.port}/a.png", "not on the public internet", server=server)
            self.assertNotIn("127.0.0.1", said)
            self.refused(f"{self.site}/a.png", "are not fetched here", server=server)
        self.assertEqual((self.inner.asked, self.allowed.asked), ([], []))

    def test_bytes_and_time_have_an_end(self):
        self.refused(self.site + "/endless", "larger than")
        begin = time.monotonic()
        self.refused(self.site + "/slow", "did not answer in time")
        self.assertLess(time.monotonic() - begin, 10)
        self.refused(self.site + "/missing", "answered 404")
        self.refused(self.site + "/text", "Could not process image")
        self.assertEqual(self.server.request("GET", "/health")[0], 200)

    def test_an_old_one_that_does_not_come_is_noted(self):
        old = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": self.site + "/missing"}}]}
        messages = [old, {"role": "assistant", "content": "a fox."}, {"role": "user", "content": "and?"}]
        status, body = self.server.json("POST", "/v1/chat/completions", {"model": "sees", "messages": messages, "max_tokens": 2})
        self.assertEqual(status, 200, body)

    def test_nothing_is_fetched_unless_it_is_asked_for(self):
        with Server(self.model, "--threads", "2", "--ctx", "512", env=self.env) as server:
            self.refused(self.site + "/a.png", "fetches no pictures from URLs", server=server)
        with Server(self.model, "--mmproj", "off", "--threads", "2", "--ctx", "512", "--image-urls", f"127.0.0.1:{self.allowed.port}") as server:
            self.refused(self.site + "/a.png", "reads text only", server=server)
        self.assertEqual((self.inner.asked, self.allowed.asked), ([], []))
        super().refused("serve", self.model, "--image-urls", "http://example.org/", says=["--image-urls", "is no host"])


if __name__ == "__main__":
    unittest.main()
