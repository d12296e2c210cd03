"""Golden vectors are packed, unpacked, found and checked on a small set."""

import os
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"


class Vectors(unittest.TestCase):
    """Sets of golden vectors, packed and unpacked."""

    def setUp(self):
        if not shutil.which("zstd"):
            self.skipTest("packing needs zstd")
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.folder = self.root / "tests/golden/vectors"
        self.archive = self.folder / "set.tar.zst"
        self.write("../../../tools/vectors.py", (TOOLS / "vectors.py").read_text(encoding="utf-8"))
        self.write("set/README.md", "how it was made")
        self.write("set/b/numbers.json", "[1, 2]")
        self.write("set/a.txt", "text")
        self.run_tool("pack", "set")

    def write(self, name, content):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content, encoding="utf-8")

    def run_tool(self, *words, code=0, **environment):
        command = [sys.executable, "-B", self.root / "tools/vectors.py", *words]
        variables = {**os.environ, **environment}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=variables)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def found(self):
        folder = Path(self.run_tool("find", "set").strip())
        files = (p for p in sorted(folder.rglob("*")) if p.is_file() and p.suffix != ".md")
        return {p.relative_to(folder).as_posix(): p.read_text() for p in files}

    def test_are_packed_unpacked_and_found(self):
        self.assertEqual([p.name for p in (self.folder / "set").iterdir()], ["README.md"])
        self.assertIn("1 sets", self.run_tool())
        self.assertEqual(self.found(), {"a.txt": "text", "b/numbers.json": "[1, 2]"})
        self.run_tool("unpack", "set")
        self.assertIn("lie unpacked", self.run_tool(code=1))
        self.assertEqual(self.found(), {"a.txt": "text", "b/numbers.json": "[1, 2]"})

    def test_are_unpacked_by_zstds_library_where_there_is_no_program(self):
        self.run_tool("find", "set", PATH="/nonexistent")
        self.assertEqual(self.found(), {"a.txt": "text", "b/numbers.json": "[1, 2]"})
        whole = self.archive.read_bytes()
        for damaged in (whole[:-5], b"none" + whole):
            self.archive.write_bytes(damaged)
            self.assertIn("is damaged", self.run_tool("find", "set", code=1, PATH="/nonexistent"))

    def test_equal_content_has_equal_bytes(self):
        first = self.archive.read_bytes()
        self.run_tool("unpack", "set")
        (self.folder / "set/a.txt").touch()
        self.assertIn("nothing changed", self.run_tool("pack", "set"))
        self.assertEqual(self.archive.read_bytes(), first)
        self.run_tool("unpack", "set")
        self.archive.unlink()
        self.run_tool("pack", "set")
        self.assertEqual(self.archive.read_bytes(), first)

    def test_edits(self):
        self.found()
        self.write("set/a.txt", "other")
        self.assertIn("changed a.txt", self.run_tool("pack", "set"))
        self.assertEqual(self.found(), {"a.txt": "other", "b/numbers.json": "[1, 2]"})
        self.write("set/c.txt", "more")
        self.assertIn("removed a.txt", self.run_tool("pack", "--exact", "set"))
        self.assertEqual(self.found(), {"c.txt": "more"})

    def test_faults(self):
        self.assertIn("there is no set other", self.run_tool("find", "other", code=1))
        (self.folder / "set/README.md").unlink()
        self.assertIn("no note", self.run_tool(code=1))
        work = self.root / "work/set"
        work.mkdir(parents=True)
        (work / "a.txt").write_text("text", encoding="utf-8")
        tar = ["tar", "--zstd", "-cf", self.archive, "-C", self.root / "work", "set"]
        subprocess.run(tar, check=True)
        self.write("set/README.md", "how it was made")
        self.assertIn("not of the form", self.run_tool(code=1))


if __name__ == "__main__":
    unittest.main()
