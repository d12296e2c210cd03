#include "server/chat_text.h"

#include <algorithm>

namespace megatron::server {
namespace {

constexpr std::string_view kOpen = "<think>", kClose = "</think>", kSpace = " \t\r\n";

void strip_front(std::string& text) {
  text.erase(0, std::min(text.find_first_not_of(kSpace), text.size()));
}

}  // namespace

ChatFormat ChatFormat::of(const TextModel& model, bool calls_tools, std::string_view prompt) {
  const size_t open = prompt.rfind(kOpen), close = prompt.rfind(kClose);
  const bool within = open != prompt.npos && (close == prompt.npos || close < open);
  return {.tools = calls_tools ? model.tool_format() : ToolFormat::none,
          .reasons = model.reasons(),
          .in_thought = model.reasons() && within};
}

ChatText::ChatText(const ChatFormat& format)
    : place_(format.in_thought ? Place::thought
             : format.reasons  ? Place::start
                               : Place::content),
      tools_(format.tools) {}

ChatDelta ChatText::push(std::string_view text) {
  held_ += text;
  ChatDelta delta;
  read(delta);
  return delta;
}

void ChatText::read(ChatDelta& delta) {
  if (place_ == Place::start && !read_start()) return;
  if (place_ == Place::thought && !read_thought(delta)) return;
  if (place_ == Place::after_thought) {
    strip_front(held_);
    if (held_.empty()) return;
    place_ = Place::content;
  }
  delta.content += tools_.push(held_);
  held_.clear();
}

// Returns false if the text may still become the beginning of a thought.
bool ChatText::read_start() {
  const size_t begin = std::min(held_.find_first_not_of(kSpace), held_.size());
  const std::string_view text = std::string_view(held_).substr(begin);
  if (text.size() < kOpen.size() && kOpen.starts_with(text)) return false;
  place_ = Place::content;
  if (text.starts_with(kOpen)) {
    place_ = Place::thought;
    held_.erase(0, begin + kOpen.size());
  }
  return true;
}

// Returns false if the thought continues. Surrounding space is not part of it.
bool ChatText::read_thought(ChatDelta& delta) {
  if (!thought_begun_) strip_front(held_);
  thought_begun_ = thought_begun_ || !held_.empty();
  const size_t close = held_.find(kClose);
  size_t certain = close;
  if (close == held_.npos) {
    certain = held_.size();
    for (size_t n = std::min(held_.size(), kClose.size() - 1); n > 0; --n) {
      if (!held_.ends_with(kClose.substr(0, n))) continue;
      certain -= n;
      break;
    }
  }
  const std::string_view before = std::string_view(held_).substr(0, certain);
  const size_t said = before.find_last_not_of(kSpace) + 1;  // npos + 1 is 0
  delta.reasoning += before.substr(0, said);
  if (close == held_.npos) {
    held_.erase(0, said);
    return false;
  }
  held_.erase(0, close + kClose.size());
  place_ = Place::after_thought;
  return true;
}

ChatText::End ChatText::finish() {
  End end;
  if (place_ == Place::thought) {
    end.rest.reasoning = held_;
  } else if (place_ != Place::after_thought) {
    end.rest.content = tools_.push(held_);
  }
  held_.clear();
  ToolCallSplitter::End tools = tools_.finish();
  end.rest.content += tools.said;
  end.calls = std::move(tools.calls);
  return end;
}

}  // namespace megatron::server
