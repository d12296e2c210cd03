// Verifies encoders without a head, and one that gives a text several labels.
#include <gtest/gtest.h>

#include "base/error.h"
#include "selftest/verify.h"
#include "support.h"
#include "text.h"

namespace megatron::selftest {
namespace {

using megatron::testing::change_tensors;
using megatron::testing::has;
using megatron::testing::TemporaryDirectory;
using megatron::testing::Values;
using megatron::testing::vectors;

class Heads : public ::testing::TestWithParam<const char*> {
 protected:
  std::string directory() const { return vectors(std::string("encoders/") + GetParam()); }
  void expect_agreement(const VerifyOptions& options) const {
    const checkpoint::SafetensorsFile expected(directory() + "/expected.safetensors");
    int64_t inputs = 0;
    for (const checkpoint::TensorInfo& tensor : expected.tensors())
      inputs += tensor.name == "input_ids" || tensor.name == "attention_mask" ||
                tensor.name == "token_type_ids" || tensor.name == "labels" ||
                tensor.name.starts_with("target.");
    const std::vector<Report> reports = verify(directory(), options);
    EXPECT_EQ(reports.size(), 2u);
    for (const Report& report : reports) {
      EXPECT_TRUE(report.passed()) << report.text();
      EXPECT_EQ(report.compared(), std::ssize(expected.tensors()) - inputs) << report.text();
    }
  }
};

TEST_P(Heads, Agree) { expect_agreement({}); }

TEST_P(Heads, AgreeHoweverTheyAreDivided) {
  for (const VerifyOptions& options :
       {VerifyOptions{.tensor_parallel = 2, .pipeline_parallel = 2},
        VerifyOptions{.tensor_parallel = 2, .sequence_parallel = true},
        VerifyOptions{.tensor_parallel = 2, .context_parallel = 2, .sequence_parallel = true},
        VerifyOptions{.pipeline_parallel = 2, .data_parallel = 2},
        VerifyOptions{.data_parallel = 3, .sharding = parallel::Sharding::parameters},
        VerifyOptions{.context_parallel = 4,
                      .context_exchange = {parallel::ContextExchange::a2a_p2p},
                      .context_levels = {2, 2}}})
    expect_agreement(options);
}

INSTANTIATE_TEST_SUITE_P(Vectors, Heads,
                         ::testing::Values("bert_headless", "roberta_headless",
                                           "distilbert_headless", "esm_headless",
                                           "modernbert_headless", "bert_multi_label"),
                         [](const auto& info) { return std::string(info.param); });

// Copies of vectors whose expected values are changed.
class ChangedHeads : public ::testing::Test {
 protected:
  Report report(const std::string& name, const std::function<void(Values&)>& change) {
    std::filesystem::copy(vectors("encoders/" + name), folder_ / name,
                          std::filesystem::copy_options::recursive |
                              std::filesystem::copy_options::overwrite_existing);
    change_tensors(folder_ / name + "/expected.safetensors", change);
    return verify(folder_ / name, {.devices = {DeviceKind::cpu}}).at(0);
  }
  void refused(const std::string& name, const std::function<void(Values&)>& change,
               const std::vector<std::string>& words) {
    try {
      report(name, change);
      ADD_FAILURE() << "no error";
    } catch (const Error& error) {
      for (const std::string& word : words) EXPECT_TRUE(has(error.what(), word)) << error.what();
    }
  }

  TemporaryDirectory folder_;
};

TEST_F(ChangedHeads, FailInWhatDiffers) {
  for (const std::string name : {"last_hidden_state", "pooler_output", "grad.pooler.dense.weight",
                                 "grad.encoder.layer.0.attention.self.query.weight", "loss"}) {
    const Report changed =
        report("bert_headless", [&](Values& values) { values.at(name)[0] *= 1.5f; });
    ASSERT_EQ(changed.failures().size(), 1u) << changed.text();
    EXPECT_TRUE(has(changed.failures()[0], name)) << changed.text();
  }
  // A target acts on all that has a gradient.
  EXPECT_GT(
      report("esm_headless", [](Values& values) { values.at("target.last_hidden_state")[7] += 1; })
          .failures()
          .size(),
      20u);
}

TEST_F(ChangedHeads, NeedTargetsForGradientsAlone) {
  const auto without = [](const std::vector<std::string>& prefixes) {
    return [prefixes](Values& values) {
      std::erase_if(values, [&](const auto& value) {
        return std::ranges::any_of(
            prefixes, [&](const std::string& prefix) { return value.first.starts_with(prefix); });
      });
    };
  };
  const Report forward = report("roberta_headless", without({"target.", "grad.", "loss"}));
  EXPECT_TRUE(forward.passed()) << forward.text();
  EXPECT_EQ(forward.compared(), 6) << forward.text();
  refused("roberta_headless", without({"target."}),
          {"target.last_hidden_state", "target.pooler_output", "no loss"});
  refused("distilbert_headless", without({"last_hidden_state"}),
          {"no head", "last_hidden_state or pooler_output"});
  refused("distilbert_headless",
          [](Values& values) { values["pooler_output"] = std::vector<float>(64); },
          {"pooler_output", "no pooler.dense.weight"});
}

TEST_F(ChangedHeads, NeedOneNumberForEachOfALabelsTexts) {
  refused("bert_multi_label", [](Values& values) { values.at("labels")[1] = 0.5f; },
          {"labels contains 0.5", "1 if it applies, else 0"});
}

}  // namespace
}  // namespace megatron::selftest
