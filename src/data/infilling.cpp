#include "data/infilling.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "base/error.h"
#include "base/utf8.h"

namespace megatron::data {
namespace {

using Tokens = std::span<const int64_t>;

void check_rate(double rate, std::string_view flag) {
  MG_CHECK(rate >= 0 && rate <= 1, "--{} is {}; it must lie in [0, 1]", flag, rate);
}

void check_distinct(const InfillingTokens& t) {
  const std::pair<int64_t, std::string_view> all[] = {{t.prefix, "fim-prefix-token"},
                                                      {t.middle, "fim-middle-token"},
                                                      {t.suffix, "fim-suffix-token"},
                                                      {t.eod, "fim-eod-token"},
                                                      {t.split.value_or(-1), "fim-split-sample"}};
  for (const auto& [id, flag] : all)
    for (const auto& [other, other_flag] : all)
      MG_CHECK(id != other || flag == other_flag || id < 0,
               "--{} and --{} are both token {}: each needs its own", flag, other_flag, id);
}

void append_tokens(Tokens tokens, std::vector<int64_t>& out) {
  out.insert(out.end(), tokens.begin(), tokens.end());
}

// Calls f(piece, true) for each piece that ends with `separator`, which is left out, then
// f(rest, false).
template <class F>
void for_each_piece(Tokens tokens, int64_t separator, F f) {
  while (true) {
    const auto end = std::ranges::find(tokens, separator);
    const auto size = static_cast<size_t>(end - tokens.begin());
    if (end == tokens.end()) return f(tokens, false);
    f(tokens.first(size), true);
    tokens = tokens.subspan(size + 1);
  }
}

}  // namespace

// A text in units that cuts go between: its characters, and tokens that are not text.
class Infilling::Text {
 public:
  void add_token(int64_t token) {
    pieces_.push_back({.token = token, .text = {}, .units = 1});
    ++units_;
  }
  void add_text(std::string text) {
    const int64_t units = count_characters(text);
    pieces_.push_back({.token = -1, .text = std::move(text), .units = units});
    units_ += units;
  }

  int64_t units() const { return units_; }
  bool begins_with(std::string_view beginning) const {
    const auto first = std::ranges::find(pieces_, -1, &Piece::token);
    return first != pieces_.end() && first->text.starts_with(beginning);
  }
  // Calls on_token(token) and on_text(text) for the units [first, last), in order.
  template <class OnToken, class OnText>
  void visit(int64_t first, int64_t last, OnToken on_token, OnText on_text) const {
    for (const Piece& piece : pieces_) {
      const int64_t begin = std::clamp<int64_t>(first, 0, piece.units),
                    end = std::clamp<int64_t>(last, 0, piece.units);
      first -= piece.units, last -= piece.units;
      if (piece.token >= 0 && begin < end) on_token(piece.token);
      if (piece.token >= 0) continue;
      const size_t from = character_offset(piece.text, begin);
      on_text(std::string_view(piece.text).substr(from, character_offset(piece.text, end) - from));
    }
  }

 private:
  struct Piece {
    int64_t token;  // -1: text
    std::string text;
    int64_t units;
  };
  std::vector<Piece> pieces_;
  int64_t units_ = 0;
};

Infilling::Infilling(std::shared_ptr<const tokenizers::Tokenizer> tokenizer, InfillingConfig config)
    : tokenizer_(std::move(tokenizer)), config_(std::move(config)) {
  check_rate(config_.rate, "fim-rate");
  check_rate(config_.spm_rate, "fim-spm-rate");
  if (config_.fragment_rate) check_rate(*config_.fragment_rate, "fim-fragment-rate");
  check_distinct(config_.tokens);
  if (config_.megatron_data_order) return;
  find_prefix();
  check_tokenizer();
}

// Finds a text to put before each text that is tokenized, if the tokenizer adds a space at the
// beginning of texts.
void Infilling::find_prefix() {
  Ids ids = tokenizer_->encode("a");
  const Ids again = ids;
  ids.insert(ids.end(), again.begin(), again.end());
  if (tokenizer_->decode(ids) == "aa") return;
  before_ = "\n";
  before_ids_ = tokenizer_->encode(before_);
}

// Throws Error if tokenizing and decoding changes a text.
void Infilling::check_tokenizer() const {
  constexpr std::string_view kText = "if  Abc : x , y . \"z\"";
  std::vector<int64_t> ids;
  encode(kText, ids);
  const std::string again = decode(Ids(ids.begin(), ids.end()));
  MG_CHECK(again == kText,
           "--fim-data decodes parts of documents and tokenizes them again, but the tokenizer "
           "changes texts: '{}' becomes '{}'; use one that keeps them, such as a byte-level BPE",
           kText, again);
}

bool Infilling::is_text(int64_t token) const {
  if (token < 0 || token > std::numeric_limits<int32_t>::max()) return false;
  const auto id = static_cast<int32_t>(token);
  return tokenizer_->codec().contains(id) && !tokenizer_->is_special(id);
}

std::string Infilling::decode(const Ids& ids) const {
  if (before_.empty()) return tokenizer_->decode(ids);
  Ids whole = before_ids_;
  whole.insert(whole.end(), ids.begin(), ids.end());
  const std::string text = tokenizer_->decode(whole), before = tokenizer_->decode(before_ids_);
  return text.starts_with(before) ? text.substr(before.size()) : tokenizer_->decode(ids);
}

void Infilling::encode(std::string_view text, std::vector<int64_t>& out) const {
  const bool megatron = config_.megatron_data_order;
  const tokenizers::EncodeOptions options{
      .add_special_tokens = megatron && config_.add_special_tokens,
      .find_special_tokens = megatron};
  Ids ids;
  tokenizer_->codec().encode(before_ + std::string(text), options, ids, nullptr);
  size_t begin = before_ids_.size();
  if (!std::ranges::equal(std::span(ids).first(std::min(begin, ids.size())), before_ids_)) {
    ids.clear();
    begin = 0;
    tokenizer_->codec().encode(text, options, ids, nullptr);
  }
  out.insert(out.end(), ids.begin() + static_cast<std::ptrdiff_t>(begin), ids.end());
}

// Adds ordinary tokens. Those at both ends that are parts of a character, because the sample's
// border divides it, stay tokens.
void Infilling::add_run(Ids run, Text& text) const {
  constexpr std::string_view kReplacement = "\xef\xbf\xbd";
  constexpr size_t kParts = 3;  // a character has at most four bytes
  size_t begin = 0, end = run.size();
  std::string decoded = decode(run);
  const auto without = [&](size_t& bound, size_t next) {
    bound = next;
    decoded = decode(Ids(run.begin() + static_cast<std::ptrdiff_t>(begin),
                         run.begin() + static_cast<std::ptrdiff_t>(end)));
  };
  while (begin < std::min(kParts, end) && decoded.starts_with(kReplacement))
    without(begin, begin + 1);
  while (end > begin && run.size() - end < kParts && decoded.ends_with(kReplacement))
    without(end, end - 1);
  for (size_t i = 0; i < begin; ++i) text.add_token(run[i]);
  text.add_text(std::move(decoded));
  for (size_t i = end; i < run.size(); ++i) text.add_token(run[i]);
}

Infilling::Text Infilling::read(Tokens tokens) const {
  Text text;
  if (config_.megatron_data_order) {
    text.add_text(tokenizer_->decode(Ids(tokens.begin(), tokens.end()), true));
    return text;
  }
  Ids run;
  for (const int64_t token : tokens) {
    if (is_text(token)) {
      run.push_back(static_cast<int32_t>(token));
      continue;
    }
    if (!run.empty()) add_run(std::exchange(run, {}), text);
    text.add_token(token);
  }
  if (!run.empty()) add_run(std::move(run), text);
  return text;
}

void Infilling::add_fragment(Tokens tokens, double rate, RandomState& random,
                             std::vector<int64_t>& out) const {
  if (!random.bernoulli(rate)) return append_tokens(tokens, out);
  const auto bos = tokenizer_->bos();
  if (!config_.megatron_data_order && !tokens.empty() && bos && tokens[0] == *bos) {
    out.push_back(*bos);  // stays at the beginning
    tokens = tokens.subspan(1);
  }
  const Text text = read(tokens);
  if (!config_.no_prefix.empty() && text.begins_with(config_.no_prefix))
    return append_tokens(tokens, out);
  int64_t first = random.integer(0, text.units() + 1), last = random.integer(0, text.units() + 1);
  if (first > last) std::swap(first, last);
  const auto add = [&](int64_t begin, int64_t end) {
    text.visit(
        begin, end, [&](int64_t token) { out.push_back(token); },
        [&](std::string_view part) { encode(part, out); });
  };
  const auto& [prefix, middle, suffix, pad, eod, split] = config_.tokens;
  const bool suffix_first = random.bernoulli(config_.spm_rate);
  out.push_back(prefix);
  if (!suffix_first) add(0, first);
  out.push_back(suffix);
  add(last, text.units());
  out.push_back(middle);
  if (suffix_first) add(0, first);
  add(first, last);
}

void Infilling::add_document(Tokens tokens, RandomState& random, std::vector<int64_t>& out) const {
  const std::optional<int64_t> split = config_.tokens.split;
  if (!split || std::ranges::find(tokens, *split) == tokens.end())
    return add_fragment(tokens, config_.rate, random, out);
  if (!random.bernoulli(config_.rate)) return append_tokens(tokens, out);
  MG_CHECK(config_.fragment_rate.has_value(),
           "--fim-fragment-rate is needed: the share of the fragments that are rearranged");
  for_each_piece(tokens, *split, [&](Tokens fragment, bool ended) {
    if (!fragment.empty() || (config_.megatron_data_order && !ended))
      add_fragment(fragment, *config_.fragment_rate, random, out);
    if (ended && !(config_.megatron_data_order && fragment.empty())) out.push_back(*split);
  });
}

void Infilling::append(Tokens tokens, RandomState& random, std::vector<int64_t>& out) const {
  for_each_piece(tokens, config_.tokens.eod, [&](Tokens document, bool ended) {
    if (!document.empty() || (config_.megatron_data_order && !ended))
      add_document(document, random, out);
    if (ended && !(config_.megatron_data_order && document.empty()))
      out.push_back(config_.tokens.eod);
  });
}

}  // namespace megatron::data
