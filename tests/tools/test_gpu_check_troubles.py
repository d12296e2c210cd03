"""tools/gpu_check with the real program on CUDA for the CPU, in which troubles are planted.

test_gpu_check_troubles.py MEGATRON LIBRARIES

LIBRARIES: the folder of the build with NVIDIA's libraries as they are played, by version.
"""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM, LIBRARIES = "", Path()


class Planted(unittest.TestCase):
    """Each fault fails only its own step; the other rows are there."""

    def rows(self, part, *flags, program=None, code=(0, 1), **planted):
        with tempfile.TemporaryDirectory() as folder:
            command = [ROOT / "tools/gpu_check", part, "--small", "--program", program or PROGRAM]
            done = subprocess.run(
                [*command, "--jobs", "1", "--output", folder, *flags],
                capture_output=True,
                text=True,
                env={**os.environ, **planted},
                check=False,
            )
            text = done.stdout + done.stderr
            self.assertNotIn("Traceback", text)
            self.assertIn(done.returncode, code, text)
            pages = [page.read_text(encoding="utf-8") for page in Path(folder).glob("*.md")]
        rows = re.findall(r"^\| (.*?), small \| `.*` \| (.*) \|$", "".join(pages), re.MULTILINE)
        return dict(rows), text

    def machine(self, *libraries):
        """A program whose plugin finds only these libraries, each VERSION/NAME. Returns it and their folder."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        found = Path(folder.name) / "libraries"
        found.mkdir()
        for library in libraries:
            shutil.copy(LIBRARIES / library, found)
        shutil.copy(LIBRARIES / "libmegatron_cuda.so", folder.name)
        return shutil.copy(PROGRAM, folder.name), str(found)

    def test_algorithms_that_cublaslt_refuses(self):
        rows, text = self.rows("headline", "--only", "gpt2", CUDA_SHIM_REFUSE_ALGORITHMS="1")
        self.assertRegex(rows["gpt2-124m, sequence 32"], "^passed: .*tokens/s", text)

    def test_a_library_that_is_missing_or_of_another_version(self):
        products = "130100/libcublasLt_played.so.13"
        of_cuda_12 = "0/libcudnn_played.so.9", "91800/libcudnn_graph_played.so.9"
        program, found = self.machine(products, *of_cuda_12)
        more = {"program": program, "LD_LIBRARY_PATH": found}
        rows, text = self.rows("headline", "--only", "gpt2", **more)
        self.assertRegex(rows["gpt2-124m, sequence 32"], "^passed: .*tokens/s", text)
        self.assertRegex(text, "cuDNN .*cannot be used: .* is for CUDA 12")
        (Path(found) / Path(products).name).unlink()
        rows, text = self.rows("headline", code=(2,), **more)
        self.assertEqual(rows, {})
        self.assertRegex(text, "libcublasLt_played.so.13 is not found")
        self.assertIn("What to do: ", text)

    def test_memory_that_is_used_up_midway(self):
        rows, text = self.rows("headline", CUDA_SHIM_ALLOCATIONS="26")
        self.assertRegex(rows["gpt2-124m, sequence 32"], "^FAILED.*out of .*memory", text)
        self.assertRegex(rows["kernels, fp32"], "^passed: .*GB/s", text)

    def test_work_that_hangs(self):
        flags = ("--only", "kernels/", "--step-seconds", "20")
        rows, text = self.rows("parity", *flags, CUDA_SHIM_HANG="UnitNorm")
        self.assertRegex(rows["kernels/unit_norm"], "^FAILED.*took longer than 20", text)
        self.assertRegex(rows["kernels/fill"], "^passed", text)
        self.assertNotIn("did not answer", text)


class Flags(unittest.TestCase):
    """Steps of real size, which only run on a GPU."""

    def test_are_known_and_go_together(self):
        sys.path.insert(0, str(ROOT / "tools"))
        from gpu_checks import runs, speed

        steps = speed.headline_steps(False) + speed.speed_steps(False)
        commands = [shlex.split(step.command)[1:] for step in steps]
        commands += [[*c, *speed.LESS_MEMORY] for c in commands[:2]]
        commands += [[*c, "--cuda-graph-impl", "local"] for c in commands if "gpt2-124m" in c]
        commands += [runs.train_words(name, False, "cuda") for name in runs.RUNS]
        checked = 0
        for words in commands:
            if words[:2] not in (["bench", "kernels"], ["bench", "generate"]):
                command = [PROGRAM, *words, "--print-config"]
                done = subprocess.run(command, capture_output=True, text=True, check=False)
                self.assertEqual(done.returncode, 0, f"{shlex.join(words)}\n{done.stderr}")
                checked += 1
        self.assertGreater(checked, 30)
        names = [step.name for step in steps]
        self.assertEqual(len(set(names)), len(names))
        self.assertLessEqual({step.baseline for step in steps} - {None}, set(names))


if __name__ == "__main__":
    PROGRAM, LIBRARIES = sys.argv.pop(1), Path(sys.argv.pop(1))
    unittest.main()
