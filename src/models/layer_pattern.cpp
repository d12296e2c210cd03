#include "models/layer_pattern.h"

#include <charconv>

#include "base/error.h"

namespace megatron::models {
namespace {

// sum = product { "+" product };  product = ( list | "(" sum ")" ) { "*" number };  list = "["
// numbers "]"
class Parser {
 public:
  Parser(std::string_view flag, std::string_view text, int64_t most)
      : flag_(flag), text_(text), most_(most) {}

  std::vector<int64_t> all() {
    std::vector<int64_t> values = sum(0);
    if (at_ != text_.size()) wrong("nothing more");
    return values;
  }

 private:
  [[noreturn]] void wrong(std::string_view wanted) const {
    fail("--{} is '{}'; at character {} expected {}, as in \"([0]*3+[1]*5)\"", flag_, text_,
         at_ + 1, wanted);
  }
  void skip_spaces() {
    while (at_ < text_.size() && text_[at_] == ' ') ++at_;
  }
  bool take(char c) {
    skip_spaces();
    if (at_ == text_.size() || text_[at_] != c) return false;
    ++at_;
    skip_spaces();
    return true;
  }
  void check_size(size_t size) const {
    MG_CHECK(static_cast<int64_t>(size) <= most_,
             "--{} is '{}', which lists more numbers than the model's {} layers", flag_, text_,
             most_);
  }
  int64_t number() {
    skip_spaces();
    int64_t value = 0;
    const auto [end, error] =
        std::from_chars(text_.data() + at_, text_.data() + text_.size(), value);
    if (error != std::errc()) wrong("a whole number");
    at_ = static_cast<size_t>(end - text_.data());
    return value;
  }
  std::vector<int64_t> sum(int depth) {
    if (depth > 32) wrong("fewer parentheses");
    std::vector<int64_t> values = product(depth);
    while (take('+')) {
      const std::vector<int64_t> more = product(depth);
      values.insert(values.end(), more.begin(), more.end());
      check_size(values.size());
    }
    return values;
  }
  std::vector<int64_t> product(int depth) {
    std::vector<int64_t> values;
    if (take('(')) {
      values = sum(depth + 1);
      if (!take(')')) wrong("')'");
    } else if (take('[')) {
      values.push_back(number());
      while (take(',')) values.push_back(number());
      if (!take(']')) wrong("']'");
    } else {
      wrong("'[' or '('");
    }
    while (take('*')) values = repeated(values, number());
    return values;
  }
  std::vector<int64_t> repeated(const std::vector<int64_t>& values, int64_t times) const {
    MG_CHECK(times >= 0, "--{} is '{}': a list cannot be repeated {} times", flag_, text_, times);
    std::vector<int64_t> all;
    for (int64_t i = 0; i < times && !values.empty(); ++i) {
      all.insert(all.end(), values.begin(), values.end());
      check_size(all.size());
    }
    return all;
  }

  std::string_view flag_, text_;
  int64_t most_;
  size_t at_ = 0;
};

}  // namespace

std::vector<bool> layer_pattern(std::string_view flag, const std::string& text, int64_t layers,
                                bool every_nth) {
  std::vector<bool> pattern;
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error == std::errc() && end == text.data() + text.size()) {
    MG_CHECK(n > 0, "--{} is {}; it must be 1 or more", flag, n);
    for (int64_t i = 0; i < layers; ++i) pattern.push_back(((i + 1) % n == 0) == every_nth);
    return pattern;
  }
  const std::vector<int64_t> list = Parser(flag, text, layers).all();
  MG_CHECK(std::ssize(list) == layers, "--{} is '{}', which lists {} layers; --num-layers is {}",
           flag, text, list.size(), layers);
  for (const int64_t value : list) {
    MG_CHECK(value == 0 || value == 1, "--{} is '{}'; each number must be 0 or 1, not {}", flag,
             text, value);
    pattern.push_back(value == 1);
  }
  return pattern;
}

}  // namespace megatron::models
