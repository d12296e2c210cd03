// Routers, their losses, rows of experts and capacities, compared with Megatron-LM's.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "base/json.h"
#include "kernels/table.h"
#include "support.h"

namespace megatron::kernels {
namespace {

using Numbers = std::vector<double>;

// Tolerance of an element, relative to the largest.
constexpr double kRelative = 1e-6;

class RouterVectors : public ::testing::TestWithParam<DeviceKind> {
 protected:
  struct Routed {
    Tensor experts, weights;
  };

  static Json case_named(const std::string& name) {
    for (const Json& c : all_cases())
      if (c["name"].as_string() == name) return c;
    ADD_FAILURE() << name;
    return {};
  }
  static std::vector<Json> all_cases() {
    return Json::read(testing::vectors("moe/cases.json")).as_array();
  }
  static std::vector<Json> cases(const std::string& kind) {
    std::vector<Json> found;
    for (const Json& c : all_cases())
      if (c["kind"].as_string() == kind) found.push_back(c);
    return found;
  }
  static int64_t integer(const Json& c, const char* key, int64_t otherwise = 1) {
    return c.contains(key) ? c[key].as_integer() : otherwise;
  }
  static double number(const Json& c, const char* key, double otherwise) {
    return c.contains(key) ? c[key].as_number() : otherwise;
  }
  static RouterScore score(const Json& c) {
    const std::string name = c.contains("score") ? c["score"].as_string() : "softmax";
    return name == "sigmoid"        ? RouterScore::sigmoid
           : name == "sqrtsoftplus" ? RouterScore::sqrt_softplus
                                    : RouterScore::softmax;
  }

  // Returns a tensor of the file.
  Numbers numbers(const Json& c, const char* field) const {
    return file_.doubles(c["name"].as_string() + "." + field);
  }
  bool has(const Json& c, const char* field) const {
    return file_.find(c["name"].as_string() + "." + field) != nullptr;
  }

  Tensor empty(const Shape& shape, DType type = DType::f32) {
    return Tensor::empty(runtime_.arena(MemoryClass::activations), shape, type, "test");
  }
  Tensor of(const Shape& shape, const Numbers& values, DType type = DType::f32) {
    Tensor t = empty(shape, type);
    copy_from(t, std::span<const double>(values));
    return t;
  }
  Tensor of_integers(const Shape& shape, const Numbers& values) {
    const std::vector<int32_t> whole(values.begin(), values.end());
    Tensor t = empty(shape, DType::i32);
    copy_from(t, std::span<const int32_t>(whole));
    return t;
  }
  Tensor loaded(const Json& c, const char* field) {
    return of(file_.find(c["name"].as_string() + "." + field)->shape, numbers(c, field));
  }

  static void expect_near(const Numbers& found, const Numbers& expected, const std::string& what) {
    ASSERT_EQ(found.size(), expected.size()) << what;
    double largest = 0;
    for (const double value : expected) largest = std::max(largest, std::abs(value));
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_NEAR(found[i], expected[i], kRelative * largest) << what << " " << i;
  }

  const Table& kernels() { return table(GetParam()); }
  Stream& stream() { return runtime_.stream(); }

  // [T,k], the experts of a token in ascending order, with their weights, followed by -1 for tokens
  // with fewer experts. Entries of the map without a weight pad an expert to its capacity.
  Routed routed(const Json& c) {
    const Numbers map = numbers(c, "map"), probs = numbers(c, "probs");
    const auto experts = static_cast<size_t>(c["experts"].as_integer());
    const size_t tokens = map.size() / experts;
    std::vector<Numbers> chosen(tokens), weights(tokens);
    size_t choices = 0;
    for (size_t i = 0; i < map.size(); ++i) {
      if (map[i] == 0 || probs[i] == 0) continue;
      chosen[i / experts].push_back(static_cast<double>(i % experts));
      weights[i / experts].push_back(probs[i]);
      choices = std::max(choices, chosen[i / experts].size());
    }
    Numbers all_chosen, all_weights;
    for (size_t t = 0; t < tokens; ++t) {
      chosen[t].resize(choices, -1);
      weights[t].resize(choices);
      all_chosen.insert(all_chosen.end(), chosen[t].begin(), chosen[t].end());
      all_weights.insert(all_weights.end(), weights[t].begin(), weights[t].end());
    }
    const Shape shape = {static_cast<int64_t>(tokens), static_cast<int64_t>(choices)};
    return {of_integers(shape, all_chosen), of(shape, all_weights)};
  }

  Runtime runtime_{{GetParam(), 0}, 2};
  const checkpoint::SafetensorsFile file_{testing::vectors("moe/moe.safetensors")};
};

TEST_P(RouterVectors, WeightsAndTheirGradients) {
  int compared = 0;
  for (const Json& c : cases("topk_routing")) {
    const std::string name = c["name"].as_string();
    const int64_t experts = c["experts"].as_integer(), k = c["topk"].as_integer(),
                  tokens = c["tokens"].as_integer();
    RouterForm form{.score = score(c),
                    .softmax_first = c.contains("pre_softmax"),
                    .normalised = c.contains("score") && k > 1,
                    .scale = number(c, "scaling", 1),
                    .groups = integer(c, "groups"),
                    .chosen_groups = integer(c, "group_topk")};
    form.group_best = std::max<int64_t>(1, form.groups > 1 ? k / form.chosen_groups : 1);
    const Tensor logits = loaded(c, "logits"),
                 bias = has(c, "expert_bias") ? loaded(c, "expert_bias") : Tensor(),
                 chosen = empty({tokens, k}, DType::i32), weights = empty({tokens, k});
    kernels().route(
        {.form = form, .logits = logits, .bias = bias, .experts = chosen, .weights = weights},
        stream());
    const Numbers found = to_doubles(weights), e = to_doubles(chosen);
    Numbers dense(static_cast<size_t>(tokens * experts)), map = dense, dweights;
    const Numbers dprobs = numbers(c, "grad_probs");
    for (int64_t slot = 0; slot < tokens * k; ++slot) {
      const auto at = static_cast<size_t>(slot / k * experts) +
                      static_cast<size_t>(e[static_cast<size_t>(slot)]);
      dense[at] = found[static_cast<size_t>(slot)];
      map[at] = 1;
      dweights.push_back(dprobs[at]);
    }
    EXPECT_EQ(map, numbers(c, "map")) << name;
    expect_near(dense, numbers(c, "probs"), name);
    const Tensor dlogits = empty({tokens, experts});
    kernels().route_backward({.form = form,
                              .logits = logits,
                              .experts = chosen,
                              .dweights = of({tokens, k}, dweights),
                              .dlogits = dlogits},
                             stream());
    // The tolerance is relative to at least 1: with one expert, the softmax has no gradient.
    const Numbers expected = numbers(c, "grad_logits"), gradient = to_doubles(dlogits);
    const double largest = std::abs(
        *std::ranges::max_element(expected, {}, [](double value) { return std::abs(value); }));
    for (size_t i = 0; i < gradient.size(); ++i)
      ASSERT_NEAR(gradient[i], expected[i], kRelative * std::max(largest, 1.0)) << name << " " << i;
    ++compared;
  }
  EXPECT_EQ(compared, 16);
}

// Megatron-LM's tokens are [seq, batch]; here one sequence follows the other.
TEST_P(RouterVectors, LossesAndTheirGradients) {
  int compared = 0;
  for (const Json& c : cases("losses")) {
    const std::string name = c["name"].as_string();
    const int64_t length = c["seq"].as_integer(), batch = c["batch"].as_integer(),
                  experts = c["experts"].as_integer(), k = c["topk"].as_integer(),
                  tokens = length * batch;
    const auto by_sequence = [&](const Numbers& theirs) {
      const int64_t width = std::ssize(theirs) / tokens;
      Numbers ours;
      for (int64_t t = 0; t < tokens; ++t) {
        const auto from = theirs.begin() + (t % length * batch + t / length) * width;
        ours.insert(ours.end(), from, from + width);
      }
      return ours;
    };
    const Tensor logits = of({tokens, experts}, by_sequence(numbers(c, "logits")));
    Tensor counted_tokens;
    if (has(c, "padding_mask")) {
      Numbers mask = by_sequence(numbers(c, "padding_mask"));
      for (double& padding : mask) padding = -padding;
      counted_tokens = of_integers({tokens}, mask);
    }
    struct Sums {
      Tensor sums, counts;
      double squares = 0;
    };
    const auto sums_of = [&](int64_t segments) {
      const Tensor sums = empty({segments, experts}), counts = empty({segments, experts}),
                   squares = empty({segments}), entropy = empty({segments});
      kernels().router_sums({.score = score(c),
                             .k = k,
                             .logits = logits,
                             .counted = counted_tokens,
                             .sums = sums,
                             .counts = counts,
                             .squares = squares,
                             .entropy = entropy},
                            stream());
      const Numbers all = to_doubles(squares);
      return Sums{sums, counts, std::accumulate(all.begin(), all.end(), 0.0)};
    };
    const auto expect_loss = [&](const std::string& what, double balance, double z,
                                 const Sums& sums, const Tensor& counts) {
      const Numbers p = to_doubles(sums.sums), n = to_doubles(counts);
      double loss = z * sums.squares;
      for (size_t i = 0; i < p.size(); ++i) loss += balance * n[i] * p[i];
      expect_near({loss}, numbers(c, (what + "_loss").c_str()), name + " " + what);
      const Tensor dlogits = of({tokens, experts}, Numbers(static_cast<size_t>(tokens * experts)));
      kernels().router_loss_backward({.score = score(c),
                                      .balance = balance,
                                      .z = z,
                                      .logits = logits,
                                      .counts = counts,
                                      .weight = of({}, {1}, DType::f64),
                                      .counted = counted_tokens,
                                      .dlogits = dlogits},
                                     stream());
      expect_near(to_doubles(dlogits), by_sequence(numbers(c, (what + "_grad").c_str())),
                  name + " gradient of " + what);
    };
    const auto width = static_cast<double>(experts), choices = static_cast<double>(k),
               sequences = static_cast<double>(batch);
    const double coefficient = c["coeff"].as_number() * width / choices,
                 counted = c["aux_total_tokens"].as_number(), length_of_one = counted / sequences,
                 everywhere = static_cast<double>(integer(c, "global_total_tokens"));
    const Sums whole = sums_of(1), each = sums_of(batch);
    EXPECT_EQ(to_doubles(whole.counts), numbers(c, "tokens_per_expert")) << name;
    expect_loss("aux", coefficient / (counted * counted), 0, whole, whole.counts);
    expect_loss("seq_aux", coefficient / (length_of_one * length_of_one * sequences), 0, each,
                each.counts);
    expect_loss("global_aux", coefficient / (everywhere * everywhere), 0, whole,
                of({1, experts}, numbers(c, "global_tokens_per_expert")));
    expect_loss("z", 0, c["zcoeff"].as_number() / counted, whole, whole.counts);
    ++compared;
  }
  EXPECT_EQ(compared, 5);
}

TEST_P(RouterVectors, RowsOfExpertsAndBack) {
  int compared = 0;
  for (const Json& c : cases("permute")) {
    const std::string name = c["name"].as_string();
    const auto [chosen, weights] = routed(c);
    const int64_t tokens = c["tokens"].as_integer(), experts = c["experts"].as_integer(),
                  k = chosen.size(1), hidden = c["hidden"].as_integer();
    const bool padded = c["drop_and_pad"].as_bool();
    const Numbers from = numbers(c, "sorted_indices"), row_weights = numbers(c, "permuted_probs");
    const int64_t rows = std::ssize(from);
    const Tensor offsets = empty({experts + 1}, DType::i32), slots = empty({rows}, DType::i32),
                 places = empty({tokens, k}, DType::i32);
    kernels().expert_rows({.experts = chosen,
                           .capacity = padded ? rows / experts : 0,
                           .padded = padded,
                           .offsets = offsets,
                           .slots = slots,
                           .rows = places},
                          stream());
    // Megatron-LM has rows without a token among the others; here they come last.
    const Numbers ours = to_doubles(slots);
    const auto used_tokens = [&](int64_t begin, int64_t end, bool mine) {
      Numbers list;
      for (int64_t r = begin; r < end; ++r) {
        const auto at = static_cast<size_t>(r);
        if (mine && ours[at] >= 0) list.push_back(std::floor(ours[at] / static_cast<double>(k)));
        if (!mine && row_weights[at] != 0) list.push_back(from[at]);
      }
      return list;
    };
    const Numbers bounds = to_doubles(offsets);
    for (int64_t e = 0; e < experts; ++e) {
      const auto begin = static_cast<int64_t>(bounds[static_cast<size_t>(e)]),
                 end = static_cast<int64_t>(bounds[static_cast<size_t>(e) + 1]);
      EXPECT_EQ(used_tokens(begin, end, true), used_tokens(begin, end, false)) << name << " " << e;
    }
    const Tensor x = loaded(c, "tokens"), taken = empty({rows, hidden}), factors = empty({rows, 1}),
                 scaled = empty({rows, hidden}), back = empty({tokens, hidden});
    kernels().take_rows({.x = x, .index = slots, .share = k, .out = taken}, stream());
    kernels().take_rows({.x = weights.view({tokens * k, 1}), .index = slots, .out = factors},
                        stream());
    if (!padded) {
      EXPECT_EQ(to_doubles(taken), numbers(c, "permuted")) << name;
      EXPECT_EQ(to_doubles(factors), row_weights) << name;
      kernels().sum_rows({.x = taken, .index = places, .out = back}, stream());
      expect_near(to_doubles(back), numbers(c, "unpermuted_no_probs"), name);
    }
    const Tensor twice = of({rows}, Numbers(static_cast<size_t>(rows), 2)),
                 doubled = empty({rows, hidden});
    kernels().scale_rows({.x = taken, .factors = twice, .out = doubled}, stream());
    kernels().scale_rows({.x = doubled, .factors = factors.view({rows}), .out = scaled}, stream());
    kernels().sum_rows({.x = scaled, .index = places, .out = back}, stream());
    expect_near(to_doubles(back), numbers(c, "unpermuted_times2_probs"), name);

    const Tensor dout = empty({rows, hidden}), dx = empty({rows, hidden}), dfactors = empty({rows}),
                 dtokens = empty({tokens, hidden}), dweights = empty({tokens * k, 1});
    kernels().take_rows({.x = loaded(c, "grad_out"), .index = slots, .share = k, .out = dout},
                        stream());
    kernels().scale_rows_backward({.x = doubled,
                                   .factors = factors.view({rows}),
                                   .dout = dout,
                                   .dx = dx,
                                   .dfactors = dfactors},
                                  stream());
    kernels().scale_rows({.x = dx, .factors = twice, .out = dx}, stream());
    kernels().sum_rows({.x = dx, .index = places, .out = dtokens}, stream());
    expect_near(to_doubles(dtokens), numbers(c, "grad_tokens"), name + " gradient of tokens");
    kernels().sum_rows(
        {.x = dfactors.view({rows, 1}), .index = places.view({tokens * k, 1}), .out = dweights},
        stream());
    const Numbers d = to_doubles(dweights), e = to_doubles(chosen), all = numbers(c, "grad_probs");
    Numbers expected;
    for (int64_t slot = 0; slot < tokens * k; ++slot) {
      const double expert = e[static_cast<size_t>(slot)];
      expected.push_back(
          expert < 0 ? 0
                     : all[static_cast<size_t>(slot / k * experts) + static_cast<size_t>(expert)]);
    }
    expect_near(d, expected, name + " gradient of weights");
    ++compared;
  }
  EXPECT_EQ(compared, 4);
}

// Checks which choices of an expert with a capacity are kept. If that depends on the order of equal
// ones, checks only their number.
TEST_P(RouterVectors, ExpertsWithACapacity) {
  int compared = 0;
  for (const Json& c : cases("token_dropping")) {
    const std::string name = c["name"].as_string();
    const auto [chosen, weights] = routed(c);
    const int64_t tokens = c["tokens"].as_integer(), experts = c["experts"].as_integer(),
                  k = c["topk"].as_integer(), capacity = c["capacity"].as_integer();
    const bool first = c["policy"].as_string() == "position", padded = c["pad"].as_bool();
    const int64_t most = padded ? experts * capacity : tokens * k;
    const Tensor offsets = empty({experts + 1}, DType::i32), slots = empty({most}, DType::i32),
                 places = empty({tokens, k}, DType::i32);
    kernels().expert_rows({.experts = chosen,
                           .weights = weights,
                           .capacity = capacity,
                           .kept = first ? KeptRows::first : KeptRows::largest,
                           .padded = padded,
                           .offsets = offsets,
                           .slots = slots,
                           .rows = places},
                          stream());
    const Numbers rows = to_doubles(places), e = to_doubles(chosen), w = to_doubles(weights);
    const Numbers probs = numbers(c, "out_probs"), before = numbers(c, "map");
    Numbers kept(static_cast<size_t>(tokens * experts)), routed_to(static_cast<size_t>(experts)),
        counts = routed_to;
    for (size_t slot = 0; slot < rows.size(); ++slot) {
      ++routed_to[static_cast<size_t>(e[slot])];
      if (rows[slot] < 0) continue;
      ++counts[static_cast<size_t>(e[slot])];
      kept[slot / static_cast<size_t>(k) * static_cast<size_t>(experts) +
           static_cast<size_t>(e[slot])] = w[slot];
    }
    for (size_t i = 0; i < counts.size(); ++i) {
      EXPECT_EQ(counts[i], std::min(routed_to[i], static_cast<double>(capacity))) << name;
      if (!padded) {
        EXPECT_EQ(counts[i], c["column_counts"].as_array()[i].as_number()) << name << " " << i;
      }
    }
    const Numbers bounds = to_doubles(offsets);
    if (padded) {
      EXPECT_EQ(bounds.back(), static_cast<double>(experts * capacity)) << name;
    }
    if (!c["routed_kept_equals_first_or_best"].as_bool()) continue;
    EXPECT_EQ(kept, probs) << name;
    ++compared;
  }
  EXPECT_EQ(compared, 12);
}

TEST_P(RouterVectors, UpdateOfACorrectionBias) {
  const Json c = case_named("bias_update");
  Tensor bias = loaded(c, "in");
  kernels().expert_bias(
      {.rate = c["rate"].as_number(), .counts = loaded(c, "tokens"), .bias = bias}, stream());
  expect_near(to_doubles(bias), numbers(c, "out"), "bias");
}

TEST_P(RouterVectors, EvenAssignmentsAndTheirChoices) {
  int compared = 0;
  for (const Json& c : cases("sinkhorn")) {
    const std::string name = c["name"].as_string();
    const int64_t k = c["topk"].as_integer();
    const Tensor logits = loaded(c, "logits"), even = empty(logits.shape());
    kernels().sinkhorn({.tolerance = c["tol"].as_number(), .logits = logits, .out = even},
                       stream());
    expect_near(to_doubles(even), numbers(c, "normalised"), name);
    const Shape chosen = {logits.size(0), k};
    const Tensor experts = empty(chosen, DType::i32), weights = empty(chosen);
    const RouterForm form =
        k == 1 ? RouterForm{.score = RouterScore::sigmoid} : RouterForm{.softmax_first = true};
    kernels().route(
        {.form = form, .logits = logits, .selection = even, .experts = experts, .weights = weights},
        stream());
    const Numbers found = to_doubles(experts), scores = numbers(c, "scores_top1");
    EXPECT_EQ(found, numbers(c, "top1")) << name;
    Numbers of_chosen;
    for (size_t i = 0; i < found.size(); ++i)
      of_chosen.push_back(scores[i / static_cast<size_t>(k) * static_cast<size_t>(logits.size(1)) +
                                 static_cast<size_t>(found[i])]);
    expect_near(to_doubles(weights), of_chosen, name);
    ++compared;
  }
  EXPECT_EQ(compared, 2);
}

// The scores are logits here. What is subtracted from them is a bias with the opposite sign.
TEST_P(RouterVectors, QuantilesOfScores) {
  const Json c = case_named("quantile");
  const int64_t k = c["topk"].as_integer();
  const Tensor scores = loaded(c, "scores");
  Numbers beta = numbers(c, "beta");
  for (double& b : beta) b = -b;
  const Tensor bias = of({scores.size(1)}, beta), thresholds = empty(bias.shape());
  const Shape chosen = {scores.size(0), k};
  const Tensor experts = empty(chosen, DType::i32), weights = empty(chosen);
  kernels().route({.logits = scores, .bias = bias, .experts = experts, .weights = weights},
                  stream());
  EXPECT_EQ(to_doubles(experts), numbers(c, "indices"));
  kernels().expert_thresholds({.k = k, .logits = scores, .bias = bias, .thresholds = thresholds},
                              stream());
  expect_near(to_doubles(thresholds), numbers(c, "new_beta_local"), "thresholds");
}

INSTANTIATE_TEST_SUITE_P(Devices, RouterVectors,
                         ::testing::Values(DeviceKind::cpu, DeviceKind::reference),
                         [](const auto& info) { return std::string(name(info.param)); });

}  // namespace
}  // namespace megatron::kernels
