// Log-probabilities of labels on ranks that divide the vocabulary, compared with one rank and with
// the cross entropy, whose gradient is checked by differences.
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <span>

#include "dist/parallel/divided.h"
#include "parallel/token_log_probabilities.h"
#include "parallel/vocabulary.h"

namespace megatron::parallel {
namespace {

constexpr double kUnread = std::numeric_limits<double>::quiet_NaN();

// Every third of `tokens` tokens has no label. One row without a token is between the others.
struct Labelled {
  std::vector<int32_t> rows, labels;
  std::vector<int32_t> labels_of_all;             // -100: none
  std::vector<double> gradients, weights_of_all;  // per token; weight: -gradient, 0 without a label

  Labelled(int64_t tokens, int64_t vocabulary) {
    for (int32_t t = 0; t < tokens; ++t) {
      const bool counts = t % 3 != 1;
      labels_of_all.push_back(counts ? static_cast<int32_t>(t * 7 % vocabulary) : -100);
      gradients.push_back(counts ? 0.25 + t % 5 : kUnread);
      weights_of_all.push_back(counts ? -gradients.back() : 0);
      if (t == 4) add(-1, 0);
      if (counts) add(t, labels_of_all.back());
    }
  }

 private:
  void add(int32_t row, int32_t label) {
    rows.push_back(row);
    labels.push_back(label);
  }
};

// Computes the same objective with both ops, which differ only in rounding.
void compare_with_cross_entropy(Bench& b, int64_t count, int64_t vocabulary, double soft_cap) {
  const Labelled tokens(count, vocabulary);
  const Slice rows = b.share(vocabulary);
  Parameter w, w2;
  const Weight weight = b.weight(w, b.rows("w", {vocabulary, 6}, rows)),
               weight2 = b.weight(w2, b.rows("w", {vocabulary, 6}, rows));
  const Tensor hidden = b.tokens("x", {count, 6});

  Tape tape(b.runtime);
  const Var x = tape.leaf(hidden);
  const Var values =
      token_log_probabilities(tape, x, weight, rows.global_begin,
                              {b.integers(tokens.rows), b.integers(tokens.labels)}, b.tp, soft_cap);
  tape.set_gradient(values, testing::make(b.runtime, {count}, b.sums(), tokens.gradients));
  b.backward(tape);
  b.give("log-probabilities", values.value, How::same);
  b.give("dx", tape.gradient(x), b.by_tokens());
  b.give_gradient("dw", w, How::rows);

  Tape other(b.runtime);
  const Var x2 = other.leaf(hidden);
  const Tensor loss = vocabulary_cross_entropy(
      other, x2, weight2, rows.global_begin, b.integers(tokens.labels_of_all),
      testing::make(b.runtime, {count}, b.sums(), tokens.weights_of_all), b.tp, soft_cap);
  b.backward(other);
  const std::vector<double> losses = to_doubles(loss), got = to_doubles(values.value);
  for (size_t t = 0; t < losses.size(); ++t) EXPECT_EQ(got[t], -losses[t]) << t;
  if (b.type != DType::f64) return;
  const auto expect_near = [](const Tensor& a, const Tensor& e) {
    const std::vector<double> actual = to_doubles(a), expected = to_doubles(e);
    for (size_t i = 0; i < expected.size(); ++i) EXPECT_NEAR(actual[i], expected[i], 1e-11) << i;
  };
  expect_near(tape.gradient(x), other.gradient(x2));
  expect_near(w.uses[0].grad, w2.uses[0].grad);
}

TEST(TokenLogProbabilities, EqualCrossEntropyInEachLayout) {
  for (const Setting& s : settings())
    for (const int64_t vocabulary : {4, 5, 24})
      expect_whole(s, [&](Bench& b) { compare_with_cross_entropy(b, 12, vocabulary, 0); });
}

TEST(TokenLogProbabilities, OfCappedLogits) {
  for (const Setting& s : settings({2}))
    expect_whole(s, [&](Bench& b) { compare_with_cross_entropy(b, 12, 10, 1.5); });
}

// Entropies of the rows, from logits of the whole vocabulary.
void compare_entropies(Bench& b, int64_t count, int64_t vocabulary, double soft_cap) {
  const Labelled tokens(count, vocabulary);
  const Slice rows = b.share(vocabulary);
  Parameter w;
  const Weight weight = b.weight(w, b.rows("w", {vocabulary, 6}, rows));
  const Tensor x = b.tokens("x", {count, 6});
  Tape tape(b.runtime, Tape::Mode::infer);
  const Tensor entropies =
      token_entropies(tape, x, weight, rows.global_begin,
                      {b.integers(tokens.rows), b.integers(tokens.labels)}, b.tp, soft_cap);
  b.give("entropies", entropies, How::same);
  const std::vector<double> logits =
      to_doubles(vocabulary_logits(tape, x, weight, vocabulary, b.tp, soft_cap));
  const std::vector<double> found = to_doubles(entropies);
  ASSERT_EQ(found.size(), tokens.rows.size());
  for (size_t r = 0; r < found.size(); ++r) {
    if (tokens.rows[r] < 0) continue;
    const auto row = std::span(logits).subspan(static_cast<size_t>(tokens.rows[r] * vocabulary),
                                               static_cast<size_t>(vocabulary));
    double sum = 0, entropy = 0;
    for (const double logit : row) sum += std::exp(logit);
    for (const double logit : row) entropy -= std::exp(logit) / sum * (logit - std::log(sum));
    EXPECT_NEAR(found[r], entropy, b.type == DType::f64 ? 1e-11 : 1e-5) << r;
  }
}

TEST(TokenEntropies, AreThoseOfAllLogitsInEachLayout) {
  for (const Setting& s : settings())
    for (const double soft_cap : {0.0, 1.5})
      for (const int64_t vocabulary : {4, 5, 24})
        expect_whole(s, [&](Bench& b) { compare_entropies(b, 12, vocabulary, soft_cap); });
  expect_whole({.ranks = 4, .sequence = true, .device = DeviceKind::cpu},
               [](Bench& b) { compare_entropies(b, 6400, 5, 0); });
}

// The sums of squares beside the log-probabilities are those of logits of the whole vocabulary, and
// their gradient is not read: log-probabilities and gradients are those without them.
void compare_squares(Bench& b, int64_t count, int64_t vocabulary, double soft_cap) {
  const Labelled tokens(count, vocabulary);
  const Slice rows = b.share(vocabulary);
  const Tensor hidden = b.tokens("x", {count, 6});
  std::vector<double> first[2], dx[2], dw[2], logits;
  for (const bool squares : {false, true}) {
    Parameter w;
    const Weight weight = b.weight(w, b.rows("w", {vocabulary, 6}, rows));
    Tape tape(b.runtime);
    const Var x = tape.leaf(hidden);
    const Var values = token_log_probabilities(
        tape, x, weight, rows.global_begin,
        {b.integers(tokens.rows), b.integers(tokens.labels), squares}, b.tp, soft_cap);
    std::vector<double> gradient;
    for (const double g : tokens.gradients) gradient.insert(gradient.end(), {g, kUnread});
    if (!squares) gradient = tokens.gradients;
    tape.set_gradient(values, testing::make(b.runtime, values.value.shape(), b.sums(), gradient));
    b.backward(tape);
    first[squares] = to_doubles(values.value);
    dx[squares] = to_doubles(tape.gradient(x));
    dw[squares] = to_doubles(w.uses[0].grad);
    if (squares) b.give("values and squares", values.value, How::same);
    Tape of_logits(b.runtime, Tape::Mode::infer);
    logits = to_doubles(vocabulary_logits(of_logits, hidden, weight, vocabulary, b.tp, soft_cap));
  }
  EXPECT_EQ(dx[0], dx[1]);
  EXPECT_EQ(dw[0], dw[1]);
  for (size_t t = 0; t < first[0].size(); ++t) {
    EXPECT_EQ(first[1][2 * t], first[0][t]);
    const auto row = std::span(logits).subspan(t * static_cast<size_t>(vocabulary),
                                               static_cast<size_t>(vocabulary));
    double sum = 0, square = 0;
    for (const double logit : row) sum += std::exp(logit);
    for (const double logit : row) square += std::pow(std::exp(logit) / sum, 2);
    const double expected = tokens.labels_of_all[t] < 0 ? 0 : std::log(square);
    EXPECT_NEAR(first[1][2 * t + 1], expected, b.type == DType::f64 ? 1e-11 : 1e-5) << t;
  }
}

TEST(TokenLogProbabilities, SquaresAreThoseOfAllLogitsInEachLayout) {
  for (const Setting& s : settings({2}))
    expect_whole(s, [](Bench& b) { compare_squares(b, 12, 10, 1.5); });
  expect_whole({.ranks = 4, .sequence = true, .device = DeviceKind::cpu},
               [](Bench& b) { compare_squares(b, 6400, 5, 0); });
}

// There are more labelled tokens than a chunk has rows.
TEST(TokenLogProbabilities, InChunks) {
  for (const bool sequence : {false, true})
    expect_whole({.ranks = 4, .sequence = sequence, .device = DeviceKind::cpu},
                 [](Bench& b) { compare_with_cross_entropy(b, 6400, 5, 0); });
}

// No token of a rank's micro-batch has a label, and a frozen weight has no gradient.
TEST(TokenLogProbabilities, NoLabelsAndAFrozenWeight) {
  for (const Setting& s : settings({2})) {
    expect_whole(s, [](Bench& b) {
      for (const bool labelled : {false, true}) {
        Tape tape(b.runtime);
        Parameter w;
        const Slice rows = b.share(10);
        const Weight weight = b.weight(w, b.rows("w", {10, 6}, rows));
        w.trainable = !labelled;
        const Labelled tokens(labelled ? 12 : 0, 10);
        const Var x = tape.leaf(b.tokens("x", {12, 6}));
        const Var values =
            token_log_probabilities(tape, x, weight, rows.global_begin,
                                    {b.integers(tokens.rows), b.integers(tokens.labels)}, b.tp);
        tape.set_gradient(values,
                          testing::make(b.runtime, {12}, b.sums(), std::vector<double>(12, 1)));
        b.backward(tape);
        const std::string name = labelled ? "frozen, " : "no labels, ";
        b.give(name + "values", values.value, How::same);
        b.give(name + "dx", tape.gradient(x), b.by_tokens());
      }
    });
  }
}

}  // namespace
}  // namespace megatron::parallel
