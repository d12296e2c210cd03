#include "inference/block_cache.h"

#include <algorithm>
#include <functional>
#include <string_view>

#include "base/divide.h"
#include "base/error.h"

namespace megatron::inference {
namespace {

// Roots and contents are numbers of one kind: roots have the highest bit.
constexpr uint64_t kRoot = uint64_t{1} << 63;

}  // namespace

BlockCache::BlockCache(BlockCacheOptions options) : options_(std::move(options)) {
  MG_ASSERT(options_.windows.size() == options_.pages.size() && options_.block_size > 0);
  groups_.resize(options_.pages.size());
  for (size_t g = 0; g < groups_.size(); ++g) {
    Group& group = groups_[g];
    group.pages.resize(static_cast<size_t>(options_.pages[g]));
    for (int32_t p = 0; p < std::ssize(group.pages); ++p)
      group.pages[static_cast<size_t>(p)].place = group.idle.insert(group.idle.end(), p);
  }
}

int64_t BlockCache::blocks_for(size_t group, int64_t length, int64_t piece) const {
  const int64_t all = ceil_div(length, options_.block_size), window = options_.windows[group];
  if (window == 0) return all;
  return std::min(all, ceil_div(window + piece, options_.block_size) + 1);
}

// Returns the first block that a token from `length` on attends to.
int64_t BlockCache::lowest_block(size_t group, int64_t length) const {
  const int64_t window = options_.windows[group];
  return window == 0 ? 0 : std::max<int64_t>(0, length - window + 1) / options_.block_size;
}

BlockCache::Key BlockCache::key_of(uint64_t parent, std::span<const int32_t> tokens) {
  const std::string_view bytes(reinterpret_cast<const char*>(tokens.data()), tokens.size_bytes());
  return std::hash<std::string_view>()(bytes) ^ parent * 0x9E3779B97F4A7C15ull;
}

uint64_t BlockCache::find(uint64_t parent, std::span<const int32_t> tokens) const {
  const auto [begin, end] = by_tokens_.equal_range(key_of(parent, tokens));
  for (auto at = begin; at != end; ++at) {
    const Content& content = contents_.at(at->second);
    if (content.parent == parent && std::ranges::equal(content.tokens, tokens)) return at->second;
  }
  return 0;
}

uint64_t BlockCache::intern(uint64_t parent, std::span<const int32_t> tokens) {
  if (const uint64_t known = find(parent, tokens); known != 0) return known;
  const uint64_t id = ++last_content_;
  contents_[id] = {.parent = parent, .tokens = {tokens.begin(), tokens.end()}};
  by_tokens_.emplace(key_of(parent, tokens), id);
  if ((parent & kRoot) == 0) use(parent);
  return id;
}

// A content that is no longer used ends its use of its parent.
void BlockCache::end_use(uint64_t content) {
  while ((content & kRoot) == 0) {
    const auto at = contents_.find(content);
    if (--at->second.uses > 0) return;
    const uint64_t parent = at->second.parent;
    auto [begin, end] = by_tokens_.equal_range(key_of(parent, at->second.tokens));
    by_tokens_.erase(std::find_if(begin, end, [&](const auto& e) { return e.second == content; }));
    contents_.erase(at);
    content = parent;
  }
}

// Makes the page's tokens unfindable.
void BlockCache::drop(Group& group, Page& page) {
  if (page.content == 0) return;
  group.of_content.erase(page.content);
  end_use(page.content);
  page.content = 0;
}

int32_t BlockCache::take(Group& group) {
  const int32_t number = group.idle.front();
  drop(group, group.pages[static_cast<size_t>(number)]);
  own(group, number);
  return number;
}

void BlockCache::own(Group& group, int32_t number) {
  Page& page = group.pages[static_cast<size_t>(number)];
  if (page.owners++ > 0) return;
  group.idle.erase(page.place);
  ++used_;
}

void BlockCache::remove_owner(Group& group, int32_t number) {
  Page& page = group.pages[static_cast<size_t>(number)];
  MG_ASSERT(page.owners > 0);
  if (--page.owners > 0) return;
  --used_;
  page.place = group.idle.insert(page.content == 0 ? group.idle.begin() : group.idle.end(), number);
}

// Returns the contents of the first blocks, as far as every group holds those that a later token
// attends to.
std::vector<uint64_t> BlockCache::prefix(std::span<const int32_t> tokens, int64_t most,
                                         uint64_t root) const {
  std::vector<uint64_t> contents;
  if (!options_.prefix_caching || groups_.empty()) return contents;
  const int64_t size = options_.block_size, limit = std::min(most, std::ssize(tokens)) / size;
  uint64_t parent = kRoot | root;
  while (std::ssize(contents) < limit) {
    parent = find(parent, tokens.subspan(contents.size() * static_cast<size_t>(size),
                                         static_cast<size_t>(size)));
    if (parent == 0) break;
    contents.push_back(parent);
  }
  // Shortens the prefix until all of its blocks are present in every group.
  for (bool changed = true; changed;) {
    changed = false;
    for (size_t g = 0; g < groups_.size(); ++g) {
      const auto is_there = [&](uint64_t content) {
        return groups_[g].of_content.contains(content);
      };
      while (!contents.empty()) {
        const auto lowest = lowest_block(g, std::ssize(contents) * size);
        const auto missing = std::find_if_not(contents.begin() + lowest, contents.end(), is_there);
        if (missing == contents.end()) break;
        contents.erase(missing, contents.end());
        changed = true;
      }
    }
  }
  return contents;
}

int64_t BlockCache::share(SequenceBlocks& blocks, std::span<const int32_t> tokens, int64_t most) {
  MG_ASSERT(blocks.contents.empty());
  blocks.contents = prefix(tokens, most, blocks.root);
  if (!blocks.contents.empty()) use(blocks.contents.back());
  blocks.pages.assign(groups_.size(), {});
  const int64_t shared = std::ssize(blocks.contents) * options_.block_size;
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (int64_t j = 0; j < std::ssize(blocks.contents); ++j) {
      int32_t page = SequenceBlocks::kLeftBehind;
      if (j >= lowest_block(g, shared)) {
        page = groups_[g].of_content.at(blocks.contents[static_cast<size_t>(j)]);
        own(groups_[g], page);
      }
      blocks.pages[g].push_back(page);
    }
  }
  return shared;
}

int64_t BlockCache::shared_tokens(std::span<const int32_t> tokens, uint64_t root) const {
  return std::ssize(prefix(tokens, std::ssize(tokens), root)) * options_.block_size;
}

bool BlockCache::has_room(const SequenceBlocks& blocks, int64_t length, int64_t piece,
                          const ForkedTexts& forks) const {
  for (size_t g = 0; g < groups_.size(); ++g) {
    const int64_t held = blocks.pages.empty() ? 0 : std::ssize(blocks.pages[g]);
    int64_t needed =
        std::min(ceil_div(length, options_.block_size) - held, blocks_for(g, length, piece));
    if (forks.texts > 0) {
      const int64_t more = forks.texts * ceil_div(forks.length - forks.common, options_.block_size),
                    most = blocks_of_forks(g, forks.texts, forks.common, forks.length, piece);
      needed = std::min(needed + more, std::max(needed, most - held));
    }
    if (needed > available(g)) return false;
  }
  return true;
}

// A text that has read L tokens holds those from L - window + 2 on, and for c more tokens at most
// ceil(c / P) further blocks.
int64_t BlockCache::blocks_of_forks(size_t group, int64_t texts, int64_t common, int64_t length,
                                    int64_t piece) const {
  const int64_t size = options_.block_size, window = options_.windows[group];
  const int64_t shared = common / size, all = shared + texts * (ceil_div(length, size) - shared);
  if (window == 0) return all;
  const int64_t held = ceil_div(std::max<int64_t>(window - 2, 0), size) + 1;
  return std::min(all, texts * (held + 1) + ceil_div(piece, size));
}

bool BlockCache::fork(const SequenceBlocks& from, int64_t length, SequenceBlocks& to,
                      std::vector<PageCopy>& copies) {
  MG_ASSERT(to.contents.empty());
  const auto blocks = static_cast<size_t>(ceil_div(length, options_.block_size));
  const bool partial = length % options_.block_size != 0;
  for (size_t g = 0; partial && g < groups_.size(); ++g)
    if (available(g) == 0) return false;
  to.root = from.root;
  to.contents = from.contents;
  if (!to.contents.empty()) use(to.contents.back());
  to.pages.assign(groups_.size(), {});
  for (size_t g = 0; g < groups_.size(); ++g) {
    for (size_t j = 0; j < blocks; ++j) {
      int32_t page = from.pages[g][j];
      if (partial && j + 1 == blocks) {
        copies.push_back({.group = g, .from = page, .to = take(groups_[g])});
        page = copies.back().to;
      } else if (page >= 0) {
        own(groups_[g], page);
      }
      to.pages[g].push_back(page);
    }
  }
  return true;
}

bool BlockCache::extend(SequenceBlocks& blocks, int64_t length) {
  blocks.pages.resize(groups_.size());
  const auto missing = [&](size_t g) {
    return ceil_div(length, options_.block_size) - std::ssize(blocks.pages[g]);
  };
  for (size_t g = 0; g < groups_.size(); ++g)
    if (missing(g) > available(g)) return false;
  for (size_t g = 0; g < groups_.size(); ++g)
    while (missing(g) > 0) blocks.pages[g].push_back(take(groups_[g]));
  return true;
}

void BlockCache::keep(SequenceBlocks& blocks, std::span<const int32_t> tokens, int64_t length) {
  const auto size = static_cast<size_t>(options_.block_size);
  if (options_.prefix_caching) {
    while ((blocks.contents.size() + 1) * size <= static_cast<size_t>(length)) {
      const size_t j = blocks.contents.size();
      const uint64_t parent = j == 0 ? kRoot | blocks.root : blocks.contents.back();
      const uint64_t content = intern(parent, tokens.subspan(j * size, size));
      use(content);
      if (j > 0) end_use(parent);
      blocks.contents.push_back(content);
      for (size_t g = 0; g < groups_.size(); ++g) {
        const int32_t number = blocks.pages[g][j];
        if (number < 0 || !groups_[g].of_content.emplace(content, number).second) continue;
        groups_[g].pages[static_cast<size_t>(number)].content = content;
        use(content);
      }
    }
  }
  for (size_t g = 0; g < groups_.size(); ++g) {
    std::vector<int32_t>& pages = blocks.pages[g];
    const auto end = pages.begin() + std::min<int64_t>(lowest_block(g, length), std::ssize(pages));
    auto page = end;
    while (page != pages.begin() && page[-1] >= 0) --page;
    for (; page != end; ++page) {
      remove_owner(groups_[g], *page);
      *page = SequenceBlocks::kLeftBehind;
    }
  }
}

// The last blocks are reused first, since a block is useless without those before it.
void BlockCache::release(SequenceBlocks& blocks) {
  for (size_t g = 0; g < blocks.pages.size(); ++g) {
    std::vector<int32_t>& pages = blocks.pages[g];
    for (auto page = pages.rbegin(); page != pages.rend(); ++page)
      if (*page >= 0) remove_owner(groups_[g], *page);
  }
  if (!blocks.contents.empty()) end_use(blocks.contents.back());
  blocks.pages.clear();
  blocks.contents.clear();
}

void BlockCache::forget() {
  for (Group& group : groups_)
    for (Page& page : group.pages) drop(group, page);
}

int64_t BlockCache::pages() const {
  int64_t count = 0;
  for (const Group& group : groups_) count += std::ssize(group.pages);
  return count;
}

int64_t BlockCache::used() const { return used_; }

int64_t BlockCache::found() const {
  int64_t count = 0;
  for (const Group& group : groups_) count += std::ssize(group.of_content);
  return count;
}

int64_t BlockCache::available(size_t group) const { return std::ssize(groups_[group].idle); }

}  // namespace megatron::inference
