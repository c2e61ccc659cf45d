#!/usr/bin/env python3
"""Measures how right `precise` and `warm` are before real engines whose caches are too small, are reset, and
restart.

    bench/real/precise.py --front-binary target/release/warmfront --engines URL URL --tokenizer FOLDER

Draws more prefixes than both caches hold, and asks for each several times in random order, each time with
another ending; some requests continue a conversation. Before each request the front says how many of its
tokens the engine holds (`x-warmfront-explain`); afterwards the engine says how many it had cached
(`usage.prompt_tokens_details.cached_tokens`). Between parts of the run one engine's cache is reset. All
policies get the same requests, each policy after a reset of both engines.

The engines must run with KV events (see `warmfront doctor`), --enable-prompt-tokens-details and
VLLM_SERVER_DEV_MODE=1. FOLDER has their tokenizer.json and chat template.
"""

import argparse
import json
import random
import re
import statistics
import sys
import tempfile
import time

from front import Front, connect, get, model_of, netloc, wait
from prefix import CAPACITY, ask_all, calibrate, chat, delta, empty, idle, samples, text, totals

POLICIES = ("warm", "precise")


def main():
    args = arguments()
    engines = [url.rstrip("/") for url in args.engines]
    model = model_of(engines[0])
    info = next(labels for labels, _ in samples(get(engines[0], "/metrics"), CAPACITY))
    capacity, block = int(info["kv_cache_size_tokens"]), int(info["block_size"])
    words_per_token = calibrate(engines[0], model)
    requests = draw(args, model, words_per_token)
    print(f"{len(engines)} engines of {capacity} tokens in blocks of {block}; {args.prefixes} prefixes of about "
          f"{args.prefix_tokens} tokens, each asked {args.times} times, {args.concurrency} at once, "
          f"{args.parts} parts with resets between\n")
    print(f"{'round':>5} {'policy':<9} {'requests':>8} {'hit rate':>8} {'off by':>8} {'too many':>8} {'too few':>8} "
          f"{'in blocks':>9} {'TTFT mean':>9}")
    errors = {policy: [] for policy in POLICIES}
    for turn in range(args.rounds):
        for policy in POLICIES if turn % 2 == 0 else reversed(POLICIES):
            result = measure(args, engines, policy, requests)
            errors[policy].append(result["off"] / block)
            print(f"{turn + 1:>5} {policy:<9} {result['count']:>8} {result['rate']:>8.3f} {result['off']:>8.1f} "
                  f"{result['over']:>8.1f} {result['under']:>8.1f} {result['off'] / block:>9.2f} "
                  f"{1000 * result['ttft']:>6.0f} ms", flush=True)
            if args.show and policy == "precise":
                for line in result["lines"]:
                    print("      ", *line)
    medians = {policy: statistics.median(all) for policy, all in errors.items()}
    print("\nmean absolute error in blocks, median over rounds: "
          + ", ".join(f"{policy} {value:.2f}" for policy, value in medians.items()))
    sys.exit(medians["precise"] >= 1 or medians["warm"] <= medians["precise"])


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-binary", required=True, help="warmfront to start")
    parser.add_argument("--engines", nargs="+", required=True, metavar="URL", help="running engines, same model")
    parser.add_argument("--tokenizer", required=True, help="folder of the model's tokenizer.json and template")
    parser.add_argument("--rounds", type=int, default=3, help="default %(default)s")
    parser.add_argument("--parts", type=int, default=3, help="of a round, with a reset between (default %(default)s)")
    parser.add_argument("--prefixes", type=int, default=12, help="default %(default)s")
    parser.add_argument("--prefix-tokens", type=int, default=900, help="about (default %(default)s)")
    parser.add_argument("--times", type=int, default=9, help="each prefix is asked (default %(default)s)")
    parser.add_argument("--concurrency", type=int, default=2, help="requests at once (default %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=4, help="of each reply (default %(default)s)")
    parser.add_argument("--show", action="store_true", help="each request of precise: held, cached, prompt")
    return parser.parse_args()


def draw(args, model, words_per_token):
    """Returns the bodies in the order in which they are sent. A third of them continue an earlier conversation."""
    rng = random.Random(7)
    of_tokens = lambda tokens: text(rng, max(1, round(tokens * words_per_token)))
    prefixes = [of_tokens(rng.uniform(0.5, 1.5) * args.prefix_tokens) for _ in range(args.prefixes)]
    order = [prefix for prefix in prefixes for _ in range(args.times)]
    rng.shuffle(order)
    options = {"model": model, "max_tokens": args.output_tokens, "temperature": 0, "ignore_eos": True}
    bodies, had = [], {}
    for prefix in order:
        messages = had.get(prefix)
        if messages is None or rng.random() < 2 / 3:
            messages = [{"role": "system", "content": prefix}]
        messages = messages + [{"role": "user", "content": of_tokens(rng.uniform(5, 120))}]
        had[prefix] = messages + [{"role": "assistant", "content": of_tokens(rng.uniform(5, 60))}]
        bodies.append(options | {"messages": messages})
    return bodies


def measure(args, engines, policy, requests):
    for engine in engines:
        reset(engine, requests[0])
    before = [totals(engine) for engine in engines]
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"[routing]\npolicy = \"{policy}\"\ntokenizer = {json.dumps(args.tokenizer)}\nqueue = \"off\"\n")
        config.flush()
        with Front(args.front_binary, engines, policy, ["--config", config.name]) as front:
            if policy == "precise":
                exact(front)
            lines = []
            parts = [requests[at::args.parts] for at in range(args.parts)]
            for number, part in enumerate(parts):
                if number:
                    lost = engines[number % len(engines)]
                    reset(lost, requests[0])
                    told(front, lost)
                lines += ask_all(front.url, part, args.concurrency, ask)
    for engine in engines:
        idle(engine)
    hits, queries = (sum(column) for column in zip(*map(delta, before, map(totals, engines))))
    over = [max(0, held - cached) for held, cached, *_ in lines]
    under = [max(0, cached - held) for held, cached, *_ in lines]
    return {"count": len(lines), "rate": hits / queries, "over": statistics.mean(over), "under": statistics.mean(under),
            "off": statistics.mean(over) + statistics.mean(under), "lines": lines,
            "ttft": statistics.mean(line[3] for line in lines)}


def reset(engine, body):
    """Resets an engine's cache. The engine publishes this only with its next request, so one is sent: no later
    request may be sent there for what the cache held before."""
    empty(engine)
    ask(engine, body | {"messages": chat("a")}, connect(engine))
    idle(engine)


def told(front, engine):
    """Waits until the front has applied the event: it then knows hardly a block of this engine."""
    name = netloc(engine)
    known = lambda: [v for labels, v in samples(get(front.admin, "/metrics"), "warmfront_kv_blocks") if labels["endpoint"] == name]
    if wait(5, lambda: all(blocks < 8 for blocks in known())) is None:
        sys.exit(f"the front still knows {known()} blocks of {engine}, which was reset")


def exact(front):
    began = time.monotonic()
    while any(shown["cache"]["rung"] != "exact" for shown in front.endpoints().values()):
        if time.monotonic() - began > 20:
            sys.exit(f"the engines' events are not heard; the front's log is {front.log.name}")
        time.sleep(0.1)


def ask(url, body, connection):
    """Sends one request; returns the tokens believed held, cached, and of the prompt, the seconds to the first event, and
    the endpoint."""
    body = body | {"stream": True, "stream_options": {"include_usage": True}}
    fields = {"Content-Type": "application/json", "x-warmfront-explain": "1"}
    began, first, usage = time.perf_counter(), None, None
    connection.request("POST", "/v1/chat/completions", json.dumps(body), fields)
    reply = connection.getresponse()
    if reply.status != 200:
        raise OSError(f"{reply.status} {reply.read(300)!r}")
    told = reply.getheader("x-warmfront-explain") or ""
    for line in reply:
        if line.startswith(b"data: {"):
            first = first or time.perf_counter() - began
            usage = json.loads(line[5:]).get("usage") or usage
    held = re.search(r"\bheld=(\d+)", told)
    endpoint = re.search(r"\bendpoint=(\S+)", told)
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    return int(held[1]) if held else 0, cached, usage["prompt_tokens"], first, endpoint and endpoint[1]


if __name__ == "__main__":
    main()
