#!/usr/bin/env python3
"""The training step of `megatron bench step` against the same step in PyTorch on this CPU.

GPT-2 124M, sequence 1024, micro-batch 4, AdamW, gradients clipped at norm 1, no dropout, random tokens. PyTorch runs in
fp32, in bf16 (parameters and AdamW's moments in bf16: its fastest form), under bf16 autocast with fp32 parameters, and in
bf16 with torch.compile. The two take turns, round by round, each in a process of its own; figures are tokens/s of the
median step, the first of each process left out. With --instruction-set avx2 both keep to AVX2 (ATEN_CPU_CAPABILITY,
ONEDNN_MAX_CPU_ISA and MKL_ENABLE_INSTRUCTIONS hold PyTorch and its libraries to it).

    bench/pytorch_step.py --megatron build/release/megatron [--rounds 3] [--steps 3] [--modes fp32,bf16,...]
"""

import argparse
import importlib.util
import os
import re
import statistics
import subprocess
import sys
import time

MODES = ["fp32", "bf16", "bf16-autocast", "bf16-compiled"]


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True, help="path of the program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=3, help="timed steps of a round")
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    parser.add_argument("--instruction-set", choices=["auto", "avx2"], default="auto")
    parser.add_argument("--modes", default=",".join(MODES), help="of PyTorch")
    parser.add_argument("--num-layers", type=int, default=12)
    parser.add_argument("--hidden-size", type=int, default=768)
    parser.add_argument("--num-attention-heads", type=int, default=12)
    parser.add_argument("--vocab-size", type=int, default=50257)
    parser.add_argument("--seq-length", type=int, default=1024)
    parser.add_argument("--micro-batch-size", type=int, default=4)
    parser.add_argument("--only", choices=MODES, help=argparse.SUPPRESS)
    return parser.parse_args()


def build(torch, a):
    nn, functional = torch.nn, torch.nn.functional

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            h = a.hidden_size
            self.norm1, self.norm2 = nn.LayerNorm(h), nn.LayerNorm(h)
            self.qkv, self.out = nn.Linear(h, 3 * h), nn.Linear(h, h)
            self.up, self.down = nn.Linear(h, 4 * h), nn.Linear(4 * h, h)

        def forward(self, x):
            b, s, h = x.shape
            heads = self.qkv(self.norm1(x)).view(b, s, 3, a.num_attention_heads, -1)
            q, k, v = heads.permute(2, 0, 3, 1, 4)
            y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(b, s, h))
            return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))

    class Gpt2(nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = nn.Embedding(a.vocab_size, a.hidden_size)
            self.positions = nn.Embedding(a.seq_length, a.hidden_size)
            self.layers = nn.ModuleList(Layer() for _ in range(a.num_layers))
            self.norm = nn.LayerNorm(a.hidden_size)
            self.apply(self.initialize)

        @staticmethod
        def initialize(module):
            if isinstance(module, (nn.Linear, nn.Embedding)):
                nn.init.normal_(module.weight, std=0.02)

        def forward(self, ids, labels):
            x = self.tokens(ids) + self.positions.weight
            for layer in self.layers:
                x = layer(x)
            logits = functional.linear(self.norm(x), self.tokens.weight)  # tied
            return functional.cross_entropy(logits.view(-1, a.vocab_size).float(), labels.view(-1))

    return Gpt2()


def pytorch_steps(a, mode):
    """Prints tokens/s of each timed step."""
    import torch

    if a.threads:
        torch.set_num_threads(a.threads)
    torch.manual_seed(1)
    model = build(torch, a)
    if mode in ("bf16", "bf16-compiled"):
        model = model.to(torch.bfloat16)
    run = torch.compile(model) if mode == "bf16-compiled" else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.999), weight_decay=0.01)
    shape = (a.micro_batch_size, a.seq_length)
    for step in range(a.steps + 1):
        ids, labels = (torch.randint(a.vocab_size, shape) for _ in range(2))
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=mode == "bf16-autocast"):
            loss = run(ids, labels)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        loss = loss.item()
        if step > 0:
            print(shape[0] * shape[1] / (time.perf_counter() - begin), flush=True)


def pytorch(a, mode):
    command = [sys.executable, __file__] + sys.argv[1:] + ["--only", mode]
    held = dict(os.environ)
    if a.instruction_set == "avx2":
        held |= {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
    done = subprocess.run(command, capture_output=True, text=True, env=held)
    if done.returncode != 0:
        last = done.stderr.strip().splitlines()[-1:] or ["no message"]
        print(f"PyTorch {mode}: left out: {last[0]}", flush=True)
        return []
    return [float(line) for line in done.stdout.split()]


def megatron(a, bf16):
    command = [a.megatron, "bench", "step", "--no-floor", "--train-iters", str(a.steps + 1)]
    for name in ("num_layers", "hidden_size", "num_attention_heads", "vocab_size", "seq_length", "micro_batch_size"):
        command += ["--" + name.replace("_", "-"), str(getattr(a, name))]
    if a.threads:
        command += ["--threads", str(a.threads)]
    command += ["--instruction-set", a.instruction_set]
    if bf16:
        command.append("--bf16")
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    line = re.search(r"^(\d+) tokens/s.*GEMM peak.*$", done.stdout, re.M)
    print("megatron:", line.group(0), flush=True)
    return [float(line.group(1))]


def main():
    a = arguments()
    if importlib.util.find_spec("torch") is None:
        print("PyTorch is not installed for", sys.executable + ": nothing to compare with")
        return
    if a.only:
        pytorch_steps(a, a.only)
        return
    modes = a.modes.split(",")
    if not set(modes) <= set(MODES):
        sys.exit(f"--modes is {a.modes}; known: {', '.join(MODES)}")
    speeds = {}
    for _ in range(a.rounds):
        for mode in list(modes):
            measured = pytorch(a, mode)
            if not measured:
                modes.remove(mode)
            speeds.setdefault("PyTorch " + mode, []).extend(measured)
        for kind in sorted({mode.split("-")[0] for mode in modes}):
            speeds.setdefault("megatron " + kind, []).extend(megatron(a, kind == "bf16"))
    import torch

    print(f"PyTorch {torch.__version__}, {a.threads or torch.get_num_threads()} threads; tokens/s, median of all rounds")
    medians = {name: statistics.median(values) for name, values in speeds.items() if values}
    for name, value in medians.items():
        low, high = min(speeds[name]), max(speeds[name])
        print(f"{name:<24} {value:8.1f}   ({low:.1f} to {high:.1f})")
    for kind in ("fp32", "bf16"):
        others = {name: v for name, v in medians.items() if name.startswith("PyTorch " + kind)}
        if others and "megatron " + kind in medians:
            best = max(others, key=others.get)
            print(f"megatron {kind} is {medians['megatron ' + kind] / others[best]:.2f} times {best}")


if __name__ == "__main__":
    main()
