#include "training/plan/suggestion_trials.h"

#include <algorithm>

#include "base/clock.h"
#include "base/error.h"
#include "plan/figures.h"
#include "training/plan/meta_run.h"

namespace megatron::training {
namespace {

constexpr double kMostSeconds = 20;  // for all trials of a run

}  // namespace

SuggestionTrials::SuggestionTrials(const settings::TrainSettings& s, const models::Model& model,
                                   const plan::Plan& plan, const PlanOf& plan_of)
    : s_(s), model_(model), plan_(plan), plan_of_(plan_of), began_(now_seconds()) {
  share_of_a_rank_ =
      plan.gpu ? plan.gpu->bytes / plan.gpu->ranks : plan.machine / s.runtime.ranks_here();
  for (const plan::MemoryUse& stage : plan.stages) {
    int64_t bytes = 0;
    for (const MemoryClass c :
         {MemoryClass::parameters, MemoryClass::gradients, MemoryClass::optimizer})
      bytes += stage.arenas[static_cast<size_t>(c)];
    state_ = std::min(state_, bytes);
  }
}

models::Model SuggestionTrials::model_of(const settings::TrainSettings& s) const {
  if (s.run.model || !s_.shape.num_layers) {
    const nn::RouterTraining router = s.shape.moe.training();
    return router == s_.shape.moe.training() ? model_ : model_->with({.router = router});
  }
  models::ModelFlags flags = s.shape;
  flags.vocab_size = model_->vocab_size();
  if (s.shape.vocab_size && s_.shape.vocab_size)
    *flags.vocab_size += *s.shape.vocab_size - *s_.shape.vocab_size;
  return models::model_from_flags(flags, *s.batch.seq_length);
}

int64_t SuggestionTrials::last_batch() const { return s_.batch.schedule.batch(last_stage(s_)); }

std::optional<plan::Plan> SuggestionTrials::tried(settings::TrainSettings s,
                                                  const models::Model& model, int64_t batch) const {
  if (now_seconds() - began_ > kMostSeconds) return std::nullopt;
  try {
    s.optimizer.config.check();
    s.batch.schedule = data::BatchSchedule::constant(batch);
    s.batch.schedule.divide(*s.batch.micro_batch_size, s.data_parallel(), false);
    std::vector<SettingNote> notes;
    s.parallel.check(s.runtime.rank_count(), model->num_layers(), s.batch.schedule.micro_batches(0),
                     *s.batch.seq_length, notes);
    return plan_of_(s, model);
  } catch (const Error&) {
    return std::nullopt;
  }
}

bool SuggestionTrials::fits(const settings::TrainSettings& s) const {
  if (state_ > share_of_a_rank_) return false;
  const auto p = tried(s, model_of(s), last_batch());
  return p && p->fits();
}

bool SuggestionTrials::put(const Change& change, const settings::TrainSettings& s, int64_t batch) {
  const double of_a_rank =
      static_cast<double>(share_of_a_rank_) * s_.runtime.ranks_here() / s.runtime.ranks_here();
  if (change.share * static_cast<double>(state_) > of_a_rank) return false;
  try {
    const auto p = tried(s, model_of(s), batch);
    if (!p || !p->fits()) return false;
    suggest(change.flags, plan::bytes_text(static_cast<double>(needed(*p))), change.other);
    return true;
  } catch (const Error&) {  // of the model's sizes
    return false;
  }
}

void SuggestionTrials::suggest(const std::string& flags, const std::string& needs, bool other) {
  found_.push_back(
      fmt::format("{} (needs {}{})", flags, needs, other ? "; changes the result" : ""));
}

}  // namespace megatron::training
