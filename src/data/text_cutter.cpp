#include "data/text_cutter.h"

#include <string_view>

#include "data/json_lines.h"

namespace megatron::data {
namespace {

constexpr size_t kParagraphsFrom = 2000, kLinesFrom = 8000;

}  // namespace

bool TextCutter::next(std::string& text, int64_t& line) {
  text.clear();
  line = file_.line_number() + (ahead_.empty() ? 1 : 0);
  text.swap(ahead_);
  bool paragraph_ended = false;
  while (text.size() < kLinesFrom) {
    const size_t begin = text.size();
    if (!file_.append_line(text)) break;
    if (!is_blank(std::string_view(text).substr(begin))) {
      if (!paragraph_ended) continue;
      ahead_.assign(text, begin);
      text.resize(begin);
      break;
    }
    paragraph_ended = paragraph_ended || begin >= kParagraphsFrom;
  }
  return !text.empty();
}

}  // namespace megatron::data
