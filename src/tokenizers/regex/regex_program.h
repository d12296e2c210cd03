// A regular expression compiled for splitting text: backtracking, the first matching alternative
// wins (Perl's semantics), with shortcuts that make split patterns linear. The first byte
// determines which alternatives can match; a run of one class is never given back if what follows
// cannot use it.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "base/utf8.h"
#include "tokenizers/regex/regex.h"
#include "tokenizers/regex/regex_syntax.h"

namespace megatron::tokenizers {

// The character classes of one pattern: one bit per class for each character.
class ClassTable {
 public:
  static constexpr size_t kMaximumClasses = 32;

  explicit ClassTable(const std::vector<CharacterSet>& sets);

  // Returns the end of the run of characters of a class that starts at `at`, in valid UTF-8.
  const char* run_end(size_t set, const char* at, const char* end) const {
    const std::array<bool, 256>& ascii = ascii_[set];
    for (;;) {
      while (at < end && ascii[static_cast<unsigned char>(*at)]) ++at;
      if (at == end || static_cast<unsigned char>(*at) < 0x80 || !holds_wide(set, at)) return at;
      at += width(at);
    }
  }
  bool holds(size_t set, const char* at) const {
    return static_cast<unsigned char>(*at) < 0x80 ? ascii_[set][static_cast<unsigned char>(*at)]
                                                  : holds_wide(set, at);
  }
  static size_t width(const char* at) { return static_cast<size_t>(character_size(*at)); }

 private:
  static constexpr size_t kBlock = 128;
  bool holds_wide(size_t set, const char* at) const;

  std::vector<std::array<bool, 256>> ascii_;  // by class; false from 0x80
  std::vector<uint16_t> block_of_;            // by character / kBlock
  std::vector<std::array<uint32_t, kBlock>> blocks_;
};

struct RegexState;  // backtracking state, in regex_state.h

class RegexProgram {
 public:
  // Returns nullopt if the pattern exceeds the limits on classes, alternatives or instructions, or
  // repeats a group that can match the empty text.
  static std::optional<RegexProgram> compile(const RegexNode& pattern);

  // Like Regex::find. Returns false and sets state.exhausted if it took too many steps.
  bool find(std::string_view text, size_t from, Regex::Match& match, RegexState& state) const;

 private:
  friend class RegexCompiler;
  enum class Op : uint8_t {
    one,         // one character of `set`
    optional,    // none or one, possessive
    star,        // any number, possessive
    plus,        // one or more, possessive
    run,         // minimum to maximum
    choose,      // the alternatives of choices_[target]
    jump,        // to target
    look_set,    // whether the next character is one of `set` (negated: is not, or there is none)
    look_ahead,  // whether the program at pc + 1 matches (negated: does not); continues at target
    atomic,      // the program at pc + 1 must match; continues after its match at target
    anchor,      // whether `anchor` holds
    accept,
  };
  struct Instruction {
    Op op = Op::accept;
    bool negated = false, gives_back = false;
    RegexNode::Kind anchor = RegexNode::Kind::text_begin;
    uint32_t set = 0, minimum = 0, maximum = 0, target = 0;
  };
  struct Choices {
    std::vector<uint32_t> targets;
    std::array<uint64_t, 256> by_byte{};  // alternatives that can start with each byte
    uint64_t at_end = 0;                  // alternatives that can match the empty text
    uint64_t straight = 0;                // alternatives that never backtrack internally
  };

  explicit RegexProgram(const std::vector<CharacterSet>& sets) : classes_(sets) {}
  bool match_at(std::string_view text, size_t at, size_t& end, RegexState& state) const;
  bool run_straight(uint32_t pc, const char*& at, const char* end) const;
  bool run(uint32_t pc, std::string_view text, size_t at, size_t& end, RegexState& state) const;
  bool resume(size_t base, std::string_view text, uint32_t& pc, const char*& at,
              RegexState& state) const;
  const char* run_of(const Instruction& i, const char* at, const char* end,
                     const char*& least) const;
  static bool holds_anchor(RegexNode::Kind anchor, std::string_view text, size_t at);

  ClassTable classes_;
  std::vector<Instruction> code_;
  std::vector<Choices> choices_;
};

}  // namespace megatron::tokenizers
