#include "selftest/bert_vectors.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <cstdlib>
#include <filesystem>
#include <functional>
#include <span>
#include <string_view>
#include <utility>

#include "base/error.h"
#include "base/files.h"
#include "base/text_parts.h"
#include "corpus/vocabulary.h"
#include "data/random_state.h"
#include "data/sentence_mapping.h"
#include "data/sha256.h"

namespace megatron::selftest {
namespace {

using data::IntegerArray;
using data::RandomState;

std::string_view as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::vector<int64_t> values_of(const IntegerArray& array) {
  std::vector<int64_t> values;
  for (int64_t i = 0; i < array.size(); ++i) values.push_back(array[i]);
  return values;
}

// Doubles are compared by their bits.
int64_t bits_of(double value) { return std::bit_cast<int64_t>(value); }
int64_t bits_of(const Json& hexadecimal) {
  return bits_of(std::strtod(hexadecimal.as_string().c_str(), nullptr));
}

// The draws of one seed; each kind begins with a new generator.
class RandomDraws {
 public:
  RandomDraws(const Json& expected, Report& report)
      : expected_(expected), report_(report), seed_(expected["seed"].as_integer()) {}

  void compare() {
    compare_words();
    compare_integers();
    compare_shuffle();
    for (const int64_t n : {1, 2, 3, 5, 10}) {
      compare_choice(fmt::format("choice_inverse_{}", n), n, false);
      compare_choice(fmt::format("choice_longer_{}", n), n, true);
    }
    compare_draws("geometric_0.2", [](RandomState& r) { return r.geometric(0.2); });
    for (const auto& [key, value] : expected_.as_object()) {
      const std::string_view prefix = "binomial_1_";
      if (!key.starts_with(prefix) || key.ends_with("_next_random")) continue;
      const double p = std::strtod(key.c_str() + prefix.size(), nullptr);
      compare_draws(key, [p](RandomState& r) { return int64_t{r.bernoulli(p)}; });
    }
  }

 private:
  void expect(const std::string& what, const std::string& difference) {
    report_.expect("random draws", fmt::format("{} of seed {}", what, seed_), difference);
  }
  std::vector<int64_t> wanted(const std::string& key) const { return integers_of(expected_[key]); }

  void expect_next(const std::string& key, RandomState& random) {
    const Json* next = expected_.find(key + "_next_random");
    if (next == nullptr) return;
    const int64_t own = bits_of(random.uniform());
    expect(key + "_next_random", own == bits_of(*next) ? "" : "another number");
  }

  void compare_words() {
    RandomState words(seed_), doubles(seed_);
    std::vector<int64_t> own;
    for (size_t i = 0; i < expected_["raw32"].as_array().size(); ++i) own.push_back(words.next());
    expect("raw32", first_difference(own, wanted("raw32")));
    size_t differing = 0;
    for (const Json& number : expected_["random"].as_array())
      differing += bits_of(doubles.uniform()) != bits_of(number);
    expect("random", differing == 0 ? "" : fmt::format("{} numbers differ", differing));
  }

  void compare_integers() {
    RandomState random(seed_);
    std::vector<int64_t> own, theirs;
    for (const Json& draw : expected_["randint_low_high"].as_array()) {
      const std::vector<int64_t> fields = integers_of(draw);
      own.push_back(random.integer(fields.at(0), fields.at(1)));
      theirs.push_back(fields.at(2));
    }
    expect("randint_low_high", first_difference(own, theirs));
    expect_next("randint", random);
    RandomState pair(seed_);
    for (const Json& draw : expected_["randint_size2"].as_array()) {
      const int64_t high = draw.as_array().at(0).as_integer();
      const int64_t first = pair.integer(0, high);
      const std::vector<int64_t> two = {first, pair.integer(0, high)};
      expect("randint_size2", first_difference(two, integers_of(draw.as_array().at(1))));
    }
  }

  void compare_shuffle() {
    const std::vector<int64_t> theirs = wanted("shuffle17");
    std::vector<int64_t> own(theirs.size());
    for (size_t i = 0; i < own.size(); ++i) own[i] = static_cast<int64_t>(i);
    RandomState random(seed_);
    random.shuffle(std::span(own));
    expect("shuffle17", first_difference(own, theirs));
    expect_next("shuffle", random);
  }

  void compare_choice(const std::string& key, int64_t n, bool longer) {
    std::vector<double> weights;
    for (int64_t k = 1; k <= n; ++k) weights.push_back(1.0 / static_cast<double>(k));
    std::vector<double> probabilities = data::normalized(weights);
    if (longer) std::ranges::reverse(probabilities);
    const data::WeightedChoice choice(probabilities);
    compare_draws(key, [&](RandomState& r) { return static_cast<int64_t>(choice.draw(r)) + 1; });
  }

  void compare_draws(const std::string& key, const std::function<int64_t(RandomState&)>& draw) {
    RandomState random(seed_);
    const std::vector<int64_t> theirs = wanted(key);
    std::vector<int64_t> own;
    for (size_t i = 0; i < theirs.size(); ++i) own.push_back(draw(random));
    expect(key, first_difference(own, theirs));
    expect_next(key.starts_with("geometric") ? "geometric" : key, random);
  }

  const Json& expected_;
  Report& report_;
  int64_t seed_;
};

std::vector<int32_t> small_integers(const Json& list) {
  std::vector<int32_t> values;
  for (const Json& value : list.as_array())
    values.push_back(static_cast<int32_t>(value.as_integer()));
  return values;
}

// Returns the first difference between a mapping and the expected one, of which the file has the
// first rows, the type, the shape and the SHA-256.
std::string mapping_difference(const IntegerArray& own, const Json& expected) {
  std::vector<int64_t> theirs;
  for (const Json& row : expected["mapping"].as_array())
    for (const int64_t value : integers_of(row)) theirs.push_back(value);
  std::vector<int64_t> values = values_of(own);
  values.resize(std::min(values.size(), theirs.size()));
  const std::string difference = first_difference(values, theirs);
  if (!difference.empty()) return difference;
  return difference_of(own, expected["dtype"].as_string(), expected["shape"], expected["sha256"]);
}

// The names of added tokens; ["<x_0>", "...", "<x_99>"] stands for as many as there are ids.
std::vector<std::string> added_tokens(const Json& facts) {
  std::vector<std::string> names;
  for (const Json& name : facts["additional_special_tokens"].as_array())
    names.push_back(name.as_string());
  if (std::ranges::find(names, "...") == names.end()) return names;
  const std::string first = names.front();
  const size_t zero = first.find('0'),
               count = facts["additional_special_tokens_ids"].as_array().size();
  MG_CHECK(zero != first.npos, "index.json: '{}' is not the first of a list of tokens", first);
  names.clear();
  for (size_t i = 0; i < count; ++i)
    names.push_back(fmt::format("{}{}{}", first.substr(0, zero), i, first.substr(zero + 1)));
  return names;
}

}  // namespace

std::string difference_of(int64_t value, const Json& expected) {
  if (expected.is_number() && value == expected.as_integer()) return "";
  return fmt::format("is {}, expected {}", value, expected.dump());
}

std::string difference_of(const IntegerArray& array, std::string_view type, const Json& shape,
                          const Json& sha256) {
  if (type != "uint32" || array.type() != data::IntegerType::u32)
    return fmt::format("is {}, expected {}", name(array.type()), type);
  const std::string difference = first_difference(array.shape(), integers_of(shape));
  if (!difference.empty()) return "shape: " + difference;
  const std::string own = data::sha256_hex(as_text(array.bytes()));
  return own == sha256.as_string()
             ? ""
             : fmt::format("SHA-256 is {}, expected {}", own, sha256.as_string());
}

void compare_random_draws(const std::string& path, Report& report) {
  const Json all = Json::read(path);
  for (const Json& expected : all.as_array()) RandomDraws(expected, report).compare();
}

void compare_mappings(const std::string& path, Report& report) {
  const Json all = Json::read(path);
  for (const char* kind : {"mapping", "blocks"}) {
    for (const Json& expected : all[kind].as_array()) {
      const std::vector<int64_t> bounds = integers_of(expected["document_bounds"]);
      const std::vector<int32_t> lengths = small_integers(expected["sentence_lengths"]);
      const auto sentences = [&](int64_t document) {
        const auto d = static_cast<size_t>(document);
        return std::pair(bounds.at(d), bounds.at(d + 1));
      };
      const data::SentenceDocuments documents = {
          .documents = std::ssize(bounds) - 1,
          .sentences = sentences,
          .lengths = data::Lengths(std::as_bytes(std::span(lengths)))};
      const int64_t samples = expected["max_num_samples"].as_integer(),
                    epochs = expected["num_epochs"].as_integer(),
                    tokens = expected["max_sequence_length"].as_integer(),
                    seed = expected["seed"].as_integer();
      const auto map = [&] {
        if (kind == std::string_view("mapping"))
          return data::map_sentences(documents,
                                     {.samples = samples,
                                      .max_epochs = epochs,
                                      .tokens = tokens,
                                      .seed = seed,
                                      .short_sequence_probability =
                                          expected["short_sequence_probability"].as_number(),
                                      .min_sentences = expected["min_sentences"].as_integer()})
              .rows;
        const std::vector<int32_t> titles = small_integers(expected["title_lengths"]);
        return data::map_blocks(
            documents, {.samples = samples,
                        .max_epochs = epochs,
                        .tokens = tokens,
                        .seed = seed,
                        .title_lengths = titles,
                        .one_sentence_blocks = expected["use_one_sentence_blocks"].as_bool()});
      };
      report.expect("mappings", "build_mapping.json " + expected["name"].as_string(),
                    mapping_difference(map(), expected));
    }
  }
}

SentenceData::SentenceData(std::string folder)
    : folder_(std::move(folder)), index_(Json::read(folder_ + "/index.json")) {}

SentenceData::Opened SentenceData::open(const Json& facts) const {
  settings::TokenizerSettings settings;
  settings.tokenizer_model = prefix(facts["path"].as_string());
  settings.tokenizer_special_tokens = added_tokens(facts);
  Opened opened{.tokenizer = corpus::open_vocabulary(settings, {}).tokenizer, .tokens = {}};
  opened.tokens = data::bert_tokens(*opened.tokenizer);
  for (const auto& [role, token] : facts["overrides"].as_object()) {
    const auto id = opened.tokenizer->token_id(token.as_string());
    MG_CHECK(id.has_value(), "index.json: {} '{}' is not a token", role, token.as_string());
    data::BertTokens& t = opened.tokens;
    if (role == "pad_token") t.pad = *id;
    else if (role == "cls_token") t.cls = *id;
    else if (role == "sep_token") t.sep = *id;
    else if (role == "mask_token") t.mask = *id;
    else if (role == "bos_token") t.bos = *id;
    else if (role == "eos_token") t.eos = *id;
    else fail("index.json: {} cannot be overridden", role);
  }
  return opened;
}

const SentenceData::Opened& SentenceData::tokenizer(const std::string& name) {
  const auto found = tokenizers_.find(name);
  if (found != tokenizers_.end()) return found->second;
  return tokenizers_.emplace(name, open(index_["tokenizers"][name])).first->second;
}

void SentenceData::compare(Report& report) {
  for (const auto& [name, facts] : index_["tokenizers"].as_object())
    compare_tokenizer(name, facts, report);
  for (const auto& [name, facts] : index_["data"].as_object()) compare_data(name, facts, report);
}

void SentenceData::compare_tokenizer(const std::string& name, const Json& facts, Report& report) {
  const Opened& opened = tokenizer(name);
  const data::BertTokens& t = opened.tokens;
  const std::pair<const char*, int64_t> own[] = {
      {"pad", t.pad},
      {"cls", t.cls},
      {"sep", t.sep},
      {"mask", t.mask},
      {"bos", t.bos.value_or(t.cls)},
      {"eos", t.eos.value_or(t.sep)},
      {"eod", t.eos.value_or(t.sep)},
      {"vocab_size", std::ranges::count(t.present, true)}};
  for (const auto& [key, id] : own)
    report.expect("tokenizers", name + "." + key, difference_of(id, facts[key]));
  std::vector<int64_t> ids;
  for (const std::string& token : added_tokens(facts))
    ids.push_back(opened.tokenizer->token_id(token).value_or(-1));
  report.expect("tokenizers", name + ".additional_special_tokens_ids",
                first_difference(ids, integers_of(facts["additional_special_tokens_ids"])));
}

void SentenceData::compare_data(const std::string& name, const Json& facts, Report& report) const {
  const data::IndexedDataset set(prefix(name));
  std::vector<int64_t> own, theirs;  // of each document: its number of sentences, their lengths
  for (int64_t d = 0; d < set.document_count(); ++d) {
    const auto [begin, end] = set.document(d);
    own.push_back(end - begin);
    for (int64_t s = begin; s < end; ++s) own.push_back(set.length(s));
  }
  for (const Json& document : facts["sentence_lengths"].as_array()) {
    theirs.push_back(std::ssize(document.as_array()));
    for (const int64_t length : integers_of(document)) theirs.push_back(length);
  }
  const auto expect = [&](const char* what, const std::string& difference) {
    report.expect("token files", name + "." + what, difference);
  };
  expect("documents", difference_of(set.document_count(), facts["documents"]));
  expect("sentences", difference_of(set.sequence_count(), facts["sentences"]));
  expect("tokens", difference_of(set.token_count(), facts["tokens"]));
  expect("sentence_lengths", first_difference(own, theirs));
}

void SentenceData::compare_text(const std::string& name, const std::string& tokenizer_name,
                                Report& report) {
  const std::string path = prefix(name) + ".jsonl";
  if (std::ranges::find(read_texts_, name) != read_texts_.end() || !std::filesystem::exists(path))
    return;
  read_texts_.push_back(name);
  const data::IndexedDataset set(prefix(name));
  const tokenizers::Tokenizer& tokenizer = *this->tokenizer(tokenizer_name).tokenizer;
  std::vector<int64_t> own, theirs;
  const std::string content = read_file(path);
  std::string_view rest = content;
  while (!rest.empty()) {
    const Json line = Json::parse(take_until(rest, '\n'), path);
    for (const Json& sentence : line["text"].as_array())
      for (const int32_t id : tokenizer.encode(sentence.as_string())) own.push_back(id);
  }
  for (int64_t s = 0; s < set.sequence_count(); ++s)
    for (const int64_t id : set.get(s)) theirs.push_back(id);
  report.expect("token files", name + ".jsonl", first_difference(own, theirs));
}

}  // namespace megatron::selftest
