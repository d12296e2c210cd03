// A BERT tokenizer of made-up words, for encoders with random weights.
#pragma once

#include <filesystem>
#include <fstream>
#include <string>

namespace megatron::testing {

// Writes `size` tokens to DIRECTORY/vocab.txt: [PAD], [UNK], [CLS], [SEP] and [MASK], then w5, w6,
// ... by their ids.
inline void write_word_vocabulary(const std::string& directory, int64_t size) {
  std::filesystem::create_directories(directory);
  std::ofstream file(directory + "/vocab.txt");
  file << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int64_t i = 5; i < size; ++i) file << "w" << i << "\n";
}

}  // namespace megatron::testing
