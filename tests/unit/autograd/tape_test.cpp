// The tape alone, with an op defined here: y = x w^T.
#include "autograd/tape.h"

#include "autograd/other_batch_rows.h"
#include "base/error.h"
#include "unit/autograd/products.h"

namespace megatron {
namespace {

// Two products, the first within a span. Gives the gradients of x, a and b.
std::vector<std::vector<double>> chain(Runtime& runtime, const Tensor& x, const Tensor& dy,
                                       Parameter& a, Parameter& b, bool recompute,
                                       const std::function<void(Tape&)>& backward,
                                       Log* log = nullptr) {
  Tape tape(runtime);
  if (log != nullptr) {
    tape.listen(static_cast<GradientListener*>(log));
    tape.listen(static_cast<SpanListener*>(log));
  }
  a.uses[0] = {.grad = a.uses[0].grad};
  b.uses[0] = {.grad = b.uses[0].grad};
  const Var in = tape.leaf(x);
  const Bundle out =
      tape.span({.name = "s", .recompute = recompute}, {{"x", in}, {"none", Var()}},
                [&](Tape& t, const Bundle& bundle) {
                  return Bundle{{"x", product(t, product(t, bundle["x"], a), a)}, {"none", Var()}};
                });
  const Var y = product(tape, out["x"], b);
  tape.set_gradient(y, dy);
  backward(tape);
  return {to_doubles(tape.gradient(in)), to_doubles(a.uses[0].grad), to_doubles(b.uses[0].grad)};
}

TEST_F(TapeTest, RecomputeIsBitForBitTheSame) {
  Parameter a = parameter("a"), b = parameter("b");
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  const auto all = [](Tape& tape) { tape.backward(); };
  EXPECT_EQ(chain(runtime, x, dy, a, b, false, all), chain(runtime, x, dy, a, b, true, all));
}

TEST_F(TapeTest, InputThenWeightIsAll) {
  Parameter a = parameter("a"), b = parameter("b");
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  for (const bool recompute : {false, true}) {
    const auto whole = chain(runtime, x, dy, a, b, recompute, [](Tape& tape) { tape.backward(); });
    const auto parts = chain(runtime, x, dy, a, b, recompute, [&](Tape& tape) {
      tape.backward(BackwardPart::input);
      EXPECT_FALSE(a.uses[0].started);
      EXPECT_FALSE(b.uses[0].started);
      tape.backward(BackwardPart::weight);
    });
    EXPECT_EQ(whole, parts) << recompute;
  }
}

TEST_F(TapeTest, BackwardEndsAtStopsInReverse) {
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  for (const BackwardPart part : {BackwardPart::all, BackwardPart::input}) {
    std::vector<std::vector<double>> whole;
    for (const bool stops : {false, true}) {
      Parameter a = parameter("a"), b = parameter("b"), c = parameter("c");
      Tape tape(runtime);
      const Var in = tape.leaf(x);
      const Var of_a = product(tape, in, a);
      tape.stop();
      const Var of_b = product(tape, product(tape, of_a, b), b);
      tape.stop();
      tape.set_gradient(product(tape, of_b, c), dy);
      if (stops) {
        EXPECT_EQ(tape.nodes(), 4u);
        tape.backward_to_stop(part);
        EXPECT_EQ(tape.nodes(), 3u);
        tape.backward_to_stop(part);
        EXPECT_EQ(tape.nodes(), 1u);
        tape.backward_to_stop(part);
        EXPECT_EQ(tape.nodes(), 0u);
        tape.backward_to_stop(part);  // nothing is left
      } else {
        tape.backward(part);
      }
      if (part == BackwardPart::input) {
        EXPECT_FALSE(a.uses[0].started);
        tape.backward(BackwardPart::weight);
      }
      const std::vector<std::vector<double>> found = {to_doubles(tape.gradient(in)), gradient(a),
                                                      gradient(b), gradient(c)};
      if (stops) {
        EXPECT_EQ(found, whole);
      }
      whole = found;
    }
  }
}

// backward() ignores stops, and one micro-batch's stops do not affect the next.
TEST_F(TapeTest, StopsGoWithWhatIsRecorded) {
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  Parameter a = parameter("a");
  Tape tape(runtime);
  const auto record = [&] {
    const Var y = product(tape, tape.leaf(x), a);
    tape.stop();
    tape.set_gradient(product(tape, y, a), dy);
  };
  record();
  tape.backward();
  EXPECT_EQ(tape.nodes(), 0u);
  record();
  tape.clear();
  record();
  tape.backward_to_stop();
  EXPECT_EQ(tape.nodes(), 1u);
  tape.backward_to_stop();
  EXPECT_EQ(tape.nodes(), 0u);
}

TEST_F(TapeTest, ListenersHearSpansAndGradientsInOrder) {
  Parameter a = parameter("a"), b = parameter("b");
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  const auto all = [](Tape& tape) { tape.backward(); };
  // The span's two uses of a count as one use; each pass counts, as with two micro-batches.
  Log log;
  chain(runtime, x, dy, a, b, false, all, &log);
  EXPECT_EQ(log.lines,
            (std::vector<std::string>{"enter s forward", "leave s forward", "b 0",
                                      "enter s backward", "a 0", "a 1", "leave s backward"}));
  Log recomputed;
  chain(runtime, x, dy, a, b, true, all, &recomputed);
  EXPECT_EQ(recomputed.lines,
            (std::vector<std::string>{"enter s forward", "leave s forward", "b 0",
                                      "enter s backward", "enter s recompute", "leave s recompute",
                                      "a 0", "a 1", "leave s backward"}));
}

TEST_F(TapeTest, TiedWeightIsFinalWhenAllItsUsesAre) {
  Parameter w = parameter("w", 2);
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  Log log;
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    Tape tape(runtime);
    tape.listen(static_cast<GradientListener*>(&log));
    const Var y = product(tape, product(tape, tape.leaf(x), Weight(w, 0)), Weight(w, 1));
    tape.set_gradient(y, dy);
    tape.backward(BackwardPart::input);
    EXPECT_EQ(log.lines.size(), static_cast<size_t>(micro_batch));
    tape.backward(BackwardPart::weight);
    EXPECT_EQ(log.lines.size(), static_cast<size_t>(micro_batch) + 1);
  }
  EXPECT_EQ(log.lines, (std::vector<std::string>{"w 0", "w 1"}));

  // The same with two weights of equal value: each has one accumulator for both micro-batches.
  Parameter first = w, second = w;
  first.uses = {{.grad = drawn({kWidth, kWidth}, "a")}};
  second.uses = {{.grad = drawn({kWidth, kWidth}, "b")}};
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    Tape tape(runtime);
    const Var y = product(tape, product(tape, tape.leaf(x), first), second);
    tape.set_gradient(y, dy);
    tape.backward();
  }
  EXPECT_EQ(gradient(w, 0), gradient(first));
  EXPECT_EQ(gradient(w, 1), gradient(second));
}

TEST_F(TapeTest, SecondMicroBatchAddsToTheFirst) {
  Parameter w = parameter("w");
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  std::vector<double> once;
  for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
    Tape tape(runtime);
    const Var y = product(tape, Var(x), w);
    tape.set_gradient(y, dy);
    tape.backward();
    if (micro_batch == 0) once = gradient(w);
  }
  const std::vector<double> twice = gradient(w);
  for (size_t i = 0; i < once.size(); ++i) EXPECT_DOUBLE_EQ(twice[i], 2 * once[i]);
}

TEST_F(TapeTest, FrozenParameterIsLeftAloneAndNotAnnounced) {
  Parameter a = parameter("a"), b = parameter("b");
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  const auto all = [](Tape& tape) { tape.backward(); };
  const auto trained = chain(runtime, x, dy, a, b, false, all);
  a.trainable = false;
  a.uses[0].grad = drawn({kWidth, kWidth}, "before");
  const std::vector<double> before = gradient(a);
  for (const bool recompute : {false, true}) {
    Log log;
    const auto frozen = chain(runtime, x, dy, a, b, recompute, all, &log);
    EXPECT_EQ(frozen[0], trained[0]);
    EXPECT_EQ(frozen[1], before);
    EXPECT_EQ(frozen[2], trained[2]);
    for (const std::string& line : log.lines) EXPECT_FALSE(line.starts_with("a ")) << line;
  }
}

TEST_F(TapeTest, NothingIsKeptBeforeTheFirstTrainedParameter) {
  Parameter a = parameter("a"), b = parameter("b");
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  const auto gradient_of_b = [&](bool recompute, Log& log, size_t& nodes) {
    b.uses[0] = {.grad = b.uses[0].grad};
    Tape tape(runtime);
    tape.listen(static_cast<GradientListener*>(&log));
    tape.listen(static_cast<SpanListener*>(&log));
    const auto through = [&](const std::string& name, const Bundle& in, Parameter& p) {
      return tape.span(
          {.name = name, .recompute = recompute}, in,
          [&p](Tape& t, const Bundle& from) { return Bundle{{"x", product(t, from["x"], p)}}; });
    };
    const Bundle below = through("below", {{"x", Var(x)}}, a);
    nodes = tape.nodes();
    tape.set_gradient(through("above", below, b)["x"], dy);
    tape.backward();
    return gradient(b);
  };
  for (const bool recompute : {false, true}) {
    Log of_all, of_frozen;
    size_t all = 0, frozen = 0;
    a.trainable = true;
    const std::vector<double> expected = gradient_of_b(recompute, of_all, all);
    a.trainable = false;
    EXPECT_EQ(gradient_of_b(recompute, of_frozen, frozen), expected);
    EXPECT_EQ(all, 3u);  // two marks and the product
    EXPECT_EQ(frozen, 0u);
    std::erase_if(of_all.lines, [](const std::string& line) {
      return line.starts_with("a ") ||
             (line.find("below") != line.npos && !line.ends_with("forward"));
    });
    EXPECT_EQ(of_frozen.lines, of_all.lines);
  }
}

TEST_F(TapeTest, GradientsOfTwoUsesOfAValueAdd) {
  Parameter a = parameter("a"), b = parameter("b");
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  const auto through = [&](bool with_a, bool with_b) {
    Tape tape(runtime);
    const Var in = tape.leaf(x);
    if (with_a) tape.set_gradient(product(tape, in, a), dy);
    if (with_b) tape.set_gradient(product(tape, in, b), dy);
    tape.backward();
    return to_doubles(tape.gradient(in));
  };
  const std::vector<double> one = through(true, false), other = through(false, true),
                            both = through(true, true);
  for (size_t i = 0; i < both.size(); ++i) EXPECT_DOUBLE_EQ(both[i], one[i] + other[i]);
}

TEST_F(TapeTest, WhatNothingDependsOnStillCountsAsDone) {
  Parameter a = parameter("a"), b = parameter("b");
  const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
  Log log;
  Tape tape(runtime);
  tape.listen(static_cast<GradientListener*>(&log));
  const Var in = tape.leaf(x);
  tape.set_gradient(product(tape, in, a), dy);
  product(tape, in, b);
  tape.backward();
  EXPECT_EQ(log.lines, (std::vector<std::string>{"b 0", "a 0"}));
  EXPECT_FALSE(b.uses[0].started);
  EXPECT_EQ(tape.nodes(), 0u);
}

// An op that writes down how many rows its gradients' batch has.
Var noted(Tape& tape, const Var& x, std::vector<int64_t>& rows) {
  const auto note = [](Backward& backward) {
    backward.attributes<std::vector<int64_t>*>()->push_back(backward.tape().batch_rows()->rows);
    if (backward.part() == BackwardPart::input) backward.set(0, backward.gradient(0));
  };
  Node node{.name = "noted", .inputs = {x.id}, .dgrad = note, .wgrad = note};
  node.attributes = &rows;
  return tape.record_one(std::move(node), x.value);
}

TEST_F(TapeTest, BackwardHasTheRowsOfForward) {
  const Tensor x = drawn({kRows, kWidth}, "x");
  for (const bool recompute : {false, true}) {
    std::vector<int64_t> rows;
    Tape tape(runtime);
    tape.set_batch_rows({.tokens = {}, .rows = 1});
    const Bundle out = tape.span({.name = "s", .recompute = recompute}, {{"x", tape.leaf(x)}},
                                 [&](Tape& t, const Bundle& in) {
                                   const OtherBatchRows other(t, {.tokens = {}, .rows = 2});
                                   return Bundle{{"x", noted(t, in["x"], rows)}};
                                 });
    const Var y = noted(tape, out["x"], rows);
    tape.set_gradient(y, x);
    tape.backward(BackwardPart::input);
    tape.backward(BackwardPart::weight);
    EXPECT_EQ(rows, (std::vector<int64_t>{1, 2, 1, 2})) << recompute;
  }
}

TEST_F(TapeTest, InferringKeepsNothing) {
  Parameter a = parameter("a");
  const int64_t before = runtime.arena(MemoryClass::activations).in_use();
  const Tensor x = drawn({kRows, kWidth}, "x");
  const int64_t with_x = runtime.arena(MemoryClass::activations).in_use();
  Tape tape(runtime, Tape::Mode::infer);
  {
    const Var y = product(tape, tape.leaf(x), a);
    EXPECT_FALSE(y.needs_gradient());
  }
  EXPECT_EQ(tape.nodes(), 0u);
  EXPECT_GT(with_x, before);
  EXPECT_EQ(runtime.arena(MemoryClass::activations).in_use(), with_x);
}

TEST_F(TapeTest, RecomputedSpanKeepsItsInputOnly) {
  Parameter a = parameter("a");
  const Tensor x = drawn({64, kWidth}, "x");
  const auto kept = [&](bool recompute) {
    const int64_t before = runtime.arena(MemoryClass::activations).in_use();
    Tape tape(runtime);
    tape.span({.name = "s", .recompute = recompute}, {{"x", tape.leaf(x)}},
              [&](Tape& t, const Bundle& in) {
                Var y = in["x"];
                for (int i = 0; i < 8; ++i) y = product(t, y, a);
                return Bundle{{"x", y}};
              });
    return runtime.arena(MemoryClass::activations).in_use() - before;
  };
  EXPECT_GE(kept(false), 7 * x.bytes());
  EXPECT_LE(kept(true), x.bytes());
}

TEST(Bundle, FindsSetsAndRefuses) {
  Bundle bundle{{"x", Var()}};
  bundle.set("y", Var(Tensor(), 3));
  bundle.set("y", Var(Tensor(), 4));
  EXPECT_EQ(bundle["y"].id, 4);
  EXPECT_EQ(bundle.all().size(), 2u);
  EXPECT_TRUE(bundle.contains("x"));
  EXPECT_FALSE(bundle.contains("z"));
  EXPECT_THROW(bundle["z"], InternalError);
}

}  // namespace
}  // namespace megatron
