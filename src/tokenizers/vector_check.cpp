#include "tokenizers/vector_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <initializer_list>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "base/text_parts.h"
#include "tokenizers/chat/chat_cases.h"
#include "tokenizers/tokenizer.h"

namespace megatron::tokenizers {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

Ids read_ids(const Json& json) {
  Ids ids;
  for (const Json& id : json.as_array()) {
    const int64_t value = id.as_integer();
    MG_CHECK(value >= INT32_MIN && value <= INT32_MAX, "id {} does not fit in 32 bits", value);
    ids.push_back(static_cast<int32_t>(value));
  }
  return ids;
}

std::string show(const Ids& ids) { return fmt::format("{}", fmt::join(ids, " ")); }
std::string show(std::string_view text) { return Json(std::string(text)).dump(); }

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  MG_CHECK(hex.size() % 2 == 0, "'{}' is not hexadecimal", hex);
  for (size_t i = 0; i < hex.size(); i += 2) {
    const std::string digits = hex.substr(i, 2);
    MG_CHECK(digits.find_first_not_of("0123456789abcdefABCDEF") == std::string::npos,
             "'{}' is not hexadecimal", hex);
    bytes += static_cast<char>(std::stoi(digits, nullptr, 16));
  }
  return bytes;
}

// One line of a file of vectors.
class Line {
 public:
  Line(const Json& json, const Tokenizer& tokenizer, bool hugging_face)
      : json_(json), tokenizer_(tokenizer), hugging_face_(hugging_face) {}

  // Returns a description of the difference, or "" if there is none.
  std::string check() {
    if (json_.contains("pieces")) {
      check_stream();
    } else if (json_.contains("bytes_hex")) {
      check_bytes();
    } else if (json_.contains("size")) {
      check_tokens();
    } else if (json_.contains("ids_json")) {
      check_difference();
    } else if (json_.contains("pair")) {
      check_pair();
    } else if (json_.contains("text")) {
      check_text();
    } else {
      check_decoding();
    }
    return differences_;
  }

 private:
  void check_fields(std::initializer_list<std::string_view> known) {
    for (const auto& [key, value] : json_.as_object()) {
      MG_CHECK(std::ranges::find(known, key) != known.end(), "unknown field '{}'", key);
    }
  }

  template <class T>
  void expect(std::string_view what, const T& given, const T& wanted) {
    if (given == wanted) return;
    if (!differences_.empty()) differences_ += "; ";
    differences_ += fmt::format("{}: {} instead of {}", what, show(given), show(wanted));
  }

  Ids encode(std::string_view text, const EncodeOptions& options) const {
    Ids ids;
    tokenizer_.codec().encode(text, options, ids, nullptr);
    return ids;
  }
  const Json& either(std::string_view key, std::string_view otherwise) const {
    const Json* found = json_.find(key);
    return found ? *found : json_[otherwise];
  }

  void check_text() {
    check_fields({"tag", "text", "ids", "ids_special", "ids_ordinary", "decoded",
                  "decoded_skip_special", "offsets"});
    const std::string& text = json_["text"].as_string();
    const Ids ids = read_ids(json_["ids"]);
    const Ids special = read_ids(either("ids_special", "ids"));
    expect("ids", encode(text, {}), ids);
    if (hugging_face_ || json_.contains("ids_special"))
      expect("ids_special", encode(text, {.add_special_tokens = true}), special);
    if (json_.contains("ids_ordinary"))
      expect("ids_ordinary", encode(text, {.find_special_tokens = false}),
             read_ids(json_["ids_ordinary"]));
    check_decoded(special);
    if (json_.contains("offsets")) check_offsets(text);
  }

  void check_pair() {
    check_fields({"text", "pair", "ids", "type_ids"});
    const JoinedTexts joined =
        tokenizer_.encode_pair(json_["text"].as_string(), json_["pair"].as_string());
    expect("ids", joined.ids, read_ids(json_["ids"]));
    expect("type_ids", joined.types, read_ids(json_["type_ids"]));
  }

  void check_offsets(const std::string& text) {
    Ids ids, flat;
    std::vector<Range> offsets;
    tokenizer_.codec().encode(text, {}, ids, &offsets);
    for (const Range range : offsets) {
      flat.push_back(static_cast<int32_t>(range.begin));
      flat.push_back(static_cast<int32_t>(range.end));
    }
    expect("ids with offsets", ids, read_ids(json_["ids"]));
    expect("offsets", flat, read_ids(json_["offsets"]));
  }

  void check_decoded(const Ids& ids) {
    expect("decoded", tokenizer_.decode(ids), json_["decoded"].as_string());
    if (hugging_face_ || json_.contains("decoded_skip_special"))
      expect("decoded_skip_special", tokenizer_.decode(ids, true),
             either("decoded_skip_special", "decoded").as_string());
  }

  void check_decoding() {
    check_fields({"ids", "decoded", "decoded_skip_special"});
    check_decoded(read_ids(json_["ids"]));
  }

  void check_bytes() {
    check_fields({"bytes_hex", "ids", "decoded", "decoded_hex"});
    const Ids ids = read_ids(json_["ids"]);
    expect("ids", encode(bytes_of_hex(json_["bytes_hex"].as_string()), {}), ids);
    expect("decoded", tokenizer_.decode(ids), json_["decoded"].as_string());
    if (!json_.contains("decoded_hex")) return;
    std::string bytes;
    for (const int32_t id : ids) tokenizer_.codec().append_bytes(id, bytes);
    expect("decoded_hex", bytes, bytes_of_hex(json_["decoded_hex"].as_string()));
  }

  void check_tokens() {
    check_fields({"size", "bos", "eos", "pad", "opened_by"});
    const auto number = [](std::optional<int32_t> id) { return Ids{id.value_or(-1)}; };
    expect("size", Ids{tokenizer_.vocabulary_size()}, read_ids(Json::Array{json_["size"]}));
    const std::pair<const char*, std::optional<int32_t>> tokens[] = {
        {"bos", tokenizer_.bos()}, {"eos", tokenizer_.eos()}, {"pad", tokenizer_.pad()}};
    for (const auto& [name, id] : tokens)
      if (const Json* wanted = json_.find(name))
        expect(name, number(id), read_ids(Json::Array{*wanted}));
  }

  void check_difference() {
    check_fields({"text", "ids_json", "ids_model"});
    expect("ids", encode(json_["text"].as_string(), {}),
           read_ids(json_[hugging_face_ ? "ids_json" : "ids_model"]));
  }

  void check_stream() {
    check_fields({"text", "ids", "pieces", "pieces_hf", "decoded"});
    const Json::Array& pieces = json_["pieces"].as_array();
    const Ids ids = read_ids(json_["ids"]);
    MG_CHECK(pieces.size() == ids.size() + 1, "there are {} pieces for {} ids and the remainder",
             pieces.size(), ids.size());
    DecodeStream stream(tokenizer_);
    std::string all;
    for (size_t i = 0; i < pieces.size(); ++i) {
      const std::string piece = i < ids.size() ? stream.push(ids[i]) : stream.finish();
      expect(fmt::format("piece {}", i), piece, pieces[i].as_string());
      all += piece;
    }
    if (json_.contains("decoded")) expect("decoded", all, json_["decoded"].as_string());
  }

  const Json& json_;
  const Tokenizer& tokenizer_;
  bool hugging_face_;
  std::string differences_;
};

std::vector<std::string> list_files(const std::string& directory) {
  std::vector<std::string> files;
  MG_CHECK(fs::is_directory(directory), "{} is not a directory", directory);
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() == ".jsonl") files.push_back(entry.path().string());
  }
  MG_CHECK(!files.empty(), "{} contains no *.jsonl with vectors; give one with --vectors FILE",
           directory);
  std::ranges::sort(files);
  return files;
}

class Checker {
 public:
  Checker(const std::string& directory, const std::function<void(std::string_view)>& on_mismatch)
      : directory_(directory), on_mismatch_(on_mismatch) {
    hugging_face_ = fs::exists(fs::path(directory) / "tokenizer.json") ||
                    fs::exists(fs::path(directory) / "merges.txt");
  }

  void check_file(const std::string& file) {
    const std::string text = read_file(file);
    ChatCases chats(fs::path(file).parent_path().string());
    int64_t number = 0, lines = 0;
    for (std::string_view rest = text; !rest.empty();) {
      const std::string_view line = take_until(rest, '\n');
      ++number;
      if (line.empty()) continue;
      count(fmt::format("{}:{}", file, number), check_line(line, chats));
      ++lines;
    }
    if (lines == 0) count(file, "contains no lines");
  }

  const VectorReport& report() const { return report_; }

 private:
  std::string check_line(std::string_view line, ChatCases& chats) {
    try {
      const Json json = Json::parse(line);
      if (json.contains("messages")) return chats.check(json).value_or("");
      if (!tokenizer_) tokenizer_.emplace(Tokenizer::load(directory_));
      return Line(json, *tokenizer_, hugging_face_).check();
    } catch (const Error& error) {
      return error.what();
    }
  }

  void count(std::string_view where, std::string_view difference) {
    if (difference.empty()) {
      ++report_.passed;
      return;
    }
    ++report_.failed;
    on_mismatch_(fmt::format("{}: {}", where, difference));
  }

  std::string directory_;
  const std::function<void(std::string_view)>& on_mismatch_;
  std::optional<Tokenizer> tokenizer_;
  bool hugging_face_ = false;
  VectorReport report_;
};

}  // namespace

VectorReport check_vectors(const std::string& directory, std::vector<std::string> files,
                           const std::function<void(std::string_view)>& on_mismatch) {
  if (files.empty()) files = list_files(directory);
  Checker checker(directory, on_mismatch);
  for (const std::string& file : files) checker.check_file(file);
  return checker.report();
}

}  // namespace megatron::tokenizers
