#include "tokenizers/tokenizer_file.h"

#include <algorithm>
#include <filesystem>
#include <optional>

#include "base/error.h"
#include "base/files.h"
#include "base/lfs_pointer.h"
#include "base/utf8.h"
#include "tokenizers/sentence_piece/sentence_piece.h"
#include "tokenizers/sentence_piece/sentence_piece_model.h"
#include "tokenizers/tik_token/tik_token.h"
#include "tokenizers/transformers/directory.h"

namespace megatron::tokenizers {
namespace {

namespace fs = std::filesystem;
using Kind = TokenizerFile::Kind;

constexpr std::string_view kSpace = " \t\r\n";

fs::path sibling(const TokenizerFile& file, const char* name) {
  return fs::path(file.directory()) / name;
}

Json read_config(const TokenizerFile& file, const char* name) {
  const fs::path path = sibling(file, name);
  if (!fs::exists(path)) return Json::Object{};
  Json json = Json::read(path.string());
  MG_CHECK(json.is_object(), "{}: expected a JSON object", path.string());
  return json;
}

// "model": { at any depth: in a vocabulary the token "model" has a number.
bool names_a_model(std::string_view json) {
  constexpr std::string_view kKey = "\"model\"";
  for (size_t at = 0; (at = json.find(kKey, at)) != json.npos;) {
    at = json.find_first_not_of(kSpace, at + kKey.size());
    if (at == json.npos || json[at] != ':') continue;
    at = json.find_first_not_of(kSpace, at + 1);
    if (at != json.npos && json[at] == '{') return true;
  }
  return false;
}

bool has_line(std::string_view text, std::string_view line) {
  for (size_t at = 0; (at = text.find(line, at)) != text.npos; ++at) {
    const size_t end = at + line.size();
    if ((at == 0 || text[at - 1] == '\n') &&
        (end == text.size() || text[end] == '\n' || text[end] == '\r'))
      return true;
  }
  return false;
}

std::optional<Kind> kind_of(const TokenizerFile& file) {
  const std::string_view text = file.content;
  const std::string name = fs::path(file.path).filename().string();
  if (begins_as_sentence_piece(text)) return Kind::sentence_piece;
  const size_t first = text.find_first_not_of(kSpace);
  const char begin = first == text.npos ? '\0' : text[first];
  if (begin == '{') {
    const bool is_vocabulary =
        name != "tokenizer.json" && fs::exists(sibling(file, "merges.txt")) && !names_a_model(text);
    return is_vocabulary ? Kind::gpt2 : Kind::hugging_face;
  }
  if (name == "vocab.txt" || has_line(text, "[UNK]")) return Kind::bert;
  if (begin == '[') return Kind::tik_token_list;
  if (begins_as_tik_token(text)) return Kind::tik_token;
  if (name.ends_with(".model")) return Kind::sentence_piece;
  if (name.ends_with(".json")) return Kind::hugging_face;
  if (name.ends_with(".tiktoken")) return Kind::tik_token;
  return std::nullopt;
}

// Names in the directory that `fits` accepts, in order.
template <class F>
std::vector<std::string> names_in(const fs::path& directory, F&& fits) {
  std::vector<std::string> names;
  std::error_code error;
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    const std::string name = entry.path().filename().string();
    if (fits(name)) names.push_back(name);
  }
  std::ranges::sort(names);
  return names;
}

std::string joined(const std::vector<std::string>& names) {
  constexpr size_t kShown = 8;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
    text += (i == 0 ? "" : ", ") + names[i];
  return names.size() > kShown ? text + ", ..." : text;
}

std::string one_of(const fs::path& directory, const std::vector<std::string>& names) {
  MG_CHECK(names.size() == 1, "{} contains several tokenizers ({}); give one of the files",
           directory.string(), joined(names));
  return names[0];
}

bool is_list(const fs::path& path) {
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return false;
  const MappedFile file(path.string());
  const std::string_view begin(reinterpret_cast<const char*>(file.bytes().data()),
                               std::min<size_t>(file.bytes().size(), 256));
  const size_t first = begin.find_first_not_of(kSpace);
  return first != begin.npos && begin[first] == '[' && begin.find("\"rank\"") != begin.npos;
}

// Name of the tokenizer file in a directory, or "" if there is none.
std::string find_name(const fs::path& directory) {
  const auto exists = [&](const char* name) { return fs::exists(directory / name); };
  if (exists("tokenizer.json")) return "tokenizer.json";
  if (exists("vocab.json") && exists("merges.txt")) return "vocab.json";
  for (const char* name : {"tokenizer.model", "spiece.model"}) {
    if (exists(name)) return name;
  }
  const auto ending = [&](const char* end) {
    return names_in(directory, [&](const std::string& name) { return name.ends_with(end); });
  };
  if (const auto models = ending(".model"); !models.empty()) return one_of(directory, models);
  if (const auto ranks = ending(".tiktoken"); !ranks.empty()) return one_of(directory, ranks);
  if (exists("vocab.txt")) return "vocab.txt";
  const auto lists = names_in(directory, [&](const std::string& name) {
    return name.ends_with(".json") && is_list(directory / name);
  });
  return lists.empty() ? "" : one_of(directory, lists);
}

std::unique_ptr<Codec> make_tik_token_codec(const TokenizerFile& file) {
  for (const char* name : {"tiktoken_config.json", "tokenizer_config.json"}) {
    const Json config = read_config(file, name);
    if (config.contains("pat_str")) return make_tik_token(file.content, config);
  }
  fail(
      "a TikToken file does not say how text is split; put tiktoken_config.json next to it: "
      "{{\"pat_str\": \"the regular expression\", \"special_tokens\": {{\"<|endoftext|>\": "
      "50256}}}}");
}

std::unique_ptr<Codec> make_unnamed_codec(const TokenizerFile& file) {
  if (auto definition = open_definition(file)) return make_pipeline(std::move(*definition));
  switch (file.kind) {
    case Kind::tik_token: return make_tik_token_codec(file);
    case Kind::tik_token_list: return make_tik_token_list(file.content, {});
    default: return make_sentence_piece(file.content, {});
  }
}

}  // namespace

std::string TokenizerFile::directory() const {
  const std::string parent = fs::path(path).parent_path().string();
  return parent.empty() ? "." : parent;
}

TokenizerFile read_tokenizer_file(const std::string& path) {
  TokenizerFile file{.path = path};
  if (fs::is_directory(path)) {
    const std::string name = find_name(path);
    MG_CHECK(!name.empty(),
             "{} contains no tokenizer: expected tokenizer.json, vocab.json with merges.txt, a "
             "SentencePiece .model, a .tiktoken, a TikToken list in .json or BERT's vocab.txt; it "
             "contains {}",
             path, [&] {
               const auto names = names_in(path, [](const std::string&) { return true; });
               return names.empty() ? std::string("nothing") : joined(names);
             }());
    file.path = (fs::path(path) / name).string();
  }
  file.content = read_file(file.path);
  refuse_lfs_pointer(file.content, file.path);
  const auto kind = kind_of(file);
  MG_CHECK(kind,
           "{}: not a supported tokenizer file (it has {} bytes and begins with '{}'); supported "
           "are tokenizer.json, vocab.json next to merges.txt, SentencePiece's .model, "
           "TikToken's .tiktoken and JSON list, and BERT's vocab.txt",
           file.path, file.content.size(), [&] {
             std::string begin;
             append_lossy(std::string_view(file.content).substr(0, 16), true, begin);
             std::ranges::replace_if(begin, [](char c) { return c >= 0 && c < 32; }, ' ');
             return begin;
           }());
  file.kind = *kind;
  return file;
}

bool has_tokenizer_file(const std::string& directory) {
  return fs::is_directory(directory) && !find_name(directory).empty();
}

std::unique_ptr<Codec> make_codec(const TokenizerFile& file) {
  try {
    return make_unnamed_codec(file);
  } catch (const Error& error) {
    fail("{}: {}", file.path, error.what());
  }
}

}  // namespace megatron::tokenizers
