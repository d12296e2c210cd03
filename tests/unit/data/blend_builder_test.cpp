#include "data/blend_builder.h"

#include <cmath>

#include "data/indexed_dataset.h"
#include "support.h"

namespace megatron::data {
namespace {

std::optional<BlendList> list_of(const Json& items) {
  if (items.is_null()) return {};
  std::vector<std::string> texts;
  for (const Json& item : items.as_array()) texts.push_back(item.as_string());
  return parse_blend_list(texts, "--data-path");
}

BlendSets build(const Json& c) {
  BlendRequest request;
  GptDatasetConfig config;
  if (c.contains("per_split")) {
    for (size_t i = 0; i < 3; ++i) request.per_split[i] = list_of(c["per_split"].as_array()[i]);
  } else {
    request.all = list_of(c["data_path"]);
    config.split = c["split"].as_string();
  }
  if (c.contains("mid_level_dataset_surplus"))
    request.surplus = c["mid_level_dataset_surplus"].as_number();
  request.several_valid = c.contains("multiple_validation_sets");
  request.threads = 3;
  config.sequence_length = c["S"].as_integer();
  config.seed = c["seed"].as_integer();
  config.eod = 999;
  config.cache = false;
  std::array<std::optional<int64_t>, 3> samples;
  for (size_t i = 0; i < 3; ++i) {
    const Json& size = c["sizes"].as_array()[i];
    if (!size.is_null()) samples[i] = size.as_integer();
  }
  return build_blends(request, config, samples, open_golden);
}

void expect_part(const Dataset& got, const Json& expected) {
  const auto& set = dynamic_cast<const GptDataset&>(got);
  EXPECT_EQ(set.size(), expected["num_samples_built"].as_integer());
  const Json& asked = expected["num_samples_requested"];
  EXPECT_EQ(set.request().samples, asked.is_null() ? std::optional<int64_t>() : asked.as_integer());
  EXPECT_EQ(sha256_hex(as_text(set.indices().shuffle.bytes())),
            expected["shuffle_sha256"].as_string());
  EXPECT_EQ(sha256_hex(as_text(set.indices().sample.bytes())),
            expected["sample_sha256"].as_string());
}

void expect_blend(const Dataset& got, const Json& expected) {
  const auto& set = dynamic_cast<const BlendedDataset&>(got);
  EXPECT_EQ(set.size(), expected["length"].as_integer());
  EXPECT_EQ(sha256_hex(as_text(std::as_bytes(std::span(set.index().set)))),
            expected["dataset_index_sha256"].as_string());
  EXPECT_EQ(sha256_hex(as_text(std::as_bytes(std::span(set.index().sample)))),
            expected["dataset_sample_index_sha256"].as_string());
  EXPECT_EQ(set.index().counts, integers(expected["counts"]));
  ASSERT_EQ(set.parts().size(), expected["datasets"].as_array().size());
  for (size_t d = 0; d < set.parts().size(); ++d)
    expect_part(*set.parts()[d].set, expected["datasets"].as_array()[d]);
  Sample sample;
  for (const Json& first : expected["first_samples"].as_array()) {
    set.read(first["index"].as_integer(), sample);
    EXPECT_EQ(sample.tokens, integers(first["tokens"]));
  }
}

void expect_set(const Dataset& got, const Json& expected) {
  if (expected["type"].as_string() == "BlendedDataset") {
    expect_blend(got, expected);
  } else {
    expect_part(got, expected);
  }
}

TEST(Blend, EqualsTheVectors) {
  const Json cases = Json::read(golden("blend/cases.json"));
  for (const Json& c : cases.as_array()) {
    SCOPED_TRACE(c["name"].as_string());
    if (c.contains("error")) {
      EXPECT_NE(error_of([&] { build(c); }), "");
      continue;
    }
    const BlendSets sets = build(c);
    for (size_t i = 0; i < 3; ++i) {
      SCOPED_TRACE(name(static_cast<Split>(i)));
      const Json* expected = c["splits"].find(name(static_cast<Split>(i)));
      const auto& got = sets.sets[i];
      if (expected == nullptr || expected->is_null()) {
        EXPECT_TRUE(got.empty());
      } else if (expected->is_array()) {
        ASSERT_EQ(got.size(), expected->as_array().size());
        for (size_t v = 0; v < got.size(); ++v) expect_set(*got[v].set, expected->as_array()[v]);
      } else if (c["sizes"].as_array()[i] != Json(0)) {  // a set of 0 samples is not built
        ASSERT_EQ(got.size(), 1u);
        expect_set(*got[0].set, *expected);
      }
    }
  }
}

TEST(Blend, RefusesMoreSamplesThanAPartHas) {
  const TemporaryDirectory folder;
  const auto set = std::make_shared<const GptDataset>(
      open_golden("a"), GptDatasetConfig{.sequence_length = 16, .cache = false}, Split::train, 5);
  BlendIndex index;
  index.counts = {set->size() + 1};
  const std::string error =
      error_of([&] { BlendedDataset("train", {{"a", set}}, std::move(index)); });
  EXPECT_NE(error.find("--mid-level-dataset-surplus"), std::string::npos) << error;
}

TEST(Blend, SaysWhichPartHasNoSample) {
  const TemporaryDirectory folder;
  for (const int tokens : {40, 3}) {
    IndexedDatasetBuilder builder(folder / std::to_string(tokens), DType::u16);
    builder.add_item(std::vector<int64_t>(static_cast<size_t>(tokens), 7));
    builder.end_document();
    builder.finalize();
  }
  BlendRequest request;
  request.all = BlendList{{folder / "40", folder / "3"}, {}};
  const GptDatasetConfig config{.sequence_length = 16, .split = "1", .cache = false};
  const auto open = [](const std::string& prefix) {
    return std::make_shared<const IndexedDataset>(prefix);
  };
  const auto error = [&] {
    return error_of([&] { build_blends(request, config, {10, 0, 0}, open); });
  };
  EXPECT_NE(error().find(folder / "3"), std::string::npos) << error();
  for (const double surplus : {-0.1, 1.1, std::nan("")}) {
    request.surplus = surplus;
    EXPECT_NE(error().find("--mid-level-dataset-surplus is"), std::string::npos) << error();
  }
}

// Each set's tokens are its own number, so that a sample shows its origin.
TEST(Blend, HoldsTwoThousandFiles) {
  constexpr int64_t kSets = 2000;
  const TemporaryDirectory folder;
  BlendRequest request{.all = BlendList(), .per_split = {}, .threads = 2};
  for (int64_t d = 0; d < kSets; ++d) {
    const std::string prefix = folder / std::to_string(d);
    const std::vector<int64_t> tokens(30, d);
    IndexedDatasetBuilder builder(prefix, DType::u16);
    builder.add_item(tokens);
    builder.end_document();
    builder.finalize();
    request.all->prefixes.push_back(prefix);
    request.all->weights.push_back(static_cast<double>(1 + d % 3));
  }
  const GptDatasetConfig config{.sequence_length = 8, .split = "1", .cache = false};
  const BlendSets sets = build_blends(request, config, {8000, 0, 0}, [](const std::string& prefix) {
    return std::make_shared<const IndexedDataset>(prefix);
  });
  const auto& set = dynamic_cast<const BlendedDataset&>(*sets.sets[0].at(0).set);
  EXPECT_GE(set.size(), 8000);
  Sample sample;
  for (int64_t k = 0; k < set.size(); k += 97) {
    set.read(k, sample);
    EXPECT_EQ(sample.tokens[0], set.index().set[static_cast<size_t>(k)]);
  }
  for (size_t d = 0; d < kSets; ++d)
    EXPECT_NEAR(static_cast<double>(set.index().counts[d]), 8000.0 * (1 + d % 3) / 3999, 1.5);
}

}  // namespace
}  // namespace megatron::data
