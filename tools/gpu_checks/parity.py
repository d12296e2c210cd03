"""Kernels, gradients, models, layouts and models of other systems, and compute-sanitizer."""

import os
import re
import shlex
import shutil

from gpu_checks.machine import ROOT, Failure, NotRun, Step, vectors_of

SMALL_CHECKS = ("=kernels/fill", "=kernels/unit_norm", "=gradients/add", "=model/gpt2 fp32")
SANITIZED = ("kernels/softmax", "kernels/add_layer_norm_backward", "kernels/sum_of_squares")


def selftest(part, name, *words, limit=120):
    words = ["selftest", "--device", "cuda", *words]

    def run(machine):
        ran = machine.megatron(*words)
        if ran.code != 0:
            raise Failure(ran.why())
        said = [re.sub(r"^ok +\S.*? {2,}", "", line) for line in ran.lines() if line[:2] == "ok"]
        rows = [line.strip() for line in ran.lines() if "worst of" in line]
        return (rows or said)[0].strip() if len(said) == 1 else ran.lines()[-1].strip()

    return Step(part, name, "megatron " + shlex.join(words), run, limit)


def names_of(machine, *words):
    ran = machine.megatron("selftest", "--list", "--device", "cuda", *words)
    if ran.code != 0:
        raise SystemExit("gpu_check: the program lists no checks: " + ran.why())
    return ran.lines()


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
    """Cases of real size, which the CPU takes long for."""
    names = [] if small else names_of(machine, "--real")
    words = ("--real", "--filter")
    return [selftest("parity", name, *words, "=" + name, limit=240) for name in names]


def parity_tests(machine, tests):
    """Those of the test program that are no Cases, which the selftest has."""
    ran = machine.run([tests, "--gtest_filter=CudaAttention.*:Cuda.*"])
    if ran.code != 0:
        raise Failure(ran.why())
    ends = [line for line in ran.lines() if "PASSED" in line or line.endswith("listed below:")]
    return "; ".join(line.strip("[ :]") for line in ends)


SETS = ("hf", "train")


def verify(folder, *words):
    def run(machine):
        for name in SETS:  # a trajectory begins at a model of hf, which lies beside it
            vectors_of(name)
        path = vectors_of(folder.split("/")[0]).parent / folder
        ran = machine.megatron("verify", "--device", "cuda", path, *words, cwd=ROOT)
        if ran.code != 0:
            raise Failure(ran.why())
        return ran.lines()[-1].strip()

    said = f"megatron verify --device cuda {folder} {shlex.join(words)}".rstrip()
    return Step("parity", f"verify {' '.join([folder, *words])}", said, run)


def verify_steps(small):
    if small:
        return [verify("hf/gpt2")]
    try:
        folders = [
            f"{name}/{p.name}"
            for name in SETS
            for p in sorted(vectors_of(name).iterdir())
            if p.is_dir()
        ]
    except NotRun:
        folders = SETS  # whose steps say why
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
    ran = machine.run([*command, "selftest", "--device", "cuda", "--filter", check])
    refused = re.search(r".*(not supported|LibraryNotLoaded|not permitted|error 999).*", ran.text)
    if refused and "ERROR SUMMARY: 0 errors" not in ran.text:
        raise NotRun("this machine does not allow it: " + refused.group(0).strip(" ="))
    if ran.code != 0 or "SUMMARY" not in ran.text:
        said = [line.strip(" =") for line in ran.lines() if line.startswith("=====")]
        raise Failure("; ".join([*said[1:3], ran.why()]))
    return next(line.strip(" =") for line in reversed(ran.lines()) if "SUMMARY" in line)


def sanitizer_steps(small):
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
    """A row each. In small: are the words right?"""
    rows = names_of(machine, "--layouts")
    steps = []
    for place, row in enumerate(rows[:1] if small else rows):
        words = ["--layouts", "--part", f"{place}/{len(rows)}"] + (["--list"] if small else [])
        steps.append(selftest("layouts", row, *words))
    return steps
