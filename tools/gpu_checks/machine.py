"""The program on this machine: where it lies, its commands, and what they print."""

import contextlib
import hashlib
import json
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
START = Path(__file__).with_name("start.py")
LOG = "gpu_check.log"
PRINTED_LIMIT = 256 << 20  # bytes that a command may print before it is ended
LOG_LIMIT = 12 << 20  # longer files may not be copied back
LOGGED_LIMIT = 256 << 10  # bytes per command
READ_LIMIT = 4 << 20  # bytes of output read at its beginning and at its end
THREADS = 4  # CPU threads per check
# The last line of a check or a bench. A program that has said it may hang while the driver ends.
LAST_LINE = re.compile(r"^(\d+ passed, \d+ failed|clocks and power|SM clock)", re.MULTILINE)
LINGER_SECONDS = 20
BAD = re.compile(r"FAILED|ERROR|(?<!worst )[Ee]rror")


class Unusable(Exception):
    """The reason why nothing can be checked at all, and what to do."""


class Ended(Exception):
    """The reason why a step ended early, and any figure measured by then."""

    def __init__(self, why, figure=""):
        super().__init__(why)
        self.figure = figure


class Failure(Ended):
    """A step failed."""


class TookTooLong(Failure):
    """A step was ended at its time limit. It may have hung."""


class Hung(TookTooLong):
    """A step's process does not end even when it is killed."""


class NotRun(Ended):
    """A step cannot run here."""


class OutOfTime(Ended):
    """A step was ended because the time of its part was used up."""


@contextlib.contextmanager
def keeping(figure):
    """Keeps the earlier measurement in any exception that ends the step."""
    try:
        yield
    except Ended as ended:
        both = "<br>".join(part for part in (figure, ended.figure) if part)
        raise type(ended)(str(ended), both) from ended


def end_of(process):
    """Waits for a killed process, which may hang in the driver; later ones may still work."""
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        return Hung("it was killed and does not end: the driver holds it")
    return None


def usable_cores():
    """Cores that this process may use, by its affinity and its cgroup."""
    try:
        command = [ROOT / "tools/build_jobs", "--processors"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
        return max(1, int(done.stdout))
    except (OSError, ValueError, subprocess.SubprocessError):
        return len(os.sched_getaffinity(0))


UNPACKING = threading.Lock()


def vectors_of(name):
    """The folder of a set of golden vectors, unpacked."""
    with UNPACKING:  # another thread may be reading the files to be replaced
        try:
            try:
                return vectors.find(name)
            except OSError:  # the tree cannot be written
                vectors.UNPACKED = Path(tempfile.gettempdir()) / f"gpu_check.vectors.{os.getpid()}"
                return vectors.find(name)
        except vectors.Wrong as error:
            raise NotRun(str(error)) from error


def output_file():
    """Keeps output in memory, so that a full disk loses no figure."""
    try:
        return open(os.memfd_create("output"), "w+b")
    except (OSError, AttributeError):
        return tempfile.TemporaryFile("w+b")


def content_of(file):
    """Reads without moving the command's write position."""
    size, end = os.fstat(file.fileno()).st_size, b""
    begin = os.pread(file.fileno(), min(size, 2 * READ_LIMIT), 0)
    if size > 2 * READ_LIMIT:
        begin = begin[:READ_LIMIT] + b"\n[...]\n"
        end = os.pread(file.fileno(), READ_LIMIT, size - READ_LIMIT)
    return (begin + end).decode("utf-8", "replace")


def json_in(text, key):
    """Returns the JSON object with this key among a command's log lines, or None."""
    for found in re.finditer(r"^\{", text, re.MULTILINE):
        try:
            value, _ = json.JSONDecoder().raw_decode(text, found.start())
        except ValueError:
            continue
        if key in value:
            return value
    return None


def shortened(text, most):
    if len(text) <= most:
        return text
    kept = most // 2
    return f"{text[:kept]}\n[{len(text) - 2 * kept} characters are left out]\n{text[-kept:]}"


class Ran:
    """A command that has ended or was ended; `ended` gives the reason."""

    def __init__(self, command, code, text, seconds, ended=None):
        self.command, self.code, self.text, self.seconds = command, code, text, seconds
        self.ended = ended

    def lines(self):
        return [line for line in self.text.splitlines() if line.strip()]

    def why(self):
        """The end of its output, and how it ended."""
        if self.ended:
            return str(self.ended)
        ended = f"exit status {self.code}"
        if self.code < 0:
            names = {int(s): s.name for s in signal.Signals}
            ended = f"ended by {names.get(-self.code, f'signal {-self.code}')}"
        said = [line.strip() for line in self.lines() if BAD.search(line)]
        return "; ".join((said or [line.strip() for line in self.lines()[-1:]])[:3] + [ended])

    def expect_success(self, figure=""):
        """Raises its error with the figures measured by then."""
        if self.ended:
            raise type(self.ended)(str(self.ended), figure)
        if self.code != 0:
            raise Failure(self.why(), figure)


class Machine:
    """Runs the program, and keeps the output of all commands."""

    def __init__(self, program, output, device, threads=THREADS):
        self.output, self.device, self.threads = output, device, threads
        self.work = Path(tempfile.mkdtemp(prefix="gpu_check."))
        self.folders, self.kept = [self.work], {}
        self.program = self.unpacked(Path(program))
        vectors.LIBRARIES.append(self.program.with_name("libzstd.so.1"))  # from a pack
        self.end, self.step_of_thread = math.inf, threading.local()
        self.running, self.lost = {}, ""
        self.step_seconds = math.inf  # limit of any step whose own limit is longer
        self.environment = dict(os.environ)

    def unpacked(self, program):
        if not program.is_file():
            raise Unusable(
                f"{program} is no file; --program names one, tools/check_binary makes it"
            )
        if program.suffix != ".gz":
            return program.resolve()
        reason = ""
        for place in (None, ROOT / "build", self.output.folder):  # /tmp may not allow executables
            try:
                folder = Path(tempfile.mkdtemp(prefix="gpu_check.", dir=place))
                self.folders.append(folder)
                with tarfile.open(program) as pack:
                    safely = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
                    pack.extractall(folder, **safely)
                found = folder / "megatron-check/megatron"
                if os.access(found, os.X_OK):
                    return found
                reason = reason or f"{found} may not be executed there"
            except (OSError, EOFError, tarfile.TarError) as error:
                reason = reason or str(error)
        self.close()
        raise Unusable(
            f"{program} cannot be unpacked: {reason}; TMPDIR names another folder for it"
        )

    def commit(self):
        commit = self.program.with_name("commit")
        if commit.is_file():
            return commit.read_text(encoding="utf-8").strip()
        said = self.said_by("git", "-C", ROOT, "rev-parse", "--short", "HEAD").strip()
        changed = self.said_by("git", "-C", ROOT, "status", "--porcelain", "--", "src").strip()
        return (said or "unknown") + (" with changes" if changed else "")

    def fingerprint(self):
        digest = hashlib.sha256()
        for name in (self.program.name, "libmegatron_cuda.so"):
            path = self.program.with_name(name)
            digest.update(path.read_bytes() if path.is_file() else b"none")
        return digest.hexdigest()[:16]

    def begin_step(self, limit):
        """Limits the total seconds of all commands of this thread's step."""
        self.step_of_thread.end = time.monotonic() + limit
        self.step_of_thread.limit = limit

    def seconds_left(self):
        return self.end_of_step(math.inf)[0] - time.monotonic()

    def end_of_step(self, limit):
        """Returns when this thread's command must have ended, and the exception to raise then."""
        own = getattr(self.step_of_thread, "end", math.inf)
        if self.end <= min(own, time.monotonic() + limit):
            return self.end, OutOfTime("the time was used up; a later call runs it")
        if time.monotonic() + limit < own:
            return time.monotonic() + limit, TookTooLong(
                f"took longer than {limit} s and was ended"
            )
        text = f"took longer than {getattr(self.step_of_thread, 'limit', limit)} s and was ended"
        return own, TookTooLong(text)

    def run(self, command, cwd=None, watch=None, limit=math.inf):
        """Waits for the command's end. watch(process, end) may end it early."""
        command = [str(word) for word in command]
        begin, (end, late) = time.monotonic(), self.end_of_step(limit)
        if begin >= end:
            raise late
        with output_file() as out:
            process = subprocess.Popen(
                [sys.executable, "-I", "-S", START, str(os.getpid()), *command],
                stdout=out,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                cwd=cwd or self.work,
                env=self.environment,
                start_new_session=True,
            )
            self.running[process.pid] = (command, out)
            try:
                if watch:
                    watch(process, end)
                ended = self.wait(process, out, end, late)
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                held = end_of(process)
                self.running.pop(process.pid)
            seconds = time.monotonic() - begin
            ran = Ran(command, process.returncode, content_of(out), seconds, held or ended)
        self.write_log(command, ran.text, f"{seconds:.1f} s")
        return ran

    def wait(self, process, out, end, late):
        """Returns None if it ended, and otherwise the reason why it must end."""
        said_all = math.inf  # since when
        while True:
            left = end - time.monotonic()
            try:
                process.wait(min(0.2, max(left, 0.01)))
                return None
            except subprocess.TimeoutExpired:
                if time.monotonic() >= end:
                    return late
                if said_all == math.inf and LAST_LINE.search(content_of(out)):
                    said_all = time.monotonic()
                if time.monotonic() >= said_all + LINGER_SECONDS:
                    return Failure(f"did not end within {LINGER_SECONDS} s of its last line")
                if os.fstat(out.fileno()).st_size > PRINTED_LIMIT:
                    return Failure(f"printed more than {PRINTED_LIMIT >> 20} MiB and was ended")

    def said_by(self, *command):
        """Output of a command that may be missing; empty if it fails."""
        self.begin_step(20)
        try:
            ran = self.run(command)
        except (Ended, OSError):
            return ""
        return ran.text if ran.code == 0 and not ran.ended else ""

    def write_log(self, command, text, end):
        full = self.output.size_of(LOG) > LOG_LIMIT - 2 * LOGGED_LIMIT
        text = shortened(text, (4 << 10) if full else LOGGED_LIMIT)
        self.output.append(LOG, f"\n$ {shlex.join(command)}\n{text}[{end}]\n")

    def megatron(self, *words, cwd=None, watch=None, limit=math.inf):
        return self.run([self.program, *words], cwd, watch, limit)

    def kill_all(self):
        """Yields the running command and keeps its output."""
        for pid, (command, out) in list(self.running.items()):
            try:
                os.killpg(pid, signal.SIGKILL)
                self.write_log(command, content_of(out), "ended with gpu_check")
            except (OSError, ValueError):
                pass

    def close(self):
        for folder in (*self.folders, vectors.UNPACKED):
            if folder.name.startswith("gpu_check."):
                shutil.rmtree(folder, ignore_errors=True)
