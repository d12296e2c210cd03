#!/usr/bin/env python3
"""Steps of `megatron sft` on packed chats against steps of `megatron train` of the same shape.

The model is a preset with random weights. Chats have log-normal lengths (median 300 tokens, sigma 0.9, from 16 tokens
to a row's length; drawn with a fixed seed), a quarter of them the prompt, and are packed into rows of --seq-length
tokens. The two programs take turns, round by round, each step with the same number of rows; figures are tokens/s of
the median step, without the first of each run. Of packed rows only tokens count that are not padding.

    bench/packed_chats.py --megatron build/release/megatron [--preset llama-160m] [--rounds 3] [--steps 4]
"""

import argparse
import json
import random
import re
import statistics
import string
import subprocess
import sys
import tempfile


def arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megatron", required=True, help="path of the program")
    parser.add_argument("--preset", default="llama-160m")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=4, help="timed steps of a run")
    parser.add_argument("--fp32", action="store_true", help="train in fp32 instead of bf16")
    parser.add_argument("--seq-length", type=int, default=1024)
    parser.add_argument("--micro-batch-size", type=int, default=4)
    return parser.parse_args()


def write_tokenizer(folder):
    """One token a letter, and one that ends completions."""
    end = {"id": 0, "content": "<end>", "special": True, "single_word": False, "lstrip": False, "rstrip": False,
           "normalized": False}
    vocabulary = {"<end>": 0} | {letter: i + 1 for i, letter in enumerate(string.ascii_letters)}
    with open(folder + "/tokenizer.json", "w") as file:
        json.dump({"version": "1.0", "added_tokens": [end], "normalizer": None, "pre_tokenizer": None,
                   "post_processor": None, "decoder": None,
                   "model": {"type": "BPE", "vocab": vocabulary, "merges": []}}, file)
    with open(folder + "/tokenizer_config.json", "w") as file:
        json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<end>"}, file)


def write_chats(a, folder):
    draw = random.Random(1)
    with open(folder + "/chats.jsonl", "w") as file:
        for _ in range(40 * a.micro_batch_size * (a.steps + 1)):
            length = round(min(max(300 * draw.lognormvariate(0, 0.9), 16), a.seq_length))
            text = "".join(draw.choices(string.ascii_letters, k=length - 1))  # the end token follows
            prompt = length // 4
            file.write(json.dumps({"prompt": text[:prompt], "completion": text[prompt:]}) + "\n")


def run(a, folder, name, words):
    """Tokens/s of each step but the first, and what the run printed."""
    log = f"{folder}/{name}.jsonl"
    open(log, "w").close()
    done = subprocess.run(
        [a.megatron, *words, "--preset", a.preset, "--seq-length", str(a.seq_length), "--micro-batch-size",
         str(a.micro_batch_size), "--global-batch-size", str(a.micro_batch_size), "--train-iters", str(a.steps + 1),
         "--lr", "1e-4", "--log-interval", "1", "--log-jsonl", log] + ([] if a.fp32 else ["--bf16"]),
        capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit(done.stdout + done.stderr)
    with open(log) as lines:
        steps = [record for record in map(json.loads, lines) if record["type"] == "step"]
    return [step["tokens_per_second"] for step in steps[1:]], done.stderr


def main():
    a = arguments()
    speeds = {"train": [], "sft, packed": []}
    with tempfile.TemporaryDirectory() as folder:
        write_tokenizer(folder)
        write_chats(a, folder)
        for _ in range(a.rounds):
            plain, _ = run(a, folder, "train", ["train", "--mock-data"])
            packed, printed = run(a, folder, "sft", ["sft", "--data-path", folder + "/chats.jsonl",
                                                     "--tokenizer-model", folder])
            filled = float(re.search(r"([\d.]+)% of them filled", printed).group(1)) / 100
            speeds["train"] += plain
            speeds["sft, packed"] += [speed * filled for speed in packed]
            print(f"train {statistics.median(plain):.0f} tokens/s, packed {statistics.median(packed):.0f} tokens/s, "
                  f"{100 * filled:.1f}% of them filled", flush=True)
    for name, values in speeds.items():
        print(f"{name:<12} {statistics.median(values):8.1f} tokens/s   ({min(values):.1f} to {max(values):.1f})")
    print(f"packed chats at {statistics.median(speeds['sft, packed']) / statistics.median(speeds['train']):.3f} of the "
          "rate of pretraining, padding not counted")


main()
