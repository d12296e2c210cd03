"""The examples of docs/adding.md are whole: applied to a copy of the tree they pass its checkers, or, with --build FOLDER,
are built there and run on the CPU and on the CUDA plugin for the CPU."""

import json
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
from adding_examples import ROOT, examples

MOST_FILES, MOST_LINES = 8, 80  # for an element-wise op with a gradient and kernels on all back-ends

SANDWICH = {
    "model_type": "sandwich",
    "attention_dropout": 0.0,
    "embedding_multiplier": 2.0,
    "hidden_act": "relu2",
    "hidden_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 32,
    "num_attention_heads": 4,
    "num_hidden_layers": 2,
    "num_key_value_heads": 2,
    "rope_theta": 10000.0,
    "vocab_size": 64,
}
PART = {
    "ffn-hidden-size": 48,
    "activation": "silu",
    "gated": True,
    "mlp-bias": False,
    "normalization": "RMSNorm",
    "norm-epsilon": 1e-5,
}
ATTENTION = {
    "num-attention-heads": 4,
    "num-query-groups": 2,
    "kv-channels": 8,
    "qkv-bias": False,
    "attention-output-bias": False,
}
SUMMING = {  # the made-up mixer below a layer with attention
    "model_type": "megatron",
    "initializer_range": 0.3,
    "model": {
        "num-layers": 2,
        "vocab-size": 64,
        "hidden-size": 32,
        "max-position-embeddings": 128,
        "untied": False,
        "layers": [{"mixer": "decaying-sum", "decay": 0.8} | PART, ATTENTION | PART],
        "final-norm": {"normalization": "RMSNorm", "norm-epsilon": 1e-5},
    },
}
TRAIN = "--seq-length 32 --micro-batch-size 2 --global-batch-size 2 --lr 1e-3 --lr-decay-style constant --mock-data"


def copy_tree(to, folders):
    for folder in folders:
        shutil.copytree(ROOT / folder, to / folder, copy_function=shutil.copy2, symlinks=True)


def run(*command, folder):
    """Output of a command that must succeed."""
    done = subprocess.run(
        [str(word) for word in command], cwd=folder, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} failed:\n{done.stdout[-6000:]}")
    return done.stdout


class Examples(unittest.TestCase):
    def test_the_applied_ones_pass_the_checkers(self):
        with tempfile.TemporaryDirectory() as folder:
            tree = Path(folder)
            copy_tree(tree, ["src", "tests", "cmake"])
            for example in examples():
                example.apply(tree)
            output = run(ROOT / "tools/check_coverage", tree, folder=tree)
            self.assertRegex(output, r"(?m)^softsign\s+yes\s+own\s+own")
            output = run(ROOT / "tools/check_coverage", "--device", "cuda", tree, folder=tree)
            self.assertRegex(output, r"(?m)^softsign\b.*\bown\b")
            run(ROOT / "tools/check_layers.py", tree, folder=tree)

    def test_an_elementwise_op_is_a_few_lines(self):
        own = [e for e in examples() if "softsign" in (e.text + e.path).lower()]
        files = {e.path for e in own}
        lines = sum(1 for e in own for line in e.text.splitlines() if line.strip())
        self.assertLessEqual(len(files), MOST_FILES, files)
        self.assertLessEqual(lines, MOST_LINES)
        told = f"eight files and {lines} lines"
        self.assertTrue(told in (ROOT / "docs/adding.md").read_text(), f"docs/adding.md does not say: {told}")

    def test_a_forgotten_step_is_found(self):
        for forgotten in ("src/kernels/cases/element_kernels.cpp", "src/ops/gradient_check.cpp"):
            with self.subTest(forgotten), tempfile.TemporaryDirectory() as folder:
                tree = Path(folder)
                copy_tree(tree, ["src", "cmake"])
                for example in examples():
                    if example.kind != "from" and example.path != forgotten:
                        example.apply(tree)
                with self.assertRaisesRegex(AssertionError, "softsign"):
                    run(ROOT / "tools/check_coverage", tree, folder=tree)

    def test_what_does_not_fit_the_tree_is_refused(self):
        for block, why in (
            ("<!-- in: src/kernels/table.h, after: no such line -->", "has 0 lines with 'no such line'"),
            ("<!-- in: src/kernels/none.h, after: x -->", "there is no src/kernels/none.h"),
            ("<!-- new: src/kernels/table.h -->", "is there already"),
            ("<!-- from: src/kernels/table.h -->", "does not hold"),
        ):
            (example,) = examples(f"{block}\n```cpp\nint none_such;\n```\n")
            with self.assertRaisesRegex(ValueError, why):
                example.apply(ROOT)
        with self.assertRaisesRegex(ValueError, "neither new, in nor from"):
            examples("```cpp\nint x;\n```\n")


def build_and_run(folder):
    """Builds the tree of the examples below `folder`, reusing objects of an earlier run, and runs the new tests."""
    tree = Path(folder) / "tree"
    if tree.exists():
        shutil.rmtree(tree)
    tree.mkdir(parents=True)
    for name in run("git", "ls-files", "--cached", "--others", "--exclude-standard", folder=ROOT).splitlines():
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    for example in examples():
        example.apply(tree)
    build = Path(folder) / "build"
    run("cmake", "--preset", "test", "-B", build, folder=tree)
    run("ninja", "-C", build, "megatron", "parity_kernels", "unit_ops", folder=tree)
    program = build / "megatron"
    print(run(build / "cuda_shim/parity_kernels", "--gtest_filter=*softsign*", folder=tree))
    output = run(program, "selftest", "--filter", "softsign", folder=tree)
    print(output)
    for word in ("kernels", "gradients"):
        assert word in output, output
    run(build / "tests/unit_ops", "--gtest_filter=Gradient.*", folder=tree)
    train(program, Path(folder), SANDWICH)
    generate(program, train(program, Path(folder), SUMMING))


def train(program, folder, config):
    """Trains a model, saves it under its name and resumes; returns the last checkpoint."""
    model, saved = folder / "model", folder / "saved"
    shutil.rmtree(saved, ignore_errors=True)
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(config))
    for steps, longer in ((2, ""), (4, "--extend-to-iters 4")):
        flags = f"--train-iters 2 {longer} {TRAIN}"
        print(run(program, "train", "--model", model, *flags.split(), "--save", saved, "--load", saved, folder=folder))
        checkpoint = saved / f"iter_{steps:07}"
        saved_config = json.loads((checkpoint / "config.json").read_text())
        assert saved_config["model_type"] == config["model_type"], saved_config
        assert saved_config.get("model") == config.get("model"), saved_config
    return checkpoint


def generate(program, model):
    """Texts are the same however their prompts are read and whatever they share, with the bits of training."""
    start = " ".join(str(i * 7 % 64) for i in range(70))
    prompts = [f"{start} {i} {i + 1}" for i in range(4)]
    texts = []
    for flags in (
        "--inference-dynamic-batching-max-requests 4",
        "--inference-dynamic-batching-max-requests 1 --inference-dynamic-batching-block-size 32",
        "--inference-dynamic-batching-max-tokens 5 --no-inference-dynamic-batching-prefix-caching",
    ):
        output = model / "texts.jsonl"
        run(program, "generate", "--load", model, "--tokenizer-type", "NullTokenizer", "--prompt",
            *prompts, "--max-tokens", 20, "--logprobs", 1, "--output", output, *flags.split(), folder=model)
        texts.append(output.read_text())
    assert len(texts[0].splitlines()) == 4 and texts.count(texts[0]) == 3, texts
    lines = model / "lines.jsonl"
    lines.write_text("".join(json.dumps({"text": prompt}) + "\n" for prompt in prompts))
    flags = ("--tokenizer-type", "NullTokenizer", "--input", lines, "--against-engine")
    print(run(program, "eval", "--load", model, *flags, folder=model))  # fails if a bit differs


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--build":
        build_and_run(Path(sys.argv[2]).resolve())
    else:
        unittest.main()
