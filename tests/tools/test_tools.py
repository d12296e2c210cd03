"""The checkers of tools/ on small trees with planted faults: each is found, a sound tree passes."""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

TOOLS = Path(__file__).resolve().parents[2] / "tools"

SOUND = {
    "src/main.cpp": '#include "cli/program.h"\n',
    "src/base/error.h": "#pragma once\n#include <string>\n",
    "src/base/json.cpp": '#include <nlohmann/json.hpp>\n#include "base/error.h"\n',
    "src/tensor/tensor.h": '#pragma once\n#include "base/error.h"\n',
    "src/kernels/cpu/products/gemm.cpp": (
        '#include <dnnl.hpp>\n#include "hwy/highway.h"\n#include "tensor/tensor.h"\n'
    ),
    "src/cli/program.h": '#pragma once\n#include "tensor/tensor.h"\n',
}

KERNEL_LIST = """
#define MEGATRON_SUM_KERNELS(X) \\
  X(sum, SumArgs)
#define MEGATRON_KERNELS(X) \\
  X(gemm, GemmArgs) \\
  X(add, AddArgs) \\
  MEGATRON_SUM_KERNELS(X)
"""
CASES = """
void gemm_cases(List& list) { list.push_back({.kernel = "gemm", .name = "tiny"}); }
void others(List& list) {
  add("add", 3);
  one.kernel = "sum";
}
"""
CASE_LIST = """
std::vector<Case> cases() {
  List all;
  gemm_cases(all);
  others(all);
  return all;
}
"""
OPS = """
struct Pair { Var first, second; };
Var add(Tape& tape, const Var& a, const Var& b);
Pair split(Tape& tape, const Var& x);
Tensor loss(megatron::Tape &tape, const Var& x);
bool same(const Var& a, const Var& b);
"""
GRADIENT_CASES = """
void add_cases(List& cases) {
  cases.push_back({"add", [](Tape& t) { return add(t, x[0], x[1]); }});
  cases.push_back({"split", [](Tape& t) { return split(t, x[0]); }});
  cases.push_back({"loss", [](Tape& t) { return ops::loss(t, x[0]); }});
}
"""
COVERED = {
    "src/kernels/list.h": KERNEL_LIST,
    "src/kernels/case.cpp": CASE_LIST,
    "src/ops/sums.h": OPS,
    "src/ops/gradient_check.h": "Error gradient_error(Tape& tape);\n",
    "src/ops/gradient_check.cpp": GRADIENT_CASES,
    "src/kernels/cases/all.cpp": CASES,
    "src/kernels/reference/table.cpp": (
        "#define ENTRY(name, Args) .name = reference::name,\nTable t() { return {MEGATRON_KERNELS(ENTRY)}; }"
    ),
    "src/kernels/cpu/table.cpp": "Table t() { return {\n  .gemm = gemm,\n  .add = cpu::add,\n  .sum = cpu::sum,\n}; }",
    "src/kernels/cpu/products/gemm.cpp": "void gemm(const GemmArgs& a, Stream& s) { blocks(a, s); }\n",
    "src/kernels/cpu/add.cpp": "void add(A& a, S& s) { loop(a); }  // not reference::add\n",
    "src/kernels/cpu/sum.cpp": (
        "#define ENTRY(name, Args) \\\n  void name(const Args& a, S& s) { run_##name(a); }\nMEGATRON_SUM_KERNELS(ENTRY)\n"
    ),
}


class ToolTest(unittest.TestCase):
    tool = ""
    arguments = ()  # before the tree
    tree = {}

    def check(self, **changes):
        """Runs the tool on the tree with files changed: a__b_h names a/b.h; None removes it."""
        files = dict(self.tree)
        for key, text in changes.items():
            stem, suffix = key.rsplit("_", 1)
            files[stem.replace("__", "/") + "." + suffix] = text
        with tempfile.TemporaryDirectory() as folder:
            for name, text in files.items():
                if text is not None:
                    path = Path(folder) / name
                    path.parent.mkdir(parents=True, exist_ok=True)
                    path.write_text(text)
            done = subprocess.run(
                [sys.executable, "-B", str(TOOLS / self.tool), *self.arguments, folder],
                capture_output=True,
                text=True,
                check=False,
            )
        self.assertEqual(done.stderr, "")
        return done.returncode, done.stdout

    def refused(self, *texts, **changes):
        code, output = self.check(**changes)
        self.assertEqual(code, 1, output)
        for text in texts:
            self.assertIn(text, output)
        self.assertIn(
            f"{len([l for l in output.splitlines() if l.startswith(('src/', 'tests/'))])} problems",
            output,
        )

    def accepted(self, **changes):
        code, output = self.check(**changes)
        self.assertEqual(code, 0, output)
        return output


class Layers(ToolTest):
    tool = "check_layers.py"
    tree = SOUND

    def test_sound_tree(self):
        self.assertIn("6 files in 4 rooms", self.accepted())

    def test_upward_include(self):
        self.refused(
            'src/tensor/tensor.h:2: "cli/program.h" is upward: tensor has rank 2, cli 17',
            src__tensor__tensor_h='#pragma once\n#include "cli/program.h"\n',
            src__cli__program_h="#pragma once\n",
        )

    def test_strangers(self):
        self.refused(
            "src/data/a.h:1",
            "strangers of rank 3",
            src__data__a_h='#include "kernels/b.h"\n',
            src__kernels__b_h="\n",
        )

    def test_cycle(self):
        self.refused(
            "include cycle: base/a.h -> base/b.h -> base/c.h -> base/a.h",
            src__base__a_h='#include "base/b.h"\n',
            src__base__b_h='\n#include "base/c.h"\n',
            src__base__c_h='#include "base/a.h"\n',
        )

    def test_file_that_includes_itself(self):
        self.refused("src/base/a.h:1: include cycle", src__base__a_h='#include "base/a.h"\n')

    def test_diamond_is_no_cycle(self):
        self.accepted(
            src__base__a_h='#include "base/b.h"\n#include "base/c.h"\n',
            src__base__b_h='#include "base/d.h"\n',
            src__base__c_h='#include "base/d.h"\n',
            src__base__d_h="\n",
        )

    def test_families_of_models_stay_in_models(self):
        family = {
            "src__models__gpt__config_h": "struct GptConfig {\n};\n",
            "src__models__model_cpp": '#include "models/gpt/config.h"\nGptConfig c;\n',
            "tests__unit__models__a_cpp": '#include "models/gpt/config.h"\n',
        }
        self.accepted(**family)
        self.refused(
            'src/cli/a.cpp:1: "models/gpt/config.h" stays in models',
            "src/cli/a.cpp:2: GptConfig is a type of a family",
            src__cli__a_cpp='#include "models/gpt/config.h"\nGptConfig c;\n',
            **family,
        )
        self.refused(
            "tests/unit/plan/a.cpp:1: GptConfig is a type of a family",
            tests__unit__plan__a_cpp="GptConfig c;\n",
            **family,
        )
        self.accepted(
            src__models__adapters__a_h="struct LoraConfig {\n};\n",
            src__settings__a_cpp='#include "models/adapters/a.h"\nLoraConfig c;\n',
        )

    def test_a_model_is_not_asked_for_its_flags(self):
        header = {"src__models__model_flags_h": "struct ModelFlags {\n};\n"}
        filled_in = '#include "models/model_flags.h"\nModelFlags f;\n'
        self.accepted(src__settings__a_cpp=filled_in, tests__unit__plan__a_cpp=filled_in, **header)
        self.refused(
            'src/plan/a.cpp:1: "models/model_flags.h" here: a model is known by facts()',
            "src/plan/a.cpp:2: ModelFlags here:",
            src__plan__a_cpp=filled_in,
            **header,
        )
        asks = "auto f = model->flags();\n"
        self.accepted(src__models__a_cpp=asks)
        self.refused("src/settings/a.cpp:1: flags() of a model: ", src__settings__a_cpp=asks)

    def test_missing_file(self):
        self.refused(
            'src/base/a.h:3: "base/none.h" names no file',
            src__base__a_h='\n/* one\n*/ #include "base/none.h"\n',
        )

    def test_short_and_relative_names(self):
        self.refused(
            'src/base/a.h:1: "error.h" must be written from src/',
            'src/base/a.h:2: "../base/error.h" must be',
            src__base__a_h='#include "error.h"\n#include "../base/error.h"\n',
        )

    def test_comments_are_no_includes(self):
        self.accepted(
            src__base__a_h='// #include "cli/program.h"\n/*\n#include "cli/program.h"\n*/\n'
            'const char* pattern = "src/*.h"; const int n = 1\'000;\n'
        )

    def test_include_after_a_star_in_a_string_is_seen(self):
        self.refused(
            "src/base/a.h:2", src__base__a_h='const char* p = "/*";\n#include "cli/program.h"\n'
        )

    def test_computed_include(self):
        self.refused("src/base/a.h:1: computed include", src__base__a_h="#include SOME_FILE\n")

    def test_vendor_headers_outside_of_their_rooms(self):
        for header in (
            "cuda_runtime.h",
            "cublasLt.h",
            "nccl.h",
            "mpi.h",
            "dnnl.hpp",
            "nlohmann/json.hpp",
            "spdlog/spdlog.h",
            "hwy/highway.h",
            "pcre2.h",
            "unicode/uchar.h",
            "simdjson.h",
            "httplib.h",
            "gtest/gtest.h",
        ):
            with self.subTest(header):
                self.refused(
                    f"src/models/a.cpp:1: '{header}' stays in",
                    src__models__a_cpp=f"#include <{header}>\n",
                )
                self.refused(f"'{header}' stays in", src__models__a_cpp=f'#include "{header}"\n')

    def test_vendor_headers_inside_of_their_rooms(self):
        self.accepted(
            src__kernels__cuda__a_cpp="#include <cuda_runtime.h>\n#include <cublasLt.h>\n",
            src__device__cuda__a_cpp="#include <cuda.h>\n",
            src__comm__gpu__nccl__a_cpp="#include <nccl.h>\n#include <cuda_runtime.h>\n",
            src__comm__mpi__a_cpp="#include <mpi.h>\n",
            src__base__log_cpp="#include <spdlog/spdlog.h>\n",
            src__tokenizers__a_cpp="#include <pcre2.h>\n#include <unicode/unorm2.h>\n",
            src__data__a_cpp="#include <simdjson.h>\n",
            src__server__http__a_cpp="#include <httplib.h>\n",
        )

    def test_unknown_room_and_file_in_no_room(self):
        self.refused(
            "src/misc/a.h:1: room 'misc'",
            "src/stray.cpp:1: stands in no room",
            src__misc__a_h="\n",
            src__stray_cpp="\n",
        )

    def test_program_includes_cli_only(self):
        self.refused("src/main.cpp:1", src__main_cpp='#include "tensor/tensor.h"\n')

    def test_long_file(self):
        self.accepted(src__base__a_cpp="\n" * 600)
        self.refused("src/base/a.cpp:601: 601 lines", src__base__a_cpp="\n" * 601)

    def test_library_linked_upward(self):
        self.accepted(src__CMakeLists_txt="megatron_room(tensor LOWER base LIBRARIES cli::x)\n")
        self.refused(
            "src/CMakeLists.txt:2: tensor (rank 2) may not link cli",
            src__CMakeLists_txt="# megatron_room(base LOWER cli)\n"
            "megatron_room(tensor LOWER base cli)\n",
        )


class Coverage(ToolTest):
    tool = "check_coverage"
    tree = COVERED

    def test_sound_tree(self):
        output = self.accepted()
        rows = {line.split()[0]: line.split()[1:] for line in output.splitlines()[:4]}
        self.assertEqual(rows["kernel"], ["case", "reference", "cpu"])
        self.assertEqual(rows["gemm"], ["yes", "own", "own"])
        self.assertEqual(rows["sum"], ["yes", "own", "own"])

    def test_kernel_without_a_case(self):
        self.refused(
            "src/kernels/list.h:3: kernel 'sum' has no Case",
            src__kernels__cases__all_cpp=CASES.replace(
                'one.kernel = "sum"', '// one.kernel = "sum"'
            ),
        )

    def test_ways_to_state_a_kernel(self):
        for text in (
            'Case{"sum", 1}',
            'add(list, "sum")',
            'x = make_case("sum")',
            '.kernel = "sum"',
        ):
            with self.subTest(text):
                self.accepted(
                    src__kernels__cases__all_cpp=CASES.replace('one.kernel = "sum"', text)
                )
        for text in ('name = "sum"', 'outputs("sum")', 'add(name, "sum of squares")'):
            with self.subTest(text):
                self.refused(
                    "'sum' has no Case",
                    src__kernels__cases__all_cpp=CASES.replace('one.kernel = "sum"', text),
                )

    def test_case_of_no_kernel(self):
        self.refused(
            "src/kernels/cases/more.cpp:1: a Case of 'gem'",
            src__kernels__cases__more_cpp='Case c{.kernel = "gem"};\n',
        )

    def test_case_that_nothing_collects(self):
        for call in ("", "// others(all);", '"others(all)";', "all.others(all);"):
            with self.subTest(call):
                self.refused(
                    "src/kernels/cases/all.cpp:4: a Case of 'add' in no function that",
                    "src/kernels/cases/all.cpp:5: a Case of 'sum' in no function that",
                    "'add' has no Case",
                    "'sum' has no Case",
                    src__kernels__case_cpp=CASE_LIST.replace("others(all);", call),
                )
        self.refused("src/kernels/case.cpp, where", src__kernels__case_cpp=None)

    def test_case_that_its_collector_leaves_out(self):
        one = 'Case one() { return {.kernel = "sum"}; }\n'
        cases = CASES.replace('one.kernel = "sum"', "for (auto make : {one}) list.push(make())")
        self.accepted(src__kernels__cases__all_cpp=one + cases)
        self.refused(
            "all.cpp:1: a Case of 'sum' in no function",
            src__kernels__cases__all_cpp=one + cases.replace("{one}", "{}"),
        )

    def test_a_name_in_another_file_reaches_nothing(self):
        self.refused(
            "src/kernels/cases/sum.cpp:1: a Case of 'sum' in no function that",
            src__kernels__cases__sum_cpp='Case sum() { return {.kernel = "sum"}; }\n',
            src__kernels__cases__all_cpp=CASES.replace('one.kernel = "sum"', "table.sum(sum, 1)"),
        )

    def test_entry_that_is_null(self):
        for backend, text in (("reference", "add, .sum = sum"), ("cpu", "add, .sum = cpu::sum")):
            full = f"Table t() {{ return {{.gemm = gemm, .add = {text}}}; }}"
            path = f"src__kernels__{backend}__table_cpp"
            self.accepted(**{path: full})
            begin = full.index(", .sum")
            for null in ("", ", .sum = nullptr"):
                with self.subTest(backend=backend, null=null):
                    self.refused(f"'sum' is null on {backend}", **{path: full[:begin] + null + "}; }"})

    def test_op_without_a_gradient_case(self):
        for name, line in (("add", 3), ("split", 4), ("loss", 5)):
            for other in (f"other_{name}(t", f"{name}_other(t", f"t.{name}(t", f'"{name}(t" + f('):
                with self.subTest(other):
                    cases = GRADIENT_CASES.replace(f"return ops::{name}(t", f"return {name}(t")
                    cases = cases.replace(f"return {name}(t", "return " + other)
                    self.refused(
                        f"src/ops/sums.h:{line}: op '{name}' has no case in",
                        src__ops__gradient_check_cpp=cases,
                    )
        self.refused("op 'add' has no case", src__ops__gradient_check_cpp=None)

    def test_kernel_that_is_absent(self):
        self.refused(
            "kernel 'add' is null on cpu",
            src__kernels__cpu__table_cpp="Table t() { return {.gemm = gemm, .sum = sum}; }",
        )

    def test_kernel_that_is_nullptr(self):
        self.refused(
            "src/kernels/cpu/table.cpp:2: kernel 'gemm' is null on cpu",
            src__kernels__cpu__table_cpp="Table t() { return {\n.gemm = nullptr, .add = add, .sum = sum}; }",
        )

    def test_kernel_that_is_the_references(self):
        self.refused(
            "src/kernels/cpu/table.cpp:1: kernel 'gemm' of cpu is not its own",
            src__kernels__cpu__table_cpp="Table t() { return {.gemm = reference::gemm, "
            ".add = add, .sum = sum}; }",
        )

    def test_kernel_that_calls_the_reference(self):
        self.refused(
            "kernel 'gemm' of cpu is not its own: gemm -> gemm.cpp:1",
            src__kernels__cpu__products__gemm_cpp="void gemm(const A& a, S& s) { reference::gemm(a, s); }\n",
        )

    def test_kernel_that_calls_the_reference_through_a_helper(self):
        self.refused(
            "gemm -> slow_way -> gemm.cpp:1",
            src__kernels__cpu__products__gemm_cpp="void slow_way(A& a) { table(DeviceKind::reference).x(a); }\n"
            "void gemm(const A& a, S& s) { if (a.odd) { slow_way(a); } }\n",
        )

    def test_kernel_that_is_defined_elsewhere(self):
        self.refused(
            "kernel 'gemm' of cpu is not its own: gemm -> defined outside",
            src__kernels__cpu__products__gemm_cpp="using other::gemm;\n",
        )

    def test_kernel_of_a_list_that_reaches_the_reference(self):
        made = COVERED["src/kernels/cpu/sum.cpp"].replace("run_##name(a)", "reference::name(a)")
        self.refused(
            "kernel 'sum' of cpu is not its own: sum -> sum.cpp:3",
            src__kernels__cpu__sum_cpp=made,
        )

    def test_list_that_is_absent_or_empty(self):
        self.refused("no list MEGATRON_KERNELS", src__kernels__list_h="#define MEGATRON_KERNELS(X)\n")

    def test_back_end_without_a_table(self):
        self.refused("back-end cpu has no table.cpp", src__kernels__cpu__table_cpp=None)


FLAG_ROWS = """flag\tvalue\tdefault\tchoices\tverdict\twhy\tdetail
--help\tswitch\t\t\tsupported\thelp\t
--lr\tFLOAT\t0.10\t\tsupported\tloss\t
--style\tTEXT\ta\ta|b\tsupported\tloss\tchoices
--rate\tFLOAT\t\t\tsupported\t=--lr\t
--graph\tswitch\t\t\tignored\tgpu\t
--parts\tINT\t1\t\trefused\tparts\t1
"""
FLAG_HELP = """Usage: x

optimizer: steps
  --lr FLOAT      rate [0.1]
  --style TEXT    style (a)
                  [a]

configuration: help
  -h,--help GROUP print this help
"""


class FlagTable(unittest.TestCase):
    options = {
        "--help": ["help", "'==SUPPRESS=='", "_HelpAction", "None"],
        "--lr": ["lr", "0.10", "_StoreAction", "None"],
        "--style": ["style", "'a'", "_StoreAction", "('a', 'b')"],
        "--rate": ["rate", "None", "_StoreAction", "None"],
        "--graph": ["graph", "False", "_StoreTrueAction", "None"],
        "--parts": ["parts", "1", "_StoreAction", "None"],
    }

    def check(self, change=lambda rows: rows, usage=FLAG_HELP, options=None, write=False):
        """Exit code, output and table after a run on a small tree whose rows are changed."""
        with tempfile.TemporaryDirectory() as folder:
            root = Path(folder)
            files = {
                "tools/flag_table": (TOOLS / "flag_table").read_text(encoding="utf-8"),
                "tools/vectors.py": (TOOLS / "vectors.py").read_text(encoding="utf-8"),
                "src/cli/flags/table.tsv": change(FLAG_ROWS),
                "src/cli/flags/older.tsv": FLAG_ROWS.splitlines()[0] + "\n",
                "src/cli/flags/reasons.tsv": "verdict\tid\tit\nignored\tgpu\tis\nrefused\tparts\tis\n",
                "tests/golden/vectors/megatron/flags/megatron_flags.json": json.dumps(
                    options or self.options
                ),
                "program": f"#!/bin/sh\ncat <<'END'\n{usage}END\n",
            }
            for name, content in files.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content, encoding="utf-8")
            (root / "program").chmod(0o755)
            command = [sys.executable, "-B", root / "tools/flag_table", root / "program"]
            done = subprocess.run(
                command + (["--write"] if write else []), capture_output=True, text=True, check=False
            )
            self.assertEqual(done.stderr, "")
            table = (root / "src/cli/flags/table.tsv").read_text(encoding="utf-8")
        return done.returncode, done.stdout, table

    def refused(self, text, **changes):
        code, output, _ = self.check(**changes)
        self.assertEqual(code, 1, output)
        self.assertIn(text, output)

    def test_sound_table(self):
        code, output, table = self.check(write=True)
        self.assertEqual(code, 0, output)
        self.assertIn("of 6 options of Megatron-LM 4 are supported, 1 ignored, 1 refused", output)
        self.assertEqual(table.replace("0.1\t", "0.10\t"), FLAG_ROWS)

    def test_faults(self):
        for old, new, text in [
            ("--graph\tswitch\t\t\tignored\tgpu\t\n", "", "--graph is not in table.tsv"),
            ("--graph", "--graphs", "--graphs is no option of Megatron-LM"),
            ("ignored\tgpu", "ignored\tcpu", "reasons.tsv has no 'cpu' for ignored"),
            ("ignored\tgpu", "refused\tparts", "no ignored flag has the reason 'gpu'"),
            ("ignored\tgpu", "supported\tloss", "--graph is said to be supported"),
            ("supported\tloss\t\n", "supported\t\t\n", "--lr names no observable"),
            ("supported\tloss\t\n", "refused\tparts\t\n", "--lr is refused, and train has it"),
            ("FLOAT\t0.1", "INT\t0.1", "--lr: the table says INT, train says FLOAT"),
            ("=--lr", "=--lrr", "--rate is said to be --lrr"),
            ("\ta|b", "\ta", "--style: default or choices are not"),
            ("switch\t\t\tignored", "TEXT\t\t\tignored", "--graph: one of Megatron-LM"),
            ("loss\tchoices", "loss\tdefault", "column detail says 'default'"),
        ]:
            self.assertIn(old, FLAG_ROWS)
            self.refused(text, change=lambda rows, old=old, new=new: rows.replace(old, new, 1))

    def test_new_flags(self):
        self.refused("--lr: its default '0.2'", usage=FLAG_HELP.replace("0.1]", "0.2]"))
        self.refused("--parts is refused, and train has it", usage=FLAG_HELP + "  --parts INT  n [1]\n")
        more = {**self.options, "--new": ["new", "3", "_StoreAction", "None"]}
        self.refused("--new is not in table.tsv", options=more)
        code, output, table = self.check(options=more, write=True)
        self.assertEqual(code, 1)
        self.assertIn("no 'unsorted' for refused", output)
        self.assertIn("--new\tTEXT\t3\t\trefused\tunsorted\t\n", table)



PROMISES = {
    "README.md": "It adds\nnumbers.\n\n| capability | state |\n|---|---|\n| Sums | tested |\n| Clouds | untested |\n\n",
    "docs/promises.md": (
        "# Promises\n\n## Sums\n\n| promise | page | shown by |\n|---|---|---|\n"
        "| It adds numbers | README.md | `tests/unit/sum_test.cpp` Sum.Adds |\n"
        "\n## Clouds\n\n| promise | page | shown by |\n|---|---|---|\n| numbers. | README.md | untested |\n"
    ),
    "tests/unit/sum_test.cpp": "TEST(Sum, Adds) {}\n",
}


class Promises(unittest.TestCase):
    def output_with(self, path="README.md", old="", new=""):
        with tempfile.TemporaryDirectory() as folder:
            for name, text in PROMISES.items():
                file = Path(folder) / name
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_text(text.replace(old, new) if name == path and old else text)
            done = subprocess.run([TOOLS / "check_promises", folder], text=True, stdout=subprocess.PIPE)
            self.assertEqual(done.returncode != 0, bool(old), done.stdout)
            return done.stdout

    def test_what_no_longer_holds_is_named(self):
        self.assertIn("2 promises, 1 with a test, 1 untested", self.output_with())
        self.assertIn("README.md does not say 'It adds numbers'", self.output_with(old="adds", new="takes"))
        self.assertIn("has no test Sum.Adds", self.output_with("tests/unit/sum_test.cpp", "Adds", "Takes"))
        self.assertIn("no tests/unit/s_test.cpp", self.output_with("docs/promises.md", "sum_test", "s_test"))
        self.assertIn("'Sums' the state done,", self.output_with(old="| tested", new="| done"))
        self.assertIn("'Clouds' the state None,", self.output_with(old="| Clouds | untested |\n", new=""))

if __name__ == "__main__":
    unittest.main()
