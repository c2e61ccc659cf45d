#!/usr/bin/env python3
"""Checks how a front before real engines behaves when a client leaves, and when an engine stops.

    bench/real/leave.py --front-binary target/release/warmfront --engines URL URL [--stop-pid PID]

When a client leaves in the middle of a reply, streamed or not, its engine must drop the request within half
a second (median). The same is measured for clients that are connected to the engine itself. With --stop-pid
only the second check runs: the process of the FIRST engine gets SIGTERM under light load, and must be started
again by somebody else. Requests that were in flight there may fail, no others may, and the front must use
the engine again.
"""

import argparse
import http.client
import json
import os
import select
import signal
import socket
import statistics
import sys
import threading
import time

from front import Front, get, model_of, netloc, running, samples, stream, wait

GONE_WITHIN_S = 0.5
TRIES = 5
WAYS = (("stream, close", True, "close"), ("stream, reset", True, "reset"), ("whole, close", False, "close"))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-binary", required=True, help="warmfront to start")
    parser.add_argument("--engines", nargs="+", required=True, metavar="URL", help="running engines, same model")
    parser.add_argument("--times", type=int, default=9, help="a client leaves in each way (default %(default)s)")
    parser.add_argument("--returns-within", type=float, default=300, metavar="SECONDS", help="(default %(default)s)")
    parser.add_argument("--stop-pid", type=int, help="process of the first engine, to be stopped")
    args = parser.parse_args()
    engines = [url.rstrip("/") for url in args.engines]
    model = model_of(engines[0])
    if args.stop_pid:
        with Front(args.front_binary, engines, "round-robin") as front:
            good = survives(front, model, args.stop_pid, args.returns_within)
    else:
        with Front(args.front_binary, engines) as front:
            good = all([leaves(front, model, args.times, *way) for way in WAYS])
            for labels, value in samples(get(front.admin, "/metrics"), "warmfront_client_aborts_total"):
                if value:
                    print(f"the front counted {value:.0f} clients that left in phase {labels['phase']}")
    if not good:
        sys.exit("not as it should be")


def leaves(front, model, times, name, streamed, how):
    direct, through = ([leave(url, front.engines, model, streamed, how) for _ in range(times)]
                       for url in (front.engines[0], front.url))
    shown = (f"{1000 * statistics.median(took):.0f} ms median, {1000 * max(took):.0f} ms at most"
             for took in (direct, through))
    without, with_front = shown
    print(f"client leaves ({name}): engine idle after {with_front}; without the front {without}", flush=True)
    return statistics.median(through) <= GONE_WITHIN_S


def leave(url, engines, model, streamed, how):
    """Returns the seconds from a client's leaving until its engine is idle."""
    for _ in range(TRIES):
        client = ask(url, model, streamed)
        wait(60, lambda: any(map(running, engines)) or answered(client, streamed))
        busy = next(filter(running, engines), None)
        if busy and not answered(client, streamed):
            break
        client.close()
        # Metrics are late: a request that they still show must not be taken for the next one.
        time.sleep(1)
        wait(60, lambda: not any(map(running, engines)))
    else:
        sys.exit(f"of {TRIES} requests none was seen running before it was answered, or none within 60 s")
    began = time.monotonic()
    if how == "reset":
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    client.close()
    if wait(30, lambda: running(busy) == 0, 0.01) is None:
        return 30.0
    return time.monotonic() - began


def ask(url, model, streamed):
    """Connects and asks for a long answer; if it is streamed, returns once the first event has come."""
    body = json.dumps({"model": model, "messages": [{"role": "user", "content": f"Talk. {time.time()}"}],
                       "max_tokens": 2000, "ignore_eos": True, "stream": streamed}).encode()
    host, port = netloc(url).split(":")
    client = socket.create_connection((host, int(port)), 60)
    client.sendall(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
                   b"Content-Length: %d\r\n\r\n" % len(body) + body)
    if streamed:
        while b"data:" not in client.recv(1 << 16):
            pass
    return client


def answered(client, streamed):
    """Whether the answer has come already: an engine may finish before its metrics show that it began."""
    return not streamed and bool(select.select([client], [], [], 0)[0])


def survives(front, model, pid, returns_within):
    """Loads both engines lightly, stops the first, and waits until it is back and used."""
    stopped, ends = front.engines[0], []
    until = threading.Event()

    def ask():
        body = {"model": model, "max_tokens": 24, "ignore_eos": True}
        while not until.is_set():
            began = time.monotonic()
            try:
                stream(front.url, body | {"messages": [{"role": "user", "content": f"Go on. {began}"}]})
                ends.append((began, None))
            except (OSError, http.client.HTTPException) as error:
                ends.append((began, repr(error)[:160]))
            time.sleep(0.02)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    time.sleep(3)
    os.kill(pid, signal.SIGTERM)
    killed = time.monotonic()
    down = wait(60, lambda: front.endpoints()[stopped]["health"] != "up")
    up = wait(returns_within, lambda: front.serves(stopped), 0.2) if down is not None else None
    asked = lambda: front.requests("endpoint").get(netloc(stopped), 0)
    had = asked()
    # Slow start: it gets a tenth of its share at first, all of it after 30 s. From two clients that is one request in
    # many seconds.
    used = wait(60, lambda: asked() > had, 0.2) if up is not None else None
    until.set()
    for thread in threads:
        thread.join()
    before = [end for end in ends if end[0] < killed]
    after = [end for end in ends if end[0] >= killed]
    lost = [end for end in before if end[1]]
    fresh = [end for end in after if end[1]]
    shown = ["never" if took is None else f"{took:.1f} s later" for took in (down, up, used)]
    print(f"engine stopped; down in the front's eyes {shown[0]}; up again {shown[1]}; "
          f"its first request ended {shown[2]}\n"
          f"  {len(before)} requests begun before, {len(lost)} of them cut; "
          f"{len(after)} begun after, {len(fresh)} of them failed")
    for began, error in lost + fresh:
        print(f"  begun {began - killed:+.2f} s: {error}")
    print(f"  statuses at the front: {front.requests('status')}; by endpoint: {front.requests('endpoint')}")
    # For a moment an engine that was told to stop still accepts requests, and then closes their connections. The front
    # cannot know whether such a request ran, and does not send it twice. After three faults in a row the front bars the
    # engine, so that at most three requests are lost so.
    taken_along = all(began - killed < 1 for began, _ in fresh) and len(fresh) <= 3
    return used is not None and taken_along


if __name__ == "__main__":
    main()
