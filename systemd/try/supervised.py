#!/usr/bin/env python3
"""The package and its unit under the systemd that runs this machine, a container of systemd/try/run.sh, step by step.

    supervised.py [STEP...]     all steps, or those named; the first and the last ones install and remove

Ends at the first step that finds something not as it should be, with the journal's last lines.
"""

import os
import socket
import statistics
import sys
import threading
import time

import front
import succession
from front import ENGINES, FILE, PORT, Journal, Load, Streams, Wrong, check, configure, main_pid, run, shown, systemctl
from wedge import Wedge

# As tests/systemd.rs has it, in tenths.
EXPOSURE_MAX = 1.6
RESTART_MS_MAX = 250


def installed():
    """neither enabled nor started, nothing listens; started without engines it says so once and is not started again"""
    run("apt-get", "install", "-qq", "-y", "/package.deb")
    check(shown("ActiveState", "UnitFileState") == ["inactive", "disabled"], f"{shown('ActiveState', 'UnitFileState')}")
    check(front.refused(), "something listens on the port")
    journal = Journal()
    systemctl("start", front.UNIT, fails=True)
    return refused_for_good(journal, "no engine to forward to")


def refused_for_good(journal, words):
    """The start was refused with status 78, with a reason, and is not tried again."""
    time.sleep(1)
    state = shown("ActiveState", "Result", "ExecMainStatus", "NRestarts")
    check(state == ["failed", "exit-code", "78", "0"], f"{state}")
    said = journal.find(words, priority=3)
    systemctl("reset-failed", front.UNIT)
    return f"status 78, 0 restarts in 1 s, journal <3> \"{said.strip()}\""


def engines():
    """two simulated engines, as units of their own"""
    for at, port in enumerate(ENGINES, 1):
        command = ["warmfront", "engine", f"--listen=127.0.0.1:{port}", "--model=m", "--decode-step-ms=5"]
        run("systemd-run", "--quiet", f"--unit=engine-{at}", *command)
        front.wait_until(lambda port=port: not front.refused(port), "the engine listens")


def started():
    """`systemctl start` comes back when shards and admin listener answer, not before"""
    configure()
    begin = time.monotonic()
    systemctl("enable", "--now", front.UNIT)
    took = time.monotonic() - begin
    # No try twice: what is not open now was not open at READY.
    for port in (PORT, front.ADMIN):
        check(not front.refused(port), f"active, and nothing listens on {port}")
    check(front.admin("/readyz").strip() != "" and shown("SubState", "Type") == ["running", "notify"], "not running")
    front.wait_until(front.answers, "a request is answered")
    return f"active in {took * 1000:.0f} ms, {shown('StatusText')[0]}"


def in_the_way():
    """a port that is taken: no READY, status 78, why"""
    systemctl("stop", front.UNIT)
    journal = Journal()
    with socket.create_server(("127.0.0.1", PORT)):
        systemctl("start", front.UNIT, fails=True)
        said = refused_for_good(journal, "cannot listen on 127.0.0.1:8000")
    systemctl("start", front.UNIT)
    front.wait_until(front.answers, "a request is answered")
    return said


def journal_is_readable():
    """priorities are the journal's own, no second time stamp, no colours, several lines stay together"""
    journal = Journal()
    systemctl("restart", front.UNIT)
    front.wait_until(front.answers, "a request is answered")
    entries = journal.entries()
    check(journal.find("ready shards=", priority=6), "")
    for priority, words in entries:
        plain = str(words)
        check(not plain.startswith("20") and "\x1b" not in plain and not plain.startswith("<"), f"<{priority}> {plain}")
    return "\n".join(run("journalctl", f"--unit={front.UNIT}", "--lines=6", "--no-pager", "--quiet").splitlines())


def journal_is_whole():
    """requests as fast as they go with a line of the journal for each: all are there, or counted, and none is torn"""
    clients, each = 4, 30_000
    configure(access="stdout")
    systemctl("reload", front.UNIT)
    names = "warmfront_access_records_dropped_total", "warmfront_access_lines_lost_total"
    before = front.counted(*names)
    journal = Journal()
    threads = [threading.Thread(target=front.flood, args=(each,)) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found, missing = [], 0

    def all_there():
        nonlocal found, missing
        found, missing = journal.entries(), front.counted(*names) - before
        return sum('"path"' in str(words) for _, words in found) + missing >= clients * each

    front.wait_until(all_there, lambda: f"{len(found)} lines and {missing} counted, of {clients * each}", 60, 1)
    lines = [words for _, words in found if '"path"' in words]
    torn = [line for line in lines if not (line.startswith('{"version"') and line.endswith("}"))]
    check(not torn, f"{len(torn)} torn lines: {torn[:3]}")
    configure()
    systemctl("reload", front.UNIT)
    return f"{clients * each} requests, {len(lines)} lines, {missing} counted as missing"


def exposure():
    """systemd-analyze security of the unit as it runs"""
    table = run("systemd-analyze", "security", "--no-pager", front.UNIT)
    line = table.strip().splitlines()[-1]
    score = float(line.split(": ")[1].split()[0])
    check(score <= EXPOSURE_MAX, line)
    # Filters that nobody entered are no filters.
    with open(f"/proc/{main_pid()}/status") as file:
        status = dict(line.rstrip("\n").split(":\t", 1) for line in file if ":\t" in line)
    user = int(status["Uid"].split()[0])
    check(status["Seccomp"] == "2" and status["NoNewPrivs"] == "1" and user > 60000, f"{status}")
    check(int(status["CapEff"], 16) == 1 << 10, f"capabilities {status['CapEff']}")
    return f"{line.lstrip('→ ')}; user {user}, capabilities: CAP_NET_BIND_SERVICE alone, seccomp filters"


def reloaded():
    """another file under requests: taken at once, none fails"""
    configure(engines=ENGINES[:1])
    systemctl("reload", front.UNIT)
    front.wait_until(lambda: "9102" not in front.admin("/endpoints"), "the second engine goes")
    process = main_pid()
    with Load() as load:
        for turn in range(10):
            configure(engines=ENGINES[: 2 - turn % 2])
            systemctl("reload", front.UNIT)
            there = turn % 2 == 0
            front.wait_until(lambda: ("9102" in front.admin("/endpoints")) == there, "engines as configured")
    configure()
    systemctl("reload", front.UNIT)
    check(main_pid() == process, "another process")
    return f"10 reloads, {load.all_answered()}"


def wrong_file():
    """a wrong file under requests: `systemctl reload` fails, says why, and it serves on"""
    with open(FILE) as file:
        right = file.read()
    journal, process = Journal(), main_pid()
    with Load() as load:
        with open(FILE, "a") as file:
            file.write("[limits]\nhead_bytes_max = \"many\"\n")
        systemctl("reload", front.UNIT, fails=True)
        time.sleep(0.5)
    said = journal.find("head_bytes_max", priority=3)
    check(shown("ActiveState")[0] == "active" and main_pid() == process, "it does not serve on")
    systemctl("stop", front.UNIT)
    journal = Journal()
    systemctl("start", front.UNIT, fails=True)
    refused_for_good(journal, "head_bytes_max")
    with open(FILE, "w") as file:
        file.write(right)
    systemctl("start", front.UNIT)
    front.wait_until(front.answers, "a request is answered")
    return f"journal <3> \"{said.strip()}\"; {load.all_answered()}; a start with it: status 78, no restart"


def killed():
    """SIGKILL: time to the first answered request, and what was refused meanwhile"""
    times, refusals = [], 0
    for _ in range(7):
        process = main_pid()
        os.kill(process, 9)
        begin = time.monotonic()
        while not front.answers():
            refusals += 1
            check(time.monotonic() - begin < 10, "it does not come back")
        times.append((time.monotonic() - begin) * 1000)
        front.wait_until(lambda: shown("ActiveState")[0] == "active" and main_pid() not in (0, process), "another process")
        time.sleep(0.5)
    # Requests that were under way are lost; those that come meanwhile wait.
    with Load() as load:
        os.kill(main_pid(), 9)
        time.sleep(1)
    refusals += sum("refused" in failure.lower() for failure in load.failures)
    middle = statistics.median(times)
    check(middle <= RESTART_MS_MAX, f"{middle:.0f} ms, at most {RESTART_MS_MAX}: {times}")
    check(refusals == 0, f"{refusals} connections refused: the listeners were not kept; {times}")
    return f"back in {min(times):.0f} to {max(times):.0f} ms, median {middle:.0f}; under load {len(load.failures)} requests lost, {refusals} refused"


def realtime():
    """tuning/realtime.conf as a drop-in: all threads are in the real-time class, and it serves"""
    folder = f"/etc/systemd/system/{front.UNIT}.d"
    run("install", "-D", "-m", "644", "/usr/share/doc/warmfront/examples/realtime.conf", "-t", folder)
    found = []
    for there in (True, False):
        systemctl("daemon-reload")
        systemctl("restart", front.UNIT)
        with Load() as load:
            time.sleep(1)
        load.all_answered()
        found.append(classes(main_pid()))
        if there:
            run("rm", "-r", folder)
    check(found == [{os.SCHED_RR}, {os.SCHED_OTHER}], f"{found}")
    return f"{load.all_answered()}; undone by removing it"


def classes(process):
    """Scheduling policies of a process's threads; one may end while they are looked at."""
    found = set()
    for task in os.listdir(f"/proc/{process}/task"):
        try:
            found.add(os.sched_getscheduler(int(task)) & 0xFF)
        except ProcessLookupError:
            pass
    return found


def stopped_whole():
    """SIGSTOP of the process: the watchdog ends it, and another one serves"""
    journal, process = Journal(), main_pid()
    os.kill(process, 19)
    took = came_back(process)
    journal.find("Watchdog timeout")
    return f"answers again after {took:.1f} s"


def came_back(process):
    """Seconds until another process answers, in the place of one that the watchdog has to end."""
    begin = time.monotonic()
    front.wait_until(lambda: main_pid() not in (0, process), "another process", 30)
    front.wait_until(lambda: front.answers(2.0), "a request is answered", 30)
    return time.monotonic() - begin


def wedged():
    """one shard's thread stopped in the middle of a turn: named by the stall detector, ended by the watchdog"""
    journal, process = Journal(), main_pid()
    # Half of these clients are the wedged shard's, and fail.
    with Load():
        Wedge(process, "shard-0", stalls)
        said = journal.find("a shard stands still shard=0", priority=4)
        took = came_back(process)
    journal.find("a shard stands still; the service manager is not told", priority=3)
    journal.find("Watchdog timeout")
    return f"journal <4> \"{said}\"; answers again after {took:.1f} s"


def stalls():
    """How often a shard has stood still."""
    counts = [line for line in front.admin("/metrics").splitlines() if line.startswith("warmfront_shard_stalls_total{")]
    return sum(int(line.split()[-1]) for line in counts)


def graceful():
    """`systemctl stop` with streams under way: all are read to their end, nobody new is taken"""
    journal = Journal()
    streams = Streams(20, 500)
    begin = time.monotonic()
    systemctl("stop", "--no-block", front.UNIT)
    front.wait_until(front.refused, "the listeners close", 2)
    said = streams.all_complete()
    front.wait_until(lambda: shown("ActiveState")[0] == "inactive", "it ends")
    check(shown("Result", "ExecMainStatus") == ["success", "0"], f"{shown('Result', 'ExecMainStatus')}")
    journal.find("drained", priority=6)
    took = time.monotonic() - begin
    systemctl("start", front.UNIT)
    front.wait_until(front.answers, "a request is answered")
    return f"{said}, ended after {took:.1f} s with status 0"


def removed():
    """stopped by removal; purged without a trace, in /run too"""
    run("systemctl", "stop", *(f"engine-{at}" for at in range(1, len(ENGINES) + 1)))
    run("apt-get", "remove", "-qq", "-y", "warmfront")
    check(front.refused() and not os.path.exists("/usr/bin/warmfront"), "removed, and there")
    check(os.path.exists(FILE), "removal took the configuration")
    run("apt-get", "purge", "-qq", "-y", "warmfront")
    run("systemctl", "reset-failed")
    places = ["/etc", "/run", "/usr", "/var", "/opt", "/srv", "/home", "/root", "/tmp", "/dev/shm"]
    left = run("find", *places, "-iname", "*warmfront*").split()
    left += [line for line in systemctl("list-units", "--all", "--plain", "--no-legend").splitlines() if "warmfront" in line]
    check(not left, f"left: {left}")
    check(run("getent", "passwd").find("warmfront") < 0, "a user is left")
    return "nothing is left: no file, no unit, no user"


STEPS = [installed, engines, started, in_the_way, journal_is_readable, journal_is_whole, exposure, reloaded, wrong_file]
STEPS += [killed, realtime, stopped_whole, wedged, graceful, *succession.STEPS, removed]
ALWAYS = [installed, engines, started, removed]


def main():
    named = sys.argv[1:]
    unknown = set(named) - {step.__name__ for step in STEPS}
    check(not unknown, f"no such step: {unknown}")
    for step in STEPS:
        if named and step.__name__ not in named and step not in ALWAYS:
            continue
        print(f"{step.__name__}: {step.__doc__}", flush=True)
        begin = time.monotonic()
        try:
            said = step()
        except Exception as error:
            print(run("journalctl", "--lines=40", "--no-pager", "--output=short-precise"))
            print(f"WRONG {step.__name__}: {error!r}", file=sys.stderr)
            sys.exit(1)
        if said:
            print("    " + said.replace("\n", "\n    "))
        print(f"    ok, {time.monotonic() - begin:.1f} s", flush=True)


main()
