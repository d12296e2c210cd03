#include "data/token_check.h"

#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "data/source_facts.h"

namespace megatron::data {
namespace {

constexpr int64_t kWorthALine = int64_t{4} << 30;  // bytes that take noticeable time to read

}  // namespace

std::optional<TokenRange> remembered_token_range(const IndexedDataset& set,
                                                 const std::optional<std::string>& directory) {
  SourceFacts facts(set, directory);
  const auto smallest = facts.integer("smallest"), largest = facts.integer("largest");
  if (smallest && largest) return TokenRange{*smallest, *largest};
  if (set.bin_bytes() >= kWorthALine) {
    log::info("{}.bin: checking {} of token ids{}", set.path(),
              format_bytes(static_cast<double>(set.bin_bytes())), directory ? ", once" : "");
  }
  const auto range = set.token_range();
  if (!range) return range;
  facts.set("smallest", range->smallest);
  facts.set("largest", range->largest);
  facts.remember();
  return range;
}

void check_token_ids(const IndexedDataset& set, int64_t vocabulary,
                     const std::optional<std::string>& directory) {
  if (set.dtype() == DType::u8 && vocabulary > 0xff) return;
  if (set.dtype() == DType::u16 && vocabulary > 0xffff) return;
  const auto range = remembered_token_range(set, directory);
  if (!range) return;
  MG_CHECK(range->largest < vocabulary,
           "{}.bin contains token id {}, but the vocabulary has {} tokens (--vocab-size, or the "
           "model's; ids 0 to {}): use the tokenizer that made the data, a model with that "
           "vocabulary, or preprocess the text again",
           set.path(), range->largest, vocabulary, vocabulary - 1);
  MG_CHECK(range->smallest >= 0,
           "{}.bin contains token id {}, but ids start at 0: preprocess the text again", set.path(),
           range->smallest);
}

}  // namespace megatron::data
