"""tools/gpu_check with a program that plays megatron on a GPU: rows, troubles, resuming."""

import json
import os
import re
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TOOL = ROOT / "tools" / "gpu_check"
LOSSES = TOOL.parent / "gpu_checks/losses.json"
PLAYED = Path(__file__).with_name("played_megatron.py")
sys.path.insert(0, str(ROOT / "tools"))


class Played(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "out"
        self.program = self.folder / "megatron"
        source = PLAYED.read_text(encoding="utf-8")
        self.program.write_text(f"#!{sys.executable} -IS\n{source}", encoding="utf-8")
        self.program.chmod(0o755)

    def environment(self, fault):
        temporary = self.folder / "temporary"
        temporary.mkdir(exist_ok=True)
        return {
            **os.environ,
            "FAULT": fault,
            "LOSSES": str(LOSSES),
            "OUT": str(self.out),
            "TMPDIR": str(temporary),
        }

    def command(self, part, *flags, program=None):
        command = [sys.executable, TOOL, part, "--small", "--program", program or self.program]
        return [*command, "--jobs", "1", "--output", self.out, *flags]

    def path_with_card(self):
        """A PATH with a stand-in for nvidia-smi."""
        tool = self.folder / "bin/nvidia-smi"
        tool.parent.mkdir()
        said = "580.1, 345 MHz, 1980 MHz, 3201 MHz, 700 W, 143771 MiB, Default"
        tool.write_text(f"#!/bin/sh\necho '{said}'\n", encoding="utf-8")
        tool.chmod(0o755)
        return f"{tool.parent}:{os.environ['PATH']}"

    def check(self, *flags, fault="", program=None, part="all", **environment):
        done = subprocess.run(
            self.command(part, *flags, program=program),
            capture_output=True,
            text=True,
            env={**self.environment(fault), **environment},
            check=False,
        )
        text = done.stdout + done.stderr
        self.assertNotIn("Traceback", text)
        return done.returncode, text

    def results(self, folder=None):
        return ((folder or self.out) / "nvidia-play.md").read_text(encoding="utf-8")

    def rows(self, folder=None):
        rows = re.findall(r"^\| (.*?) \| `.*` \| (.*) \|$", self.results(folder), re.MULTILINE)
        return {name.removesuffix(", small"): result for name, result in rows}

    def steps(self, part="all"):
        code, text = self.check("--list", part=part)
        self.assertEqual(code, 0, text)
        return len(text.splitlines())


class Passing(Played):
    def test_writes_a_row_for_each_step_and_runs_none_twice(self):
        code, text = self.check()
        self.assertEqual(code, 0, text)
        rows = self.rows()
        self.assertEqual(len(rows), self.steps())
        for words in ("# NVIDIA Play\n", "### headline", "### parity", "### layouts", "### speed"):
            self.assertIn(words, self.results())
        for words in ("compute capability 9.0, 128.0 GiB", "cuBLASLt 13.1.0, for matrix products"):
            self.assertIn(words, self.results())
            self.assertIn(words, text)
        self.assertIn("killed after step", rows["kill -9 and resume, llama bf16"])
        for words in ("10 tokens/s", "computed by: attention cuDNN", "clocks: 1980 MHz", "3 steps"):
            self.assertIn(words, rows["gpt2-124m, sequence 32"])
        self.assertIn("same bits", rows["gpt2-124m, sequence 32, CUDA graphs"])
        self.assertIn("20 tokens/s, 3% MFU; computed by", rows["gpt2-124m, sequence 32, any order"])
        self.assertIn("baseline 10 of gpt2-124m", rows["gpt2-124m, sequence 32, any order"])
        self.assertIn("(+100.0%)", rows["gpt2-124m, sequence 32, any order"])
        self.assertLessEqual(len(os.listdir(self.out)), 8)
        self.assertEqual(os.listdir(self.folder / "temporary"), [])
        before = self.results()
        code, text = self.check()
        self.assertEqual(code, 0, text)
        self.assertIn("parity: 10 steps, 10 of them done before", text)
        self.assertEqual(self.results(), before)

    def test_begins_anew_with_another_program(self):
        self.check(part="layouts")
        with self.program.open("a", encoding="utf-8") as out:
            out.write("\n")
        code, text = self.check(part="layouts")
        self.assertEqual(code, 0, text)
        self.assertIn("is from another program; all steps start over", text)
        self.assertIn("1 steps, 0 of them done before", text)

    def test_goes_on_in_a_new_folder(self):
        first, self.out = self.out, self.folder / "next"
        first.mkdir()
        code, text = self.check("--from", first, part="layouts")
        self.assertEqual(code, 0, text)
        self.assertIn("so all steps start over", text)
        earlier, self.out = self.out, self.folder / "last"
        code, text = self.check("--from", earlier, part="all", fault="other version")
        self.assertEqual(code, 0, text)
        self.assertIn("layouts: 1 steps, 1 of them done before", text)
        for words in ("### layouts", "### parity", "cuDNN 9 is needed"):
            self.assertIn(words, self.results())
        self.assertEqual(
            (self.out / "gpu_check.log").read_text(encoding="utf-8").count("--layouts --part"), 1
        )
        code, text = self.check("--from", self.folder / "none")
        self.assertEqual(code, 2, text)
        self.assertIn("there is no such folder", text)

    def test_takes_a_pack(self):
        (self.folder / "commit").write_text("abc1234\n", encoding="utf-8")
        pack = self.folder / "pack.tar.gz"
        with tarfile.open(pack, "w:gz") as out:
            for name in ("megatron", "commit"):
                out.add(self.folder / name, f"megatron-check/{name}")
        code, text = self.check(program=pack, part="layouts")
        self.assertEqual(code, 0, text)
        self.assertIn(", commit abc1234\n", self.results())
        pack.write_bytes(pack.read_bytes()[:200])
        code, text = self.check(program=pack, part="layouts")
        self.assertEqual(code, 2, text)
        self.assertRegex(text, "pack.tar.gz cannot be unpacked: .*TMPDIR")

    def test_runs_where_there_is_nothing_else(self):
        """Runs without git, bash, mpirun, ldconfig and nvidia-smi."""
        code, text = self.check("--only", "gpt2-124m", part="headline", PATH="/nonexistent")
        self.assertEqual(code, 0, text)
        self.assertIn("nvidia-smi: not here", self.results())
        self.assertIn("tokens/s", self.rows()["gpt2-124m, sequence 32"])

    def test_card_and_clocks_are_those_of_nvidia_smi(self):
        code, text = self.check(part="layouts", PATH=self.path_with_card())
        self.assertEqual(code, 0, text)
        self.assertIn("580.1, 345 MHz, 1980 MHz", self.results())


class Troubles(Played):
    """Each fault fails only its own step, and loses no figure."""

    def expect(self, part, fault, wanted, code=1):
        self.out = self.folder / fault.replace(" ", "_")
        done, text = self.check(fault=fault, part=part)
        self.assertEqual(done, code, text)
        rows = self.rows()
        for name, pattern in wanted.items():
            self.assertRegex(rows[name], pattern)
        others = [name for name in rows if name not in wanted]
        for name in others:
            self.assertRegex(rows[name], "^passed|^not run", name)
        self.assertEqual(len(rows), self.steps(part))
        return text

    def test_of_parity_are_found_and_named(self):
        self.expect(
            "parity",
            "check,crash,loss,bits,resume,verify",
            {
                "model/gpt2 fp32": r"FAILED \(.*exit status 1\): .*1 of 9 compared",
                "kernels/unit_norm": "FAILED: .*SIGABRT",
                "losses, gpt fp32": r"FAILED \(step 2: loss .* apart by 1.0e-02 of it\): 3 losses",
                "losses, llama bf16": r"FAILED \(step 2",
                "twice, gpt fp32": "FAILED .run again: step 1",
                "kill -9 and resume, llama bf16": "FAILED .resumed: step .*: 3 losses",
                "verify hf/gpt2": r"FAILED \(.*0 passed, 1 failed.*\): logits 1.9e-06 of 1.0e-04",
            },
        )

    def test_figures_stay_when_what_is_expected_does_not_come_true(self):
        one, graphs, order = (
            f"gpt2-124m, sequence 32{more}" for more in ("", ", CUDA graphs", ", any order")
        )
        fell = r"FAILED \(the loss did not fall: 10.0000 to 12.0000\): 10 tokens/s.*clocks"
        self.expect(
            "headline",
            "rises,kernels",
            {one: fell, "kernels, fp32": "FAILED .*: fill f32  1.0 GB/s"},
        )
        both = r"FAILED \(step 1 has .* without graphs and .*\): no graphs: 10 t.*CUDA graphs: 10 t"
        self.expect("speed", "graphs", {graphs: both})
        self.expect("headline", "bad end", {one: r"FAILED \(.*exit status 3\): 10 tokens/s"})
        logged = (
            r"FAILED \(.*out of memory.*\): 64 tokens/s, step time 0.500 s: medians of 3 logged"
        )
        self.expect(
            "speed", "memory midway", {graphs: "FAILED .*64 tokens/s.*64 tok", order: logged}
        )
        less = r"FAILED \(.*out of memory.*\): with --exp-avg-dtype bf16 .*: 10 tokens/s"
        self.expect("headline", "too large", {one: less})
        self.expect(
            "headline",
            "no text",
            {one: r"passed: .*mock data \(no text: Failure: error: no tok"},
            0,
        )

    def test_what_does_not_fit_by_the_plan_is_not_run(self):
        from gpu_checks import machine, output, training_speed

        with unittest.mock.patch.dict(os.environ, self.environment("too large")):
            played = machine.Machine(self.program, output.Output(self.out), "cuda")
        self.addCleanup(played.close)
        words = ["bench", "step", "--no-floor", "--micro-batch-size", "2"]
        with self.assertRaises(machine.NotRun) as refused:
            training_speed.run_if_it_fits(played, words, small=True)
        why = "megatron plan: it needs 2 GB of a GPU's 1; 8B parameters"
        self.assertEqual(str(refused.exception), why)
        played.environment["FAULT"] = ""
        said = training_speed.run_if_it_fits(played, words, small=True)
        self.assertIn("10 tokens/s", said)

    def test_any_output_is_taken(self):
        self.expect("parity", "not UTF-8", {}, 0)

    def test_a_failed_step_is_run_again_by_the_next_call_after_all_others(self):
        code, text = self.check("--only", "kernels/", fault="crash", part="parity")
        self.assertEqual(code, 1, text)
        code, text = self.check(part="parity")
        self.assertEqual(code, 0, text)
        self.assertIn("parity: 10 steps, 3 of them done before", text)
        self.assertLess(text.index("kill -9"), text.index("kernels/unit_norm, small: passed"))
        self.assertNotIn("kernels/fill, small: passed", text)

    def test_checks_that_cannot_be_listed_cost_themselves(self):
        code, text = self.check(fault="list", part="layouts")
        self.assertEqual(code, 1, text)
        self.assertRegex(self.rows()["list of layouts"], "FAILED: error: the list cannot be made")

    def test_what_time_does_not_allow_is_listed_and_left(self):
        hung = ("--only", "gradients/add")
        code, text = self.check("--budget-minutes", "0.03", *hung, fault="hang", part="parity")
        self.assertEqual(code, 0, text)
        self.assertRegex(text, "Did not run, for the time was used up: (gradients/add|part parity)")
        code, text = self.check(*hung, part="parity")
        self.assertEqual(code, 0, text)
        self.assertIn("gradients/add, small: passed", text)

    def test_killed_it_leaves_its_results_and_nothing_that_runs(self):
        for number in (signal.SIGKILL, signal.SIGTERM):
            self.out = self.folder / number.name
            with subprocess.Popen(
                self.command("parity"),
                stdout=subprocess.PIPE,
                text=True,
                env=self.environment("hang"),
            ) as tool:
                while "unit_norm" not in tool.stdout.readline():
                    pass
                hung = f"{self.program} selftest --device cuda --filter =gradients/add"
                self.assertTrue(self.waits_until((self.folder / "temporary/hanging").is_file))
                self.assertTrue(self.runs(hung))
                (self.folder / "temporary/hanging").unlink()
                tool.send_signal(number)
            self.assertTrue(self.waits_until(lambda: not self.runs(hung)))
            self.assertIn("kernels/unit_norm", self.results())
            if number == signal.SIGTERM:
                log = (self.out / "gpu_check.log").read_text(encoding="utf-8")
                self.assertRegex(
                    log, "gradients/add.*\nNVIDIA Play; CUDA 1.0\n.ended with gpu_check"
                )
            code, text = self.check("--only", "kernels/", part="parity")
            self.assertEqual(code, 0, text)
            self.assertIn(" 2 of them done before", text)

    def runs(self, command):
        return subprocess.run(["pgrep", "-f", command], capture_output=True, check=False).stdout

    def waits_until(self, condition):
        end = time.monotonic() + 60
        while not condition() and time.monotonic() < end:
            time.sleep(0.02)
        return condition()


class FirstStep(Played):
    def ends(self, fault, *words):
        code, text = self.check(fault=fault, part="layouts")
        self.assertEqual(code, 2, text)
        pages = "".join(p.read_text(encoding="utf-8") for p in self.out.glob("*.md"))
        for word in words:
            self.assertIn(word, text)
            self.assertIn(word, pages)

    def test_ends_the_call_where_no_gpu_can_be_used(self):
        self.ends("no GPU", "What to do: no NVIDIA driver is loaded: give the container a GPU")
        self.ends("library missing", "libcublasLt.so.13 is not found", "pip install nvidia-cublas")

    def test_names_what_failed_and_goes_on(self):
        code, text = self.check(fault="failed check,other version", part="layouts")
        self.assertEqual(code, 1, text)
        self.assertIn("FAILED matrix product in 0.1 s: 0.5 off", self.results())
        self.assertIn("cuDNN 8.9.7, for attention in bf16 and fp16 (optional)", self.results())
        self.assertIn("row 0: gpt2", self.rows())

    def test_may_crash_where_the_gpu_answers(self):
        code, text = self.check(fault="first crashes", part="layouts")
        self.assertEqual(code, 1, text)
        self.assertRegex(self.results(), "FAILED the check of the device gave no report: .*SIGABRT")
        self.assertIn("row 0: gpt2", self.rows())

    def test_names_a_program_that_cannot_be_started(self):
        self.program.write_bytes(b"\x7fELF none")
        self.ends("", "megatron cannot be started: Exec format error")
        self.program.write_text(
            "#!/bin/sh\necho megatron: error: libmpi.so.40: no such file\nexit 127\n"
        )
        self.ends("", "libmpi.so.40: no such file")

    def test_a_hung_one_is_ended(self):
        from gpu_checks import first, machine, output

        variables = {**self.environment("first hangs"), "PATH": self.path_with_card()}
        with (
            unittest.mock.patch.dict(os.environ, variables),
            unittest.mock.patch.object(first, "SECONDS", 0.5),
        ):
            played = machine.Machine(self.program, output.Output(self.out), "cuda")
            self.addCleanup(played.close)
            found = first.look(played)
            self.assertIn("gave no report: took longer than 0.5 s and was ended", found.failed[0])
            self.assertEqual(found.gpu, "NVIDIA Play")
            self.assertIn("580.1, 345 MHz", found.lines[-1])
            # The real program reports its own hang; the GPU is checked once more.
            played.environment["FAULT"] = "check hangs"
            found = first.look(played)
            self.assertIn("FAILED matrix product in 0.1 s: it did not finish", found.lines)
            self.assertIn("the check of the device hung", found.failed[-1])
            with unittest.mock.patch.object(first, "probe", lambda _: ("", "it hangs")):
                self.assertRaises(first.NoGpu, first.look, played)
            played.environment["FAULT"] = "nothing answers"
            with unittest.mock.patch.object(first, "PROBE_SECONDS", 0.5):
                self.assertRaises(first.NoGpu, first.look, played)


class Folders(Played):
    def test_one_that_cannot_be_written_is_refused_before_the_first_step(self):
        (self.folder / "file").touch()
        self.out = self.folder / "file/out"
        code, text = self.check()
        self.assertEqual(code, 2, text)
        self.assertRegex(text, "results cannot be written to .*; --output names another folder")

    def test_one_that_is_lost_midway_costs_no_result(self):
        code, text = self.check(fault="folder gone", part="parity")
        self.assertEqual(code, 0, text)
        self.assertIn(f"{self.out} can no longer be written", text)
        other = Path(re.search(r"Results continue in (\S+)\.\n", text).group(1))
        rows = self.rows(other)
        for name in ("kernels/unit_norm", "kill -9 and resume, llama bf16"):
            self.assertIn("passed", rows[name])
        self.assertEqual(len(json.loads((other / "gpu_check.json").read_text())["finished"]), 10)

    def test_a_state_that_is_broken_is_set_aside(self):
        self.out.mkdir()
        for text in ('{"finished": {"x": 3}, "gpu": 1}', "[]", '{"finished'):
            (self.out / "gpu_check.json").write_text(text, encoding="utf-8")
            code, said = self.check(part="layouts")
            self.assertEqual(code, 0, said)
            self.assertIn("it is kept as gpu_check.json.broken\nAll steps start over", said)
            self.assertEqual((self.out / "gpu_check.json.broken").read_text(), text)


if __name__ == "__main__":
    unittest.main()
