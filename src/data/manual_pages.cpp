#include "data/manual_pages.h"

#include <vector>

#include "data/troff/page.h"
#include "data/troff/reader.h"

namespace megatron::data {
namespace {

constexpr int kWidth = 78, kMargin = 7;

std::vector<std::string> split_lines(std::string_view source) {
  std::vector<std::string> lines;
  std::string line;
  for (const char c : source) {
    if (c == '\n') {
      lines.push_back(std::move(line));
      line.clear();
    } else if (static_cast<unsigned char>(c) >= 0x20 || c == '\t') {
      line += c;
    }
  }
  if (!line.empty()) lines.push_back(std::move(line));
  return lines;
}

}  // namespace

std::string strip_manual_page(std::string_view source) {
  troff::Reader reader(source.size());
  troff::Page page(reader, kWidth, kMargin);
  reader.run(split_lines(source), page);
  return page.take();
}

}  // namespace megatron::data
