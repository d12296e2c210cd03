// Parts of verify_bert_dataset() and verify_t5_dataset(): each adds its comparisons to a report.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/json.h"
#include "data/bert_dataset.h"
#include "selftest/report.h"
#include "tokenizers/tokenizer.h"

namespace megatron::selftest {

// "is 3, expected 5", or "" for equal values.
std::string difference_of(int64_t value, const Json& expected);
// Compares an array with its type, shape and SHA-256.
std::string difference_of(const data::IntegerArray& array, std::string_view type, const Json& shape,
                          const Json& sha256);

// random_state.json, build_mapping.json.
void compare_random_draws(const std::string& path, Report& report);
void compare_mappings(const std::string& path, Report& report);

// Data and tokenizers of a folder with index.json.
class SentenceData {
 public:
  struct Opened {
    std::shared_ptr<const tokenizers::Tokenizer> tokenizer;
    data::BertTokens tokens;
  };

  explicit SentenceData(std::string folder);

  std::string prefix(const std::string& name) const { return folder_ + "/" + name; }
  const Opened& tokenizer(const std::string& name);
  // Compares all tokenizers' ids and all data sets' sentences with index.json.
  void compare(Report& report);
  // Compares a data set's tokens with those of its text, once.
  void compare_text(const std::string& name, const std::string& tokenizer, Report& report);

 private:
  Opened open(const Json& facts) const;
  void compare_tokenizer(const std::string& name, const Json& facts, Report& report);
  void compare_data(const std::string& name, const Json& facts, Report& report) const;

  std::string folder_;
  Json index_;
  std::map<std::string, Opened> tokenizers_;
  std::vector<std::string> read_texts_;
};

}  // namespace megatron::selftest
