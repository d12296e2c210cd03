"""What was found, kept as it comes: rows of the GPU's page, and the state for a later call."""

import datetime
import json
import re
import threading

from gpu_checks.machine import shortened
from gpu_checks.output import say

STATE = "gpu_check.json"
FIGURE_LIMIT, SAID_LIMIT = 32 << 10, 2 << 10  # characters
RATE = re.compile(r"([0-9][0-9,.]*) tokens/s")


def page_of(gpu):
    return (re.sub(r"[^a-z0-9]+", "-", gpu.lower()).strip("-") or "unknown") + ".md"


def head_of(findings, commit):
    """The beginning of a call's section on the page."""
    today = datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
    lines = [f"\n## gpu_check, {today}, commit {commit}\n"]
    lines += [f"- {line}" for line in findings.lines]
    return "\n".join(lines) + "\n"


def write_findings(output, findings, commit):
    """Of a call that ends with them."""
    page = page_of(findings.gpu)
    title = "" if output.size_of(page) else f"# {findings.gpu}\n"
    output.append(page, title + head_of(findings, commit))
    return output.path(page)


def load(path, key):
    """The finished steps in a state file, by name; empty if the file is of another kind."""
    try:
        known = json.loads(path.read_text(encoding="utf-8"))
        finished = known["finished"]
        for step in finished.values():
            if not isinstance(step["status"] + step["figure"], str):
                raise TypeError("a step without a status")
        others = [name for name, value in key.items() if known[name] != value]
    except FileNotFoundError:
        return {}
    except Exception as error:  # pylint: disable=broad-exception-caught
        aside = path.with_name(path.name + ".broken")
        say(f"{path} cannot be parsed ({error!r}); it is kept as {aside.name}")
        say("All steps start over.")
        try:
            path.replace(aside)
        except OSError:
            pass
        return {}
    if others:
        say(f"{path} is from another {' and '.join(others)}; all steps start over")
        return {}
    return finished


class Results:
    """Finished steps, written to disk as they end."""

    def __init__(self, machine, findings):
        self.output, self.findings, self.lock = machine.output, findings, threading.Lock()
        self.page, self.commit = page_of(findings.gpu), machine.commit()
        self.key = {"commit": self.commit, "program": machine.fingerprint(), "gpu": findings.gpu}
        self.headed, self.section = False, None
        self.finished = load(self.output.path(STATE), self.key)
        self.before = {n for n, s in self.finished.items() if s["status"] in ("FAILED", "not run")}

    def add(self, step, outcome, seconds):
        with self.lock:
            text = shortened(outcome.text(), FIGURE_LIMIT) + self.comparison(step, outcome.figure)
            say(f"{step.name}: {shortened(text, SAID_LIMIT)} [{seconds:.1f} s]")
            known = {"status": "not run", "figure": text}  # the page has it already
            if (outcome.figure or outcome.is_final()) and self.finished.get(step.name) != known:
                self.append(step, text)  # first: a repeated row is better than none
            if outcome.is_final():
                self.finished[step.name] = {"status": outcome.status, "figure": text}
                text = json.dumps({**self.key, "finished": self.finished}, indent=1)
                self.output.replace(STATE, text + "\n")

    def comparison(self, step, figure):
        """Compares with the baseline step."""
        other = self.finished.get(step.baseline, {})
        if other.get("status") != "passed":  # its flags may have differed
            return ""
        other = other["figure"]
        own, others = RATE.search(figure), RATE.search(other)
        if not own or not others:
            return ""
        rate, base = (float(m.group(1).replace(",", "")) for m in (own, others))
        more = f" ({100 * (rate / base - 1):+.1f}%)" if base else ""
        return f"; baseline {others.group(1)} of {step.baseline}{more}"

    def append(self, step, figure):
        text = "" if self.output.size_of(self.page) else f"# {self.findings.gpu}\n"
        if not self.headed:
            self.headed = True
            text += head_of(self.findings, self.commit)
        if self.section != step.part:
            self.section = step.part
            text += f"\n### {step.part}\n\n| what | command | result |\n|---|---|---|\n"
        cells = (step.name, f"`{step.command}`", figure)
        cells = (cell.replace("|", "\\|").replace("\n", " ") for cell in cells)
        self.output.append(self.page, text + "| " + " | ".join(cells) + " |\n")

    def note(self, text):
        say(text)
        if self.headed:
            self.output.append(self.page, f"\n{text}\n")
            self.section = None  # a later row needs its own table

    def fresh(self, steps):
        return [step for step in steps if step.name not in self.finished]

    def to_repeat(self, steps):
        """Steps that failed or could not run before this call; the cause may be gone."""
        return [step for step in steps if step.name in self.before]

    def summary(self, steps, left, lost):
        """Prints how the call ended and which steps did not run. Returns the exit status."""
        missing = [step.name for step in self.fresh(steps)] + left
        if missing:
            why = "" if lost else ", for the time was used up"
            self.note(f"Did not run{why}: {', '.join(missing)}.")
        states = [self.finished[s.name]["status"] for s in steps if s.name in self.finished]
        failed = states.count("FAILED")
        say(
            f"{states.count('passed')} passed, {failed} failed, {states.count('not run')} cannot "
            f"run here, {len(missing)} left for a later call; results in "
            f"{self.output.path(self.page)}"
        )
        return 1 if failed or lost or self.findings.failed else 0
