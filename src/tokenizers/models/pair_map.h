// A hash map from a pair of token ids to a 64-bit value with open addressing: 16 bytes per slot, at
// most half of the slots used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace megatron::tokenizers {

inline uint64_t pair_key(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}
inline int32_t left_of(uint64_t pair) { return static_cast<int32_t>(pair >> 32); }
inline int32_t right_of(uint64_t pair) { return static_cast<int32_t>(pair & 0xffffffffu); }

class PairMap {
 public:
  explicit PairMap(size_t expected = 16) {
    size_t slots = 32;
    while (slots < 2 * expected) slots *= 2;
    slots_.resize(slots);
  }

  size_t size() const { return size_; }

  // Returns a null pointer if the pair is absent.
  const int64_t* find(int32_t left, int32_t right) const {
    const uint64_t key = pair_key(left, right);
    for (size_t slot = hash(key) & (slots_.size() - 1);; slot = (slot + 1) & (slots_.size() - 1)) {
      if (slots_[slot].key == key) return &slots_[slot].value;
      if (slots_[slot].key == kFree) return nullptr;
    }
  }

  // Prefetches the memory that find(left, right) reads.
  void prefetch(int32_t left, int32_t right) const {
    __builtin_prefetch(&slots_[hash(pair_key(left, right)) & (slots_.size() - 1)]);
  }

  // Returns the value, inserting 0 if it is absent. The reference is valid until the next call.
  int64_t& operator[](uint64_t key) {
    if (slots_.size() < 2 * (size_ + 1)) grow();
    const size_t slot = slot_of(key);
    if (slots_[slot].key == kFree) slots_[slot].key = key, ++size_;
    return slots_[slot].value;
  }

  template <class F>
  void for_each(F&& f) const {
    for (const Slot& slot : slots_) {
      if (slot.key != kFree) f(slot.key, slot.value);
    }
  }

 private:
  static constexpr uint64_t kFree = ~uint64_t{0};
  struct Slot {
    uint64_t key = kFree;
    int64_t value = 0;
  };

  static size_t hash(uint64_t key) {
    key *= 0x9e3779b97f4a7c15ull;
    return static_cast<size_t>(key ^ key >> 29);
  }
  size_t slot_of(uint64_t key) const {
    size_t slot = hash(key) & (slots_.size() - 1);
    while (slots_[slot].key != key && slots_[slot].key != kFree)
      slot = (slot + 1) & (slots_.size() - 1);
    return slot;
  }
  void grow() {
    std::vector<Slot> old(slots_.size() * 2);
    old.swap(slots_);
    for (const Slot& slot : old) {
      if (slot.key != kFree) slots_[slot_of(slot.key)] = slot;
    }
  }

  std::vector<Slot> slots_;
  size_t size_ = 0;
};

}  // namespace megatron::tokenizers
