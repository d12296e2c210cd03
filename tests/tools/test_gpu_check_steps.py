"""Parts of tools/gpu_check: limits of time, errors of steps, the folder of results."""

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LOSSES = ROOT / "tools/gpu_checks/losses.json"
sys.path.insert(0, str(ROOT / "tools"))


class Folder(unittest.TestCase):
    def test_a_full_disk_costs_no_result(self):
        from gpu_checks.output import Output

        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        folder = Path(place.name)
        out = folder / "out"
        output = Output(out)
        output.append("page.md", "before\n")
        (out / "log").symlink_to("/dev/full")
        output.append("log", "text\n")
        output.append("page.md", "after\n")
        self.addCleanup(lambda: subprocess.run(["rm", "-r", output.folder], check=False))
        self.assertNotEqual(output.folder, out)
        self.assertEqual((output.folder / "page.md").read_text(), "before\nafter\n")
        (output.folder / "state").symlink_to("/dev/full")
        former, output.folder = output.folder, folder / "gpu_check.results.x"
        output.append("page.md", "to standard output only\n")
        self.assertIsNone(output.folder)
        output.append("page.md", "still no error\n")
        output.folder = former


class Times(unittest.TestCase):
    def setUp(self):
        from gpu_checks import first, machine, output, results, steps

        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.output = output.Output(folder.name)
        self.machine = machine.Machine(sys.executable, self.output, "cuda")
        self.addCleanup(self.machine.close)
        self.module, self.results, self.first = steps, results, first
        self.page = self.output.folder / "play.md"

    def step_of(self, script, name, limit=30, likely=None):
        def run(machine):
            ran = machine.run(["sh", "-c", script])
            ran.expect_success(ran.text.strip())
            return ran.text

        return self.module.Step("speed", name, script, run, limit, likely)

    def run_steps(self, steps, seconds, answers=True):
        found = self.results.Results(self.machine, self.first.Findings("Play"))
        self.machine.end = time.monotonic() + seconds
        probe = ("Play; 1", "") if answers else ("", "it hangs")
        with unittest.mock.patch.object(self.first, "probe", lambda _: probe):
            self.module.run_steps(self.machine, steps, found, 1)
        return {name: step["status"] for name, step in found.finished.items()}

    def test_a_step_that_takes_too_long_costs_its_limit_only_and_keeps_its_figure(self):
        steps = [
            self.step_of("echo 5 tokens; sleep 60", "hang", limit=1),
            self.step_of("true", "next"),
        ]
        begin = time.monotonic()
        self.assertEqual(self.run_steps(steps, 60), {"hang": "FAILED", "next": "passed"})
        self.assertLess(time.monotonic() - begin, 30)
        self.assertIn(
            "FAILED (took longer than 1 s and was ended): 5 tokens |", self.page.read_text()
        )

    def test_a_program_that_hangs_after_its_last_line_is_ended_soon(self):
        from gpu_checks import machine

        with unittest.mock.patch.object(machine, "LINGER_SECONDS", 0.2):
            steps = [self.step_of("echo '1 passed, 0 failed'; sleep 60", "late")]
            begin = time.monotonic()
            self.assertEqual(self.run_steps(steps, 300), {"late": "FAILED"})
        self.assertLess(time.monotonic() - begin, 30)
        why = r"FAILED \(did not end within 0.2 s of its last line\): 1 passed, 0 failed"
        self.assertRegex(self.page.read_text(), why)

    def test_where_the_gpu_answers_no_more_the_rest_is_left(self):
        steps = [self.step_of("sleep 60", "hang", limit=0.2), self.step_of("true", "next")]
        self.assertEqual(self.run_steps(steps, 60, answers=False), {"hang": "FAILED"})
        self.assertIn("After hang the GPU did not answer any more: it hangs.", self.machine.lost)

    def test_one_that_cannot_be_killed_has_hung(self):
        from gpu_checks import machine

        held = machine.Hung("it was killed and does not end: the driver holds it")
        steps = [self.step_of("echo 5 tokens", "held"), self.step_of("true", "next")]
        with unittest.mock.patch.object(machine, "end_of", lambda _: held):
            self.assertEqual(self.run_steps(steps, 60, answers=False), {"held": "FAILED"})
        self.assertIn("After held the GPU did not answer any more", self.machine.lost)

    def test_figures_of_the_first_of_two_runs_are_kept(self):
        from gpu_checks import machine, training_speed

        ends = {
            "the limit": (machine.TookTooLong("took longer"), None),
            "the time": (machine.OutOfTime("out of time"), None),
            "the other's": (None, machine.TookTooLong("took longer")),
        }
        for name, (plain, graphs) in ends.items():

            def measure(_machine, words, _small, plain=plain, graphs=graphs):
                if "--cuda-graph-impl" not in words:
                    return training_speed.Measured("12345 tokens/s", {1: (1.0, 1.0)}, plain)
                raise graphs or AssertionError("no time is left for it")

            with (
                self.subTest(name),
                unittest.mock.patch.object(training_speed, "measure", measure),
                self.assertRaises(machine.Ended) as ended,
            ):
                training_speed.graphs_off_and_on(self.machine, ["bench", "step"])
            self.assertIn("12345 tokens/s", ended.exception.figure)
            self.assertIs(type(ended.exception), type(plain or graphs))

    def test_what_a_step_had_measured_when_the_time_was_used_up_is_kept(self):
        self.assertEqual(self.run_steps([self.step_of("echo 5 tokens; sleep 60", "long")], 1), {})
        self.assertRegex(self.page.read_text(), "out of time .*: 5 tokens")

    def test_a_timed_step_is_begun_where_it_is_likely_to_end(self):
        steps = [
            self.step_of("true", name, likely=s) for name, s in (("long", 999), ("short", 0.1))
        ]
        self.assertEqual(self.run_steps(steps, 60), {"short": "passed"})

    def test_any_error_ends_its_step_only(self):
        def divide(_):
            return 1 // 0

        steps = [self.module.Step("speed", "wrong", "none", divide), self.step_of("true", "next")]
        self.assertEqual(self.run_steps(steps, 60), {"wrong": "FAILED", "next": "passed"})
        self.assertIn("FAILED: ZeroDivisionError: ", self.page.read_text())
        self.assertIn("return 1 // 0", (self.output.folder / "gpu_check.log").read_text())

    def test_what_could_not_run_is_tried_again_by_the_next_call(self):
        from gpu_checks.machine import NotRun

        def lacks(_):
            raise NotRun("there is no set of vectors")

        refused = self.module.Step("speed", "lacking", "none", lacks)
        self.assertEqual(self.run_steps([refused], 60), {"lacking": "not run"})
        page = self.page.read_text()
        found = self.results.Results(self.machine, self.first.Findings("Play"))
        again = found.to_repeat([refused, self.step_of("true", "other")])
        self.assertEqual([step.name for step in again], ["lacking"])
        self.run_steps(again, 60)
        self.assertEqual(self.page.read_text(), page)
        self.assertEqual(
            self.run_steps([self.step_of("true", "lacking")], 60), {"lacking": "passed"}
        )

    def test_endless_output_is_ended(self):
        from gpu_checks import machine

        with unittest.mock.patch.object(machine, "PRINTED_LIMIT", 1 << 20):
            self.assertEqual(
                self.run_steps([self.step_of("while :; do echo y; done", "loud")], 60),
                {"loud": "FAILED"},
            )
        self.assertLess(self.output.size_of("gpu_check.log"), 1 << 20)

    def test_a_gpu_for_one_process_at_a_time_is_known(self):
        for mode, one in (("Default", False), ("Exclusive_Process", True)):
            findings = self.first.Findings("Play")
            said = f"580.1, 345 MHz, 1980 MHz, 3201 MHz, 700 W, 143771 MiB, {mode}\n"
            with unittest.mock.patch.object(self.machine, "said_by", lambda *_, s=said: s):
                self.first.add_card(self.machine, findings)
            self.assertEqual(findings.one_process, one)

    def test_gpus_that_differ_are_all_named(self):
        findings = self.first.Findings("Play")
        said = "580.1, 345 MHz, Default\n580.1, 1980 MHz, Exclusive_Process\n"
        with unittest.mock.patch.object(self.machine, "said_by", lambda *_: said):
            self.first.add_card(self.machine, findings)
        self.assertTrue(findings.one_process)
        self.assertIn("GPU 1: 580.1, 1980 MHz, Exclusive_Process", str(vars(findings)))

    def test_a_folder_that_cannot_be_listed_is_left(self):
        (self.output.folder / "kept").write_text("x", encoding="utf-8")
        error = OSError(5, "Input/output error")
        with unittest.mock.patch.object(Path, "glob", side_effect=error):
            with unittest.mock.patch("builtins.print"):
                self.output.leave(error)
        self.addCleanup(shutil.rmtree, self.output.folder, True)
        self.output.append("gpu_check.log", "goes on\n")
        self.assertEqual(self.output.size_of("gpu_check.log"), 8)

    def test_a_check_that_says_nothing_has_not_passed(self):
        from gpu_checks import machine, parity

        ran = machine.Ran(["megatron"], 0, "", 0.1)
        with unittest.mock.patch.object(self.machine, "megatron", lambda *_: ran):
            with self.assertRaises(machine.Failure):
                parity.selftest("parity", "add").run(self.machine)

    def test_vectors_are_unpacked_elsewhere_where_the_tree_cannot_be_written(self):
        import vectors
        from gpu_checks.machine import vectors_of

        kept = vectors.UNPACKED
        (self.output.folder / "file").touch()
        vectors.UNPACKED = self.output.folder / "file/vectors"
        try:
            self.assertTrue(any(vectors_of("pipeline").iterdir()))
            self.assertNotIn(str(self.output.folder), str(vectors.UNPACKED))
            self.machine.close()
            self.assertFalse(vectors.UNPACKED.exists())
        finally:
            vectors.UNPACKED = kept

    def test_a_test_program_that_skips_all_has_not_passed(self):
        from gpu_checks import machine, parity

        def tests(said):
            ran = machine.Ran(["parity_kernels"], 0, said, 0.1)
            with unittest.mock.patch.object(self.machine, "run", lambda _: ran):
                return parity.parity_tests(self.machine, "parity_kernels")

        skipped = "[  SKIPPED ] 5 tests, listed below:"
        self.assertIn("44 tests", tests(f"[  PASSED  ] 44 tests.\n{skipped}"))
        with self.assertRaises(machine.Failure) as failed:
            tests(f"[  PASSED  ] 0 tests.\n{skipped}")
        self.assertEqual(str(failed.exception), "no test ran")
        self.assertIn("5 tests", failed.exception.figure)

    def test_jobs_are_counted_by_what_this_process_may_use(self):
        from gpu_checks.machine import usable_cores

        self.assertEqual(
            usable_cores(),
            int(subprocess.check_output([ROOT / "tools/build_jobs", "--processors"])),
        )
        one = min(os.sched_getaffinity(0))
        script = f"import sys; sys.path.insert(0, {str(ROOT / 'tools')!r})\n"
        script += "from gpu_checks.machine import usable_cores; print(usable_cores())"
        done = subprocess.run(
            ["taskset", "-c", str(one), sys.executable, "-B", "-c", script],
            capture_output=True,
            text=True,
            check=True,
        )
        self.assertEqual(done.stdout, "1\n")


class Records(unittest.TestCase):
    def test_have_the_flags_of_the_runs(self):
        """A run whose flags changed needs its losses recorded again."""
        known = json.loads(LOSSES.read_text(encoding="utf-8"))
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
