"""A running `millrace serve` and a plain HTTP client for it."""
import contextlib
import http.client
import json
import os
import re
import select
import signal
import subprocess
import tempfile
import time

from harness import MILLRACE


class Server:
    """with Server("--models", folder) as server: ... The port is any that is free."""

    def __init__(self, *args, env=None):
        self.log = tempfile.TemporaryFile()
        self.began = time.monotonic()
        self.process = subprocess.Popen([MILLRACE, "serve", "--port", "0", *map(str, args)], stdout=subprocess.PIPE,
                                        stderr=self.log, env={**os.environ, "MILLRACE_PROMPT_CACHE": "off", **(env or {})})
        ready, _, _ = select.select([self.process.stdout], [], [], 60)
        line = self.process.stdout.readline().decode() if ready else ""
        found = re.search(r"http://([^:]+):(\d+)", line)
        if not found:
            self.process.kill()
            raise RuntimeError(f"the server did not start: {line!r} {self.messages()!r}")
        self.host, self.port = found.group(1), int(found.group(2))
        self.url = f"http://{self.host}:{self.port}"

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        finally:
            self.process.stdout.close()
            self.log.close()

    def messages(self):
        self.log.seek(0)
        return self.log.read().decode(errors="replace")

    def stop(self):
        """SIGTERM; the seconds until it was gone, and its exit code."""
        begin = time.monotonic()
        self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(20)
        return time.monotonic() - begin, code

    def request(self, method, path, body=None, headers=None, timeout=60):
        connection = http.client.HTTPConnection(self.host, self.port, timeout=timeout)
        data = json.dumps(body) if isinstance(body, (dict, list)) else body
        with contextlib.closing(connection):
            connection.request(method, path, data, {"Content-Type": "application/json", **(headers or {})})
            response = connection.getresponse()
            return response.status, dict((k.lower(), v) for k, v in response.getheaders()), response.read()

    def json(self, method, path, body=None, headers=None):
        status, _, content = self.request(method, path, body, headers)
        return status, json.loads(content)

    def stream(self, path, body, headers=None):
        """The response of a stream, open."""
        connection = http.client.HTTPConnection(self.host, self.port, timeout=60)
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **(headers or {})})
        response = connection.getresponse()
        response.connection = connection
        return response

    def metric(self, name):
        """The sum over all labels."""
        _, _, content = self.request("GET", "/metrics")
        values = re.findall(rf"^{name}(?:{{[^}}]*}})? ([0-9.e+]+)$", content.decode(), re.M)
        return sum(map(float, values))


def lines(response):
    """NDJSON or SSE data lines of an open response."""
    for raw in response:
        line = raw.decode().strip()
        if line.startswith("data: "):
            line = line[6:]
        if line and not line.startswith(":") and not line.startswith("event:"):
            yield line
    response.connection.close()
