// Regular expressions over module names in the dialect of Python's re, as PEFT's configuration has
// them.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

namespace megatron::tokenizers {
class PcreRegex;
}

namespace megatron::models {

// Copies share the compiled expression. Patterns are equal if their texts and uses are.
class NamePattern {
 public:
  enum class Use : uint8_t {
    whole,   // the pattern matches the whole name: re.fullmatch
    ending,  // the whole name, or its end after a dot: a key of rank_pattern
    layers,  // the name of the list of layers, before a layer's number: an entry of layers_pattern
  };

  // Throws Error naming the pattern, the position and the reason.
  explicit NamePattern(std::string text, Use use = Use::whole);

  const std::string& text() const { return text_; }
  bool fits(std::string_view name) const;
  // Use::layers: the layer's number, or nothing if the pattern does not fit.
  std::optional<int64_t> layer(std::string_view name) const;

  bool operator==(const NamePattern& other) const {
    return text_ == other.text_ && use_ == other.use_;
  }

 private:
  std::string text_;
  Use use_;
  std::shared_ptr<const tokenizers::PcreRegex> regex_;
};

}  // namespace megatron::models
