"""Running steps within a time, and keeping what they found."""

import concurrent.futures
import datetime
import json
import re
import threading
import time

from gpu_checks.machine import Failure, NotRun, OutOfTime, run_quietly


def page_of(gpu):
    return re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") + ".md"


class Results:
    """Finished steps, on disk as they come: as rows of GPU.md and in the state file."""

    def __init__(self, machine, gpu, versions, state, output):
        self.path = output / page_of(gpu)
        self.gpu, self.state, self.lock, self.section = gpu, state, threading.Lock(), None
        self.commit = machine.commit()
        self.head = f"commit {self.commit}, {versions}"
        self.key = {"commit": self.commit, "program": machine.fingerprint(), "gpu": gpu}
        self.finished = {}
        if state.is_file():
            known = json.loads(state.read_text(encoding="utf-8"))
            if all(known.get(k) == v for k, v in self.key.items()):
                self.finished = known["finished"]
            else:
                print(f"{state} is of another commit, program or GPU; all steps begin anew")

    def add(self, step, status, figure, seconds):
        with self.lock:
            if status != "out of time":
                self.append(step, status, figure)  # first: a row twice is better than none
                self.finished[step.name] = {"status": status, "figure": figure}
                temporary = self.state.with_suffix(".new")
                text = json.dumps({**self.key, "finished": self.finished}, indent=1)
                temporary.write_text(text + "\n", encoding="utf-8")
                temporary.replace(self.state)
            print(f"{status:8} {step.name}: {figure} [{seconds:.1f} s]", flush=True)

    def append(self, step, status, figure):
        text = "" if self.path.exists() else f"# {self.gpu}\n"
        if self.section != step.part:
            self.section = step.part
            today = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
            text += f"\n## gpu_check {step.part}\n\n{today}, {self.head}.\n\n"
            text += "| what | command | result |\n|---|---|---|\n"
        cells = (step.name, f"`{step.command}`", f"{status}: {figure}")
        cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
        with self.path.open("a", encoding="utf-8") as out:
            out.write(text + "| " + " | ".join(cells) + " |\n")

    def unfinished(self, steps):
        """Steps that never ran, then those that failed."""
        status = {s.name: self.finished.get(s.name, {}).get("status", "") for s in steps}
        return [s for s in steps if not status[s.name]] + [
            s for s in steps if status[s.name] == "FAILED"
        ]

    def summary(self, steps):
        """Says how it ended, and lists what did not run; the exit status."""
        missing = [s.name for s in steps if s.name not in self.finished]
        if missing and self.section:
            with self.path.open("a", encoding="utf-8") as out:
                out.write(f"\nDid not run, for the time was used up: {', '.join(missing)}.\n")
        for name in missing:
            print(f"did not run, for the time was used up: {name}")
        states = [self.finished[s.name]["status"] for s in steps if s.name in self.finished]
        failed = states.count("FAILED")
        print(
            f"{states.count('passed')} passed, {failed} failed, {states.count('not run')} cannot "
            f"run here, {len(missing)} left for a later call; results in {self.path}"
        )
        return 1 if failed else 0


def run_step(machine, step, results, end):
    begin = time.monotonic()
    if begin + (step.likely or 0) >= end:
        return
    machine.begin_step(step.limit)
    try:
        status, figure = "passed", step.run(machine)
    except Failure as failure:
        status, figure = "FAILED", str(failure)
    except NotRun as reason:
        status, figure = "not run", str(reason)
    except OutOfTime:
        status, figure = "out of time", "ended; a later call runs it"
    except (OSError, ValueError, KeyError, IndexError, StopIteration, TypeError) as error:
        status, figure = "FAILED", f"what it printed was not understood: {error!r}"
    results.add(step, status, figure, time.monotonic() - begin)


def run_part(machine, steps, results, end, jobs):
    """Those that are timed run alone, each if there is time enough for it."""
    machine.end = end
    together = [step for step in steps if step.likely is None]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(run_step, machine, s, results, end) for s in together]:
            done.result()
    for step in (step for step in steps if step.likely is not None):
        run_step(machine, step, results, end)


def open_gpu(machine):
    """What the program calls the GPU and the libraries; ends where there is none."""
    machine.begin_step(120)
    ran = machine.megatron("selftest", "--device", "cuda", "--filter", "=kernels/fill")
    said = [line for line in ran.lines() if not re.match(r"\d\d:\d\d:\d\d ", line)]
    if ran.code not in (0, 1) or "; " not in (said or [""])[0]:
        print("gpu_check: no GPU can be used: " + ran.why())
        raise SystemExit(2)
    gpu, versions = said[0].split("; ", 1)
    query = "--query-gpu=driver_version,clocks.sm,clocks.max.sm,power.limit,memory.total"
    card = run_quietly(["nvidia-smi", query, "--format=csv,noheader"]).splitlines()
    if card:
        versions += f"; driver, SM clock now and at most, power limit, memory: {card[0]}"
    return gpu, versions
