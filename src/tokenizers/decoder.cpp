#include "tokenizers/decoder.h"

#include <functional>

#include "base/error.h"
#include "base/utf8.h"
#include "tokenizers/byte_level.h"
#include "tokenizers/limits.h"
#include "tokenizers/regex/regex.h"

namespace megatron::tokenizers {
namespace {

using Parts = std::vector<std::string>;

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  size_t at = from.empty() ? std::string::npos : text.find(from);
  if (at == std::string::npos) return;
  std::string result;
  size_t done = 0;
  for (; at != std::string::npos; at = text.find(from, done)) {
    result.append(text, done, at - done).append(to);
    done = at + from.size();
    check_growth(result.size(), text.size(), "the decoder's Replace");
  }
  text = result.append(text, done);
}

size_t size_of(const Parts& parts) {
  size_t size = 0;
  for (const std::string& part : parts) size += part.size() + 1;
  return size;
}

// Cleans up English spacing: removes spaces before punctuation and short forms.
void clean_up(std::string& text) {
  static constexpr std::string_view kPairs[][2] = {
      {" .", "."},   {" ?", "?"},     {" !", "!"},    {" ,", ","},
      {" ' ", "'"},  {" n't", "n't"}, {" 'm", "'m"},  {" do not", " don't"},
      {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"}};
  for (const auto& [from, to] : kPairs) replace_all(text, from, to);
}

void fuse(Parts& parts) {
  std::string all;
  for (const std::string& part : parts) all += part;
  parts = {std::move(all)};
}

class ByteLevelDecoder final : public Decoder {
 public:
  void run(Parts& parts) const override {
    std::string bytes, text;
    for (const std::string& token : parts) append_bytes(token, bytes);
    append_lossy(bytes, true, text);
    parts = {std::move(text)};
  }
  bool is_bytewise() const override { return true; }
  Joining joining() const override { return Joining::plain; }
  void append_bytes(std::string_view token, std::string& bytes) const override {
    if (!append_bytes_of_letters(token, bytes)) bytes.append(token);
  }
};

// Replaces a run of <0xHH> by the text of its bytes or, if they are not UTF-8, by U+FFFD for each
// of them.
void decode_byte_tokens(Parts& parts) {
  Parts result;
  std::string bytes;
  const auto flush = [&] {
    if (bytes.empty()) return;
    if (first_invalid_byte(bytes) == bytes.size()) {
      result.push_back(bytes);
    } else {
      for (size_t i = 0; i < bytes.size(); ++i) result.push_back("\xef\xbf\xbd");
    }
    bytes.clear();
  };
  for (std::string& part : parts) {
    const auto byte = byte_of_token(part);
    if (byte >= 0) {
      bytes += static_cast<char>(byte);
      continue;
    }
    flush();
    result.push_back(std::move(part));
  }
  flush();
  parts = std::move(result);
}

void decode_byte_token(std::string& token) {
  const int byte = byte_of_token(token);
  if (byte >= 0) token = static_cast<char>(byte);
}

// Effect of a step on a text of concatenated tokens.
enum class Effect : uint8_t {
  token,        // changes each token independently
  fuse,         // joins tokens to one part
  first_space,  // after a fuse: drops a space at the beginning
  all_marks,    // changes each token independently, and drops the spaces of the first one
  other,
};

// A step that is defined by its settings alone. change: transforms one token, if the effect is on
// tokens.
class Step final : public Decoder {
 public:
  using Change = std::function<void(std::string&)>;

  explicit Step(std::function<void(Parts&)> run, Effect effect = Effect::other, Change change = {})
      : run_(std::move(run)), effect_(effect), change_(std::move(change)) {}
  void run(Parts& parts) const override { run_(parts); }
  Joining joining() const override {
    if (effect_ == Effect::all_marks) return Joining::first_token_spaces;
    return effect_ == Effect::token || effect_ == Effect::fuse ? Joining::plain
                                                               : Joining::by_neighbors;
  }
  void append_bytes(std::string_view token, std::string& bytes) const override {
    std::string text(token);
    change(text);
    bytes += text;
  }
  Effect effect() const { return effect_; }
  void change(std::string& token) const {
    if (change_) change_(token);
  }

 private:
  std::function<void(Parts&)> run_;
  Effect effect_;
  Change change_;
};

class DecoderSequence final : public Decoder {
 public:
  explicit DecoderSequence(std::vector<std::unique_ptr<Decoder>> steps)
      : steps_(std::move(steps)) {}
  void run(Parts& parts) const override {
    const size_t before = size_of(parts);
    for (const auto& step : steps_) {
      step->run(parts);
      check_growth(size_of(parts), before, "a Sequence of decoders");
    }
  }
  bool is_bytewise() const override { return steps_.size() == 1 && steps_[0]->is_bytewise(); }
  Joining joining() const override;
  void append_bytes(std::string_view token, std::string& bytes) const override {
    if (steps_.size() == 1) return steps_[0]->append_bytes(token, bytes);
    std::string text(token);
    for (const auto& step : steps_) {
      if (const auto* known = dynamic_cast<const Step*>(step.get())) known->change(text);
      check_growth(text.size(), token.size(), "a Sequence of decoders");
    }
    bytes += text;
  }

 private:
  std::vector<std::unique_ptr<Decoder>> steps_;
};

// Tokens are changed individually, then fused, then a leading space is dropped.
Joining DecoderSequence::joining() const {
  if (steps_.size() == 1) return steps_[0]->joining();
  bool fused = false;
  Joining joining = Joining::plain;
  for (const auto& one : steps_) {
    const auto* known = dynamic_cast<const Step*>(one.get());
    const Effect effect = known ? known->effect() : Effect::other;
    if (effect == Effect::fuse) {
      fused = true;
    } else if (effect == Effect::first_space && fused && joining == Joining::plain) {
      joining = Joining::first_space;
    } else if (effect != Effect::token || fused) {
      return Joining::by_neighbors;
    }
  }
  return joining;
}

std::unique_ptr<Decoder> step(std::function<void(Parts&)> run, Effect effect = Effect::other,
                              Step::Change change = {}) {
  return std::make_unique<Step>(std::move(run), effect, std::move(change));
}

std::string text_or(const Json& settings, std::string_view key, std::string_view otherwise) {
  const Json* value = settings.find(key);
  return value ? value->as_string() : std::string(otherwise);
}

bool flag_or(const Json& settings, std::string_view key, bool otherwise) {
  const Json* value = settings.find(key);
  return value ? value->as_bool() : otherwise;
}

std::unique_ptr<Decoder> make_word_piece(const Json& settings) {
  const std::string prefix = text_or(settings, "prefix", "##");
  const bool cleanup = flag_or(settings, "cleanup", true);
  return step([=](Parts& parts) {
    for (size_t i = 0; i < parts.size(); ++i) {
      std::string& part = parts[i];
      if (i > 0 && part.starts_with(prefix)) {
        part.erase(0, prefix.size());
      } else if (i > 0) {
        part.insert(0, 1, ' ');
      }
      if (cleanup) clean_up(part);
    }
  });
}

std::unique_ptr<Decoder> make_metaspace(const Json& settings) {
  const std::string mark = text_or(settings, "replacement", "\xe2\x96\x81");
  const std::string scheme = text_or(
      settings, "prepend_scheme", flag_or(settings, "add_prefix_space", true) ? "always" : "never");
  const auto run = [=](Parts& parts) {
    for (size_t i = 0; i < parts.size(); ++i)
      replace_all(parts[i], mark, i == 0 && scheme != "never" ? "" : " ");
  };
  return step(run, scheme == "never" ? Effect::token : Effect::all_marks,
              [=](std::string& token) { replace_all(token, mark, " "); });
}

std::unique_ptr<Decoder> make_bpe_decoder(const Json& settings) {
  const std::string suffix = text_or(settings, "suffix", "</w>");
  return step([=](Parts& parts) {
    for (size_t i = 0; i < parts.size(); ++i)
      replace_all(parts[i], suffix, i + 1 == parts.size() ? "" : " ");
  });
}

std::unique_ptr<Decoder> make_strip(const Json& settings) {
  const std::string content = settings["content"].as_string();
  const int64_t start = settings["start"].as_integer(), stop = settings["stop"].as_integer();
  MG_CHECK(!content.empty() && static_cast<size_t>(character_size(content[0])) == content.size(),
           "Strip's content '{}' is not one character", content);
  const bool drops_space = content == " " && start == 1 && stop == 0;
  const auto run = [=](Parts& parts) {
    for (std::string& part : parts) {
      size_t begin = 0;
      for (int64_t i = 0; i < start && part.compare(begin, content.size(), content) == 0; ++i)
        begin += content.size();
      part.erase(0, begin);
      for (int64_t i = 0; i < stop && part.ends_with(content); ++i)
        part.resize(part.size() - content.size());
    }
  };
  return step(run, drops_space ? Effect::first_space : Effect::other);
}

std::unique_ptr<Decoder> make_replace(const Json& settings) {
  const Json& pattern = settings["pattern"];
  const std::string content = settings["content"].as_string();
  const Json* literal = pattern.find("String");
  if (literal) {
    const std::string from = literal->as_string();
    const auto change = [=](std::string& part) { replace_all(part, from, content); };
    const auto run = [=](Parts& parts) {
      for (std::string& part : parts) change(part);
    };
    return step(run, Effect::token, change);
  }
  const auto regex = std::make_shared<const Regex>(pattern["Regex"].as_string());
  return step([=](Parts& parts) {
    RegexScratch scratch;
    for (std::string& part : parts) {
      std::string result;
      size_t done = 0, from = 0;
      Regex::Match match;
      while (from <= part.size() && regex->find(part, from, match, scratch)) {
        result.append(part, done, match.begin - done).append(content);
        check_growth(result.size(), part.size(), "the decoder's Replace");
        done = from = match.end;
        if (match.begin < match.end) continue;
        if (from == part.size()) break;
        from += static_cast<size_t>(character_size(part[from]));
      }
      part = result.append(part, done);
    }
  });
}

// Connectionist temporal classification (Graves et al., 2006): keeps one of equal adjacent tokens.
std::unique_ptr<Decoder> make_ctc(const Json& settings) {
  const std::string pad = text_or(settings, "pad_token", "<pad>");
  const std::string delimiter = text_or(settings, "word_delimiter_token", "|");
  const bool cleanup = flag_or(settings, "cleanup", true);
  return step([=](Parts& parts) {
    Parts result;
    for (size_t i = 0; i < parts.size(); ++i) {
      if (i > 0 && parts[i] == parts[i - 1]) continue;
      std::string part = parts[i];
      replace_all(part, pad, "");
      if (cleanup) clean_up(part), replace_all(part, delimiter, " ");
      if (!part.empty()) result.push_back(std::move(part));
    }
    parts = std::move(result);
  });
}

std::unique_ptr<Decoder> make_joined() {
  return step([](Parts& parts) {
    for (size_t i = 1; i < parts.size(); ++i) parts[i].insert(0, 1, ' ');
  });
}

}  // namespace

void Decoder::append_bytes(std::string_view token, std::string& bytes) const {
  bytes.append(token);
}

std::string Decoder::decode(const std::vector<std::string_view>& tokens) const {
  Parts parts(tokens.begin(), tokens.end());
  run(parts);
  if (parts.size() != 1) fuse(parts);
  return std::move(parts[0]);
}

std::unique_ptr<Decoder> make_decoder(const Json& settings) {
  if (settings.is_null()) return make_joined();
  const std::string& type = settings["type"].as_string();
  if (type == "ByteLevel") return std::make_unique<ByteLevelDecoder>();
  if (type == "WordPiece") return make_word_piece(settings);
  if (type == "Metaspace") return make_metaspace(settings);
  if (type == "BPEDecoder") return make_bpe_decoder(settings);
  if (type == "ByteFallback") return step(decode_byte_tokens, Effect::token, decode_byte_token);
  if (type == "Fuse") return step(fuse, Effect::fuse);
  if (type == "Strip") return make_strip(settings);
  if (type == "Replace") return make_replace(settings);
  if (type == "CTC") return make_ctc(settings);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Decoder>> steps;
    for (const Json& one : settings["decoders"].as_array()) steps.push_back(make_decoder(one));
    return std::make_unique<DecoderSequence>(std::move(steps));
  }
  fail(
      "decoder '{}' is not supported; supported are ByteLevel, WordPiece, Metaspace, BPEDecoder, "
      "ByteFallback, Fuse, Strip, Replace, CTC and Sequence",
      type);
}

}  // namespace megatron::tokenizers
