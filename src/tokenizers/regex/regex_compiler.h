// Compiles the syntax tree of a regular expression to a RegexProgram.
#pragma once

#include <optional>
#include <vector>

#include "tokenizers/regex/regex_program.h"

namespace megatron::tokenizers {

class RegexCompiler {
 public:
  std::optional<RegexProgram> compile(const RegexNode& pattern);

 private:
  using Node = RegexNode;
  using Instruction = RegexProgram::Instruction;
  using Op = RegexProgram::Op;

  // What is known about the remainder of a match.
  struct Rest {
    CharacterSet first;         // characters that it can start with
    bool can_be_empty = false;  // it may match without looking at such a character
    bool always = false;        // it matches whatever the text
  };

  Rest before(const Node& node, const Rest& rest);
  Rest before(const std::vector<Node>& parts, size_t from, const Rest& rest);
  void emit(const Node& node, const Rest& rest);
  void emit_repeat(const Node& node, const Rest& rest);
  void emit_set_repeat(const Node& node, const CharacterSet& set, const Rest& rest);
  void emit_look_ahead(const Node& node);
  // Begins a choice, whose alternatives are added by add_choice.
  size_t begin_choice();
  void add_choice(size_t choice, const Rest& alternative);
  bool is_straight(uint32_t pc) const;
  uint32_t set_index(const CharacterSet& set);
  Instruction& put(Op op);
  uint32_t here() const { return static_cast<uint32_t>(code_.size()); }

  std::vector<CharacterSet> sets_;
  std::vector<Instruction> code_;
  std::vector<RegexProgram::Choices> choices_;
};

}  // namespace megatron::tokenizers
