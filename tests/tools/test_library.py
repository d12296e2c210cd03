"""docs/library.md: its program is built against an installation of this build and runs; with --whole FOLDER it is built by
add_subdirectory, too, from nothing. Needs the build's folder as its first argument."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "library.md"


def run(*command, environment=None):
    """Output of a command that must succeed."""
    done = subprocess.run(
        [str(word) for word in command],
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **(environment or {})},
    )
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} failed:\n{done.stdout[-6000:]}")
    return done.stdout


def files_of_page():
    found = re.findall(r"<!-- file: (\S+) -->\n```\w+\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert [name for name, _ in found] == ["program.cpp", "CMakeLists.txt"], found
    return dict(found)


class Library(unittest.TestCase):
    build = Path()
    whole = None

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.at = Path(self.folder.name)
        self.files = files_of_page()

    def project(self, name, lists):
        project = self.at / name
        project.mkdir()
        (project / "program.cpp").write_text(self.files["program.cpp"])
        (project / "CMakeLists.txt").write_text(lists)
        return project

    def run_program(self, program):
        """Runs the program with a model of two layers and a text of a few hundred words."""
        megatron = self.build / "megatron"
        (self.at / "text.jsonl").write_text('{"text": "The cat sat on the mat, and the dog sat on the cat."}\n' * 60)
        tokenizer = self.at / "tokenizer"
        run(megatron, "tokenizer", "train", "--input", self.at / "text.jsonl", "--output", tokenizer,
            "--vocab-size", "264")  # fmt: skip
        run(megatron, "preprocess", "--input", self.at / "text.jsonl", "--output-prefix", self.at / "text",
            "--tokenizer-model", tokenizer, "--append-eod")  # fmt: skip
        run(megatron, *"train --num-layers 2 --hidden-size 32 --num-attention-heads 4 "
            "--seq-length 32 --micro-batch-size 4 --train-iters 1 --lr 1e-3 --swiglu --normalization RMSNorm "
            "--position-embedding-type rope --disable-bias-linear --hidden-dropout 0 --attention-dropout 0 "
            "--threads 1".split(), "--tokenizer-model", tokenizer, "--data-path", self.at / "text_text_document",
            "--save", self.at / "start")  # fmt: skip
        output = run(program, self.at / "start" / "iter_0000001", self.at / "text_text_document", self.at / "save")
        loss = re.search(r"^loss ([\d.]+) -> ([\d.]+)$", output, re.MULTILINE)
        self.assertIsNotNone(loss, output)
        self.assertLess(float(loss[2]), float(loss[1]))
        self.assertTrue((self.at / "save" / "iter_0000010" / "model.safetensors").exists())
        wrong = subprocess.run([program, self.at / "nowhere", "x", "y"], text=True, stderr=subprocess.PIPE)
        self.assertEqual(wrong.returncode, 1)
        self.assertIn("nowhere", wrong.stderr)

    def test_the_program_runs_with_an_installation(self):
        prefix = self.at / "prefix"
        run("cmake", "--install", self.build, "--prefix", prefix)
        self.assertRegex(run(prefix / "bin" / "megatron", "--version"), r"\d+\.\d+\.\d+")
        project = self.project("installed", self.files["CMakeLists.txt"])
        run("cmake", "-S", project, "-B", project / "build", "-G", "Ninja", f"-DCMAKE_PREFIX_PATH={prefix}")
        run("cmake", "--build", project / "build")
        self.run_program(project / "build" / "example")

    def test_another_project_adds_the_folder(self):
        # Its own targets, options and settings have the same names as rooms and must stay unchanged.
        lists = self.files["CMakeLists.txt"].replace(
            "find_package(megatron REQUIRED)",
            f'add_library(base INTERFACE)\nadd_library(settings INTERFACE)\nadd_subdirectory("{ROOT}" megatron)\n'
            "get_property(names DIRECTORY PROPERTY BUILDSYSTEM_TARGETS)\n"
            'if(CMAKE_CXX_FLAGS_RELEASE MATCHES "ffp" OR CMAKE_CXX_STANDARD OR TARGET tensor)\n'
            '  message(FATAL_ERROR "settings of the project leak: ${names}")\nendif()',
        )
        self.assertIn("add_subdirectory", lists)
        project = self.project("added", lists)
        build = Path(self.whole) if self.whole else project / "build"
        run("cmake", "-S", project, "-B", build, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release")
        self.assertNotIn("-Werror", self.compiler_flags(build, "CMakeFiles/example.dir/program.cpp.o"))
        if self.whole:
            run("cmake", "--build", build, "--target", "example")
            self.run_program(build / "example")

    @staticmethod
    def compiler_flags(build, output):
        return run("ninja", "-C", build, "-t", "commands", "-s", output)


if __name__ == "__main__":
    Library.build = Path(sys.argv.pop(1))
    if "--whole" in sys.argv:
        at = sys.argv.index("--whole")
        Library.whole = sys.argv[at + 1]
        del sys.argv[at : at + 2]
    unittest.main()
