"""The files that define NVIDIA's functions as calls of an opened library: each passes on what it was given, in order.

Types alone do not show two arguments of one type that are exchanged."""

import re
import unittest
from pathlib import Path

SOURCES = Path(__file__).resolve().parents[2] / "src"
FILES = {
    "kernels/cuda/products/cublaslt/calls.cpp": "cublasLt",
    "kernels/cuda/attention/cudnn/calls.cpp": "cudnn",
    "comm/gpu/nccl/library/calls.cpp": "nccl",
}
CALL = re.compile(
    r"(\w+)\(([^()]*)\) \{\s*static const auto call =\s*find<decltype\((\w+)\)>\(\s*\"(\w+)\"\);"
    r"\s*(?:return )?call\(([^()]*)\);\s*\}"
)


def names(list_of):
    """Of parameters, or of arguments."""
    return [re.sub(r"[*\[\]]", "", part.split()[-1]) for part in list_of.split(",") if part.strip()]


def faults(text):
    for name, parameters, kind, looked_for, arguments in CALL.findall(text):
        if not name == kind == looked_for or names(parameters) != names(arguments):
            yield name


class Calls(unittest.TestCase):
    def test_each_is_passed_on_as_it_is(self):
        for file, start in FILES.items():
            text = (SOURCES / file).read_text()
            defined = re.findall(rf"\b({start}\w+)\([^()]*\) \{{", text)
            self.assertGreater(len(defined), 10, file)
            self.assertEqual([call[0] for call in CALL.findall(text)], defined, file)
            self.assertEqual(list(faults(text)), [], file)

    def test_faults_are_found(self):
        text = (SOURCES / "comm/gpu/nccl/library/calls.cpp").read_text()
        swapped = text.replace("call(in, out, count, type, op,", "call(out, in, count, type, op,")
        self.assertEqual(list(faults(swapped)), ["ncclAllReduce", "ncclReduceScatter"])
        renamed = text.replace('("ncclSend")', '("ncclRecv")')
        self.assertEqual(list(faults(renamed)), ["ncclSend"])


if __name__ == "__main__":
    unittest.main()
