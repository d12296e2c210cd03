"""Starts a command that is killed when the one that asked for it is gone: PARENT COMMAND...

A program of its own, because nothing but exec may follow a fork where other threads run.
"""

import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main():
    parent, command = int(sys.argv[1]), sys.argv[2:]
    try:
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    except (ImportError, OSError, AttributeError):
        pass  # it may then outlive its parent, like any command
    if os.getppid() != parent:
        return 1
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores these
        signal.signal(number, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)
    except OSError as error:
        print(f"error: {command[0]} cannot be started: {error.strerror}", flush=True)
    return 127


if __name__ == "__main__":
    sys.exit(main())
