"""./quickstart and the tools that it uses: what it refuses, what it chooses, and its stages with stand-ins for all that it starts."""

import gzip
import os
import shutil
import subprocess
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"


class Quickstart(unittest.TestCase):
    """Refusals before anything is installed, built or written."""

    def refused(self, text, *arguments):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "mine").mkdir()
            for name in ("mine/notes", "empty.txt", "text.pdf"):
                (Path(folder) / name).write_text("")
            (Path(folder) / "small.txt").write_text("few words\n" * 1999)
            before = sorted(Path(folder).rglob("*"))
            command = [str(TOOLS.parent / "quickstart"), *arguments]
            done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 1, done.stderr)
            self.assertEqual(done.stdout, "")
            self.assertIn(text, done.stderr)
            self.assertEqual(sorted(Path(folder).rglob("*")), before)

    def test_bad_arguments(self):
        self.refused("unknown argument '--step'", "--step", "3")
        self.refused("--steps needs a value", "--steps")
        self.refused("at least 1, got '0'", "--steps", "0")
        self.refused("at least 1, got '1e3'", "--steps", "1e3")

        self.refused("--steps and --quick both say", "--steps", "9", "--quick")

    def test_bad_input(self):
        self.refused("'none.txt' does not exist", "--input", "none.txt")
        self.refused("empty.txt' is empty", "--input", "empty.txt")
        self.refused("is neither .txt nor .jsonl", "--input", "text.pdf")
        self.refused("contains 19990 bytes of text; at least 20000", "--input", "small.txt")
        self.refused("contains no non-empty .txt or .jsonl", "--input", "mine")

    def test_output_of_somebody_else(self):
        self.refused("'mine' exists and was not created by quickstart", "--output", "mine")


class QuickstartChoice(unittest.TestCase):
    """The training time of ./quickstart, and the loss that it promises."""

    def choice(self, *words, code=0):
        done = subprocess.run([str(TOOLS / "quickstart_choice"), *map(str, words)], capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        return done.stdout.strip()

    def test_the_faster_type_fills_the_time(self):
        for seconds, fp32, bf16 in ((240, 1.5, 0.4), (240, 0.7, 2.4), (60, 0.9, 0.5)):
            kind, steps = self.choice("steps", seconds, fp32, bf16).split()
            self.assertEqual(kind, "bf16" if bf16 < fp32 else "fp32")
            # Includes evaluations and the steps repeated after the kill.
            self.assertAlmostEqual((1.1 * int(steps) + 17) * min(fp32, bf16) / seconds, 1, delta=0.1)

    def test_steps_stay_where_the_promise_is_known(self):
        self.assertEqual(self.choice("steps", 60, 5, 6), "fp32 25")
        self.assertEqual(self.choice("steps", 240, 0.02, 0.01), "bf16 800")

    def test_the_promise_grows_with_the_steps(self):
        promised = [int(self.choice("promise", steps)) for steps in (25, 37, 50, 100, 170, 200, 400, 640, 800)]
        self.assertEqual(promised, sorted(promised))
        self.assertEqual((promised[0], promised[-1]), (-8, 32))
        self.assertEqual(self.choice("promise", 24), "")
        self.assertEqual(self.choice("promise", 801), "")

    def test_what_is_no_number_is_refused(self):
        for words in (("steps", 60, "fast", 1), ("steps", 60, 0, 1), ("steps", 60, 1), ("promise", "many"), ()):
            self.choice(*words, code=1)


OPEN = r"""'\" t
.\" Copyright: none
.TH open 2 2020-01-01 "Linux man-pages"
.SH NAME
open \- open a file
.SH SYNOPSIS
.BI "int open(const char *" path ", int " flags );
.SH DESCRIPTION
The café of
.BR open ()
.\" a comment
is opened, and a line of this paragraph is longer than the width of seventy-eight columns.
.TS
allbox;
l l.
T{
Interface
T}	Value
open	MT-Safe
.TE
.PP
\fIEnd\fP of\~it.
""".encode("latin-1")
OPEN_TEXT = """NAME
       open - open a file

SYNOPSIS
       int open(const char *path, int flags);

DESCRIPTION
       The café of open() is opened, and a line of this paragraph is longer
       than the width of seventy-eight columns.

       |Interface | Value   |
       |open      | MT-Safe |
       End of it.
"""


@unittest.skipUnless(shutil.which("mandoc"), "there is no mandoc here")
class ManualPages(unittest.TestCase):
    """tools/manual_pages: one text per page, and each page once."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        (self.root / "man/man2").mkdir(parents=True)

    def page(self, name, source):
        path = self.root / "man" / name
        path.write_bytes(gzip.compress(source) if name.endswith(".gz") else source)

    def render(self, code=0):
        done = subprocess.run([str(TOOLS / "manual_pages"), "man", "text"], cwd=self.root, capture_output=True, text=True,
                              check=False)
        self.assertEqual(done.returncode, code, done.stderr)
        found = [path for path in (self.root / "text").rglob("*") if path.is_file()]
        self.assertEqual(list(self.root.glob("*.part")), [])
        return {str(path.relative_to(self.root / "text")): path.read_text() for path in found}, done.stderr

    def test_pages_in_many_processes(self):
        names = [f"man2/open{i}.2" + (".gz" if i % 2 else "") for i in range(70)]
        for name in names:
            self.page(name, OPEN)
        (self.root / "man/man2/alias.2.gz").symlink_to("open1.2.gz")
        self.page("man2/stub.2", b".\\\" comment\n.so man2/open0.2\n")
        self.page("man2/empty.2", b"")
        self.page("README", b"no page")
        found, _ = self.render()
        self.assertEqual(found, {name.removesuffix(".gz") + ".txt": OPEN_TEXT for name in names})

    def test_what_cannot_be_rendered(self):
        self.page("README", b"no page")
        self.assertIn("'man' contains no manual page", self.render(code=1)[1])
        self.page("man2/open.2", OPEN)
        (self.root / "man/man2/torn.2.gz").write_bytes(gzip.compress(OPEN)[:-20])
        self.assertIn("torn.2.gz", self.render(code=1)[1])
        (self.root / "man/man2/torn.2.gz").unlink()
        self.assertEqual(self.render()[0], {"man2/open.2.txt": OPEN_TEXT})
        self.assertIn("'text' exists", self.render(code=1)[1])


QUICKSTART_PROGRAM = """#!/bin/bash
# In megatron's place: steps take the seconds of the files fp32 and bf16, and the loss is as the file eval says.
here=$(dirname "$0")
echo "$*" >>"$here/calls"
value() { local name=$1; shift; while [ $# -gt 1 ]; do [ "$1" != "$name" ] || echo "$2"; shift; done; }
case $1 in
  tokenizer) mkdir -p "$(value --output "$@")" ;;
  inspect) echo "data: 1100 sequences, 1771513 tokens" ;;
  train)
    type=fp32; [[ $* != *--bf16* ]] || type=bf16
    log=$(value --log-jsonl "$@"); save=$(value --save "$@")
    [ -z "$save" ] || { mkdir -p "$save"; log=$save/log.jsonl; }
    for ((i = 1; i <= $(value --train-iters "$@"); ++i)); do
      echo '{"type": "step", "iteration": '$i', "loss": 1.5, "gradient_norm": 1, "seconds": '"$(cat "$here/$type")"', "end": 0}'
    done >>"$log" ;;
  eval) echo "the loss is $(cat "$here/eval") it" ;;
esac
"""


class QuickstartRun(unittest.TestCase):
    """The stages of ./quickstart, with stand-ins for every program that it starts."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = Path(folder.name)
        self.program = self.root / "build/release/megatron"
        self.script("quickstart", (TOOLS.parent / "quickstart").read_text())
        for name in ("quickstart_choice", "build_jobs", "manual_pages"):
            self.script(f"tools/{name}", (TOOLS / name).read_text())
        self.script("build/release/megatron", QUICKSTART_PROGRAM)
        for name in ("tools/install_dependencies", "bin/cmake", "bin/ninja", "bin/apt-get"):
            self.script(name, "#!/bin/sh\n")
        page = "$3/usr/share/man/man2/open.2"
        self.script("bin/dpkg-deb", f"""#!/bin/sh
mkdir -p "$(dirname "{page}")"
printf '.TH open 2 2020-01-01\\n.SH NAME\\nopen \\\\- open a file\\n' >"{page}"
""")
        self.says(fp32="1.0", bf16="2.0", eval="3.0% above")

    def script(self, name, text):
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def says(self, **files):
        for name, text in files.items():
            (self.program.parent / name).write_text(text + "\n")

    def run_it(self, *arguments, code=0):
        (self.program.parent / "calls").write_text("")
        environment = {**os.environ, "PATH": f"{self.root}/bin:{os.environ['PATH']}"}
        done = subprocess.run([str(self.root / "quickstart"), *arguments], cwd=self.root, env=environment,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def trained(self):
        calls = (self.program.parent / "calls").read_text().splitlines()
        return [call for call in calls if call.startswith("train")]

    def test_it_says_what_is_ahead_and_takes_the_faster_type(self):
        text = self.run_it("--quick")
        self.assertLess(text.index("Estimated time"), text.index("== 1/10"))
        self.assertIn("a step takes 1.000 s in fp32 and 2.000 s in bf16", text)
        self.assertIn("chosen: fp32, 35 steps", text)
        self.assertIn("a correct build gets at most 7% above it after 35 steps", text)
        self.assertIn("--train-iters 35 ", self.trained()[-1])
        self.assertNotIn("--bf16", self.trained()[-1])

    def test_pages_become_text_documents(self):
        text = self.run_it("--quick")
        self.assertIn("1 manual pages rendered as text", text)
        output = self.root / "quickstart-run"
        self.assertEqual((output / "corpus/man2/open.2.txt").read_text(), "NAME\n       open - open a file\n")
        self.assertEqual([path.name for path in output.glob("*.part")], [])
        calls = (self.program.parent / "calls").read_text()
        self.assertIn("tokenizer train --input quickstart-run/corpus --vocab-size", calls)
        self.assertIn("preprocess --input quickstart-run/corpus --whole-files --output-prefix", calls)

    def test_a_second_run_keeps_the_choice(self):
        self.run_it("--quick")
        self.says(fp32="4.0")
        text = self.run_it("--quick")
        self.assertIn("chosen: fp32, 35 steps", text)
        self.assertEqual(self.trained(), [])

    def test_steps_override(self):
        self.says(bf16="0.5", eval="1.0% below")
        text = self.run_it("--steps", "30")
        self.assertIn("chosen: bf16, 30 steps", text)
        self.assertIn("--bf16", self.trained()[-1])
        self.assertIn("learned: 1.0% below", text)

    def test_a_loss_that_a_sound_build_does_not_get_fails(self):
        self.says(eval="20.0% above")
        text = self.run_it("--quick", code=1)
        self.assertIn("after 35 steps the loss is 20.0% above the unigram entropy, but a correct build gets at most 7% "
                      "above it: something is wrong with this one", text)


if __name__ == "__main__":
    unittest.main()
