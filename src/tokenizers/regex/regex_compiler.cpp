#include <algorithm>
#include <optional>
#include <vector>

#include "tokenizers/regex/regex_program.h"

namespace megatron::tokenizers {
namespace {

constexpr size_t kMaximumCode = 4096;

struct TooMuch {};  // thrown above the program's limits

// Returns the set of a node that matches exactly one character of a set, else null.
const CharacterSet* single_set(const RegexNode& node) {
  if (node.kind == RegexNode::Kind::set) return &node.set;
  const bool wraps = node.kind == RegexNode::Kind::sequence || node.kind == RegexNode::Kind::atomic;
  return wraps && node.parts.size() == 1 ? single_set(node.parts[0]) : nullptr;
}

}  // namespace

// Compiles the syntax tree of a regular expression to a RegexProgram.
class RegexCompiler {
 public:
  std::optional<RegexProgram> compile(const RegexNode& pattern) {
    try {
      const Rest end{.can_be_empty = true, .always = true};
      if (pattern.kind == RegexNode::Kind::alternatives) {
        emit(pattern, end);
      } else {  // find starts at a choice
        const size_t choice = begin_choice();
        add_choice(choice, before(pattern, end));
        emit(pattern, end);
      }
      put(Op::accept);
    } catch (const TooMuch&) {
      return std::nullopt;
    }
    for (Instruction& i : code_) {  // jumps to the end accept at once
      if (i.op == Op::jump && code_[i.target].op == Op::accept) i.op = Op::accept;
    }
    RegexProgram::Choices& start = choices_[0];
    for (size_t i = 0; i < start.targets.size(); ++i) {
      if (is_straight(start.targets[i])) start.straight |= uint64_t{1} << i;
    }
    RegexProgram program(sets_);
    program.code_ = std::move(code_);
    program.choices_ = std::move(choices_);
    return program;
  }

 private:
  using Node = RegexNode;
  using Instruction = RegexProgram::Instruction;
  using Op = RegexProgram::Op;

  // Properties of the remainder of a match.
  struct Rest {
    CharacterSet first;         // characters that it can start with
    bool can_be_empty = false;  // it may match without looking at such a character
    bool always = false;        // it matches any text
  };

  Rest before(const std::vector<Node>& parts, size_t from, const Rest& rest) {
    Rest result = rest;
    for (size_t i = parts.size(); i > from; --i) result = before(parts[i - 1], result);
    return result;
  }

  Rest before(const Node& node, const Rest& rest) {
    switch (node.kind) {
      case RegexNode::Kind::set: return {.first = node.set};
      case RegexNode::Kind::sequence: return before(node.parts, 0, rest);
      case RegexNode::Kind::alternatives: {
        Rest all;
        for (const Node& part : node.parts) {
          const Rest one = before(part, rest);
          all.first.add(one.first);
          all.can_be_empty |= one.can_be_empty;
          all.always |= one.always;
        }
        return all;
      }
      case RegexNode::Kind::repeat: {
        if (node.maximum == 0) return rest;
        Rest body = before(node.parts[0], Rest{.can_be_empty = true});
        if (body.can_be_empty) throw TooMuch();  // would repeat an empty match
        if (node.minimum > 0) return {.first = std::move(body.first)};
        Rest all = rest;
        all.first.add(body.first);
        return all;
      }
      case RegexNode::Kind::atomic: {
        // Without backtracking, the rest may fail although another match exists.
        Rest inner = before(node.parts[0], rest);
        const bool possessive_run = node.parts[0].kind == RegexNode::Kind::repeat;
        inner.always &= possessive_run;
        return inner;
      }
      default: return {.first = CharacterSet(0, CharacterSet::kLast), .can_be_empty = true};
    }
  }

  Instruction& put(Op op) {
    if (code_.size() >= kMaximumCode) throw TooMuch();
    code_.emplace_back();
    code_.back().op = op;
    return code_.back();
  }

  uint32_t set_index(const CharacterSet& set) {
    const auto known = std::ranges::find(sets_, set);
    if (known != sets_.end()) return static_cast<uint32_t>(known - sets_.begin());
    if (sets_.size() == ClassTable::kMaximumClasses) throw TooMuch();
    sets_.push_back(set);
    return static_cast<uint32_t>(sets_.size() - 1);
  }

  size_t begin_choice() {
    put(Op::choose).target = static_cast<uint32_t>(choices_.size());
    choices_.emplace_back();
    return choices_.size() - 1;
  }

  // The alternative begins here.

  void add_choice(size_t choice, const Rest& alternative) {
    RegexProgram::Choices& choices = choices_[choice];
    if (choices.targets.size() == 64) throw TooMuch();
    const uint64_t bit = uint64_t{1} << choices.targets.size();
    choices.targets.push_back(here());
    for (size_t byte = 0; byte < 256; ++byte) {
      if (byte >= 0x80 && byte < 0xc2) continue;  // no character begins so
      const auto b = static_cast<char32_t>(byte);
      char32_t first = b, last = b;
      if (byte >= 0xf0) {
        first = (b & 7) << 18, last = first + 0x3ffff;
      } else if (byte >= 0xe0) {
        first = (b & 15) << 12, last = first + 0xfff;
      } else if (byte >= 0xc2) {
        first = (b & 31) << 6, last = first + 0x3f;
      }
      if (alternative.can_be_empty || alternative.first.intersects(CharacterSet(first, last)))
        choices.by_byte[byte] |= bit;
    }
    if (alternative.can_be_empty) choices.at_end |= bit;
  }

  void emit(const Node& node, const Rest& rest) {
    switch (node.kind) {
      case RegexNode::Kind::set: put(Op::one).set = set_index(node.set); return;
      case RegexNode::Kind::sequence:
        for (size_t i = 0; i < node.parts.size(); ++i)
          emit(node.parts[i], before(node.parts, i + 1, rest));
        return;
      case RegexNode::Kind::alternatives: {
        const size_t choice = begin_choice();
        std::vector<uint32_t> jumps;
        for (const Node& part : node.parts) {
          add_choice(choice, before(part, rest));
          emit(part, rest);
          jumps.push_back(here());
          put(Op::jump);
        }
        for (const uint32_t jump : jumps) code_[jump].target = here();
        return;
      }
      case RegexNode::Kind::repeat: return emit_repeat(node, rest);
      case RegexNode::Kind::look_ahead: return emit_look_ahead(node);
      case RegexNode::Kind::atomic: {
        const Node& inner = node.parts[0];
        const CharacterSet* set = inner.kind == RegexNode::Kind::repeat && inner.maximum > 0
                                      ? single_set(inner.parts[0])
                                      : nullptr;
        const Rest end{.can_be_empty = true, .always = true};
        if (set) return emit_set_repeat(inner, *set, end);
        const uint32_t start = here();
        put(Op::atomic);
        emit(inner, end);
        put(Op::accept);
        code_[start].target = here();
        return;
      }
      default: put(Op::anchor).anchor = node.kind;
    }
  }

  void emit_set_repeat(const Node& node, const CharacterSet& set, const Rest& rest) {
    const uint32_t index = set_index(set);
    Instruction& run = put(Op::run);
    run.set = index;
    run.minimum = node.minimum, run.maximum = node.maximum;
    run.gives_back = !rest.always && (rest.can_be_empty || rest.first.intersects(set));
    if (run.gives_back) return;
    if (run.minimum == 0 && run.maximum == 1) run.op = Op::optional;
    if (run.minimum <= 1 && run.maximum == Node::kEndless)
      run.op = run.minimum == 0 ? Op::star : Op::plus;
  }

  void emit_repeat(const Node& node, const Rest& rest) {
    if (node.maximum == 0) return;
    const Node& body = node.parts[0];
    if (const CharacterSet* set = single_set(body)) return emit_set_repeat(node, *set, rest);
    Node again = node;  // what may follow the first body
    again.minimum = node.minimum > 0 ? node.minimum - 1 : 0;
    if (node.maximum != Node::kEndless) again.maximum = node.maximum - 1;
    if (node.minimum > 0) {
      emit(body, before(again, rest));
      return emit_repeat(again, rest);
    }
    const uint32_t start = here();
    const size_t choice = begin_choice();
    const bool endless = node.maximum == Node::kEndless;
    const Rest next = before(endless ? node : again, rest);
    add_choice(choice, before(body, next));
    emit(body, next);
    if (endless) {
      put(Op::jump).target = start;
      add_choice(choice, rest);
      return;
    }
    emit_repeat(again, rest);
    const uint32_t jump = here();
    put(Op::jump);
    add_choice(choice, rest);
    code_[jump].target = here();
  }

  void emit_look_ahead(const Node& node) {
    if (const CharacterSet* set = single_set(node.parts[0])) {
      const uint32_t index = set_index(*set);
      Instruction& look = put(Op::look_set);
      look.set = index;
      look.negated = node.negated;
      return;
    }
    const uint32_t start = here();
    put(Op::look_ahead).negated = node.negated;
    emit(node.parts[0], Rest{.can_be_empty = true, .always = true});
    put(Op::accept);
    code_[start].target = here();
  }

  bool is_straight(uint32_t pc) const {
    for (;; ++pc) {
      const Instruction& i = code_[pc];
      if (i.op == Op::accept) return true;
      const bool simple = i.op == Op::one || i.op == Op::optional || i.op == Op::star ||
                          i.op == Op::plus || (i.op == Op::run && !i.gives_back) ||
                          i.op == Op::look_set;
      if (!simple) return false;
    }
  }

  uint32_t here() const { return static_cast<uint32_t>(code_.size()); }

  std::vector<CharacterSet> sets_;
  std::vector<Instruction> code_;
  std::vector<RegexProgram::Choices> choices_;
};

std::optional<RegexProgram> RegexProgram::compile(const RegexNode& pattern) {
  return RegexCompiler().compile(pattern);
}

}  // namespace megatron::tokenizers
