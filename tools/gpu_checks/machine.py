"""The program on this machine: its libraries, its commands, and what they print."""

import ctypes
import glob
import hashlib
import math
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from pathlib import Path

import vectors

ROOT = Path(__file__).resolve().parents[2]
# cuDNN compiles its graphs with NVRTC, which it opens itself.
LIBRARIES = ("libcublasLt.so.*", "libcudnn.so.9", "libnccl.so.2", "libnvrtc.so.*")


class Failure(Exception):
    """A step that failed, and why."""


class NotRun(Exception):
    """A step that cannot run here, and why."""


class OutOfTime(Exception):
    """A command was stopped because the time of all steps was used up."""


LIBC = ctypes.CDLL(None)


def end_with_parent():
    """In a child: it is killed when the thread that began it is gone, however that ended."""
    death_signal = 1  # PR_SET_PDEATHSIG of prctl
    LIBC.prctl(death_signal, signal.SIGKILL)


def library_folders():
    """Folders of NVIDIA's libraries that the loader does not know: the toolkit's and pip's."""
    known = run_quietly(["ldconfig", "-p"]) or run_quietly(["/sbin/ldconfig", "-p"])
    site = "lib/python3*/*-packages/nvidia"
    places = ["/usr/local/cuda/lib64", "/usr/local/cuda/lib", "/usr/local/nvidia/lib64"]
    prefixes = (sys.prefix, os.environ.get("VIRTUAL_ENV"), Path.home() / ".local", "/usr")
    for prefix in (*prefixes, "/usr/local", "/opt/*/.venv", "/opt/conda"):
        if prefix:
            places += sorted(glob.glob(f"{prefix}/{site}/*/lib"))
    folders, seen = [], set(re.findall(r"^\t(\S+) ", known, re.MULTILINE))
    for name in LIBRARIES:
        for path in (p for place in places for p in sorted(glob.glob(f"{place}/{name}"))):
            folder, file = os.path.split(path)
            # libcublasLt.so.12 may be known where .13 is needed
            if re.search(r"[.]so[.][0-9]+$", file) and file not in seen:
                seen.add(file)
                folders += [folder] if folder not in folders else []
    return folders


def run_quietly(command):
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout if done.returncode == 0 else ""


def end_of(process):
    """Of one that was killed. It may hang in the driver, and all later ones need not."""
    try:
        process.wait(20)
    except subprocess.TimeoutExpired as error:
        raise Failure("it was killed and does not end: the driver holds it") from error


def vectors_of(name):
    """The folder of a set of golden vectors, unpacked."""
    try:
        return vectors.find(name)
    except vectors.Wrong as error:
        raise NotRun(str(error)) from error


class Ran:
    def __init__(self, command, code, text, seconds):
        self.command, self.code, self.text, self.seconds = command, code, text, seconds

    def lines(self):
        return [line for line in self.text.splitlines() if line.strip()]

    def why(self):
        """The end of what it said, and how it ended."""
        ended = f"exit status {self.code}"
        if self.code < 0:
            ended = f"ended by {signal.Signals(-self.code).name}"
        said = [line.strip() for line in self.lines() if "FAILED" in line or "rror" in line]
        return "; ".join((said or self.lines()[-1:])[:3] + [ended])


class Machine:
    """Runs the program with the libraries that it needs, and keeps all that commands print."""

    def __init__(self, program, output, device):
        self.work = Path(tempfile.mkdtemp(prefix="gpu_check."))
        self.program = self.unpacked(Path(program))
        self.device = device
        self.environment = dict(os.environ)
        path = [os.environ.get("LD_LIBRARY_PATH", ""), *library_folders()]
        self.environment["LD_LIBRARY_PATH"] = ":".join(p for p in path if p)
        self.log, self.lock = output / "gpu_check.log", threading.Lock()
        self.end, self.step_of_thread = math.inf, threading.local()
        self.running = set()

    def unpacked(self, program):
        if not program.is_file():
            raise SystemExit(f"gpu_check: {program} is no file; tools/check_binary makes a pack")
        if program.suffix != ".gz":
            return program.resolve()
        with tarfile.open(program) as pack:
            pack.extractall(self.work)
        return self.work / "megatron-check/megatron"

    def commit(self):
        beside = self.program.with_name("commit")
        if beside.is_file():
            return beside.read_text(encoding="utf-8").strip()
        said = run_quietly(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"]).strip()
        changed = run_quietly(["git", "-C", str(ROOT), "status", "--porcelain", "--", "src"])
        return (said or "unknown") + (" with changes" if changed else "")

    def fingerprint(self):
        digest = hashlib.sha256()
        for name in (self.program.name, "libmegatron_cuda.so"):
            path = self.program.with_name(name)
            digest.update(path.read_bytes() if path.is_file() else b"none")
        return digest.hexdigest()[:16]

    def begin_step(self, limit):
        """All commands of this thread's step may take so many seconds together."""
        self.step_of_thread.end = time.monotonic() + limit
        self.step_of_thread.limit = limit

    def seconds_left(self):
        """Of this thread's step, or of all steps."""
        end = min(self.end, getattr(self.step_of_thread, "end", math.inf))
        return end - time.monotonic()

    def took_too_long(self):
        if self.end <= getattr(self.step_of_thread, "end", math.inf):
            return OutOfTime()
        return Failure(f"took longer than {self.step_of_thread.limit} s and was ended")

    def run(self, command, cwd=None, watch=None):
        """The command's end. watch(process, end) may end it early."""
        command = [str(word) for word in command]
        begin, seconds = time.monotonic(), self.seconds_left()
        if seconds <= 0:
            raise self.took_too_long()
        with tempfile.TemporaryFile("w+", errors="replace", dir=self.work) as out:
            process = subprocess.Popen(
                command,
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=cwd or self.work,
                env=self.environment,
                start_new_session=True,
                preexec_fn=end_with_parent,
            )
            self.running.add(process.pid)
            end = math.inf if seconds == math.inf else begin + seconds
            ended = True
            try:
                if watch:
                    watch(process, end)
                process.wait(None if end == math.inf else max(end - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                ended = False
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                end_of(process)
                self.running.discard(process.pid)
            out.seek(0)
            ran = Ran(command, process.returncode, out.read(), time.monotonic() - begin)
        with self.lock, self.log.open("a", encoding="utf-8") as log:
            log.write(f"\n$ {shlex.join(command)}\n{ran.text}[{ran.seconds:.1f} s]\n")
        if not ended:
            raise self.took_too_long()
        return ran

    def megatron(self, *words, cwd=None, watch=None):
        return self.run([self.program, *words], cwd, watch)

    def kill_all(self):
        for pid in list(self.running):
            try:
                os.killpg(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass

    def close(self):
        shutil.rmtree(self.work, ignore_errors=True)


class Step:
    """run(machine) gives the figure of a step that passed. It fails when it takes longer than
    `limit` seconds. One that is timed runs alone, and is not begun when less time is left than
    the `likely` seconds that it takes on an H200."""

    def __init__(self, part, name, command, run, limit=120, likely=None):
        self.part, self.name, self.command, self.run = part, name, command, run
        self.limit, self.likely = limit, likely
