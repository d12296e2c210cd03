// Streams text up to the first stop string, emitting it as soon as it is certain.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron::inference {

// The concatenated pieces are the text before the first complete stop string (of several that
// become complete together, the one that begins first). The end of a text that may become a stop
// string is held back.
class StopText {
 public:
  // Throws Error for an empty string. No strings: all text passes.
  explicit StopText(std::vector<std::string> stops);

  std::string push(std::string_view text);  // returns text that can no longer change, possibly ""
  std::string finish();                     // returns the withheld text; the text has ended
  bool stopped() const { return stopped_; }

 private:
  size_t held_back() const;

  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

}  // namespace megatron::inference
