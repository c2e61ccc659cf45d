"""Steps of supervised.py in which one process takes another's place."""

import os
import time

import front
from front import Journal, Load, Streams, check, main_pid, run, shown, systemctl


def upgraded():
    """SIGUSR2 under load, five times: none fails; systemd watches the new process"""
    journal = Journal()
    with Load() as load:
        for _ in range(5):
            succeed()
            time.sleep(1)
    journal.find("another process serves in this one's place", priority=6)
    return f"5 upgrades, {load.all_answered()}"


def succeed():
    """Has another process take the place of the main one; answers both."""
    before = main_pid()
    systemctl("kill", "--kill-who=main", "--signal=SIGUSR2", front.UNIT)
    front.wait_until(lambda: main_pid() not in (0, before), "systemd has another main process")
    check(shown("ActiveState", "SubState") == ["active", "running"], f"{shown('ActiveState', 'SubState')}")
    return before, main_pid()


def lives(process):
    return os.path.exists(f"/proc/{process}")


def streams_outlast():
    """the old process lives on while its streams last, beyond two periods of the watchdog, and ends with them"""
    journal = Journal()
    streams = Streams(20, 2000)
    old, new = succeed()
    time.sleep(20)
    check(lives(old) and main_pid() == new, f"the old process is gone: {streams.failures[:3]}")
    said = streams.all_complete()
    front.wait_until(lambda: not lives(old), "the old process ends with its streams")
    check(main_pid() == new and shown("NRestarts", "ActiveState") == ["0", "active"], f"{shown('NRestarts')}")
    unheard = [words for _, words in journal.entries() if "reception only permitted" in str(words)]
    check(not unheard, f"systemd takes no word from a process that has something to say: {unheard[:2]}")
    return f"{said} after {time.monotonic() - streams.begin:.0f} s"


def stopped_after_upgrade():
    """`systemctl stop` while the old process has streams: it finishes them too"""
    streams = Streams(20, 500)
    old, _ = succeed()
    systemctl("stop", front.UNIT)
    check(not lives(old), "stopped, and the old process is there")
    said = streams.all_complete()
    check(shown("Result")[0] == "success", f"{shown('Result')}")
    systemctl("start", front.UNIT)
    front.wait_until(front.answers, "a request is answered")
    return said


def heir_killed():
    """SIGKILL of the new process while the old one has streams: another one serves, nobody is refused"""
    streams = Streams(20, 1000)
    _, new = succeed()
    os.kill(new, 9)
    begin = time.monotonic()
    front.wait_until(lambda: main_pid() not in (0, new) and front.answers(), "another process serves", 60)
    took = time.monotonic() - begin
    check(took < 1, f"{took:.1f} s")
    for thread in streams.threads:
        thread.join()
    return f"back after {took * 1000:.0f} ms, {len(streams.failures)} of 20 streams cut"


def package_upgraded():
    """a newer package under load: its program takes over, none fails, streams go on"""
    process, streams = main_pid(), Streams(20, 500)
    with Load() as load:
        run("apt-get", "install", "-qq", "-y", "/newer.deb")
        front.wait_until(lambda: main_pid() not in (0, process), "the new program takes over")
        time.sleep(1)
    check(os.readlink(f"/proc/{main_pid()}/exe") == "/usr/bin/warmfront", "the program on disk is not the one that runs")
    version = run("dpkg-query", "--show", "--showformat=${Version}", "warmfront")
    return f"{version}: {load.all_answered()}, {streams.all_complete()}"


def activated():
    """with warmfront.socket the first connection starts the service, and a restart under load refuses nobody"""
    systemctl("stop", front.UNIT)
    front.configure(listen="0.0.0.0:8000")
    systemctl("enable", "--now", "warmfront.socket")
    check(shown("ActiveState")[0] == "inactive", "it runs before anybody came")
    begin = time.monotonic()
    check(front.answers(), "the first connection is not answered")
    first = (time.monotonic() - begin) * 1000
    with Load(kept=False) as load:
        for _ in range(5):
            systemctl("restart", front.UNIT)
            time.sleep(0.5)
    said = load.all_answered()
    systemctl("stop", front.UNIT)
    check(not front.refused(), "systemd does not hold the port")
    systemctl("disable", "--now", "warmfront.socket")
    systemctl("stop", front.UNIT)
    check(front.refused(), "something listens when all is stopped")
    front.configure()
    systemctl("start", front.UNIT)
    front.wait_until(front.answers, "a request is answered")
    return f"first answer after {first:.0f} ms; 5 restarts, {said}"


STEPS = [upgraded, streams_outlast, stopped_after_upgrade, heir_killed, package_upgraded, activated]
