// Logits of sequences read piece by piece against those of one forward pass, bit for bit.
#pragma once

#include <algorithm>

#include "golden/inference/support.h"

namespace megatron::testing {

// Reads sequences through a state, `piece` tokens of each a pass, shorter ones padded, and returns
// the logits of every token by sequence.
inline std::vector<std::vector<float>> piecewise_logits(RandomModel& m,
                                                        const std::vector<Tokens>& sequences,
                                                        int64_t piece) {
  const auto count = static_cast<int64_t>(sequences.size());
  const auto vocabulary = static_cast<size_t>(m.model.model()->vocab_size());
  size_t longest = 0;
  for (const Tokens& s : sequences) longest = std::max(longest, s.size());
  nn::SequenceState state(m.model.state_shape(count, static_cast<int64_t>(longest)), m.type(),
                          m.runtime);
  std::vector<std::vector<float>> logits(sequences.size());
  for (size_t begin = 0; begin < longest; begin += static_cast<size_t>(piece)) {
    const auto length = std::min<size_t>(static_cast<size_t>(piece), longest - begin);
    Tokens tokens, positions;
    std::vector<int64_t> counts;
    for (const Tokens& s : sequences) {
      const size_t left = s.size() > begin ? std::min(length, s.size() - begin) : 0;
      counts.push_back(static_cast<int64_t>(left));
      for (size_t t = 0; t < length; ++t) {
        tokens.push_back(t < left ? s[begin + t] : 1);
        positions.push_back(static_cast<int32_t>(begin + t));
      }
    }
    nn::Batch batch{.sequences = count,
                    .length = static_cast<int64_t>(length),
                    .tokens = integers(m.runtime, tokens),
                    .positions = integers(m.runtime, positions)};
    batch.continuation = state.next(0, count, batch.length);
    Tape tape(m.runtime, Tape::Mode::infer);
    const Bundle out = models::forward(m.model, tape, {}, batch, models::Phase::evaluate);
    const std::vector<float> all = to_floats(m.model.loss_logits(tape, out));
    for (size_t b = 0; b < sequences.size(); ++b) {
      const auto row = all.begin() + static_cast<std::ptrdiff_t>(b * length * vocabulary);
      logits[b].insert(logits[b].end(), row,
                       row + static_cast<std::ptrdiff_t>(vocabulary) * counts[b]);
    }
    state.advance(0, counts);
  }
  return logits;
}

// How many values differ in any bit.
inline size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i)
    count += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  return count;
}

// `batch` sequences of lengths between 1 and `longest`, one of them as long.
inline std::vector<Tokens> ragged(int64_t batch, int64_t longest, int64_t vocabulary,
                                  uint64_t seed) {
  std::vector<Tokens> sequences;
  const RandomStream stream(seed, "lengths");
  for (int64_t b = 0; b < batch; ++b) {
    const auto length = b == batch / 2
                            ? longest
                            : 1 + static_cast<int64_t>(stream.bits(static_cast<uint64_t>(b)) %
                                                       static_cast<uint64_t>(longest));
    sequences.push_back(random_tokens(length, vocabulary, seed + static_cast<uint64_t>(b)));
  }
  return sequences;
}

// Every piece, batch and length: bits of the logits as those of one pass a sequence.
inline void expect_bits_of_one_pass(RandomModel& m, const std::vector<int64_t>& lengths,
                                    const std::vector<int64_t>& batches,
                                    const std::vector<int64_t>& pieces) {
  uint64_t seed = 1;
  for (const int64_t length : lengths) {
    for (const int64_t batch : batches) {
      const auto sequences = ragged(batch, length, m.model.model()->vocab_size(), seed += 100);
      std::vector<std::vector<float>> expected;
      for (const Tokens& s : sequences) expected.push_back(whole_logits(m, s));
      for (const int64_t piece : pieces) {
        const auto found = piecewise_logits(m, sequences, piece);
        for (size_t b = 0; b < sequences.size(); ++b) {
          EXPECT_EQ(differing(found[b], expected[b]), 0u)
              << "of " << expected[b].size() << " logits of sequence " << b << " of " << batch
              << ", " << sequences[b].size() << " tokens, pieces of " << piece;
        }
      }
    }
  }
}

}  // namespace megatron::testing
