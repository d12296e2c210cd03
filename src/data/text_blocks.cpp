#include "data/text_blocks.h"

#include "data/text_cutter.h"

namespace megatron::data {

TextBlocks::TextBlocks(const std::vector<std::string>& inputs, TextSourceOptions options)
    : options_(std::move(options)), files_(list_inputs(inputs, options_.kind())) {
  for (const InputEntry& file : files_) total_bytes_ += file.bytes;
}

TextBlocks::~TextBlocks() = default;

bool TextBlocks::next(TextBlock& block, size_t bytes) {
  block.pieces.clear();
  block.text_bytes = 0;
  block.first_record = records_;
  for (;;) {
    if (lines_ != nullptr && next_lines(block, bytes)) return true;
    if (pieces_ != nullptr && next_pieces(block, bytes)) return true;
    if (lines_ != nullptr || pieces_ != nullptr) {
      bytes_before_ += files_[at_ - 1].bytes;
      lines_.reset();
      pieces_.reset();
    }
    if (at_ == files_.size()) return false;
    const InputEntry& file = files_[at_];
    if (!file.json_lines && options_.whole_files) {
      next_whole_file(block);
      return true;
    }
    ++at_;
    if (file.json_lines) {
      lines_ = std::make_unique<InputFile>(file.path);
    } else {
      pieces_ = std::make_unique<TextCutter>(file.path);
    }
  }
}

bool TextBlocks::next_lines(TextBlock& block, size_t bytes) {
  if (!lines_->next_block(block.lines, bytes)) return false;
  block.path = lines_->path();
  block.json_lines = true;
  block.text_bytes = static_cast<int64_t>(block.lines.text().size());
  records_ += block.lines.line_count();
  return true;
}

bool TextBlocks::next_pieces(TextBlock& block, size_t bytes) {
  block.path = pieces_->file().path();
  block.json_lines = false;
  TextBlock::Piece piece;
  while (block.text_bytes < static_cast<int64_t>(bytes) && pieces_->next(piece.text, piece.line)) {
    block.text_bytes += static_cast<int64_t>(piece.text.size());
    block.pieces.push_back(std::move(piece));
  }
  records_ += static_cast<int64_t>(block.pieces.size());
  return !block.pieces.empty();
}

// One file per block, so that an error can name it.
void TextBlocks::next_whole_file(TextBlock& block) {
  const InputEntry& file = files_[at_++];
  block.path = file.path;
  block.json_lines = false;
  TextBlock::Piece piece;
  piece.text = read_whole_text(file.path);
  bytes_before_ += file.bytes;
  block.text_bytes = static_cast<int64_t>(piece.text.size());
  block.pieces.push_back(std::move(piece));
  ++records_;
}

int64_t TextBlocks::bytes_read() const {
  return bytes_before_ + (lines_ != nullptr    ? lines_->bytes_read()
                          : pieces_ != nullptr ? pieces_->file().bytes_read()
                                               : 0);
}

}  // namespace megatron::data
