"""The first step of every call: can this machine's GPU be used, and what is there?"""

import re
import shutil

from gpu_checks.machine import json_in

SECONDS = 90
PROBE_SECONDS = 60
QUICK = ("selftest", "device", "--device", "cuda", "--json")
PROBE = ("selftest", "--device", "cuda", "--filter", "=kernels/fill")
CARD = "driver_version,clocks.sm,clocks.max.sm,clocks.mem,power.limit,memory.total,compute_mode"


class NoGpu(Exception):
    """No GPU can be used; the findings give the reason."""

    def __init__(self, findings):
        super().__init__()
        self.findings = findings


class Findings:
    def __init__(self, gpu="no GPU"):
        self.gpu, self.seconds = gpu, 0.0
        self.lines, self.failed = [], []
        self.one_process = False  # at a time, as the GPU's compute mode may require

    def add(self, line):
        self.lines.append(" ".join(str(line).split()))

    def fail(self, line):
        self.failed.append(line)
        self.add("FAILED " + line)


def library_line(library):
    name = f"{library.get('name')} {library.get('version') or ''}".strip()
    needed = f", for {library['needed_by']}" if library.get("needed_by") else ""
    if library.get("usable"):
        return f"{name}{needed}: {library.get('path') or 'usable'}"
    kind = "required" if library.get("required") else "optional"
    return f"{name}{needed} ({kind}): cannot be used: {library.get('why_not')}"


def describe(report, findings):
    size = report.get("memory")
    memory = f", {size / 2**30:.1f} GiB" if isinstance(size, (int, float)) and size else ""
    findings.gpu = report.get("device") or "no GPU"
    driver = f"driver {report.get('driver') or 'none'}, CUDA {report.get('cuda') or 'none'}"
    capability = report.get("compute_capability") or "unknown"
    findings.add(f"{findings.gpu}: compute capability {capability}{memory}; {driver}")
    for library in report.get("libraries") or []:
        findings.add(library_line(library))
    for check in report.get("checks") or []:
        line = f"{check.get('name')} in {check.get('seconds')} s: "
        if check.get("passed"):
            findings.add(line + str(check.get("result") or "passed"))
        else:
            findings.fail(line + str(check.get("why_not") or "failed"))
    if report.get("what_to_do"):
        findings.add(f"What to do: {report['what_to_do']}")


def add_card(machine, findings):
    tool = shutil.which("nvidia-smi") or "/usr/local/nvidia/bin/nvidia-smi"  # in containers
    said = machine.said_by(tool, f"--query-gpu={CARD}", "--format=csv,noheader").splitlines()
    cards = [line for line in said if "," in line]
    if cards:
        alike = len(set(cards)) == 1
        findings.add(
            "nvidia-smi: driver, SM clock now and at most, memory clock, power limit, memory, mode: "
            + (cards[0] if alike else "; ".join(f"GPU {i}: {c}" for i, c in enumerate(cards)))
        )
        findings.one_process = any("Exclusive" in card for card in cards)
    else:
        findings.add("nvidia-smi: not here, or it says nothing")


def probe(machine):
    """The shortest check, used if the long one gave no report. Returns (the GPU's name, "") or the reason why not."""
    machine.begin_step(PROBE_SECONDS)
    try:
        ran = machine.megatron(*PROBE, "--threads", machine.threads)
    except Exception as error:  # pylint: disable=broad-exception-caught
        return "", str(error)
    said = [line for line in ran.lines() if not re.match(r"\d\d:\d\d:\d\d ", line)]
    answered = ran.code in (0, 1) or re.search("^ok ", ran.text, re.MULTILINE)
    if not answered or "; " not in (said or [""])[0]:
        return "", ran.why()
    return said[0], ""


def look(machine):
    """Returns the findings. Raises NoGpu."""
    findings = Findings()
    machine.begin_step(SECONDS)
    ran = report = None
    hung = False
    try:
        ran = machine.megatron(*QUICK)
        findings.seconds, report, trouble = ran.seconds, json_in(ran.text, "passed"), ran.why()
        hung = any(check.get("hung") for check in (report or {}).get("checks") or [])
        whole = report and ran.code in (0, 1, 2) and not ran.ended and not hung
        if report:
            describe(report, findings)
    except Exception as error:  # pylint: disable=broad-exception-caught
        whole, trouble = False, repr(error)
    if whole and ran.code == 2:
        raise NoGpu(findings)
    if not whole:
        name, why = probe(machine)
        trouble = f"the check of the device {'hung' if hung else 'gave no report'}: {trouble}"
        if why:
            findings.fail(trouble)
            findings.fail("nor could it fill a tensor: " + why)
            findings.add(
                "What to do: run `megatron selftest device --device cuda` by itself; docs/cuda.md "
                "says what it needs"
            )
            raise NoGpu(findings)
        refused = ran is not None and ran.code == 2 and not report  # a program without this check
        (findings.add if refused else findings.fail)(trouble)
        findings.gpu = name.split("; ", 1)[0]
        findings.add(f"{name}: a tensor could be filled; the checks go on")
    elif ran.code == 1 and not findings.failed:
        findings.fail("the check of the device failed: " + trouble)
    add_card(machine, findings)
    return findings
