#include "comm/texts.h"

#include <algorithm>
#include <span>

#include "comm/values.h"

namespace megatron::comm {
namespace {

// Length of each rank's text; 0 if `length` is 0.
std::vector<int64_t> lengths(Group& ranks, Stream& stream, size_t length, std::string_view call) {
  std::vector<double> values(static_cast<size_t>(ranks.size()), 0);
  values[static_cast<size_t>(ranks.rank())] = static_cast<double>(length);
  largest(ranks, stream, values, call);
  return {values.begin(), values.end()};
}

Tensor bytes(Stream& stream, int64_t count, std::string_view call) {
  return Tensor::empty(stream.scratch(), {count}, DType::u8, call);
}

std::string text_of(const Tensor& tensor) {
  std::string text(static_cast<size_t>(tensor.elements()), ' ');
  copy_bytes_to(tensor, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

std::vector<std::string> gather_texts(Group& ranks, Stream& stream, const std::string& text,
                                      std::string_view call) {
  if (ranks.size() == 1) return {text};
  const std::vector<int64_t> each = lengths(ranks, stream, text.size(), call);
  const int64_t longest = std::ranges::max(each);
  std::vector<std::string> texts(each.size());
  if (longest == 0) return texts;
  const Tensor mine = bytes(stream, longest, call),
               all = bytes(stream, longest * ranks.size(), call);
  std::string padded = text;
  padded.resize(static_cast<size_t>(longest));
  copy_bytes_from(mine, std::as_bytes(std::span(padded)));
  ranks.all_gather(mine, all, stream, call).wait(stream);
  stream.synchronize();
  const std::string joined = text_of(all);
  for (size_t r = 0; r < texts.size(); ++r)
    texts[r] = joined.substr(r * static_cast<size_t>(longest), static_cast<size_t>(each[r]));
  return texts;
}

}  // namespace megatron::comm
