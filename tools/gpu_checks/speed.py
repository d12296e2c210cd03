"""Times of kernels, training steps and generation."""

import json
import os
import re
import shlex
import time

from gpu_checks.machine import ROOT, Failure, Step, vectors_of
from gpu_checks.runs import records_of

# Model, sequence, micro-batch, sequences a step, and the seconds that 25 steps likely take.
TARGETS = (("llama-8b", 4096, 1, 8, 140), ("gpt2-1558m", 1024, 8, 32, 45))
OTHERS = (
    ("gpt2-124m", 1024, 32, 128, 25),
    ("llama-1b", 4096, 4, 16, 55),
    ("llama-3b", 4096, 2, 8, 70),
    ("llama-8b", 8192, 1, 4, 150),
    ("gpt2-1558m", 4096, 2, 8, 45),
    ("gpt2-124m", 4096, 8, 32, 25),
    ("llama-1b", 8192, 2, 8, 55),
    ("llama-3b", 8192, 1, 4, 70),
    ("llama-8b", 1024, 4, 32, 140),
    ("gpt2-1558m", 8192, 1, 4, 50),
    ("gpt2-124m", 8192, 4, 16, 30),
    ("llama-1b", 1024, 16, 64, 50),
    ("llama-3b", 1024, 8, 32, 65),
)
TEXT = ("--data-path", "docs_text_document")
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
    source = folder / "docs.jsonl"
    if small:
        fixed = vectors_of("indexed") / "preprocess"
        source, tokenizer = fixed / "corpus.jsonl", fixed / "tokenizer_bpe2k"
    else:
        tokenizer = vectors_of("tokenizers") / "real/gpt2"
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
    said = figures(machine.megatron(*words, *more), "step time|tokens/s|floor|clock")
    losses = [loss for _, (loss, _) in sorted(records_of(log).items())]
    if not losses[-1] < losses[0]:
        raise Failure(f"the loss did not fall: {losses[0]} to {losses[-1]}")
    said.append(f"loss of text {losses[0]:.2f} to {losses[-1]:.2f}")
    return "; ".join(said + ([f"published: {published}"] if published else []))


def timed(name, words, run, likely):
    limit = max(120, 2 * likely)
    return Step("speed", name, "megatron " + shlex.join(words), run, limit, likely)


def bench(name, words, pattern, likely):
    def run(machine):
        return "<br>".join(figures(machine.megatron(*words), pattern))

    return timed(name, words, run, likely)


def model_step(model, length, micro, batch, likely, small=""):
    words = ["bench", "step", "--device", "cuda", "--bf16", "--preset", model]
    words += ["--seq-length", str(length), "--micro-batch-size", str(micro)]
    words += [
        "--global-batch-size",
        str(batch),
        "--train-iters",
        "25",
        "--no-floor",
        *small.split(),
    ]
    published = "" if small else PUBLISHED.get((model, length))
    return timed(
        f"{model}, sequence {length}",
        [*words, *TEXT],
        lambda machine: bench_step(machine, words, published, small),
        likely,
    )


def first_step_seconds(machine, words, folder):
    """From before the process starts until its first step is logged."""
    folder.mkdir(exist_ok=True)
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    begin, stepped = time.monotonic(), []

    def watch(process, end):
        while not stepped and time.monotonic() < end:
            if log.is_file() and records_of(log):
                stepped.append(time.monotonic() - begin)
            elif process.poll() is not None:
                return
            time.sleep(0.002)

    ran = machine.megatron(*words, "--log-jsonl", log, cwd=folder, watch=watch)
    if ran.code != 0:
        raise Failure(ran.why())
    if not stepped:
        raise Failure("it logged no step")
    return stepped[0]


def launch_step(name, shape, likely, small=False):
    words = ["train", "--device", "cuda", "--bf16", *shape.split(), "--micro-batch-size", "1"]
    words += ["--train-iters", "1", "--log-interval", "1", "--lr", "1e-4", "--split", "1,0,0"]

    def run(machine):
        data = ["--data-path", text_data(machine, small), "--data-cache-path", "cache"]
        folder = machine.work / f"launch {name}"
        first, second = (first_step_seconds(machine, [*words, *data], folder) for _ in range(2))
        return f"{first:.1f} s from launch to the first step, {second:.1f} s with its index cached"

    return timed(f"launch, {name}", [*words, *TEXT], run, likely)


GPT2 = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 50257 "
EIGHT = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 "
    "--group-query-attention --num-query-groups 8 --vocab-size 128256 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --rotary-base 500000 "
    "--disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 "
    "--attention-dropout 0 --recompute-granularity selective --recompute-modules mlp layernorm "
)


def speed_steps(small):
    """What the first targets are of comes first."""
    kernels, pattern = ["bench", "kernels", "--device", "cuda"], "%|GB/s|FLOP/s|clock"
    if small:
        tiny = "--num-layers 1 --hidden-size 32 --num-attention-heads 2 --vocab-size 2048 "
        few = ["--seconds", "0.01", "--kernel", "fill"]
        return [
            model_step("gpt2-124m", 32, 2, 2, 1, tiny + "--train-iters 10 --lr 1e-2"),
            bench("kernels, fp32", [*kernels, *few], pattern, 1),
            launch_step("tiny", tiny + "--seq-length 32 --max-position-embeddings 32", 1, True),
        ]
    eight = ["bench", "step", "--device", "cuda", "--bf16", "--preset", "llama-8b"]
    return [
        *(model_step(*row) for row in TARGETS),
        bench("kernels of a step, llama-8b", [*eight, "--kernels-only"], "%|FLOP/s|GB/s", 60),
        bench("kernels, bf16", [*kernels, "--bf16"], pattern, 60),
        launch_step("GPT-2 124M", GPT2 + "--seq-length 1024 --max-position-embeddings 1024", 20),
        launch_step("Llama 8B", EIGHT + "--seq-length 4096 --max-position-embeddings 4096", 60),
        *(model_step(*row) for row in OTHERS[:3]),
        bench("kernels, fp32", kernels, pattern, 60),
        bench(
            "generation, GPT-2 124M",
            ["bench", "generate", "--device", "cuda", "--bf16"],
            "tokens/s",
            30,
        ),
        *(model_step(*row) for row in OTHERS[3:]),
    ]
