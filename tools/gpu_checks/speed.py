"""Times of training steps, kernels, generation and starts."""

import functools
import shlex
import time

from gpu_checks.machine import Failure, keeping
from gpu_checks.runs import empty_folder, records_of
from gpu_checks.steps import Step
from gpu_checks.training_speed import (
    data_words,
    graphs_off_and_on,
    one_run,
    printed,
    run_if_it_fits,
)

# Model, sequence, micro-batch, sequences per step, and expected seconds of 25 steps.
EIGHT, LARGE = ("llama-8b", 4096, 1, 8, 140), ("gpt2-1558m", 1024, 8, 32, 45)
SMALLEST = ("gpt2-124m", 1024, 32, 128, 25)
OTHERS = (
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
PUBLISHED = {  # per GPU
    ("gpt2-124m", 1024): "llm.c on 8 H100: about 475,000 tokens/s",
    ("gpt2-1558m", 1024): "llm.c on 8 H100: 46,800 to 48,500 tokens/s, 46 to 48%",
    ("llama-1b", 4096): "nanotron on 8 H100, 1.34B: 44%",
    ("llama-3b", 4096): "nanotron on 8 H100, 3.57B: 47%",
    ("llama-8b", 4096): "nanotron on 8 H100, 8.86B: 45%",
    ("llama-8b", 8192): "torchtitan on 8 H100: 6,667 tokens/s, 39%",
}
LESS_MEMORY = ("--exp-avg-dtype", "bf16", "--exp-avg-sq-dtype", "bf16")
ANY_ORDER = "--allow-nondeterministic"
HALF_MOMENTS = " ".join(("--recompute-modules", "layernorm", *LESS_MEMORY))  # of llama-8b-mb2
PRODUCTS = "--recompute-modules mlp layernorm"  # of llama-8b with more than 4096 tokens
LAYERNORM = "--recompute-granularity selective --recompute-modules layernorm"
FP8 = "--fp8-format e4m3"
KERNEL_FIGURES = "%|GB/s|FLOP/s|clock"
TEXT = ("--data-path", "docs_text_document")  # as in the rows


def bench_words(model, length, micro, batch, more=""):
    words = ["bench", "step", "--device", "cuda", "--bf16", "--preset", model]
    words += ["--seq-length", str(length), "--micro-batch-size", str(micro)]
    words += ["--global-batch-size", str(batch), "--train-iters", "25", "--no-floor"]
    return words + more.split()


def timed(part, name, words, run, likely, runs=1, baseline=None):
    limit = max(120, 2 * likely) * runs
    command = "megatron " + shlex.join(map(str, words))
    return Step(part, name, command, run, limit, likely * runs, baseline)


def model_step(part, row, more="", check=one_run, runs=1, baseline=None, **given):
    model, length, micro, batch, likely = row
    words = bench_words(model, length, micro, batch, more)
    name = f"{model}, sequence {length}" + (f", {given.pop('name')}" if "name" in given else "")
    run = functools.partial(check, words=words, **given)
    return timed(part, name, [*words, *TEXT], run, likely, runs, baseline)


def bench(part, name, words, pattern, likely):
    def run(machine):
        ran = machine.megatron(*words)
        figure = "<br>".join(printed(ran, pattern))
        ran.expect_success(figure)
        if not figure:
            raise Failure("it printed no figure")
        return figure

    return timed(part, name, words, run, likely)


def first_step_seconds(machine, words, folder):
    """Seconds from before the process starts until its first step is logged."""
    folder.mkdir(exist_ok=True)
    log = folder / "log.jsonl"
    log.unlink(missing_ok=True)
    begin, stepped = time.monotonic(), []

    def watch(process, end):
        while not stepped and time.monotonic() < end:
            if records_of(log):
                stepped.append(time.monotonic() - begin)
            elif process.poll() is not None:
                return
            time.sleep(0.002)

    ran = machine.megatron(*words, "--log-jsonl", log, cwd=folder, watch=watch)
    ran.expect_success(f"{stepped[0]:.1f} s from launch to the first step" if stepped else "")
    if not stepped:
        raise Failure("it logged no step")
    return stepped[0]


def launch_step(name, shape, likely, small=False):
    words = ["train", "--device", "cuda", "--bf16", *shape.split(), "--micro-batch-size", "1"]
    words += ["--train-iters", "1", "--log-interval", "1", "--lr", "1e-4"]

    def run(machine):
        data, kind = data_words(machine, small)
        data = data if "--mock-data" in data else [*data, "--data-cache-path", "cache"]
        folder = empty_folder(machine, f"launch {name}")
        first = first_step_seconds(machine, [*words, *data], folder)
        figure = f"{first:.1f} s from launch to the first step"
        with keeping(f"{figure}, on {kind}"):
            second = first_step_seconds(machine, [*words, *data], folder)
        return f"{figure}, {second:.1f} s with its index cached, on {kind}"

    return timed("speed", f"launch, {name}", [*words, *TEXT], run, likely)


TINY = "--num-layers 1 --hidden-size 32 --num-attention-heads 2 --vocab-size 2048 "
TINY_ROW = ("gpt2-124m", 32, 2, 2, 1)
TINY_MORE = TINY + "--train-iters 10 --lr 1e-2 --plan-runs 0"


def headline_steps(small):
    """Measures the two targets and the kernels in one call. No estimates of the plan are made
    before."""
    kernels = ["bench", "kernels", "--device", "cuda"]
    if small:
        few = [*kernels, "--seconds", "0.01", "--kernel", "fill"]
        return [
            model_step("headline", TINY_ROW, TINY_MORE, small=True, instead=LESS_MEMORY),
            bench("headline", "kernels, fp32", few, KERNEL_FIGURES, 1),
        ]
    return [
        *(
            model_step(
                "headline", row, "--plan-runs 0", published=PUBLISHED[row[:2]], instead=LESS_MEMORY
            )
            for row in (EIGHT, LARGE)
        ),
        bench("headline", "kernels, bf16", [*kernels, "--bf16"], KERNEL_FIGURES, 60),
    ]


def variant_steps(small):
    """The same steps with another setting, next to the result of headline."""
    if small:
        given = {"small": True}
        return [
            model_step(
                "speed", TINY_ROW, TINY_MORE, graphs_off_and_on, 2, name="CUDA graphs", **given
            ),
            model_step(
                "speed",
                TINY_ROW,
                f"{TINY_MORE} {ANY_ORDER}",
                name="any order",
                baseline="gpt2-124m, sequence 32",
                **given,
            ),
        ]
    steps = [
        model_step(
            "speed",
            SMALLEST,
            "--plan-runs 0",
            graphs_off_and_on,
            2,
            name="CUDA graphs",
            published=PUBLISHED[SMALLEST[:2]],
        )
    ]
    for row in (LARGE, EIGHT):
        baseline = f"{row[0]}, sequence {row[1]}"
        steps.append(model_step("speed", row, ANY_ORDER, name="any order", baseline=baseline))
    baseline = "llama-8b, sequence 4096"
    parts = {"name": "attention in parts of 768 MiB", "baseline": baseline}
    steps.append(model_step("speed", EIGHT, "--attention-workspace-mib 768", **parts))
    tuned = {"name": "GEMM tuning", "baseline": baseline}
    steps.append(model_step("speed", EIGHT, "--gemm-tuning on", **tuned))
    for recipe in ("delayed", "tensorwise", "blockwise"):
        fp8 = {"name": f"fp8, {recipe}", "baseline": baseline}
        steps.append(model_step("speed", EIGHT, f"{FP8} --fp8-recipe {recipe}", **fp8))
    two = ("llama-8b", 4096, 2, 8, 140)
    fit = {"check": run_if_it_fits, "baseline": baseline}
    steps.append(model_step("speed", EIGHT, LAYERNORM, name="layernorm recomputed", **fit))
    steps.append(model_step("speed", two, HALF_MOMENTS, name="micro-batch 2", **fit))
    return steps


GPT2 = "--num-layers 12 --hidden-size 768 --num-attention-heads 12 --vocab-size 50257 "
LLAMA_8B = (
    "--num-layers 32 --hidden-size 4096 --num-attention-heads 32 --ffn-hidden-size 14336 "
    "--group-query-attention --num-query-groups 8 --vocab-size 128256 --swiglu "
    "--normalization RMSNorm --position-embedding-type rope --rotary-base 500000 "
    "--disable-bias-linear --untie-embeddings-and-output-weights --hidden-dropout 0 "
    "--attention-dropout 0 --recompute-granularity selective --recompute-modules mlp_act layernorm "
)


def speed_steps(small):
    if small:
        shape = TINY + "--seq-length 32 --max-position-embeddings 32"
        return [*variant_steps(True), launch_step("tiny", shape, 1, True)]
    eight = [
        "bench",
        "step",
        "--device",
        "cuda",
        "--bf16",
        "--preset",
        "llama-8b",
        "--kernels-only",
    ]
    generate = ["bench", "generate", "--device", "cuda", "--bf16"]
    rows = [
        model_step(
            "speed",
            row,
            PRODUCTS if row[:2] == ("llama-8b", 8192) else "",
            published=PUBLISHED.get(row[:2], ""),
        )
        for row in OTHERS
    ]
    return [
        *variant_steps(False),
        bench("speed", "kernels of a step, llama-8b", eight, "%|FLOP/s|GB/s", 60),
        launch_step("GPT-2 124M", GPT2 + "--seq-length 1024 --max-position-embeddings 1024", 20),
        launch_step("Llama 8B", LLAMA_8B + "--seq-length 4096 --max-position-embeddings 4096", 60),
        *rows[:2],
        bench(
            "speed", "kernels, fp32", ["bench", "kernels", "--device", "cuda"], KERNEL_FIGURES, 60
        ),
        bench("speed", "generation, GPT-2 124M", generate, "tokens/s", 30),
        bench(
            "speed",
            "generation without CUDA graphs, GPT-2 124M",
            [*generate, "--inference-dynamic-batching-num-cuda-graphs", "0"],
            "tokens/s",
            30,
        ),
        *rows[2:],
    ]
