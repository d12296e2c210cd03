// Saving a run, as one rank sees it.
#pragma once

#include <atomic>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "base/file_system.h"
#include "checkpoint/save.h"
#include "report/log/record.h"
#include "resume/save_directory.h"
#include "resume/save_space.h"
#include "resume/trainer_state.h"
#include "settings/checkpoint_settings.h"
#include "training/model_source.h"
#include "training/step.h"
#include "training/whole_model.h"

namespace megatron::training {

// What the checkpoints of a run hold besides its tensors.
struct SavedFiles {
  Json config;            // config.json
  NamedFiles companions;  // tokenizer
};

class Checkpointer {
 public:
  // All are borrowed. whole: what a checkpoint consists of; step: what this rank holds of it.
  // ranks: of the run.
  Checkpointer(const settings::CheckpointSettings& settings, const SavedFiles& saved,
               const WholeModel& whole, const TrainStep& step, comm::Group& ranks, Runtime& runtime,
               const FileSystem& files);
  ~Checkpointer();  // waits for a writer thread; an unfinished save is dropped

  // All below are collective.

  // Throws Error when the disk has no room for a checkpoint.
  void check_room() const;
  // What the checkpoints from step `first` to `last` will take, against what is free. Not
  // collective.
  resume::SaveSpace space(int64_t first, int64_t last) const;
  // Saves, or with --async-save begins to, after an earlier save has ended. A failure is logged and,
  // with --exit-on-save-failure, thrown; `last`: thrown in any case. What is done is returned.
  std::vector<report::SaveRecord> save(const resume::TrainerState& state, bool last);
  // Ends the save under way once all ranks have written their share. wait: when that takes long,
  // too.
  std::vector<report::SaveRecord> poll(bool wait);
  bool under_way() const { return save_ != nullptr; }

 private:
  struct UnderWay {
    UnderWay(std::string path, checkpoint::Contents contents, comm::Group& ranks, Stream& stream,
             const FileSystem& files, checkpoint::Save::Snapshot snapshot)
        : save(std::move(path), std::move(contents), ranks, stream, files, snapshot) {}
    checkpoint::Save save;
    report::SaveRecord record;
    double begin = 0;
    std::thread writer;
    std::atomic<bool> written = false;
  };
  int64_t checkpoint_bytes() const;
  checkpoint::Contents contents(const resume::TrainerState& state) const;
  void begin(const resume::TrainerState& state);
  std::optional<report::SaveRecord> finish(bool last);  // none: it failed, which was logged
  void track(int64_t iteration);
  void remove_old(int64_t newest) const;
  // Logs it, or throws it where the run is to end.
  void failed(int64_t iteration, const std::string& why, bool last) const;

  const settings::CheckpointSettings& settings_;
  const SavedFiles& saved_;
  const WholeModel& whole_;
  const TrainStep& step_;
  comm::Group& ranks_;
  Runtime& runtime_;
  const FileSystem& files_;
  resume::SaveDirectory directory_;
  std::unique_ptr<UnderWay> save_;
  int64_t last_saved_ = -1;
};

}  // namespace megatron::training
