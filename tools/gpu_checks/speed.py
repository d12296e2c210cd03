"""Times of kernels, training steps and generation."""

import json
import os
import re
import shlex

from gpu_checks.machine import ROOT, VECTORS, Failure, Step
from gpu_checks.runs import records_of

# Model, sequence, micro-batch, sequences a step, more flags; those that matter most first.
EIGHT = "--recompute-granularity selective"
SPEEDS = (
    ("llama-8b", 4096, 1, 8, EIGHT),
    ("gpt2-1558m", 1024, 8, 32, ""),
    ("gpt2-124m", 1024, 32, 128, ""),
    ("llama-1b", 4096, 4, 16, ""),
    ("llama-3b", 4096, 2, 8, ""),
    ("llama-8b", 8192, 1, 4, EIGHT),
    ("gpt2-1558m", 4096, 2, 8, ""),
    ("gpt2-124m", 4096, 8, 32, ""),
    ("llama-1b", 8192, 2, 8, ""),
    ("llama-3b", 8192, 1, 4, ""),
    ("llama-8b", 1024, 4, 32, EIGHT),
    ("gpt2-1558m", 8192, 1, 4, ""),
    ("gpt2-124m", 8192, 4, 16, ""),
    ("llama-1b", 1024, 16, 64, ""),
    ("llama-3b", 1024, 8, 32, ""),
)
PUBLISHED = {  # for each GPU
    ("gpt2-124m", 1024): "llm.c on 8 H100: about 475,000 tokens/s",
    ("gpt2-1558m", 1024): "llm.c on 8 H100: 46,800 to 48,500 tokens/s, 46 to 48%",
    ("llama-1b", 4096): "nanotron on 8 H100, 1.34B: 44%",
    ("llama-3b", 4096): "nanotron on 8 H100, 3.57B: 47%",
    ("llama-8b", 4096): "nanotron on 8 H100, 8.86B: 45%",
    ("llama-8b", 8192): "torchtitan on 8 H100: 6,667 tokens/s, 39%",
}


def text_data(machine, small):
    """Pages and sources of this tree in GPT-2's tokens (in small: a fixed text)."""
    folder = machine.work / "text"
    prefix = folder / "docs_text_document"
    if prefix.with_suffix(".bin").is_file():
        return prefix
    folder.mkdir(exist_ok=True)
    source, tokenizer = folder / "docs.jsonl", VECTORS / "tokenizers/real/gpt2"
    if small:
        fixed = VECTORS / "indexed/preprocess"
        source, tokenizer = fixed / "corpus.jsonl", fixed / "tokenizer_bpe2k"
    else:
        patterns = ("*.md", "docs/**/*.md", "src/**/*.h", "src/**/*.cpp")
        pages = [p.read_bytes() for pattern in patterns for p in sorted(ROOT.glob(pattern))]
        lines = [json.dumps({"text": page.decode(errors="replace")}) for page in pages]
        source.write_text("\n".join(lines) + "\n", encoding="utf-8")
    words = ["preprocess", "--input", source, "--output-prefix", "docs", "--append-eod"]
    ran = machine.megatron(*words, "--tokenizer-model", tokenizer, cwd=folder)
    if ran.code != 0:
        raise Failure("preprocess: " + ran.why())
    return prefix


def figures(ran, pattern):
    if ran.code != 0:
        raise Failure(ran.why())
    logged = re.compile(r"\d\d:\d\d:\d\d |iteration |training \[")
    lines = [line.strip() for line in ran.lines() if not logged.match(line.strip())]
    found = [line for line in lines if re.search(pattern, line)]
    if not found:
        raise Failure("it printed no figure")
    return found


def bench_step(machine, words, published, small):
    text = text_data(machine, small)
    log = machine.work / f"bench {len(os.listdir(machine.work))}.jsonl"
    more = ["--data-path", text, "--split", "1,0,0", "--log-jsonl", log]
    said = figures(machine.megatron(*words, *more, limit=300), "step time|tokens/s|floor|clock")
    losses = [loss for _, (loss, _) in sorted(records_of(log).items())]
    if not losses[-1] < losses[0]:
        raise Failure(f"the loss did not fall: {losses[0]} to {losses[-1]}")
    said.append(f"loss of text {losses[0]:.2f} to {losses[-1]:.2f}")
    return "; ".join(said + ([f"published: {published}"] if published else []))


def bench(name, words, pattern):
    def run(machine):
        return "<br>".join(figures(machine.megatron(*words, limit=300), pattern))

    return Step("speed", name, "megatron " + shlex.join(words), run, alone=True)


def speed_steps(small):
    few = ["--seconds", "0.01", "--kernel", "fill"] if small else []
    kernels = "%|GB/s|FLOP/s|clock"
    steps = [
        bench("kernels, bf16", ["bench", "kernels", "--device", "cuda", "--bf16", *few], kernels),
        bench("kernels, fp32", ["bench", "kernels", "--device", "cuda", *few], kernels),
    ]
    speeds = SPEEDS
    if small:
        tiny = (
            "--num-layers 1 --hidden-size 32 --num-attention-heads 2 --vocab-size 2048 "
            "--train-iters 10 --lr 1e-2"
        )
        speeds, steps = (("gpt2-124m", 32, 2, 2, tiny),), steps[1:]
    for place, (model, length, micro, batch, flags) in enumerate(speeds):
        words = ["bench", "step", "--device", "cuda", "--bf16", "--preset", model]
        words += ["--seq-length", str(length), "--micro-batch-size", str(micro)]
        words += ["--global-batch-size", str(batch), "--train-iters", "25", *flags.split()]
        if small or place > 0:
            words.append("--no-floor")
        published = "" if small else PUBLISHED.get((model, length))
        step = Step(
            "speed",
            f"{model}, sequence {length}",
            "megatron " + shlex.join(words) + " --data-path docs_text_document",
            lambda m, w=words, p=published: bench_step(m, w, p, small),
            alone=True,
        )
        steps.insert(place if place < 3 else len(steps), step)
    if not small:
        words = ["bench", "generate", "--device", "cuda", "--bf16"]
        steps.append(bench("generation, GPT-2 124M", words, "tokens/s"))
    return steps
