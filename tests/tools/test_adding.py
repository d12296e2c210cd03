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
    # A model of the family that they add is trained, saved under its name, and resumed.
    model, saved = Path(folder) / "model", Path(folder) / "saved"
    shutil.rmtree(saved, ignore_errors=True)
    model.mkdir(exist_ok=True)
    (model / "config.json").write_text(json.dumps(SANDWICH))
    for steps, longer in ((2, ""), (4, "--extend-to-iters 4")):
        flags = f"--train-iters 2 {longer} {TRAIN}"
        print(run(program, "train", "--model", model, *flags.split(), "--save", saved, "--load", saved, folder=tree))
        config = json.loads((saved / f"iter_{steps:07}" / "config.json").read_text())
        assert config["model_type"] == "sandwich", config


if __name__ == "__main__":
    if len(sys.argv) == 3 and sys.argv[1] == "--build":
        build_and_run(Path(sys.argv[2]).resolve())
    else:
        unittest.main()
