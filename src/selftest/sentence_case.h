// Compares one case of a folder of Megatron-LM's data sets of sentences, for BERT or for T5.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "data/example_source.h"
#include "data/random_state.h"
#include "data/token_masking.h"
#include "selftest/bert_vectors.h"
#include "selftest/report.h"

namespace megatron::selftest {

// Folders of directory/cases with a case.json, in order of their names.
std::vector<std::string> case_folders(const std::string& directory);
// Whether directory has data/index.json, and cases whose requests have the key.
bool has_cases(const std::string& directory, const std::string& key);
// The fields that the requests of all kinds have; with megatron_data_order. Config: of a data set.
data::MaskingOptions masking_options(const Json& request);
template <class Config>
Config common_config(const Json& request) {
  Config config;
  config.sequence_length = request["sequence_length"].as_integer();
  config.seed = request["random_seed"].as_integer();
  config.split = request["split"].as_string();
  config.short_sequence_probability = request["short_sequence_probability"].as_number();
  config.masking = masking_options(request);
  config.megatron_data_order = true;
  if (const Json* allowed = request.find("allow_ambiguous_pad_tokens"))
    config.allow_ambiguous_pad_tokens = allowed->as_bool();
  return config;
}

// One cases/NAME/case.json. Kind says what a data set is:
//   Dataset, Blend, Padded         its classes, and that of a sample
//   kFields                        names of the fields that a sample has
//   config(request)                the configuration of a data set
//   build(list, opened, config, split, samples)
//   facts(set)                     numbers of a data set by the names that they have in a request
//   difference(own, field, value)  "" if they are equal, none for another field
template <class Kind>
class SentenceCase {
 public:
  using Dataset = typename Kind::Dataset;
  using Split = data::Split;

  SentenceCase(std::string folder, SentenceData& data, Report& report)
      : folder_(std::move(folder)),
        name_(std::filesystem::path(folder_).filename()),
        request_(Json::read(folder_ + "/case.json")),
        data_(data),
        report_(report) {}

  void compare() {
    config_ = Kind::config(request_);
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
  static constexpr double kSurplus = 0.005;

  static size_t index(Split split) { return static_cast<size_t>(split); }
  bool blended() const { return request_["data"].is_array(); }
  const Json& size_of(Split split) const { return request_["sizes"].as_array().at(index(split)); }
  data::RandomState* global() { return global_ ? &*global_ : nullptr; }

  void expect(const char* kind, const std::string& what, const std::string& difference) {
    report_.expect(kind, fmt::format("{} {}", name_, what), difference);
  }

  auto build(Split split) {
    data::BlendList list;
    const Json& names = request_["data"];
    for (const Json& one : blended() ? names.as_array() : Json::Array{names})
      list.prefixes.push_back(data_.prefix(one.as_string()));
    const Json* weights = request_.find("weights");
    if (weights != nullptr && !weights->is_null())
      for (const Json& weight : weights->as_array()) list.weights.push_back(weight.as_number());
    std::optional<int64_t> samples;
    if (!size_of(split).is_null()) samples = size_of(split).as_integer();
    return Kind::build(list, data_.tokenizer(request_["tokenizer"].as_string()), config_, split,
                       samples);
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
    // The generator of permuted runs, whose state carries over from sample to sample.
    global_.reset();
    if (const Json* seed = request_.find("numpy_global_seed")) global_.emplace(seed->as_integer());
    if (const auto* blend = dynamic_cast<const typename Kind::Blend*>(examples.get()))
      return compare_blend(*blend, size_of(split).as_integer(), facts);
    data_.compare_text(request_["data"].as_string(), request_["tokenizer"].as_string(), report_);
    const auto& set = dynamic_cast<const Dataset&>(*examples);
    compare_set(set, split_, facts, size_of(split).as_integer());
    expect("mappings", split_ + " type and shape",
           difference_of(set.samples().mapping().rows, facts["sample_index_dtype"].as_string(),
                         facts["sample_index_shape"], facts["sample_index_sha256"]));
    compare_file(set);
    expect("mappings", split_ + " pad_token_id",
           difference_of(set.pad_id(), facts["pad_token_id"]));
    for (const auto& [key, own] : Kind::facts(set))
      if (const Json* value = request_.find(key))
        expect("mappings", key, difference_of(own, *value));
    for (const Json& sample : facts["samples"].as_array())
      compare_sample(set, sample["index"].as_integer(), sample);
  }

  // Numbers of samples and documents, and the rows of the mapping.
  void compare_set(const Dataset& set, const std::string& what, const Json& facts,
                   int64_t requested) {
    const auto number = [&](const char* key, int64_t own) {
      expect("mappings", fmt::format("{} {}", what, key), difference_of(own, facts[key]));
    };
    number("num_samples_requested", requested);
    number("num_samples_built", set.size());
    number("first_document", set.samples().first_document());
    number("documents", set.samples().documents());
    const Json shape(Json::Array{set.size(), 3});
    expect(
        "mappings", what + " sample_index_sha256",
        difference_of(set.samples().mapping().rows, "uint32", shape, facts["sample_index_sha256"]));
  }

  void compare_file(const Dataset& set) {
    const std::string path = fmt::format("{}/{}/sample_index.npy", folder_, split_);
    if (!std::filesystem::exists(path)) return;
    const data::IntegerArray theirs = data::IntegerArray::map(path),
                             &own = set.samples().mapping().rows;
    std::string difference = first_difference(own.shape(), theirs.shape());
    for (int64_t i = 0; difference.empty() && i < own.size(); ++i)
      if (own[i] != theirs[i])
        difference =
            fmt::format("row {}, column {} is {}, expected {}", i / 3, i % 3, own[i], theirs[i]);
    expect("mappings", split_ + "/sample_index.npy", difference);
  }

  void compare_blend(const typename Kind::Blend& blend, int64_t requested, const Json& facts) {
    const Json::Array& sets = facts["datasets"].as_array();
    std::vector<double> given;
    for (const Json& weight : request_["weights"].as_array()) given.push_back(weight.as_number());
    const std::vector<double> weights = data::normalized(given);
    MG_CHECK(sets.size() == blend.parts().size(), "{}/case.json lists {} data sets, expected {}",
             folder_, sets.size(), blend.parts().size());
    for (size_t d = 0; d < sets.size(); ++d)
      compare_set(*blend.parts()[d], fmt::format("{} data set {}", split_, d), sets[d],
                  data::share_of_blend(requested, weights[d], kSurplus));
    expect("blends", split_ + " size", difference_of(blend.size(), facts["size"]));
    const auto& index = blend.index();
    const std::vector<int64_t> numbers(index.set.begin(), index.set.end());
    expect("blends", split_ + " dataset_index",
           first_difference(numbers, integers_of(facts["dataset_index"])));
    expect("blends", split_ + " dataset_sample_index",
           first_difference(index.sample, integers_of(facts["dataset_sample_index"])));
    for (const Json& sample : facts["samples"].as_array()) {
      const auto k = static_cast<size_t>(sample["index"].as_integer());
      MG_CHECK(k < index.set.size(), "{}/case.json: the blend has no sample {}", folder_, k);
      const auto set = static_cast<size_t>(index.set[k]);
      expect("samples", fmt::format("{} {} dataset_id", split_, k),
             difference_of(static_cast<int64_t>(set), sample["dataset_id"]));
      compare_sample(*blend.parts()[set], index.sample[k], sample);
    }
  }

  // k: the sample's position in its data set.
  void compare_sample(const Dataset& set, int64_t k, const Json& expected) {
    const std::string what = fmt::format("{} {}", split_, expected["index"].as_integer());
    if (const Json* mapping = expected.find("mapping")) {
      const auto row = set.samples().row(k);
      expect("samples", what + " mapping",
             first_difference(std::vector<int64_t>{row.first, row.end, row.target},
                              integers_of(*mapping)));
    }
    typename Kind::Padded own;
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
    for (const char* key : Kind::kFields)
      if (!expected.contains(key)) expect("samples", fmt::format("{} {}", what, key), "is missing");
    for (const auto& [key, value] : expected.as_object()) {
      if (key == "index" || key == "dataset_id" || key == "draws" || key == "mapping") continue;
      const std::optional<std::string> difference = Kind::difference(own, key, value);
      expect("samples", fmt::format("{} {}", what, key),
             difference.value_or("no field of a sample"));
    }
  }

  std::string folder_, name_;
  Json request_;
  SentenceData& data_;
  Report& report_;
  decltype(Kind::config(Json())) config_;
  std::string split_;
  std::optional<data::RandomState> global_;
};

// Compares the data, tokenizers and cases of a folder.
template <class Kind>
void compare_sentence_cases(const std::string& directory, Report& report) {
  SentenceData data(directory + "/data");
  data.compare(report);
  const std::vector<std::string> cases = case_folders(directory);
  MG_CHECK(!cases.empty(), "{}/cases has no folder with case.json", directory);
  for (const std::string& folder : cases) SentenceCase<Kind>(folder, data, report).compare();
  report.note(
      "not compared: draws of samples; descriptions and names of caches, which differ here");
}

}  // namespace megatron::selftest
