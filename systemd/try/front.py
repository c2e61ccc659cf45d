"""What the steps of supervised.py share: the service as systemd sees it, clients, and streams."""

import http.client
import json
import os
import socket
import subprocess
import threading
import time

UNIT = "warmfront.service"
FILE = "/etc/warmfront/warmfront.toml"
PORT, ADMIN = 8000, 9911
ENGINES = (9101, 9102)


class Wrong(Exception):
    """Something is not as it should be."""


def check(holds, why):
    if not holds:
        raise Wrong(why)


def run(*command, fails=False):
    """What a command prints; it has to succeed, or to fail where that is wanted."""
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    check((done.returncode != 0) == fails, f"{' '.join(command)}: status {done.returncode}: {done.stdout}")
    return done.stdout


def systemctl(*words, fails=False):
    return run("systemctl", *words, fails=fails)


def shown(*names):
    """Properties of the unit."""
    lines = systemctl("show", UNIT, *(f"--property={name}" for name in names)).splitlines()
    found = dict(line.split("=", 1) for line in lines)
    return [found[name] for name in names]


def main_pid():
    return int(shown("MainPID")[0])


def wait_until(holds, why, seconds=15.0, pause=0.005):
    """Seconds until it holds."""
    begin = time.monotonic()
    while not holds():
        check(time.monotonic() - begin < seconds, f"not within {seconds} s: {why()if callable(why) else why}")
        time.sleep(pause)
    return time.monotonic() - begin


class Journal:
    """The unit's entries from now on."""

    def __init__(self):
        run("journalctl", "--sync")
        line = run("journalctl", "--lines=1", "--output=json", "--no-pager")
        self.cursor = json.loads(line)["__CURSOR"]

    def entries(self):
        """Priority and words of each."""
        run("journalctl", "--sync")
        text = run("journalctl", f"--unit={UNIT}", f"--after-cursor={self.cursor}", "--output=json", "--no-pager", "--all")
        found = [json.loads(line) for line in text.splitlines() if line.startswith("{")]
        return [(int(entry["PRIORITY"]), entry["MESSAGE"]) for entry in found]

    def find(self, words, priority=None):
        """The first entry with these words."""
        entries = self.entries()
        found = [entry for entry in entries if words in str(entry[1])]
        shown = "\n".join(f"  <{priority}> {words}" for priority, words in entries)
        check(found, f"the journal does not say \"{words}\", but\n{shown}")
        check(priority in (None, found[0][0]), f"priority {found[0][0]} instead of {priority}: {found[0][1]}")
        return found[0][1]


def configure(engines=ENGINES, listen=f"127.0.0.1:{PORT}", access="off"):
    text = f'[serve]\nlisten = ["{listen}"]\n[log]\naccess = "{access}"\n'
    text += "".join(f'[[upstream]]\nurl = "http://127.0.0.1:{port}"\n' for port in engines)
    # As editors do it: the front never sees half a file.
    with open(FILE + ".new", "w") as file:
        file.write(text)
    os.rename(FILE + ".new", FILE)


def ask(connection, tokens):
    """One streamed reply, read and verified to its end."""
    body = {"model": "m", "stream": True, "max_tokens": tokens, "messages": [{"role": "user", "content": "Go on."}]}
    connection.request("POST", "/v1/chat/completions", json.dumps(body), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    check(reply.status == 200, f"status {reply.status}: {text[:200]!r}")
    events = text.count(b"data: ")
    check(text.endswith(b"data: [DONE]\n\n") and b'"error"' not in text and events > tokens, f"{text[-200:]!r}")


def connect(port=PORT, timeout=30.0):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    connection.connect()
    return connection


def admin(path):
    connection = connect(ADMIN, 5.0)
    connection.request("GET", path)
    text = connection.getresponse().read().decode()
    connection.close()
    return text


def counted(*names):
    """The sum of these counters."""
    lines = [line.split() for line in admin("/metrics").splitlines()]
    return sum(int(line[1]) for line in lines if line[0] in names)


def flood(requests):
    """Asks for the list of models so often, pipelined on one connection."""
    one = b"GET /v1/models HTTP/1.1\r\nhost: front\r\n\r\n"
    with socket.create_connection(("127.0.0.1", PORT), 30.0) as connection:
        connection.sendall(one)
        reply = len(connection.recv(65536))
        for left in range(requests - 1, 0, -16):
            now = min(left, 16)
            connection.sendall(one * now)
            missing = now * reply
            while missing:
                got = len(connection.recv(missing))
                check(got, "a connection was closed")
                missing -= got


def answers(seconds=5.0):
    """Whether a request is answered."""
    try:
        connection = connect(timeout=seconds)
        ask(connection, 1)
        connection.close()
        return True
    except (OSError, http.client.HTTPException, Wrong):
        return False


def refused(port=PORT):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
        return False
    except ConnectionRefusedError:
        return True


class Load:
    """Clients that ask without a pause for as long as the block lasts, half of them on kept connections."""

    def __init__(self, clients=8, tokens=3, kept=True):
        self.asked, self.failures, self.tokens, self.longest = 0, [], tokens, 0.0
        self.going, self.lock = True, threading.Lock()
        self.threads = [threading.Thread(target=self.client, args=(kept and at % 2 == 1,)) for at in range(clients)]

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        time.sleep(0.5)
        return self

    def __exit__(self, *_):
        self.going = False
        for thread in self.threads:
            thread.join()

    def client(self, kept):
        connection = None
        while self.going:
            begin, failure = time.monotonic(), None
            try:
                connection = connection or connect()
                ask(connection, self.tokens)
            except (OSError, http.client.HTTPException, Wrong) as error:
                failure = f"{'kept' if kept else 'new'} connection: {error!r}"
            if connection and (failure or not kept or connection.sock is None):
                connection.close()
                connection = None
            with self.lock:
                self.asked += 1
                self.longest = max(self.longest, time.monotonic() - begin)
                self.failures += [failure] if failure else []
            if failure:
                time.sleep(0.001)

    def all_answered(self):
        check(self.asked > 0 and not self.failures, f"{len(self.failures)} of {self.asked}: {self.failures[:5]}")
        return f"{self.asked} requests, 0 failed, longest {self.longest * 1000:.0f} ms"


class Streams:
    """Long replies, each read to its end by a thread of its own."""

    def __init__(self, count, tokens):
        self.failures, self.ended, self.begin = [], [], time.monotonic()
        self.threads = [threading.Thread(target=self.read, args=(tokens,)) for _ in range(count)]
        for thread in self.threads:
            thread.start()
        time.sleep(0.5)

    def read(self, tokens):
        try:
            ask(connect(), tokens)
        except (OSError, http.client.HTTPException, Wrong) as error:
            self.failures.append(repr(error))
        self.ended.append(time.monotonic())

    def all_complete(self):
        for thread in self.threads:
            thread.join()
        check(not self.failures, f"{len(self.failures)} of {len(self.threads)} streams: {self.failures[:5]}")
        return f"{len(self.threads)} streams complete"
