// The requests of troff that matter for plain text, and the man macros. Pages in mdoc go on to
// Mdoc.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/troff/layout.h"
#include "data/troff/reader.h"

namespace megatron::data::troff {

class Mdoc;

class Page : public Handler {
 public:
  // margin: column of ordinary text.
  Page(Reader& reader, int width, int margin);
  ~Page() override;

  void text(std::string_view line) override;
  void call(const std::string& name, const std::vector<std::string>& arguments) override;
  void table(const std::vector<std::string>& lines) override;
  std::string take() { return layout_.take(); }

  // For Mdoc.
  Layout& layout() { return layout_; }
  Reader& reader() { return reader_; }
  void set_fill(bool fill);
  void heading(std::string_view title, bool sub);
  int margin() const { return base_; }

 private:
  enum class Next { body, heading, subheading, tag };  // what the next text is

  using Arguments = std::vector<std::string>;
  bool request(const std::string& name, const Arguments& arguments);
  bool paragraph(const std::string& name, const Arguments& arguments);
  bool inline_macro(const std::string& name, const Arguments& arguments);
  void indent_request(const Arguments& arguments);
  void start_paragraph();  // back to the margin
  void space();            // distance between paragraphs
  void begin_tag(const Arguments& arguments, size_t width_at);
  void put_tag(std::string_view text);
  void relative(const Arguments& arguments, bool in);  // .RS and .RE

  Reader& reader_;
  Layout layout_;
  int base_, margin_, hang_, previous_indent_;
  bool fill_ = true, spaced_ = true, equation_ = false;
  int center_ = 0;
  Next next_ = Next::body;
  std::string tag_, url_;
  std::vector<std::pair<int, int>> margins_;  // of the enclosing .RS
  std::unique_ptr<Mdoc> mdoc_;
};

// The lines of a tbl table, as text of at most `width` columns where that is possible.
std::vector<std::string> render_table(const std::vector<std::string>& lines, Reader& reader,
                                      int width);

}  // namespace megatron::data::troff
