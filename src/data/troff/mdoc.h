// The mdoc macros: semantic markup of BSD manual pages.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace megatron::data::troff {

class Page;

class Mdoc {
 public:
  explicit Mdoc(Page& page) : page_(page) {}
  void call(const std::string& name, const std::vector<std::string>& arguments);

 private:
  using Words = std::vector<std::string>;
  // One line of output: words with the spaces that mdoc puts between them.
  struct Line {
    std::string text;
    bool glue = false;    // nothing before the next word
    bool opened = false;  // something was added
    bool spacing = true;  // .Sm
    void add(std::string_view word);
    void attach(std::string_view word);  // without a space before it
  };
  struct List {
    std::string kind;
    int base = 0, width = 0, number = 0;
    bool compact = false;
    std::vector<int> columns;
  };

  bool block(const std::string& name, const Words& words);
  void begin_list(const Words& words);
  void item(const Words& words);
  void head(std::string text);  // the head of an item
  void display(const Words& words);
  void reference_part(const std::string& name, const Words& words);
  Line new_line() const;
  void put(const Line& line);

  void render(const Words& words, size_t at, size_t end, Line& line);
  size_t apply(const std::string& macro, const Words& words, size_t at, size_t end, Line& line);
  void plain(std::string_view word, Line& line);
  size_t function(const Words& words, size_t at, size_t end, Line& line);
  bool system_name(const std::string& macro, const Words& words, size_t at, size_t end, Line& line);
  std::string render_all(const Words& words, size_t at = 0);

  Page& page_;
  std::string name_, section_;
  std::vector<List> lists_;
  std::vector<int> displays_;  // indents to return to
  bool in_function_ = false, first_argument_ = true;
  bool spacing_ = true, unspaced_ = false;  // .Sm off; and something was put since
  bool collecting_ = false;                 // an item's head goes on over several lines (Xo ... Xc)
  std::string head_;
};

}  // namespace megatron::data::troff
