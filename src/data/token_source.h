// Where tokens come from: numbered sequences of token ids, each readable in part.
#pragma once

#include <cstdint>
#include <span>
#include <string>

namespace megatron::data {

class TokenSource {
 public:
  virtual ~TokenSource() = default;

  virtual const std::string& path()
      const = 0;  // prefix of the files; names the source in messages and caches
  virtual int64_t sequence_count() const = 0;
  virtual int64_t length(int64_t sequence) const = 0;  // in tokens
  // Fills `out` with tokens [offset, offset + out.size()) of the sequence. Throws Error when that
  // is not inside it.
  virtual void read(int64_t sequence, int64_t offset, std::span<int64_t> out) const = 0;
};

}  // namespace megatron::data
