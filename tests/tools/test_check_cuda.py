"""tools/check_cuda with a compiler, a build and a history that are played; the choice of nvcc among toolkits."""

import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"

KERNEL = """ptxas info    : Function properties for {name}
    0 bytes stack frame, {stores} bytes spill stores, {loads} bytes spill loads
"""


class Cuda(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        (self.root / "tools").mkdir()
        for tool in ("check_cuda", "build_jobs"):
            shutil.copy(TOOLS / tool, self.root / "tools" / tool)
        self.play("nvcc", "printf 'compute_80\\ncompute_90\\ncompute_100\\n'")
        self.play("cmake", "exit 0")
        self.build(KERNEL.format(name="gemm", stores=0, loads=0))

    def tearDown(self):
        self.folder.cleanup()

    def play(self, name, script):
        path = self.root / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/bash\n{script}\n")
        path.chmod(0o755)

    def build(self, log, code=0):
        (self.root / "compiled").write_text(log)
        self.play("ninja", f"cat {self.root}/compiled; exit {code}")

    def run_tool(self, *arguments):
        done = subprocess.run(
            ["bash", str(self.root / "tools/check_cuda"), *arguments],
            env={"PATH": f"{self.root}/bin:/usr/bin:/bin"},
            capture_output=True,
            text=True,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def test_sound_kernels(self):
        code, text = self.run_tool()
        self.assertEqual(code, 0, text)
        self.assertIn("sm_90a: 1 kernels, 0 with spills, 0 CPU-seconds", text)

    def architectures(self, *given):
        script = self.root / "script.cmake"
        script.write_text(
            f"include({TOOLS.parent}/cmake/cuda_architectures.cmake)\n"
            f"megatron_cuda_architectures({' '.join(given)})\n"
            "foreach(one %s)\nmegatron_cuda_code(code ${one})\nmessage(STATUS \"${code}\")\nendforeach()\n"
            % " ".join(given)
        )
        cmake = shutil.which("cmake")
        done = subprocess.run([cmake, "-P", script], capture_output=True, text=True, check=False)
        return done.returncode, " ".join((done.stdout + done.stderr).split())

    def test_architectures_that_the_kernels_are_for(self):
        code, text = self.architectures("80", "90a", "120+ptx")
        self.assertEqual(code, 0, text)
        self.assertIn("-gencode=arch=compute_90a,code=sm_90a", text)
        self.assertNotIn("code=compute_90a", text)
        self.assertIn(
            "-gencode=arch=compute_120,code=sm_120 -gencode=arch=compute_120,code=compute_120", text
        )

    def test_architectures_that_cannot_be(self):
        for given in ("70", "75"):
            code, text = self.architectures("80", given)
            self.assertNotEqual(code, 0)
            self.assertIn(f"has '{given}'; the kernels need compute capability 8.0 or later", text)
            self.assertIn("use --device cpu", text)
        for given, why in (
            ("9.0", "without a dot"),
            ("sm_90", "without a dot"),
            ("90a+ptx", "write 90+ptx"),
        ):
            code, text = self.architectures(given)
            self.assertNotEqual(code, 0)
            self.assertIn(why, text)

    def test_spills_are_refused(self):
        self.build(KERNEL.format(name="attend", stores=8, loads=16))
        code, text = self.run_tool("80")
        self.assertEqual(code, 1, text)
        self.assertIn("spills 24 bytes: attend", text)

    def test_a_part_of_the_sources(self):
        objects = "".join(f"src/megatron_cuda.dir/{name}.cu.o\\n" for name in "bcad")
        self.play(
            "ninja",
            f"case \"$*\" in *inputs*) printf '{objects}src/megatron_base.dir/x.o\\n' ;;\n"
            f"*) echo \"$*\" >{self.root}/asked; cat {self.root}/compiled ;; esac",
        )
        code, text = self.run_tool("--part", "1/3")
        self.assertEqual(code, 0, text)
        self.assertIn("sm_90a, part 1/3: 1 kernels", text)
        asked = (self.root / "asked").read_text().split()[-2:]
        self.assertEqual(asked, [f"src/megatron_cuda.dir/{name}.cu.o" for name in "ad"])
        for wrong in ("3/3", "1", "x/3"):
            code, text = self.run_tool("--part", wrong)
            self.assertEqual(code, 1, text)
            self.assertIn(f"K/N with K below N, such as 0/3; not '{wrong}'", text)

    def test_a_build_that_fails(self):
        self.build("gemm.cu: error: no such thing\n", code=1)
        code, text = self.run_tool()
        self.assertEqual(code, 1, text)
        self.assertIn("error: no such thing", text)
        self.assertIn("sm_90a does not build", text)

    def test_a_compiler_that_tells_nothing(self):
        self.build("")
        self.assertEqual(self.run_tool()[0], 1)

    def test_all_architectures_are_checked_and_unknown_ones_named(self):
        code, text = self.run_tool("all")
        self.assertEqual(code, 0, text)
        for line in ("sm_90a: 1 kernels", "sm_80: 1 kernels", "sm_100a: 1 kernels"):
            self.assertIn(line, text)
        for left_out in ("sm_89: left out", "sm_120a: left out"):
            self.assertIn(left_out, text)

    def test_another_version_of_cuda(self):
        self.play("cmake", f"echo \"$@\" >{self.root}/configured")
        code, text = self.run_tool("--cuda", "12", "80")
        self.assertEqual(code, 0, text)
        configured = (self.root / "configured").read_text()
        self.assertIn("-B build/cuda-12/80 ", configured)
        self.assertIn("-DMEGATRON_CUDA_VERSION=12 ", configured)

    def test_one_architecture_alone(self):
        code, text = self.run_tool()
        self.assertEqual(code, 0, text)
        self.assertIn("sm_90a: ", text)
        self.assertNotIn("sm_80", text)


class Toolkits(unittest.TestCase):
    """cmake/cuda_nvcc.cmake with simulated toolkits; the machine may have others."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.root = Path(self.folder.name)
        for name, version in (("twelve", "12.4"), ("later", "12.9"), ("thirteen", "13.0")):
            nvcc = self.root / name / "bin/nvcc"
            nvcc.parent.mkdir(parents=True)
            nvcc.write_text(f"#!/bin/sh\necho 'Cuda compilation tools, release {version}, V{version}.131'\n")
            nvcc.chmod(0o755)

    def choose(self, version, root="", home="", path=""):
        script = self.root / "choose.cmake"
        script.write_text(
            f"include({TOOLS.parent}/cmake/cuda_nvcc.cmake)\ncuda_find_nvcc()\n"
            'message("${MEGATRON_NVCC}|${cuda_others}")\n'
        )
        folder = lambda name: self.root / name if name else ""
        done = subprocess.run(
            ["cmake", f"-DMEGATRON_CUDA_VERSION={version}", f"-DCUDAToolkit_ROOT={folder(root)}", "-P", str(script)],
            env={"PATH": f"{folder(path)}/bin:/usr/bin:/bin", "CUDA_HOME": str(folder(home))},
            capture_output=True,
            text=True,
            check=True,
        )
        chosen, others = done.stderr.strip().split("|")
        return chosen.removeprefix(f"{self.root}/").removesuffix("/bin/nvcc"), others

    def test_the_one_that_is_named_first(self):
        self.assertEqual(self.choose("", root="twelve", home="thirteen")[0], "twelve")
        self.assertEqual(self.choose("", home="thirteen", path="twelve")[0], "thirteen")
        self.assertEqual(self.choose("", path="later")[0], "later")

    def test_the_first_of_the_version(self):
        self.assertEqual(self.choose("13", root="twelve", home="thirteen")[0], "thirteen")
        self.assertEqual(self.choose("12", root="thirteen", home="later", path="twelve")[0], "later")
        self.assertEqual(self.choose("12.4", root="thirteen", home="later", path="twelve")[0], "twelve")

    def test_none_of_the_version(self):
        chosen, others = self.choose("19", root="thirteen", path="later")
        self.assertEqual(chosen, "")
        self.assertIn(f"found: CUDA 13.0 in {self.root.resolve()}/thirteen/bin/nvcc, CUDA 12.9 in ", others)


if __name__ == "__main__":
    unittest.main()
