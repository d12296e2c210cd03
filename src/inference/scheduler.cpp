#include "inference/scheduler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/divide.h"
#include "base/error.h"

namespace megatron::inference {
namespace {

// A sequence that reads tokens; it is gone once the request that is due then is preempted.
struct Reader {
  Due due;
  uint64_t turn = 0;
  Sequence* sequence = nullptr;
};

// The sequence of a request's beam that continues the text of another.
std::unique_ptr<Sequence> beam_of(Sequence& whole, size_t beam, const Sequence& from) {
  auto s = std::make_unique<Sequence>();
  s->id = whole.id;
  s->request = whole.request;
  s->due = whole.due;
  s->tokens = whole.tokens;
  const std::vector<int32_t> text = whole.beams->search.text(beam);
  s->tokens.insert(s->tokens.end(), text.begin(), text.end());
  s->given = whole.given;
  s->longest = whole.longest;
  s->read = from.read;
  s->context_class = from.context_class;
  s->scored = whole.scored;
  s->routed = whole.routed;
  s->begun = true;
  s->turn = from.turn;
  s->encoder = whole.encoder;
  s->whole = &whole;
  s->beam = beam;
  return s;
}

}  // namespace

uint64_t cache_root(int64_t context_class, uint64_t adapter) {
  constexpr int kBits = 32;
  MG_ASSERT(context_class == static_cast<int32_t>(context_class) && adapter >> (kBits - 1) == 0);
  return adapter << kBits | static_cast<uint32_t>(context_class);
}

Scheduler::Scheduler(SchedulerOptions options, BlockCache& cache, EncoderTexts* texts)
    : options_(std::move(options)), cache_(cache), texts_(texts) {}

void Scheduler::add(std::unique_ptr<Sequence> sequence) {
  const Due due = sequence->due;
  MG_ASSERT(!waiting_.contains(due) && !running_.contains(due));
  waiting_[due] = std::move(sequence);
}

std::unique_ptr<Sequence> Scheduler::remove(RequestId id) {
  for (Sequences* all : {&running_, &waiting_}) {
    const auto at = std::ranges::find_if(*all, [&](const auto& s) { return s.second->id == id; });
    if (at == all->end()) continue;
    std::unique_ptr<Sequence> removed = std::move(at->second);
    all->erase(at);
    forget(*removed);
    return removed;
  }
  return nullptr;
}

void Scheduler::forget(Sequence& sequence) {
  cache_.release(sequence.blocks);
  sequence.encoder.reset();
  sequence.read = 0;
  if (sequence.beams == nullptr) return;
  for (const auto& beam : sequence.beams->sequences) cache_.release(beam->blocks);
  sequence.beams->sequences.clear();
  sequence.beams->searched = false;
  std::erase_if(copies_, [&](const auto& copy) { return copy.first == sequence.id; });
}

template <class F>
void Scheduler::for_each_reader(const F& f) const {
  for (const auto& [due, sequence] : running_) {
    if (sequence->beams == nullptr || sequence->beams->sequences.empty()) {
      f(*sequence);
      continue;
    }
    for (const auto& beam : sequence->beams->sequences) f(*beam);
  }
}

int64_t Scheduler::width() const {
  int64_t sum = 0;
  for (const auto& [due, sequence] : running_) sum += sequence->request.width();
  return sum;
}

// Gives the requests with beams the sequences that their last search step chose.
void Scheduler::follow_searches() {
  std::vector<Due> searched;
  for (const auto& [due, s] : running_) {
    if (s->beams == nullptr || !s->beams->search.begun()) continue;
    const bool from_prompt = s->beams->sequences.empty() && s->unread() == 0;
    if (from_prompt || s->beams->searched) searched.push_back(due);
  }
  for (const Due& due : searched)
    if (const auto at = running_.find(due); at != running_.end()) follow_search(*at->second);
}

void Scheduler::follow_search(Sequence& s) {
  if (options_.context_class(s.context()) != s.context_class) {
    forget(s);
    begin(s);
  } else if (!fork_beams(s)) {
    Rows none;
    preempt(s, none);
  }
}

// The first of the beams that continue one text takes over its pages, and the others share them.
// Pages are taken from sequences that are due later. Returns false if they do not suffice; the
// sequence must then be preempted.
bool Scheduler::fork_beams(Sequence& s) {
  BeamGroup& group = *s.beams;
  std::vector<Sequence*> holders = {&s};  // of the pages of each former beam
  if (!group.sequences.empty()) {
    holders.clear();
    for (const auto& beam : group.sequences) holders.push_back(beam.get());
  }
  std::vector<char> continues(holders.size());
  std::vector<size_t> parents;
  for (const BeamSearch::Running& beam : group.search.running()) {
    parents.push_back(group.sequences.empty() ? 0 : beam.parent);
    continues[parents.back()] = 1;
  }
  for (size_t i = 0; i < holders.size(); ++i)
    if (continues[i] == 0) cache_.release(holders[i]->blocks);
  std::vector<std::unique_ptr<Sequence>> next;
  std::vector<PageCopy> copies;
  for (const size_t parent : parents) {
    Sequence*& holder = holders[parent];
    Sequence& child = *next.emplace_back(beam_of(s, next.size(), *holder));
    if (std::exchange(continues[parent], 0) != 0) {
      child.blocks = std::exchange(holder->blocks, {});
      holder = &child;
      continue;
    }
    while (!cache_.fork(holder->blocks, child.read, child.blocks, copies)) {
      Sequence& last = *running_.rbegin()->second;
      if (&last == &s) {
        for (const auto& one : next) cache_.release(one->blocks);
        return false;
      }
      Rows none;
      preempt(last, none);
    }
  }
  for (const PageCopy& copy : copies) copies_.emplace_back(s.id, copy);
  group.sequences = std::move(next);
  group.next.assign(group.sequences.size(), {});
  group.missing = group.sequences.size();
  group.searched = false;
  return true;
}

std::vector<PageCopy> Scheduler::take_copies() {
  std::vector<PageCopy> copies;
  for (const auto& [id, copy] : std::exchange(copies_, {})) copies.push_back(copy);
  return copies;
}

// Cached tokens need not be read, except the last one and those whose successors' log-probabilities
// or whose experts are still to be reported.
void Scheduler::begin(Sequence& s) {
  s.context_class = options_.context_class(s.context());
  s.blocks.root = cache_root(s.context_class, s.request.adapter_number());
  if (texts_ != nullptr) {
    s.encoder = texts_->hold(s.request);
    s.blocks.root = s.encoder->number;  // the decoder's keys depend on the whole text
  }
  int64_t most = s.scored < s.scores() ? s.scored : s.length() - 1;
  if (s.request.expert_choices) most = std::min(most, s.routed);
  s.read = cache_.share(s.blocks, s.tokens, most);
}

// The texts of its beams and some more tokens.
ForkedTexts Scheduler::room_for_beams(const Sequence& s) const {
  if (s.beams == nullptr) return {};
  return {.texts = s.request.width(),
          .common = s.length(),
          .length = std::min(s.context() + cache_.block_size(), s.longest)};
}

// Admits the first waiting sequence if the pages for its text and some more tokens are free.
void Scheduler::admit() {
  while (!waiting_.empty()) {
    Sequence& next = *waiting_.begin()->second;
    if (!running_.empty() && width() + next.request.width() > options_.max_requests) return;
    begin(next);
    const bool has_room =
        cache_.has_room(next.blocks, std::min(next.length() + cache_.block_size(), next.longest),
                        options_.max_tokens, room_for_beams(next)) &&
        (next.encoder == nullptr || texts_->has_room(*next.encoder));
    if (!running_.empty() && !has_room) {
      forget(next);
      return;
    }
    if (!next.begun) cached_tokens_ += next.read;
    next.begun = true;
    running_.insert(waiting_.extract(waiting_.begin()));
  }
}

void Scheduler::forget_other_angles() {
  for (const auto& [due, sequence] : running_) {
    if (options_.context_class(sequence->context()) == sequence->context_class) continue;
    forget(*sequence);
    begin(*sequence);
  }
}

// Context class of the sequence whose last pass is longest ago.
int64_t Scheduler::next_class() const {
  const Sequence* first = nullptr;
  for_each_reader([&](const Sequence& s) {
    if (s.unread() == 0) return;  // a beam that waits for others
    if (first == nullptr || std::pair(s.turn, s.due) < std::pair(first->turn, first->due))
      first = &s;
  });
  return first->context_class;
}

void Scheduler::preempt(Sequence& sequence, Rows& rows) {
  std::erase_if(rows,
                [&](const ScheduledRow& row) { return &row.sequence->of_request() == &sequence; });
  forget(sequence);
  waiting_.insert(running_.extract(sequence.due));
  ++preemptions_;
}

// Allocates pages for the sequence's tokens up to `length`, and for its encoder's text. Returns
// false if too few are free.
bool Scheduler::extend(Sequence& sequence, int64_t length) {
  return (sequence.encoder == nullptr || texts_->reserve(*sequence.encoder)) &&
         cache_.extend(sequence.blocks, length);
}

// Returns the first sequence whose encoder text does not fit in one pass together with the next
// tokens of `decoding` others; null: there is none, or it is the others' turn.
Sequence* Scheduler::next_long_text(int64_t of_class, int64_t decoding) const {
  if (texts_ == nullptr || (read_long_text_ && decoding > 0)) return nullptr;
  for (const auto& [due, s] : running_) {
    const int64_t unread = s->encoder->unread();
    const bool fits = unread + 1 + decoding <= options_.max_tokens;
    if (s->context_class == of_class && unread > 0 && !fits) return s.get();
  }
  return nullptr;
}

// Reserves pages for `count` more tokens, preempting sequences that are due later if necessary. A
// prompt preempts no others unless it is the first of all.
bool Scheduler::reserve(Sequence& sequence, int64_t count, Rows& rows) {
  const Sequence& own = sequence.of_request();
  const bool takes = sequence.decodes() || running_.begin()->second.get() == &own;
  while (!extend(sequence, sequence.read + count)) {
    Sequence& last = *running_.rbegin()->second;
    if (!takes || &last == &own) return false;
    preempt(last, rows);
  }
  rows.push_back({&sequence, count});
  return true;
}

std::vector<ScheduledRow> Scheduler::next() {
  follow_searches();
  admit();
  if (running_.empty()) return {};
  forget_other_angles();
  Rows rows = rows_of(next_class());
  // If no sequence of that class gets pages, the first of all does.
  if (rows.empty()) rows = rows_of(running_.begin()->second->context_class);
  MG_ASSERT(!rows.empty());
  std::ranges::stable_sort(rows, {}, [](const ScheduledRow& row) {
    return std::pair(row.count, row.sequence->request.adapter_number());
  });
  return rows;
}

// Sequences that are preempted during this loop are due later than the current one.
Scheduler::Rows Scheduler::rows_of(int64_t of_class) {
  Rows rows;
  std::vector<Reader> one_token, others;
  for_each_reader([&](Sequence& s) {
    if (s.context_class != of_class || s.unread() == 0) return;
    (s.decodes() ? one_token : others).push_back({s.due, s.turn, &s});
  });
  Sequence* const alone = next_long_text(of_class, std::ssize(one_token));
  read_long_text_ = alone != nullptr && reserve(*alone, 1, rows);
  if (read_long_text_) return rows;
  // If there are more than fit in a pass, those whose last pass is longest ago are taken.
  std::ranges::stable_sort(one_token, {}, &Reader::turn);
  if (std::ssize(one_token) > options_.max_tokens)
    one_token.resize(static_cast<size_t>(options_.max_tokens));
  std::ranges::stable_sort(one_token, {}, &Reader::due);
  for (const Reader& reader : one_token)
    if (running_.contains(reader.due)) reserve(*reader.sequence, 1, rows);
  int64_t left = std::max<int64_t>(1, options_.max_tokens - std::ssize(rows));
  std::set<const EncoderText*> texts;  // that this pass reads
  for (const Reader& reader : others) {
    if (left <= 0) break;
    if (!running_.contains(reader.due)) continue;
    Sequence& s = *reader.sequence;
    const bool reads = s.encoder != nullptr && !texts.contains(s.encoder.get());
    const int64_t text = reads ? s.encoder->unread() : 0;
    const bool fits = options_.whole_texts ? s.unread() <= left : text < left;
    if (!fits && !rows.empty()) continue;
    const int64_t room = std::max<int64_t>(1, left - text);
    const int64_t count = options_.whole_texts ? s.unread() : std::min(s.unread(), room);
    if (!reserve(s, count, rows)) continue;
    left -= count + text;
    if (text > 0) texts.insert(s.encoder.get());
  }
  return rows;
}

void Scheduler::advance(const std::vector<ScheduledRow>& rows) {
  ++turn_;
  for (const auto& [sequence, count] : rows) {
    if (sequence->encoder != nullptr) sequence->encoder->read = true;
    sequence->read += count;
    sequence->turn = turn_;
    cache_.keep(sequence->blocks, sequence->tokens, sequence->read);
  }
}

void Scheduler::read_anew() {
  cache_.forget();
  if (texts_ != nullptr) texts_->forget();
  for (const auto& [due, sequence] : running_) {
    forget(*sequence);
    begin(*sequence);
  }
}

}  // namespace megatron::inference
