// Compares logits of sequences read in pieces with those of one forward pass, bit for bit.
#pragma once

#include <algorithm>

#include "golden/inference/support.h"

namespace megatron::testing {

// Pages of a state in which sequences are read to their ends. Pages of neighbouring blocks are not
// adjacent, and pages that windows leave behind become invalid.
class TestPages {
 public:
  TestPages(models::Stage& stage, const std::vector<Tokens>& sequences, int64_t block_size)
      : shape{.layers = stage.layer_caches(), .block_size = block_size, .pages = {}} {
    int64_t blocks = 0;
    for (const Tokens& s : sequences)
      blocks = std::max(blocks, (std::ssize(s) + block_size - 1) / block_size);
    std::vector<std::vector<int32_t>> tables(sequences.size());
    int32_t next = 0;
    for (int64_t j = 0; j < blocks; ++j)
      for (auto& table : tables) table.push_back(next++);
    for (const nn::CacheGroup& group : nn::cache_groups(shape.layers)) {
      shape.pages.push_back(next);
      windows_.push_back(group.window);
      tables_.push_back(tables);
    }
  }
  nn::SequencePart part(size_t sequence, int64_t begin, int64_t count) {
    nn::SequencePart part{.begin = begin, .count = count, .tables = {}};
    for (size_t g = 0; g < windows_.size(); ++g) {
      std::vector<int32_t>& table = tables_[g][sequence];
      const int64_t seen = windows_[g] > 0 ? begin - windows_[g] + 1 : 0;
      for (int64_t j = 0; j < seen / shape.block_size; ++j) table[static_cast<size_t>(j)] = -1;
      part.tables.emplace_back(table);
    }
    return part;
  }
  nn::SequenceStateShape shape;

 private:
  std::vector<int64_t> windows_;                           // one per group
  std::vector<std::vector<std::vector<int32_t>>> tables_;  // indexed by group and sequence
};

// Reads sequences through a state, `piece` tokens of each per pass. Returns the logits of every
// token, by sequence.
inline std::vector<std::vector<float>> piecewise_logits(RandomModel& m,
                                                        const std::vector<Tokens>& sequences,
                                                        int64_t piece) {
  const auto vocabulary = m.model.model()->vocab_size();
  size_t longest = 0;
  for (const Tokens& s : sequences) longest = std::max(longest, s.size());
  TestPages pages(m.model, sequences, least_block(m) * (piece % 2 == 0 ? 1 : 2));
  nn::SequenceState state(pages.shape, m.type(), m.runtime);
  std::vector<std::vector<float>> logits(sequences.size());
  for (size_t begin = 0; begin < longest; begin += static_cast<size_t>(piece)) {
    Tokens tokens, positions;
    std::vector<nn::SequencePart> parts;
    std::vector<size_t> read;
    for (size_t b = 0; b < sequences.size(); ++b) {
      const Tokens& s = sequences[b];
      if (s.size() <= begin) continue;
      const size_t count = std::min(static_cast<size_t>(piece), s.size() - begin);
      parts.push_back(pages.part(b, static_cast<int64_t>(begin), static_cast<int64_t>(count)));
      read.push_back(b);
      for (size_t t = begin; t < begin + count; ++t) {
        tokens.push_back(s[t]);
        positions.push_back(static_cast<int32_t>(t));
      }
    }
    nn::Batch batch{.layout = {.sequences = 1, .length = std::ssize(tokens)},
                    .tokens = integers(m.runtime, tokens),
                    .positions = integers(m.runtime, positions)};
    batch.continuation = state.next(parts);
    Tape tape(m.runtime, Tape::Mode::infer);
    const Bundle out = models::forward(m.model, tape, {}, batch, models::Phase::evaluate);
    const std::vector<float> all = to_floats(m.model.loss_logits(tape, out));
    auto row = all.begin();
    for (size_t i = 0; i < read.size(); ++i) {
      const auto end = row + vocabulary * parts[i].count;
      logits[read[i]].insert(logits[read[i]].end(), row, end);
      row = end;
    }
  }
  return logits;
}

// Number of values that differ in any bit.
inline size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
  if (a.size() != b.size()) return std::max(a.size(), b.size());
  size_t count = 0;
  for (size_t i = 0; i < a.size(); ++i)
    count += std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]);
  return count;
}

// Returns `batch` sequences with lengths from 1 to `longest`, at least one of them with `longest`.
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

// For every piece, batch and length, the logits are bit-identical to those of one pass per
// sequence.
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
