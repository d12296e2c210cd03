"""tools/check_coverage --device cuda on a small back-end with planted faults."""

import unittest

from test_tools import COVERED, ToolTest

SUMS = """
#include "kernels/cuda/add.h"
__global__ void __launch_bounds__(kThreads) add_up(Rows<T> rows) { rows.run(); }
void add(const AddArgs& a, Stream& s) { launch("add", add_up, a, s); }
__global__ void sum_up(Rows<T> rows) { rows.run(); }
void sum(const SumArgs& a, Stream& s) { launch("sum", sum_up, a, s); }
"""
CUDA = {
    "src/kernels/cuda/table.cpp": (
        '#include "kernels/cuda/add.h"\n#include "kernels/cuda/products/gemm.h"\n'
        "Table cuda_table() { return {\n  .gemm = cuda::gemm,\n  .add = cuda::add,\n  .sum = cuda::sum,\n}; }"
    ),
    "src/kernels/cuda/add.h": "#pragma once\nvoid add(const AddArgs&, Stream&);\nvoid sum(const SumArgs&, Stream&);\n",
    "src/kernels/cuda/products/gemm.h": "#pragma once\nvoid gemm(const GemmArgs&, Stream&);\n",
    "src/kernels/cuda/plans.h": "#pragma once\nstruct Plans { void run(int); };\n",
    "src/kernels/cuda/plans.cpp": (
        '#include "kernels/cuda/plans.h"\nvoid Plans::run(int n) { cublasLtMatmul(n); }\n'
    ),
    "src/kernels/cuda/products/gemm.cpp": (
        '#include "kernels/cuda/products/gemm.h"\n#include "kernels/cuda/plans.h"\n'
        "void gemm(const GemmArgs& a, Stream& s) { plans.run(1); cuda_table().add(a, s); }\n"
    ),
    "src/kernels/cuda/sums.cu": SUMS,
    "cmake/cuda.cmake": (
        "function(megatron_cuda_shim folder)\n"
        "  megatron_cuda_sources(sources WITHOUT comm/gpu/nccl kernels/cuda/closed)\n"
    ),
}


class CudaCoverage(ToolTest):
    tool = "check_coverage"
    arguments = ("--device", "cuda")
    tree = COVERED | CUDA

    def test_entries_and_kernels_are_listed(self):
        output = self.accepted()
        self.assertIn("gemm    library: cuBLASLt; other entries\n", output)
        self.assertIn("add     own: add_up\n", output)
        self.assertIn("sum     own: sum_up\n", output)
        self.assertIn("sums.cu: add_up: shim, by the Cases of add\n", output)

    def test_entry_that_is_null(self):
        table = CUDA["src/kernels/cuda/table.cpp"].replace("cuda::gemm", "nullptr")
        self.refused(
            "kernel 'gemm' is null on cuda",
            src__kernels__cuda__table_cpp=table,
        )

    def test_entry_that_computes_nothing(self):
        self.refused(
            "entry 'gemm' reaches neither a kernel nor a library",
            src__kernels__cuda__products__gemm_cpp=CUDA["src/kernels/cuda/products/gemm.cpp"].replace("plans.run", "p"),
        )

    def test_kernel_that_nobody_launches(self):
        self.refused(
            "src/kernels/cuda/sums.cu:7: kernel 'alone' is reached by no entry",
            src__kernels__cuda__sums_cu=SUMS + "__global__ void alone(int n) { use(n); }\n",
        )

    def test_kernel_outside_the_shim_needs_a_reason(self):
        moved = {"src__kernels__cuda__sums_cu": None}
        self.refused(
            "src/kernels/cuda/closed/sums.cu:3: kernel 'add_up' does not run under the shim",
            src__kernels__cuda__closed__sums_cu=SUMS,
            **moved,
        )
        reason = "// Rows by TMA; not under the shim: it has no TMA.\n__global__"
        output = self.accepted(
            src__kernels__cuda__closed__sums_cu=SUMS.replace("__global__", reason), **moved
        )
        self.assertIn("closed/sums.cu: add_up: not under the shim: it has no TMA.\n", output)

    def test_another_device(self):
        self.arguments = ("--device", "cpu")
        code, output = self.check()
        self.assertEqual(code, 2)
        self.assertIn("it can be cuda", output)


if __name__ == "__main__":
    unittest.main()
