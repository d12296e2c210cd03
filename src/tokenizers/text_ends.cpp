#include "tokenizers/text_ends.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::tokenizers {

// The tokens of an empty text are those around it; a text with a letter shows on which side they
// are.
TextEnds text_ends(const Tokenizer& tokenizer) {
  TextEnds ends;
  if (tokenizer.encode("", true).empty()) return ends;
  const std::vector<int32_t> bare = tokenizer.encode("a"), with = tokenizer.encode("a", true);
  if (with.size() <= bare.size()) return ends;
  if (bare.empty() || with.front() != bare.front()) ends.first = with.front();
  if (bare.empty() ? with.size() > 1 : with.back() != bare.back()) ends.last = with.back();
  return ends;
}

void cut_text(std::vector<int32_t>& ids, int64_t length, bool keeps_start, const TextEnds& ends) {
  MG_ASSERT(length > 0);
  if (std::ssize(ids) <= length) return;
  const bool first = ends.first && ids.front() == *ends.first,
             last = ends.last && ids.back() == *ends.last && length > 1;
  if (keeps_start) {
    ids.resize(static_cast<size_t>(length));
  } else {
    ids.erase(ids.begin(), ids.end() - length);
  }
  if (first) ids.front() = *ends.first;
  if (last) ids.back() = *ends.last;
}

void cut_pair(std::vector<int32_t>& first, std::vector<int32_t>& second, int64_t length,
              bool keeps_start) {
  MG_ASSERT(length > 0);
  if (std::ssize(first) + std::ssize(second) <= length) return;
  const bool first_is_longer = first.size() > second.size();
  std::vector<int32_t>&shorter = first_is_longer ? second : first,
  &longer = first_is_longer ? first : second;
  const int64_t kept = std::min(std::ssize(shorter), length / 2);
  const auto cut = [&](std::vector<int32_t>& ids, int64_t size) {
    if (keeps_start) ids.resize(static_cast<size_t>(size));
    else ids.erase(ids.begin(), ids.end() - size);
  };
  cut(shorter, kept);
  cut(longer, length - kept);
}

}  // namespace megatron::tokenizers
