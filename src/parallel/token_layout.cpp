#include "parallel/token_layout.h"

#include <algorithm>
#include <utility>

#include "base/error.h"

namespace megatron::parallel {
namespace {

// Divides the documents of one sequence, one after the other.
class DividedSequence {
 public:
  explicit DividedSequence(int ranks) : held_(static_cast<size_t>(ranks)) {}

  void add_document(int64_t begin, int64_t end) {
    const auto ranks = std::ssize(held_), chunks = 2 * ranks, size = (end - begin) / chunks;
    const std::vector<int> extra = extra_tokens((end - begin) % chunks);
    for (int64_t chunk = 0, at = begin; chunk < chunks; ++chunk) {
      const bool late = chunk >= ranks;
      const auto rank = static_cast<size_t>(late ? chunks - 1 - chunk : chunk);
      const int64_t stop = at + size + (extra[rank] > (late ? 1 : 0) ? 1 : 0);
      for (; at < stop; ++at) held_[rank].push_back(static_cast<int32_t>(at));
    }
  }

  const std::vector<std::vector<int32_t>>& held() const { return held_; }

 private:
  // Number of tokens that each rank gets of those left over from chunks of equal size, of which
  // there are fewer than chunks. Ranks that differ by at most one token still do after it, so that
  // none gets more than one per chunk if, of equal ranks, those with fewer of these come first.
  std::vector<int> extra_tokens(int64_t count) const {
    std::vector<int> extra(held_.size());
    for (; count > 0; --count) {
      size_t least = 0;
      const auto total = [&](size_t i) { return std::pair(held_[i].size() + extra[i], extra[i]); };
      for (size_t i = 1; i < extra.size(); ++i)
        if (total(i) < total(least)) least = i;
      ++extra[least];
    }
    return extra;
  }

  std::vector<std::vector<int32_t>> held_;
};

}  // namespace

std::vector<int32_t> tokens_by_rank(const TokenLayout& layout,
                                    std::span<const int32_t> segment_starts) {
  std::vector<int32_t> tokens(static_cast<size_t>(layout.sequences * layout.length));
  for (int64_t s = 0; s < layout.sequences; ++s) {
    DividedSequence sequence(layout.ranks);
    int64_t begin = 0;
    const bool cut = layout.by_document && !segment_starts.empty();
    for (int64_t t = 1; t < layout.length && cut; ++t) {
      if (segment_starts[static_cast<size_t>(s * layout.length + t)] != t) continue;
      sequence.add_document(begin, t);
      begin = t;
    }
    sequence.add_document(begin, layout.length);
    for (int rank = 0; rank < layout.ranks; ++rank) {
      const std::vector<int32_t>& held = sequence.held()[static_cast<size_t>(rank)];
      MG_ASSERT(std::ssize(held) == layout.held());
      std::ranges::copy(held, tokens.begin() + rank * layout.rows() + s * layout.held());
    }
  }
  return tokens;
}

std::vector<int32_t> tokens_by_group(const TokenLayout& layout, std::span<const int32_t> by_rank) {
  std::vector<int32_t> tokens;
  for (int group = 0; group < layout.ranks; group += layout.inner) {
    for (int64_t s = 0; s < layout.sequences; ++s) {
      const auto begin = std::ssize(tokens);
      for (int rank = group; rank < group + layout.inner; ++rank) {
        const auto held = by_rank.begin() + rank * layout.rows() + s * layout.held();
        tokens.insert(tokens.end(), held, held + layout.held());
      }
      std::sort(tokens.begin() + begin, tokens.end());
    }
  }
  return tokens;
}

std::array<TokenLayout::Run, 2> TokenLayout::runs(int of_rank) const {
  const int64_t size = held() / 2, first = of_rank * size, last = length - first;
  return {Run{first, first + size}, Run{last - size, last}};
}

void TokenLayout::check(std::string_view flag) const {
  const int64_t chunks = 2 * ranks;
  MG_CHECK(ranks == 1 || length % chunks == 0,
           "--context-parallel-size {} cuts each sequence into {} chunks of equal size, but {} "
           "tokens (--{}) cannot be: use a multiple of {}",
           ranks, chunks, length, flag, chunks);
}

}  // namespace megatron::parallel
