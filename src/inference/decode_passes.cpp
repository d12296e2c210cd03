#include "inference/decode_passes.h"

#include <algorithm>
#include <utility>

#include "base/divide.h"
#include "base/error.h"

namespace megatron::inference {
namespace {

constexpr int64_t kMinBlocks = 8;  // per table; a few unused ones cost nothing
constexpr size_t kMaxForms = 64;
// Eager passes before a pass with adapters is captured. More than one, because the rows' adapters
// change with each request that begins or ends.
constexpr int kEagerWithAdapters = 4;

// Returns the largest powers of two below `most`, and `most`.
std::vector<int64_t> row_counts_up_to(int64_t most, int64_t number) {
  std::vector<int64_t> counts;
  for (int64_t count = 1; count < most; count *= 2) counts.push_back(count);
  counts.push_back(most);
  if (std::ssize(counts) > number) counts.erase(counts.begin(), counts.end() - number);
  return counts;
}

int64_t widest_table(const DecodePassOptions& options, const nn::SequenceState& state) {
  const int64_t size = state.shape().block_size;
  return ceil_div(options.longest, size);
}

std::vector<nn::SequencePart> padding(int64_t rows) {
  return std::vector<nn::SequencePart>(static_cast<size_t>(rows),
                                       {.begin = -1, .count = 1, .tables = {}});
}

}  // namespace

DecodePasses::DecodePasses(const models::Stage& stage, Runtime& runtime, nn::SequenceState& state,
                           const DecodePassOptions& options)
    : stage_(stage),
      runtime_(runtime),
      state_(state),
      options_(options),
      row_counts_(row_counts_up_to(options.max_rows, options.row_counts)),
      draws_(runtime, options.max_rows) {
  MG_ASSERT(stage.part().embedding && stage.part().head);
  const auto groups = static_cast<int64_t>(state.groups().size());
  const int64_t tables = state.numbers_pages() ? 2 : 1;
  const int64_t of_row = 3 + groups * (1 + tables * widest_table(options, state));
  integers_ = Tensor::empty(runtime.arena(MemoryClass::activations), {options.max_rows * of_row},
                            DType::i32, "decode.integers");
  if (options.record) arenas_.emplace(runtime);
}

DecodePasses::Shape DecodePasses::shape_of(const ForwardPassPlan& plan) const {
  int64_t longest = 0, encoded = 0;
  std::vector<uint64_t> adapters;
  for (const PassRow& row : plan.rows) {
    adapters.push_back(row.adapter == nullptr ? 0 : row.adapter->number());
    longest = std::max(longest, row.begin + 1);
    if (row.encoder != nullptr) encoded = std::max(encoded, row.encoder->length());
  }
  const auto width = [&](int64_t tokens) {
    int64_t blocks = kMinBlocks;
    while (blocks * state_.shape().block_size < tokens) blocks *= 2;
    return std::min(blocks, widest_table(options_, state_));
  };
  if (std::ranges::count(adapters, 0U) == std::ssize(adapters)) adapters.clear();
  const int64_t rows = *std::ranges::lower_bound(row_counts_, std::ssize(plan.rows));
  if (!adapters.empty()) adapters.resize(static_cast<size_t>(rows), adapters.back());
  return {.rows = rows,
          .widths = {.blocks = width(longest), .encoded = encoded > 0 ? width(encoded) : 0},
          .context_class = stage_.model()->context_class(plan.context),
          .adapters = std::move(adapters)};
}

void DecodePasses::fill(const ForwardPassPlan& plan, const Shape& shape) {
  if (!runtime_.device().has_data()) return;
  const auto rows = static_cast<size_t>(shape.rows);
  std::vector<int32_t> values(2 * rows);
  std::vector<nn::SequencePart> parts = padding(shape.rows);
  for (size_t r = 0; r < plan.rows.size(); ++r) {
    const PassRow& row = plan.rows[r];
    values[r] = row.tokens[0];
    values[rows + r] = static_cast<int32_t>(row.begin);
    parts[r] = part_of(row, plan, state_);
  }
  const std::vector<int32_t> indices = state_.indices(parts, shape.widths);
  values.insert(values.end(), indices.begin(), indices.end());
  Tensor filled = integers_.slice(0, 0, static_cast<int64_t>(values.size()));
  copy_from(filled, std::span<const int32_t>(values), runtime_.stream());
}

Tensor DecodePasses::compute(const Shape& shape, const ForwardPassPlan& plan) {
  const int64_t rows = shape.rows;
  nn::Batch batch{.layout = {.sequences = 1, .length = rows},
                  .tokens = integers_.slice(0, 0, rows),
                  .positions = integers_.slice(0, rows, rows)};
  batch.continuation = state_.over(integers_.slice(0, 2 * rows, integers_.size(0) - 2 * rows),
                                   padding(rows), shape.widths);
  batch.context = plan.context;
  const PassAdapters adapters = plan.adapters(stage_.model(), rows - std::ssize(plan.rows));
  Tape tape(runtime_, Tape::Mode::infer);
  if (adapters.any()) tape.add_to_products(&adapters);
  const Bundle out = models::forward(stage_, tape, {}, batch, models::Phase::evaluate);
  Tensor logits = stage_.loss_logits(tape, out);
  if (options_.choices > 0) draws_.queue(logits, options_.choices);
  return logits;
}

bool DecodePasses::recordable(const Shape& shape) const {
  return options_.record && runtime_.device().kind == DeviceKind::cuda &&
         shape.context_class <= 0 && runtime_.stream().watcher() == nullptr &&
         (options_.tensor == nullptr || options_.tensor->queued());
}

// Returns null if no pass of this shape has run.
DecodePasses::Form* DecodePasses::form_of(const Shape& shape) {
  const auto found = std::ranges::find(forms_, shape, &Form::shape);
  if (found == forms_.end()) return nullptr;
  forms_.splice(forms_.begin(), forms_, found);
  return &*found;
}

void DecodePasses::launch(Form& form) {
  form.work->queue();
  if (options_.tensor != nullptr)
    options_.tensor->queued_again(runtime_.stream(), "recorded decode pass");
  logits_ = form.logits;
  ++launched_;
}

void DecodePasses::run(const ForwardPassPlan& plan, std::span<const double> rules) {
  const Shape shape = shape_of(plan);
  logits_ = {};  // releases its memory for the next ones
  rows_ = std::ssize(plan.rows);
  drawn_ = options_.choices > 0 && draw_any(rules);
  fill(plan, shape);
  if (options_.choices > 0) draws_.fill(rules, shape.rows);
  std::optional<OwnArenas::Use> own;
  if (arenas_) own.emplace(*arenas_, runtime_);
  const bool records = recordable(shape);
  Form* const form = records ? form_of(shape) : nullptr;
  if (form == nullptr) {
    logits_ = compute(shape, plan);
    if (!records) return;
    make_room();
    forms_.push_front({.shape = shape, .work = {}, .logits = {}, .eager = 1});
    return;
  }
  if (form->work && form->work->memory_is_free()) return launch(*form);
  if (form->eager < (shape.adapters.empty() ? 1 : kEagerWithAdapters)) {
    ++form->eager;
    logits_ = compute(shape, plan);
    return;
  }
  form->work.reset();
  PartRecording recording(runtime_);
  form->logits = compute(shape, plan).unowned();
  form->work = recording.finish();
  ++recorded_;
  launch(*form);
}

// Removes the least recently used form, preferring those with adapters.
void DecodePasses::make_room() {
  if (forms_.size() < kMaxForms) return;
  const auto oldest = std::find_if(forms_.rbegin(), forms_.rend(),
                                   [](const Form& form) { return !form.shape.adapters.empty(); });
  forms_.erase(oldest == forms_.rend() ? std::prev(forms_.end()) : std::prev(oldest.base()));
}

DecodePassCounts DecodePasses::counts() const {
  DecodePassCounts counts{.recorded = recorded_, .launched = launched_};
  if (arenas_)
    for (const MemoryClass of : {MemoryClass::activations, MemoryClass::communication})
      counts.bytes += arenas_->high_water(of);
  return counts;
}

DeviceDraws DecodePasses::draws() const {
  if (!drawn_ || !runtime_.device().has_data()) return {};
  return draws_.read(logits_.size(0), rows_);
}

}  // namespace megatron::inference
