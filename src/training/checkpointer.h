// Saves a run's checkpoints, from the point of view of one rank.
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

// Contents of a run's checkpoints besides its tensors.
struct SavedFiles {
  Json config;            // config.json; of an adapter: adapter_config.json
  NamedFiles companions;  // tokenizer
};

class Checkpointer {
 public:
  // All arguments are borrowed. whole: the tensors of a checkpoint; step: this rank's part of them.
  // ranks: all ranks of the run.
  Checkpointer(const settings::CheckpointSettings& settings, const SavedFiles& saved,
               const WholeModel& whole, const TrainStep& step, comm::Group& ranks, Runtime& runtime,
               const FileSystem& files);
  ~Checkpointer();  // waits for a writer thread; an unfinished save is dropped

  // All functions below are collective.

  // Throws Error if the disk has no room for a checkpoint.
  void check_room() const;
  // Returns the space that the checkpoints from step `first` to `last` will take, and the free
  // space. Not collective.
  resume::SaveSpace space(int64_t first, int64_t last) const;
  // Saves or, with --async-save, starts a save, after an earlier save has ended. A failure is
  // logged and, with --exit-on-save-failure or if `last`, thrown. Returns completed saves.
  std::vector<report::SaveRecord> save(const resume::TrainerState& state, bool last);
  // Completes the save in flight once all ranks have written their share. wait: blocks until then.
  std::vector<report::SaveRecord> poll(bool wait);
  bool in_flight() const { return save_ != nullptr; }

 private:
  struct InFlight {
    InFlight(std::string path, checkpoint::Contents contents, comm::Group& ranks, Stream& stream,
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
  std::optional<report::SaveRecord> finish(
      bool last);  // nullopt: the save failed and the failure was logged
  void track(int64_t iteration);
  void remove_old(int64_t newest) const;
  // Logs the failure, or throws it if the run must end.
  void failed(int64_t iteration, const std::string& why, bool last) const;

  const settings::CheckpointSettings& settings_;
  const SavedFiles& saved_;
  const WholeModel& whole_;
  const TrainStep& step_;
  comm::Group& ranks_;
  Runtime& runtime_;
  const FileSystem& files_;
  resume::SaveDirectory directory_;
  mutable RenamedPlacements renamed_;  // of held_saved()
  std::unique_ptr<InFlight> save_;
  int64_t last_saved_ = -1;
};

}  // namespace megatron::training
