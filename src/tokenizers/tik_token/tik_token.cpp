#include "tokenizers/tik_token/tik_token.h"

#include <algorithm>
#include <mutex>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/added_tokens.h"
#include "tokenizers/base64.h"
#include "tokenizers/models/bpe_merges.h"
#include "tokenizers/pre_tokenizers/pre_tokenizer.h"
#include "tokenizers/tik_token/tik_token_file.h"

namespace megatron::tokenizers {
namespace {

// Each split of a token into two known ones: tiktoken joins two neighbours whenever their bytes
// together are a token.
std::vector<Merge> find_merges(const Vocabulary& vocabulary) {
  std::vector<Merge> merges;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    const std::string_view token = vocabulary.text(id);
    for (size_t cut = 1; cut < token.size(); ++cut) {
      const auto left = vocabulary.find(token.substr(0, cut));
      if (!left) continue;
      if (const auto right = vocabulary.find(token.substr(cut)))
        merges.push_back({*left, *right, id});
    }
  }
  return merges;
}

std::unique_ptr<PreTokenizer> make_cutter(const std::string& pattern) {
  return make_pre_tokenizer(Json::Object{{"type", "Split"},
                                         {"pattern", Json::Object{{"Regex", pattern}}},
                                         {"behavior", "Isolated"},
                                         {"invert", false}});
}

// White space in tiktoken's handling of text that ends in invalid bytes.
bool is_blank(std::string_view bytes) { return bytes.find_first_not_of(" \n\t") == bytes.npos; }

class TikToken final : public Codec {
 public:
  TikToken(Vocabulary ordinary, Vocabulary special, std::string pattern, Json roles);

  void encode(std::string_view text, const EncodeOptions& options, std::vector<int32_t>& ids,
              std::vector<Range>* offsets) const override;
  bool accepts_invalid_utf8() const override { return true; }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override;
  bool is_bytewise() const override { return true; }
  void append_bytes(int32_t id, std::string& bytes) const override { bytes += bytes_of(id); }

  int32_t size() const override { return std::max(ordinary_.size(), special_.size()); }
  std::optional<int32_t> find(std::string_view token) const override {
    const auto id = special_.find(token);
    return id ? id : ordinary_.find(token);
  }
  bool contains(int32_t id) const override {
    return ordinary_.contains(id) || special_.contains(id);
  }
  bool is_special(int32_t id) const override { return special_.contains(id); }
  std::string token(int32_t id) const override {
    std::string text;
    append_lossy(bytes_of(id), true, text);
    return text;
  }
  std::optional<int32_t> role(std::string_view name) const override {
    const Json* token = roles_.find(std::string(name) + "_token");
    return token ? find(token->as_string()) : std::nullopt;
  }
  std::vector<File> files() const override;
  std::string hugging_face_class() const override { return ""; }

 private:
  struct Call {  // state of one call of encode
    std::unique_ptr<Scratch> scratch;
    std::vector<int32_t>& ids;
  };

  std::string_view bytes_of(int32_t id) const {
    return special_.contains(id) ? special_.text(id) : ordinary_.text(id);
  }
  void encode_text(TextView text, bool find_special, Call& call) const;
  void encode_broken(std::string_view text, size_t valid, Call& call) const;
  void encode_piece(std::string_view piece, Call& call) const;
  void merge(std::string_view piece, Call& call) const;

  Vocabulary ordinary_, special_;
  std::string pattern_;
  Json roles_;  // "eos_token": name, ...
  BpeMerges merges_;
  std::unique_ptr<PreTokenizer> cutter_;
  AddedTokens special_finder_;

  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<Scratch>> idle_;
};

TikToken::TikToken(Vocabulary ordinary, Vocabulary special, std::string pattern, Json roles)
    : ordinary_(std::move(ordinary)),
      special_(std::move(special)),
      pattern_(std::move(pattern)),
      roles_(std::move(roles)),
      merges_(find_merges(ordinary_)),
      cutter_(make_cutter(pattern_)) {
  for (int32_t id = 0; id < special_.size(); ++id) {
    if (!special_.contains(id)) continue;
    const std::string_view name = special_.text(id);
    check_utf8(name, "a special token");
    MG_CHECK(!ordinary_.contains(id),
             "id {} belongs to the special token '{}' and to a token of the "
             "file",
             id, name);
    special_finder_.add(name, id, {.special = true});
  }
  for (const auto& [key, name] : roles_.as_object())
    MG_CHECK(find(name.as_string()), "{} '{}' is not a token", key, name.as_string());
}

void TikToken::encode(std::string_view text, const EncodeOptions& options,
                      std::vector<int32_t>& ids, std::vector<Range>* offsets) const {
  MG_CHECK(offsets == nullptr,
           "token offsets are available for a tokenizer.json only, not for TikToken files");
  Call call{nullptr, ids};
  {
    const std::lock_guard lock(mutex_);
    if (!idle_.empty()) {
      call.scratch = std::move(idle_.back());
      idle_.pop_back();
    }
  }
  if (!call.scratch) call.scratch = std::make_unique<Scratch>();
  const size_t valid = first_invalid_byte(text);
  if (valid == text.size()) {
    encode_text({.bytes = text}, options.find_special_tokens, call);
  } else {
    encode_broken(text, valid, call);
  }
  const std::lock_guard lock(mutex_);
  idle_.push_back(std::move(call.scratch));
}

void TikToken::encode_text(TextView text, bool find_special, Call& call) const {
  const auto cut = [&](TextView rest) {
    cutter_->split(rest, call.scratch->regex,
                   [&](TextView piece) { encode_piece(piece.bytes, call); });
  };
  if (text.bytes.empty()) return;
  if (!find_special) return cut(text);
  special_finder_.split(text, true, cut, [&](int32_t id, TextView) { call.ids.push_back(id); });
}

// Like tiktoken: the text before the first invalid byte is split; its last piece (for white space
// also all white space tokens before it) and everything after it form one piece.
void TikToken::encode_broken(std::string_view text, size_t valid, Call& call) const {
  const size_t first = call.ids.size();
  size_t last_piece = first, rest = valid;
  if (valid > 0) {
    cutter_->split({.bytes = text.substr(0, valid)}, call.scratch->regex, [&](TextView piece) {
      last_piece = call.ids.size();
      encode_piece(piece.bytes, call);
    });
  }
  if (last_piece < call.ids.size() && is_blank(bytes_of(call.ids[last_piece]))) {
    while (last_piece > first && is_blank(bytes_of(call.ids[last_piece - 1]))) --last_piece;
  }
  while (call.ids.size() > last_piece) {
    rest -= bytes_of(call.ids.back()).size();
    call.ids.pop_back();
  }
  encode_piece(text.substr(rest), call);
}

void TikToken::encode_piece(std::string_view piece, Call& call) const {
  if (call.scratch->words.find(piece, call.ids)) return;
  const size_t before = call.ids.size();
  merge(piece, call);
  call.scratch->words.put(piece, std::span(call.ids).subspan(before));
}

void TikToken::merge(std::string_view piece, Call& call) const {
  if (const auto whole = ordinary_.find(piece)) return call.ids.push_back(*whole);
  std::vector<int32_t>& symbols = call.scratch->symbols;
  symbols.clear();
  for (const char& c : piece) symbols.push_back(*ordinary_.find({&c, 1}));
  merges_.apply(*call.scratch, nullptr);
  call.ids.insert(call.ids.end(), symbols.begin(), symbols.end());
}

std::string TikToken::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes, text;
  for (const int32_t id : ids) {
    if (contains(id) && !(skip_special && is_special(id))) bytes += bytes_of(id);
  }
  append_lossy(bytes, true, text);
  return text;
}

std::vector<Codec::File> TikToken::files() const {
  std::string lines;
  for (int32_t id = 0; id < ordinary_.size(); ++id) {
    if (ordinary_.contains(id)) lines += fmt::format("{} {}\n", to_base64(ordinary_.text(id)), id);
  }
  Json::Object names;
  for (int32_t id = 0; id < special_.size(); ++id) {
    if (special_.contains(id)) names.emplace_back(std::string(special_.text(id)), int64_t{id});
  }
  Json settings = Json::Object{{"pat_str", pattern_}, {"special_tokens", std::move(names)}};
  for (const auto& [key, name] : roles_.as_object()) settings.set(key, name);
  return {{"tokenizer.tiktoken", std::move(lines)},
          {"tiktoken_config.json", settings.dump(2) + "\n"}};
}

// The options' special tokens and <SPECIAL_i>.
Vocabulary special_vocabulary(const TikTokenOptions& options) {
  const auto given = static_cast<int64_t>(options.special_tokens.size());
  MG_CHECK(options.special_count >= given && options.special_count <= Vocabulary::kMaximumId,
           "there are {} special tokens but only room for {} (--tiktoken-num-special-tokens)",
           given, options.special_count);
  Vocabulary special;
  for (int64_t id = 0; id < options.special_count; ++id) {
    const std::string name = id < given ? options.special_tokens[static_cast<size_t>(id)]
                                        : fmt::format("<SPECIAL_{}>", id);
    MG_CHECK(!name.empty(), "a special token is empty");
    special.add(name, id);
  }
  for (const std::string& needed : TikTokenOptions().special_tokens)
    MG_CHECK(special.find(needed), "the special tokens do not include '{}'", needed);
  return special;
}

}  // namespace

std::optional<std::string> tik_token_pattern(std::string_view name) {
  if (name == "v1") {
    return R"([^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)";
  }
  if (name == "v2") {
    return R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+)"
           R"(|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*)"
           R"(|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)";
  }
  return std::nullopt;
}

std::unique_ptr<Codec> make_tik_token_list(std::string_view json, const TikTokenOptions& options) {
  const auto pattern = tik_token_pattern(options.pattern);
  MG_CHECK(pattern, "--tiktoken-pattern is '{}'; it can be v1 or v2", options.pattern);
  Vocabulary special = special_vocabulary(options);
  const int64_t size = options.vocabulary_size;
  MG_CHECK(size >= options.special_count + 256,
           "a vocabulary of {} tokens has no room for {} special tokens "
           "(--tiktoken-num-special-tokens) and the 256 bytes",
           size, options.special_count);
  Vocabulary ordinary =
      parse_tik_token_list(json, options.special_count, size - options.special_count);
  return std::make_unique<TikToken>(
      std::move(ordinary), std::move(special), *pattern,
      Json::Object{{"bos_token", "<s>"}, {"eos_token", "</s>"}, {"pad_token", "<pad>"}});
}

std::unique_ptr<Codec> make_tik_token(std::string_view lines, const Json& settings) {
  Vocabulary ordinary = parse_tik_token_lines(lines), special;
  if (const Json* names = settings.find("special_tokens")) {
    for (const auto& [name, id] : names->as_object()) {
      MG_CHECK(!name.empty(), "a special token is empty");
      special.add(name, id.as_integer());
    }
  }
  Json roles(Json::Object{});
  for (const char* key : {"bos_token", "eos_token", "pad_token"}) {
    if (const Json* name = settings.find(key)) roles.set(key, name->as_string());
  }
  return std::make_unique<TikToken>(std::move(ordinary), std::move(special),
                                    settings["pat_str"].as_string(), std::move(roles));
}

bool begins_as_tik_token(std::string_view text) {
  const std::string_view line = text.substr(0, std::min<size_t>(text.find('\n'), 4096));
  const size_t space = line.find(' ');
  if (space == line.npos || space == 0) return false;
  std::string_view rank = line.substr(space + 1);
  if (rank.ends_with('\r')) rank.remove_suffix(1);
  std::string bytes;
  return !rank.empty() && rank.find_first_not_of("0123456789") == rank.npos &&
         append_base64(line.substr(0, space), bytes);
}

}  // namespace megatron::tokenizers
