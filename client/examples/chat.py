#!/usr/bin/env python3
"""Asks a model and prints its answer while it is written: chat.py 'How do I reverse a list?'

Needs only the standard library. The daemon listens at the path that `ollmctl socket` prints; each message is a line of JSON.
"""

import json
import socket
import subprocess
import sys
import unicodedata


class Client:
    """A connection to the daemon."""

    def __init__(self, path):
        self.socket = socket.socket(socket.AF_UNIX)
        self.socket.connect(path)
        self.lines = self.socket.makefile("rb")
        self.last_id = 0

    def call(self, method, params):
        """Returns the result of a method."""
        self.last_id += 1
        request = {"jsonrpc": "2.0", "id": self.last_id, "method": method, "params": params}
        self.socket.sendall(json.dumps(request).encode() + b"\n")
        while True:
            message = self.next_message()
            if message.get("id") == self.last_id:
                if "error" in message:
                    raise RuntimeError(message["error"]["message"])
                return message["result"]

    def next_message(self):
        line = self.lines.readline()
        if not line:
            raise RuntimeError("the daemon closed the connection")
        return json.loads(line)

    def events(self, method, params):
        """Yields the events of a subscription."""
        number = self.call(method, params)
        while True:
            event = self.next_message().get("params", {})
            if event.get("subscription") == number:
                yield event["result"]


def printable(text):
    """Leaves out what a terminal would obey."""
    return "".join(char for char in text if char in "\n\t" or unicodedata.category(char) != "Cc")


def main():
    question = sys.argv[1] if len(sys.argv) > 1 else "How do I reverse a list?"
    path = subprocess.run(["ollmctl", "socket"], check=True, capture_output=True, text=True).stdout.strip()
    client = Client(path)
    session = client.call("session.create", {})["session"]["sessionId"]
    message = {"role": "user", "content": question}
    for event in client.events("chat.send", {"sessionId": session, "message": message}):
        if event["kind"] == "delta":
            print(printable(event.get("text", "")), end="", flush=True)
        elif event["kind"] == "error":
            sys.exit(f"\nerror: {printable(event['message'])}")
        elif event["kind"] == "done":
            print()
            return


main()
