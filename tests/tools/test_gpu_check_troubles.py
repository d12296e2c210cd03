"""tools/gpu_check with the real program on CUDA for the CPU, in which troubles are planted.

test_gpu_check_troubles.py MEGATRON
"""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = ""


class Planted(unittest.TestCase):
    """Each costs its own step; the rows beside it are there."""

    def rows(self, part, *flags, **planted):
        with tempfile.TemporaryDirectory() as folder:
            command = [ROOT / "tools/gpu_check", part, "--small", "--program", PROGRAM]
            done = subprocess.run(
                [*command, "--jobs", "1", "--output", folder, *flags],
                capture_output=True,
                text=True,
                env={**os.environ, **planted},
                check=False,
            )
            text = done.stdout + done.stderr
            self.assertNotIn("Traceback", text)
            self.assertIn(done.returncode, (0, 1), text)
            page = (Path(folder) / "cuda-shim-on-the-cpu.md").read_text(encoding="utf-8")
        rows = re.findall(r"^\| (.*?), small \| `.*` \| (.*) \|$", page, re.MULTILINE)
        return dict(rows), text

    def test_algorithms_that_cublaslt_refuses(self):
        rows, text = self.rows("headline", "--only", "gpt2", CUDA_SHIM_REFUSE_ALGORITHMS="1")
        self.assertRegex(rows["gpt2-124m, sequence 32"], "^passed: .*tokens/s", text)

    def test_memory_that_is_used_up_midway(self):
        rows, text = self.rows("headline", CUDA_SHIM_ALLOCATIONS="12")
        self.assertRegex(rows["gpt2-124m, sequence 32"], "^FAILED.*out of .*memory", text)
        self.assertRegex(rows["kernels, fp32"], "^passed: .*GB/s", text)

    def test_work_that_hangs(self):
        flags = ("--only", "kernels/", "--step-seconds", "20")
        rows, text = self.rows("parity", *flags, CUDA_SHIM_HANG="UnitNorm")
        self.assertRegex(rows["kernels/unit_norm"], "^FAILED.*took longer than 20", text)
        self.assertRegex(rows["kernels/fill"], "^passed", text)
        self.assertNotIn("did not answer", text)


if __name__ == "__main__":
    PROGRAM = sys.argv.pop(1)
    unittest.main()
