#include "tokenizers/regex/regex_program.h"

#include <bit>

#include "tokenizers/regex/regex_state.h"

namespace megatron::tokenizers {
namespace {

constexpr int64_t kSteps = 10'000'000;  // plus some per byte of the text
constexpr int64_t kStepsPerByte = 64;
constexpr size_t kMaximumPlaces = size_t{1} << 20;

const char* character_before(const char* at) {
  do {
    --at;
  } while ((static_cast<unsigned char>(*at) & 0xc0) == 0x80);
  return at;
}

}  // namespace

ClassTable::ClassTable(const std::vector<CharacterSet>& sets) : ascii_(sets.size()) {
  for (size_t s = 0; s < sets.size(); ++s) {
    for (char32_t c = 0; c < 0x80; ++c) ascii_[s][c] = sets[s].contains(c);
  }
  std::vector<size_t> next(sets.size());  // first range that does not end before the block
  std::vector<uint32_t> uniform_masks;    // of blocks with a single mask
  std::vector<uint16_t> uniform_blocks;
  for (char32_t first = 0; first <= CharacterSet::kLast; first += kBlock) {
    const char32_t last = first + kBlock - 1;
    uint32_t everywhere = 0;
    std::vector<size_t> mixed;
    for (size_t s = 0; s < sets.size(); ++s) {
      const auto& ranges = sets[s].ranges();
      while (next[s] < ranges.size() && ranges[next[s]].last < first) ++next[s];
      if (next[s] == ranges.size() || ranges[next[s]].first > last) continue;
      if (ranges[next[s]].first <= first && ranges[next[s]].last >= last) {
        everywhere |= uint32_t{1} << s;
      } else {
        mixed.push_back(s);
      }
    }
    if (mixed.empty()) {
      size_t known = 0;
      while (known < uniform_masks.size() && uniform_masks[known] != everywhere) ++known;
      if (known < uniform_masks.size()) {
        block_of_.push_back(uniform_blocks[known]);
        continue;
      }
      uniform_masks.push_back(everywhere);
      uniform_blocks.push_back(static_cast<uint16_t>(blocks_.size()));
    }
    block_of_.push_back(static_cast<uint16_t>(blocks_.size()));
    std::array<uint32_t, kBlock>& block = blocks_.emplace_back();
    block.fill(everywhere);
    for (const size_t s : mixed) {
      const auto& ranges = sets[s].ranges();
      for (size_t r = next[s]; r < ranges.size() && ranges[r].first <= last; ++r) {
        const char32_t begin = ranges[r].first > first ? ranges[r].first : first;
        const char32_t end = ranges[r].last < last ? ranges[r].last : last;
        for (char32_t c = begin; c <= end; ++c) block[c - first] |= uint32_t{1} << s;
      }
    }
  }
}

bool ClassTable::holds_wide(size_t set, const char* at) const {
  const auto byte = [&](size_t i) { return static_cast<uint32_t>(static_cast<uint8_t>(at[i])); };
  const uint32_t lead = byte(0);
  uint32_t c = (lead & 0x1f) << 6 | (byte(1) & 0x3f);
  if (lead >= 0xe0) c = (lead & 0x0f) << 12 | (byte(1) & 0x3f) << 6 | (byte(2) & 0x3f);
  if (lead >= 0xf0) {
    c = (lead & 0x07) << 18 | (byte(1) & 0x3f) << 12 | (byte(2) & 0x3f) << 6 | (byte(3) & 0x3f);
  }
  return (blocks_[block_of_[c / kBlock]][c % kBlock] >> set & 1) != 0;
}

bool RegexProgram::holds_anchor(RegexNode::Kind anchor, std::string_view text, size_t at) {
  switch (anchor) {
    case RegexNode::Kind::text_begin: return at == 0;
    case RegexNode::Kind::text_end: return at == text.size();
    case RegexNode::Kind::line_begin: return at == 0 || (at < text.size() && text[at - 1] == '\n');
    default: return at == text.size() || text[at] == '\n';
  }
}

// Returns the end of the longest run, or null if it is too short; least: the end of the shortest
// run.
const char* RegexProgram::run_of(const Instruction& i, const char* at, const char* end,
                                 const char*& least) const {
  if (i.minimum <= 1 && i.maximum == RegexNode::kEndless) {
    const char* stop = classes_.run_end(i.set, at, end);
    least = at;
    if (i.minimum == 1) {
      if (stop == at) return nullptr;
      least += ClassTable::width(at);
    }
    return stop;
  }
  least = at;
  for (uint32_t n = 0; n < i.maximum; ++n) {
    if (n == i.minimum) least = at;
    if (at == end || !classes_.holds(i.set, at)) return n < i.minimum ? nullptr : at;
    at += ClassTable::width(at);
  }
  if (i.minimum == i.maximum) least = at;
  return at;
}

// Backtracks to the last place above `base`: sets pc and at, or returns false if there is none.
bool RegexProgram::resume(size_t base, std::string_view text, uint32_t& pc, const char*& at,
                          RegexState& state) const {
  while (state.places.size() > base) {
    RegexState::Place& place = state.places.back();
    const Instruction& i = code_[place.pc];
    if (i.op == Op::choose) {
      const Choices& choices = choices_[i.target];
      pc = choices.targets[static_cast<size_t>(std::countr_zero(place.left))];
      at = place.at;
      place.left &= place.left - 1;
      if (place.left == 0) state.places.pop_back();
      return true;
    }
    const Instruction& behind = code_[place.pc + 1];
    const bool needs_set = behind.op == Op::one || (behind.op == Op::run && behind.minimum > 0);
    const char* here = place.at;
    const char* const begin = here;
    do {
      here = character_before(here);
    } while (here > place.least && needs_set && !classes_.holds(behind.set, here));
    state.steps -= begin - here;
    pc = place.pc + 1;
    at = here;
    place.at = here;
    if (here <= place.least) state.places.pop_back();
    return true;
  }
  (void)text;
  return false;
}

bool RegexProgram::run(uint32_t pc, std::string_view text, size_t from, size_t& match_end,
                       RegexState& state) const {
  const size_t base = state.places.size();
  const char* at = text.data() + from;
  const char* const end = text.data() + text.size();
  const auto leave = [&](bool matched) {
    state.places.resize(base);
    return matched;
  };
  for (;;) {
    const Instruction& i = code_[pc];
    bool alive = true;
    switch (i.op) {
      case Op::one:
        alive = at < end && classes_.holds(i.set, at);
        if (alive) at += ClassTable::width(at), ++pc;
        break;
      case Op::optional:
        if (at < end && classes_.holds(i.set, at)) at += ClassTable::width(at);
        ++pc;
        break;
      case Op::star:
      case Op::plus: {
        const char* stop = classes_.run_end(i.set, at, end);
        alive = i.op == Op::star || stop > at;
        state.steps -= stop - at;
        at = stop, ++pc;
        break;
      }
      case Op::run: {
        const char* least;
        const char* stop = run_of(i, at, end, least);
        alive = stop != nullptr;
        if (!alive) break;
        state.steps -= stop - at;
        if (i.gives_back && least < stop) {
          RegexState::Place place{pc, stop, {}};
          place.least = least;
          state.places.push_back(place);
        }
        at = stop, ++pc;
        break;
      }
      case Op::choose: {
        const Choices& choices = choices_[i.target];
        const uint64_t able =
            at < end ? choices.by_byte[static_cast<unsigned char>(*at)] : choices.at_end;
        alive = able != 0;
        if (!alive) break;
        if ((able & (able - 1)) != 0) {
          RegexState::Place place{pc, at, {}};
          place.left = able & (able - 1);
          state.places.push_back(place);
        }
        pc = choices.targets[static_cast<size_t>(std::countr_zero(able))];
        break;
      }
      case Op::jump: pc = i.target; break;
      case Op::look_set:
        alive = (at < end && classes_.holds(i.set, at)) != i.negated;
        ++pc;
        break;
      case Op::look_ahead:
      case Op::atomic: {
        size_t inner_end = 0;
        const bool inner =
            run(pc + 1, text, static_cast<size_t>(at - text.data()), inner_end, state);
        if (state.exhausted) return leave(false);
        alive = inner != i.negated;
        if (i.op == Op::atomic) at = text.data() + inner_end;
        pc = i.target;
        break;
      }
      case Op::anchor:
        alive = holds_anchor(i.anchor, text, static_cast<size_t>(at - text.data()));
        ++pc;
        break;
      case Op::accept: match_end = static_cast<size_t>(at - text.data()); return leave(true);
    }
    if (alive && i.op != Op::choose) continue;
    if (--state.steps < 0 || state.places.size() > kMaximumPlaces) {
      state.exhausted = true;
      return leave(false);
    }
    if (!alive && !resume(base, text, pc, at, state)) return leave(false);
  }
}

// Runs alternatives without backtracking points. If there is no match, returns false, with `at`
// where it failed.
bool RegexProgram::run_straight(uint32_t pc, const char*& at, const char* end) const {
  for (const Instruction* i = &code_[pc];; ++i) {
    switch (i->op) {
      case Op::one:
        if (at == end || !classes_.holds(i->set, at)) return false;
        at += ClassTable::width(at);
        break;
      case Op::optional:
        if (at < end && classes_.holds(i->set, at)) at += ClassTable::width(at);
        break;
      case Op::star: at = classes_.run_end(i->set, at, end); break;
      case Op::plus: {
        const char* start = at;
        at = classes_.run_end(i->set, at, end);
        if (at == start) return false;
        break;
      }
      case Op::run: {
        const char* least;
        const char* stop = run_of(*i, at, end, least);
        if (!stop) return false;
        at = stop;
        break;
      }
      case Op::look_set:
        if ((at < end && classes_.holds(i->set, at)) == i->negated) return false;
        break;
      default: return true;
    }
  }
}

bool RegexProgram::match_at(std::string_view text, size_t at, size_t& match_end,
                            RegexState& state) const {
  const Choices& start = choices_[0];
  const char* const end = text.data() + text.size();
  uint64_t able =
      at < text.size() ? start.by_byte[static_cast<unsigned char>(text[at])] : start.at_end;
  for (; able != 0; able &= able - 1) {
    const auto alternative = static_cast<size_t>(std::countr_zero(able));
    const uint32_t pc = start.targets[alternative];
    if ((start.straight >> alternative & 1) == 0) {
      if (run(pc, text, at, match_end, state)) return true;
      if (state.exhausted) return false;
      continue;
    }
    const char* reached = text.data() + at;
    if (run_straight(pc, reached, end)) {
      match_end = static_cast<size_t>(reached - text.data());
      return true;
    }
    state.steps -= reached - (text.data() + at);
    state.exhausted = state.steps < 0;
    if (state.exhausted) return false;
  }
  return false;
}

bool RegexProgram::find(std::string_view text, size_t from, Regex::Match& match,
                        RegexState& state) const {
  state.steps = kSteps + kStepsPerByte * static_cast<int64_t>(text.size() - from);
  state.exhausted = false;
  const Choices& start = choices_[0];
  for (;;) {
    while (from < text.size() && start.by_byte[static_cast<unsigned char>(text[from])] == 0) ++from;
    size_t end = 0;
    if (match_at(text, from, end, state)) {
      match = {from, end};
      return true;
    }
    if (state.exhausted || from >= text.size()) return false;
    state.steps -= 1;
    from += ClassTable::width(text.data() + from);
  }
}

}  // namespace megatron::tokenizers
