// Tables: the tbl preprocessor's language, laid out in columns of text.
#include <algorithm>
#include <cctype>

#include "data/troff/characters.h"
#include "data/troff/page.h"

namespace megatron::data::troff {
namespace {

constexpr int kGap = 3, kNarrowest = 16;
constexpr size_t kMaxColumns = 64;

struct Column {
  char kind = 'l';  // l, r, c, n, a, s (spanned), ^ (from above), - (rule)
};
using Format = std::vector<Column>;

struct Cell {
  std::vector<std::string> lines;  // as shown
  std::vector<std::string> block;  // source lines of T{ ... T}, still to be filled
  bool is_block = false;
};
struct Row {
  std::vector<Cell> cells;
  size_t format = 0;
  bool rule = false;
};

class Table {
 public:
  Table(const std::vector<std::string>& lines, Reader& reader, int width)
      : lines_(lines), reader_(reader), width_(width) {}

  std::vector<std::string> render() {
    options();
    formats();
    while (at_ < lines_.size()) row();
    measure();
    std::vector<std::string> out;
    for (const Row& row : rows_) print(row, out);
    return out;
  }

 private:
  void options() {
    if (at_ >= lines_.size() || lines_[at_].find(';') == std::string::npos) return;
    const std::string& line = lines_[at_++];
    const size_t tab = line.find("tab");
    const size_t open = tab == line.npos ? line.npos : line.find('(', tab);
    if (open != line.npos && open + 1 < line.size()) separator_ = line[open + 1];
  }

  void formats() {
    std::vector<Format> block;
    for (bool last = false; !last && at_ < lines_.size();) {
      std::string line = lines_[at_++];
      const size_t end = line.find_last_not_of(" \t");
      last = end != line.npos && line[end] == '.';
      size_t begin = 0;
      for (size_t i = 0; i <= line.size(); ++i) {
        if (i < line.size() && line[i] != ',') continue;
        Format format = parse_format(std::string_view(line).substr(begin, i - begin));
        if (!format.empty()) block.push_back(std::move(format));
        begin = i + 1;
      }
    }
    if (block.empty()) block.emplace_back(1);
    next_format_ = formats_.size();
    formats_.insert(formats_.end(), block.begin(), block.end());
  }

  static Format parse_format(std::string_view text) {
    Format format;
    for (size_t i = 0; i < text.size() && format.size() < kMaxColumns; ++i) {
      const char c = static_cast<char>(std::tolower(static_cast<unsigned char>(text[i])));
      if (c == '(') {  // of a modifier such as w(20)
        i = std::min(text.find(')', i), text.size());
      } else if (c == 'f' || c == 'm' || c == 'p' ||
                 c == 'v') {  // a font, macro or size of one or two characters
        if (i + 1 < text.size() && text[i + 1] != '(') ++i;
        if (c == 'f' && i + 1 < text.size() &&
            std::isupper(static_cast<unsigned char>(text[i + 1])) != 0 &&
            std::isupper(static_cast<unsigned char>(text[i])) != 0 && text[i] == 'C')
          ++i;
      } else if (c == '_' || c == '-' || c == '=') {
        format.push_back({'-'});
      } else if (std::string_view("lrcnas^").find(c) != std::string_view::npos) {
        format.push_back({c});
      }
    }
    return format;
  }

  void row() {
    const std::string& line = lines_[at_++];
    if (line.starts_with(".T&")) return formats();
    if (line.starts_with('.') && line.size() > 1 &&
        std::isalpha(static_cast<unsigned char>(line[1])) != 0)
      return;
    if (line.starts_with(".\\\"") || line.starts_with("'\\\"")) return;
    Row row;
    row.format = next_format_;
    if (line == "_" || line == "=") {
      row.rule = true;
      rows_.push_back(std::move(row));
      return;
    }
    if (next_format_ + 1 < formats_.size()) ++next_format_;
    std::string text = line;
    for (;;) {
      const size_t end = std::min(text.find(separator_), text.size());
      Cell cell;
      std::string_view content = std::string_view(text).substr(0, end);
      if (content == "T{") {
        cell.is_block = true;
        text = block(cell.block);  // what follows T}
        row.cells.push_back(std::move(cell));
        if (text.empty() || row.cells.size() >= kMaxColumns) break;
        text.erase(0, 1);
        continue;
      }
      if (content != "\\^") cell.lines.push_back(trimmed(reader_.expand(content)));
      row.cells.push_back(std::move(cell));
      if (end >= text.size() || row.cells.size() >= kMaxColumns) break;
      text.erase(0, end + 1);
    }
    rows_.push_back(std::move(row));
  }

  std::string block(std::vector<std::string>& lines) {
    while (at_ < lines_.size()) {
      const std::string& line = lines_[at_++];
      if (line.starts_with("T}")) return line.substr(2);
      lines.push_back(line);
    }
    return {};
  }

  static std::string trimmed(std::string text) {
    text.erase(text.find_last_not_of(" \t") + 1);
    return text.erase(0, text.find_first_not_of(" \t"));
  }

  char kind(const Row& row, size_t column) const {
    const Format& format = formats_[row.format];
    return column < format.size() ? format[column].kind : format.empty() ? 'l' : format.back().kind;
  }

  bool spans(const Row& row, size_t column) const {  // the cell runs on into the next column
    const Format& format = formats_[row.format];
    return column + 1 < format.size() && format[column + 1].kind == 's';
  }

  void measure() {
    size_t columns = 1;
    for (const Row& row : rows_) columns = std::max(columns, row.cells.size());
    widths_.assign(columns, 0);
    std::vector<bool> filled(columns);
    for (const Row& row : rows_) {
      for (size_t c = 0; c < row.cells.size(); ++c) {
        if (row.cells[c].is_block) filled[c] = true;
        if (spans(row, c)) continue;
        for (const std::string& line : row.cells[c].lines) {
          if (line != "_" && line != "=") widths_[c] = std::max(widths_[c], display_width(line));
        }
      }
    }
    int left = width_ - kGap * static_cast<int>(columns - 1), blocks = 0;
    for (size_t c = 0; c < columns; ++c) {
      if (filled[c]) ++blocks;
      else left -= widths_[c];
    }
    const int share = blocks == 0 ? 0 : std::max(left / blocks, kNarrowest);
    for (Row& row : rows_) {
      for (size_t c = 0; c < row.cells.size(); ++c) {
        if (row.cells[c].is_block)
          fill(row.cells[c], c + 1 == columns ? std::max(share, kNarrowest) : share);
        for (const std::string& line : row.cells[c].lines) {
          if (row.cells[c].is_block) widths_[c] = std::max(widths_[c], display_width(line));
        }
      }
    }
  }

  void fill(Cell& cell, int width) {
    Page page(reader_, width, 0);
    reader_.run(cell.block, page);
    const std::string text = page.take();
    for (size_t begin = 0; begin < text.size();) {
      const size_t end = std::min(text.find('\n', begin), text.size());
      cell.lines.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
  }

  int total_width() const {
    int total = kGap * static_cast<int>(widths_.size() - 1);
    for (const int width : widths_) total += width;
    return std::min(total, width_);
  }

  void print(const Row& row, std::vector<std::string>& out) const {
    if (row.rule) {
      out.push_back(std::string(static_cast<size_t>(std::max(total_width(), 1)), '-'));
      return;
    }
    size_t height = 1;
    for (const Cell& cell : row.cells) height = std::max(height, cell.lines.size());
    for (size_t h = 0; h < height; ++h) {
      std::string line;
      int column = 0;  // where the next cell starts
      for (size_t c = 0; c < row.cells.size(); ++c) {
        const auto& lines = row.cells[c].lines;
        std::string text = h < lines.size() ? lines[h] : std::string();
        if (text == "_" || text == "=") text = std::string(static_cast<size_t>(widths_[c]), '-');
        const int spare = widths_[c] - display_width(text);
        const char alignment = kind(row, c);
        const int shift = spare <= 0 || spans(row, c)            ? 0
                          : alignment == 'c'                     ? spare / 2
                          : alignment == 'r' || alignment == 'n' ? spare
                                                                 : 0;
        if (!text.empty()) {
          const int pad = std::max(column + shift - display_width(line), line.empty() ? 0 : 1);
          line += std::string(static_cast<size_t>(pad), ' ') + text;
        }
        column += widths_[c] + kGap;
      }
      out.push_back(line);
    }
  }

  const std::vector<std::string>& lines_;
  Reader& reader_;
  int width_;
  char separator_ = '\t';
  size_t at_ = 0, next_format_ = 0;
  std::vector<Format> formats_;
  std::vector<Row> rows_;
  std::vector<int> widths_;
};

}  // namespace

std::vector<std::string> render_table(const std::vector<std::string>& lines, Reader& reader,
                                      int width) {
  return Table(lines, reader, width).render();
}

}  // namespace megatron::data::troff
