#include "data/mock_dataset.h"

#include "base/error.h"
#include "data/random_state.h"

namespace megatron::data {

MockTokens::MockTokens(int64_t vocabulary_size, int64_t eod)
    : vocabulary_size_(vocabulary_size), eod_(eod), lengths_(100000) {
  MG_CHECK(vocabulary_size >= 1,
           "mock data need a vocabulary of at least 1 entry, not {} (--vocab-size)",
           vocabulary_size);
  DefaultGenerator random(0);
  for (int32_t& length : lengths_) length = random.integer(1, 4096);
}

int64_t MockTokens::length(int64_t sequence) const {
  MG_CHECK(sequence >= 0 && sequence < sequence_count(),
           "mock data: sequence {} does not exist; there are {}", sequence, sequence_count());
  return lengths_[static_cast<size_t>(sequence)];
}

void MockTokens::read(int64_t sequence, int64_t offset, std::span<int64_t> out) const {
  const int64_t length = this->length(sequence), count = static_cast<int64_t>(out.size());
  MG_CHECK(offset >= 0 && offset <= length && count <= length - offset,
           "mock data: {} tokens are requested from position {} of sequence {}, which has {}",
           count, offset, sequence, length);
  for (int64_t i = 0; i < count; ++i) {
    const int64_t position = offset + i;
    out[static_cast<size_t>(i)] = position == length - 1 ? eod_ : (position + 1) % vocabulary_size_;
  }
}

}  // namespace megatron::data
