#include "data/troff/layout.h"

#include <algorithm>

#include "data/troff/characters.h"

namespace megatron::data::troff {
namespace {

std::string spaces(int count) {
  return std::string(static_cast<size_t>(count < 0 ? 0 : count), ' ');
}

}  // namespace

void Layout::begin_line() {
  line_ = has_prefix_ ? prefix_ : spaces(indent_);
  has_prefix_ = false;
  after_word_ = false;
}

void Layout::emit() {
  std::string text = without_markers(line_);
  text.erase(text.find_last_not_of(" \t") + 1);
  if (!text.empty()) {
    out_ += text + "\n";
    after_heading_ = false;
  }
  line_.clear();
  joined_ = after_word_ = false;
}

void Layout::fill(std::string_view text) {
  size_t at = 0;
  while (at < text.size()) {
    const size_t begin = text.find_first_not_of(" \t", at);
    if (begin == text.npos) break;
    const size_t end = std::min(text.find_first_of(" \t", begin), text.size());
    const std::string_view word = text.substr(begin, end - begin);
    at = end;
    if (word.size() == 1 && word[0] == kZero) continue;
    joined_ = joined_ || word.front() == kJoin;
    if (line_.empty()) {
      begin_line();
    } else if (after_word_ && !joined_) {
      if (display_width(line_) + 1 + display_width(word) > width_) {
        emit();
        begin_line();
      } else {
        line_ += ' ';
      }
    }
    line_ += word;
    after_word_ = true;
    joined_ = word.back() == kJoin;
  }
}

void Layout::line(std::string_view text) {
  if (!joined_) {
    if (!line_.empty()) emit();
    begin_line();
  }
  int column = 0;
  for (const char c : text) {
    if (c == '\t') {
      const int target = (column / 8 + 1) * 8;
      line_ += spaces(target - column);
      column = target;
      continue;
    }
    line_ += c;
    column += display_width(std::string_view(&c, 1));
  }
  after_word_ = true;
  joined_ = !text.empty() && text.back() == kJoin;
  if (!joined_) emit();
}

void Layout::tag(std::string_view text, int column, int body) {
  flush();
  prefix_ = spaces(column);
  prefix_ += text;
  has_prefix_ = true;
  const int gap = body - display_width(prefix_);
  if (gap >= 1) {
    prefix_ += spaces(gap);
  } else {
    flush();
  }
}

void Layout::begin_at(int column) {
  flush();
  prefix_ = spaces(column);
  has_prefix_ = true;
}

void Layout::flush() {
  if (line_.empty() && has_prefix_) begin_line();
  if (!line_.empty()) emit();
}

void Layout::blank() {
  flush();
  if (!after_heading_ && !out_.empty() && !out_.ends_with("\n\n")) out_ += '\n';
}

void Layout::heading(std::string_view text, int column) {
  flush();
  after_heading_ = false;
  blank();
  line_ = spaces(column);
  line_ += text;
  emit();
  after_heading_ = true;
}

std::string Layout::take() {
  flush();
  while (out_.ends_with("\n\n")) out_.pop_back();
  return std::move(out_);
}

}  // namespace megatron::data::troff
