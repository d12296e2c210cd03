#include "data/text_source.h"

#include <simdjson.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <set>

#include "base/error.h"
#include "data/json_lines.h"
#include "data/manual_pages.h"
#include "data/text_cutter.h"

namespace megatron::data {
namespace {

namespace fs = std::filesystem;

std::string_view without_gz(std::string_view path) {
  if (path.ends_with(".gz")) path.remove_suffix(3);
  return path;
}

bool holds_json_lines(std::string_view path) {
  path = without_gz(path);
  return path.ends_with(".jsonl") || path.ends_with(".json");
}

// name.1, name.3pm, name.n ...
bool named_like_manual_page(std::string_view path) {
  path = without_gz(path);
  const size_t dot = path.rfind('.');
  return dot != path.npos && dot + 1 < path.size() &&
         std::string_view("123456789lno").find(path[dot + 1]) != path.npos &&
         path.find('/', dot) == path.npos;
}

std::string utf8_from_latin1(std::string_view text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte >= 0x80) out += static_cast<char>(0xc0 | byte >> 6);
    out += byte < 0x80 ? c : static_cast<char>(0x80 | (byte & 0x3f));
  }
  return out;
}

}  // namespace

TextSource::TextSource(const std::string& path, TextSourceOptions options)
    : options_(std::move(options)) {
  struct stat status{};
  MG_CHECK(stat(path.c_str(), &status) == 0, "{} does not exist or cannot be read (--input)", path);
  if (S_ISDIR(status.st_mode)) {
    list(path);
    MG_CHECK(!files_.empty(), "{} holds no {} (--input)", path,
             options_.manual_pages ? "manual page" : "file");
  } else {
    MG_CHECK(
        !options_.manual_pages || !holds_json_lines(path),
        "{} is named like JSON records, and --input-format manpages reads troff sources; leave "
        "that flag out",
        path);
    files_.push_back({path, status.st_size});
  }
  for (const File& file : files_) total_bytes_ += file.bytes;
}

TextSource::~TextSource() = default;

void TextSource::list(const std::string& path) {
  std::vector<std::string> plain, links;
  std::error_code error;
  auto entries = fs::recursive_directory_iterator(path, error);
  for (; !error && entries != fs::recursive_directory_iterator(); entries.increment(error)) {
    const std::string entry = entries->path().string(), file = entries->path().filename().string();
    if (file.starts_with('.')) {
      entries.disable_recursion_pending();
      continue;
    }
    std::error_code unreadable;
    if (!entries->is_regular_file(unreadable))
      continue;  // follows links; a dangling one is no file
    if (options_.manual_pages && !named_like_manual_page(entry)) continue;
    (entries->is_symlink(unreadable) ? links : plain).push_back(entry);
  }
  MG_CHECK(!error, "cannot read the directory {}: {}", path, error.message());
  std::sort(plain.begin(), plain.end());
  std::sort(links.begin(), links.end());
  std::set<std::pair<dev_t, ino_t>> seen;
  for (const auto* group : {&plain, &links}) {
    for (const std::string& file : *group) {
      struct stat status{};
      if (stat(file.c_str(), &status) != 0 || !seen.emplace(status.st_dev, status.st_ino).second)
        continue;
      files_.push_back({file, status.st_size});
    }
  }
  std::sort(files_.begin(), files_.end(),
            [](const File& a, const File& b) { return a.path < b.path; });
}

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
    const File& file = files_[at_++];
    if (!options_.manual_pages && holds_json_lines(file.path)) {
      lines_ = std::make_unique<JsonLinesReader>(file.path, std::vector{options_.json_key});
      continue;
    }
    if (!options_.manual_pages && !options_.whole_files) {
      pieces_ = std::make_unique<TextCutter>(file.path);
      continue;
    }
    texts.assign(1, "");
    const bool found = read_whole(file, texts[0]);
    bytes_before_ += file.bytes;
    if (!found) continue;
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
  MG_CHECK(simdjson::validate_utf8(texts[0].data(), texts[0].size()),
           "{}: the text from this line on is not UTF-8; convert it (iconv -t UTF-8) or leave the "
           "file out",
           name);
  return true;
}

bool TextSource::read_whole(const File& file, std::string& text) {
  text = InputFile(file.path).rest();
  const bool valid = simdjson::validate_utf8(text.data(), text.size());
  if (options_.manual_pages) {
    text = strip_manual_page(valid ? text : utf8_from_latin1(text));
    return !text.empty();
  }
  MG_CHECK(valid, "{} is not UTF-8 text; convert it (iconv -t UTF-8) or leave it out", file.path);
  return true;
}

int64_t TextSource::bytes_read() const {
  return bytes_before_ + (lines_ != nullptr    ? lines_->file().bytes_read()
                          : pieces_ != nullptr ? pieces_->file().bytes_read()
                                               : 0);
}

}  // namespace megatron::data
