#!/usr/bin/env python3
"""Measures what `prefix-hash` and `warm` gain over `random` before two real engines: hit rate and time to first
token.

    bench/real/prefix.py --front-binary target/release/warmfront --engines URL URL

Each set draws, by its seed, a few long prefixes and asks for each several times in random order, each time
with another ending. All policies get the same requests, each policy after a reset of the engines' caches;
which policy goes first alternates. Under `prefix-hash` a key alone decides which engine is a prefix's home, so
that a set may put all prefixes on one engine: such sets are kept, and medians are over all sets. Under `warm`
the front says beforehand how much of each prompt the engine holds: "predicted" is that share of all tokens,
to be compared with the hit rate.

Ends with 1, and says what was wrong, unless all of this holds in the medians: `warm` found no less in caches
than `prefix-hash`, and that no less than `random`; the mean time to first token was less under `warm` than
under `random`; and "predicted" is within a tenth of the hit rate.

Each engine's cache must hold half of a set's prefixes but not all. vLLM must run with VLLM_SERVER_DEV_MODE=1,
which opens POST /reset_prefix_cache (not through the front); SGLang with --enable-metrics and
--enable-cache-report.
"""

import argparse
import queue
import random
import statistics
import sys
import threading

from front import Front, connect, get, model_of, reading, running, samples, stream, wait

POLICIES = ("random", "prefix-hash", "warm")
HITS = ("vllm:prefix_cache_hits_total", "sglang:cached_tokens_total")
QUERIES = ("vllm:prefix_cache_queries_total", "sglang:prompt_tokens_total")
CAPACITY = "vllm:cache_config_info"
# Hit rates that differ by less are alike. Four prefixes that lie evenly give 0.862 to 0.866, three of them on one engine
# 0.708 to 0.740: chance alone, in one set of each kind, moves the median of two by 0.018.
RATE_APART = 0.03
PREDICTED_APART = 0.1
FIGURES = {"hit rate": lambda result: result["rate"],
           "TTFT mean, ms": lambda result: 1000 * statistics.mean(result["ttft"]),
           "TTFT p50, ms": lambda result: 1000 * statistics.median(result["ttft"])}


def main():
    args = arguments()
    engines = [url.rstrip("/") for url in args.engines]
    model = model_of(engines[0])
    for engine in engines:
        check_capacity(engine, args)
    words_per_token = calibrate(engines[0], model)
    head = f"{'set':>3} {'policy':<12} {'hit rate':>8} {'TTFT mean':>10} {'p50':>8} {'p90':>8}  requests per engine"
    print(f"{args.sets} sets of {args.prefixes} prefixes of {args.prefix_tokens} tokens, "
          f"each asked {args.times} times, {args.concurrency} at once\n\n{head}", flush=True)
    results = {policy: [] for policy in POLICIES}
    for seed in range(1, args.sets + 1):
        requests = draw(seed, args, model, words_per_token)
        for policy in POLICIES if seed % 2 else reversed(POLICIES):
            result = measure(args, engines, policy, requests)
            results[policy].append(result)
            print(f"{seed:>3} {policy:<12} {row(result)}", flush=True)
    summary(results)
    faults = not_so(results)
    if faults:
        sys.exit(f"not as it should be: {'; '.join(faults)}")


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-binary", required=True, help="warmfront to start")
    parser.add_argument("--engines", nargs="+", required=True, metavar="URL", help="running engines, same model")
    parser.add_argument("--sets", type=int, default=5, help="seeds 1 to this (default %(default)s)")
    parser.add_argument("--prefixes", type=int, default=4, help="of a set (default %(default)s)")
    parser.add_argument("--prefix-tokens", type=int, default=4096, help="about (default %(default)s)")
    parser.add_argument("--times", type=int, default=8, help="each prefix is asked (default %(default)s)")
    parser.add_argument("--concurrency", type=int, default=2, help="requests at once (default %(default)s)")
    parser.add_argument("--output-tokens", type=int, default=4, help="of each reply (default %(default)s)")
    return parser.parse_args()


def check_capacity(engine, args):
    """Ends the run if one cache holds a whole set, or less than half of one: either would show nothing."""
    text = get(engine, "/metrics")
    info = next((labels for labels, _ in samples(text, CAPACITY)), {})
    tokens = int(info.get("kv_cache_size_tokens") or sum(n for _, n in samples(text, "sglang:max_total_num_tokens")))
    if not tokens:
        print(f"{engine} does not say how many tokens its cache holds", file=sys.stderr)
    elif not args.prefixes / 2 * args.prefix_tokens < tokens < args.prefixes * args.prefix_tokens:
        sys.exit(f"{engine}: a cache of {tokens} tokens does not hold half, or holds all, of {args.prefixes} prefixes "
                 f"of {args.prefix_tokens}: see --prefix-tokens, vLLM's --num-gpu-blocks-override and SGLang's "
                 "--max-total-tokens")


def calibrate(engine, model):
    """Returns the words of `text` per token, by asking the engine: its tokenizer is not known here."""
    words = 400
    body = {"model": model, "messages": chat(text(random.Random(0), words)), "max_tokens": 1}
    return words / stream(engine, body)[1]["prompt_tokens"]


def draw(seed, args, model, words_per_token):
    """Returns the bodies of one set in the order in which they are sent."""
    rng = random.Random(seed)
    prefixes = [text(rng, round(args.prefix_tokens * words_per_token)) for _ in range(args.prefixes)]
    order = [prefix for prefix in prefixes for _ in range(args.times)]
    rng.shuffle(order)
    options = {"model": model, "max_tokens": args.output_tokens, "temperature": 0, "ignore_eos": True}
    return [options | {"messages": chat(f"{prefix} {text(rng, 12)}")} for prefix in order]


def text(rng, words):
    syllables = [a + b for a in "bdfgklmnprstv" for b in "aeiou"]
    return " ".join("".join(rng.choices(syllables, k=rng.randint(1, 3))) for _ in range(words))


def chat(content):
    return [{"role": "user", "content": content}]


def measure(args, engines, policy, requests):
    """Runs one policy over one set, from empty caches."""
    for engine in engines:
        empty(engine)
    before = [totals(engine) for engine in engines]
    with Front(args.front_binary, engines, policy) as front:
        ttft = ask_all(front.url, requests, args.concurrency)
        shares = front.requests("endpoint")
        held, new = (reading(front.admin, f"warmfront_prompt_tokens_{part}_total") for part in ("held", "new"))
    for engine in engines:
        idle(engine)
    hits, queries = (sum(column) for column in zip(*map(delta, before, map(totals, engines))))
    predicted = held / (held + new) if held + new else None
    return {"rate": hits / queries, "predicted": predicted, "ttft": ttft, "shares": shares}


def empty(engine):
    idle(engine)
    is_sglang = "sglang:" in get(engine, "/metrics")
    get(engine, "/flush_cache" if is_sglang else "/reset_prefix_cache", "POST")


def idle(engine):
    if wait(30, lambda: running(engine) == 0) is None:
        sys.exit(f"{engine} does not get idle: is someone else using it?")


def totals(engine):
    return reading(engine, *HITS), reading(engine, *QUERIES)


def delta(before, after):
    return [new - old for old, new in zip(before, after)]


def first_token(url, body, connection):
    return stream(url, body, connection)[0]


def ask_all(url, requests, concurrency, ask=first_token):
    """Sends all requests by `ask`, several at once; returns its answers, by default seconds to the first token. Ends the
    run at the first failure."""
    waiting, answers, errors = queue.SimpleQueue(), [], []
    for request in requests:
        waiting.put(request)

    def work():
        connection = connect(url)
        while not errors:
            try:
                answers.append(ask(url, waiting.get_nowait(), connection))
            except queue.Empty:
                return
            except Exception as error:
                errors.append(error)

    threads = [threading.Thread(target=work) for _ in range(concurrency)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        sys.exit(f"a request failed: {errors[0]!r}")
    return answers


def row(result):
    ttft = result["ttft"]
    shares = " ".join(f"{name}={count}" for name, count in sorted(result["shares"].items()))
    tenths = statistics.quantiles(ttft, n=10)
    times = (f"{1000 * value:.0f} ms" for value in (statistics.mean(ttft), statistics.median(ttft), tenths[8]))
    predicted = "" if result["predicted"] is None else f"; {result['predicted']:.3f} predicted"
    return f"{result['rate']:>8.3f} {' '.join(map('{:>8}'.format, times)):>28}  {shares}{predicted}"


def summary(results):
    """Prints the medians over the sets, by which policies are judged, and each set's ratio, which shows the spread."""
    print(f"\n{'median over sets':<16} {'':<12} {'':>10} {'x random':>9}  set by set")
    for name, figure in FIGURES.items():
        base = [figure(result) for result in results[POLICIES[0]]]
        for policy in POLICIES:
            ours = [figure(result) for result in results[policy]]
            ratio = statistics.median(ours) / statistics.median(base)
            ratios = " ".join(f"{b / a:.2f}" for a, b in zip(base, ours))
            print(f"{name:<16} {policy:<12} {statistics.median(ours):>10.3f} {ratio:>9.2f}  {ratios}")
    errors = predictions(results)
    if errors:
        print(f"predicted by warm, x hit rate: {statistics.median(errors):.2f} ({' '.join(f'{e:.2f}' for e in errors)})")


def predictions(results):
    """Returns, for each set with a prediction and with hits, the predicted share divided by the hit rate."""
    told = (result for result in results["warm"] if result["predicted"] is not None and result["rate"])
    return [result["predicted"] / result["rate"] for result in told]


def not_so(results):
    """Returns what is wrong, as sentences."""
    medians = {name: {policy: statistics.median(map(figure, results[policy])) for policy in POLICIES}
               for name, figure in FIGURES.items()}
    rates, times = medians["hit rate"], medians["TTFT mean, ms"]
    faults = [f"{better} found less in caches than {worse} ({rates[better]:.3f}, {rates[worse]:.3f})"
              for worse, better in zip(POLICIES, POLICIES[1:]) if rates[better] < rates[worse] - RATE_APART]
    if times["warm"] >= times["random"]:
        faults.append(f"the mean time to first token under warm was no less than under random "
                      f"({times['warm']:.0f} ms, {times['random']:.0f} ms)")
    errors = predictions(results)
    if len(errors) < len(results["warm"]):
        faults.append("warm did not tell of every set how much it believed to be held, or nothing was")
    elif abs(statistics.median(errors) - 1) > PREDICTED_APART:
        faults.append(f"warm believed {statistics.median(errors):.2f} times as much to be held as was")
    return faults


if __name__ == "__main__":
    main()
