// The parts of attention's contract that context parallelism needs: two ranks with half of the
// tokens each pass keys and values around a ring. Their values and gradients equal those of one
// rank with all tokens.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "base/philox.h"
#include "dist/ranks.h"
#include "kernels/table.h"

namespace megatron::kernels {
namespace {

using testing::make;

constexpr int kRanks = 2;
constexpr int64_t kBatch = 2, kShare = 21, kLength = kRanks * kShare, kHeads = 4, kKeyHeads = 2,
                  kSize = 8;
constexpr double kHidden = -std::numeric_limits<double>::infinity();

struct Form {
  DeviceKind device;
  DType type;
  double tolerance;
  int64_t window = 0, chunk = 0;
  double soft_cap = 0;
  bool sinks = false;
};

// All tokens' tensors, the same on every rank.
struct Whole {
  Whole(const Form& f, Runtime& runtime) {
    const auto normal = [&](std::string_view name, Shape shape, DType type) {
      const RandomStream stream(3, name);
      std::vector<double> values(static_cast<size_t>(shape.elements()));
      for (size_t i = 0; i < values.size(); ++i) values[i] = stream.normal(i);
      return make(runtime, shape, type, values);
    };
    const Shape rows = {kBatch, kLength, kHeads, kSize}, keys = {kBatch, kLength, kKeyHeads, kSize};
    q = normal("q", rows, f.type);
    k = normal("k", keys, f.type);
    v = normal("v", keys, f.type);
    dout = normal("dout", rows, f.type);
    if (f.sinks) sinks = normal("sinks", {kHeads}, accumulator(f.type));
  }
  Tensor q, k, v, dout, sinks;
};

AttentionArgs forward_args(const Form& f, const Tensor& q, const Tensor& k, const Tensor& v) {
  return {.q = q,
          .k = k,
          .v = v,
          .scale = 0.5,
          .window = f.window,
          .chunk = f.chunk,
          .soft_cap = f.soft_cap};
}

AttentionBackwardArgs backward_args(const AttentionArgs& a, const Tensor& out, const Tensor& lse,
                                    const Tensor& dout) {
  return {.q = a.q,
          .k = a.k,
          .v = a.v,
          .out = out,
          .lse = lse,
          .dout = dout,
          .q_positions = a.q_positions,
          .k_positions = a.k_positions,
          .scale = a.scale,
          .window = a.window,
          .chunk = a.chunk,
          .soft_cap = a.soft_cap,
          .sinks = a.sinks};
}

struct Results {
  Tensor out, dq, dk, dv, dsinks;
};

Results of_one_rank(const Form& f, const Whole& whole, Runtime& runtime) {
  Stream& stream = runtime.stream();
  AttentionArgs args = forward_args(f, whole.q, whole.k, whole.v);
  args.sinks = whole.sinks;
  args.out = make(runtime, whole.q.shape(), f.type);
  args.lse = make(runtime, {kBatch, kHeads, kLength}, accumulator(f.type));
  table(stream).attention(args, stream);
  AttentionBackwardArgs back = backward_args(args, args.out, args.lse, whole.dout);
  back.dq = make(runtime, whole.q.shape(), f.type);
  back.dk = make(runtime, whole.k.shape(), f.type);
  back.dv = make(runtime, whole.v.shape(), f.type);
  if (f.sinks) back.dsinks.out = make(runtime, {kHeads}, accumulator(f.type));
  table(stream).attention_backward(back, stream);
  return {args.out, back.dq, back.dk, back.dv, back.dsinks.out};
}

// One rank of the ring.
class RingRank {
 public:
  RingRank(const Form& f, const Whole& whole, comm::Group& group, Runtime& runtime)
      : f_(f),
        group_(group),
        runtime_(runtime),
        stream_(runtime.stream()),
        wide_(accumulator(f.type)),
        q_(share(whole.q)),
        k_(share(whole.k)),
        v_(share(whole.v)),
        dout_(share(whole.dout)),
        sinks_(whole.sinks) {}

  Results run() {
    forward();
    return backward();
  }

 private:
  Tensor share(const Tensor& whole) {
    const Tensor part = whole.slice(1, group_.rank() * kShare, kShare);
    Tensor own = make(runtime_, part.shape(), part.dtype());
    table(stream_).copy({.x = part, .out = own}, stream_);
    return own;
  }
  Tensor positions(int rank) {
    Tensor t = make(runtime_, {kBatch, kShare}, DType::i32);
    for (int64_t i = 0; i < kBatch * kShare; ++i)
      t.data<int32_t>()[i] = static_cast<int32_t>(rank * kShare + i % kShare);
    return t;
  }
  // Calls attention over the keys that this rank holds in a step.
  AttentionArgs call(int step) {
    AttentionArgs args = forward_args(f_, q_, k_, v_);
    args.q_positions = positions(group_.rank());
    args.k_positions = positions((group_.rank() - step + kRanks) % kRanks);
    if (step == 0) args.sinks = sinks_;  // sinks count once
    return args;
  }
  void pass_on(Tensor& t) {
    const int to = (group_.rank() + 1) % kRanks, from = (group_.rank() - 1 + kRanks) % kRanks;
    Tensor arrived = make(runtime_, t.shape(), t.dtype());
    if (group_.rank() == 0) group_.send(t, to, stream_, "ring").wait(stream_);
    group_.recv(arrived, from, stream_, "ring").wait(stream_);
    if (group_.rank() != 0) group_.send(t, to, stream_, "ring").wait(stream_);
    t = arrived;
  }

  void forward() {
    std::vector<double> out(static_cast<size_t>(q_.elements())),
        lse(static_cast<size_t>(kBatch * kHeads * kShare), kHidden);
    for (int step = 0; step < kRanks; ++step) {
      AttentionArgs args = call(step);
      args.out = make(runtime_, q_.shape(), f_.type);
      args.lse = make(runtime_, {kBatch, kHeads, kShare}, wide_);
      table(stream_).attention(args, stream_);
      merge(to_doubles(args.out), to_doubles(args.lse), out, lse);
      pass_on(k_);
      pass_on(v_);
    }
    out_ = make(runtime_, q_.shape(), f_.type, out);
    lse_ = make(runtime_, {kBatch, kHeads, kShare}, wide_, lse);
  }
  static void merge(const std::vector<double>& part, const std::vector<double>& part_lse,
                    std::vector<double>& out, std::vector<double>& lse) {
    for (int64_t row = 0; row < kBatch * kHeads * kShare; ++row) {
      const int64_t b = row / (kHeads * kShare), n = row / kShare % kHeads, i = row % kShare;
      double &all = lse[static_cast<size_t>(row)], more = part_lse[static_cast<size_t>(row)];
      const double top = std::max(all, more);
      if (top == kHidden) continue;
      const double sum = top + std::log(std::exp(all - top) + std::exp(more - top));
      for (int64_t d = 0; d < kSize; ++d) {
        const auto at = static_cast<size_t>(((b * kShare + i) * kHeads + n) * kSize + d);
        out[at] = std::exp(all - sum) * out[at] + std::exp(more - sum) * part[at];
      }
      all = sum;
    }
  }

  // dk and dv travel with the keys and values that they belong to, and return to their rank with
  // them.
  Results backward() {
    Results r{.out = out_,
              .dq = make(runtime_, q_.shape(), wide_),
              .dk = make(runtime_, k_.shape(), wide_),
              .dv = make(runtime_, v_.shape(), wide_),
              .dsinks = f_.sinks ? make(runtime_, {kHeads}, wide_) : Tensor()};
    for (int step = 0; step < kRanks; ++step) {
      AttentionBackwardArgs args = backward_args(call(step), out_, lse_, dout_);
      args.dq = r.dq;
      args.dk = r.dk;
      args.dv = r.dv;
      args.beta_q = args.beta_kv = step == 0 ? 0 : 1;
      if (step == 0) args.dsinks.out = r.dsinks;
      table(stream_).attention_backward(args, stream_);
      for (Tensor* t : {&k_, &v_, &r.dk, &r.dv}) pass_on(*t);
    }
    if (f_.sinks) group_.all_reduce(r.dsinks, comm::Reduce::sum, stream_, "dsinks").wait(stream_);
    return r;
  }

  const Form& f_;
  comm::Group& group_;
  Runtime& runtime_;
  Stream& stream_;
  DType wide_;
  Tensor q_, k_, v_, dout_, sinks_, out_, lse_;
};

void expect_near(const Tensor& got, const Tensor& want, double tolerance, const std::string& what) {
  const std::vector<double> x = to_doubles(got), y = to_doubles(want);
  ASSERT_EQ(x.size(), y.size()) << what;
  for (size_t i = 0; i < x.size(); ++i)
    ASSERT_NEAR(x[i], y[i], tolerance * std::max(1.0, std::abs(y[i]))) << what << " at " << i;
}

void expect_one_ranks(const Form& f) {
  testing::each_rank(kRanks, f.device, [&](comm::Group& world, Runtime& runtime) {
    const Whole whole(f, runtime);
    const Results want = of_one_rank(f, whole, runtime);
    const Results got = RingRank(f, whole, world, runtime).run();
    const auto share = [&](const Tensor& t) { return t.slice(1, world.rank() * kShare, kShare); };
    const std::string of = fmt::format("{} window {} chunk {} cap {} sinks {}: ", name(f.type),
                                       f.window, f.chunk, f.soft_cap, f.sinks);
    expect_near(got.out, share(want.out), f.tolerance, of + "out");
    expect_near(got.dq, share(want.dq), f.tolerance, of + "dq");
    expect_near(got.dk, share(want.dk), f.tolerance, of + "dk");
    expect_near(got.dv, share(want.dv), f.tolerance, of + "dv");
    if (f.sinks) expect_near(got.dsinks, want.dsinks, f.tolerance, of + "dsinks");
  });
}

TEST(RingAttention, IsThatOfOneRank) {
  for (const Form& f :
       {Form{DeviceKind::reference, DType::f64, 1e-12}, Form{DeviceKind::cpu, DType::f32, 1e-5},
        Form{DeviceKind::cpu, DType::bf16, 5e-2}}) {
    expect_one_ranks(f);
    Form bounded = f;
    bounded.window = 9;
    expect_one_ranks(bounded);
    Form sunk = f;
    sunk.sinks = true;
    expect_one_ranks(sunk);
    sunk.window = 26;
    sunk.chunk = 30;
    sunk.soft_cap = 1.5;
    expect_one_ranks(sunk);
  }
}

}  // namespace
}  // namespace megatron::kernels
