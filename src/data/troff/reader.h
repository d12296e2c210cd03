// The language level of troff: comments, continued lines, conditions, strings, registers, macros
// defined by the page, and escapes. What is left goes to a handler: lines of text and calls of
// requests and macros.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace megatron::data::troff {

class Handler {
 public:
  virtual ~Handler() = default;
  virtual void text(std::string_view line) = 0;  // escapes are expanded (characters.h)
  virtual void call(const std::string& name, const std::vector<std::string>& arguments) = 0;
  virtual void table(
      const std::vector<std::string>& lines) = 0;  // between .TS and .TE; escapes as they are
};

class Reader {
 public:
  explicit Reader(size_t source_bytes)
      : budget_(static_cast<int64_t>(16 * source_bytes) + (1 << 20)) {}

  void run(const std::vector<std::string>& lines, Handler& handler);
  // Text with every escape expanded to characters and markers.
  std::string expand(std::string_view text);
  void set_register(const std::string& name, int64_t value) { registers_[name] = value; }
  // A number of columns: "4", "0.5i", "\\w'text'+2n".
  int columns(std::string_view text) { return static_cast<int>(number(text)); }

 private:
  struct Cursor {
    const std::vector<std::string>& lines;
    size_t at = 0;
  };
  bool next_line(Cursor& cursor, std::string& line);
  void process(std::string_view line, Cursor& cursor, Handler& handler);
  void control(std::string_view line, Cursor& cursor, Handler& handler);
  bool define(const std::string& name, std::string_view rest, Cursor& cursor);
  void define_macro(std::string_view rest, Cursor& cursor, bool append);
  void skip_until(Cursor& cursor, const std::string& end, std::vector<std::string>* kept);
  void conditional(const std::string& name, std::string_view rest, Cursor& cursor,
                   Handler& handler);
  bool condition(std::string_view& rest);
  void call_macro(const std::vector<std::string>& body, const std::vector<std::string>& arguments,
                  Handler& handler);
  void set_register(std::string_view rest);
  void set_string(std::string_view rest, bool append);
  void set_translation(std::string_view rest);

  std::string interpolate(std::string_view text, int depth = 0);  // \*x, \nx, \$1
  int64_t register_value(const std::string& name) const;
  int64_t number(std::string_view& text, int depth = 0);  // numeric expression, left to right
  size_t expand_one(std::string_view text, size_t at, std::string& out);

  std::map<std::string, std::string, std::less<>> strings_ = {
      {"R", "\\(rg"},  {"Tm", "\\(tm"}, {"lp", "("},     {"rp", ")"},     {"lq", "\\(lq"},
      {"rq", "\\(rq"}, {"Lq", "\\(lq"}, {"Rq", "\\(rq"}, {"S", ""},       {"Px", "POSIX"},
      {"Ai", "ANSI"},  {"q", "\""},     {"Aq", "'"},     {"Lt", "<"},     {"Gt", ">"},
      {"Le", "\\(<="}, {"Ge", "\\(>="}, {"Pi", "\\(*p"}, {"Ne", "\\(!="}, {"Pm", "\\(+-"},
      {"If", "\\(if"}, {"Am", "&"},     {"Ba", "|"},     {"Na", "NaN"}};
  std::map<std::string, int64_t, std::less<>> registers_;
  std::map<std::string, std::vector<std::string>, std::less<>> macros_;
  std::map<std::string, std::string> translations_;  // .tr, by character
  std::vector<std::string> arguments_;               // of the macro that is running
  std::vector<bool> else_;                           // outcomes of .ie that wait for .el
  int depth_ = 0;
  int64_t budget_;  // bytes that may still be read
};

// Splits at spaces; "..." keeps them, "" inside stands for one quotation mark.
std::vector<std::string> split_arguments(std::string_view text);

}  // namespace megatron::data::troff
