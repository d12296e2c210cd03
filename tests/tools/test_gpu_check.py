"""tools/gpu_check with a program that plays megatron on a GPU: what passes, each fault, resuming."""

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

# Trains what is recorded; FAULT plants what must be found.
PROGRAM = r"""#!/usr/bin/env python3
import json, os, sys, time
from pathlib import Path

words, fault = sys.argv[1:], os.environ.get("FAULT", "")
value = lambda flag: words[words.index(flag) + 1] if flag in words else ""

def end(*lines, code=0):
    print(*lines, sep="\n")
    sys.exit(code)

def selftest():
    if "--list" in words:
        end("row 0: gpt2" if "--layouts" in words else "kernels/fill")
    name = value("--filter").lstrip("=") or "row 0: gpt2"
    if fault == "no GPU":
        end("megatron: error: CUDA cannot be used: no NVIDIA driver is loaded", code=2)
    print("NVIDIA Play; CUDA 1.0")
    if fault == "crash" and name == "kernels/unit_norm":
        os.abort()
    if fault == "hang" and name == "gradients/add":
        time.sleep(60)
    if fault == "check" and name == "model/gpt2 fp32":
        end("FAILED  model/gpt2 fp32  1 of 9", "0 passed, 1 failed", code=1)
    end(f"ok      {name:<40}     3 compared, 1.0e-01 of what is allowed, 0.1 s", "1 passed, 0 failed")

def train():
    rest = "--save" if "--save" in words else "--log-interval"
    flags = " ".join(words[3 : words.index(rest)]).replace(os.environ["TREE"] + "/build/", "tests/golden/")
    recorded = json.load(open(os.environ["LOSSES"])).values()
    launch = [9.0] if "launch" in os.getcwd() else None
    losses = launch or next(r["losses"] for r in recorded if r["flags"] == flags)
    run = Path("run/latest_checkpointed_iteration.txt")
    done = int(run.read_text()) if "--load" in words and run.exists() else 0
    with open(value("--log-jsonl"), "a") as log:
        for step, loss in enumerate(losses, 1):
            if step <= done:
                continue
            if fault == "loss" and step == 2:
                loss *= 1.01
            if fault == "bits" and "twice" in os.getcwd() and os.getcwd().endswith("1"):
                loss += 1e-7
            if fault == "resume" and done:
                loss += 1e-7
            record = {"type": "step", "iteration": step, "loss": loss, "gradient_norm": 1.5}
            log.write(json.dumps(record) + "\n")
            log.flush()
            if "--save" in words:
                run.parent.mkdir(exist_ok=True)
                run.write_text(str(step))
                time.sleep(0.3)
    end("done")

def bench():
    if words[1] == "kernels":
        end("fill f32  1.0 GB/s  90 %")
    falls = -1 if fault != "speed" else 1
    with open(value("--log-jsonl"), "a") as log:
        for step in range(1, 4):
            record = {"iteration": step, "loss": 9 + falls * step, "gradient_norm": 1}
            log.write(json.dumps({"type": "step", **record}) + "\n")
    end("12 tokens/s, 3% MFU")

if words[0] == "selftest":
    selftest()
elif words[0] == "train":
    train()
elif words[0] == "bench":
    bench()
elif words[0] == "verify":
    end("1 passed, 0 failed" if fault != "verify" else "0 passed, 1 failed", code=fault == "verify")
"""


class Played(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.out = self.folder / "out"
        self.program = self.folder / "megatron"
        self.program.write_text(PROGRAM, encoding="utf-8")
        self.program.chmod(0o755)

    def check(self, *flags, fault="", program=None, part="all"):
        command = [sys.executable, TOOL, part, "--small", "--program", program or self.program]
        environment = {**os.environ, "FAULT": fault, "LOSSES": str(LOSSES), "TREE": str(ROOT)}
        done = subprocess.run(
            [*command, "--output", self.out, *flags],
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    def results(self):
        return (self.out / "nvidia-play.md").read_text(encoding="utf-8")

    def steps(self):
        code, text = self.check("--list")
        self.assertEqual(code, 0, text)
        return len(text.splitlines())


class Passing(Played):
    def test_writes_a_row_for_each_step_and_runs_none_twice(self):
        code, text = self.check()
        self.assertEqual(code, 0, text)
        rows = [line for line in self.results().splitlines() if line.startswith("| ")]
        self.assertEqual(len([row for row in rows if "`" in row]), self.steps())
        for words in ("# NVIDIA Play", "## gpu_check parity", "## gpu_check layouts", "commit "):
            self.assertIn(words, self.results())
        self.assertIn("killed after step", self.results())
        self.assertLessEqual(len(os.listdir(self.folder / "out")), 8)
        before = self.results()
        code, text = self.check()
        self.assertEqual(code, 0, text)
        self.assertIn(f"{self.steps()} of them done before", text)
        self.assertEqual(self.results(), before)

    def test_begins_anew_with_another_program(self):
        self.check(part="layouts")
        self.program.write_text(PROGRAM + "\n", encoding="utf-8")
        code, text = self.check(part="layouts")
        self.assertEqual(code, 0, text)
        self.assertIn("begin anew", text)
        self.assertIn(" 0 of them done before", text)

    def test_goes_on_in_a_new_folder(self):
        self.check(part="layouts")
        earlier, self.out = self.out, self.folder / "next"
        code, text = self.check("--from", earlier, part="all")
        self.assertEqual(code, 0, text)
        self.assertIn(" 1 of them done before", text)
        for words in ("## gpu_check layouts", "## gpu_check parity"):
            self.assertIn(words, self.results())
        code, text = self.check("--from", self.folder, part="all")
        self.assertEqual(code, 2, text)
        self.assertIn("there is no gpu_check.json there", text)

    def test_takes_a_pack(self):
        (self.folder / "commit").write_text("abc1234\n", encoding="utf-8")
        pack = self.folder / "pack.tar.gz"
        with tarfile.open(pack, "w:gz") as out:
            for name in ("megatron", "commit"):
                out.add(self.folder / name, f"megatron-check/{name}")
        code, text = self.check(program=pack, part="layouts")
        self.assertEqual(code, 0, text)
        self.assertIn("commit abc1234, ", self.results())


class Faults(Played):
    def expect(self, fault, step, words):
        part = "speed" if fault == "speed" else "parity"
        self.out = self.folder / fault
        code, text = self.check(fault=fault, part=part)
        self.assertEqual(code, 1, text)
        failed = [line for line in text.splitlines() if line.startswith("FAILED")]
        self.assertTrue(any(step in line and words in line for line in failed), text)
        self.assertIn("FAILED: ", self.results())
        return text

    def test_each_is_found_and_named(self):
        self.expect("check", "model/gpt2 fp32", "1 of 9")
        self.expect("crash", "kernels/unit_norm", "SIGABRT")
        self.expect("loss", "losses, gpt fp32", "is allowed")
        self.expect("bits", "twice, gpt fp32", "step 1")
        self.expect("resume", "kill -9 and resume, llama bf16", "resumed: step")
        self.expect("verify", "verify", "0 passed, 1 failed")
        self.expect("speed", "gpt2-124m", "did not fall")

    def test_a_failed_step_is_run_again_by_the_next_call(self):
        self.expect("verify", "verify", "exit status 1")
        code, text = self.check(part="parity")
        self.assertEqual(code, 0, text)
        self.assertIn(f"{self.steps() - 5} of them done before", text)
        self.assertRegex(text, r"passed +verify")

    def test_no_gpu_is_told(self):
        code, text = self.check(fault="no GPU")
        self.assertEqual(code, 2, text)
        self.assertIn("no NVIDIA driver is loaded", text)

    def test_what_time_does_not_allow_is_listed_and_left(self):
        code, text = self.check("--budget-minutes", "0.03", fault="hang", part="parity")
        self.assertEqual(code, 0, text)
        self.assertRegex(text, "out of time gradients/add")
        self.assertIn("did not run, for the time was used up: gradients/add", text)
        self.assertRegex(self.results(), "Did not run, for the time was used up: .*gradients/add")
        code, text = self.check(part="parity")
        self.assertEqual(code, 0, text)
        self.assertRegex(text, r"passed +gradients/add")

    def test_killed_it_leaves_its_results_and_nothing_that_runs(self):
        for number in (signal.SIGKILL, signal.SIGTERM):
            self.out = self.folder / number.name
            environment = {**os.environ, "FAULT": "hang", "LOSSES": str(LOSSES), "TREE": str(ROOT)}
            command = [sys.executable, TOOL, "parity", "--small", "--program", self.program]
            with subprocess.Popen(
                [*command, "--jobs", "1", "--output", self.out],
                stdout=subprocess.PIPE,
                text=True,
                env=environment,
            ) as tool:
                while "unit_norm" not in tool.stdout.readline():
                    pass
                hung = f"{self.program} selftest --device cuda --filter =gradients/add"
                self.assertTrue(self.waits_until(lambda: self.runs(hung)))
                tool.send_signal(number)
            self.assertTrue(self.waits_until(lambda: not self.runs(hung)))
            self.assertIn("kernels/unit_norm", self.results())
            code, text = self.check(part="parity")
            self.assertEqual(code, 0, text)
            self.assertIn(" 2 of them done before", text)

    def runs(self, command):
        return subprocess.run(["pgrep", "-f", command], capture_output=True, check=False).stdout

    def waits_until(self, condition):
        end = time.monotonic() + 10
        while not condition() and time.monotonic() < end:
            time.sleep(0.02)
        return condition()


class Times(unittest.TestCase):
    def setUp(self):
        sys.path.insert(0, str(ROOT / "tools"))
        from gpu_checks import machine, results

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.output = Path(folder.name)
        self.machine = machine.Machine(sys.executable, self.output, "cuda")
        self.addCleanup(self.machine.close)
        self.results, self.step = results, machine.Step

    def step_of(self, seconds, name, limit=9, likely=None):
        def run(machine):
            machine.run(["sleep", seconds])
            return "slept"

        return self.step("speed", name, f"sleep {seconds}", run, limit, likely)

    def run_steps(self, steps, seconds):
        found = self.results.Results(self.machine, "Play", "1", self.output / "state", self.output)
        end = time.monotonic() + seconds
        self.results.run_part(self.machine, steps, found, end, 1)
        return {name: step["status"] for name, step in found.finished.items()}

    def test_a_step_that_takes_too_long_costs_its_limit_only(self):
        steps = [self.step_of(60, "hang", limit=0.2), self.step_of(0, "next")]
        begin = time.monotonic()
        self.assertEqual(self.run_steps(steps, 30), {"hang": "FAILED", "next": "passed"})
        self.assertLess(time.monotonic() - begin, 10)

    def test_a_timed_step_is_begun_where_it_is_likely_to_end(self):
        steps = [self.step_of(0, name, likely=s) for name, s in (("long", 99), ("short", 0.1))]
        self.assertEqual(self.run_steps(steps, 20), {"short": "passed"})


class Libraries(unittest.TestCase):
    def test_are_found_where_pip_puts_them_in_each_version_that_the_loader_has_not(self):
        sys.path.insert(0, str(ROOT / "tools"))
        from gpu_checks import machine

        with tempfile.TemporaryDirectory() as place:
            packages = Path(place) / "lib/python3.11/site-packages/nvidia"
            for name in ("cu12/lib/libcublasLt.so.98", "cu13/lib/libcublasLt.so.99"):
                (packages / name).parent.mkdir(parents=True)
                (packages / name).touch()
            known = "1 libs found\n\tlibcublasLt.so.98 (libc6,x86-64) => /usr/lib/x\n"
            with (
                unittest.mock.patch.dict(os.environ, {"VIRTUAL_ENV": place}),
                unittest.mock.patch.object(machine, "run_quietly", lambda _: known),
            ):
                folders = machine.library_folders()
            self.assertIn(str(packages / "cu13/lib"), folders)
            self.assertNotIn(str(packages / "cu12/lib"), folders)


class Records(Played):
    def test_have_the_flags_of_the_runs(self):
        """A run whose flags changed needs its losses recorded again."""
        known = json.loads(LOSSES.read_text(encoding="utf-8"))
        sys.path.insert(0, str(ROOT / "tools"))
        from gpu_checks import runs

        for small in (True, False):
            for name in runs.RUNS:
                words = runs.portable(runs.train_words(name, small, "cpu"))
                self.assertEqual(known[runs.key_of(name, small)]["flags"], words)
                steps = re.search("--train-iters ([0-9]+)", words).group(1)
                self.assertEqual(len(known[runs.key_of(name, small)]["losses"]), int(steps))
                self.assertNotIn(str(ROOT), words)


if __name__ == "__main__":
    unittest.main()
