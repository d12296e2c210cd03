#include "inference/stop_text.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace megatron::inference {

StopText::StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {
  for (const std::string& stop : stops_)
    MG_CHECK(!stop.empty(), "--stop is an empty string; generation would stop at once");
}

// Bytes at the end of held_ that may be the beginning of a stop string.
size_t StopText::held_back() const {
  const std::string_view text = held_;
  size_t longest = 0;
  for (const std::string_view stop : stops_) {
    for (size_t n = std::min(text.size(), stop.size() - 1); n > longest; --n) {
      if (text.ends_with(stop.substr(0, n))) longest = n;
    }
  }
  return longest;
}

std::string StopText::push(std::string_view text) {
  if (stopped_) return {};
  held_ += text;
  size_t at = std::string::npos;
  for (const std::string& stop : stops_) at = std::min(at, held_.find(stop));
  if (at != std::string::npos) {
    stopped_ = true;
    held_.resize(at);
    return std::exchange(held_, {});
  }
  const size_t certain = held_.size() - held_back();
  std::string out = held_.substr(0, certain);
  held_.erase(0, certain);
  return out;
}

std::string StopText::finish() { return std::exchange(held_, {}); }

}  // namespace megatron::inference
