// Lists of numbers interned by their content.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <unordered_set>
#include <vector>

namespace megatron::inference {

// Lists are numbered from 0; equal lists have the same number.
class InternedLists {
 public:
  InternedLists();
  InternedLists(const InternedLists&) = delete;
  InternedLists& operator=(const InternedLists&) = delete;

  int32_t intern(std::span<const uint64_t> list);
  std::span<const uint64_t> operator[](int32_t id) const;
  int32_t count() const { return static_cast<int32_t>(begins_.size()) - 1; }
  size_t numbers() const { return numbers_.size(); }
  size_t bytes() const;  // approximate bytes of memory

 private:
  struct Hash {
    using is_transparent = void;
    const InternedLists* lists;
    size_t operator()(int32_t id) const { return (*this)((*lists)[id]); }
    size_t operator()(std::span<const uint64_t> list) const;
  };
  struct Equal {
    using is_transparent = void;
    const InternedLists* lists;
    template <class A, class B>
    bool operator()(const A& a, const B& b) const {
      return std::ranges::equal(of(a), of(b));
    }
    std::span<const uint64_t> of(int32_t id) const { return (*lists)[id]; }
    std::span<const uint64_t> of(std::span<const uint64_t> list) const { return list; }
  };

  std::vector<uint64_t> numbers_;
  std::vector<size_t> begins_;
  std::unordered_set<int32_t, Hash, Equal> ids_;
};

// A set of numbers that is cleared in constant time.
class NumberSet {
 public:
  void clear();
  bool insert(uint64_t number);  // returns whether it is new
  size_t bytes() const { return sizeof(Slot) * slots_.capacity(); }

 private:
  void grow();
  struct Slot {
    uint64_t number = 0;
    uint32_t round = 0;
  };
  std::vector<Slot> slots_ = std::vector<Slot>(64);
  uint32_t round_ = 1;
  size_t count_ = 0;
};

}  // namespace megatron::inference
