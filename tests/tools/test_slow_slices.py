"""tools/slow_slices cuts the slow tests into slices; all of tests/slow are in its table."""

import re
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TABLE = """
# what
 40 slow_cli      slow/cli/One.*
 60 slow_cli      slow/cli/Two.*/a   # why
never slow_cli    slow/cli/Long.*
 90 megatron      slow/commands
  5 slow_server   slow/server/Three.b
"""
TESTS = "slow/cli/One.a slow/cli/One.b slow/cli/Two.x/a slow/cli/Long.a slow/commands slow/server/Three.b"


class Table(unittest.TestCase):
    """The table of this tree."""

    def test_every_suite_has_a_line(self):
        patterns = [line.split("#")[0].split()[2:] for line in (ROOT / "tests/slow/seconds").read_text().splitlines()]
        patterns = [pattern[0] for pattern in patterns if pattern]
        suites = set()
        for source in ROOT.glob("tests/slow/*/*_test.cpp"):
            text, room = source.read_text(), source.parent.name
            instances = re.findall(r"INSTANTIATE_TEST_SUITE_P\(\s*(\w+),\s*(\w+),", text)
            suites |= {f"slow/{room}/{suite}" for suite in re.findall(r"\bTEST(?:_F)?\((\w+),", text)}
            suites |= {f"slow/{room}/{prefix}/{suite}" for prefix, suite in instances}
        self.assertGreater(len(suites), 15)
        for suite in suites:
            self.assertTrue(any(pattern.startswith(suite + ".") for pattern in patterns), suite)

    def test_no_slice_has_more_than_200_seconds(self):
        done = subprocess.run([ROOT / "tools/slow_slices"], capture_output=True, text=True, check=True)
        seconds = [int(s) for s in re.findall(r"^\d+/\d+: (\d+) s$", done.stdout, re.MULTILINE)]
        self.assertGreater(len(seconds), 5)
        self.assertLessEqual(max(seconds), 200)


class Slices(unittest.TestCase):
    """The table of a small tree."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "tools").mkdir()
        (self.root / "tests/slow").mkdir(parents=True)
        shutil.copy(ROOT / "tools/slow_slices", self.root / "tools")
        (self.root / "tests/slow/seconds").write_text(TABLE)

    def run_tool(self, *arguments, names=TESTS):
        return subprocess.run(
            [self.root / "tools/slow_slices", *arguments], input=names, capture_output=True, text=True
        )

    def git(self, *arguments):
        who = ["-c", "user.name=a", "-c", "user.email=a@b"]
        subprocess.run(["git", "-C", self.root, *who, *arguments], check=True, capture_output=True)

    def test_slices_are_neighbours_of_alike_cost(self):
        chosen = [self.run_tool("--tests", f"{k}/2").stdout.strip() for k in range(2)]
        self.assertEqual(
            chosen,
            [
                "^(slow/cli/One[.].*|slow/cli/Two[.].*/a)$",
                "^(slow/commands|slow/server/Three[.]b)$",
            ],
        )
        self.assertEqual(self.run_tool("--targets", "1/2").stdout, "megatron slow_server\n")

    def test_slices_that_are_none_are_refused(self):
        for which in ["2/2", "1/0", "-1/2", "one"]:
            done = self.run_tool("--targets", which)
            self.assertEqual(done.returncode, 1)
            self.assertIn(which, done.stderr)

    def test_tests_and_lines_fit_each_other(self):
        for names, what in [
            (TESTS + " slow/cli/New.a", "slow/cli/New.a is on 0 lines"),
            (TESTS.replace("slow/server/Three.b", ""), "slow/server/Three.b names no test"),
        ]:
            done = self.run_tool("--tests", "1/2", names=names)
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertIn(what, done.stderr)

    def test_each_commit_has_the_next(self):
        table = TABLE.replace(" 40", "250").replace(" 60", "250")
        (self.root / "tests/slow/seconds").write_text(table)
        self.assertRegex(self.run_tool("--next").stdout, "^[0-2]/3\n$")  # changes every hour
        self.git("init", "-q")
        for turn in ["1/3", "2/3", "0/3"]:
            self.git("commit", "-q", "--allow-empty", "-m", "one")
            self.assertEqual(self.run_tool("--next").stdout, turn + "\n")


if __name__ == "__main__":
    unittest.main()
