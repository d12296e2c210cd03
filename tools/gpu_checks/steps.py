"""Steps, and running them within a time."""

import concurrent.futures
import time
import traceback

from gpu_checks import first
from gpu_checks.machine import LOG, Failure, NotRun, OutOfTime, TookTooLong
from gpu_checks.output import say


class Step:
    """run(machine) returns the figure of a step that passed, or raises Ended. The step fails if it
    takes longer than `limit` seconds. A timed step runs alone, and only starts if the `likely`
    seconds that it takes on an H200 are left. `baseline`: the step whose tokens/s are compared with
    its own."""

    def __init__(self, part, name, command, run, limit=120, likely=None, baseline=None):
        self.part, self.name, self.command, self.run = part, name, command, run
        self.limit, self.likely, self.baseline = limit, likely, baseline


class Outcome:
    """How a step ended, with `why` and `figure` if there are any."""

    def __init__(self, status, why="", figure="", hung=False):
        self.status, self.why, self.figure, self.hung = status, why, figure, hung

    def is_final(self):
        return self.status != "out of time"

    def text(self):
        """A measured figure is kept, whatever happens afterwards."""
        mark = f"{self.status} ({self.why})" if self.why and self.figure else self.status
        return f"{mark}: {self.figure or self.why}"


def outcome_of(machine, step):
    machine.begin_step(min(step.limit, machine.step_seconds))
    try:
        return Outcome("passed", figure=step.run(machine))
    except OutOfTime as ended:
        return Outcome("out of time", str(ended), ended.figure)
    except NotRun as reason:
        return Outcome("not run", str(reason), reason.figure)
    except Failure as failure:
        hung = isinstance(failure, TookTooLong)
        return Outcome("FAILED", str(failure), failure.figure, hung)
    except Exception as error:  # pylint: disable=broad-exception-caught
        machine.output.append(LOG, f"\n{step.name}:\n{traceback.format_exc()}")
        return Outcome("FAILED", f"{type(error).__name__}: {error} (where: {LOG})")


def run_step(machine, step, results):
    begin = time.monotonic()
    if begin + (step.likely or 0) >= machine.end:
        return
    outcome = outcome_of(machine, step)
    try:
        results.add(step, outcome, time.monotonic() - begin)
        if outcome.hung:
            expect_answer(machine, step)
    except Exception as error:  # pylint: disable=broad-exception-caught
        say(f"{step.name}: {outcome.text()}; its result cannot be kept: {error!r}")


def expect_answer(machine, step):
    """Called after a step that may have hung: if the GPU no longer answers, later steps would hang
    too."""
    _, why = first.probe(machine)
    if why and time.monotonic() < machine.end:
        machine.lost = f"After {step.name} the GPU did not answer any more: {why}."
        machine.end = 0


def run_steps(machine, steps, results, jobs):
    """Timed steps run alone, each if there is enough time until machine.end."""
    together = [step for step in steps if step.likely is None]
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        for done in [pool.submit(run_step, machine, s, results) for s in together]:
            done.result()
    for step in (step for step in steps if step.likely is not None):
        run_step(machine, step, results)
