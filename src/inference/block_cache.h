// Assigns the pages and slots of the key-value cache (nn/sequence_state.h) to the tokens of
// sequences. A slot is a page here, of a group whose window is two tokens.
#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

namespace megatron::inference {

struct BlockCacheOptions {
  int64_t block_size = 64;
  std::vector<int64_t> windows;  // of each group of layers; 0: all tokens are visible
  std::vector<int64_t> pages;    // for each group
  bool prefix_caching = true;
};

// Pages of one sequence: pages[g][j] holds tokens [j P, (j + 1) P) of group g; kLeftBehind: no
// later token attends to them. contents: the contents of the first full blocks, as far as other
// sequences can find them.
struct SequenceBlocks {
  static constexpr int32_t kLeftBehind = -1;
  std::vector<std::vector<int32_t>> pages;
  std::vector<uint64_t> contents;
  uint64_t root = 0;  // sequences with different roots share nothing
};

// Texts that begin with the same `common` tokens and may grow to `length` (BlockCache::fork()).
struct ForkedTexts {
  int64_t texts = 0, common = 0, length = 0;
};

// A page whose contents another page of its group is to have, too.
struct PageCopy {
  size_t group = 0;
  int32_t from = 0, to = 0;
  bool operator==(const PageCopy&) const = default;
};

// A page has one owner per sequence that reads it, and is free when the last owner releases it. A
// full block can be found by its tokens and all tokens before it; its page keeps them after the
// last owner has released it, until the page is needed for other tokens (the page released first is
// reused first). A page that can be found is never written.
class BlockCache {
 public:
  explicit BlockCache(BlockCacheOptions options);

  int64_t block_size() const { return options_.block_size; }
  // Maximum number of blocks of a group that a text of `length` tokens, read in pieces of `piece`
  // tokens, holds at once.
  int64_t blocks_for(size_t group, int64_t length, int64_t piece) const;

  // Finds the longest cached prefix of `tokens` that consists of whole blocks and has at most
  // `most` tokens, and adds an owner to its pages. Returns the prefix's number of tokens. `blocks`
  // must be empty.
  int64_t share(SequenceBlocks& blocks, std::span<const int32_t> tokens, int64_t most);
  // Allocates pages for tokens up to `length`. Returns false, and takes none, if too few are free.
  bool extend(SequenceBlocks& blocks, int64_t length);
  // Records that tokens [0, length) are in their pages: full blocks can be found from now on, and
  // blocks that no token from `length` on attends to are released.
  void keep(SequenceBlocks& blocks, std::span<const int32_t> tokens, int64_t length);
  void release(SequenceBlocks& blocks);
  // Makes `to` (empty) the pages of a second text that has the same first `length` tokens, which
  // are in pages. It becomes an owner of those that are full; a page that is not gets a copy, which
  // the caller must make before either is written. Returns false, and takes none, if too few pages
  // are free.
  bool fork(const SequenceBlocks& from, int64_t length, SequenceBlocks& to,
            std::vector<PageCopy>& copies);
  // Makes all present contents unfindable.
  void forget();

  // True if there are enough pages to read a text of `length` tokens in pieces now, and then to
  // continue it by `forks`.
  bool has_room(const SequenceBlocks& blocks, int64_t length, int64_t piece,
                const ForkedTexts& forks = {}) const;
  // Maximum number of blocks of a group that a number of texts of `length` tokens, the first
  // `common` of which are the same, hold at once if they are read in pieces of together `piece`
  // tokens and share what fork() lets them share.
  int64_t blocks_of_forks(size_t group, int64_t texts, int64_t common, int64_t length,
                          int64_t piece) const;
  // Number of tokens of the longest cached prefix.
  int64_t shared_tokens(std::span<const int32_t> tokens, uint64_t root) const;

  size_t groups() const { return groups_.size(); }
  int64_t pages(size_t group) const { return std::ssize(groups_[group].pages); }
  int64_t pages() const;  // over all groups
  int64_t used() const;   // pages with an owner
  int64_t found() const;  // pages that can be found by content
  // Number of a group's pages without an owner.
  int64_t available(size_t group) const;

 private:
  struct Page {
    int64_t owners = 0;
    uint64_t content = 0;                // hash of its content; 0: none
    std::list<int32_t>::iterator place;  // position in `idle` if it has no owner
  };
  struct Group {
    std::vector<Page> pages;
    std::list<int32_t> idle;  // pages without content first, then in order of release
    std::unordered_map<uint64_t, int32_t> of_content;
  };
  // Identifies a block by its tokens and what precedes them: another content, or a root. It is
  // kept while a page holds it, a later content follows it or a sequence has it as its last.
  struct Content {
    uint64_t parent = 0;
    std::vector<int32_t> tokens;
    int64_t uses = 0;  // number of these
  };

  using Key = uint64_t;  // hash of the parent and the tokens
  static Key key_of(uint64_t parent, std::span<const int32_t> tokens);
  uint64_t find(uint64_t parent, std::span<const int32_t> tokens) const;  // 0 if not found
  uint64_t intern(uint64_t parent, std::span<const int32_t> tokens);
  void use(uint64_t content) { ++contents_.at(content).uses; }
  void end_use(uint64_t content);
  void drop(Group& group, Page& page);
  int32_t take(Group& group);
  void own(Group& group, int32_t page);
  void remove_owner(Group& group, int32_t page);
  int64_t lowest_block(size_t group, int64_t length) const;
  std::vector<uint64_t> prefix(std::span<const int32_t> tokens, int64_t most, uint64_t root) const;

  BlockCacheOptions options_;
  std::vector<Group> groups_;
  std::unordered_multimap<Key, uint64_t> by_tokens_;
  std::unordered_map<uint64_t, Content> contents_;
  uint64_t last_content_ = 0;
  int64_t used_ = 0;
};

}  // namespace megatron::inference
