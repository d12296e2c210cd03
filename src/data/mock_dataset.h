// A synthetic source that needs no files: --mock-data.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "data/token_source.h"

namespace megatron::data {

// 100 000 sequences of 1 to 4095 tokens (lengths from NumPy's default_rng(0)): 1, 2, 3 ... modulo
// the vocabulary, followed by the end-of-document token. Megatron-LM divides it by "1,1,1".
class MockTokens : public TokenSource {
 public:
  MockTokens(int64_t vocabulary_size, int64_t eod);  // throws Error for a vocabulary below 1

  const std::string& path() const override { return path_; }
  int64_t sequence_count() const override { return static_cast<int64_t>(lengths_.size()); }
  int64_t length(int64_t sequence) const override;
  void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const override;
  Lengths lengths() const override { return Lengths(index_bytes()); }
  std::span<const std::byte> index_bytes() const override {
    return std::as_bytes(std::span(lengths_));
  }

 private:
  std::string path_ = "mock data";
  int64_t vocabulary_size_, eod_;
  std::vector<int32_t> lengths_;
};

}  // namespace megatron::data
