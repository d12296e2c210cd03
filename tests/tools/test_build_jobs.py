"""tools/build_jobs counts the processors and the memory that this process may have."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"


class BuildJobs(unittest.TestCase):
    """tools/build_jobs with simulated cgroup limits."""

    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.root = Path(self.folder.name)
        self.free = self.jobs("/nowhere")

    def tearDown(self):
        self.folder.cleanup()

    def jobs(self, root, *flags):
        done = subprocess.run(
            [TOOLS / "build_jobs", *flags, str(root)], capture_output=True, text=True, check=True
        )
        return int(done.stdout)

    def file(self, path, text):
        path = self.root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)

    def test_version_2(self):
        self.file("proc/self/cgroup", "0::/job/step\n")
        self.file("proc/self/mountinfo", "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n")
        self.file("sys/fs/cgroup/job/step/cpu.max", "max 100000\n")
        self.file("sys/fs/cgroup/job/step/memory.max", "max\n")
        self.assertEqual(self.jobs(self.root), self.free)
        self.file("sys/fs/cgroup/job/cpu.max", "50000 100000\n")
        self.assertEqual(self.jobs(self.root), 1)
        self.file("sys/fs/cgroup/job/cpu.max", "max 100000\n")
        self.file("sys/fs/cgroup/memory.max", "200000000\n")
        self.assertEqual(self.jobs(self.root), 1)
        self.assertEqual(self.jobs(self.root, "--processors"), len(os.sched_getaffinity(0)))

    def test_version_1_in_a_container(self):
        self.file("proc/self/cgroup", "4:memory:/docker/77\n1:cpu,cpuacct:/docker/77\n0::/\n")
        self.file(
            "proc/self/mountinfo",
            "35 31 0:32 /docker/77 /cg/memory ro - cgroup cgroup rw,memory\n"
            "36 31 0:33 /docker/77 /cg/cpu ro shared:9 - cgroup cgroup rw,cpu,cpuacct\n",
        )
        self.file("cg/memory/memory.limit_in_bytes", "9223372036854771712\n")
        self.file("cg/cpu/cpu.cfs_quota_us", "-1\n")
        self.file("cg/cpu/cpu.cfs_period_us", "100000\n")
        self.assertEqual(self.jobs(self.root), self.free)
        self.file("cg/cpu/cpu.cfs_quota_us", "30000\n")
        self.assertEqual(self.jobs(self.root), 1)

    def test_its_flags(self):
        done = subprocess.run([TOOLS / "build_jobs", "--help"], capture_output=True, text=True, check=True)
        self.assertIn("--processors", done.stdout)
        done = subprocess.run([TOOLS / "build_jobs", "--cores"], capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stdout), (1, ""))
        self.assertIn("unknown argument '--cores'", done.stderr)


if __name__ == "__main__":
    unittest.main()
