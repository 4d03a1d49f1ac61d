#!/usr/bin/env python3
"""A model server for the tests of the editor plugins. Speaks the wire of Ollama and answers without a model.

Prints its address as the first line of stdout. An answer is a Markdown text that repeats the words of the user. Words in
brackets on the last line of the newest user message choose another answer:

    [pieces N]  N pieces of text, each a short line with its number
    [bytes N]   pieces of together about N bytes
    [think]     thinking before the answer
    [hang]      after its pieces, the answer waits until the client closes the request
    [fail]      the request fails before the answer begins
    [break]     the answer ends with an error in the middle
    [empty]     an answer without any text

Needs Python 3.9 or newer and nothing else.
"""

import argparse
import json
import re
import socket
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

VERSION = "0.33.0"
MODELS = ["echo:latest", "parrot:latest"]
WINDOW = 8192
TIME = "2026-01-27T10:00:00.123456789Z"
# The size of one piece of `[bytes N]`, in bytes.
PIECE_BYTES = 16384
DETAILS = {"parent_model": "", "format": "gguf", "family": "echo", "families": ["echo"],
           "parameter_size": "7B", "quantization_level": "Q4_0"}


def tag(name):
    """Returns the entry of a model in `/api/tags`."""
    return {"name": name, "model": name, "size": 1 << 30, "digest": format(sum(name.encode()), "064x"),
            "modified_at": TIME, "details": DETAILS, "capabilities": ["completion", "thinking"]}


def markdown(text):
    """Returns the answer to a text: a heading, the words of the user, a list and a block of code."""
    words = " ".join(text.split())[:400]
    return (f"# Answer\n\nYou said: {words}\n\n- first point\n- second point, with ünïcödé 🙂\n\n"
            "```lua\nprint('hello')\n```\n\nThat is all.")


def pieces_of(line, text):
    """Returns the pieces of the answer: pairs of the field of the message and its text."""
    pieces = [("thinking", word) for word in ("Let me ", "think ", "about it.")] if "[think]" in line else []
    count, size = re.search(r"\[pieces (\d+)\]", line), re.search(r"\[bytes (\d+)\]", line)
    if "[empty]" in line:
        return pieces
    if count:
        return pieces + [("content", f"piece {number}\n") for number in range(1, int(count[1]) + 1)]
    if size:
        unit = "All work and no play makes a long line of text. 🙂\n"
        whole, rest = divmod(int(size[1]), PIECE_BYTES)
        block = (unit * (PIECE_BYTES // len(unit.encode()) + 1)).encode()
        sizes = [PIECE_BYTES] * whole + [rest] * (rest > 0)
        return pieces + [("content", block[:n].decode(errors="ignore")) for n in sizes]
    return pieces + [("content", piece) for piece in re.findall(r"\S+\s*|\s+", markdown(text))]


class Handler(BaseHTTPRequestHandler):
    """Answers the requests of one connection."""

    protocol_version = "HTTP/1.1"

    def log_message(self, *_args):
        """Logs nothing."""

    def reply(self, value, status=200):
        """Sends a whole reply."""
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        """Answers the requests for lists."""
        known = {"/": "Ollama is running", "/api/version": {"version": VERSION},
                 "/api/tags": {"models": [tag(name) for name in MODELS]},
                 "/api/ps": {"models": [{**tag(MODELS[0]), "size_vram": 1 << 30, "context_length": WINDOW,
                                         "expires_at": "2036-01-27T10:05:00Z"}]}}
        self.reply(known.get(self.path, {"error": "not found"}), 200 if self.path in known else 404)

    def do_POST(self):
        """Answers `/api/show` and `/api/chat`."""
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"{}")
        name = body.get("model", "")
        if f"{name}:latest" in MODELS:
            name = f"{name}:latest"
        if name not in MODELS:
            return self.reply({"error": f"model '{name}' not found"}, 404)
        if self.path == "/api/show":
            info = {"general.architecture": "echo", "general.parameter_count": 7_000_000_000,
                    "echo.context_length": WINDOW}
            return self.reply({"details": DETAILS, "model_info": info, "modified_at": TIME,
                               "capabilities": ["completion", "thinking"]})
        if self.path == "/api/chat":
            return self.chat(name, body)
        return self.reply({"error": "not found"}, 404)

    def chat(self, name, body):
        """Answers a chat request, in pieces unless `stream` is false."""
        messages = body.get("messages") or []
        asked = [message.get("content", "") for message in messages if message.get("role") == "user"]
        text = asked[-1] if asked else ""
        line = text.rstrip().rsplit("\n", 1)[-1]
        if "[fail]" in line:
            return self.reply({"error": "the model failed, as it was told to"}, 500)
        pieces = pieces_of(line, text) if messages else []
        done = {"model": name, "created_at": TIME, "done": True, "done_reason": "stop" if messages else "load",
                "message": {"role": "assistant", "content": ""}}
        if messages:
            counts = {"prompt_eval_count": sum(len(m.get("content", "")) for m in messages) // 4 + 8,
                      "eval_count": len(pieces) or 1}
            done.update(counts, total_duration=3_000_000, load_duration=1_000_000, prompt_eval_duration=1_000_000,
                        eval_duration=1_000_000)
        if body.get("stream") is False or not messages:
            done["message"]["content"] = "".join(piece for field, piece in pieces if field == "content")
            return self.reply(done)
        try:
            self.stream(name, line, pieces, done)
        except OSError:
            self.close_connection = True

    def stream(self, name, line, pieces, done):
        """Sends an answer in pieces."""
        self.send_response(200)
        self.send_header("Content-Type", "application/x-ndjson")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for index, (field, piece) in enumerate(pieces):
            if index and self.server.pause:
                time.sleep(self.server.pause)
            message = {"role": "assistant", "content": "", field: piece}
            self.chunk({"model": name, "created_at": TIME, "message": message, "done": False})
        if "[hang]" in line:
            self.connection.settimeout(600)
            self.connection.recv(1)
            self.close_connection = True
            return
        self.chunk({"error": "the answer broke off, as it was told to"} if "[break]" in line else done)
        self.wfile.write(b"0\r\n\r\n")

    def chunk(self, value):
        """Sends one line of a streamed answer."""
        data = json.dumps(value, ensure_ascii=False).encode() + b"\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()


class Server(ThreadingHTTPServer):
    """A server that ends with its process, whatever its connections do."""

    daemon_threads = True
    pause = 0.0

    def handle_error(self, request, client_address):
        """Ignores clients that leave before their reply."""

    def get_request(self):
        """Sends pieces at once rather than when more have gathered."""
        connection, address = super().get_request()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        return connection, address


def main():
    """Serves until the process is ended."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=0, help="0 for any free port")
    parser.add_argument("--pause", type=float, default=0, help="milliseconds between two pieces of an answer")
    arguments = parser.parse_args()
    server = Server(("127.0.0.1", arguments.port), Handler)
    server.pause = arguments.pause / 1000
    print(f"http://127.0.0.1:{server.server_address[1]}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
