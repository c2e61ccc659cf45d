#!/usr/bin/env python3
"""Checks that the front finds prompts of /v1/messages again where a real engine does, though Claude Code puts a
changing block before them.

    bench/real/messages.py --front-binary target/release/warmfront --engines URL URL

Several conversations take turns, as Claude Code has them: the system prompt of each request begins with a
block that no other request has (`x-anthropic-billing-header`), which vLLM leaves out of the prompt. Each turn
must go to the engine of the turn before. The tokens that the front believes to be held must be as many as the
engine had cached, within a tenth of all prompts' tokens.

The engines must run with VLLM_SERVER_DEV_MODE=1, and their caches must hold all of the conversations.
"""

import argparse
import http.client
import json
import random
import re
import sys

from front import Front, connect, get, model_of
from prefix import delta, empty, idle, text, totals


def main():
    args = arguments()
    engines = [url.rstrip("/") for url in args.engines]
    rng, model = random.Random(args.seed), model_of(engines[0])
    for engine in engines:
        empty(engine)
    said = [[] for _ in range(args.conversations)]
    homes = {}
    held = new = moved = 0
    before = [totals(engine) for engine in engines]
    with Front(args.front_binary, engines, "warm") as front:
        # All conversations share a beginning, which is a small part of each.
        shared = text(rng, 60)
        own = [text(rng, args.words) for _ in said]
        for turn in range(args.turns):
            for place, messages in enumerate(said):
                messages.append({"role": "user", "content": text(rng, 40)})
                told = ask(front.url, body(rng, model, [shared, own[place]], messages))
                messages.append({"role": "assistant", "content": text(rng, 20)})
                held, new = held + told["held"], new + told["new"]
                moved += homes.setdefault(place, told["endpoint"]) != told["endpoint"]
    for engine in engines:
        idle(engine)
    hits, queries = (sum(column) for column in zip(*map(delta, before, map(totals, engines))))
    cached, thought = hits / queries, held / (held + new)
    print(f"{args.conversations} conversations of {args.turns} turns: {cached:.3f} of their prompts was cached, {thought:.3f} thought to be, "
          f"{moved} turns went elsewhere than the first of their conversation; homes {sorted(set(homes.values()))}")
    sys.exit(moved > 0 or abs(cached - thought) > 0.1 or cached < 0.5)


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-binary", required=True, help="warmfront to start")
    parser.add_argument("--engines", nargs="+", required=True, metavar="URL", help="running engines, same model")
    parser.add_argument("--conversations", type=int, default=4, help="default %(default)s")
    parser.add_argument("--turns", type=int, default=6, help="of each (default %(default)s)")
    parser.add_argument("--words", type=int, default=400, help="of the system prompt of each (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    return parser.parse_args()


def body(rng, model, system, messages):
    attribution = f"x-anthropic-billing-header: cc_version=2.1.107; cc_entrypoint=cli; cch={rng.getrandbits(20):05x};"
    blocks = [{"type": "text", "text": part} for part in [attribution, *system]]
    return {"model": model, "max_tokens": 1, "system": blocks, "messages": messages}


def ask(url, body):
    """Sends one request; returns the tokens that the front believed held and new, and the endpoint."""
    connection = connect(url)
    connection.request("POST", "/v1/messages", json.dumps(body), {"Content-Type": "application/json", "x-warmfront-explain": "1"})
    reply = connection.getresponse()
    said = reply.read()
    if reply.status != 200:
        raise http.client.HTTPException(f"{reply.status} {said[:300]!r}")
    told = dict(re.findall(r"(\w+)=(\S+)", reply.getheader("x-warmfront-explain") or ""))
    return {"held": int(told["held"]), "new": int(told["new"]), "endpoint": told["endpoint"]}


if __name__ == "__main__":
    main()
