#!/usr/bin/env python3
"""Compares hit rates of the simulated engine, by which replays and the demo judge policies, with those of real
engines.

    bench/real/simulated.py --front-binary target/release/warmfront --engines URL URL

Simulated engines (`warmfront engine`) are started with the real engines' block size and cache. Both get the
same requests, as token ids. First they go straight to one engine of each kind, one at a time: each request
must find as many tokens cached in both. Then they go through a front before two engines of each kind, several
at once: the rates under `random` and `warm` must be close. The simulated engines compute prompts as fast as
the first real engine was seen to.

The real engines must run with VLLM_SERVER_DEV_MODE=1, which opens POST /reset_prefix_cache, and with caches
that do not hold all prefixes.
"""

import argparse
import http.client
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time

from front import Front, connect, free_ports, get, model_of, netloc, samples, wait
from prefix import CAPACITY, ask_all, check_capacity, delta, empty, idle, totals

# Ids that are ordinary tokens of any model's vocabulary.
IDS = range(1000, 8000)
POLICIES = {"random": 0.1, "warm": 0.05}


def main():
    args = arguments()
    real = [url.rstrip("/") for url in args.engines]
    model = model_of(real[0])
    for engine in real:
        check_capacity(engine, args)
    rate = prefill_rate(real[0], model, args)
    with Simulated(args.front_binary, real, model, rate) as simulated:
        apart = one_at_a_time(real[0], simulated.urls[0], model, args)
        close = through_a_front(args, real, simulated.urls, model)
    sys.exit(apart > 0 or not close)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-binary", required=True, help="warmfront to start")
    parser.add_argument("--engines", nargs="+", required=True, metavar="URL", help="running engines, same model")
    parser.add_argument("--sets", type=int, default=3, help="seeds 1 to this (default %(default)s)")
    parser.add_argument("--prefixes", type=int, default=4, help="of a set (default %(default)s)")
    parser.add_argument("--prefix-tokens", type=int, default=4096, help="of each (default %(default)s)")
    parser.add_argument("--times", type=int, default=8, help="each prefix is asked (default %(default)s)")
    parser.add_argument("--conversations", type=int, default=8, help="at one engine, in turns (default %(default)s)")
    parser.add_argument("--concurrency", type=int, default=2, help="requests at once through the front (default %(default)s)")
    return parser.parse_args()


class Simulated:
    """Runs as many simulated engines as there are real ones, of the same block size and cache, while the block lasts."""

    def __init__(self, binary, real, model, rate):
        info = next(labels for labels, _ in samples(get(real[0], "/metrics"), CAPACITY))
        # One of vLLM's blocks never holds anything: its null block.
        blocks = int(info["num_gpu_blocks"]) - 1
        self.urls = [f"http://127.0.0.1:{port}" for port in free_ports(len(real))]
        self.command = [binary, "engine", "--model", model, "--block-size", info["block_size"],
                        "--kv-tokens", str(int(info["block_size"]) * blocks),
                        "--prefill-tokens-per-second", str(round(rate)), "--attention-pair-ns", "0", "--decode-step-ms", "10"]
        for url in self.urls:
            self.command += ["--listen", netloc(url)]

    def __enter__(self):
        self.log = tempfile.TemporaryFile()
        self.process = subprocess.Popen(self.command, stdout=self.log, stderr=self.log)
        if wait(10, lambda: all(answers(url) for url in self.urls)) is None:
            self.__exit__()
            sys.exit("the simulated engines did not start")
        return self

    def __exit__(self, *_):
        self.process.terminate()
        self.process.wait()


def answers(url):
    try:
        get(url, "/health")
    except (OSError, http.client.HTTPException):
        return False
    return True


def prefill_rate(engine, model, args):
    """Returns the prompt tokens that the engine computes in a second: the median of three new prompts."""
    rates = []
    for seed in range(3):
        empty(engine)
        took = ask(engine, body(model, ids(random.Random(f"rate {seed}"), args.prefix_tokens), 1))
        rates.append(args.prefix_tokens / took)
    return statistics.median(rates)


def ids(rng, count):
    return rng.choices(IDS, k=count)


def body(model, prompt, output=4):
    return {"model": model, "prompt": prompt, "max_tokens": output, "temperature": 0, "ignore_eos": True}


def ask(url, request, connection=None):
    """Sends one request; returns the seconds to the whole reply."""
    connection = connection or connect(url)
    began = time.perf_counter()
    connection.request("POST", "/v1/completions", json.dumps(request), {"Content-Type": "application/json"})
    reply = connection.getresponse()
    text = reply.read()
    if reply.status != 200:
        raise OSError(f"{reply.status} {text[:300]!r}")
    return time.perf_counter() - began


def shared_prefixes(rng, args):
    """Returns prompts that begin with each prefix several times, in random order, each with another ending."""
    prefixes = [ids(rng, args.prefix_tokens) for _ in range(args.prefixes)]
    order = [prefix for prefix in prefixes for _ in range(args.times)]
    rng.shuffle(order)
    return [prefix + ids(rng, rng.randint(1, 80)) for prefix in order]


def conversations(rng, args):
    """Returns turns of several conversations in random order; each repeats all earlier turns of its conversation."""
    said = [ids(rng, rng.randint(100, 1500)) for _ in range(args.conversations)]
    prompts = []
    for _ in range(6 * args.conversations):
        one = rng.choice(said)
        one += ids(rng, rng.randint(10, 300))
        prompts.append(list(one))
    return prompts


def one_at_a_time(real, simulated, model, args):
    """Returns how many requests found another number of tokens in the simulated engine's cache than in the real one's."""
    apart = 0
    print(f"{'straight to one engine':<24} {'set':>3} {'requests':>8} {'real':>7} {'simulated':>9}  requests that differ", flush=True)
    for workload in (shared_prefixes, conversations):
        for seed in range(1, args.sets + 1):
            prompts = workload(random.Random(seed), args)
            found = [cached(engine, [body(model, prompt) for prompt in prompts]) for engine in (real, simulated)]
            differ = sum(a != b for a, b in zip(*found))
            total = sum(map(len, prompts))
            rates = [sum(each) / total for each in found]
            print(f"{workload.__name__.replace('_', ' '):<24} {seed:>3} {len(prompts):>8} {rates[0]:>7.3f} {rates[1]:>9.3f}  {differ}", flush=True)
            apart += differ
    return apart


def cached(engine, requests):
    """Returns the tokens that each request found cached, by the engine's own count."""
    empty(engine)
    found, (before, _) = [], totals(engine)
    for request in requests:
        ask(engine, request)
        idle(engine)
        after, _ = totals(engine)
        found.append(after - before)
        before = after
    return found


def through_a_front(args, real, simulated, model):
    """Whether the mean hit rates before real and before simulated engines are close under each policy."""
    close = True
    print(f"\n{'through a front':<24} {'':>12} {'real':>7} {'simulated':>9}  set by set", flush=True)
    for policy, apart_max in POLICIES.items():
        rates = {"real": [], "simulated": []}
        for seed in range(1, args.sets + 1):
            requests = [body(model, prompt) for prompt in shared_prefixes(random.Random(seed), args)]
            for name, engines in (("real", real), ("simulated", simulated)):
                rates[name].append(rate_through(args, engines, policy, requests))
        means = [statistics.mean(rates[name]) for name in rates]
        by_set = ", ".join(f"{a:.3f} {b:.3f}" for a, b in zip(*rates.values()))
        print(f"{policy:<24} {'':>12} {means[0]:>7.3f} {means[1]:>9.3f}  {by_set}", flush=True)
        close &= abs(means[0] - means[1]) <= apart_max
    return close


def rate_through(args, engines, policy, requests):
    for engine in engines:
        empty(engine)
    before = [totals(engine) for engine in engines]
    with Front(args.front_binary, engines, policy) as front:
        ask_all(front.url, requests, args.concurrency, ask)
    for engine in engines:
        idle(engine)
    hits, queries = (sum(column) for column in zip(*map(delta, before, map(totals, engines))))
    return hits / queries


if __name__ == "__main__":
    main()
