"""A hub on this machine that speaks the little HTTP a pull needs, and misbehaves when it is told to."""
import hashlib
import http.server
import json
import re
import socket
import ssl
import threading
import time
import urllib.parse


class Hub:
    """files: {path in the repository: bytes}. `behaviour` is a set of words; see Handler. identity: a file with a certificate and its
    key, with which the hub speaks https."""

    def __init__(self, files, repository="someone/tiny-GGUF", identity=None):
        self.files, self.repository = files, repository
        self.behaviour, self.requests, self.bytes_sent = set(), [], 0
        self.cuts_left = 0            # replies that are cut after half of their bytes
        self.errors_left = 0          # replies with 503
        self.bytes_per_second = None  # a slow line
        self.token = None             # 401 without it
        self.signed = {}              # how often each address that a file was sent on to will be answered yet
        self.uses_of_an_address = 1 << 30
        self.lock = threading.Lock()
        handler = type("Bound", (Handler,), {"hub": self})
        # A client that was killed leaves broken connections; they are no news.
        http.server.ThreadingHTTPServer.handle_error = lambda *_: None
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        if identity:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(identity)
            self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
            self.url = f"https://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()

    def tree(self):
        entries = []
        for path, data in self.files.items():
            digest = hashlib.sha256(data).hexdigest()
            if "wrong hash" in self.behaviour:
                digest = hashlib.sha256(b"something else").hexdigest()
            size = len(data) + (1000 if "wrong length" in self.behaviour else 0)
            entry = {"type": "file", "path": path, "size": size, "oid": "0" * 40, "lfs": {"oid": digest, "size": size, "pointerSize": 134}}
            if path.endswith((".json", ".jinja")):  # as git has it, without a pointer
                del entry["lfs"]
                entry["oid"] = hashlib.sha1(f"blob {len(data)}\0".encode() + data).hexdigest()
                if "wrong git hash" in self.behaviour:
                    entry["oid"] = "3" * 40
            entries.append(entry)
        return entries + [{"type": "file", "path": "README.md", "size": 12, "oid": "1" * 40},
                          {"type": "directory", "path": "folder", "size": 0, "oid": "2" * 40}]


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub = None

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        with self.hub.lock:
            self.hub.requests.append((path, dict(self.headers)))
            fail = self.hub.errors_left > 0
            self.hub.errors_left -= fail
        if fail:
            return self.plain(503, b"busy", {"Retry-After": "0"})
        moved = re.search("moved=([0-9]+)", self.path)
        if moved:
            with self.hub.lock:
                self.hub.signed[moved[1]] -= 1
                over = self.hub.signed[moved[1]] < 0
            if over or self.headers.get("Authorization"):
                return self.plain(403, b"signed for another time, or with a token that is none of mine")
        elif self.hub.token and self.headers.get("Authorization") != f"Bearer {self.hub.token}":
            return self.plain(401, b"who are you")
        if path == f"/api/models/{self.hub.repository}/tree/main":
            return self.tree()
        if path == "/api/models":
            return self.search(urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query))
        found = re.fullmatch(re.escape(f"/{self.hub.repository}/resolve/main/") + "(.*)", path)
        if found and found[1] in self.hub.files:
            if "redirect" in self.hub.behaviour and not moved:
                with self.hub.lock:
                    ticket = str(len(self.hub.signed))
                    self.hub.signed[ticket] = self.hub.uses_of_an_address
                # Another name is another host, to whom no token goes.
                elsewhere = self.hub.url.replace("127.0.0.1", "localhost")
                return self.plain(302, b"", {"Location": f"{elsewhere}{self.path}?moved={ticket}"})
            return self.file(self.hub.files[found[1]])
        return self.plain(404, b"nothing here")

    def tree(self):
        entries = self.hub.tree()
        if "pages" not in self.hub.behaviour:
            return self.plain(200, json.dumps(entries).encode())
        page = int(urllib.parse.parse_qs(urllib.parse.urlsplit(self.path).query).get("cursor", ["0"])[0])
        more = {"Link": f'<{self.hub.url}{self.path.split("?")[0]}?cursor={page + 1}>; rel="next"'} if page + 1 < len(entries) else {}
        return self.plain(200, json.dumps(entries[page:page + 1]).encode(), more)

    def search(self, query):
        """By words of the repository's name, as the real one does it; beside it what no client should take for a name."""
        words = query.get("search", [""])[0].lower().split()
        mine = [{"id": self.hub.repository, "downloads": 1234}] if all(word in self.hub.repository.lower() for word in words) else []
        return self.plain(200, json.dumps([*mine, {"id": "../../etc"}, {"id": 7}, "text"]).encode())

    def plain(self, code, body, headers=None):
        self.send_response(code)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def file(self, data):
        first, last = 0, len(data) - 1
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if asked and "no ranges" not in self.hub.behaviour:
            first, last = int(asked[1]), min(int(asked[2] or last), last)
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(data)}")
        else:
            self.send_response(200)
        body = data[first:last + 1]
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        with self.hub.lock:
            cut = self.hub.cuts_left > 0 and len(body) > 1000
            self.hub.cuts_left -= cut
        self.send(body[:len(body) // 2] if cut else body)
        if cut:
            self.close_connection = True
            self.connection.shutdown(socket.SHUT_RDWR)

    def send(self, body):
        try:
            if "stall" in self.hub.behaviour:
                self.wfile.write(body[:100])
                self.wfile.flush()
                time.sleep(60)
            step = 16384 if self.hub.bytes_per_second else len(body) or 1
            for begin in range(0, len(body), step):
                piece = body[begin:begin + step]
                self.wfile.write(piece)
                with self.hub.lock:
                    self.hub.bytes_sent += len(piece)
                if self.hub.bytes_per_second:
                    time.sleep(len(piece) / self.hub.bytes_per_second)
        except OSError:
            self.close_connection = True
