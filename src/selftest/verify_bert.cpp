#include "selftest/verify_bert.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "selftest/bert_vectors.h"

namespace megatron::selftest {
namespace {

namespace fs = std::filesystem;
using data::BertDataset;
using data::RandomState;
using data::Split;

data::BertDatasetConfig bert_config(const Json& request) {
  const auto flag = [&](const char* key) { return request[key].as_bool(); };
  data::BertDatasetConfig config{
      .sequence_length = request["sequence_length"].as_integer(),
      .seed = request["random_seed"].as_integer(),
      .split = request["split"].as_string(),
      .next_sentence = flag("classification_head"),
      .short_sequence_probability = request["short_sequence_probability"].as_number(),
      .masking = {.probability = request["masking_probability"].as_number(),
                  .max_ngram = request["masking_max_ngram"].as_integer(),
                  .whole_words = flag("masking_do_full_word"),
                  .longer_ngrams = flag("masking_use_longer_ngrams"),
                  .geometric = flag("masking_use_geometric_distribution"),
                  .permutation = flag("masking_do_permutation")},
      .megatron_data_order = true,
      .memory = {}};
  if (const Json* allowed = request.find("allow_ambiguous_pad_tokens"))
    config.allow_ambiguous_pad_tokens = allowed->as_bool();
  return config;
}

std::optional<int64_t> bert_samples(const Json& size) {
  return size.is_null() ? std::optional<int64_t>() : size.as_integer();
}

// One cases/NAME/case.json.
class BertCase {
 public:
  BertCase(std::string folder, SentenceData& data, Report& report)
      : folder_(std::move(folder)),
        name_(fs::path(folder_).filename()),
        request_(Json::read(folder_ + "/case.json")),
        data_(data),
        report_(report) {}

  void compare() {
    config_ = bert_config(request_);
    tokens_ = data_.tokenizer(request_["tokenizer"].as_string()).tokens;
    if (request_.contains("error")) return expect_refusal();
    compare_shares();
    for (const Split split : {Split::train, Split::valid, Split::test}) {
      const Json* facts = request_["splits"].find(name(split));
      const bool expected = facts != nullptr && !facts->is_null();
      if (expected != data::parse_split(*config_.split)[index(split)].has_value())
        report_.fail(fmt::format("{}: the {} split {} expected", name_, name(split),
                                 expected ? "has no share, but is" : "has a share, but is not"));
      else if (expected) compare_split(split, *facts);
    }
  }

 private:
  static size_t index(Split split) { return static_cast<size_t>(split); }
  bool blended() const { return request_["data"].is_array(); }

  void expect(const char* kind, const std::string& what, const std::string& difference) {
    report_.expect(kind, fmt::format("{} {}", name_, what), difference);
  }

  std::shared_ptr<const data::BertExamples> build(Split split) {
    data::BlendList list;
    const Json& names = request_["data"];
    for (const Json& one : blended() ? names.as_array() : Json::Array{names})
      list.prefixes.push_back(data_.prefix(one.as_string()));
    const Json* weights = request_.find("weights");
    if (weights != nullptr && !weights->is_null())
      for (const Json& weight : weights->as_array()) list.weights.push_back(weight.as_number());
    return build_bert_examples(list, tokens_, config_, split,
                               bert_samples(request_["sizes"].as_array().at(index(split))));
  }

  void expect_refusal() {
    std::string difference = "accepted, expected an error: " + request_["error"].as_string();
    try {
      const data::SplitMatrix matrix = data::parse_split(*config_.split);
      for (const Split split : {Split::train, Split::valid, Split::test})
        if (matrix[index(split)]) build(split);
    } catch (const Error&) {
      difference.clear();
    }
    expect("refusals", "request", difference);
  }

  void compare_shares() {
    const data::SplitMatrix matrix = data::parse_split(*config_.split);
    const Json::Array& theirs = request_["split_matrix"].as_array();
    for (size_t i = 0; i < matrix.size(); ++i) {
      const bool equal = theirs.at(i).is_null()
                             ? !matrix[i]
                             : matrix[i] &&
                                   matrix[i]->begin == theirs[i].as_array()[0].as_number() &&
                                   matrix[i]->end == theirs[i].as_array()[1].as_number();
      expect("splits", fmt::format("split_matrix[{}]", i), equal ? "" : "another share");
    }
  }

  void compare_split(Split split, const Json& facts) {
    const auto examples = build(split);
    split_ = std::string(name(split));
    // The generator of permuted runs, which goes on from sample to sample.
    global_.reset();
    if (const Json* seed = request_.find("numpy_global_seed")) global_.emplace(seed->as_integer());
    if (const auto* blend = dynamic_cast<const data::BertBlend*>(examples.get()))
      return compare_blend(*blend, facts);
    data_.compare_text(request_["data"].as_string(), request_["tokenizer"].as_string(), report_);
    const auto& set = dynamic_cast<const BertDataset&>(*examples);
    compare_set(set, split_, facts, request_["sizes"].as_array().at(index(split)));
    expect("mappings", split_ + " type and shape",
           difference_of(set.mapping().rows, facts["sample_index_dtype"].as_string(),
                         facts["sample_index_shape"], facts["sample_index_sha256"]));
    compare_file(set);
    expect("mappings", split_ + " pad_token_id",
           difference_of(set.pad_id(), facts["pad_token_id"]));
    if (const Json* pool = request_.find("random_token_pool_size"))
      expect("mappings", "random_token_pool_size",
             difference_of(set.masker().replacements(), *pool));
    for (const Json& sample : facts["samples"].as_array())
      compare_sample(set, sample["index"].as_integer(), sample);
  }

  // Numbers of samples and documents, and the rows of the mapping.
  void compare_set(const BertDataset& set, const std::string& what, const Json& facts,
                   const Json& requested) {
    const auto number = [&](const char* key, int64_t own) {
      expect("mappings", fmt::format("{} {}", what, key), difference_of(own, facts[key]));
    };
    number("num_samples_requested", requested.as_integer());
    number("num_samples_built", set.size());
    number("first_document", set.first_document());
    number("documents", set.documents());
    const Json shape(Json::Array{set.size(), 3});
    expect("mappings", what + " sample_index_sha256",
           difference_of(set.mapping().rows, "uint32", shape, facts["sample_index_sha256"]));
  }

  void compare_file(const BertDataset& set) {
    const std::string path = fmt::format("{}/{}/sample_index.npy", folder_, split_);
    if (!fs::exists(path)) return;
    const data::IntegerArray theirs = data::IntegerArray::map(path), &own = set.mapping().rows;
    std::string difference = first_difference(own.shape(), theirs.shape());
    for (int64_t i = 0; difference.empty() && i < own.size(); ++i)
      if (own[i] != theirs[i])
        difference =
            fmt::format("row {}, column {} is {}, expected {}", i / 3, i % 3, own[i], theirs[i]);
    expect("mappings", split_ + "/sample_index.npy", difference);
  }

  void compare_blend(const data::BertBlend& blend, const Json& facts) {
    const Json::Array& sets = facts["datasets"].as_array();
    const std::vector<double> weights = weights_of_blend();
    MG_CHECK(sets.size() == blend.parts().size(), "{}/case.json lists {} data sets, expected {}",
             folder_, sets.size(), blend.parts().size());
    const int64_t samples = requested();
    for (size_t d = 0; d < sets.size(); ++d)
      compare_set(*blend.parts()[d], fmt::format("{} data set {}", split_, d), sets[d],
                  data::share_of_blend(samples, weights[d], kSurplus));
    expect("blends", split_ + " size", difference_of(blend.size(), facts["size"]));
    const auto& index = blend.index();
    expect("blends", split_ + " dataset_index",
           first_difference({index.set.begin(), index.set.end()}, facts["dataset_index"]));
    expect("blends", split_ + " dataset_sample_index",
           first_difference(index.sample, facts["dataset_sample_index"]));
    for (const Json& sample : facts["samples"].as_array()) {
      const auto k = static_cast<size_t>(sample["index"].as_integer());
      MG_CHECK(k < index.set.size(), "{}/case.json: the blend has no sample {}", folder_, k);
      const auto set = static_cast<size_t>(index.set[k]);
      expect("samples", fmt::format("{} {} dataset_id", split_, k),
             difference_of(static_cast<int64_t>(set), sample["dataset_id"]));
      compare_sample(*blend.parts()[set], index.sample[k], sample);
    }
  }

  static constexpr double kSurplus = 0.005;

  int64_t requested() const {
    for (const Split split : {Split::train, Split::valid, Split::test})
      if (name(split) == split_) return request_["sizes"].as_array().at(index(split)).as_integer();
    return 0;
  }
  std::vector<double> weights_of_blend() const {
    std::vector<double> weights;
    for (const Json& weight : request_["weights"].as_array()) weights.push_back(weight.as_number());
    return data::normalized(weights);
  }
  static std::string first_difference(const std::vector<int64_t>& own, const Json& theirs) {
    return selftest::first_difference(own, integers_of(theirs));
  }
  static std::string first_difference(const std::vector<int64_t>& own,
                                      const std::vector<int64_t>& theirs) {
    return selftest::first_difference(own, theirs);
  }

  // k: the sample's position in its data set.
  void compare_sample(const BertDataset& set, int64_t k, const Json& expected) {
    const std::string what = fmt::format("{} {}", split_, expected["index"].as_integer());
    data::PaddedBertSample own;
    if (expected.contains("error")) {
      std::string difference = "read, expected an error";
      try {
        set.read_padded(k, own, global());
      } catch (const Error&) {
        difference.clear();
      }
      return expect("refusals", "sample " + what, difference);
    }
    set.read_padded(k, own, global());
    for (const char* key :
         {"text", "types", "labels", "padding_mask", "loss_mask", "is_random", "truncated"})
      if (!expected.contains(key)) expect("samples", fmt::format("{} {}", what, key), "is missing");
    for (const auto& [key, value] : expected.as_object()) {
      std::string difference;
      if (key == "index" || key == "dataset_id" || key == "draws") continue;
      if (key == "mapping") difference = first_difference(row(set, k), value);
      else if (key == "text") difference = first_difference(own.text, value);
      else if (key == "types") difference = first_difference(own.types, value);
      else if (key == "labels") difference = first_difference(own.labels, value);
      else if (key == "padding_mask") difference = first_difference(own.padding_mask, value);
      else if (key == "loss_mask") difference = first_difference(own.loss_mask, value);
      else if (key == "is_random") difference = difference_of(int64_t{own.is_random}, value);
      else if (key == "truncated") difference = difference_of(int64_t{own.truncated}, value);
      else difference = "no field of a sample";
      expect("samples", fmt::format("{} {}", what, key), difference);
    }
  }

  RandomState* global() { return global_ ? &*global_ : nullptr; }
  static std::vector<int64_t> row(const BertDataset& set, int64_t k) {
    const data::IntegerArray& rows = set.mapping().rows;
    return {rows[3 * k], rows[3 * k + 1], rows[3 * k + 2]};
  }

  std::string folder_, name_;
  Json request_;
  SentenceData& data_;
  Report& report_;
  data::BertDatasetConfig config_;
  data::BertTokens tokens_;
  std::string split_;
  std::optional<RandomState> global_;
};

// Folders with a case.json, in order of their names.
std::vector<std::string> case_folders(const std::string& directory) {
  std::vector<std::string> folders;
  for (const auto& entry : fs::directory_iterator(directory + "/cases"))
    if (fs::exists(entry.path() / "case.json")) folders.push_back(entry.path());
  std::ranges::sort(folders);
  return folders;
}

}  // namespace

bool has_bert_dataset(const std::string& directory) {
  if (!fs::exists(directory + "/data/index.json") || !fs::is_directory(directory + "/cases"))
    return false;
  if (fs::exists(directory + "/build_mapping.json")) return true;
  for (const std::string& folder : case_folders(directory))
    return Json::read(folder + "/case.json").contains("classification_head");
  return false;
}

Report verify_bert_dataset(const std::string& directory) {
  Report report(fmt::format("{}: BERT data sets", directory));
  if (fs::exists(directory + "/random_state.json"))
    compare_random_draws(directory + "/random_state.json", report);
  if (fs::exists(directory + "/build_mapping.json"))
    compare_mappings(directory + "/build_mapping.json", report);
  SentenceData data(directory + "/data");
  data.compare(report);
  const std::vector<std::string> cases = case_folders(directory);
  MG_CHECK(!cases.empty(), "{}/cases has no folder with case.json", directory);
  for (const std::string& folder : cases) BertCase(folder, data, report).compare();
  report.note(
      "not compared: draws of samples; descriptions and names of caches, which differ here");
  return report;
}

}  // namespace megatron::selftest
