// The cpu's bias by distance on every instruction set, and its forms that must agree: runs of
// consecutive keys, and keys in any order.
#include <cmath>
#include <numeric>

#include "amx_emulator.h"
#include "kernels/cpu/attention/attention.h"
#include "kernels/reference/table.h"
#include "unit/kernels/cpu_maker.h"
#include "unit/kernels/instruction_sets.h"

namespace megatron::kernels::cpu::attention_bias {
namespace {

constexpr int64_t kSamples = 2, kLength = 150, kHeads = 4, kKeyHeads = 2, kSize = 40;

struct Call {
  AttentionArgs forward;
  AttentionBackwardArgs backward;

  std::vector<Tensor> results() const {
    return {forward.out, forward.lse, backward.dq, backward.dk, backward.dv, backward.dbias.out};
  }
  void run(const Table& kernels, Stream& stream) const {
    kernels.attention(forward, stream);
    kernels.attention_backward(backward, stream);
  }
  void run(Stream& stream) const {
    attention(forward, stream);
    attention_backward(backward, stream);
  }
};

class BiasedCalls {
 public:
  explicit BiasedCalls(DType type, int64_t radius = 9) : type_(type) {
    q_ = make.normal({kSamples, kLength, kHeads, kSize}, type);
    k_ = make.normal({kSamples, kLength, kKeyHeads, kSize}, type);
    v_ = make.normal({kSamples, kLength, kKeyHeads, kSize}, type);
    dout_ = make.normal(q_.shape(), type);
    bias_ = make.normal({2 * radius + 1, kHeads}, DType::f32);
  }

  Maker make;

  Call call(double soft_cap = 0) {
    Call made;
    AttentionArgs& f = made.forward;
    f = {.q = q_,
         .k = k_,
         .v = v_,
         .causal = false,
         .scale = 0.2,
         .soft_cap = soft_cap,
         .bias = bias_};
    f.out = make.empty(q_.shape(), type_);
    f.lse = make.empty({kSamples, kHeads, kLength}, DType::f32);
    made.backward = {.q = q_,
                     .k = k_,
                     .v = v_,
                     .out = f.out,
                     .lse = f.lse,
                     .dout = dout_,
                     .causal = false,
                     .scale = 0.2,
                     .soft_cap = soft_cap,
                     .bias = bias_};
    made.backward.dq = make.empty(q_.shape(), DType::f32);
    made.backward.dk = make.empty(k_.shape(), DType::f32);
    made.backward.dv = make.empty(v_.shape(), DType::f32);
    made.backward.dbias.out = make.empty(bias_.shape(), DType::f32);
    return made;
  }
  // The positions of queries, and of keys; the same in each sample.
  void place(Call& call, const std::vector<int32_t>& queries, const std::vector<int32_t>& keys) {
    const auto positions = [&](std::vector<int32_t> one) {
      one.insert(one.end(), one.begin(), one.end());
      return make.integers(one).view({kSamples, kLength});
    };
    call.forward.q_positions = call.backward.q_positions = positions(queries);
    call.forward.k_positions = call.backward.k_positions = positions(keys);
  }

 private:
  DType type_;
  Tensor q_, k_, v_, dout_, bias_;
};

std::vector<int32_t> counting(int32_t first) {
  std::vector<int32_t> positions(kLength);
  std::iota(positions.begin(), positions.end(), first);
  return positions;
}

TEST(AttentionBias, IsTheReferencesOnEveryInstructionSet) {
  const UseBf16Products use(Bf16Products::widened);
  for (const DType type : kTypes) {
    for (const double soft_cap : {0.0, 1.5}) {
      BiasedCalls calls(type);
      const Call want = calls.call(soft_cap);
      want.run(reference_table(), calls.make.stream());
      for_each_target([&](int64_t target) {
        const Call got = calls.call(soft_cap);
        got.run(calls.make.stream());
        for (size_t i = 0; i < got.results().size(); ++i) {
          const double bound = type == DType::bf16 ? 0.02 : 1e-5;
          EXPECT_LE(error(got.results()[i], to_doubles(want.results()[i])), bound)
              << hwy::TargetName(target) << " " << name(type) << " result " << i;
        }
      });
    }
  }
}

// Positions that count up from a number other than 0, as in a part of a sequence.
TEST(AttentionBias, DependsOnDistancesOnly) {
  for (const auto& [type, products] : types_and_ways()) {
    if (slow(products)) continue;
    const UseBf16Products use(products);
    BiasedCalls calls(type);
    const Call want = calls.call();
    Call got = calls.call();
    calls.place(got, counting(1000), counting(1000));
    want.run(calls.make.stream());
    got.run(calls.make.stream());
    for (size_t i = 0; i < got.results().size(); ++i)
      EXPECT_TRUE(same_bits(got.results()[i], want.results()[i])) << name(type) << " " << i;
  }
}

// A gap between two keys of a tile, and keys in falling order.
TEST(AttentionBias, OfKeysThatAreNotConsecutiveIsTheReferences) {
  for (const int64_t radius : {3, 70}) {
    BiasedCalls calls(DType::f32, radius);
    std::vector<int32_t> keys = counting(0);
    for (size_t j = 40; j < keys.size(); ++j) keys[j] += 60;
    std::reverse(keys.begin() + 70, keys.begin() + 90);
    Call want = calls.call(), got = calls.call();
    for (Call* call : {&want, &got}) calls.place(*call, counting(50), keys);
    want.run(reference_table(), calls.make.stream());
    got.run(calls.make.stream());
    for (size_t i = 0; i < got.results().size(); ++i)
      EXPECT_LE(error(got.results()[i], to_doubles(want.results()[i])), 1e-5) << i;
  }
}

// The same code with and without one.
TEST(AttentionBias, OfZerosGivesTheBitsOfNone) {
  for (const auto& [type, products] : types_and_ways()) {
    if (slow(products)) continue;
    const UseBf16Products use(products);
    BiasedCalls calls(type);
    Call none = calls.call(), zeros = calls.call();
    none.forward.bias = none.backward.bias = none.backward.dbias.out = {};
    const Tensor zero = calls.make.values(Doubles(5 * kHeads, 0), DType::f32).view({5, kHeads});
    zeros.forward.bias = zeros.backward.bias = zero;
    zeros.backward.dbias.out = {};
    none.run(calls.make.stream());
    zeros.run(calls.make.stream());
    for (size_t i = 0; i + 1 < none.results().size(); ++i)
      EXPECT_TRUE(same_bits(none.results()[i], zeros.results()[i])) << name(type) << " " << i;
  }
}

}  // namespace
}  // namespace megatron::kernels::cpu::attention_bias
