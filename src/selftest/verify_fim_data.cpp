#include "selftest/verify_fim_data.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <memory>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/json.h"
#include "corpus/vocabulary.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "data/sha256.h"
#include "selftest/sentence_case.h"

namespace megatron::selftest {
namespace {

namespace fs = std::filesystem;
using corpus::Vocabulary;
using data::Split;

std::vector<std::string> texts_of(const Json& list) {
  std::vector<std::string> texts;
  for (const Json& text : list.as_array()) texts.push_back(text.as_string());
  return texts;
}

// Token files and tokenizers of a folder with index.json.
class FimData {
 public:
  explicit FimData(const std::string& directory)
      : directory_(directory), index_(Json::read(directory + "/data/index.json")) {}

  void compare(Report& report) {
    for (const auto& [name, facts] : index_["tokenizers"].as_object())
      compare_tokenizer(name, facts, report);
    for (const auto& [name, facts] : index_["data"].as_object())
      compare_tokens(name, facts, report);
  }
  std::string prefix(const std::string& name) const { return directory_ + "/data/" + name; }
  const Vocabulary& tokenizer(const std::string& name) {
    const auto found = opened_.find(name);
    if (found != opened_.end()) return found->second;
    const Json& facts = index_["tokenizers"][name];
    settings::TokenizerSettings settings;
    const std::string& path = facts["path"].as_string();
    settings.tokenizer_model = prefix(path);
    if (!fs::exists(*settings.tokenizer_model))
      settings.tokenizer_model = directory_ + "/../indexed/preprocess/" + path;
    settings.tokenizer_special_tokens = texts_of(facts["additional_special_tokens"]);
    if (const Json* include = facts["overrides"].find("include_special_tokens"))
      settings.hf_include_special_tokens = include->as_bool();
    return opened_.emplace(name, corpus::open_vocabulary(settings, {})).first->second;
  }

 private:
  void compare_tokenizer(const std::string& name, const Json& facts, Report& report) {
    const Vocabulary& v = tokenizer(name);
    const auto expect = [&](const std::string& what, int64_t own, const Json& expected) {
      report.expect("tokenizers", name + "." + what, difference_of(own, expected));
    };
    expect("vocab_size", v.size, facts["vocab_size"]);
    expect("pad", v.pad.value_or(-1), facts["pad"]);
    expect("eod", v.eod, facts["eod"]);
    for (const auto& [token, id] : facts["ids"].as_object())
      expect("ids." + token, v.tokenizer->token_id(token).value_or(-1), id);
    for (const std::string& token : texts_of(facts["all_special_tokens"])) {
      const auto id = v.tokenizer->token_id(token);
      report.expect("tokenizers", name + ".all_special_tokens",
                    id && v.tokenizer->is_special(*id) ? "" : token + " is not a special token");
    }
  }
  void compare_tokens(const std::string& name, const Json& facts, Report& report) const {
    const data::IndexedDataset set(prefix(name));
    std::vector<int64_t> lengths;
    for (int64_t i = 0; i < set.sequence_count(); ++i) lengths.push_back(set.length(i));
    const auto expect = [&](const char* what, const std::string& difference) {
      report.expect("token files", name + "." + what, difference);
    };
    expect("documents", difference_of(set.document_count(), facts["documents"]));
    expect("tokens", difference_of(set.token_count(), facts["tokens"]));
    expect("lengths", first_difference(lengths, integers_of(facts["lengths"])));
  }

  std::string directory_;
  Json index_;
  std::map<std::string, Vocabulary> opened_;
};

// One cases/NAME/case.json.
class FimCase {
 public:
  FimCase(const std::string& folder, FimData& data, Report& report)
      : name_(fs::path(folder).filename()),
        request_(Json::read(folder + "/case.json")),
        vocabulary_(data.tokenizer(request_["tokenizer"].as_string())),
        source_(std::make_shared<const data::IndexedDataset>(
            data.prefix(request_["data"].as_string()))),
        report_(report) {}

  void compare() {
    for (const auto& [name, facts] : request_["splits"].as_object()) {
      if (facts.is_null()) continue;
      const Split split = name == "train"   ? Split::train
                          : name == "valid" ? Split::valid
                                            : Split::test;
      const auto place = static_cast<size_t>(split);
      const data::GptDataset set(source_, config(facts["fim_ids"]), split,
                                 request_["sizes"].as_array().at(place).as_integer());
      compare_set(set, name, facts);
      for (size_t i = 0; i < facts["accesses"].as_array().size(); ++i)
        compare_access(set, fmt::format("{} access {}", name, i), facts["accesses"].as_array()[i]);
    }
  }

 private:
  void expect(const char* kind, const std::string& what, const std::string& difference) {
    report_.expect(kind, name_ + " " + what, difference);
  }

  data::GptDatasetConfig config(const Json& ids) const {
    const auto number = [&](const char* key) -> std::optional<double> {
      const Json& value = request_[key];
      return value.is_null() ? std::nullopt : std::optional(value.as_number());
    };
    data::InfillingConfig infilling{.tokens = {.prefix = ids["prefix"].as_integer(),
                                               .middle = ids["middle"].as_integer(),
                                               .suffix = ids["suffix"].as_integer(),
                                               .pad = ids["pad"].as_integer(),
                                               .eod = ids["eod"].as_integer(),
                                               .split = {}},
                                    .rate = number("fim_rate").value_or(0),
                                    .spm_rate = number("fim_spm_rate").value_or(0),
                                    .fragment_rate = number("fim_fragment_rate"),
                                    .no_prefix = request_["fim_no_prefix"].is_null()
                                                     ? ""
                                                     : request_["fim_no_prefix"].as_string(),
                                    .add_special_tokens = vocabulary_.add_special_tokens,
                                    .megatron_data_order = true};
    if (!ids["split"].is_null()) infilling.tokens.split = ids["split"].as_integer();
    data::GptDatasetConfig config;
    config.sequence_length = request_["sequence_length"].as_integer();
    config.seed = request_["random_seed"].as_integer();
    config.split = request_["split"].as_string();
    config.eod = vocabulary_.eod;
    config.pad = vocabulary_.pad;
    config.special = {vocabulary_.eod};
    config.vocabulary_size = vocabulary_.size;
    config.cache = false;
    config.infilling =
        std::make_shared<const data::Infilling>(vocabulary_.tokenizer, std::move(infilling));
    return config;
  }

  void compare_set(const data::GptDataset& set, const std::string& split, const Json& facts) {
    expect("indices", split + " num_samples_built",
           difference_of(set.size(), facts["num_samples_built"]));
    const std::pair<const char*, const data::IntegerArray*> indices[] = {
        {"document_index_sha256", &set.indices().document},
        {"sample_index_sha256", &set.indices().sample},
        {"shuffle_index_sha256", &set.indices().shuffle}};
    for (const auto& [key, index] : indices) {
      const auto bytes = index->bytes();
      const std::string own =
          data::sha256_hex({reinterpret_cast<const char*>(bytes.data()), bytes.size()});
      expect("indices", split + " " + key,
             own == facts[key].as_string() ? "" : "another SHA-256: " + own);
    }
  }

  void compare_access(const data::GptDataset& set, const std::string& what, const Json& expected) {
    data::Sample own;
    const Json& index = expected["index"];
    const auto read = [&] {
      if (index.is_null()) set.read_filler(own);
      else set.read(index.as_integer(), own);
    };
    const bool refused = expected.contains("error");
    std::string error;
    try {
      read();
    } catch (const Error& e) {
      error = e.what();
    }
    if (refused || !error.empty())
      return expect("refusals", what,
                    !refused        ? error
                    : error.empty() ? "is read, expected an error"
                                    : "");
    expect("samples", what + " tokens",
           first_difference(own.tokens, integers_of(expected["tokens"])));
    std::vector<int64_t> labels;
    if (const Json* given = expected.find("labels")) {
      labels = integers_of(*given);
    } else {
      labels = integers_of(expected["tokens"]);
      labels.erase(labels.begin());
      labels.push_back(expected["last_label"].as_integer());
    }
    expect("samples", what + " labels", first_difference(own.labels, labels));
    std::vector<int64_t> zeros;
    for (size_t i = 0; i < own.loss_mask.size(); ++i)
      if (own.loss_mask[i] == 0) zeros.push_back(static_cast<int64_t>(i));
    expect("samples", what + " loss_mask_zeros",
           first_difference(zeros, integers_of(expected["loss_mask_zeros"])));
  }

  std::string name_;
  Json request_;
  const Vocabulary& vocabulary_;
  std::shared_ptr<const data::TokenSource> source_;
  Report& report_;
};

}  // namespace

bool has_fim_dataset(const std::string& directory) { return has_cases(directory, "fim_rate"); }

Report verify_fim_dataset(const std::string& directory) {
  Report report(fmt::format("{}: data sets with fill in the middle", directory));
  FimData data(directory);
  data.compare(report);
  for (const std::string& folder : case_folders(directory)) FimCase(folder, data, report).compare();
  report.note("not compared: draws; descriptions and names of caches, which differ here");
  return report;
}

}  // namespace megatron::selftest
