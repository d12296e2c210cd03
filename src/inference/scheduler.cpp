#include "inference/scheduler.h"

#include <algorithm>
#include <set>
#include <utility>

#include "base/error.h"

namespace megatron::inference {

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
    cache_.release(removed->blocks);
    return removed;
  }
  return nullptr;
}

void Scheduler::forget(Sequence& sequence) {
  cache_.release(sequence.blocks);
  sequence.encoder.reset();
  sequence.read = 0;
}

// Cached tokens need not be read, except the last one and those whose successors' log-probabilities
// or whose experts are still to be reported.
void Scheduler::begin(Sequence& s) {
  s.context_class = options_.context_class(s.length());
  s.blocks.root = cache_root(s.context_class, s.request.adapter_number());
  if (texts_ != nullptr) {
    s.encoder = texts_->hold(s.request);
    s.blocks.root = s.encoder->number;  // the decoder's keys depend on the whole text
  }
  int64_t most = s.scored < s.scores() ? s.scored : s.length() - 1;
  if (s.request.expert_choices) most = std::min(most, s.routed);
  s.read = cache_.share(s.blocks, s.tokens, most);
}

// Admits the first waiting sequence if the pages for its text and some more tokens are free.
void Scheduler::admit() {
  while (!waiting_.empty() && running() < options_.max_requests) {
    Sequence& next = *waiting_.begin()->second;
    begin(next);
    const bool has_room =
        cache_.has_room(next.blocks, std::min(next.length() + cache_.block_size(), next.longest),
                        options_.max_tokens) &&
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
    if (options_.context_class(sequence->length()) == sequence->context_class) continue;
    forget(*sequence);
    begin(*sequence);
  }
}

// Context class of the sequence whose last pass is longest ago.
int64_t Scheduler::next_class() const {
  const auto first = std::ranges::min_element(
      running_, {}, [](const auto& s) { return std::pair(s.second->turn, s.second->due); });
  return first->second->context_class;
}

void Scheduler::preempt(Sequence& sequence, Rows& rows) {
  forget(sequence);
  std::erase_if(rows, [&](const ScheduledRow& row) { return row.sequence == &sequence; });
  waiting_.insert(running_.extract(sequence.due));
  ++preemptions_;
}

// Allocates pages for the sequence's tokens up to `length`, and for its encoder's text. Returns
// false if too few are free.
bool Scheduler::extend(Sequence& sequence, int64_t length) {
  return (sequence.encoder == nullptr || texts_->reserve(*sequence.encoder)) &&
         cache_.extend(sequence.blocks, length);
}

// Returns the first sequence whose encoder's text does not fit a pass beside the next tokens of
// `decoding` others; null: there is none, or it is the others' turn.
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
  const bool takes = sequence.decodes() || running_.begin()->second.get() == &sequence;
  while (!extend(sequence, sequence.read + count)) {
    Sequence& last = *running_.rbegin()->second;
    if (!takes || &last == &sequence) return false;
    preempt(last, rows);
  }
  rows.push_back({&sequence, count});
  return true;
}

std::vector<ScheduledRow> Scheduler::next() {
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
  std::vector<Sequence*> one_token;
  for (const auto& [due, s] : running_)
    if (s->context_class == of_class && s->decodes()) one_token.push_back(s.get());
  Sequence* const alone = next_long_text(of_class, std::ssize(one_token));
  read_long_text_ = alone != nullptr && reserve(*alone, 1, rows);
  if (read_long_text_) return rows;
  // If there are more than fit in a pass, those whose last pass is longest ago are taken.
  std::ranges::stable_sort(one_token, {}, &Sequence::turn);
  if (std::ssize(one_token) > options_.max_tokens)
    one_token.resize(static_cast<size_t>(options_.max_tokens));
  std::ranges::sort(one_token, {}, &Sequence::due);
  for (Sequence* s : one_token)
    if (running_.contains(s->due)) reserve(*s, 1, rows);
  int64_t left = std::max<int64_t>(1, options_.max_tokens - std::ssize(rows));
  std::set<const EncoderText*> texts;  // that this pass reads
  for (auto at = running_.begin(); at != running_.end() && left > 0; ++at) {
    Sequence& s = *at->second;
    if (s.context_class != of_class || s.decodes()) continue;
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
