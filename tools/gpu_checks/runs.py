"""Whole runs: against losses that were recorded on a CPU, run twice, killed and resumed."""

import functools
import json
import math
import os
import re
import shutil
import signal
import tempfile
import time

from gpu_checks.machine import ROOT, Failure, Machine, vectors_of
from gpu_checks.output import Output
from gpu_checks.steps import Step

# Losses of each run on a CPU, in fp32 and in 16 bits, with its flags, from `gpu_check record`.
RECORD = ROOT / "tools/gpu_checks/losses.json"
TEXT = "tests/golden/vectors/indexed"  # as recorded

# The last value of a flag counts.
DATA = f"--data-path {TEXT}/preprocess/bpe2k_eod_text_document --data-cache-path cache"
MOCK = "--mock-data"
SHAPE = (
    "--num-layers 4 --hidden-size 256 --num-attention-heads 8 --seq-length 256 "
    "--max-position-embeddings 256 --micro-batch-size 2 --global-batch-size 8 --lr 1e-3 "
    "--lr-decay-iters 16 --lr-warmup-iters 2 --train-iters 16"
)
SMALL_SHAPE = (
    "--num-layers 2 --hidden-size 32 --num-attention-heads 4 --seq-length 32 "
    "--max-position-embeddings 32 --micro-batch-size 1 --global-batch-size 2 --lr 1e-3 "
    "--lr-decay-iters 8 --train-iters 3"
)
LLAMA = (
    "--swiglu --normalization RMSNorm --position-embedding-type rope --disable-bias-linear "
    "--untie-embeddings-and-output-weights --group-query-attention --num-query-groups 2 "
    "--hidden-dropout 0 --attention-dropout 0"
)
RUNS = {
    "gpt fp32": MOCK,
    "gpt bf16": f"{MOCK} --bf16",
    "gpt fp16, dynamic loss scale": f"{MOCK} --fp16 --initial-loss-scale 65536",
    "llama fp32": f"{MOCK} {LLAMA}",
    "llama bf16": f"{MOCK} {LLAMA} --bf16",
    "llama fp16": f"{MOCK} {LLAMA} --fp16 --initial-loss-scale 65536",
    "documents": f"{MOCK} --reset-attention-mask --reset-position-ids --eod-mask-loss",
    "text": f"{DATA} --tokenizer-model {TEXT}/preprocess/tokenizer_bpe2k --split 1,0,0",
    "tensor parallel 2": f"{MOCK} --tensor-model-parallel-size 2 --sequence-parallel",
    "pipeline parallel 2": f"{MOCK} {LLAMA} --pipeline-model-parallel-size 2",
    "sharded, 2 ranks": f"{MOCK} {LLAMA} --ranks 2 --use-megatron-fsdp "
    "--data-parallel-sharding-strategy optim_grads_params",
    "recompute": f"{MOCK} --recompute-granularity full --recompute-method uniform "
    "--recompute-num-layers 1",
    "activations offloaded": f"{MOCK} {LLAMA} --cpu-offloading-num-layers 1",
    "optimizer offloaded": f"{MOCK} --optimizer-cpu-offload --use-distributed-optimizer",
}
SMALL_RUNS = ("gpt fp32", "llama bf16")


def train_words(name, small, device):
    shape = SMALL_SHAPE if small else SHAPE
    words = ["train", "--device", device, *shape.split(), *RUNS[name].split()]
    return words + (["--vocab-size", "203" if small else "2011"] if MOCK in words else [])


def records_of(path):
    """The last record of each step of a log, in order."""
    steps = {}
    if not path.is_file():
        return steps
    for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
        try:
            record = json.loads(line)
        except ValueError:
            continue  # an incomplete line of a killed run
        if record.get("type") == "step":
            steps[record["iteration"]] = record
    return dict(sorted(steps.items()))


def losses_of(path):
    """Returns loss and gradient norm of each step of a log."""
    return {i: [r["loss"], r["gradient_norm"]] for i, r in records_of(path).items()}


def described(steps):
    losses = [f"{loss:.4f}" if loss is not None else "none" for loss, _ in steps.values()]
    return f"{len(losses)} losses, {losses[0]} to {losses[-1]}" if losses else ""


def threads_of(machine, words):
    """CPU threads per rank, of those that one check may use."""
    ranks = 1
    for flag in ("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--ranks"):
        if flag in words:
            ranks *= int(words[words.index(flag) + 1])
    return max(1, machine.threads // ranks)


def train(machine, words, folder, watch=None):
    """Returns loss and gradient norm of each step."""
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "log.jsonl"
    if any(TEXT in str(word) for word in words):
        words = [str(word).replace(TEXT, str(vectors_of("indexed"))) for word in words]
    words = [
        *words,
        "--log-interval",
        "1",
        "--threads",
        threads_of(machine, words),
        "--log-jsonl",
        log,
    ]
    ran = machine.megatron(*words, cwd=folder, watch=watch)
    steps = losses_of(log)
    if ran.ended or not (watch and ran.code == -signal.SIGKILL):
        ran.expect_success(described(steps))
    return steps


def empty_folder(machine, name):
    """Removes the files of an earlier try first."""
    folder = machine.work / name
    shutil.rmtree(folder, ignore_errors=True)
    return folder


def key_of(name, small):
    return name + (", small" if small else "")


def portable(words):
    """Returns the flags as recorded, without the device."""
    return " ".join(words[3:])


def tolerance(name):
    text = (ROOT / "src/base/tolerances.h").read_text(encoding="utf-8")
    found = re.search(rf"{name} = ([0-9.e-]+);", text)
    if not found:
        raise Failure(f"src/base/tolerances.h has no {name}")
    return float(found.group(1))


def compare_losses(machine, name, small):
    words = train_words(name, small, machine.device)
    recorded = json.loads(RECORD.read_text(encoding="utf-8")).get(key_of(name, small))
    if recorded is None or recorded["flags"] != portable(words):
        raise Failure(f"{RECORD.name} has no losses of these flags; run tools/gpu_check record")
    steps = train(machine, words, empty_folder(machine, f"losses {key_of(name, small)}"))
    wanted = recorded["losses"]
    narrow = "bf16" in recorded["flags"] or "fp16" in recorded["flags"]
    bound = tolerance("kCudaNarrowLossRelative" if narrow else "kCudaLossRelative")
    errors = {
        step: abs(loss - wanted[step - 1]) / abs(wanted[step - 1]) if loss else math.inf
        for step, (loss, _) in steps.items()
        if step <= len(wanted)
    }
    worst = max(errors.values(), default=math.inf)
    figure = f"{described(steps)}, within {worst:.1e} of the CPU's ({bound:.1e} is allowed)"
    if len(steps) != len(wanted):
        raise Failure(f"{len(steps)} steps were logged, {len(wanted)} are recorded", figure)
    for step, error in errors.items():
        if not error <= bound:
            why = f"step {step}: loss {steps[step][0]}, on a CPU {wanted[step - 1]}"
            raise Failure(f"{why}: apart by {error:.1e} of it", figure)
    return figure


def same_steps(name, first, second):
    for step in sorted(first.keys() | second.keys()):
        if first.get(step) != second.get(step):
            why = f"{name}: step {step} has {first.get(step)} and {second.get(step)}"
            raise Failure(why, f"{described(first)}; {described(second)}")


def run_twice(machine, name, small):
    words = train_words(name, small, machine.device)
    first, second = (
        train(machine, words, empty_folder(machine, f"twice {name} {i}")) for i in (0, 1)
    )
    same_steps("run again", first, second)
    return f"losses and gradient norms of {len(first)} steps have the same bits"


def kill_and_resume(machine, name, small):
    words = train_words(name, small, machine.device)
    folder = empty_folder(machine, f"resume {name}")
    whole = train(machine, words, folder / "whole")
    saved = [*words, "--save", "run", "--load", "run", "--save-interval", "1", "--save-keep", "2"]
    tracker = folder / "parts/run/latest_checkpointed_iteration.txt"

    def kill_after_a_save(process, end):
        while process.poll() is None and time.monotonic() < end:
            if tracker.is_file() and tracker.read_text(encoding="utf-8").strip() not in ("", "0"):
                os.killpg(process.pid, signal.SIGKILL)
                return
            time.sleep(0.002)

    begun = train(machine, saved, folder / "parts", watch=kill_after_a_save)
    if len(begun) >= len(whole):
        raise Failure("the run ended before it could be killed")
    resumed = train(machine, saved, folder / "parts")
    same_steps("resumed", whole, resumed)
    return f"killed after step {max(begun, default=0)}; all {len(whole)} steps have the same bits"


def run_steps(small):
    repeated = SMALL_RUNS[:1] if small else ("gpt fp32", "llama bf16", "sharded, 2 ranks")
    steps = []
    for what, check, names, more in (
        ("losses", compare_losses, SMALL_RUNS if small else RUNS, ""),
        ("twice", run_twice, repeated, ""),
        ("kill -9 and resume", kill_and_resume, SMALL_RUNS[small:], " --save run --load run"),
    ):
        for name in names:
            run = functools.partial(check, name=name, small=small)
            command = f"megatron {portable_command(name, small)}{more}"
            steps.append(Step("parity", f"{what}, {name}", command, run))
    return steps


def portable_command(name, small):
    return "train --device cuda " + portable(train_words(name, small, "cuda"))


def record(program, small):
    work = tempfile.TemporaryDirectory(prefix="gpu_check.")
    machine = Machine(program, Output(work.name), "cpu")
    known = json.loads(RECORD.read_text(encoding="utf-8")) if RECORD.is_file() else {}
    try:
        for form in (True,) if small else (True, False):
            for name in RUNS:
                words = train_words(name, form, "cpu")
                steps = train(machine, words, machine.work / key_of(name, form))
                losses = [steps[i + 1][0] for i in range(len(steps))]
                known[key_of(name, form)] = {"flags": portable(words), "losses": losses}
                print(f"{key_of(name, form)}: {losses[0]} to {losses[-1]}", flush=True)
        lines = [f" {json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(known.items())]
        RECORD.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    finally:
        machine.close()
        work.cleanup()
