"""Command lines of README.md, CONTRIBUTING.md and docs/ run as they are written, and every script explains itself.

    test_commands.py MEGATRON        the program that the pages call megatron

A page that goes into a folder of its own (cd /tmp/...) is run from its first command to its last. Elsewhere a command runs
by itself where it needs no file. What needs several machines, a GPU, an hour or what stands for it (`...`) is not run: its
scripts must exist and its flags must be known.
"""

import functools
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
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *ROOT.glob("docs/*.md")])
FIRST_WORDS = re.compile(
    r"(megatron|mpirun|srun|torchrun|mkdir|cd|echo|printf|head|for|cmake|ninja|tools/\S+|bench/\S+|\./\S+)( |$)"
)
# Not run: placeholders, published models, other machines and schedulers, GPUs, builds, and commands that take longer
# than minutes.
NOT_RUN = re.compile(
    r"\.\.\.|\[--|PREFIX|--load (bert|flan)-|SLURM|--hosts? |srun|torchrun|--device cuda|megatron bench|"
    r"(^|&& )(cmake|ninja|tools/|bench/|\./)"
)
MINUTES = 10
PROGRAM = Path()


def blocks_of(page):
    """Blocks of lines that are indented by four spaces, outside fences and lists."""
    block, fenced = [], False
    for line in page.read_text(encoding="utf-8").splitlines() + [""]:
        fenced ^= line.lstrip().startswith("```")
        if line.startswith("    ") and not fenced:
            block.append(line[4:])
        elif block:
            yield block
            block = []


def is_whole(text):
    return subprocess.run(["bash", "-n"], input=text, text=True, capture_output=True).returncode == 0


def commands_of(page):
    """Returns complete commands and leaves out other lines, such as output."""
    for block in blocks_of(page):
        if block[0].startswith("#!"):  # a scheduler's script: only the commands that it starts
            block = [line for line in block if not line.startswith("#")]
        at = 0
        while at < len(block):
            if not FIRST_WORDS.match(block[at]):
                at += 1
                continue
            end = at + 1
            while end < len(block) and (block[end - 1].endswith("\\") or not is_whole("\n".join(block[at:end]))):
                end += 1
            yield "\n".join(block[at:end])
            at = end


def known_flags():
    text = "".join((ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("flags.md", "megatron_flags.md"))
    return set(re.findall(r"--[\w-]+", text))


@functools.cache
def help_of(name):
    return "".join(
        subprocess.run([PROGRAM, *name, "--help", *more], capture_output=True, text=True).stdout for more in ([], ["all"])
    )


class Pages(unittest.TestCase):
    def run_all(self, commands, folder, where=""):
        """Runs the commands in one shell that ends at the first failure. where: replaces the page's name of its
        folder."""
        script = "\n".join(commands)
        if where:
            script = script.replace(where, str(folder))
        path = f"{PROGRAM.parent}:{os.environ['PATH']}"
        settings = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        settings |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "none"}
        done = subprocess.run(
            ["bash", "-e", "-c", script],
            cwd=folder,
            env={**os.environ, **settings, "PATH": path},
            input="Story 7:\n",  # input for a prompt at the terminal
            capture_output=True,
            text=True,
            errors="replace",
            timeout=60 * MINUTES,
            check=False,
        )
        self.assertEqual(done.returncode, 0, f"{script}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")

    def test_commands_run_as_written(self):
        count = 0
        for page in PAGES:
            commands = [c for c in commands_of(page) if not NOT_RUN.search(c)]
            if not shutil.which("mpirun"):
                commands = [c for c in commands if not c.startswith("mpirun")]
            walk = re.search(r"cd (/tmp/[\w-]+)", "\n".join(commands))
            with self.subTest(page=page.name), tempfile.TemporaryDirectory() as folder:
                if walk:
                    self.run_all(commands, folder, walk.group(1))
                    count += len(commands)
                    continue
                for command in commands:
                    if "--mock-data" in command or command.startswith("megatron plan"):
                        self.run_all([command], folder)
                        count += 1
        self.assertGreater(count, 40)
        print(f"{count} commands of pages were run")

    def test_scripts_exist_and_flags_are_known(self):
        known = known_flags()
        for page in PAGES:
            for command in commands_of(page):
                with self.subTest(page=page.name, command=command):
                    words = shlex.split(command.replace("\\\n", " ").split("#")[0].replace("[", "").replace("]", ""))
                    for script in (w for w in words if re.match(r"(tools|bench)/\w|\./[a-z]", w)):
                        if "results" not in script:
                            self.assertTrue((ROOT / script).exists(), f"{script} does not exist")
                    if "megatron" not in words:
                        continue
                    words = words[words.index("megatron") + 1 :]
                    names = [tuple(w for w in words[:2] if re.fullmatch("[a-z]+", w))]
                    if words[:1] == ["launch"]:  # the program it starts has its own flags
                        names = [(w,) for w in words if re.fullmatch("[a-z]+", w)][:2]
                    text = "".join(help_of(name) for name in names)
                    for flag in (w for w in words if w.startswith("--")):
                        stated = flag in known or re.search(re.escape(flag) + r"\b", text)
                        self.assertTrue(stated, f"megatron {names} has no {flag}")


class Scripts(unittest.TestCase):
    def test_each_says_what_it_does(self):
        scripts = [ROOT / "test", ROOT / "quickstart", *ROOT.glob("tools/*"), *ROOT.glob("bench/*")]
        for script in sorted(p for p in scripts if p.is_file()):
            with self.subTest(script=script.name), script.open("rb") as file:
                begins = file.read(2) == b"#!"  # otherwise it is a part of other scripts
                self.assertEqual(os.access(script, os.X_OK), begins, "scripts alone are executable")
                if not begins:
                    continue
                with tempfile.TemporaryDirectory() as folder:  # started from another folder, by a path
                    done = subprocess.run([script, "--help"], cwd=folder, capture_output=True, text=True, timeout=120)
                self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
                self.assertIn(script.stem, done.stdout)

    def test_corpus_is_written_where_a_relative_path_says(self):
        """Uses an apt-get that provides a package made by the test."""
        if not shutil.which("dpkg-deb"):
            self.skipTest("there is no dpkg-deb here")
        text = "The cat sat on the mat and it was in the sun for a day, as it is with cats of the house. " * 30
        with tempfile.TemporaryDirectory() as folder:
            package = Path(folder) / "package"
            (package / "DEBIAN").mkdir(parents=True)
            control = "Package: fortunes\nVersion: 1\nArchitecture: all\nMaintainer: none\nDescription: text\n"
            (package / "DEBIAN/control").write_text(control, encoding="utf-8")
            (package / "usr/share/games/fortunes").mkdir(parents=True)
            (package / "usr/share/games/fortunes/cats").write_text(text, encoding="utf-8")
            command = ["dpkg-deb", "--root-owner-group", "-b", package, Path(folder) / "fortunes_1_all.deb"]
            subprocess.run(command, check=True, capture_output=True)
            tools, place = Path(folder) / "bin", Path(folder) / "place"
            tools.mkdir()
            place.mkdir()
            fake = tools / "apt-get"
            fake.write_text(f"#!/bin/sh\ncp '{folder}/fortunes_1_all.deb' .\n", encoding="utf-8")
            fake.chmod(0o755)
            done = subprocess.run(
                [ROOT / "bench/english_corpus", "english.jsonl", "--packages", "fortunes"],
                cwd=place,
                env={**os.environ, "PATH": f"{tools}:{os.environ['PATH']}"},
                capture_output=True,
                text=True,
                check=False,
            )
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn("The cat sat", (place / "english.jsonl").read_text(encoding="utf-8"))


if __name__ == "__main__":
    PROGRAM = Path(sys.argv.pop(1)).resolve()
    unittest.main()
