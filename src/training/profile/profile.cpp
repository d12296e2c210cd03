#include "training/profile/profile.h"

#include <fmt/core.h>

#include <algorithm>

namespace megatron::training {

Profile::Profile(const settings::ProfileSettings& settings, comm::Group& world)
    : settings_(settings), world_(world) {
  if (!settings_.traces(world.rank())) return;
  recorder_.emplace();
  observed_ = comm::observed(world, *recorder_);
}

void Profile::open(int64_t first, int64_t last, const std::string& directory,
                   const FileSystem& files) {
  made_ = first;
  if (!settings_.profile) return;
  begin_ = std::max(settings_.step_start, first) + 1;
  end_ = std::min(settings_.step_end, last);
  if (recorder_ && begin_ <= end_) {
    const int rank = world_.rank();
    file_.emplace(fmt::format("{}/trace-rank{}-steps-{}-{}.json", directory, rank, begin_, end_),
                  files);
    file_->describe("process_name", rank, 0, json_text(fmt::format("rank {}", rank)));
    file_->describe("process_sort_index", rank, 0, std::to_string(rank));
    for (int t = 0; t < kTracks; ++t) {
      file_->describe("thread_name", rank, t, json_text(name(static_cast<Track>(t))));
      file_->describe("thread_sort_index", rank, t, std::to_string(t));
    }
  }
  world_.barrier("profile.open");  // every rank learns of an unwritable file before the first step
}

void Profile::begin(int64_t iteration, TrainStep& step, Stream& stream) {
  if (!traced(iteration) || iteration != begin_) return;
  world_.barrier("profile.begin");  // time 0 of all ranks
  if (!recorder_) return;
  recorder_->start(now_seconds(), step);
  stream.watch(&*recorder_);
  step.listen(&*recorder_);
}

void Profile::end(int64_t iteration, TrainStep& step, Stream& stream) {
  made_ = iteration;
  if (!traced(iteration)) return;
  last_ = iteration;
  if (!recorder_) return;
  recorder_->write(*file_, world_.rank());
  if (iteration != end_) return;
  recorder_->stop();
  stream.watch(nullptr);
  step.listen(nullptr);
}

std::string Profile::finish(Json::Object other) {
  if (!settings_.profile) return "";
  if (last_ == 0 && world_.rank() != 0) return "";
  if (last_ == 0)
    return fmt::format(
        "--profile: no trace was written: the steps to trace are {} to {} (--profile-step-start, "
        "--profile-step-end), but this run ended at step {}",
        settings_.step_start + 1, settings_.step_end, made_);
  if (!file_) return "";
  other.insert(other.begin(), {{"steps", fmt::format("{} to {}", begin_, last_)}});
  file_->finish(Json(std::move(other)));
  const std::string path = file_->path();
  return fmt::format("traced steps {} to {} in {}: open it in ui.perfetto.dev or chrome://tracing",
                     begin_, last_, path);
}

}  // namespace megatron::training
