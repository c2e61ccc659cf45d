#!/usr/bin/env python3
"""Checks that the front writes agents' prompts (tools, calls, results) as a real engine does.

    bench/real/agents.py --front-binary target/release/warmfront --engines URL URL --tokenizer FOLDER

There are agents of several kinds, and each kind has its own tools. In each turn an agent calls a tool, gets
its result, answers, or is asked again. Before each request the front says how many of its tokens the engine
holds (`x-warmfront-explain`); afterwards the engine says how many it had cached
(`usage.prompt_tokens_details.cached_tokens`). Once the front knows a set of tools, each turn must find
everything that the turn before it left in the cache: one different byte in the prompt would end the match.

The engines must run with KV events (see `warmfront doctor`), --enable-prompt-tokens-details,
VLLM_SERVER_DEV_MODE=1, and the chat template that lies beside tokenizer.json in FOLDER.
"""

import argparse
import json
import random
import statistics
import sys
import tempfile

from front import Front, connect, get, model_of, samples, wait
from precise import ask, exact, reset
from prefix import chat, text

WORDS = ("café", "naïve", "中文", "a\"b", "back\\slash", "tab\there", "<tag>", "{{x}}", "line\nend", "100 %", "\u00a0", "😀", "it's", "/p/q")


def main():
    args = arguments()
    engines = [url.rstrip("/") for url in args.engines]
    model = model_of(engines[0])
    rng = random.Random(args.seed)
    for engine in engines:
        reset(engine, {"model": model, "max_tokens": 1, "messages": chat("a")})
    with tempfile.NamedTemporaryFile("w", suffix=".toml") as config:
        config.write(f"[routing]\npolicy = \"precise\"\ntokenizer = {json.dumps(args.tokenizer)}\nqueue = \"off\"\n")
        config.flush()
        with Front(args.front_binary, engines, "precise", ["--config", config.name]) as front:
            exact(front)
            agents = [Agent(rng, model, kind) for kind in range(args.kinds)]
            counted = lambda name: sum(value for _, value in samples(get(front.admin, "/metrics"), f"warmfront_{name}_total"))
            for agent in agents:
                learn(front, agent)
            unknown = counted("prompts_not_rendered")
            print(f"{'agent':>5} {'turn':>4} {'prompt':>6} {'held':>5} {'cached':>6}  endpoint", flush=True)
            lines = [line for turn in range(args.turns) for agent in agents for line in [agent.turn(front, turn)]]
            unrendered = counted("prompts_not_rendered") - unknown
    later = [line for line in lines if line["turn"] > 0]
    block = args.block
    # The front tells a match to 64 bytes: it may be off by the last block.
    missed = [line for line in later if abs(line["held"] - line["cached"]) > block]
    error = statistics.mean(abs(line["held"] - line["cached"]) for line in later) / block
    print(f"\n{len(later)} turns after the first: {error:.2f} blocks of {block} off on average, {len(missed)} by more than one; "
          f"{statistics.mean(line['cached'] / line['prompt'] for line in later):.2f} of their prompts was cached")
    print(f"{unknown:.0f} requests until the tools were known; after them {unrendered:.0f} of {len(lines)} were not written as their engine does")
    sys.exit(bool(missed or unrendered))


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--front-binary", required=True, help="warmfront to start")
    parser.add_argument("--engines", nargs="+", required=True, metavar="URL", help="running engines, same model")
    parser.add_argument("--tokenizer", required=True, help="folder of the model's tokenizer.json and template")
    parser.add_argument("--kinds", type=int, default=3, help="of agents (default %(default)s)")
    parser.add_argument("--turns", type=int, default=8, help="of each (default %(default)s)")
    parser.add_argument("--block", type=int, default=32, help="tokens of a block (default %(default)s)")
    parser.add_argument("--seed", type=int, default=1, help="default %(default)s")
    return parser.parse_args()


def learn(front, agent):
    """Sends this agent's tools until the front knows them: one of its shards must have seen them twice."""
    known = lambda: sum(value for _, value in samples(get(front.admin, "/metrics"), "warmfront_toolsets"))
    before = known()

    def asked():
        ask(front.url, agent.body([{"role": "user", "content": "Are you there?"}]), connect(front.url))
        return known() > before

    if wait(20, asked, pause=0.2) is None:
        sys.exit(f"the front does not learn its tools; its log is {front.log.name}")
    followed = {labels["chats"]: value for labels, value in samples(get(front.admin, "/metrics"), "warmfront_toolsets")}
    if followed["unfollowed"]:
        sys.exit(f"a set of tools is not followed; the front's log, {front.log.name}, says why")


class Agent:
    """An agent: its tools and its conversation, which grows with each turn."""

    def __init__(self, rng, model, kind):
        self.rng, self.model, self.kind, self.calls = rng, model, kind, 0
        self.tools = [self.tool(place) for place in range(rng.randint(1, 4))]
        self.messages = [{"role": "system", "content": self.words(30)}] if kind % 3 else []

    def tool(self, place):
        schema = {"type": "object", "properties": {"path": {"type": "string", "description": self.words(4)},
                                                   "depth": {"type": "integer", "minimum": 0, "default": 1.5}}, "required": ["path"]}
        function = {"name": f"tool_{self.kind}_{place}", "description": self.words(12), "parameters": schema}
        return {"type": "function", "function": function if place % 3 else function | {"strict": True}}

    def words(self, count):
        drawn = [self.rng.choice(WORDS) if self.rng.random() < 0.2 else text(self.rng, 1) for _ in range(count)]
        return " ".join(drawn)

    def body(self, messages):
        return {"model": self.model, "max_tokens": 1, "temperature": 0, "messages": messages, "tools": self.tools, "tool_choice": "auto"}

    def call(self):
        self.calls += 1
        arguments = {"path": self.words(2), "depth": self.rng.randint(-3, 10**6), "more": [True, None, {"x": self.words(1), "y": 0.5}]}
        spaced = (", ", ": ") if self.rng.random() < 0.5 else (",", ":")
        wording = json.dumps(arguments, separators=spaced, ensure_ascii=self.rng.random() < 0.5)
        name = self.rng.choice(self.tools)["function"]["name"]
        return {"id": f"call_{self.calls}", "type": "function", "function": {"name": name, "arguments": wording}}

    def turn(self, front, turn):
        """Sends the next step of the agent's work; returns what the front predicted and the engine found."""
        if turn == 0 or self.rng.random() < 0.3:
            if turn:
                self.messages.append({"role": "assistant", "content": self.words(10)})
            self.messages.append({"role": "user", "content": self.words(60)})
        else:
            calls = [self.call() for _ in range(self.rng.choice((1, 1, 2, 3)))]
            said = self.rng.choice((None, "", self.words(8)))
            self.messages.append({"role": "assistant", "content": said, "tool_calls": calls})
            for call in calls:
                self.messages.append({"role": "tool", "tool_call_id": call["id"], "content": self.words(self.rng.randint(5, 80))})
        held, cached, prompt, _, endpoint = ask(front.url, self.body(self.messages), connect(front.url))
        print(f"{self.kind:>5} {turn:>4} {prompt:>6} {held:>5} {cached:>6}  {endpoint}", flush=True)
        return {"turn": turn, "held": held, "cached": cached, "prompt": prompt}


if __name__ == "__main__":
    main()
