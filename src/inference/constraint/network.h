// A grammar over bytes: a recursive transition network (Woods, 1970). States are joined by edges
// that read a byte, by empty edges, and by calls, which read any text of a rule.
#pragma once

#include <bitset>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace megatron::inference {

// Thrown if a grammar exceeds its budget of states, edges or steps.
class GrammarLimit : public Error {
 public:
  using Error::Error;
};

class Network {
 public:
  using Bytes = std::bitset<256>;
  static constexpr int32_t kMaximumStates = 400'000;
  static constexpr size_t kMaximumEdges = 2'000'000;  // limit for edges of all kinds together

  struct Edge {
    int32_t from, to;
    uint8_t first, last;  // bytes in [first, last]
  };
  struct Empty {
    int32_t from, to;
  };
  struct Call {
    int32_t from, rule, after;
  };
  struct Rule {
    int32_t start, final;
  };

  Network();  // with rule 0, the whole text

  // Throws GrammarLimit above kMaximumStates; the functions that add edges throw it above
  // kMaximumEdges.
  int32_t add_state();
  // A rule must read at least one byte before it calls another rule or ends, so that no rule calls
  // itself without reading. Rule 0 is exempt.
  int32_t add_rule();
  void add_bytes(int32_t from, int32_t to, uint8_t first, uint8_t last);
  void add_text(int32_t from, int32_t to, std::string_view text);  // exactly these bytes
  void add_empty(int32_t from, int32_t to);
  void add_call(int32_t from, int32_t to, int32_t rule);

  int32_t states() const { return states_; }
  const std::vector<Rule>& rules() const { return rules_; }
  const std::vector<Edge>& edges() const { return edges_; }
  const std::vector<Empty>& empties() const { return empties_; }
  const std::vector<Call>& calls() const { return calls_; }

  size_t bytes() const;  // bytes of memory

  // Returns, for each state, whether a text of `allowed` bytes leads from it to the end of its
  // rule.
  std::vector<bool> live(const Bytes& allowed) const;

 private:
  void check_edges() const;

  int32_t states_ = 0;
  std::vector<Rule> rules_;
  std::vector<Edge> edges_;
  std::vector<Empty> empties_;
  std::vector<Call> calls_;
};

// Lists by key: the list of `key` is [begin[key], begin[key + 1]) of `items`.
template <class T>
struct Grouped {
  std::vector<uint32_t> begin;
  std::vector<T> items;

  template <class KeyOf>
  Grouped(size_t keys, const std::vector<T>& all, KeyOf&& key_of) : begin(keys + 1) {
    for (const T& item : all) ++begin[static_cast<size_t>(key_of(item)) + 1];
    for (size_t i = 0; i < keys; ++i) begin[i + 1] += begin[i];
    std::vector<uint32_t> next(begin.begin(), begin.end() - 1);
    items.resize(all.size());
    for (const T& item : all) items[next[static_cast<size_t>(key_of(item))]++] = item;
  }
  Grouped() = default;
  size_t bytes() const { return 4 * begin.capacity() + sizeof(T) * items.capacity(); }

  struct View {
    const T *first, *last;
    const T* begin() const { return first; }
    const T* end() const { return last; }
    bool empty() const { return first == last; }
  };
  View operator[](int32_t key) const {
    const auto k = static_cast<size_t>(key);
    return {items.data() + begin[k], items.data() + begin[k + 1]};
  }
};

}  // namespace megatron::inference
