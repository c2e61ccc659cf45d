#!/usr/bin/env python3
"""Measures how soon a new front knows of two real engines' caches what a front that runs already knows.

    bench/real/late.py --front-binary target/release/warmfront --engines URL URL --tokenizer FOLDER

The first front sends some prompts, which the engines then hold. A second front is started beside it in
three ways: with the engines' replay sockets, with the replay sockets and the first front's file of caches,
and with neither. The second front is asked how many tokens of each prompt it would find held
(`POST /explain`, which sends nothing to an engine), until it answers what the first one answers. The engines
must run as precise.py says.
"""

import argparse
import http.client
import json
import random
import tempfile
import time
from pathlib import Path

from front import Front, get, model_of, netloc, stream
from precise import exact, reset
from prefix import calibrate, chat, text

LONGEST = 15


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-binary", required=True, help="warmfront to start")
    parser.add_argument("--engines", nargs="+", required=True, metavar="URL", help="running engines, same model")
    parser.add_argument("--tokenizer", required=True, help="folder of the model's tokenizer.json and template")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    args = parser.parse_args()
    engines = [url.rstrip("/") for url in args.engines]
    model = model_of(engines[0])
    rng = random.Random(5)
    words = round(800 * calibrate(engines[0], model))
    prompts = [text(rng, words) for _ in range(6)]
    options = {"model": model, "max_tokens": 2, "temperature": 0, "ignore_eos": True}
    for engine in engines:
        reset(engine, options)
    bodies = [options | {"messages": chat(prompt)} for prompt in prompts]
    sources = [sources_of(engine) for engine in engines]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "caches"
        config = lambda name, **keys: written(Path(folder) / name, args.tokenizer, engines, sources, **keys)
        ways = {"replay": config("replay"), "saved": config("saved", file=file),
                "neither": config("neither", replay=False)}
        old = config("old", file=file)
        for turn in range(args.rounds):
            with begun(args.front_binary, engines, old) as front:
                exact(front)
                for body in bodies:
                    stream(front.url, body)
                # The last event is on its way.
                time.sleep(1)
                goal = held(front, bodies)
            for name, path in ways.items():
                # Its own constructor waits for the engines to be known; that is part of the time.
                began = time.monotonic()
                with begun(args.front_binary, engines, path) as new:
                    known = held(new, bodies)
                    while known != goal and time.monotonic() - began < LONGEST:
                        time.sleep(0.02)
                        known = held(new, bodies)
                    took = time.monotonic() - began
                    rungs = sorted({shown["cache"]["rung"] for shown in new.endpoints().values()})
                said = f"{took:5.2f} s" if known == goal else f"not in {LONGEST} s without requests"
                print(f"{turn + 1} {name:<7} {sum(known):>5} of {sum(goal)} tokens held: {said}; {', '.join(rungs)}", flush=True)


def begun(binary, engines, config):
    """Returns a front that takes its engines from the file: flags cannot say where engines publish events."""
    front = Front(binary, engines, "precise")
    at = front.command.index("--upstream")
    front.command = front.command[:at] + ["--config", str(config)]
    return front


def sources_of(engine):
    return json.loads(get(engine, "/kv_event_sources"))["0"]


def written(path, tokenizer, engines, sources, file=None, replay=True):
    """Writes a configuration that names the engines' sockets, with or without their replay sockets."""
    port = lambda endpoint: endpoint.rsplit(":", 1)[1]
    lines = ["[routing]", 'policy = "precise"', f"tokenizer = {json.dumps(tokenizer)}"]
    if file:
        lines += ["[control]", f"caches_file = {json.dumps(str(file))}"]
    for engine, source in zip(engines, sources):
        host = netloc(engine).rsplit(":", 1)[0]
        lines += ["[[upstream]]", f'url = "{engine}"', f'kv_events = "tcp://{host}:{port(source["endpoint"])}"']
        lines += [f'kv_topic = {json.dumps(source.get("topic") or "")}']
        if replay:
            lines += [f'kv_replay = "tcp://{host}:{port(source["replay_endpoint"])}"']
    path.write_text("\n".join(lines) + "\n")
    return path


def held(front, bodies):
    """Returns, for each prompt, how many tokens the front believes to be held by the endpoint it would choose."""
    found = []
    for body in bodies:
        connection = http.client.HTTPConnection(netloc(front.admin), timeout=5)
        connection.request("POST", "/explain", json.dumps(body), {"Content-Type": "application/json"})
        answer = json.loads(connection.getresponse().read())
        chosen = next(choice for choice in answer["choices"] if choice["configured"])
        found.append(chosen["tokens"][0] if chosen["tokens"] else 0)
    return found


if __name__ == "__main__":
    main()
