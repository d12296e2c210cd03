#!/usr/bin/env python3
"""The scan of Mamba-2 in `megatron bench kernels` against the fastest batched product of its shapes in PyTorch on this
CPU: chunks of 64 tokens, heads of 64 inputs with 128 states, the heads of all chunks as one torch.bmm.

The two take turns, round by round. Printed is FLOP/s, the median of the rounds, and for the products the fastest of the
three shapes. The FLOPs of a scan are those of its products; those above the diagonal count as the kernel's cost does.

    bench/pytorch_scan.py --megatron build/release/megatron [--rounds 3] [--threads 0]
"""

import argparse
import json
import statistics
import subprocess
import sys
import time

KERNELS = ("state_scan", "state_scan_backward")
CHUNK, WIDTH, STATES, HEADS, TOKENS = 64, 64, 128, 80, 2048  # of Mamba-2 2.7B
SHAPES = {  # m, k, n
    "masked matrix x inputs": (CHUNK, CHUNK, WIDTH),
    "inputs x b": (WIDTH, CHUNK, STATES),
    "c x state": (CHUNK, STATES, WIDTH),
}


def products(torch, kind, seconds=0.5):
    """FLOP/s of each shape."""
    dtype = torch.bfloat16 if kind == "bf16" else torch.float32
    batch, rates = HEADS * TOKENS // CHUNK, {}
    for name, (m, k, n) in SHAPES.items():
        a, b = (torch.randn(batch, *size).to(dtype) for size in ((m, k), (k, n)))
        out, times = torch.bmm(a, b), []
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            begin = time.perf_counter()
            torch.bmm(a, b, out=out)
            times.append(time.perf_counter() - begin)
        rates[name] = 2 * batch * m * k * n / statistics.median(times)
    return rates


def scans(a, kind):
    """FLOP/s of each kernel, at the first of its sizes."""
    rates = {}
    for kernel in KERNELS:
        command = [a.megatron, "bench", "kernels", "--kernel", kernel, "--json", "--seconds", "1"]
        command += (["--bf16"] if kind == "bf16" else []) + (["--threads", str(a.threads)] if a.threads else [])
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(done.stdout + done.stderr)
        row = json.loads(done.stdout)["kernels"][0]
        rates[kernel] = row["flops"] / row["seconds"]
    return rates


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True, help="path of the program")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=0, help="0: all cores")
    a = parser.parse_args()
    try:
        import torch
    except ImportError:
        return print("PyTorch is not installed for", sys.executable + ": nothing to compare with")
    if a.threads:
        torch.set_num_threads(a.threads)
    for kind in ("fp32", "bf16"):
        best, found = [], {kernel: [] for kernel in KERNELS}
        for _ in range(a.rounds):
            best.append(max(products(torch, kind).values()))
            for kernel, rate in scans(a, kind).items():
                found[kernel].append(rate)
        limit = statistics.median(best)
        print(f"{kind}: batched products {limit / 1e9:.0f} GFLOP/s ({min(best) / 1e9:.0f} to {max(best) / 1e9:.0f})")
        for kernel, rates in found.items():
            print(f"  {kernel:<20} {statistics.median(rates) / 1e9:.0f} GFLOP/s ({min(rates) / 1e9:.0f} to "
                  f"{max(rates) / 1e9:.0f}), {statistics.median(rates) / limit:.2f} of them", flush=True)


if __name__ == "__main__":
    main()
