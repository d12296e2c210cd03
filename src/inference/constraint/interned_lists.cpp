#include "inference/constraint/interned_lists.h"

namespace megatron::inference {
namespace {

uint64_t mixed(uint64_t x) {  // the finalizer of SplitMix64 (Steele et al., 2014)
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9;
  x = (x ^ x >> 27) * 0x94d049bb133111eb;
  return x ^ x >> 31;
}

}  // namespace

InternedLists::InternedLists() : begins_{0}, ids_(64, Hash{this}, Equal{this}) {}

size_t InternedLists::Hash::operator()(std::span<const uint64_t> list) const {
  uint64_t hash = list.size();
  for (const uint64_t number : list) hash = mixed(hash + 0x9e3779b97f4a7c15 + number);
  return hash;
}

std::span<const uint64_t> InternedLists::operator[](int32_t id) const {
  const size_t begin = begins_[static_cast<size_t>(id)], end = begins_[static_cast<size_t>(id) + 1];
  return std::span(numbers_).subspan(begin, end - begin);
}

int32_t InternedLists::intern(std::span<const uint64_t> list) {
  const auto known = ids_.find(list);
  if (known != ids_.end()) return *known;
  numbers_.insert(numbers_.end(), list.begin(), list.end());
  begins_.push_back(numbers_.size());
  const int32_t id = count() - 1;
  ids_.insert(id);
  return id;
}

size_t InternedLists::bytes() const {
  constexpr size_t kNode = 32;  // approximate bytes of a hash table's node
  return sizeof(uint64_t) * numbers_.capacity() + sizeof(size_t) * begins_.capacity() +
         kNode * ids_.size() + sizeof(void*) * ids_.bucket_count();
}

void NumberSet::clear() {
  count_ = 0;
  if (++round_ != 0) return;
  std::ranges::fill(slots_, Slot{});
  round_ = 1;
}

bool NumberSet::insert(uint64_t number) {
  if (2 * (count_ + 1) > slots_.size()) grow();
  for (size_t i = mixed(number);; ++i) {
    Slot& slot = slots_[i & (slots_.size() - 1)];
    if (slot.round != round_) {
      slot = {number, round_};
      ++count_;
      return true;
    }
    if (slot.number == number) return false;
  }
}

void NumberSet::grow() {
  std::vector<Slot> old(2 * slots_.size());
  old.swap(slots_);
  count_ = 0;
  for (const Slot& slot : old) {
    if (slot.round == round_) insert(slot.number);
  }
}

}  // namespace megatron::inference
