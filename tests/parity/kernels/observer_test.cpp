// The data that an observer gets about every kernel: its name, its cost and all of its tensors.
#include "kernels/observer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "kernels/case.h"

namespace megatron::kernels {
namespace {

struct Seen {
  std::string kernel;
  Cost cost;
  std::vector<Operand> operands;
  Call::Again again;
};

class Recorder final : public Observer {
 public:
  void before(const Call& call) override { begun_ += call.kernel.size(); }
  void after(const Call& call) override {
    begun_ -= call.kernel.size();
    seen.push_back({std::string(call.kernel),
                    call.cost,
                    {call.operands.begin(), call.operands.end()},
                    call.again()});
  }
  std::vector<Seen> seen;
  size_t open() const { return begun_; }

 private:
  size_t begun_ = 0;
};

// Returns what the observer sees of the Case's call on a device.
std::vector<Seen> watch(const Case& c, Runtime& runtime, Case::Call& call) {
  Recorder recorder;
  runtime.stream().watch(&recorder);
  call.run(runtime.stream(), table(runtime.stream()));
  runtime.stream().watch(nullptr);
  EXPECT_EQ(recorder.open(), 0U) << c.kernel;
  return std::move(recorder.seen);
}

bool is_output(const Operand& operand, const Case::Call& call) {
  for (const auto& [name, tensor] : call.outputs)
    if (tensor.same_storage(operand.tensor)) return true;
  return false;
}

// Every output of a Case is among the operands that the kernel is said to write. Finds tensors that
// visit() omits or declares as inputs.
TEST(Observer, SeesEveryOutputOfEveryKernel) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  std::map<std::string, int> kernels;
  for (const Case& c : cases()) {
    Case::Call call = c.make(runtime);
    const std::vector<Seen> seen = watch(c, runtime, call);
    ASSERT_FALSE(seen.empty()) << c.kernel << " " << c.name;
    EXPECT_EQ(seen.back().kernel, c.kernel) << c.name;
    ++kernels[c.kernel];
    std::vector<Operand> operands;  // operands of one call, or of all calls in a list
    for (const Seen& one : seen)
      if (one.kernel == c.kernel)
        operands.insert(operands.end(), one.operands.begin(), one.operands.end());
    for (const auto& [name, tensor] : call.outputs) {
      if (tensor.elements() == 0) continue;
      const bool written = std::ranges::any_of(operands, [&](const Operand& o) {
        return o.access != Access::read && o.tensor.same_storage(tensor);
      });
      EXPECT_TRUE(written) << c.kernel << " " << c.name << ": " << name;
    }
    for (const Operand& o : operands)
      EXPECT_TRUE(o.access == Access::read || is_output(o, call))
          << c.kernel << " " << c.name << ": " << o.name;
    EXPECT_TRUE(!c.real || seen.back().cost.bytes > 0) << c.kernel << " " << c.name;
  }
  EXPECT_EQ(kernels.size(), sizeof(Table) / sizeof(Table::gemm));
}

// The call that again() keeps gives the same bits on the same tensors.
TEST(Observer, AnotherCallOnTheSameTensorsGivesTheSame) {
  Runtime runtime({DeviceKind::cpu, 0}, 2);
  std::map<std::string, int> made;
  int compared = 0;
  for (const Case& c : cases()) {
    if (c.dtype != DType::f32 || c.real || made[c.kernel]++ >= 3) continue;
    Case::Call call = c.make(runtime);
    const Seen seen = watch(c, runtime, call).back();
    std::vector<std::vector<double>> first;
    for (const auto& [name, tensor] : call.outputs) first.push_back(to_doubles(tensor));
    Case::Call other = c.make(runtime);
    const std::vector<Operand> operands = watch(c, runtime, other).back().operands;
    std::vector<Tensor> tensors;
    for (const Operand& o : operands) tensors.push_back(o.tensor);
    // The second call would start from the result of the first.
    const bool updates = std::ranges::any_of(operands, [&](const Operand& o) {
      return o.access == Access::update || (o.access == Access::read && is_output(o, other));
    });
    if (updates) continue;
    ++compared;
    seen.again(tensors, runtime.stream());
    for (size_t i = 0; i < other.outputs.size(); ++i) {
      const std::vector<double> second = to_doubles(other.outputs[i].second);
      ASSERT_EQ(second.size(), first[i].size());
      if (second.empty()) continue;
      EXPECT_EQ(0, std::memcmp(second.data(), first[i].data(), second.size() * sizeof(double)))
          << c.kernel << " " << c.name << ": " << other.outputs[i].first;
    }
  }
  EXPECT_GT(compared, 30);
}

TEST(Observer, CountsTheWorkOfProductsAndOfSeenPairs) {
  Runtime runtime({DeviceKind::meta, 0}, 1);
  Arena& arena = runtime.arena(MemoryClass::scratch);
  const auto make = [&](Shape shape) { return Tensor::empty(arena, shape, DType::bf16, "t"); };
  GemmArgs gemm{.a = make({5, 7}), .b = make({3, 7}), .out = make({5, 3}), .transpose_b = true};
  EXPECT_EQ(cost_of(gemm).flops, 2 * 5 * 7 * 3);
  EXPECT_EQ(cost_of(gemm).bytes, 2 * (35 + 21 + 15));
  gemm.beta = 1;
  EXPECT_EQ(cost_of(gemm).bytes, 2 * (35 + 21 + 2 * 15));
  AttentionArgs attention{
      .q = make({2, 4, 6, 8}), .k = make({2, 4, 3, 8}), .v = make({2, 4, 3, 8})};
  attention.out = make({2, 4, 6, 8});
  EXPECT_EQ(cost_of(attention).flops, 2 * 2 * (2 * 6 * 8) * (4 * 5 / 2));
  attention.causal = false;
  EXPECT_EQ(cost_of(attention).flops, 2 * 2 * (2 * 6 * 8) * 16);
  EXPECT_EQ(seen_pairs(1, 10, true), 10);  // a decoded token sees its whole cache
  EXPECT_EQ(seen_pairs(5, 5, true, 2), 1 + 2 + 2 + 2 + 2);
  EXPECT_EQ(seen_pairs(5, 5, false, 2), 2 + 3 + 3 + 3 + 2);  // one key on each side
  EXPECT_EQ(seen_pairs(5, 5, false, 5), 25);
}

}  // namespace
}  // namespace megatron::kernels
