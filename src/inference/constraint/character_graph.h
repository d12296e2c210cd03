// A set of texts as a nondeterministic automaton whose edges read characters, so that several
// conditions on one text can hold together.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string_view>
#include <vector>

#include "inference/constraint/characters.h"

namespace megatron::inference {

class CharacterGraph {
 public:
  using CharacterSet = tokenizers::CharacterSet;
  static constexpr int32_t kStart = 0, kFinal = 1;
  static constexpr size_t kMaximumStates = 400'000;
  static constexpr size_t kMaximumSteps = 4'000'000;  // limit for intersections

  CharacterGraph() : edges_(2), empties_(2) {}
  // The complement: all texts but these.
  static CharacterGraph all_but(std::span<const std::string_view> texts);
  // The texts that all graphs accept, with at least `minimum` and at most `maximum` characters (-1:
  // no limit). Adds its work to `steps`. Throws GrammarLimit if that exceeds kMaximumSteps.
  static CharacterGraph intersection(std::span<const CharacterGraph> graphs, int64_t minimum,
                                     int64_t maximum, size_t& steps);

  int32_t add_state();  // throws GrammarLimit above kMaximumStates
  void add_set(int32_t from, int32_t to, const CharacterSet& set);
  void add_empty(int32_t from, int32_t to);

  size_t states() const { return edges_.size(); }
  // Adds its work to `steps`.
  bool contains(std::string_view text, size_t& steps) const;
  // Adds the same texts, as bytes, to `network`.
  void emit(Network& network, int32_t from, int32_t to, Spelling spelling) const;

 private:
  struct Edge {
    int32_t to;
    uint32_t set;
  };
  struct Before {
    bool operator()(const CharacterSet& a, const CharacterSet& b) const;
  };
  class Product;

  // Returns `states` and all states reachable from them over empty edges, in ascending order.
  std::vector<int32_t> closure(std::vector<int32_t> states) const;

  std::vector<std::vector<Edge>> edges_;       // by state
  std::vector<std::vector<int32_t>> empties_;  // by state
  std::vector<CharacterSet> sets_;
  std::vector<uint32_t> uses_;  // number of edges that use each set
  std::map<CharacterSet, uint32_t, Before> known_;
};

}  // namespace megatron::inference
