#!/usr/bin/env python3
"""Prints the tables of src/replay/README.md and the figures of several seeds in its text, all from one build. It does
not print the row "warm, no weights set", rules that were dropped, and the table of "Your own traffic".

    cargo build --release
    python3 bench/replay/tables.py --conversation conversation_trace.jsonl --synthetic synthetic_trace.jsonl

Both traces are of kvcache-ai/Mooncake, FAST25-release/traces, commit 3b5a594. A replay is a simulation: one build
prints the same figures on any machine, whatever else that does. All of them take some twenty minutes.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile

NAMES = {
    "kubeai": "KubeAI's bound",
    "prefix-hash-jumps": "prefix-hash by random jumps",
    "sticky": "sticky sessions",
    "sglang": "prompt tree, SGLang's first router",
    "smg": "prompt tree, smg",
    "llm-d": "scorers, llm-d",
    "dynamo": "overlap cost, Dynamo",
}
OWN = ["random", "least-load", "session", "prefix-hash", "warm"]
OTHERS = ["kubeai", "prefix-hash-jumps", "sticky", "sglang", "smg", "llm-d", "dynamo"]
JUDGES = ["clairvoyant", "pooled", "oracle"]
# "best other" is chosen among these.
NEIGHBOURS = [*OWN[:-1], *OTHERS]
EVENTS = [
    ("precise, at once", []),
    ("50 ms late", ["--event-delay-ms", 50]),
    ("5 s late", ["--event-delay-ms", 5000]),
    ("50 ms late, 1 % lost", ["--event-delay-ms", 50, "--event-loss", 1]),
    ("the same, not asked for again", ["--event-delay-ms", 50, "--event-loss", 1, "--event-replay", "off"]),
]


def generated(what, *options):
    return ["--generate", what, *options]


CHAT = generated("chat")
AGENTS = generated("agents")
SHARED = generated("shared-prefix")


class Replays:
    """Runs replays, and each one only once."""

    def __init__(self, arguments):
        self.binary = arguments.warmfront
        self.known = {}
        self.conversation = [arguments.conversation, "--requests", 4000]
        self.synthetic = [arguments.synthetic]

    def outcomes(self, traffic, policies, *options):
        """Returns outcomes by policy and load."""
        command = [self.binary, "replay", *traffic, "--policies", ",".join(policies), *options]
        command = [str(part) for part in command]
        key = " ".join(command)
        if key not in self.known:
            print(f"... {key}", file=sys.stderr)
            with tempfile.NamedTemporaryFile(suffix=".json") as file:
                subprocess.run([*command, "--json", file.name], check=True, stdout=subprocess.DEVNULL)
                outcomes = json.load(file)["outcomes"]
            self.known[key] = {(outcome["policy"], outcome["load"]): outcome for outcome in outcomes}
        return self.known[key]

    def one(self, traffic, policy, *options):
        return next(iter(self.outcomes(traffic, [policy], *options).values()))

    def seeds(self, traffic, policies, seeds, *options):
        """Returns the outcomes of each policy by seed."""
        runs = [self.outcomes(traffic, policies, "--seed", seed, *options) for seed in seeds]
        return {policy: [by[policy, 1.0] for by in runs] for policy in policies}


def mean(outcome):
    return outcome["ttft"]["mean"]


def three(value):
    """Returns a number with three digits, its thousands set apart."""
    digits = 0 if value >= 99.95 else 1 if value >= 9.995 else 2
    rounded = float(f"{value:.3g}")
    return f"{rounded:,.{digits}f}"


def few(ratio):
    return f"{ratio:.1f}" if ratio < 10.45 else f"{ratio:.0f}"


def span(*seconds):
    """Returns times in one unit."""
    if seconds[0] < 0.9995:
        return ", ".join(f"{float(f'{value * 1e3:.3g}'):,.0f}" for value in seconds) + " ms"
    return ", ".join(three(value) for value in seconds) + " s"


def times(outcome):
    return span(mean(outcome), outcome["ttft"]["p99"])


def percent(share, digits=0):
    return f"{share * 100:.{digits}f} %"


def kept(outcome):
    return percent(outcome["slo"], 1 if 0.9895 < outcome["slo"] < 0.9995 else 0)


def averages(outcomes):
    return statistics.mean(mean(outcome) for outcome in outcomes)


def of(values, reference):
    """Returns the least and the greatest ratio."""
    ratios = [mean(one) / mean(other) for one, other in zip(values, reference)]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def table(title, head, rows):
    print(f"\n## {title}\n")
    print("| " + " | ".join(["", *head]) + " |")
    print("| " + " | ".join(["---"] * (len(head) + 1)) + " |")
    for row in rows:
        print("| " + " | ".join(row) + " |")


def neighbours(replays):
    traffics = [
        ([*replays.conversation, "--loads", 0.75], "Mooncake x 0.75"),
        (CHAT, "chat, 1,200 threads"),
        (AGENTS, "agents, 0.5 sessions/s"),
        (SHARED, "shared prefixes, 5/s"),
    ]
    columns = []
    for traffic, _ in traffics:
        outcomes = replays.outcomes(traffic, [*OWN, *OTHERS, *JUDGES])
        by = {policy: outcome for (policy, _), outcome in outcomes.items()}
        ratio = {policy: mean(by[policy]) / mean(by["oracle"]) for policy in by}
        columns.append({policy: f"{few(ratio[policy])}, {percent(by[policy]['hit_rate'])}" for policy in by})
    columns[3].update(session="no sessions", sticky="no sessions")
    shown = [*OWN, *OTHERS, *JUDGES[:2]]
    rows = [[NAMES.get(policy, policy), *(column[policy] for column in columns)] for policy in shown]
    table("Mean TTFT over the oracle's, hit rate", [name for _, name in traffics], rows)
    print()
    for traffic, name in traffics[1:]:
        by = replays.seeds(traffic, ["prefix-hash-jumps", "prefix-hash"], range(1, 7))
        for policy, outcomes in by.items():
            print(f"seeds 1 to 6, {name}: {policy} {span(averages(outcomes))} ({span(*sorted(map(mean, outcomes)))})")


def synthetic(replays):
    loads = [0.25, 0.5, 0.75]
    policies = [*OWN, *OTHERS, "oracle"]
    outcomes = replays.outcomes([*replays.synthetic, "--loads", ",".join(map(str, loads))], policies)

    def cell(policy, load):
        outcome = outcomes[policy, load]
        return f"{span(mean(outcome))}, {percent(outcome['hit_rate'])}"

    def best(load):
        policy = min(NEIGHBOURS, key=lambda policy: mean(outcomes[policy, load]))
        return f"{policy} {cell(policy, load)}"

    shown = ["random", "prefix-hash", "warm", "oracle"]
    rows = [[policy, *(cell(policy, load) for load in loads)] for policy in shown]
    rows.insert(3, ["best other", *map(best, loads)])
    table("Mooncake's synthetic trace", [f"x {load}" for load in loads], rows)


def several_loads(replays):
    within = ["--slo-token-ms", 50]
    parts = [
        ("Mooncake", [*replays.conversation, *within], [0.25, 0.5, 0.75]),
        ("chat", CHAT, [0.25, 0.5, 1, 1.25]),
        ("agents", [*AGENTS, *within], [0.5, 0.8, 1]),
        ("shared prefixes", [*SHARED, *within], [0.6, 1, 1.3]),
    ]
    rows, remarks = [], []
    for name, traffic, loads in parts:
        policies = [*OWN, *OTHERS, "warm-auto", *JUDGES]
        outcomes = replays.outcomes([*traffic, "--loads", ",".join(map(str, loads))], policies)
        for load in loads:
            by = {policy: outcomes[policy, load] for policy in policies}
            others = sorted(NEIGHBOURS, key=lambda policy: mean(by[policy]))
            best = others[0]

            def judged(policy):
                to = [f"{mean(by[policy]) / mean(by[judge]):.2f}" for judge in ["pooled", "oracle"]]
                return [times(by[policy]), kept(by[policy]), *to]

            rows.append([name, f"x {load}", *judged("warm"), f"{best} {times(by[best])}", kept(by[best])])
            if load > 1:
                rows.append([name, f"x {load}, auto", *judged("warm-auto"), "", ""])
            clairvoyant = f"clairvoyant to oracle {mean(by['clairvoyant']) / mean(by['oracle']):.2f}"
            slo = sorted(NEIGHBOURS, key=lambda policy: -by[policy]["slo"])[:4]
            keeps = ", ".join(f"{policy} {percent(by[policy]['slo'], 1)} ({span(mean(by[policy]))})" for policy in slo)
            remarks.append(f"{name} x {load}: {clairvoyant}; SLO: warm {percent(by['warm']['slo'], 1)}, {keeps}")
    head = ["load", "warm: TTFT mean, p99", "SLO", "to pooled", "to oracle", "best other: TTFT mean, p99", "SLO"]
    table("At several loads", head, rows)
    print("", *remarks, sep="\n")
    policies = ["warm", "pooled", "llm-d", "smg", "sglang"]
    parts = [
        (AGENTS, "agents 0.25/s", ["--rate", 0.25]),
        (AGENTS, "agents 0.4/s", ["--rate", 0.4]),
        (AGENTS, "agents 0.5/s", []),
        (SHARED, "shared prefixes 3/s", ["--rate", 3]),
        (SHARED, "shared prefixes 5/s", []),
        (SHARED, "shared prefixes 6.5/s", ["--rate", 6.5]),
    ]
    for traffic, name, options in parts:
        by = replays.seeds(traffic, policies, range(2, 7), *options)
        each = "; ".join(f"{policy} {span(*map(mean, by[policy]))}" for policy in policies if policy != "pooled")
        print(f"seeds 2 to 6, {name}: {each}; warm to pooled {of(by['warm'], by['pooled'])}")


def one_prompt(replays):
    everything = generated("shared-prefix", "--groups", 1, "--prompts", 100000)
    shapes = [
        ("1,000 + 100 tokens, L4", (1000, 100, 200, 8, "l4-8b")),
        ("60,000 + 300, 8B on an H100", (60000, 300, 400, 6, "h100-8b")),
        ("6,000 + 200, 70B on 2 H100", (6000, 200, 400, 10, "h100x2-70b")),
    ]
    policies = ["warm", "least-load", "prefix-hash", "dynamo", "sglang", "llm-d", "smg", "pooled"]
    columns = []
    for _, (shared, own, out, rate, profile) in shapes:
        options = ["--shared-tokens", shared, "--own-tokens", own, "--output-tokens", out]
        traffic = [*everything, *options, "--rate", rate, "--profile", profile]
        columns.append({policy: outcome for (policy, _), outcome in replays.outcomes(traffic, policies).items()})
        two = replays.one([*traffic, "--fronts", 2], "warm")
        columns[-1]["warm, two fronts"] = two

    def cell(outcome):
        return f"{times(outcome)}; {outcome['between_tokens']['mean'] * 1e3:.0f}"

    rows = [[policy, *(cell(column[policy]) for column in columns)] for policy in [*policies, "warm, two fronts"]]
    table("One prompt before all others", [name for name, _ in shapes], rows)


def unequal(replays):
    distinct = generated("shared-prefix", "--groups", 100000, "--prompts", 1, "--shared-tokens", 1000)
    distinct += ["--own-tokens", 3000, "--output-tokens", 200, "--profile", "l4-8b", "--rate", 8]
    parts = [
        ("agents, 4,1,1,1,1", [*AGENTS, "--rate", 0.4, "--weights", "4,1,1,1,1"]),
        ("chat, 4,1,1,1,1", [*CHAT, "--weights", "4,1,1,1,1"]),
        ("distinct prompts, 8,1,1,1,1", [*distinct, "--weights", "8,1,1,1,1"]),
    ]
    policies = ["warm", "least-load", "prefix-hash", "llm-d"]

    def cell(outcomes):
        p99 = statistics.mean(outcome["ttft"]["p99"] for outcome in outcomes)
        between = statistics.mean(outcome["between_tokens"]["mean"] for outcome in outcomes)
        return f"{span(averages(outcomes), p99)}; {between * 1e3:.0f}"

    columns = [replays.seeds(traffic, policies, range(1, 4)) for _, traffic in parts]
    rows = [[policy, *(cell(column[policy]) for column in columns)] for policy in policies]
    table("Engines of unequal weight, seeds 1 to 3", [name for name, _ in parts], rows)


HELD = ["warm", "warm-held", "warm-auto"]


def holding(replays):
    many = generated("shared-prefix", "--groups", 600)
    parts = [
        ("chat, 600", [*CHAT, "--threads", 600]),
        ("chat, 1,200", CHAT),
        ("chat, 1,500", [*CHAT, "--threads", 1500]),
        ("chat, 2,400", [*CHAT, "--threads", 2400]),
        ("Mooncake, first 4,000, x 0.75", [*replays.conversation, "--loads", 0.75]),
        ("Mooncake, x 1", replays.conversation),
        ("agents, 1/s", [*AGENTS, "--rate", 1]),
        ("shared prefixes, 7/s", [*SHARED, "--rate", 7]),
        ("shared prefixes, 8/s", [*SHARED, "--rate", 8]),
        ("600 groups of them, 5/s", many),
    ]

    def cell(outcome):
        refused = f"; {outcome['refusals']} x 429" if outcome["refusals"] else ""
        return f"{times(outcome)}; {outcome['tokens_per_second']:,.0f}{refused}"

    rows = []
    for name, traffic in parts:
        outcomes = replays.outcomes(traffic, HELD)
        rows.append([name, *(cell(outcome) for outcome in outcomes.values())])
    table("Holding", ["off", "on", "auto"], rows)

    first = [*replays.conversation[:2], 3000, "--replicas", 4]
    sixteen = [*range(1, 13), *range(32, 36)]
    parts = [
        ("chat, 1,500, seeds 1 to 12 and 32 to 35", [*CHAT, "--threads", 1500], "--seed", sixteen),
        ("chat, 2,400, seeds 1 to 8", [*CHAT, "--threads", 2400], "--seed", range(1, 9)),
        ("Mooncake, first 4,000, x 0.9 to 1.2", replays.conversation, "--loads", [0.9, 0.95, 1, 1.05, 1.1, 1.2]),
        ("its first 3,000 on four engines", first, "--loads", [0.5, 0.525, 0.55, 0.575, 0.6]),
        ("shared prefixes, 7/s, seeds 1 to 8", [*SHARED, "--rate", 7], "--seed", range(1, 9)),
        ("shared prefixes, 8/s, seeds 1 to 8", [*SHARED, "--rate", 8], "--seed", range(1, 9)),
    ]
    rows, above, slo = [], [], []
    for name, traffic, option, points in parts:
        runs = [list(replays.outcomes(traffic, HELD, option, point).values()) for point in points]
        rows.append([name, *(f"{statistics.mean(map(mean, column)):.3g}" for column in zip(*runs))])
        for point, (off, on, auto) in zip(points, runs):
            slo.append((name, point, off["slo"], auto["slo"]))
            if mean(auto) > 1.05 * min(mean(off), mean(on)):
                above.append(f"{name} {point}: {mean(auto) / min(mean(off), mean(on)):.2f}")
    table("Holding, means", ["off", "on", "auto"], rows)
    print(f"\n{len(above)} of {len(slo)} points where auto is 5 % above the better:", *above, sep="\n")
    lets = [kept for name, _, *kept in slo if name.startswith("chat, 1,500")]
    off, auto = map(statistics.mean, zip(*lets))
    print(f"SLO in chat, 1,500: off {percent(off)}, auto {percent(auto)}")
    for threads in [1500, 1800, 2400]:
        outcomes = replays.outcomes([*CHAT, "--tenants", 8, "--threads", threads], ["warm", "warm-auto"])
        each = [f"{policy} {json.dumps(outcome['ttft_tenants'])}" for (policy, _), outcome in outcomes.items()]
        print(f"eight tenants, {threads} threads: {'; '.join(each)}")
    outcomes = replays.outcomes([*SHARED, "--tenants", 8, "--rate", 8], ["warm", "warm-auto"])
    each = [f"{policy} {json.dumps(outcome['ttft_tenants'])}" for (policy, _), outcome in outcomes.items()]
    print(f"eight tenants, shared prefixes at 8/s: {'; '.join(each)}")


def fronts(replays):
    parts = [
        ("chat, 1,200 threads", CHAT),
        ("agents, 0.4/s", [*AGENTS, "--rate", 0.4]),
        ("shared prefixes, 5/s", SHARED),
        ("Mooncake, x 0.5", [*replays.conversation, "--loads", 0.5]),
    ]
    rows = []
    for policy in ["warm", "prefix-hash"]:
        for count in [1, 2, 4]:
            outcomes = [replays.one([*traffic, "--fronts", count], policy) for _, traffic in parts]
            name = f"{policy}, 1 front" if count == 1 else f"{count} fronts"
            rows.append([name, *(f"{percent(one['hit_rate'])}, {span(mean(one))}" for one in outcomes)])
    table("Several fronts", [name for name, _ in parts], rows)


def told(outcome):
    off = outcome["misjudged"]
    wrong = f"; {three_or_less(off['too_few'] + off['too_many'])}" if off else ""
    return f"{times(outcome)}; {percent(outcome['hit_rate'], 1)}{wrong}"


def three_or_less(value):
    return f"{value:,.0f}" if value >= 9.95 or value == 0 else f"{value:.1f}"


def events(replays):
    parts = [
        ("Mooncake, x 0.75", [*replays.conversation, "--loads", 0.75]),
        ("chat, 600 threads", [*CHAT, "--threads", 600]),
        ("chat, 1,200", CHAT),
        ("agents, 0.5/s", AGENTS),
        ("shared prefixes, 5/s", SHARED),
    ]
    head = [name for name, _ in parts]

    def rows(policies, variants, *options):
        for policy in policies:
            yield [policy, *(told(replays.one([*traffic, *options], policy)) for _, traffic in parts)]
        for name, late in variants:
            yield [name, *(told(replays.one([*traffic, *options], "precise", *late)) for _, traffic in parts)]

    table("What KV events are worth", head, rows(["warm"], EVENTS))
    two = [EVENTS[0], EVENTS[2], EVENTS[3], EVENTS[4]]
    table("The same, two fronts", head, rows(["prefix-hash", "warm"], two, "--fronts", 2))
    table("The same, four fronts", head, rows(["warm"], [EVENTS[1]], "--fronts", 4))
    by = replays.seeds(AGENTS, ["warm", "precise"], range(1, 9), "--event-delay-ms", 50)
    each = ", ".join(f"{policy} {span(averages(outcomes))}" for policy, outcomes in by.items())
    print(f"\nagents, seeds 1 to 8, 50 ms late: {each}")


def small_caches(replays):
    small = ["--kv-tokens", 50000]
    parts = [
        ("Mooncake, x 0.5", [*replays.conversation, "--loads", 0.5, "--kv-tokens", 51200]),
        ("chat, 600, 10 s between turns", [*CHAT, "--threads", 600, "--pause-ms", 10000, "--kv-tokens", 22000]),
        ("agents, 0.15/s", [*AGENTS, "--rate", 0.15, *small]),
        ("agents, 0.2/s", [*AGENTS, "--rate", 0.2, *small]),
        ("shared prefixes, 2/s", [*SHARED, "--rate", 2, *small]),
    ]
    rows = [["warm", *(told(replays.one(traffic, "warm")) for _, traffic in parts)]]
    for name, late in EVENTS:
        rows.append([name, *(told(replays.one(traffic, "precise", *late)) for _, traffic in parts)])
    table("Caches that are too small", [name for name, _ in parts], rows)
    print()
    for name, traffic in parts[1:]:
        for when, late in EVENTS[:2]:
            by = replays.seeds(traffic, ["warm", "precise"], range(1, 9), *late)
            pairs = list(zip(by["precise"], by["warm"]))
            sooner = sum(mean(one) < mean(other) for one, other in pairs)
            more = sum(one["hit_rate"] > other["hit_rate"] for one, other in pairs)
            for policy, outcomes in by.items():
                found = percent(statistics.mean(one["hit_rate"] for one in outcomes), 1)
                print(f"seeds 1 to 8, {name}, {when}: {policy} {span(averages(outcomes))}, {found}")
            print(f"    precise sooner in {sooner}, found more in {more}")


SECTIONS = [neighbours, synthetic, several_loads, one_prompt, unequal, holding, fronts, events, small_caches]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--warmfront", default="target/release/warmfront", help="the program (default: %(default)s)")
    parser.add_argument("--conversation", required=True, metavar="FILE", help="Mooncake's conversation_trace.jsonl")
    parser.add_argument("--synthetic", required=True, metavar="FILE", help="Mooncake's synthetic_trace.jsonl")
    names = [section.__name__ for section in SECTIONS]
    parser.add_argument("--only", action="append", choices=names, help="only this table; may be given several times")
    arguments = parser.parse_args()
    replays = Replays(arguments)
    for section in SECTIONS:
        if not arguments.only or section.__name__ in arguments.only:
            section(replays)


if __name__ == "__main__":
    main()
