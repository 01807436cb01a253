"""Stands between a client and a server: passes on what it is asked, keeps what went by, and says what the model is to answer."""
import http.client
import http.server
import json
import threading
import typing


class Call(typing.NamedTuple):
    """What the model is to do: call this tool, whatever form its template gives to calls."""
    name: str


class Exchange:
    def __init__(self, method, path, asked, status, kind, told):
        self.method, self.path, self.asked, self.status, self.kind, self.told = method, path, asked, status, kind, told


class Between:
    """Answers of the model are what `answer(request)` gives, a value or a Call, if it gives one; nothing else of a request is changed,
    but that `narrowed` tools have their one call's arguments as their schema. They have it in every request, so that a prompt begins
    as the one before it did."""

    def __init__(self, server, answer):
        self.server, self.answer, self.exchanges, self.narrowed = server, answer, [], {}
        between = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def handle_any(self):
                between.pass_on(self)

            do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = handle_any

            def log_message(self, *_):
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.thread = threading.Thread(target=self.http.serve_forever)
        self.thread.start()
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def close(self):
        self.http.shutdown()
        self.thread.join()
        self.http.server_close()

    def pass_on(self, client):
        body = client.rfile.read(int(client.headers.get("Content-Length") or 0))
        asked = json.loads(body) if body else {}
        value = self.answer(asked) if client.command == "POST" else None
        if value is not None:
            body = json.dumps(bound(client.path, narrow(asked, self.narrowed), value)).encode()
        own = ("host", "content-length", "connection", "accept-encoding")  # what is kept is to be read
        headers = {key: value for key, value in client.headers.items() if key.lower() not in own}
        server = http.client.HTTPConnection(self.server.host, self.server.port, timeout=300)
        try:
            server.request(client.command, client.path, body or None, headers)
            response = server.getresponse()
            client.send_response(response.status)
            kind = response.getheader("Content-Type", "")
            client.send_header("Content-Type", kind)
            client.send_header("Connection", "close")
            client.end_headers()
            told = b""
            while piece := response.read1(65536):
                told += piece
                client.wfile.write(piece)
            self.exchanges.append(Exchange(client.command, client.path, asked, response.status, kind, told.decode()))
        except (BrokenPipeError, ConnectionResetError):
            pass  # the client has left
        finally:
            server.close()


def bound(path, asked, value):
    """The request, whose answer is this one value: as each API asks for the form of an answer."""
    asked = {**asked, "chat_template_kwargs": {"enable_thinking": False}}  # what it is told to say comes at once
    if isinstance(value, Call):
        return forced(path, asked, value)
    schema = {"const": value}
    if "/messages" in path:
        return {**asked, "output_config": {**asked.get("output_config", {}), "format": {"type": "json_schema", "schema": schema}}}
    if "/responses" in path:
        return {**asked, "text": {**asked.get("text", {}), "format": {"type": "json_schema", "name": "it", "schema": schema}}}
    return {**asked, "response_format": {"type": "json_schema", "json_schema": {"name": "it", "schema": schema}}}


def narrow(asked, calls):
    """The request, of whose tools those that are named have room for these arguments alone."""
    def schema(arguments):
        return {"type": "object", "properties": {name: {"const": value} for name, value in arguments.items()}, "required": list(arguments),
                "additionalProperties": False}

    def one(tool):
        if "function" in tool:
            return {**tool, "function": one(tool["function"])}
        place = "input_schema" if "input_schema" in tool else "parameters"
        return {**tool, place: schema(calls[tool["name"]])} if tool.get("name") in calls else tool

    return {**asked, "tools": [one(tool) for tool in asked["tools"]]} if asked.get("tools") and calls else asked


def forced(path, asked, call):
    """The request, whose answer is this call: as each API demands one."""
    if "/messages" in path:
        return {**asked, "tool_choice": {"type": "tool", "name": call.name, "disable_parallel_tool_use": True}}
    choice = {"name": call.name} if "/responses" in path else {"function": {"name": call.name}}
    return {**asked, "tool_choice": {"type": "function", **choice}, "parallel_tool_calls": False}
