// State spaces whose sequences, heads and groups ranks divide: values and gradients are those of
// each document alone on one rank.
#include "parallel/state_space_ranks.h"

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>
#include <optional>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/philox.h"
#include "dist/parallel/divided_sequences.h"

namespace megatron::parallel::state_space_ranks {
namespace {

using kernels::GateOrder;
using testing::make;
using Indices64 = std::vector<int64_t>;

constexpr int64_t kSequences = 2, kLength = 32, kHeads = 8, kSize = 3, kStates = 4, kConv = 4;
constexpr int64_t kInner = kHeads * kSize;

struct Form {
  std::optional<ContextExchange> exchange;  // none: one context-parallel rank
  int context = 1, inner = 1, tensor = 1;
  int64_t groups = 2;
  GateOrder order = GateOrder::gate_first;
  bool packed = true;
  DeviceKind device = DeviceKind::reference;

  int ranks() const { return context * tensor; }
  DType type() const { return device == DeviceKind::reference ? DType::f64 : DType::f32; }
  double tolerance() const { return type() == DType::f64 ? 1e-10 : 1e-5; }
  std::string str() const {
    return fmt::format("{} {} {} ranks, {} tensor ranks, {} groups, order {}{}",
                       megatron::name(device), exchange ? name(*exchange) : "whole", context,
                       tensor, groups, static_cast<int>(order), packed ? " packed" : "");
  }
};

// With two ranks runs begin at 8, 16 and 24. Documents begin there, next to it, so that the
// convolution reads over a border or would, and elsewhere; one has a single token, others several
// runs.
Documents documents(bool packed) {
  Documents made;
  for (const Indices64& borders :
       packed ? std::array{Indices64{0, 8, 14, 15, 23, kLength}, Indices64{0, 3, 18, kLength}}
              : std::array{Indices64{0, kLength}, Indices64{0, kLength}})
    for (size_t d = 0; d + 1 < borders.size(); ++d) made.add(borders[d], borders[d + 1]);
  return made;
}

// The part of consecutive blocks, each of them divided, that a tensor-parallel rank has.
Indices64 part_of(const Indices64& blocks, int ranks, int rank) {
  Indices64 part;
  for (int64_t begin = 0; const int64_t size : blocks) {
    for (int64_t i = 0; i < size / ranks; ++i) part.push_back(begin + rank * (size / ranks) + i);
    begin += size;
  }
  return part;
}

// A parameter of which a rank has some rows.
struct Part {
  Part(const Form& form, Runtime& runtime, const char* name, const Indices64& rows, int64_t width,
       DType type, double scale, double mean)
      : rows_of_all(rows) {
    const RandomStream stream(7, name);
    std::vector<double> values;
    for (const int64_t row : rows)
      for (int64_t i = 0; i < width; ++i)
        values.push_back(mean + scale * stream.normal(static_cast<uint64_t>(row * width + i)));
    const auto count = static_cast<int64_t>(rows.size());
    const Shape shape = width > 1 ? Shape{count, width} : Shape{count};
    parameter.name = name;
    parameter.value = make(runtime, shape, type, values);
    parameter.uses[0].grad = make(runtime, shape, kernels::accumulator(form.type()));
  }
  Indices64 rows_of_all;
  Parameter parameter;
};

class Space {
 public:
  Space(const Form& form, Runtime& runtime, int tensor_rank)
      : form_(form), tensor_rank_(tensor_rank) {
    const DType type = form.type(), wide = kernels::accumulator(type);
    const int64_t group = form.groups * kStates;
    const Indices64 channels = part({kInner, group, group}), heads = part({kHeads});
    parts_.emplace_back(form, runtime, "conv", channels, kConv, type, 0.5, 0.0);
    parts_.emplace_back(form, runtime, "conv_bias", channels, 1, type, 0.2, 0.0);
    parts_.emplace_back(form, runtime, "a_log", heads, 1, wide, 0.5, 0.0);
    parts_.emplace_back(form, runtime, "dt_bias", heads, 1, wide, 0.5, -1.0);
    parts_.emplace_back(form, runtime, "d", heads, 1, wide, 1.0, 0.0);
    parts_.emplace_back(form, runtime, "norm", part({kInner}), 1, type, 0.3, 1.0);
    columns_ = part({kInner, kInner, group, group, kHeads});
    space_ = {.shape = {.heads = kHeads / form.tensor,
                        .head_size = kSize,
                        .groups = std::max<int64_t>(form.groups / form.tensor, 1),
                        .states = kStates,
                        .sharing = std::max<int64_t>(form.tensor / form.groups, 1)},
              .conv = weight(0),
              .conv_bias = weight(1),
              .a_log = weight(2),
              .dt_bias = weight(3),
              .d = weight(4),
              .norm = form.order == GateOrder::gate_only ? Weight() : weight(5),
              .order = form.order};
  }

  Indices64 part(const Indices64& blocks) const {
    return part_of(blocks, form_.tensor, tensor_rank_);
  }
  const Indices64& columns() const { return columns_; }
  const ops::StateSpace& space() const { return space_; }
  std::vector<Part>& parts() { return parts_; }
  bool has(const Part& part) const {
    return form_.order != GateOrder::gate_only || part.parameter.name != "norm";
  }

 private:
  Weight weight(size_t i) { return Weight(parts_[i].parameter); }

  const Form form_;
  int tensor_rank_;
  std::vector<Part> parts_ = [] {
    std::vector<Part> none;
    none.reserve(6);  // weights point to the elements
    return none;
  }();
  Indices64 columns_;
  ops::StateSpace space_;
};

// Normal values by row and column of whole tensors.
Tensor values_of(const Form& form, Runtime& runtime, const char* name, const Indices64& rows,
                 const Indices64& columns) {
  const RandomStream stream(7, name);
  std::vector<double> values;
  for (const int64_t row : rows)
    for (const int64_t column : columns)
      values.push_back(stream.normal(static_cast<uint64_t>(row * 1000 + column)));
  return make(runtime, {static_cast<int64_t>(rows.size()), static_cast<int64_t>(columns.size())},
              form.type(), values);
}

struct Results {
  std::vector<double> out, dprojected;
};

// Runs the rows of `sequences` sequences.
Results run(const Form& form, Runtime& runtime, Space& space, const Indices64& rows,
            int64_t sequences, const Tensor& starts,
            const std::shared_ptr<const ops::StateSpaceExchange>& exchange) {
  Tape tape(runtime);
  const Var projected = tape.leaf(values_of(form, runtime, "projected", rows, space.columns()));
  const Var out = ops::state_space(tape, projected, sequences, space.space(), starts, exchange);
  tape.set_gradient(out, values_of(form, runtime, "dout", rows, space.part({kInner})));
  tape.backward();
  return {to_doubles(out.value), to_doubles(tape.gradient(projected))};
}

// One rank's results, each document by itself: rows of all columns, and sums of the parameters'
// gradients.
struct Expected {
  Expected(const Form& form, Runtime& runtime) {
    Form one = form;
    one.tensor = one.context = 1;
    space.emplace(one, runtime, 0);
    const Documents all = documents(form.packed);
    for (size_t begin = 0, end = 0; begin < all.ends.size(); begin = end) {
      end = begin + static_cast<size_t>(all.ends[begin] - all.starts[begin]) + 1;
      Indices64 rows(end - begin);
      std::iota(rows.begin(), rows.end(), static_cast<int64_t>(begin));
      const Results of = run(one, runtime, *space, rows, 1, {}, nullptr);
      results.out.insert(results.out.end(), of.out.begin(), of.out.end());
      results.dprojected.insert(results.dprojected.end(), of.dprojected.begin(),
                                of.dprojected.end());
    }
  }
  Results results;
  std::optional<Space> space;
};

void expect_near(const std::vector<double>& got, const std::vector<double>& all,
                 const Indices64& rows, const Indices64& columns, double tolerance,
                 const std::string& what) {
  ASSERT_EQ(got.size(), rows.size() * columns.size()) << what;
  const auto width = static_cast<int64_t>(all.size()) / (kSequences * kLength);
  size_t i = 0;
  for (const int64_t row : rows)
    for (const int64_t column : columns) {
      const double want = all[static_cast<size_t>(row * width + column)];
      ASSERT_NEAR(got[i++], want, tolerance * std::max(1.0, std::abs(want)))
          << what << " row " << row << " column " << column;
    }
}

void expect_documents_alone(const Form& form, comm::Group& world, Runtime& runtime) {
  const int tensor_rank = world.rank() % form.tensor, context_rank = world.rank() / form.tensor;
  const auto tensor = world.split(context_rank, world.rank(), form.tensor),
             context = world.split(tensor_rank, world.rank(), form.context),
             neighbours = context->split(context_rank / form.inner, context_rank, form.inner),
             ring =
                 context->split(context_rank % form.inner, context_rank, form.context / form.inner);
  const TokenLayout layout{kSequences, kLength, context_rank, form.context, form.inner, false};
  const Documents of_tokens = documents(form.packed);
  const Indices indices = tokens_by_rank(layout, of_tokens.starts);
  const Indices64 all = rows_of(layout, indices);
  const auto own = all.begin() + context_rank * layout.rows();
  const Indices64 rows(own, own + layout.rows());
  Indices held;
  for (const int64_t row : rows) held.push_back(of_tokens.starts[static_cast<size_t>(row)]);

  Space space(form, runtime, tensor_rank);
  ContextTokens tokens;
  if (form.context > 1) tokens = context_tokens(runtime, layout, indices, of_tokens);
  const auto exchange =
      state_space_exchange(space.space().shape, kConv, tokens,
                           {.group = context.get(),
                            .async = nullptr,
                            .inner = neighbours.get(),
                            .ring = ring.get(),
                            .ring_async = nullptr,
                            .exchange = form.exchange.value_or(ContextExchange::p2p)},
                           {.group = tensor.get(), .async = nullptr});
  const Results got =
      run(form, runtime, space, rows, kSequences, integers(runtime, held), exchange);

  Expected expected(form, runtime);
  const std::string text = form.str();
  expect_near(got.out, expected.results.out, rows, space.part({kInner}), form.tolerance(),
              text + " out");
  expect_near(got.dprojected, expected.results.dprojected, rows, space.columns(), form.tolerance(),
              text + " dprojected");
  for (size_t i = 0; i < space.parts().size(); ++i) {
    Part& part = space.parts()[i];
    if (!space.has(part)) continue;
    const Tensor& sum = part.parameter.uses[0].grad;
    context->all_reduce(sum, comm::Reduce::sum, runtime.stream(), "sum").wait(runtime.stream());
    const std::vector<double> want = to_doubles(expected.space->parts()[i].parameter.uses[0].grad),
                              own_sums = to_doubles(sum);
    const size_t width = own_sums.size() / part.rows_of_all.size();
    for (size_t j = 0; j < own_sums.size(); ++j) {
      const double value =
          want[static_cast<size_t>(part.rows_of_all[j / width]) * width + j % width];
      ASSERT_NEAR(own_sums[j], value, 4 * form.tolerance() * std::max(1.0, std::abs(value)))
          << text << " " << part.parameter.name << " " << j;
    }
  }
}

std::vector<Form> forms() {
  using enum ContextExchange;
  using enum GateOrder;
  std::vector<Form> all = {
      {.exchange = p2p, .context = 2},
      {.exchange = p2p, .context = 2, .packed = false},
      {.exchange = all_gather, .context = 2},
      {.exchange = all_gather, .context = 4, .packed = false},
      {.exchange = p2p, .context = 4},
      {.exchange = a2a, .context = 2},
      {.exchange = a2a, .context = 4},
      {.exchange = a2a_p2p, .context = 4, .inner = 2},
      {.exchange = a2a_p2p, .context = 4, .inner = 2, .packed = false},
      {.tensor = 2},
      {.tensor = 4},
      {.tensor = 4, .groups = 1, .order = norm_first},
      {.tensor = 2, .groups = 1, .order = gate_only},
      {.exchange = p2p, .context = 2, .tensor = 4},
      {.exchange = a2a, .context = 2, .tensor = 2, .groups = 1, .order = norm_first},
  };
  for (const ContextExchange exchange : {p2p, all_gather, a2a})
    all.push_back(
        {.exchange = exchange, .context = 2, .tensor = 2, .groups = 1, .device = DeviceKind::cpu});
  return all;
}

TEST(StateSpaceRanks, GiveWhatDocumentsGiveAlone) {
  for (const Form& form : forms())
    testing::each_rank(form.ranks(), form.device, [&](comm::Group& world, Runtime& runtime) {
      expect_documents_alone(form, world, runtime);
    });
}

TEST(StateSpaceRanks, NeedRunsThatTheConvolutionCanRead) {
  testing::each_rank(2, [](comm::Group& world, Runtime&) {
    ContextTokens tokens;
    tokens.layout = {1, 8, world.rank(), 2, 1, false};
    try {
      state_space_exchange({}, kConv, tokens, {.group = &world}, {});
      ADD_FAILURE() << "no error";
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("8 tokens of a sequence leave 2"), std::string::npos)
          << e.what();
    }
  });
}

}  // namespace
}  // namespace megatron::parallel::state_space_ranks
