"""What the comparisons with PyTorch share: its step and that of `megatron bench step` take turns, each in a process of
its own, and their tokens/s are printed side by side."""

import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import time


def parser(description, modes):
    """modes: names of PyTorch's modes. Each begins with the type of the megatron run it is compared with, fp32 or
    bf16."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True, help="path of the program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a round")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--instruction-set", choices=["auto", "avx2"], default="auto")
    parser.add_argument("--modes", default=",".join(modes), help="of PyTorch")
    parser.add_argument("--seq-length", type=int, default=1024)
    parser.add_argument("--micro-batch-size", type=int, default=4)
    parser.add_argument("--only", choices=modes, help=argparse.SUPPRESS)
    return parser


def draw_weights(torch, model):
    for module in model.modules():
        if isinstance(module, (torch.nn.Linear, torch.nn.Embedding)):
            torch.nn.init.normal_(module.weight, std=0.02)


def draw_ids(torch, a, vocabulary):
    """Ids and labels of one step, [micro_batch_size, seq_length] each."""
    return [torch.randint(vocabulary, (a.micro_batch_size, a.seq_length)) for _ in range(2)]


def time_steps(torch, a, model, draw, step_loss):
    """Prints the loss of the first step and tokens/s of the others. draw() returns a step's inputs; step_loss(*inputs)
    returns the loss to minimise and the cross-entropy alone. A step counts as micro_batch_size * seq_length tokens."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.999), weight_decay=0.01, fused=True)
    tokens = a.micro_batch_size * a.seq_length
    for step in range(a.steps + 1):
        inputs = draw()
        begin = time.perf_counter()
        objective, loss = step_loss(*inputs)
        objective.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()
        print(tokens / (time.perf_counter() - begin) if step > 0 else loss, flush=True)


def pytorch(a, mode):
    command = [sys.executable] + sys.argv + ["--only", mode]
    held = dict(os.environ)
    if a.instruction_set == "avx2":
        held |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    done = subprocess.run(command, capture_output=True, text=True, env=held)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        print(f"PyTorch {mode}: left out: {last[0]}", flush=True)
        return []
    loss, *speeds = (float(line) for line in done.stdout.split())
    print(f"PyTorch {mode}: {statistics.median(speeds):.0f} tokens/s, loss {loss:.4f} at the first step", flush=True)
    return speeds


def flags_of(a, *names):
    """The arguments of these names as megatron's flags."""
    return [text for name in names for text in ("--" + name.replace("_", "-"), str(getattr(a, name)))]


def megatron(a, bf16, flags):
    command = [a.megatron, "bench", "step", "--no-floor", "--plan-runs", "0", "--train-iters", str(a.steps + 1)]
    command += flags + flags_of(a, "seq_length", "micro_batch_size")
    if a.threads:
        command += ["--threads", str(a.threads)]
    command += ["--instruction-set", a.instruction_set]
    if bf16:
        command.append("--bf16")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    speed = re.search(r"^(\d+) tokens/s.*GEMM peak.*$", done.stdout, re.M)
    loss = re.search(r"^loss \S+ at the first step", done.stdout, re.M)
    print(f"megatron: {speed.group(0)}, {loss.group(0)}", flush=True)
    return [float(speed.group(1))]


def print_speeds(speeds):
    medians = {name: statistics.median(values) for name, values in speeds.items() if values}
    for name, value in medians.items():
        low, high = min(speeds[name]), max(speeds[name])
        print(f"{name:<24} {value:8.1f}   ({low:.1f} to {high:.1f})")
    for name, value in medians.items():
        kind = name.removeprefix("PyTorch ").split("-")[0]
        if name.startswith("PyTorch ") and "megatron " + kind in medians:
            print(f"megatron {kind} is {medians['megatron ' + kind] / value:.2f} times {name}")


def chosen_modes(a, known):
    modes = a.modes.split(",")
    if not set(modes) <= set(known):
        sys.exit(f"--modes is {a.modes}; known: {', '.join(known)}")
    return modes


def take_turns(a, modes, run_megatron):
    """Speeds by name. run_megatron(kind): those of megatron in the type of one or several modes."""
    speeds = {}
    for _ in range(a.rounds):
        for mode in list(modes):
            measured = pytorch(a, mode)
            if not measured:
                modes.remove(mode)
            speeds.setdefault("PyTorch " + mode, []).extend(measured)
        for kind in dict.fromkeys(mode.split("-")[0] for mode in modes):
            speeds.setdefault("megatron " + kind, []).extend(run_megatron(kind))
    return speeds


def compare(a, known, pytorch_steps, megatron_flags):
    """known: PyTorch's modes. pytorch_steps(a, mode) calls time_steps()."""
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed for", sys.executable + ": nothing to compare with")
        return
    if a.only:
        pytorch_steps(a, a.only)
        return
    speeds = take_turns(a, chosen_modes(a, known), lambda kind: megatron(a, kind == "bf16", megatron_flags))
    import torch

    threads = a.threads or torch.get_num_threads()
    print(f"PyTorch {torch.__version__}, {threads} threads; tokens/s, median of all rounds")
    print_speeds(speeds)
