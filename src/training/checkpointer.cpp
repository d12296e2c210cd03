#include "training/checkpointer.h"

#include <map>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "comm/values.h"

namespace megatron::training {
namespace {

// Chunks of a rank may hold equal copies of one parameter: keeps only the first.
std::vector<checkpoint::HeldTensor> without_copies(std::vector<checkpoint::HeldTensor> tensors) {
  std::map<std::string, const parallel::Placement*> first;
  std::erase_if(tensors, [&](const checkpoint::HeldTensor& tensor) {
    const std::string name = tensor.prefix + tensor.placement->tensors.at(0).name;
    return first.emplace(name, tensor.placement).first->second != tensor.placement;
  });
  return tensors;
}

}  // namespace

Checkpointer::Checkpointer(const settings::CheckpointSettings& settings, const SavedFiles& saved,
                           const WholeModel& whole, const TrainStep& step, comm::Group& ranks,
                           Runtime& runtime, const FileSystem& files)
    : settings_(settings),
      saved_(saved),
      whole_(whole),
      step_(step),
      ranks_(ranks),
      runtime_(runtime),
      files_(files),
      directory_(*settings.save, files) {}

Checkpointer::~Checkpointer() {
  if (save_ != nullptr && save_->writer.joinable()) save_->writer.join();
}

checkpoint::Contents Checkpointer::contents(const resume::TrainerState& state) const {
  checkpoint::Contents contents;
  contents.config = saved_.config;
  contents.is_adapter = whole_.model->adapter() != nullptr;
  contents.model = without_copies(held_saved(step_, whole_.model, renamed_));
  contents.whole_model = whole_.saved;
  if (state.has_optimizer) {
    contents.optimizer = without_copies(held_states(step_));
    contents.whole_optimizer = whole_.optimizer;
  }
  contents.written_files = saved_.companions;
  contents.trainer_state = state.to_json();
  return contents;
}

int64_t Checkpointer::checkpoint_bytes() const {
  resume::TrainerState state;
  state.has_optimizer = settings_.save_optimizer;
  state.data = state.layout = Json::Object{};
  return contents(state).total_bytes();
}

resume::SaveSpace Checkpointer::space(int64_t first, int64_t last) const {
  return {.folder = directory_.path(),
          .checkpoint_bytes = checkpoint_bytes(),
          .checkpoints = resume::most_checkpoints(settings_, first, last),
          .free_bytes = files_.free_bytes(directory_.path())};
}

void Checkpointer::check_room() const {
  checkpoint::check_room(
      directory_.path(), checkpoint_bytes(), files_,
      "use a --save folder on another disk, free some space, or use --save-keep");
}

void Checkpointer::failed(int64_t iteration, const std::string& why, bool last) const {
  const std::string kept = last_saved_ >= 0 ? "is " + directory_.iteration_path(last_saved_)
                                            : "is the one the run started from, if any";
  const std::string text = fmt::format(
      "the checkpoint of step {} was not saved: {}. The last good one {}", iteration, why, kept);
  MG_CHECK(!last, "{}; the same command resumes from there", text);
  MG_CHECK(!settings_.exit_on_save_failure, "{} (--exit-on-save-failure ends the run)", text);
  if (ranks_.rank() == 0) log::error("{}; the run continues", text);
}

void Checkpointer::begin(const resume::TrainerState& state) {
  const bool async = settings_.async_save;
  checkpoint::Contents what = contents(state);
  report::SaveRecord record{.iteration = state.iteration,
                            .bytes = what.total_bytes(),
                            .path = directory_.iteration_path(state.iteration)};
  const double begin = now_seconds();
  save_ = std::make_unique<InFlight>(
      record.path, std::move(what), ranks_, runtime_.stream(), files_,
      async ? checkpoint::Save::Snapshot::copy : checkpoint::Save::Snapshot::none);
  save_->record = std::move(record);
  save_->begin = begin;
  const auto write = [in_flight = save_.get()] {
    in_flight->save.write();
    in_flight->written = true;
  };
  if (async) {
    save_->writer = std::thread(write);
  } else {
    write();
  }
  save_->record.wait = now_seconds() - begin;
}

std::optional<report::SaveRecord> Checkpointer::finish(bool last) {
  if (save_->writer.joinable()) save_->writer.join();
  const std::unique_ptr<InFlight> ended = std::move(save_);
  report::SaveRecord& record = ended->record;
  const double begin = now_seconds();
  try {
    ended->save.finish();
    track(record.iteration);
  } catch (const checkpoint::AgreedError& error) {
    failed(record.iteration, error.what(), last);
    return std::nullopt;
  }
  last_saved_ = record.iteration;
  record.wait += now_seconds() - begin;
  record.seconds = now_seconds() - ended->begin;
  remove_old(record.iteration);
  return record;
}

// The directory is complete and has its final name; only now the tracker refers to it.
void Checkpointer::track(int64_t iteration) {
  std::string problem;
  if (ranks_.rank() == 0) {
    try {
      directory_.track(iteration);
    } catch (const Error& error) {
      problem = error.what();
    }
  }
  checkpoint::agree(ranks_, runtime_.stream(), problem, 0, "checkpoint.tracker");
}

void Checkpointer::remove_old(int64_t newest) const {
  if (!settings_.removes_old() || ranks_.rank() != 0) return;
  std::vector<int64_t> steps = directory_.iterations();
  std::erase_if(steps, [&](int64_t step) { return step > newest; });
  const auto kept = static_cast<size_t>(settings_.save_keep.value_or(1));
  for (size_t i = 0; i + kept < steps.size(); ++i) {
    if (settings_.save_retain_interval && steps[i] % *settings_.save_retain_interval == 0) continue;
    try {
      directory_.remove(steps[i]);
    } catch (const Error& error) {
      log::warning("{}", error.what());
    }
  }
}

std::vector<report::SaveRecord> Checkpointer::save(const resume::TrainerState& state, bool last) {
  std::vector<report::SaveRecord> done = poll(true);
  try {
    begin(state);
  } catch (const checkpoint::AgreedError& error) {
    save_.reset();
    failed(state.iteration, error.what(), last);
    return done;
  }
  if (!last && settings_.async_save) return done;
  if (auto record = finish(last)) done.push_back(std::move(*record));
  return done;
}

std::vector<report::SaveRecord> Checkpointer::poll(bool wait) {
  if (save_ == nullptr) return {};
  double writing = save_->written ? 0 : 1;
  if (!wait) comm::largest(ranks_, runtime_.stream(), {&writing, 1}, "checkpoint.writing");
  if (!wait && writing != 0) return {};
  if (auto record = finish(false)) return {std::move(*record)};
  return {};
}

}  // namespace megatron::training
