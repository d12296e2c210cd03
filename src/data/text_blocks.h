// The documents of many inputs as blocks of approximately a fixed size, so that threads can share
// the work: one reads blocks, others parse them. text_source.h describes the inputs.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "data/input_file.h"
#include "data/input_list.h"
#include "data/text_source.h"

namespace megatron::data {

class TextCutter;

// Whole documents of one file.
struct TextBlock {
  struct Piece {
    std::string text;  // not checked to be UTF-8
    int64_t line = 0;  // line number in the file, from 1; 0: the whole file
  };
  std::string path;
  bool json_lines = false;
  LineBlock lines;            // if json_lines: one document per non-blank line
  std::vector<Piece> pieces;  // if not json_lines
  // Number of lines (including blank ones) and pieces before this block, in all files: it
  // determines the partition to which a document is assigned.
  int64_t first_record = 0;
  int64_t text_bytes = 0;  // of this block, decompressed
};

class TextBlocks {
 public:
  // Throws Error like list_inputs. json_key of the options is not used.
  TextBlocks(const std::vector<std::string>& inputs, TextSourceOptions options);
  ~TextBlocks();

  // Reads the next block, of about `bytes`, more only for a longer document. Returns false at the
  // end. Throws Error naming a file that cannot be read.
  bool next(TextBlock& block, size_t bytes);

  int64_t bytes_read() const;                           // out of total_bytes(), for progress
  int64_t total_bytes() const { return total_bytes_; }  // size of the files on disk

 private:
  bool next_lines(TextBlock& block, size_t bytes);
  bool next_pieces(TextBlock& block, size_t bytes);
  void next_whole_file(TextBlock& block);

  TextSourceOptions options_;
  std::vector<InputEntry> files_;
  size_t at_ = 0;                     // next file to open
  std::unique_ptr<InputFile> lines_;  // the open file: at most one of the two
  std::unique_ptr<TextCutter> pieces_;
  int64_t bytes_before_ = 0, total_bytes_ = 0, records_ = 0;
};

}  // namespace megatron::data
