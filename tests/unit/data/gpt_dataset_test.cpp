#include "data/gpt_dataset.h"

#include <random>

#include "base/thread_pool.h"
#include "data/indexed_dataset.h"
#include "data/mock_dataset.h"
#include "support.h"

namespace megatron::data {
namespace {

std::optional<int64_t> optional_integer(const Json& json) {
  return json.is_null() ? std::optional<int64_t>() : json.as_integer();
}

bool flag(const Json& json, std::string_view key, bool initial = false) {
  return json.contains(key) ? json[key].as_bool() : initial;
}

GptDatasetConfig config_of(const Json& c, const Json& data) {
  GptDatasetConfig config;
  config.sequence_length = c["S"].as_integer();
  config.seed = c["seed"].as_integer();
  if (!c.contains("per_split")) config.split = c["split"].as_string();
  config.add_extra_token = flag(c, "add_extra_token_to_sequence", true);
  config.drop_last_partial_validation_sequence =
      flag(c, "drop_last_partial_validation_sequence", true);
  config.reset_position_ids = flag(c, "reset_position_ids");
  config.reset_attention_mask = flag(c, "reset_attention_mask");
  config.inter_document_masking = flag(c, "inter_document_masking");
  config.eod_mask_loss = flag(c, "eod_mask_loss");
  config.allow_ambiguous_pad_tokens = flag(c, "allow_ambiguous_pad_tokens");
  config.eod = data["eod"].as_integer();
  config.vocabulary_size = data["vocab_size"].as_integer();
  config.cache = false;
  if (c.contains("pad")) config.pad = c["pad"].as_integer();
  return config;
}

std::vector<int64_t> boundaries(const Sample& sample) {
  std::vector<int64_t> begins;
  const auto length = static_cast<int64_t>(sample.tokens.size());
  for (int64_t i = 0; i < length; ++i) {
    if (sample.segment_begin[i] == i) begins.push_back(i);
  }
  begins.resize(static_cast<size_t>(length) + 1, length);
  return begins;
}

// mask_of_first: for sets whose masks the original computes only once. The original reuses the
// padding mask of the first sample read for all later ones; here a mask depends only on its own
// sample.
void expect_sample(const Sample& got, const Json& expected, const Sample* mask_of_first) {
  EXPECT_EQ(got.tokens, integers(expected["tokens"]));
  EXPECT_EQ(got.labels, integers(expected["labels"]));
  EXPECT_EQ(got.position_ids, integers(expected["position_ids"]));
  for (size_t i = 0; i < got.loss_mask.size(); ++i) {
    const float first = mask_of_first != nullptr ? mask_of_first->loss_mask[i] : 1.0f;
    EXPECT_EQ(got.loss_mask[i] * first, expected["loss_mask"].as_array()[i].as_number()) << i;
  }
  if (expected.contains("attention_mask_rows_first_visible")) {
    std::vector<int64_t> visible(got.segment_begin.begin(), got.segment_begin.end());
    if (visible.empty()) visible.resize(got.tokens.size());  // not confined: everything is visible
    EXPECT_EQ(visible, integers(expected["attention_mask_rows_first_visible"]));
  }
  if (expected.contains("cu_seqlens")) {
    EXPECT_EQ(boundaries(got), integers(expected["cu_seqlens"]));
  }
}

void expect_index(const IntegerArray& got, const Json& facts, const std::string& which,
                  const std::string& npy) {
  EXPECT_EQ(got.shape(), integers(facts[which + "_shape"]));
  EXPECT_EQ(sha256_hex(as_text(got.bytes())), facts[which + "_sha256"].as_string());
  if (!std::filesystem::exists(npy)) return;
  const IntegerArray file = IntegerArray::map(npy);
  EXPECT_EQ(file.shape(), got.shape());
  EXPECT_EQ(as_text(file.bytes()), as_text(got.bytes()));
}

void expect_split(const GptDataset& set, const Json& facts, const std::string& folder,
                  bool masks_once) {
  EXPECT_EQ(set.request().first_sequence, facts["first_sequence"].as_integer());
  EXPECT_EQ(set.request().sequences, facts["sequences"].as_integer());
  EXPECT_EQ(set.request().tokens_per_epoch, facts["tokens_per_epoch"].as_integer());
  EXPECT_EQ(set.plan().epochs, facts["num_epochs"].as_integer());
  EXPECT_EQ(set.plan().separate_final_epoch, facts["separate_final_epoch"].as_bool());
  EXPECT_EQ(set.size(), facts["num_samples_built"].as_integer());
  expect_index(set.indices().document, facts, "document_index", folder + "/document_index.npy");
  expect_index(set.indices().sample, facts, "sample_index", folder + "/sample_index.npy");
  expect_index(set.indices().shuffle, facts, "shuffle_index", folder + "/shuffle_index.npy");
  Sample sample, first;
  set.read(0, first);
  for (const Json& expected : facts["samples"].as_array()) {
    SCOPED_TRACE(expected["index"].as_integer());
    set.read(expected["index"].as_integer(), sample);
    expect_sample(sample, expected, masks_once ? &first : nullptr);
  }
  if (facts.contains("sample_none")) {
    set.read_filler(sample);
    expect_sample(sample, facts["sample_none"], nullptr);
  }
  EXPECT_NE(error_of([&] { set.read(set.size(), sample); }), "");
}

// Train, valid and test sets of one source; a split with weight 0 is null.
std::array<std::unique_ptr<GptDataset>, 3> build_sets(
    const std::shared_ptr<const TokenSource>& source, const GptDatasetConfig& config,
    const std::array<std::optional<int64_t>, 3>& samples) {
  const SplitMatrix matrix = parse_split(*config.split);
  std::array<std::unique_ptr<GptDataset>, 3> sets;
  for (size_t i = 0; i < 3; ++i) {
    if (matrix[i])
      sets[i] = std::make_unique<GptDataset>(source, config, static_cast<Split>(i), samples[i]);
  }
  return sets;
}

void run_case(const std::string& folder, const Json& data) {
  const Json c = Json::read(folder + "/case.json");
  const std::string file = c["data"].as_string();
  const auto source = std::make_shared<const IndexedDataset>(golden("gpt_dataset/data/" + file));
  const GptDatasetConfig config = config_of(c, data[file]);
  std::array<std::optional<int64_t>, 3> samples;
  for (size_t i = 0; i < 3; ++i) samples[i] = optional_integer(c["sizes"].as_array()[i]);
  if (c.contains("error")) {
    EXPECT_NE(error_of([&] { build_sets(source, config, samples); }).find("--split"),
              std::string::npos);
    return;
  }
  for (size_t i = 0; i < 3; ++i) {
    const Split split = static_cast<Split>(i);
    const Json& facts = c["splits"][name(split)];
    SCOPED_TRACE(std::string(name(split)));
    if (config.split) {
      EXPECT_EQ(parse_split(*config.split)[i].has_value(), !facts.is_null());
    }
    if (facts.is_null()) continue;
    const bool masks_once =
        !config.reset_position_ids && !config.reset_attention_mask && !config.eod_mask_loss;
    expect_split(GptDataset(source, config, split, samples[i]), facts,
                 folder + "/" + std::string(name(split)), masks_once);
  }
}

TEST(GptDataset, AgreesWithMegatron) {
  const Json data = Json::read(golden("gpt_dataset/index.json"))["data"];
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(golden("gpt_dataset/cases"))) {
    SCOPED_TRACE(entry.path().filename().string());
    run_case(entry.path().string(), data);
    ++cases;
  }
  EXPECT_EQ(cases, 50);
}

TEST(GptDataset, AgreesOnPreprocessedText) {
  const Json cases = Json::read(golden("gpt_dataset/preprocessed.json"));
  for (const Json& c : cases.as_array()) {
    SCOPED_TRACE(c["name"].as_string());
    const std::string file = c["data"].as_string();
    const auto source = std::make_shared<const IndexedDataset>(golden(file));
    for (size_t i = 0; i < 3; ++i) {
      const Split split = static_cast<Split>(i);
      const Json& facts = c["splits"][name(split)];
      if (facts.is_null()) continue;
      GptDatasetConfig config;
      config.sequence_length = c["S"].as_integer();
      config.seed = c["seed"].as_integer();
      config.split = c["split"].as_string();
      config.eod = c["eod"].as_integer();
      config.cache = false;
      const GptDataset set(source, config, split, c["sizes"].as_array()[i].as_integer());
      EXPECT_EQ(set.size(), facts["n"].as_integer());
      EXPECT_EQ(sha256_hex(as_text(set.indices().document.bytes())),
                facts["sha256"]["document_index"].as_string());
      EXPECT_EQ(sha256_hex(as_text(set.indices().sample.bytes())),
                facts["sha256"]["sample_index"].as_string());
      EXPECT_EQ(sha256_hex(as_text(set.indices().shuffle.bytes())),
                facts["sha256"]["shuffle_index"].as_string());
      Sample sample;
      for (const Json& expected : facts["first_samples"].as_array()) {
        set.read(expected["index"].as_integer(), sample);
        EXPECT_EQ(sample.tokens, integers(expected["tokens"]));
        EXPECT_EQ(sample.labels, integers(expected["labels"]));
      }
    }
  }
}

TEST(GptDataset, AgreesOnMockData) {
  const Json mock = Json::read(golden("gpt_dataset/mock.json"));
  struct {
    const char* key;
    int64_t seed, length, samples, vocabulary;
  } const requests[] = {{"seed1234_S64_n50_vocab1000", 1234, 64, 50, 1000},
                        {"seed7_S1024_n300_vocab50257", 7, 1024, 300, 50257}};
  for (const auto& request : requests) {
    const auto source =
        std::make_shared<const MockTokens>(request.vocabulary, request.vocabulary - 1);
    GptDatasetConfig config;
    config.sequence_length = request.length;
    config.seed = request.seed;
    config.split = "1,1,1";
    config.cache = false;
    const auto sets =
        build_sets(source, config, {request.samples, request.samples, request.samples});
    for (size_t i = 0; i < 3; ++i) {
      const Json& facts = mock[request.key][name(static_cast<Split>(i))];
      EXPECT_EQ(sets[i]->size(), facts["n"].as_integer());
      const GptIndices& got = sets[i]->indices();
      EXPECT_EQ(sha256_hex(as_text(got.document.bytes())), facts["sha"].as_array()[0].as_string());
      EXPECT_EQ(sha256_hex(as_text(got.sample.bytes())), facts["sha"].as_array()[1].as_string());
      EXPECT_EQ(sha256_hex(as_text(got.shuffle.bytes())), facts["sha"].as_array()[2].as_string());
      Sample sample;
      sets[i]->read(0, sample);
      sample.tokens.resize(facts["sample0_tokens"].as_array().size());
      EXPECT_EQ(sample.tokens, integers(facts["sample0_tokens"]));
    }
  }
}

TEST(GptIndex, SampleIndexAlone) {
  const Json cases = Json::read(golden("gpt_dataset/sample_index_helper.json"));
  for (const Json& c : cases.as_array()) {
    SCOPED_TRACE(c.dump());
    const auto sizes = integers(c["sizes"]), documents = integers(c["document_index"]);
    const std::vector<int32_t> lengths(sizes.begin(), sizes.end());
    IndexRequest request;
    request.sequences = static_cast<int64_t>(sizes.size());
    request.tokens_per_epoch = c["tokens_per_epoch"].as_integer();
    request.sequence_length = c["sequence_length"].as_integer();
    request.extra_tokens = c["add_extra_token"].as_integer();
    request.drop_last_partial = c["drop_last_partial_sequence"].as_bool();
    const int64_t epochs = c["num_epochs"].as_integer();
    if (epochs > 1)
      request.samples = (request.tokens_per_epoch * (epochs - 1)) / request.sequence_length + 1;
    const IndexPlan plan = plan_index(request);
    ASSERT_EQ(plan.epochs, epochs);
    EXPECT_EQ(plan.samples, c["num_samples"].as_integer());
    IntegerArray index(IntegerType::i32, {static_cast<int64_t>(documents.size())});
    for (size_t i = 0; i < documents.size(); ++i)
      index.values<int32_t>()[i] = static_cast<int32_t>(documents[i]);
    ThreadPool pool(1);
    const IntegerArray got =
        build_sample_index(request, plan, index, Lengths(std::as_bytes(std::span(lengths))), pool);
    EXPECT_EQ(sha256_hex(as_text(got.bytes())), c["sha256"].as_string());
  }
}

TEST(Split, AgreesWithMegatron) {
  const Json facts = Json::read(golden("gpt_dataset/split_strings.json"));
  for (const Json& c : facts["split_strings"].as_array()) {
    SCOPED_TRACE(c["split"].as_string());
    const SplitMatrix matrix = parse_split(c["split"].as_string());
    for (size_t i = 0; i < 3; ++i) {
      const Json& share = c["matrix"].as_array()[i];
      ASSERT_EQ(matrix[i].has_value(), !share.is_null());
      if (!matrix[i]) continue;
      EXPECT_EQ(matrix[i]->begin, share.as_array()[0].as_number());
      EXPECT_EQ(matrix[i]->end, share.as_array()[1].as_number());
    }
    for (const Json& row : c["boundaries"].as_array()) {
      for (size_t i = 0; i < 3; ++i) {
        const Json& range = row.as_array()[i + 1];
        ASSERT_EQ(matrix[i].has_value(), !range.is_null());
        if (!matrix[i]) continue;
        const auto got = split_range(*matrix[i], row.as_array()[0].as_integer());
        EXPECT_EQ((std::vector<int64_t>{got.first, got.second}), integers(range));
      }
    }
  }
  for (const Json& c : facts["bad_split_strings"].as_array()) {
    EXPECT_NE(error_of([&] { parse_split(c["split"].as_string()); }).find("--split"),
              std::string::npos);
  }
  EXPECT_NE(error_of([] { parse_split("1e-3,1"); }), "");
  EXPECT_NE(error_of([] { parse_split("-1,2"); }), "");
  EXPECT_NE(error_of([] { parse_split("1.2.3"); }), "");
  EXPECT_NE(error_of([] { parse_split(""); }), "");
}

GptDatasetConfig small_config() {
  GptDatasetConfig config;
  config.sequence_length = 32;
  config.split = "60,20,20";
  return config;
}

TEST(GptDataset, RunsWhereNothingCanBeWritten) {
  const TemporaryDirectory folder;
  copy_set("gpt_dataset/data/small40", folder / "set");
  auto config = small_config();
  write_file(folder / "file", "");
  config.cache_path = folder / "file/cache";
  const GptDataset set(std::make_shared<const IndexedDataset>(folder / "set"), config, Split::train,
                       10);
  EXPECT_FALSE(set.from_cache());
  Sample sample;
  set.read(0, sample);
  EXPECT_EQ(sample.tokens.size(), 32u);
}

TEST(GptIndex, TellsTheBytesThatItTakes) {
  IndexRequest request;
  request.sequences = 10;
  request.tokens_per_epoch = 1000;
  request.sequence_length = 32;
  for (const int64_t samples : {1, 100, 1000}) {
    request.samples = samples;
    const IndexPlan plan = plan_index(request);
    const std::vector<int32_t> lengths(10, 100);
    ThreadPool pool(1);
    const GptIndices built =
        build_indices(request, plan, 1, Lengths(std::as_bytes(std::span(lengths))), pool,
                      [](std::string_view, const IntegerArray&) {});
    EXPECT_EQ(index_bytes(plan),
              static_cast<int64_t>(built.document.bytes().size() + built.sample.bytes().size() +
                                   built.shuffle.bytes().size()));
  }
  // More than 2^31 documents and more than 2^32 samples need 64-bit rows and 64-bit samples.
  EXPECT_EQ(index_bytes({.documents = int64_t{1} << 32, .samples = int64_t{1} << 33}),
            4 * (int64_t{1} << 32) + 16 * ((int64_t{1} << 33) + 1) + 8 * (int64_t{1} << 33));
}

TEST(GptDataset, RefusesIndicesAboveHalfOfTheMemory) {
  const auto source = std::make_shared<const IndexedDataset>(golden("gpt_dataset/data/small40"));
  auto config = small_config();
  config.cache = false;
  const GptDataset fits(source, config, Split::train, 1000);
  config.memory = 2 * index_bytes(fits.plan());
  EXPECT_EQ(GptDataset(source, config, Split::train, 1000).size(), fits.size());
  --*config.memory;
  const std::string text = error_of([&] { GptDataset(source, config, Split::train, 1000); });
  EXPECT_NE(text.find(fmt::format("{} train samples", fits.size())), std::string::npos) << text;
  EXPECT_NE(text.find("--train-iters"), std::string::npos) << text;
  // With any machine's memory: refused immediately, not after the memory is full.
  config.memory.reset();
  EXPECT_NE(error_of([&] { GptDataset(source, config, Split::train, int64_t{1} << 34); }), "");
}

TEST(GptDataset, SurvivesDamagedTokenFiles) {
  const TemporaryDirectory folder;
  auto config = small_config();
  config.cache = false;
  std::mt19937 random(13);
  int read = 0, refused = 0;
  for (int round = 0; round < 300; ++round) {
    copy_set("gpt_dataset/data/small40", folder / "x");
    std::string idx = read_file(folder / "x.idx"), bin = read_file(folder / "x.bin");
    const auto kind = random() % 4;
    if (kind == 0) {
      std::filesystem::resize_file(folder / "x.bin", random() % 1000);
    } else if (kind == 1) {  // a token changes, which cannot be detected
      bin[random() % bin.size()] ^= 1;
      write_file(folder / "x.bin", bin);
    } else {
      for (unsigned flips = 1 + random() % 3; flips > 0; --flips)
        idx[random() % idx.size()] ^= static_cast<char>(1u << random() % 8);
      write_file(folder / "x.idx", idx);
    }
    try {
      const GptDataset set(std::make_shared<const IndexedDataset>(
                               folder / "x", IndexedDatasetOptions{.map_tokens = round % 2 == 0}),
                           config, Split::train, 20);
      Sample sample;
      for (int64_t k = 0; k < set.size(); ++k) set.read(k, sample);
      ++read;
    } catch (const Error&) {
      ++refused;
    }
  }
  EXPECT_GT(read, 5);
  EXPECT_GT(refused, 100);
}

TEST(GptDataset, RefusesWhatCannotWork) {
  const auto source = std::make_shared<const IndexedDataset>(golden("gpt_dataset/data/small40"));
  auto config = small_config();
  config.cache = false;
  config.vocabulary_size = 500;
  const GptDataset wrong(source, config, Split::train, 10);
  Sample sample;
  EXPECT_NE(error_of([&] {
              for (int64_t k = 0; k < wrong.size(); ++k) wrong.read(k, sample);
            }).find("vocabulary"),
            std::string::npos);
  config.sequence_length = 1;
  EXPECT_NE(error_of([&] { GptDataset(source, config, Split::train, 10); }).find("--seq-length"),
            std::string::npos);
  config.sequence_length = 32;
  EXPECT_NE(error_of([&] { GptDataset(source, config, Split::train, int64_t{1} << 38); }), "");
  EXPECT_NE(error_of([&] { GptDataset(source, config, Split::train, -1); }), "");
  config.split = "1,0,0";
  EXPECT_NE(error_of([&] { GptDataset(source, config, Split::test, 1); }), "");
}

}  // namespace
}  // namespace megatron::data
