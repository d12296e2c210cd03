// Lines of a page: fills words into lines of a given width behind an indent, ragged on the right.
#pragma once

#include <string>
#include <string_view>

namespace megatron::data::troff {

class Layout {
 public:
  explicit Layout(int width) : width_(width) {}

  void set_indent(int columns) { indent_ = columns < 0 ? 0 : columns; }
  int indent() const { return indent_; }
  int width() const { return width_; }

  void fill(std::string_view text);  // words, after what the line holds
  void line(std::string_view text);  // one line as it is, tabs every 8 columns
  void tag(std::string_view text, int column,
           int body);         // at `column`; the body starts at `body`, on this line if it fits
  void begin_at(int column);  // the next line starts there
  void flush();               // ends the line
  void blank();               // ends the line; one empty line, not at the top or after a heading
  void heading(std::string_view text, int column);
  bool at_line_start() const { return line_.empty(); }

  std::string take();  // all lines; no blank ones at the end

 private:
  void begin_line();
  void emit();

  int width_, indent_ = 0;
  std::string out_, line_, prefix_;
  bool has_prefix_ = false, joined_ = false, after_word_ = false, after_heading_ = true;
};

}  // namespace megatron::data::troff
