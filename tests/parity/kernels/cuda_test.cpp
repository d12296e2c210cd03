// Compares CUDA's kernels with the reference in every small Case, on a GPU or on CUDA's runtime for
// the CPU (tests/cuda_shim). The bits must not depend on the order of threads.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>

#include "base/error.h"
#include "device/cuda_plugin.h"
#include "kernels/case.h"
#include "kernels/for_each_kernel.h"

namespace megatron::kernels {
namespace {

// Few Cases per test, so that each test is short.
constexpr size_t kPart = 12;

struct Part {
  std::string kernel;
  DType dtype = DType::f32;
  size_t number = 0;
  std::vector<Case> cases;
};

std::vector<Part> parts() {
  std::vector<Part> all;
  std::map<std::pair<std::string, DType>, std::vector<Case>> grouped;
  for (const Case& c : cases()) {
    if (!c.real && c.dtype != DType::f64) grouped[{c.kernel, c.dtype}].push_back(c);
  }
  for (const auto& [key, list] : grouped) {
    for (size_t i = 0; i < list.size(); i += kPart) {
      const auto begin = list.begin() + static_cast<std::ptrdiff_t>(i);
      const auto end = list.begin() + static_cast<std::ptrdiff_t>(std::min(list.size(), i + kPart));
      all.push_back({key.first, key.second, i / kPart, {begin, end}});
    }
  }
  return all;
}

void PrintTo(const Part& part, std::ostream* out) { *out << part.cases.size() << " cases"; }

template <class F>
F* symbol(const char* name) {
  return reinterpret_cast<F*>(cuda_symbol(name));
}

// If there is a GPU, the program has not opened the shim.
bool has_shim() { return cuda_plugin().devices().front().name == "CUDA shim on the CPU"; }
std::string problems() { return has_shim() ? symbol<const char*()>("shim_problems")() : ""; }

// The case whose second run on the stand-in has the threads of a block in the descending order. A
// missing __syncthreads shows; a GPU has an order of its own.
Case in_both_orders(const Case& c) {
  if (!has_shim()) return c;
  Case both = c;
  both.make = [make = c.make](Runtime& runtime) {
    Case::Call call = make(runtime);
    if (runtime.device().kind != DeviceKind::cuda) return call;
    call.run = [run = call.run, runs = 0](Stream& stream, const Table& table) mutable {
      auto* const set = symbol<bool(const char*, int64_t)>("shim_set");
      ASSERT_TRUE(set("descending", runs++ % 2));
      run(stream, table);
      stream.synchronize();
      set("descending", 0);
    };
    return call;
  };
  return both;
}

class CudaParity : public ::testing::TestWithParam<Part> {
 protected:
  void SetUp() override { ASSERT_NE(cuda_state().plugin, nullptr) << cuda_state().why_not; }
};

// compare_with_reference runs each Case twice and requires equal bits.
TEST_P(CudaParity, EqualsReferenceInBothOrdersOfThreads) {
  Runtime runtime({DeviceKind::cuda}, 2);
  for (const Case& c : GetParam().cases) {
    try {
      const CaseResult result = compare_with_reference(in_both_orders(c), runtime);
      EXPECT_LE(result.worst, 1) << c.kernel << " " << c.name << ": " << result.output;
    } catch (const std::exception& error) {
      ADD_FAILURE() << c.kernel << " " << c.name << ": " << error.what();
    }
    EXPECT_EQ(problems(), "") << c.kernel << " " << c.name;
  }
}

INSTANTIATE_TEST_SUITE_P(Cases, CudaParity, ::testing::ValuesIn(parts()), [](const auto& info) {
  return info.param.kernel + "_" + std::string(name(info.param.dtype)) + "_" +
         std::to_string(info.param.number);
});

// Sums and copies accept doubles; other kernels refuse them with an error.
TEST(Cuda, DoublesAreRightOrRefusedInWords) {
  ASSERT_NE(cuda_state().plugin, nullptr) << cuda_state().why_not;
  Runtime runtime({DeviceKind::cuda}, 1);
  int right = 0, refused = 0;
  for (const Case& c : cases()) {
    if (c.real || c.dtype != DType::f64) continue;
    try {
      const CaseResult result = compare_with_reference(c, runtime);
      EXPECT_LE(result.worst, 1) << c.kernel << " " << c.name << ": " << result.output;
      ++right;
    } catch (const Error& error) {
      EXPECT_NE(std::string(error.what()).find("f64"), std::string::npos) << error.what();
      ++refused;
    }
  }
  EXPECT_GT(right, 0);
  EXPECT_GT(refused, 0);
}

}  // namespace
}  // namespace megatron::kernels
