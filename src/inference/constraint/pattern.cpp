#include "inference/constraint/pattern.h"

#include <span>

#include "base/error.h"
#include "base/shorten.h"
#include "base/utf8.h"

namespace megatron::inference {
namespace {

using tokenizers::CharacterSet;
using tokenizers::RegexNode;
using Kind = RegexNode::Kind;

constexpr size_t kMaximumBytes = 10'000;

class PatternCompiler {
 public:
  PatternCompiler(CharacterGraph& graph, std::string_view pattern)
      : graph_(graph), pattern_(pattern) {}

  // `node` is all of the pattern, or one of its alternatives; begins, ends: it is anchored there.
  void add_whole(const RegexNode& node, int32_t from, int32_t to, bool begins, bool ends) {
    if (node.kind == Kind::alternatives) {
      for (const RegexNode& part : node.parts) add_whole(part, from, to, begins, ends);
      return;
    }
    if (node.kind != Kind::sequence) {
      const RegexNode alone{.kind = Kind::sequence, .parts = {node}};
      return add_whole(alone, from, to, begins, ends);
    }
    std::span<const RegexNode> parts = node.parts;
    while (!parts.empty() && parts.front().kind == Kind::text_begin) {
      begins = true;
      parts = parts.subspan(1);
    }
    while (!parts.empty() && parts.back().kind == Kind::text_end) {
      ends = true;
      parts = parts.first(parts.size() - 1);
    }
    if (parts.size() == 1 && parts[0].kind != Kind::set && parts[0].kind != Kind::repeat &&
        parts[0].kind != Kind::text_begin && parts[0].kind != Kind::text_end)
      return add_whole(parts[0], from, to, begins, ends);
    if (!begins) from = add_anything(from);
    if (ends) return add_sequence(parts, from, to);
    const int32_t behind = graph_.add_state();
    add_sequence(parts, from, behind);
    graph_.add_empty(add_anything(behind), to);
  }

 private:
  // Adds edges that accept any text from `state`. Returns the state that follows.
  int32_t add_anything(int32_t state) {
    const int32_t loop = graph_.add_state();
    graph_.add_empty(state, loop);
    graph_.add_set(loop, loop, {0, CharacterSet::kLast});
    return loop;
  }

  void add_sequence(std::span<const RegexNode> parts, int32_t from, int32_t to) {
    for (const RegexNode& part : parts) {
      const int32_t next = graph_.add_state();
      add(part, from, next);
      from = next;
    }
    graph_.add_empty(from, to);
  }

  void add(const RegexNode& node, int32_t from, int32_t to) {
    switch (node.kind) {
      case Kind::set: return graph_.add_set(from, to, node.set);
      case Kind::sequence: return add_sequence(node.parts, from, to);
      case Kind::repeat: return add_repeat(node, from, to);
      case Kind::alternatives:
        for (const RegexNode& part : node.parts) add(part, from, to);
        return;
      default:
        fail(
            "the pattern '{}': ^ and $ are supported only at the ends of the pattern or of one of "
            "its alternatives",
            pattern_);
    }
  }

  void add_repeat(const RegexNode& node, int32_t from, int32_t to) {
    const RegexNode& part = node.parts[0];
    for (uint32_t i = 0; i < node.minimum; ++i) {
      const int32_t next = graph_.add_state();
      add(part, from, next);
      from = next;
    }
    if (node.maximum == RegexNode::kEndless) {
      const int32_t loop = graph_.add_state();
      graph_.add_empty(from, loop);
      add(part, loop, loop);
      graph_.add_empty(loop, to);
      return;
    }
    for (uint32_t i = node.minimum; i < node.maximum; ++i) {
      graph_.add_empty(from, to);
      const int32_t next = graph_.add_state();
      add(part, from, next);
      from = next;
    }
    graph_.add_empty(from, to);
  }

  CharacterGraph& graph_;
  std::string_view pattern_;
};

}  // namespace

RegexNode parse_pattern(std::string_view pattern) {
  check_utf8(pattern, "the pattern");
  try {
    if (pattern.size() > kMaximumBytes)
      throw tokenizers::RegexRefusal{
          0, fmt::format("it has {} bytes; the limit is {}", pattern.size(), kMaximumBytes)};
    return tokenizers::parse_regex(pattern, tokenizers::RegexSyntax::ecma_script);
  } catch (const tokenizers::RegexRefusal& refusal) {
    fail("the pattern '{}' at byte {}: {}", cut_short(pattern, 200), refusal.at, refusal.reason);
  }
}

CharacterGraph pattern_graph(std::string_view pattern, Matching matching) {
  const RegexNode node = parse_pattern(pattern);
  CharacterGraph graph;
  const bool whole = matching == Matching::whole;
  PatternCompiler(graph, pattern)
      .add_whole(node, CharacterGraph::kStart, CharacterGraph::kFinal, whole, whole);
  return graph;
}

void add_pattern(Network& network, int32_t from, int32_t to, std::string_view pattern,
                 Matching matching, Spelling spelling) {
  pattern_graph(pattern, matching).emit(network, from, to, spelling);
}

}  // namespace megatron::inference
