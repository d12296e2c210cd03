// Self-tests of kernels, gradients, models and layouts on this machine. They need no files.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "device/device.h"
#include "selftest/environment.h"
#include "selftest/layout_matrix.h"
#include "selftest/report.h"

namespace megatron::selftest {

struct Check {
  std::string name;  // "layouts/llama fp64"
  std::function<void(const Environment&, Report&)> run;
};

// threads: CPU threads of the kernel checks. device: cpu or cuda.
//   kernels/<entry>        every Case that is not of real size: the device against the reference
//   gradients/<op>         central differences in fp64; on cuda fp32 against fp64
//   model/<model> <type>   a training step's loss and gradients against plain loops of another kind
//   layouts/<model> <type> data-parallel ranks and micro-batches against one rank; in bf16 the
//                          gradients' errors against fp32
//   bits/<model>           bit for bit: repeated, recomputed, with other numbers of threads
// real, on cuda: instead of them
//   real/<entry>           every Case of real size against the CPU's kernels
std::vector<Check> checks(int threads, DeviceKind device = DeviceKind::cpu, bool real = false);

struct SelftestOptions {
  std::string fault;   // name, or empty
  std::string filter;  // only checks whose name contains it; "=NAME" for exactly one
  int threads = 1;
  DeviceKind device = DeviceKind::cpu;  // cpu or cuda
  bool real = false;                    // tests cuda's kernels at real sizes instead of the checks
  // Runs the layout matrix instead of the checks: strength 2 covers every pair of values, 3 every
  // triple (0: the checks). Only LayoutMatrix::part(part, parts) is run. With a fault: runs the
  // rows that the fault affects, in fp64, until one fails.
  int layouts = 0;
  int part = 0, parts = 1;
  Precisions precisions = Precisions::all;  // for the layout matrix; always fp32 on cuda
  bool list = false;  // prints the names of the selected checks or rows without running them
};
struct Summary {
  std::vector<std::string> passed, failed;  // names of checks
};
// Calls print with a line for each completed check, and the last line "N passed, N failed". A check
// that throws has failed. Throws Error for an unknown fault, for a fault of the matrix given to the
// checks or the reverse, for a fault or real sizes on a device that has none, and for a filter or
// part that leaves no check or row.
Summary run(const SelftestOptions& options, const std::function<void(std::string_view)>& print);

}  // namespace megatron::selftest
