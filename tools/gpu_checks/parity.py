"""Kernels, gradients, models, layouts and models of other systems, and compute-sanitizer."""

import os
import re
import shlex
import shutil

from gpu_checks.machine import ROOT, Failure, NotRun, vectors_of
from gpu_checks.steps import Step

SMALL_CHECKS = ("=kernels/fill", "=kernels/unit_norm", "=gradients/add", "=model/gpt2 fp32")
SANITIZED = ("kernels/softmax", "kernels/add_layer_norm_backward", "kernels/sum_of_squares")


def selftest(part, name, *words, limit=120):
    words = ["selftest", "--device", "cuda", *words]

    def run(machine):
        ran = machine.megatron(*words, "--threads", machine.threads)
        said = [re.sub(r"^ok +\S.*? {2,}", "", line) for line in ran.lines() if line[:2] == "ok"]
        rows = [line.strip() for line in ran.lines() if "worst of" in line]
        compared = [line.strip() for line in ran.lines() if "compared" in line]
        ran.expect_success("; ".join((rows or compared)[:6]))
        if not ran.lines():
            raise Failure("it ended without an error or any output")
        return (rows or said)[0].strip() if len(said) == 1 else ran.lines()[-1].strip()

    return Step(part, name, "megatron " + shlex.join(words), run, limit)


def names_of(machine, *words):
    ran = machine.megatron("selftest", "--list", "--device", "cuda", *words)
    ran.expect_success()
    names = [line for line in ran.lines() if not re.match(r"\d\d:\d\d:\d\d ", line)]
    if not names:
        raise Failure("the program lists no checks")
    return names


def check_steps(machine, small):
    if small:
        return [selftest("parity", f[1:], "--filter", f) for f in SMALL_CHECKS]
    groups = ("kernels/", "model/", "layouts/", "bits/")
    steps = [selftest("parity", "gradients", "--filter", "gradients/")]
    for name in names_of(machine):
        if name.startswith(groups):
            steps.append(selftest("parity", name, "--filter", "=" + name))
    tests = machine.program.with_name("parity_kernels")
    if tests.is_file():
        steps.append(Step("parity", tests.name, tests.name, lambda m: parity_tests(m, tests)))
    return steps


def real_steps(machine, small):
    """Cases of real size, which take long on the CPU."""
    names = [] if small else names_of(machine, "--real")
    words = ("--real", "--filter")
    return [selftest("parity", name, *words, "=" + name, limit=240) for name in names]


def parity_tests(machine, tests):
    """Tests of the test program that are not Cases, which the selftest covers."""
    ran = machine.run([tests, "--gtest_filter=CudaAttention.*:Cuda.*"])
    ends = [line for line in ran.lines() if "PASSED" in line or line.endswith("listed below:")]
    figure = "; ".join(line.strip("[ :]") for line in ends)
    ran.expect_success(figure)
    if not re.search(r"PASSED +\] [1-9]", ran.text):
        raise Failure("no test ran", figure)
    return figure


SETS = ("hf", "train")


WORST = re.compile(r"^\s+(\S.*?)\s+\d+ compared, worst error (\S+) of (\S+) allowed", re.MULTILINE)


def verify(folder, *words):
    def run(machine):
        for name in SETS:  # a trajectory starts from a model of hf, stored beside it
            vectors_of(name)
        path = vectors_of(folder.split("/")[0]).parent / folder
        threads = ("--threads", max(1, machine.threads // (2 if words else 1)))
        ran = machine.megatron("verify", "--device", "cuda", path, *words, *threads, cwd=ROOT)
        worst = [f"{what} {error} of {allowed}" for what, error, allowed in WORST.findall(ran.text)]
        figure = "; ".join(worst[:12] + ran.lines()[-1:]).strip()
        ran.expect_success(figure if worst else "")
        return figure

    said = f"megatron verify --device cuda {folder} {shlex.join(words)}".rstrip()
    return Step("parity", f"verify {' '.join([folder, *words])}", said, run)


def verify_steps(machine, small):
    if small:
        return [verify("hf/gpt2")]
    folders = [
        f"{name}/{p.name}"
        for name in SETS
        for p in sorted(vectors_of(name).iterdir())
        if p.is_dir()
    ]
    steps = [verify(folder) for folder in folders]
    for flag in ("--tensor-model-parallel-size", "--pipeline-model-parallel-size"):
        steps.append(verify("hf/llama", flag, "2"))
    return steps


def sanitizer():
    for place in (shutil.which("compute-sanitizer"), "/usr/local/cuda/bin/compute-sanitizer"):
        if place and os.access(place, os.X_OK):
            return place
    raise NotRun("there is no compute-sanitizer here")


def sanitize(machine, tool, check):
    command = [sanitizer(), "--tool", tool, "--error-exitcode", "77", machine.program]
    words = ("selftest", "--device", "cuda", "--filter", check, "--threads", machine.threads)
    ran = machine.run([*command, *words])
    refused = re.search(
        r"^=+ .*(not supported|LibraryNotLoaded|not permitted|error 999).*", ran.text, re.MULTILINE
    )
    if refused and "ERROR SUMMARY: 0 errors" not in ran.text:
        raise NotRun("this machine does not allow it: " + refused.group(0).strip(" ="))
    if ran.ended:
        ran.expect_success()
    if ran.code != 0 or "SUMMARY" not in ran.text:
        said = [line.strip(" =") for line in ran.lines() if line.startswith("=====")]
        raise Failure("; ".join([*said[1:3], ran.why()]))
    return next(line.strip(" =") for line in reversed(ran.lines()) if "SUMMARY" in line)


def sanitizer_steps(machine, small):
    steps = []
    for tool in ("memcheck",) if small else ("memcheck", "racecheck"):
        for check in SANITIZED[:1] if small else SANITIZED:
            command = (
                f"compute-sanitizer --tool {tool} megatron selftest --device cuda --filter {check}"
            )
            steps.append(
                Step(
                    "parity",
                    f"{tool}, {check}",
                    command,
                    lambda m, t=tool, c=check: sanitize(m, t, c),
                    limit=180,
                )
            )
    return steps


def layout_steps(machine, small):
    """One step per row. small: only checks the messages."""
    rows = names_of(machine, "--layouts")
    steps = []
    for place, row in enumerate(rows[:1] if small else rows):
        words = ["--layouts", "--part", f"{place}/{len(rows)}"] + (["--list"] if small else [])
        steps.append(selftest("layouts", row, *words))
    return steps
