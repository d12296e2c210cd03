#include "tokenizers/models/prefix_trie.h"

#include <algorithm>

namespace megatron::tokenizers {
namespace {

// Tokens [begin, end) of the sorted list share their first `depth` bytes.
struct Group {
  size_t begin, end, depth;
  size_t node;
};

}  // namespace

PrefixTrie::PrefixTrie(const Vocabulary& vocabulary) {
  std::vector<std::pair<std::string_view, int32_t>> tokens;
  for (int32_t id = 0; id < vocabulary.size(); ++id) {
    if (vocabulary.contains(id) && !vocabulary.text(id).empty())
      tokens.emplace_back(vocabulary.text(id), id);
  }
  std::ranges::sort(tokens);
  first_.fill(-1);
  nodes_.emplace_back();  // the root
  std::vector<Group> groups{{0, tokens.size(), 0, 0}};
  for (size_t g = 0; g < groups.size(); ++g) {  // by depth, so that children are adjacent
    Group group = groups[g];
    if (group.begin < group.end && tokens[group.begin].first.size() == group.depth)
      nodes_[group.node].id = tokens[group.begin++].second;
    nodes_[group.node].children = static_cast<int32_t>(nodes_.size());
    for (size_t begin = group.begin; begin < group.end;) {
      const char byte = tokens[begin].first[group.depth];
      size_t end = begin;
      while (end < group.end && tokens[end].first[group.depth] == byte) ++end;
      groups.push_back({begin, end, group.depth + 1, nodes_.size()});
      nodes_.push_back({.byte = static_cast<unsigned char>(byte)});
      ++nodes_[group.node].child_count;
      begin = end;
    }
  }
  for (int byte = 0; byte < 256; ++byte)
    first_[static_cast<size_t>(byte)] = child(nodes_[0], static_cast<unsigned char>(byte));
}

int32_t PrefixTrie::child(const Node& node, unsigned char byte) const {
  const auto begin = nodes_.begin() + node.children, end = begin + node.child_count;
  const auto found =
      std::lower_bound(begin, end, byte, [](const Node& n, unsigned char b) { return n.byte < b; });
  return found != end && found->byte == byte ? static_cast<int32_t>(found - nodes_.begin()) : -1;
}

}  // namespace megatron::tokenizers
