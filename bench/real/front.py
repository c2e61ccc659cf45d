#!/usr/bin/env python3
"""What the checks here share: a front before engines, a streamed request, readings of /metrics.

    bench/real/front.py --front-binary target/release/warmfront --engines URL URL -- COMMAND [ARGUMENT ...]

runs a command while a front is up. The arguments URL and MODEL are replaced by the front's URL and the
engines' model.
"""

import argparse
import http.client
import json
import re
import socket
import subprocess
import sys
import tempfile
import time
from urllib.parse import urlparse


class Front:
    """Runs a front before `engines` while the block lasts."""

    def __init__(self, binary, engines, policy="prefix-hash", options=()):
        self.url, self.admin = (f"http://127.0.0.1:{port}" for port in free_ports(2))
        self.engines = engines
        self.log = tempfile.NamedTemporaryFile("w+", prefix="warmfront-", suffix=".log", delete=False)
        command = [binary, "serve", "--listen", netloc(self.url), "--admin", netloc(self.admin), "--policy", policy]
        for engine in engines:
            command += ["--upstream", engine]
        self.command = command + list(options)

    def __enter__(self):
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        # Waits until it is ready, each engine is up and its models are known: before that, requests may see half a fleet.
        if not wait(15, lambda: self.listens() and all(self.serves(engine) for engine in self.engines)):
            self.__exit__()
            sys.exit(f"the front did not get ready; its log is {self.log.name}")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        try:
            self.process.wait(10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def listens(self):
        try:
            return bool(get(self.admin, "/readyz"))
        except (OSError, http.client.HTTPException):
            return False

    def endpoints(self):
        """Returns each engine as the front sees it, by its URL."""
        return {shown["url"].rstrip("/"): shown for shown in json.loads(get(self.admin, "/endpoints"))["endpoints"]}

    def serves(self, engine):
        try:
            shown = self.endpoints()[engine]
        except (OSError, KeyError, http.client.HTTPException):
            return False
        return shown["health"] == "up" and bool(shown["models"])

    def requests(self, label):
        """Returns the number of finished requests by one label of `warmfront_requests_total`."""
        counts = {}
        for labels, value in samples(get(self.admin, "/metrics"), "warmfront_requests_total"):
            counts[labels[label]] = counts.get(labels[label], 0) + int(value)
        return counts


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports


def netloc(url):
    return urlparse(url).netloc


def connect(url, timeout=120):
    return http.client.HTTPConnection(netloc(url), timeout=timeout)


def get(url, path, method="GET", timeout=10):
    connection = connect(url, timeout)
    try:
        connection.request(method, path)
        reply = connection.getresponse()
        text = reply.read().decode()
    finally:
        connection.close()
    if reply.status != 200:
        raise OSError(f"{method} {url}{path}: {reply.status} {text[:200]}")
    return text


def model_of(engine):
    return json.loads(get(engine, "/v1/models"))["data"][0]["id"]


def samples(text, name):
    """Returns (labels, value) of each sample of one metric."""
    for line in text.splitlines():
        match = re.match(rf"{re.escape(name)}(?:{{(.*)}})? (\S+)", line)
        if match:
            yield dict(re.findall(r'(\w+)="((?:[^"\\]|\\.)*)"', match[1] or "")), float(match[2])


def reading(engine, *names):
    """Returns the sum of an engine's metrics over all label sets. vLLM and SGLang use different names: give both."""
    text = get(engine, "/metrics")
    return sum(value for name in names for _, value in samples(text, name))


def running(engine):
    return reading(engine, "vllm:num_requests_running", "vllm:num_requests_waiting",
                   "sglang:num_running_reqs", "sglang:num_queue_reqs")


def wait(seconds, condition, pause=0.05):
    """Returns the seconds until the condition held, or None if it did not in time."""
    began = time.monotonic()
    while time.monotonic() - began < seconds:
        if condition():
            return time.monotonic() - began
        time.sleep(pause)
    return None


def stream(url, body, connection=None):
    """Streams a chat; returns (seconds to the first data event, usage). Raises OSError if the stream is not whole."""
    connection = connection or connect(url)
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    began, first, usage, done = time.perf_counter(), None, None, False
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    if reply.status != 200:
        raise OSError(f"{reply.status} {reply.read(300)!r}")
    for line in reply:
        if line.startswith(b"data: [DONE]"):
            done = True
        elif line.startswith(b"data:"):
            first = first or time.perf_counter() - began
            event = json.loads(line[5:])
            if "error" in event:
                raise OSError(f"error event {event}")
            usage = event.get("usage") or usage
    if not (done and first and usage):
        raise OSError("the stream ended early")
    return first, usage


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-binary", required=True, help="warmfront to start")
    parser.add_argument("--engines", nargs="+", required=True, metavar="URL", help="running engines")
    parser.add_argument("--policy", default="prefix-hash", help="of the front (default %(default)s)")
    parser.add_argument("command", nargs="+", metavar="COMMAND")
    args = parser.parse_args()
    engines = [url.rstrip("/") for url in args.engines]
    with Front(args.front_binary, engines, args.policy) as front:
        filled = {"URL": front.url, "MODEL": model_of(engines[0])}
        return subprocess.call([filled.get(word, word) for word in args.command])


if __name__ == "__main__":
    sys.exit(main())
