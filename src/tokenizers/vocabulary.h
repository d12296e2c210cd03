// The two-way map between token texts and ids. Ids may have gaps; the map is one-to-one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::tokenizers {

class Vocabulary {
 public:
  static constexpr int64_t kMaximumId = (int64_t{1} << 22) - 1;

  // Throws Error if the id is negative or above kMaximumId, or if the id or the text is already in
  // use.
  void add(std::string_view text, int64_t id);

  std::optional<int32_t> find(std::string_view text) const;
  bool contains(int64_t id) const {
    return id >= 0 && id < size() && tokens_[static_cast<size_t>(id)].used;
  }
  std::string_view text(int32_t id) const;                               // "" for an unused id
  int32_t size() const { return static_cast<int32_t>(tokens_.size()); }  // the largest id plus one
  int32_t count() const { return count_; }  // number of ids with a token

 private:
  struct Token {
    uint32_t begin = 0, size : 31 = 0, used : 1 = 0;
  };
  size_t slot_of(std::string_view text) const;
  void grow();

  std::string texts_;
  std::vector<Token> tokens_;   // by id
  std::vector<int32_t> slots_;  // open addressing, -1: free
  int32_t count_ = 0;
};

}  // namespace megatron::tokenizers
