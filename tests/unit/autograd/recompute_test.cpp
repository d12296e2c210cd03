// Stretches that backward recomputes, and outputs that are not kept.
#include <map>

#include "base/error.h"
#include "kernels/observer.h"
#include "unit/autograd/products.h"

namespace megatron {
namespace {

// Counts the calls of each kernel.
struct Counter final : kernels::Observer {
  std::map<std::string, int, std::less<>> calls;
  void after(const kernels::Call& call) override { ++calls[std::string(call.kernel)]; }
};

class RecomputeTest : public TapeTest {
 protected:
  struct Result {
    std::vector<std::vector<double>> gradients;
    int64_t kept = 0;  // bytes between forward and backward
    int products = 0;
    std::vector<std::string> lines;
  };

  // y = forward(tape, x), in parts or at once. Weights: a, b, c.
  Result run(const std::function<Var(Tape&, const Var&)>& forward, bool in_parts = false) {
    Result result;
    Log log;
    Counter counter;
    for (Parameter* p : {&a, &b, &c}) p->uses[0] = {.grad = p->uses[0].grad};
    const Tensor x = drawn({kRows, kWidth}, "x"), dy = drawn({kRows, kWidth}, "dy");
    runtime.stream().watch(&counter);
    {
      const int64_t before = in_use();
      Tape tape(runtime);
      tape.listen(static_cast<SpanListener*>(&log));
      const Var in = tape.leaf(x);
      const Var y = forward(tape, in);
      result.kept = in_use() - before - kRoom;
      tape.set_gradient(y, dy);
      if (in_parts) {
        tape.backward(BackwardPart::input);
        EXPECT_FALSE(a.uses[0].started);
        tape.backward(BackwardPart::weight);
      } else {
        tape.backward();
      }
      result.gradients = {to_doubles(tape.gradient(in)), gradient(a), gradient(b), gradient(c)};
      EXPECT_EQ(tape.nodes(), 0u);
    }
    runtime.stream().watch(nullptr);
    EXPECT_EQ(in_use(), start + 2 * kRoom);
    result.products = counter.calls["gemm"];
    result.lines = log.lines;
    return result;
  }
  int64_t in_use() { return runtime.arena(MemoryClass::activations).in_use(); }

  Parameter a = parameter("a"), b = parameter("b"), c = parameter("c");
  int64_t start = runtime.arena(MemoryClass::activations).in_use();
  static constexpr int64_t kRoom = 192;  // bytes of [kRows, kWidth] f64 in an arena
};

Bundle layer(Tape& tape, const Bundle& in, Parameter& w) {
  return tape.span({.name = w.name}, in, [&w](Tape& t, const Bundle& bundle) {
    return Bundle{{"x", product(t, product(t, bundle["x"], w), w)}};
  });
}

TEST_F(RecomputeTest, StretchOfSpansKeepsItsInputAndTellsThemAll) {
  const auto layers = [&](Tape& t, const Bundle& in) {
    return layer(t, layer(t, layer(t, in, a), b), c);
  };
  const auto kept = [&](Tape& t, const Var& x) { return layers(t, {{"x", x}})["x"]; };
  const auto recomputed = [&](Tape& t, const Var& x) {
    return t.recompute({{"x", x}}, layers)["x"];
  };
  const Result whole = run(kept);
  EXPECT_GE(whole.kept, 5 * kRoom);
  for (const bool in_parts : {false, true}) {
    const Result again = run(recomputed, in_parts);
    EXPECT_EQ(again.gradients, whole.gradients) << in_parts;
    EXPECT_EQ(again.kept, 0) << "x itself is kept by its owner";
    EXPECT_EQ(again.products, whole.products + 6);
    EXPECT_EQ(again.lines,
              (std::vector<std::string>{
                  "enter a forward", "leave a forward", "enter b forward", "leave b forward",
                  "enter c forward", "leave c forward", "enter a recompute", "leave a recompute",
                  "enter b recompute", "leave b recompute", "enter c recompute",
                  "leave c recompute", "enter c backward", "leave c backward", "enter b backward",
                  "leave b backward", "enter a backward", "leave a backward"}));
  }
}

// If backward is not split, a weight's gradient is final when its span is left.
TEST_F(RecomputeTest, GradientsOfAStretchAreFinalWithinTheirSpans) {
  Log log;
  Tape tape(runtime);
  tape.listen(static_cast<GradientListener*>(&log));
  tape.listen(static_cast<SpanListener*>(&log));
  const Bundle out =
      tape.recompute({{"x", tape.leaf(drawn({kRows, kWidth}, "x"))}},
                     [&](Tape& t, const Bundle& in) { return layer(t, layer(t, in, a), b); });
  tape.set_gradient(out["x"], drawn({kRows, kWidth}, "dy"));
  log.lines.clear();
  tape.backward();
  EXPECT_EQ(log.lines,
            (std::vector<std::string>{"enter a recompute", "leave a recompute", "enter b recompute",
                                      "leave b recompute", "enter b backward", "b 0", "b 1",
                                      "leave b backward", "enter a backward", "a 0", "a 1",
                                      "leave a backward"}));
}

// x -> [a, remade] -> [b, remade] -> c: c's gradient needs the second output, which needs the
// first.
TEST_F(RecomputeTest, RemadeOutputsAreComputedOnceWhenTheyAreNeeded) {
  const auto part = [](const std::string& name, Parameter& w) {
    return [name, &w](Tape& t, const Var& x) {
      return t.module(
          name, {{"x", x}},
          [&w](Tape& inner, const Bundle& in) { return Bundle{{"y", product(inner, in["x"], w)}}; },
          {"y"})["y"];
    };
  };
  const auto forward = [&](const std::vector<std::string>& modules) {
    return [&, modules](Tape& t, const Var& x) {
      t.recompute_modules(modules);
      const Var y = product(t, part("two", b)(t, part("one", a)(t, x)), c);
      t.recompute_modules({});
      return y;
    };
  };
  const Result none = run(forward({}));
  const struct {
    std::vector<std::string> modules;
    int64_t kept, again;
  } cases[] = {{{}, 2, 0}, {{"one"}, 1, 1}, {{"two"}, 1, 1}, {{"one", "two"}, 0, 2}};
  for (const auto& it : cases) {
    for (const bool in_parts : {false, true}) {
      const Result result = run(forward(it.modules), in_parts);
      EXPECT_EQ(result.gradients, none.gradients);
      EXPECT_EQ(none.kept - result.kept, (2 - it.kept) * kRoom) << it.modules.size();
      EXPECT_EQ(result.products - none.products, it.again) << it.modules.size();
    }
  }
}

TEST_F(RecomputeTest, ModulesAreNotRecomputedInsideAStretch) {
  const auto forward = [&](bool modules) {
    return [&, modules](Tape& t, const Var& x) {
      if (modules) t.recompute_modules(std::vector<std::string>{"m"});
      return t.recompute({{"x", x}}, [&](Tape& inner, const Bundle& in) {
        EXPECT_FALSE(inner.recomputes("m"));
        return inner.module(
            "m", in, [&](Tape& u, const Bundle& v) { return Bundle{{"x", product(u, v["x"], a)}}; },
            {"x"});
      })["x"];
    };
  };
  EXPECT_EQ(run(forward(true)).products, run(forward(false)).products);
}

// Keeps a copy in the scratch arena, and counts the requests for it.
struct CopySource final : Source {
  CopySource(const Tensor& t, Tape& tape, int& asked) : asked_(asked) {
    copy_ = Tensor::empty(tape.stream().scratch(), t.whole().shape(), t.dtype(), "copy");
    tape.kernels().copy({.x = t.whole(), .out = copy_}, tape.stream());
  }
  Tensor bring_back(size_t, Tape&) override {
    ++asked_;
    return copy_;
  }
  int& asked_;
  Tensor copy_;
};

TEST_F(RecomputeTest, KeeperKeepsTheInputsOfStretchesInstead) {
  int asked = 0;
  const auto forward = [&](bool keeper) {
    return [&, keeper](Tape& t, const Var& x) {
      if (keeper) {
        t.keep_inputs([&asked](Tape& tape, const Tensor& input) {
          return std::make_shared<CopySource>(input, tape, asked);
        });
      }
      Bundle bundle{{"x", product(t, x, c)}, {"none", Var()}};
      const auto body = [&](Tape& inner, const Bundle& in) {
        return Bundle{{"x", product(inner, product(inner, in["x"], a), b)}, {"none", Var()}};
      };
      for (int i = 0; i < 2; ++i) bundle = t.recompute(bundle, body);
      return bundle["x"];
    };
  };
  const Result kept = run(forward(false));
  EXPECT_EQ(asked, 0);
  for (const bool in_parts : {false, true}) {
    asked = 0;
    const Result elsewhere = run(forward(true), in_parts);
    EXPECT_EQ(elsewhere.gradients, kept.gradients);
    EXPECT_EQ(kept.kept - elsewhere.kept, 2 * kRoom);
    EXPECT_EQ(asked, 2);
  }
}

TEST_F(RecomputeTest, InferringRunsOnceAndKeepsNothing) {
  Tape tape(runtime, Tape::Mode::infer);
  tape.recompute_modules(std::vector<std::string>{"m"});
  Counter counter;
  runtime.stream().watch(&counter);
  const int64_t before = in_use();
  {
    const Var x(drawn({kRows, kWidth}, "x"));
    const auto body = [&](Tape& t, const Bundle& in) {
      return Bundle{{"x", product(t, in["x"], a)}};
    };
    const Bundle out = tape.module("m", tape.recompute({{"x", x}}, body), body, {"x"});
    EXPECT_FALSE(out["x"].needs_gradient());
  }
  runtime.stream().watch(nullptr);
  EXPECT_EQ(counter.calls["gemm"], 2);
  EXPECT_EQ(tape.nodes(), 0u);
  EXPECT_EQ(in_use(), before);
}

// A value that forward computes once from earlier results, in a stretch of its own and inside
// another stretch.
TEST_F(RecomputeTest, WhatIsMadeOnceIsTheSameAgain) {
  int made = 0;
  std::vector<double> seen;
  const auto counting = [&](Tape& tape, const Bundle& in) {
    const Tensor once = tape.once([&] {
      Tensor t = tape.empty({1}, DType::f64, "once");
      copy_from(t, std::span<const double>(std::vector{static_cast<double>(++made)}));
      return t;
    });
    seen.push_back(to_doubles(once)[0]);
    return Bundle{{"y", product(tape, in["x"], a)}};
  };
  const auto twice = [&](Tape& tape, const Bundle& in) {
    const Bundle first = tape.recompute(in, counting);
    return tape.recompute({{"x", first["y"]}}, counting);
  };
  run([&](Tape& tape, const Var& x) { return tape.recompute({{"x", x}}, twice)["y"]; });
  EXPECT_EQ(made, 2);
  // Forward; again for the outer stretch; and, in reverse order, for each inner one.
  EXPECT_EQ(seen, (std::vector<double>{1, 2, 1, 2, 2, 1}));
}

}  // namespace
}  // namespace megatron
