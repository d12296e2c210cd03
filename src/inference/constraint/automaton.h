// A Network over the tokens of one tokenizer, made deterministic lazily.
//
// A position in a grammar ("frontier") is a set of pairs (state, frame): what may come next, and
// where to continue after the rule that the state belongs to. A frame is also a set of pairs
// (state, frame): all callers that enter a rule at the same byte share one, so that an ambiguous
// grammar needs only polynomially many positions (a graph-structured stack; Tomita, 1985). Both are
// interned by their content. Frontiers, their successors and masks are cached.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include "inference/constraint/interned_lists.h"
#include "inference/constraint/network.h"
#include "inference/constraint/token_bytes.h"

namespace megatron::inference {

// Members may be called by many threads at once; calls wait for each other.
class Automaton {
 public:
  using Frontier = int32_t;

  // Bytes that are not tokens by themselves are removed from the grammar, so that every allowed
  // text can be completed. Throws Error if nothing is left.
  Automaton(const Network& network, std::shared_ptr<const TokenBytes> tokens);

  Frontier start() const { return start_; }
  // Sets mask to the tokens that may come next. Throws Error if that takes more work than
  // kMaximumWork.
  void allowed(Frontier frontier, std::span<uint64_t> mask, bool& complete);
  // Returns the frontier after a token, or -1 if the token is not allowed.
  Frontier accept(Frontier frontier, int32_t token);
  bool complete(Frontier frontier) const;
  bool must_end(Frontier frontier) const;  // complete, and nothing may follow

  // True if the automaton remembers so much that a new one should replace it; adopt() translates a
  // frontier of `other`, an automaton of the same network and tokens.
  bool is_full() const;
  size_t bytes() const;  // approximate bytes of memory
  Frontier adopt(const Automaton& other, Frontier frontier);

  const std::shared_ptr<const TokenBytes>& tokens() const { return tokens_; }

 private:
  static constexpr size_t kMaximumWork = 5'000'000;       // pairs visited for one mask
  static constexpr size_t kMaximumNumbers = 4'000'000;    // stored before it counts as full
  static constexpr size_t kMaximumMaskBytes = 64u << 20;  // above this, masks are dropped

  // Frame 0 belongs to rule 0, or to a rule that is analysed by itself: its continuation is
  // unknown.
  static constexpr uint32_t kOutside = 0;
  // Values in place of a state: frame 0's rule may end here; no byte of the text is written yet.
  static constexpr uint32_t kEnd = 0xffffffff, kBlank = 0xfffffffe;

  static uint64_t pair(uint32_t state, uint32_t frame) { return uint64_t{frame} << 32 | state; }
  static uint32_t state_of(uint64_t pair) { return static_cast<uint32_t>(pair); }
  static uint32_t frame_of(uint64_t pair) { return static_cast<uint32_t>(pair >> 32); }

  struct Edge {
    int32_t from, to;
    uint8_t first, last;  // byte classes
  };
  // Tokens that stay within the rules at the top of a frontier, and the trie nodes at which those
  // rules may end with more bytes to come.
  struct Inside {
    std::vector<uint64_t> mask;
    std::vector<uint32_t> exits;
  };

  void find_classes(const std::vector<Network::Edge>& edges);
  void check_start() const;
  Frontier intern(std::vector<uint64_t>& pairs);
  Frontier step(Frontier frontier, uint8_t byte);
  Frontier find_step(Frontier frontier, uint8_t byte_class);
  void add(uint64_t pair);
  Frontier close();
  const std::vector<uint64_t>& mask_of(Frontier frontier);
  std::vector<uint64_t> find_mask(Frontier frontier);
  const Inside& inside_of(Frontier frontier);
  void walk(Frontier frontier, size_t first, size_t last, std::vector<uint64_t>& mask,
            std::vector<uint32_t>* exits);
  bool is_complete(Frontier frontier) const;
  bool is_blank(Frontier frontier) const;

  std::shared_ptr<const TokenBytes> tokens_;
  std::vector<Network::Rule> rules_;
  Grouped<Edge> edges_;
  Grouped<Network::Empty> empties_;
  Grouped<Network::Call> calls_;
  std::vector<int32_t> rule_ending_;  // by state: the rule whose final state it is, or -1
  std::array<uint8_t, 256> class_of_{};
  size_t classes_ = 0;

  mutable std::mutex mutex_;
  InternedLists frames_, frontiers_;
  std::vector<Frontier> steps_;  // frontier * classes_ + class; -1: not computed yet
  std::unordered_map<Frontier, std::vector<uint64_t>> masks_;
  std::unordered_map<Frontier, Inside> insides_;
  size_t mask_bytes_ = 0;
  Frontier start_ = 0;

  // Scratch of close().
  std::vector<uint64_t> open_, found_;
  NumberSet seen_;
  std::map<int32_t, std::vector<uint64_t>> called_;  // callers by rule
  size_t work_ = 0;
  std::vector<Frontier> path_;  // of walk(), by depth
};

}  // namespace megatron::inference
