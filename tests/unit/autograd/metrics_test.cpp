// Modes in which forward functions run, and the metrics that they report.
#include "autograd/metrics.h"

#include <cmath>

#include "base/error.h"
#include "unit/autograd/products.h"

namespace megatron {
namespace {

class MetricsTest : public TapeTest {
 protected:
  MetricsTest()
      : metrics({{"mean"}, {"count", MetricDefinition::Kind::count}}, true),
        values(drawn({2}, "values")),
        weights(drawn({2}, "weights")) {
    copy_from(values, std::vector<double>{3, 5});
    copy_from(weights, std::vector<double>{1, 3});
    begin(metrics);
  }
  Bundle body(Tape& tape, const Bundle& in) {
    passes.emplace_back(name(tape.pass()));
    tape.report("mean", {.values = values, .weights = weights});
    tape.report("count", {.values = values});
    return {{"x", product(tape, in["x"], a)}};
  }
  // One span, or one in a stretch that is recomputed, whose first forward runs as inference.
  void step(Tape& tape, bool in_stretch) {
    tape.collect(&metrics);
    const auto span = [&](Tape& t, const Bundle& in) {
      return t.span({.name = "s", .recompute = !in_stretch}, in,
                    [&](Tape& u, const Bundle& b) { return body(u, b); });
    };
    const Bundle in{{"x", tape.leaf(drawn({kRows, kWidth}, "x"))}};
    const Bundle out = in_stretch ? tape.recompute(in, span) : span(tape, in);
    if (!tape.recording()) return;
    tape.set_gradient(out["x"], drawn({kRows, kWidth}, "dy"));
    tape.backward();
  }
  void begin(Metrics& of) {
    if (!of.sums().defined())
      of.use(Tensor::empty(runtime.arena(MemoryClass::optimizer), {of.size()}, DType::f64, "sums"));
    of.begin_step(runtime.stream());
  }
  static std::vector<MetricValue> found_of(const Metrics& of) {
    return of.values(to_doubles(of.sums()));
  }
  double value(size_t i) const { return found_of(metrics).at(i).value; }

  Parameter a = parameter("a");
  Metrics metrics;
  Tensor values, weights;
  std::vector<std::string> passes;
};

TEST_F(MetricsTest, AreReportedOnceAMicroBatchAndNotWhileRecomputing) {
  for (const bool in_stretch : {false, true}) {
    passes.clear();
    begin(metrics);
    for (int micro_batch = 0; micro_batch < 2; ++micro_batch) {
      Tape tape(runtime);
      step(tape, in_stretch);
    }
    EXPECT_EQ(passes, (std::vector<std::string>{"forward", "recompute", "forward", "recompute"}));
    EXPECT_EQ(value(0), (3 + 3 * 5) / 4.0);
    EXPECT_EQ(value(1), 2 * 8);
  }
}

TEST_F(MetricsTest, AreNotReportedByAnEvaluation) {
  for (const bool in_stretch : {false, true}) {
    Tape tape(runtime, Tape::Mode::infer);
    step(tape, in_stretch);
  }
  EXPECT_EQ(passes, (std::vector<std::string>{"evaluate", "evaluate"}));
  EXPECT_TRUE(std::isnan(value(0)));
  EXPECT_EQ(value(1), 0);
}

TEST_F(MetricsTest, CountOnceWhereRanksReportTheSame) {
  Metrics copy({{"count", MetricDefinition::Kind::count}}, false);
  begin(copy);
  Tape tape(runtime);
  tape.collect(&copy);
  tape.report("count", {.values = values});
  EXPECT_EQ(found_of(copy)[0].value, 0);
  tape.report("count", {.values = values, .divided = true});
  EXPECT_EQ(found_of(copy)[0].value, 8);
}

TEST_F(MetricsTest, OfLayersStandApart) {
  Metrics layers({{.name = "mean", .layers = {1, 4}},
                  {.name = "counts",
                   .kind = MetricDefinition::Kind::tally,
                   .layers = {1, 4},
                   .width = 2,
                   .figures = {{"first", [](int64_t, std::span<const double> t) { return t[0]; }},
                               {"of counted layers",
                                [](int64_t, std::span<const double> t) { return 7 / t[0] * t[0]; }},
                               {"layer and second",
                                [](int64_t layer, std::span<const double> t) {
                                  return static_cast<double>(layer) + t[1];
                                }}}}},
                 true);
  begin(layers);
  Tape tape(runtime);
  EXPECT_FALSE(tape.tally("counts", 4).defined());  // no collector
  tape.collect(&layers);
  tape.report("mean", {.values = values, .weights = weights, .layer = 4});
  tape.report("mean", {.values = weights, .weights = values, .layer = 1});
  Tensor tally = tape.tally("counts", 4);
  copy_from(tally, std::vector<double>{7, 0.5});
  const std::vector<MetricValue> found = found_of(layers);
  ASSERT_EQ(found.size(), 4u);
  EXPECT_EQ(found[0].value, (18 + 18) / 12.0);
  EXPECT_EQ(found[0].layers.at(0).value, 18 / 8.0);
  EXPECT_EQ(found[0].layers.at(1).value, 18 / 4.0);
  EXPECT_EQ(found[0].outstanding()->layer, 4);
  EXPECT_EQ(found[1].value, 7 / 2.0);
  EXPECT_TRUE(std::isnan(found[2].layers.at(0).value));  // nothing was counted in layer 1
  EXPECT_EQ(found[2].value, 7);
  EXPECT_EQ(found[3].name, "layer and second");
  EXPECT_EQ(found[3].layers.at(0).value, 1);
  EXPECT_EQ(found[3].layers.at(1).value, 4.5);
  EXPECT_THROW(tape.report("mean", {.values = values, .weights = weights}), InternalError);
  EXPECT_THROW(tape.tally("counts", 2), InternalError);
  Tape evaluation(runtime, Tape::Mode::infer);
  evaluation.collect(&layers);
  EXPECT_FALSE(evaluation.tally("counts", 4).defined());
}

TEST_F(MetricsTest, HaveNamesThatTheModelKnows) {
  Tape tape(runtime);
  tape.report("other", {.values = values});  // no collector
  tape.collect(&metrics);
  EXPECT_THROW(tape.report("other", {.values = values}), InternalError);
}

}  // namespace
}  // namespace megatron
