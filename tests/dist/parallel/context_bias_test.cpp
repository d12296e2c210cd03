// A bias by distance in every exchange of context-parallel ranks: values and gradients equal those
// of one rank, where the gradient of the bias is the sum of the ranks' parts.
#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>
#include <vector>

#include "base/philox.h"
#include "dist/parallel/divided_sequences.h"
#include "parallel/context_attention.h"

namespace megatron::parallel::context_bias {
namespace {

using testing::make;

constexpr int64_t kSequences = 2, kLength = 32, kHeads = 4, kKeyHeads = 2, kSize = 8, kRadius = 5;

struct Form {
  ContextExchange exchange;
  int ranks, inner = 1;
  bool causal = true, packed = false;
  int64_t window = 0;
  DeviceKind device = DeviceKind::reference;

  DType type() const { return device == DeviceKind::reference ? DType::f64 : DType::f32; }
  double tolerance() const { return type() == DType::f64 ? 1e-12 : 2e-5; }
  std::string str() const {
    return fmt::format("{} {} ranks {} {}{} window {}", megatron::name(device), name(exchange),
                       ranks, causal ? "causal" : "two-sided", packed ? " packed" : "", window);
  }
};

Documents documents() {
  Documents made;
  for (int64_t b = 0; b < kSequences; ++b) {
    const std::vector<int64_t> borders = {0, 7 + b, 8 + b, 25, kLength};
    for (size_t d = 0; d + 1 < borders.size(); ++d) made.add(borders[d], borders[d + 1]);
  }
  return made;
}

// A rank's view of the sequences: the rows, of [sequences * length], that it holds, and tensors.
class Share {
 public:
  // rows: in order.
  Share(const Form& form, Runtime& runtime, std::vector<int64_t> rows)
      : form_(form), runtime_(runtime), rows_(std::move(rows)) {}

  const std::vector<int64_t>& rows() const { return rows_; }
  int64_t tokens() const { return static_cast<int64_t>(rows_.size()) / kSequences; }
  // Normal values that depend on the row in the whole sequences.
  Tensor tokens(std::string_view name, int64_t heads) const {
    const RandomStream stream(7, name);
    std::vector<double> values;
    for (const int64_t row : rows_)
      for (int64_t i = 0; i < heads * kSize; ++i)
        values.push_back(stream.normal(static_cast<uint64_t>(row * heads * kSize + i)));
    return make(runtime_, {kSequences, tokens(), heads, kSize}, form_.type(), values);
  }
  Tensor bias() const {
    const RandomStream stream(7, "bias");
    std::vector<double> values(static_cast<size_t>((2 * kRadius + 1) * kHeads));
    for (size_t i = 0; i < values.size(); ++i) values[i] = stream.normal(i);
    return make(runtime_, {2 * kRadius + 1, kHeads}, form_.type(), values);
  }
  Tensor held(const Indices& of_rows) const {
    Indices values;
    for (const int64_t row : rows_) values.push_back(of_rows[static_cast<size_t>(row)]);
    return integers(runtime_, values).view({kSequences, tokens()});
  }

 private:
  const Form& form_;
  Runtime& runtime_;
  std::vector<int64_t> rows_;
};

struct Results {
  std::vector<Tensor> of_tokens;  // out, dq, dk, dv
  Tensor dbias;
};

Results attend(const Form& form, Runtime& runtime, const Share& share, const ContextTokens& tokens,
               const ContextParallel& context) {
  Tape tape(runtime);
  const ops::Heads heads{tape.leaf(share.tokens("q", kHeads)),
                         tape.leaf(share.tokens("k", kKeyHeads)),
                         tape.leaf(share.tokens("v", kKeyHeads)),
                         {}};
  ops::AttentionOptions options{.scale = 0.5, .causal = form.causal, .window = form.window};
  options.bias = tape.leaf(share.bias());
  if (form.packed) {
    options.window_start = share.held(documents().starts);
    if (!form.causal) options.window_end = share.held(documents().ends);
  }
  const Var out = context_attention(tape, heads, options, tokens, context);
  tape.set_gradient(out, share.tokens("dout", kHeads).view(out.value.shape()));
  tape.backward();
  return {{out.value, tape.gradient(heads.q), tape.gradient(heads.k), tape.gradient(heads.v)},
          tape.gradient(options.bias)};
}

void expect_near(const std::vector<double>& got, const std::vector<double>& want, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), want.size()) << what;
  for (size_t i = 0; i < got.size(); ++i)
    ASSERT_NEAR(got[i], want[i], tolerance * std::max(1.0, std::abs(want[i]))) << what << " " << i;
}

void expect_one_ranks(const Form& form, comm::Group& world, Runtime& runtime) {
  const TokenLayout layout{kSequences, kLength, world.rank(), form.ranks, form.inner};
  const Documents of_tokens = documents();
  const Indices indices = tokens_by_rank(layout, form.packed ? of_tokens.starts : Indices{});
  const std::vector<int64_t> all = rows_of(layout, indices);
  const auto own = all.begin() + world.rank() * layout.rows();
  const Share share(form, runtime, {own, own + layout.rows()});

  const ContextTokens tokens = context_tokens(runtime, layout, indices, of_tokens);
  const int rank = world.rank(), inner = form.inner;
  const auto neighbours = world.split(rank / inner, rank, inner),
             ring = world.split(rank % inner, rank, form.ranks / inner);
  const Results got = attend(form, runtime, share, tokens,
                             {.group = &world,
                              .async = nullptr,
                              .inner = neighbours.get(),
                              .ring = ring.get(),
                              .ring_async = nullptr,
                              .exchange = form.exchange});
  world.all_reduce(got.dbias, comm::Reduce::sum, runtime.stream(), "dbias").wait(runtime.stream());

  std::vector<int64_t> every(all.size());
  std::iota(every.begin(), every.end(), 0);
  const Results want = attend(form, runtime, Share(form, runtime, every), {}, {});
  const std::array names = {"out", "dq", "dk", "dv"};
  for (size_t t = 0; t < names.size(); ++t) {
    const std::vector<double> whole = to_doubles(want.of_tokens[t]);
    const auto width = static_cast<int64_t>(whole.size() / every.size());
    std::vector<double> part;
    for (const int64_t row : share.rows())
      part.insert(part.end(), whole.begin() + row * width, whole.begin() + (row + 1) * width);
    expect_near(to_doubles(got.of_tokens[t]), part, form.tolerance(), form.str() + " " + names[t]);
  }
  expect_near(to_doubles(got.dbias), to_doubles(want.dbias), form.tolerance(),
              form.str() + " dbias");
}

TEST(ContextBias, IsThatOfOneRankInEachExchange) {
  using enum ContextExchange;
  std::vector<Form> forms = {{p2p, 2}, {p2p, 4}, {all_gather, 2},
                             {a2a, 2}, {a2a, 4}, {a2a_p2p, 4, 2}};
  // Windows that hide most keys, so that ranks exchange only the seen ones.
  forms.push_back({.exchange = p2p, .ranks = 2, .window = 3});
  for (const Form& form : forms) {
    testing::each_rank(form.ranks, form.device, [&](comm::Group& world, Runtime& runtime) {
      for (const bool causal : {true, false}) {
        for (const bool packed : {false, true}) {
          Form f = form;
          f.causal = causal;
          f.packed = packed;
          expect_one_ranks(f, world, runtime);
        }
      }
    });
  }
}

TEST(ContextBias, IsThatOfOneRankOnTheCpu) {
  using enum ContextExchange;
  for (const ContextExchange exchange : {p2p, all_gather, a2a}) {
    const Form form{.exchange = exchange, .ranks = 2, .packed = true, .device = DeviceKind::cpu};
    testing::each_rank(2, form.device, [&](comm::Group& world, Runtime& runtime) {
      expect_one_ranks(form, world, runtime);
    });
  }
}

}  // namespace
}  // namespace megatron::parallel::context_bias
