"""Stops one thread of a process for good, as a kernel that does not come back or a loop without end would."""

import ctypes
import os
import threading

PTRACE_SINGLESTEP, PTRACE_SEIZE, PTRACE_INTERRUPT = 9, 0x4206, 0x4207
WAIT_ALL = 0x40000000
LIBC = ctypes.CDLL(None, use_errno=True)
LIBC.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
LIBC.ptrace.restype = ctypes.c_long


def ptrace(request, thread):
    if LIBC.ptrace(request, thread, None, None) < 0:
        raise OSError(ctypes.get_errno(), f"ptrace({request:#x})")


class Wedge:
    """Stops the thread of this name within a turn, where `stalls` counts it: in the kernel it may wait for ever."""

    def __init__(self, process, name, stalls):
        self.thread = next(thread for thread in threads(process) if comm(process, thread) == name)
        before = stalls()
        ptrace(PTRACE_SEIZE, self.thread)
        ptrace(PTRACE_INTERRUPT, self.thread)
        os.waitpid(self.thread, WAIT_ALL)
        # So slow that some turn takes longer than any may.
        for step in range(1_000_000):
            if step % 500 == 0 and stalls() > before:
                break
            ptrace(PTRACE_SINGLESTEP, self.thread)
            os.waitpid(self.thread, WAIT_ALL)
        else:
            raise RuntimeError("the thread was never found within a turn")
        # The process is not gone for its parent before somebody has taken note of the end of this thread.
        threading.Thread(target=os.waitpid, args=(self.thread, WAIT_ALL)).start()


def threads(process):
    return [int(thread) for thread in os.listdir(f"/proc/{process}/task")]


def comm(process, thread):
    with open(f"/proc/{process}/task/{thread}/comm") as file:
        return file.read().strip()
