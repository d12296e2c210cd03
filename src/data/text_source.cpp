#include "data/text_source.h"

#include "base/error.h"
#include "base/utf8.h"
#include "data/json_lines.h"
#include "data/text_cutter.h"

namespace megatron::data {

std::string read_whole_text(const std::string& path) {
  std::string text = InputFile(path).read_rest();
  MG_CHECK(is_utf8(text), "{} is not UTF-8 text; convert it (iconv -t UTF-8) or leave it out",
           path);
  return text;
}

TextSource::TextSource(const std::string& path, TextSourceOptions options)
    : options_(std::move(options)), files_(list_inputs({path}, options_.kind())) {
  for (const InputEntry& file : files_) total_bytes_ += file.bytes;
}

TextSource::~TextSource() = default;

bool TextSource::next(std::string& text, std::string& name) {
  std::vector<std::string> texts;
  if (!next(texts, name)) return false;
  text.clear();
  for (const std::string& part : texts) text += (text.empty() ? "" : " ") + part;
  return true;
}

bool TextSource::next(std::vector<std::string>& texts, std::string& name) {
  for (;;) {
    if (lines_ != nullptr || pieces_ != nullptr) {
      if (lines_ != nullptr ? next_line(texts, name) : next_piece(texts, name)) return true;
      bytes_before_ += files_[at_ - 1].bytes;
      lines_.reset();
      pieces_.reset();
    }
    if (at_ == files_.size()) return false;
    const InputEntry& file = files_[at_++];
    if (file.json_lines) {
      lines_ = std::make_unique<JsonLinesReader>(file.path, std::vector{options_.json_key});
      continue;
    }
    if (!options_.whole_files) {
      pieces_ = std::make_unique<TextCutter>(file.path);
      continue;
    }
    texts.assign(1, read_whole_text(file.path));
    bytes_before_ += file.bytes;
    name = file.path;
    return true;
  }
}

bool TextSource::next_line(std::vector<std::string>& texts, std::string& name) {
  JsonRecord record;
  if (!lines_->next(record)) return false;
  texts = std::move(record.values[0]);
  name = fmt::format("{}:{}", lines_->file().path(), record.line);
  return true;
}

bool TextSource::next_piece(std::vector<std::string>& texts, std::string& name) {
  texts.assign(1, "");
  int64_t line = 0;
  if (!pieces_->next(texts[0], line)) return false;
  name = fmt::format("{}:{}", pieces_->file().path(), line);
  MG_CHECK(is_utf8(texts[0]),
           "{}: the text from this line on is not UTF-8; convert it (iconv -t UTF-8) or leave the "
           "file out",
           name);
  return true;
}

int64_t TextSource::bytes_read() const {
  return bytes_before_ + (lines_ != nullptr    ? lines_->file().bytes_read()
                          : pieces_ != nullptr ? pieces_->file().bytes_read()
                                               : 0);
}

}  // namespace megatron::data
