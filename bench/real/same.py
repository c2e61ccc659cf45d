#!/usr/bin/env python3
"""Checks that a front before a real engine changes nothing in a body, and in a head only what it must.

    bench/real/same.py --front-binary target/release/warmfront --engine URL [--policy NAME]

A recorder stands between the front and the engine. For each exchange, the client's request is compared with
what the recorder received, and the engine's reply with what the client received: bodies (without their
framing) byte for byte, heads field by field. Each request is sent as one segment, and as head, pause, body;
and twice on one connection, so that both new and used connections to the engine take part.
"""

import argparse
import collections
import io
import json
import queue
import socket
import sys
import threading
import time

from front import Front, model_of, netloc

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
TO_ENGINE = {"x-request-id", "x-forwarded-for", "x-forwarded-proto"}
TO_CLIENT = {"x-request-id"}
# Hop by hop, or written anew from what was parsed.
FRAMING = {"connection", "keep-alive", "transfer-encoding", "content-length", "date"}


def cases(model):
    """Returns the requests as (name, path, body). Without a body it is a GET."""
    fixed = {"model": model, "max_tokens": 8, "temperature": 0, "seed": 1, "ignore_eos": True}
    chat = fixed | {"messages": [{"role": "user", "content": "Name three primes: é, 数."}]}
    usage = {"stream": True, "stream_options": {"include_usage": True}}
    yield "chat", CHAT, chat
    yield "chat, streamed", CHAT, chat | usage
    yield "chat, 64 tokens streamed", CHAT, chat | usage | {"max_tokens": 64}
    yield "chat, logprobs, two", CHAT, chat | {"logprobs": True, "top_logprobs": 2, "n": 2, "temperature": 0.9}
    yield "chat, model last", CHAT, {name: chat[name] for name in sorted(chat, key=lambda name: name == "model")}
    yield "completion", TEXT, fixed | {"prompt": "The list of"}
    yield "completion, streamed", TEXT, fixed | usage | {"prompt": "The list of"}
    yield "completion, token ids", TEXT, fixed | {"prompt": list(range(10, 400))}
    yield "completion, two prompts", TEXT, fixed | {"prompt": ["one two", "three"]}
    yield "16 KB prompt", CHAT, chat | {"messages": [{"role": "user", "content": "ab cd " * 2700}]}
    yield "400 KB prompt, too long", CHAT, chat | {"messages": [{"role": "user", "content": "ab cd " * 67_000}]}
    yield "bad type", CHAT, chat | {"max_tokens": "many"}
    yield "tokenize", "/tokenize", {"model": model, "prompt": "one two three"}
    yield "version", "/version", None


class Recorder:
    """A relay in front of the engine that keeps each exchange, by its path."""

    def __init__(self, engine):
        self.engine = engine
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self.listener.getsockname()[1]}"
        self.seen = collections.defaultdict(queue.SimpleQueue)
        threading.Thread(target=self.accept, daemon=True).start()

    def accept(self):
        while True:
            threading.Thread(target=self.serve, args=self.listener.accept()[:1], daemon=True).start()

    def serve(self, front):
        host, port = netloc(self.engine).split(":")
        with front, socket.create_connection((host, int(port))) as engine:
            asked, answered = front.makefile("rb"), engine.makefile("rb")
            try:
                while (request := Message(asked, engine.sendall)).start:
                    reply = Message(answered, front.sendall)
                    self.seen[request.start.split()[1].decode()].put((request, reply))
            except (OSError, ValueError, IndexError):
                return  # one of them left, or sent what is no message


class Message:
    """A request or reply that is passed on while it is read. It has no first line if the connection ended instead."""

    def __init__(self, reader, passing=lambda data: None):
        self.reader, self.passing = reader, passing
        self.body, self.fields = b"", {}
        self.start = self.line()
        while (line := self.line()).strip():
            name, value = line.decode("latin-1").split(":", 1)
            self.fields.setdefault(name.lower(), []).append(value.strip())
        if self.fields.get("transfer-encoding") != ["chunked"]:
            self.body = self.take(int(self.fields.get("content-length", ["0"])[0]))
            return
        while size := int(self.line(), 16):
            self.body += self.take(size)
            self.line()
        self.line()

    def line(self):
        return self.pass_on(self.reader.readline())

    def take(self, size):
        return self.pass_on(self.reader.read(size))

    def pass_on(self, data):
        if data:
            self.passing(data)
        return data


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-binary", required=True, help="warmfront to start")
    parser.add_argument("--engine", required=True, metavar="URL", help="a running engine")
    parser.add_argument("--policy", default="prefix-hash", help="of the front (default %(default)s)")
    args = parser.parse_args()
    recorder = Recorder(args.engine.rstrip("/"))
    differ = 0
    with Front(args.front_binary, [recorder.url], args.policy) as front:
        for name, path, body in cases(model_of(args.engine)):
            faults, reply = [], None
            for pause in (None, 0.02):
                for request, reply in ask(front.url, path, body, pause):
                    faults += compare(request, reply, *recorder.seen[path].get(timeout=10))
            differ += bool(faults)
            print(f"{name:<26} {reply.start.split()[1].decode()} {len(reply.body):>7} bytes  "
                  f"{'; '.join(faults[:3]) or 'same'}", flush=True)
    if differ:
        sys.exit(f"{differ} differ")


def ask(url, path, body, pause):
    """Makes two exchanges on one connection."""
    payload = b"" if body is None else json.dumps(body).encode()
    head = f"{'POST' if payload else 'GET'} {path} HTTP/1.1\r\nHost: {netloc(url)}\r\nAccept: */*\r\n"
    if payload:
        head += f"Content-Type: application/json\r\nContent-Length: {len(payload)}\r\n"
    head = (head + "\r\n").encode()
    host, port = netloc(url).split(":")
    with socket.create_connection((host, int(port)), 120) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = connection.makefile("rb")
        for _ in range(2):
            if pause is None:
                connection.sendall(head + payload)
            else:
                connection.sendall(head)
                time.sleep(pause)
                connection.sendall(payload)
            yield Message(io.BytesIO(head + payload)), Message(reader)


def compare(sent, got, arrived, answered):
    """Returns what the front changed in the request and in the reply."""
    if sent.start != arrived.start or answered.start != got.start:
        yield f"first lines {arrived.start} {got.start}"
    yield from changes("request", sent, arrived, TO_ENGINE)
    yield from changes("reply", answered, got, TO_CLIENT)


def changes(what, before, after, added):
    for name in sorted((before.fields.keys() | after.fields.keys()) - FRAMING - added):
        if before.fields.get(name) != after.fields.get(name):
            yield f"{what} {name}: {before.fields.get(name)} became {after.fields.get(name)}"
    if before.body != after.body:
        at = next((i for i, (a, b) in enumerate(zip(before.body, after.body)) if a != b), "its end")
        yield f"{what} body differs at {at}: {before.body[:40]!r} became {after.body[:40]!r}"


if __name__ == "__main__":
    main()
