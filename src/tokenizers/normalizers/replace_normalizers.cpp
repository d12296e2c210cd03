#include <mutex>
#include <optional>
#include <vector>

#include "base/utf8.h"
#include "tokenizers/limits.h"
#include "tokenizers/normalizers/normalizer_kinds.h"
#include "tokenizers/pre_tokenizers/spans.h"
#include "tokenizers/settings.h"
#include "tokenizers/unicode/unicode.h"

namespace megatron::tokenizers {
namespace {

class Strip final : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}

  void normalize(Text& text) const override {
    const std::string_view bytes = text.bytes();
    size_t begin = 0, end = bytes.size();
    while (left_ && begin < end && is_white_space(character_at(bytes, begin)))
      begin += static_cast<size_t>(character_size(bytes[begin]));
    while (right_ && begin < end) {
      const size_t last = character_start_before(bytes, end);
      if (!is_white_space(character_at(bytes, last))) break;
      end = last;
    }
    if (end - begin == bytes.size()) return;
    TextEdit edit(text);
    edit.skip(begin);
    edit.keep(end - begin);
  }

 private:
  bool left_, right_;
};

class Prepend final : public Normalizer {
 public:
  explicit Prepend(std::string prefix) : prefix_(std::move(prefix)) {}
  void normalize(Text& text) const override {
    if (!prefix_.empty()) prepend(text, prefix_);
  }

 private:
  std::string prefix_;
};

// Writes the text with `content` for each match among its spans.
class Replacement {
 public:
  Replacement(Text& text, std::string_view content)
      : text_(text), content_(content), size_(text.bytes().size()) {}
  ~Replacement() {
    if (edit_) edit_->keep_all();
  }
  Replacement(const Replacement&) = delete;

  void add(Span span) {
    if (!span.match) return;
    check_growth(inserted_ += content_.size(), size_, "the normalizer Replace");
    if (!edit_) edit_.emplace(text_);
    edit_->keep(span.begin - edit_->position());
    edit_->skip(span.end - span.begin);
    edit_->insert(content_);
  }

 private:
  Text& text_;
  std::string_view content_;
  size_t size_, inserted_ = 0;  // bytes of the original text, and bytes inserted
  std::optional<TextEdit> edit_;
};

class ReplaceText final : public Normalizer {
 public:
  ReplaceText(std::string pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)) {}

  void normalize(Text& text) const override {
    Replacement replacement(text, content_);
    for_each_span(pattern_, text.bytes(), [&](Span span) { replacement.add(span); });
  }

 private:
  std::string pattern_, content_;
};

class ReplaceRegex final : public Normalizer {
 public:
  ReplaceRegex(Regex regex, std::string content)
      : regex_(std::move(regex)), content_(std::move(content)) {}

  void normalize(Text& text) const override {
    if (text.bytes().empty()) return;
    RegexScratch scratch = borrow();
    {
      Replacement replacement(text, content_);
      for_each_span(regex_, text.bytes(), scratch, [&](Span span) { replacement.add(span); });
    }
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(scratch));
  }

 private:
  RegexScratch borrow() const {
    const std::lock_guard lock(mutex_);
    if (idle_.empty()) return {};
    RegexScratch scratch = std::move(idle_.back());
    idle_.pop_back();
    return scratch;
  }

  Regex regex_;
  std::string content_;
  mutable std::mutex mutex_;
  mutable std::vector<RegexScratch> idle_;
};

}  // namespace

std::unique_ptr<Normalizer> make_strip(const Json& settings) {
  return std::make_unique<Strip>(flag(settings, "strip_left", true),
                                 flag(settings, "strip_right", true));
}

std::unique_ptr<Normalizer> make_prepend(const Json& settings) {
  return std::make_unique<Prepend>(text_field(settings, "prepend"));
}

std::unique_ptr<Normalizer> make_replace(const Json& settings) {
  Pattern pattern = pattern_field(settings);
  const std::string& content = text_field(settings, "content");
  if (pattern.plain) return std::make_unique<ReplaceText>(std::move(pattern.text), content);
  return std::make_unique<ReplaceRegex>(Regex(pattern.text), content);
}

}  // namespace megatron::tokenizers
