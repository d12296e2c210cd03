#include "data/blend_index.h"

#include <cmath>
#include <random>

#include "data/blend_list.h"
#include "support.h"

namespace megatron::data {
namespace {

std::vector<double> numbers(const Json& json) {
  std::vector<double> values;
  for (const Json& value : json.as_array()) values.push_back(value.as_number());
  return values;
}

template <class T>
std::string hash(const std::vector<T>& values) {
  return sha256_hex(as_text(std::as_bytes(std::span(values))));
}

// The rule, implemented directly.
BlendIndex plain(const std::vector<double>& weights, const std::vector<int64_t>& sizes,
                 int64_t samples) {
  BlendIndex index;
  index.counts.resize(weights.size());
  for (int64_t i = 0; i < samples; ++i) {
    size_t best = weights.size();
    double greatest = 0;
    for (size_t d = 0; d < weights.size(); ++d) {
      if (!sizes.empty() && index.counts[d] == sizes[d]) continue;
      const double error = weights[d] * static_cast<double>(std::max<int64_t>(i, 1)) -
                           static_cast<double>(index.counts[d]);
      if (best == weights.size() || error > greatest) best = d, greatest = error;
    }
    index.set.push_back(static_cast<int16_t>(best));
    index.sample.push_back(index.counts[best]++);
  }
  return index;
}

void expect_equal(const BlendIndex& got, const BlendIndex& expected) {
  EXPECT_TRUE(got.set == expected.set);
  EXPECT_TRUE(got.sample == expected.sample);
  EXPECT_TRUE(got.counts == expected.counts);
}

TEST(BlendIndex, EqualsTheVectors) {
  const Json facts = Json::read(golden("blend/facts.json"));
  for (const Json& c : facts["blending_indices"].as_array()) {
    SCOPED_TRACE(c["weights"].dump());
    const std::vector<double> shares = normalized(numbers(c["weights"]));
    EXPECT_EQ(shares, numbers(c["normalized"]));
    const BlendIndex index = blend_by_weight(shares, c["size"].as_integer());
    EXPECT_EQ(hash(index.set), c["dataset_index_sha256"].as_string());
    EXPECT_EQ(hash(index.sample), c["dataset_sample_index_sha256"].as_string());
    EXPECT_EQ(index.counts, integers(c["counts"]));
  }
  for (const Json& c : facts["exhaustive_blending_indices"].as_array()) {
    SCOPED_TRACE(c["sizes"].dump());
    const BlendIndex index = blend_everything(integers(c["sizes"]));
    EXPECT_EQ(hash(index.set), c["dataset_index_sha256"].as_string());
    EXPECT_EQ(hash(index.sample), c["dataset_sample_index_sha256"].as_string());
  }
}

TEST(BlendIndex, SharesEqualTheVectors) {
  const Json facts = Json::read(golden("blend/facts.json"));
  for (const Json& c : facts["sizes_per_split_per_dataset"].as_array()) {
    SCOPED_TRACE(c.dump());
    const std::vector<double> shares = normalized(numbers(c["weights"]));
    const std::vector<int64_t> sizes = integers(c["sizes"]);
    for (size_t d = 0; d < shares.size(); ++d) {
      std::vector<int64_t> got;
      for (const int64_t size : sizes)
        got.push_back(share_of_blend(size, shares[d], c["surplus"].as_number()));
      EXPECT_EQ(got, integers(c["result"].as_array()[d]));
    }
  }
}

// Results of numpy.sum over k / 7 for k = 1 ... n.
TEST(BlendIndex, WeightsAddUpAsInNumPy) {
  const std::vector<std::pair<int64_t, double>> sums = {{7, 4.0},
                                                        {8, 5.142857142857143},
                                                        {13, 13.0},
                                                        {128, 1179.4285714285716},
                                                        {129, 1197.8571428571427},
                                                        {300, 6450.0},
                                                        {2000, 285857.14285714284},
                                                        {32766, 76688823.0}};
  for (const auto& [n, sum] : sums) {
    std::vector<double> weights;
    for (int64_t k = 1; k <= n; ++k) weights.push_back(static_cast<double>(k) / 7);
    EXPECT_EQ(normalized(weights)[0], weights[0] / sum) << n;
  }
}

// The fast method examines few sets; ties and rounding must match the plain rule.
TEST(BlendIndex, EqualsThePlainRule) {
  std::mt19937 random(7);
  std::uniform_real_distribution<double> uniform(0, 1);
  for (const size_t sets : {1, 2, 31, 33, 64, 200, 1000}) {
    for (const int kind : {0, 1, 2, 3}) {
      SCOPED_TRACE(fmt::format("{} sets, weights of kind {}", sets, kind));
      std::vector<double> weights;
      for (size_t d = 0; d < sets; ++d) {
        const double u = uniform(random);
        weights.push_back(kind == 0   ? 1.0                               // ties everywhere
                          : kind == 1 ? u                                 // no order
                          : kind == 2 ? std::pow(u, 20) + 1e-9            // few heavy ones
                                      : 1 + static_cast<double>(d % 5));  // groups of ties
      }
      const auto samples = static_cast<int64_t>(3 * sets + 500);
      const std::vector<double> shares = normalized(weights);
      expect_equal(blend_by_weight(shares, samples), plain(shares, {}, samples));
    }
    for (const int64_t most : {1, 3, 40}) {
      SCOPED_TRACE(fmt::format("{} sets of up to {} samples", sets, most));
      std::vector<int64_t> sizes;
      int64_t total = 0;
      for (size_t d = 0; d < sets; ++d) {
        sizes.push_back(1 + static_cast<int64_t>(random()) % most);
        total += sizes.back();
      }
      if (total > 20000) continue;
      std::vector<double> weights;
      for (const int64_t size : sizes)
        weights.push_back(static_cast<double>(size) / static_cast<double>(total));
      const BlendIndex got = blend_everything(sizes);
      expect_equal(got, plain(weights, sizes, total));
      EXPECT_EQ(got.counts, sizes);
    }
  }
}

TEST(BlendIndex, RefusesWhatDoesNotFit) {
  const std::vector<double> one = {1};
  EXPECT_NE(error_of([&] { blend_by_weight(one, int64_t{1} << 50); }).find("--train-iters"),
            std::string::npos);
  const std::vector<double> many(kMaxBlendedSets + 1, 1.0);
  EXPECT_NE(error_of([&] { blend_by_weight(many, 1); }).find("32766"), std::string::npos);
}

TEST(BlendList, IsReadAsInMegatron) {
  const Json facts = Json::read(golden("blend/facts.json"));
  const auto expect_list = [](const Json& items, const Json& expected) {
    SCOPED_TRACE(items.dump());
    std::vector<std::string> list;
    for (const Json& item : items.as_array()) list.push_back(item.as_string());
    const BlendList got = parse_blend_list(list, "--data-path");
    Json::Array prefixes;
    for (const std::string& prefix : got.prefixes) prefixes.emplace_back(prefix);
    EXPECT_EQ(Json(prefixes), expected.as_array()[0]);
    EXPECT_EQ(got.weights, expected.as_array()[1].is_null() ? std::vector<double>()
                                                            : numbers(expected.as_array()[1]));
  };
  for (const Json& c : facts["blend_lists"].as_array())
    if (!c["list"].is_null()) expect_list(c["list"], c["result"]);
  const Json mixed = Json::parse(R"(["1", "a", "x", "b"])");
  expect_list(mixed, Json(Json::Array{mixed, Json()}));  // numbers only before the first non-number
}

TEST(BlendList, NamesWhatIsWrong) {
  const auto error = [](std::vector<std::string> items) {
    return error_of([&] { parse_blend_list(items, "--data-path"); });
  };
  EXPECT_NE(error({}).find("--data-path"), std::string::npos);
  EXPECT_NE(error({"x", "a", "1", "b"}).find("'x' is not a weight"), std::string::npos);
  EXPECT_NE(error({"1", "a", "0", "b"}).find("weight of b is 0"), std::string::npos);
  EXPECT_NE(error({"1", "a", "-2", "b"}).find("-2"), std::string::npos);
  EXPECT_NE(error({"1", "a", "inf", "b"}).find("inf"), std::string::npos);
  EXPECT_NE(error({"1", "a", "1e999", "b"}).find("inf"), std::string::npos);
  EXPECT_NE(error({"1", " "}).find("empty name"), std::string::npos);
  EXPECT_NE(error(std::vector<std::string>(kMaxBlendedSets + 1, "a")).find("32766"),
            std::string::npos);
}

TEST(BlendList, ComesFromFiles) {
  const TemporaryDirectory folder;
  write_file(folder / "list", " 0.5 a\n0.5\tb\r\n");
  EXPECT_EQ(read_blend_list(folder / "list", "--data-args-path").prefixes,
            (std::vector<std::string>{"a", "b"}));
  write_file(folder / "json", R"({"train": ["0.6", "a", 0.4, "b"], "valid": null, "test": ["c"]})");
  const auto lists = read_split_blend_lists(folder / "json", "--per-split-data-args-path");
  EXPECT_EQ(lists[0]->weights, (std::vector<double>{0.6, 0.4}));
  EXPECT_FALSE(lists[1]);
  EXPECT_EQ(lists[2]->prefixes, std::vector<std::string>{"c"});
  write_file(folder / "bad", R"({"training": ["a"]})");
  EXPECT_NE(error_of([&] { read_split_blend_lists(folder / "bad", "--flag"); }).find("'training'"),
            std::string::npos);
  for (const char* bad : {R"({"train": "a"})", R"({"train": [["a"]]})", R"(["a"])"}) {
    write_file(folder / "bad", bad);
    const std::string output = error_of([&] { read_split_blend_lists(folder / "bad", "--flag"); });
    EXPECT_NE(output.find("--flag " + (folder / "bad")), std::string::npos) << output;
    EXPECT_NE(output.find("train"), std::string::npos) << output;
  }
  write_file(folder / "empty", "\n");
  EXPECT_NE(
      error_of([&] { read_blend_list(folder / "empty", "--flag"); }).find("does not list any data"),
      std::string::npos);
}

}  // namespace
}  // namespace megatron::data
