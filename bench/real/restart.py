#!/usr/bin/env python3
"""Checks that no request is sent to a restarted engine for a cache that is gone.

    bench/real/restart.py --front-binary target/release/warmfront --engines URL URL --tokenizer FOLDER --pid PID

PID is the process of the first engine's `vllm serve`. While requests go on, its process group gets SIGKILL and
the same command is started again. What the front predicts of each request (`x-warmfront-explain`) is compared
with what the engine had cached: before the kill, while the engine is gone, and after it is back. The engines
must run as precise.py says.
"""

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from front import Front, connect, get, model_of, netloc, wait
from precise import ask, exact, reset
from prefix import calibrate, chat, text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-binary", required=True, help="warmfront to start")
    parser.add_argument("--engines", nargs="+", required=True, metavar="URL", help="running engines, same model")
    parser.add_argument("--tokenizer", required=True, help="folder of the model's tokenizer.json and template")
    parser.add_argument("--pid", type=int, required=True, help="of the first engine")
    parser.add_argument("--policy", default="precise", help="default %(default)s")
    args = parser.parse_args()
    engines = [url.rstrip("/") for url in args.engines]
    model = model_of(engines[0])
    rng = random.Random(11)
    words = round(700 * calibrate(engines[0], model))
    prompts = [text(rng, words) for _ in range(4)]
    options = {"model": model, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    body = lambda place: options | {"messages": chat(f"{prompts[place % len(prompts)]} {text(rng, 9)}")}
    for engine in engines:
        reset(engine, options)
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"[routing]\npolicy = \"{args.policy}\"\ntokenizer = {json.dumps(args.tokenizer)}\n"
                     "[health]\nslow_start_ms = 0\n")
        config.flush()
        with Front(args.front_binary, engines, args.policy, ["--config", config.name]) as front:
            if args.policy == "precise":
                exact(front)
            first = netloc(engines[0])
            asked = lambda place: ask(front.url, body(place), connect(front.url))
            before = [asked(place) for place in range(16)]
            show("before", before, first)
            command, environment, folder = of_process(args.pid)
            os.killpg(os.getpgid(args.pid), signal.SIGKILL)
            killed = time.monotonic()
            while health(engines[0]):
                time.sleep(0.01)
            # The engine is gone: all requests go to the other one.
            between = [asked(place) for place in range(12)]
            log = open(Path(tempfile.gettempdir()) / "warmfront-restarted.log", "w")
            again = subprocess.Popen(command, env=environment, cwd=folder, stdout=log, stderr=log, start_new_session=True)
            while not health(engines[0]):
                if again.poll() is not None:
                    sys.exit(f"the engine did not start again; its log is {log.name}")
                between.append(asked(len(between)))
                time.sleep(0.2)
            show(f"gone for {time.monotonic() - killed:.0f} s", between, first)
            wait(20, lambda: front.endpoints()[engines[0]]["health"] == "up")
            if args.policy == "precise":
                exact(front)
            # New prompts join the old ones, so that the engine whose cache is empty gets some, and gets them again.
            prompts += [text(rng, words) for _ in range(4)]
            after = [asked(place) for place in range(40)]
            show("after", after, first)
            shown = front.endpoints()[engines[0]]["cache"]
            print(f"{first}: {shown['rung']} ({shown['why']})")
    print(f"the engine runs on as process {again.pid}")
    wrong = [line for line in after if line[4] == first and line[0] > line[1] + 32]
    sys.exit(f"sent for a cache that is gone: {wrong}" if wrong else 0)


def of_process(pid):
    read = lambda name: Path(f"/proc/{pid}/{name}").read_bytes().rstrip(b"\0").split(b"\0")
    environment = dict(pair.split(b"=", 1) for pair in read("environ") if b"=" in pair)
    return read("cmdline"), environment, os.readlink(f"/proc/{pid}/cwd")


def health(engine):
    try:
        get(engine, "/health", timeout=1)
        return True
    except OSError:
        return False


def show(name, lines, first):
    there = [line for line in lines if line[4] == first]
    error = sum(abs(held - cached) for held, cached, *_ in lines) / max(1, len(lines))
    print(f"{name:<14} {len(lines):>3} requests, {len(there):>3} to {first}; believed held "
          f"{sum(line[0] for line in lines)}, cached {sum(line[1] for line in lines)}, off by {error:.1f} tokens a request",
          flush=True)


if __name__ == "__main__":
    main()
