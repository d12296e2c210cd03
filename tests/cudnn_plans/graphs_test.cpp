// The graphs of attention, computed by the interpreter part by part, compared with the reference.
#include <gtest/gtest.h>

#include <cmath>

#include "kernels/cuda/attention/cudnn/attention_graph.h"
#include "kernels/cuda/attention/cudnn/attention_run.h"
#include "kernels/table.h"
#include "played.h"

namespace megatron::kernels::cuda {
namespace {

struct Call {
  int64_t samples, queries, keys, heads, kv_heads;
  bool causal;
  DType type;
};

class CudnnGraphs : public ::testing::TestWithParam<Call> {
 protected:
  static constexpr int64_t kWidth = 16, kMax = int64_t{768} << 20;

  Tensor empty(Shape shape, DType type) {
    return Tensor::empty(runtime.arena(MemoryClass::activations), shape, type, "t");
  }
  Tensor filled(int64_t length, int64_t heads, double step) {
    Tensor t = empty({GetParam().samples, length, heads, kWidth}, GetParam().type);
    std::vector<double> values(static_cast<size_t>(t.elements()));
    for (size_t i = 0; i < values.size(); ++i)
      values[i] = std::sin(step * static_cast<double>(i * i % 7919));
    copy_from(t, values);
    return t;
  }
  // The tensors are parts of one tensor, or separate ones if keys and queries differ in number.
  void SetUp() override {
    const auto [samples, queries, keys, heads, kv_heads, causal, type] = GetParam();
    if (queries == keys) {
      const Tensor qkv = filled(queries, heads + 2 * kv_heads, 0.37);
      args.q = qkv.slice(2, 0, heads);
      args.k = qkv.slice(2, heads, kv_heads);
      args.v = qkv.slice(2, heads + kv_heads, kv_heads);
    } else {
      args.q = filled(queries, heads, 0.37);
      args.k = filled(keys, kv_heads, 0.61);
      args.v = filled(keys, kv_heads, 0.83);
    }
    args.dout = filled(queries, heads, 0.29);
    args.out = empty(args.q.shape(), type);
    args.lse = empty({samples, heads, queries}, DType::f32);
    args.dq = empty(args.q.shape(), type);
    args.dk = empty(args.k.shape(), type);
    args.dv = empty(args.v.shape(), type);
    args.causal = causal;
    args.scale = 0.25;
  }
  AttentionArgs forward() const {
    AttentionArgs f;
    f.q = args.q;
    f.k = args.k;
    f.v = args.v;
    f.out = args.out;
    f.lse = args.lse;
    f.causal = args.causal;
    f.scale = args.scale;
    return f;
  }
  void run(const AttentionArgs& call, LibraryAttentionPart part) {
    ASSERT_TRUE(library_takes(call));
    const auto plan = cudnn::Plan::make(cudnn::attention_graph(cudnn::shape_of(call, part)), {},
                                        {.least = 0, .most = library_part(call).workspace});
    ASSERT_NE(plan, nullptr);
    cudnn::run_attention(*plan, nullptr, call, part,
                         library_attention_scratch(call, runtime.stream()));
  }
  void run(const AttentionBackwardArgs& call, LibraryAttentionPart part, bool any_order) {
    ASSERT_TRUE(library_takes(call, any_order));
    const auto graph =
        any_order ? cudnn::attention_backward_graph_in_any_order : cudnn::attention_backward_graph;
    const auto plan =
        cudnn::Plan::make(graph(cudnn::shape_of(call, part)), {},
                          {.least = 0, .most = library_part(call, kMax, any_order).workspace});
    ASSERT_NE(plan, nullptr);
    runtime.stream().allow_nondeterministic(any_order);
    const LibraryAttentionScratch scratch = library_attention_scratch(call, runtime.stream());
    EXPECT_EQ(scratch.dq_sums.defined(), any_order);
    cudnn::run_attention(*plan, nullptr, call, part, scratch, [&](const Tensor& sums) {
      table(DeviceKind::reference).fill({.out = sums, .value = 0}, runtime.stream());
    });
  }
  cudnn::Limits limits_of(const LibraryAttentionPart& part) const {
    return {.least = part.ordered, .most = part.workspace};
  }
  struct Gradients {
    std::vector<double> dq, dk, dv;
    int64_t launches = 0;
    bool operator==(const Gradients&) const = default;
  };
  // Gradients computed as in a run that allows this many bytes for a part.
  Gradients gradients(int64_t most) {
    const Table& reference = table(DeviceKind::reference);
    for (const Tensor* t : {&args.dq, &args.dk, &args.dv})
      reference.fill({.out = *t, .value = 1000}, runtime.stream());
    runtime.stream().limit_attention_workspace(most);
    const LibraryAttentionPart part = library_part(args, most);
    const auto plan = cudnn::Plan::make(
        cudnn::attention_backward_graph(cudnn::shape_of(args, part)), {}, limits_of(part));
    if (plan == nullptr) return {};
    const int64_t before = played_launches;
    cudnn::run_attention(*plan, nullptr, args, part,
                         library_attention_scratch(args, runtime.stream()), [](const Tensor&) {});
    return {to_doubles(args.dq), to_doubles(args.dk), to_doubles(args.dv),
            played_launches - before};
  }
  // Expects a difference of at most two roundings of the largest element.
  void expect_near(const Tensor& t, const std::vector<double>& expected, const char* name) const {
    const std::vector<double> values = to_doubles(t);
    double largest = 0, worst = 0;
    for (size_t i = 0; i < values.size(); ++i) {
      largest = std::max(largest, std::fabs(expected[i]));
      worst = std::max(worst, std::fabs(values[i] - expected[i]));
    }
    EXPECT_LT(worst, (GetParam().type == DType::bf16 ? 1.0 / 64 : 1.0 / 512) * largest) << name;
  }

  Runtime runtime{{DeviceKind::reference}, 1};
  AttentionBackwardArgs args;
};

TEST_P(CudnnGraphs, AreAttention) {
  const Table& reference = table(DeviceKind::reference);
  reference.attention(forward(), runtime.stream());
  reference.attention_backward(args, runtime.stream());
  const std::vector<double> out = to_doubles(args.out), lse = to_doubles(args.lse);
  const std::vector<double> dq = to_doubles(args.dq), dk = to_doubles(args.dk),
                            dv = to_doubles(args.dv);
  for (const auto& [whole, any_order] :
       {std::pair{true, false}, {false, false}, {true, true}, {false, true}}) {
    LibraryAttentionPart part = library_part(args, kMax, any_order);
    if (!whole) part.samples = part.kv_heads = 1;
    played_cudnn_version = whole ? 91900 : 90500;
    for (const Tensor* t : {&args.out, &args.lse, &args.dq, &args.dk, &args.dv})
      reference.fill({.out = *t, .value = 1000}, runtime.stream());
    run(forward(), part);
    run(args, part, any_order);
    expect_near(args.out, out, "out");
    expect_near(args.lse, lse, "lse");
    expect_near(args.dq, dq, "dq");
    expect_near(args.dk, dk, "dk");
    expect_near(args.dv, dv, "dv");
  }
}

TEST_P(CudnnGraphs, HaveTheSameBitsInPartsOfEverySize) {
  table(DeviceKind::reference).attention(forward(), runtime.stream());
  Gradients whole = gradients(kMax);
  EXPECT_EQ(whole.launches, 1);
  EXPECT_EQ(gradients(kMax), whole) << "again";
  const Gradients parts = gradients(1);
  EXPECT_EQ(parts.launches, GetParam().samples * GetParam().kv_heads);
  EXPECT_EQ(gradients(1), parts) << "again";
  whole.launches = parts.launches;
  EXPECT_EQ(parts, whole);
}

// cuDNN first proposes the engine that it expects to be the fastest. An engine is skipped if its
// bits differ from run to run (by its note, or because it has no memory for the gradients of all
// scores), or if it takes more memory than planned.
TEST_P(CudnnGraphs, TakeTheFirstEngineThatKeepsTheOrderOfSums) {
  const LibraryAttentionPart part = library_part(args, kMax);
  const auto taken = [&](std::vector<PlayedEngine> engines) -> std::optional<int64_t> {
    played_engines = std::move(engines);
    const auto plan = cudnn::Plan::make(
        cudnn::attention_backward_graph(cudnn::shape_of(args, part)), {}, limits_of(part));
    played_engines = {{}};
    return plan == nullptr ? std::nullopt : std::optional(plan->workspace());
  };
  const PlayedEngine noted{.noted_nondeterministic = true}, small{.workspace = part.ordered - 1},
      large{.workspace = part.workspace + 1}, slower{}, good{.workspace = part.ordered + 128};
  EXPECT_EQ(taken({noted, small, large, good, slower}), part.ordered + 128);
  EXPECT_EQ(taken({slower, good}), part.ordered);
  EXPECT_EQ(taken({noted, small, large}), std::nullopt);
}

INSTANTIATE_TEST_SUITE_P(Calls, CudnnGraphs,
                         ::testing::Values(Call{2, 128, 128, 4, 2, true, DType::bf16},
                                           Call{1, 128, 128, 2, 2, true, DType::f16},
                                           Call{2, 128, 192, 2, 1, false, DType::f16},
                                           Call{1, 192, 128, 3, 3, false, DType::bf16}));

}  // namespace
}  // namespace megatron::kernels::cuda
