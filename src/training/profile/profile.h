// --profile: the traced steps of one rank, from before step 0 to its file.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "base/clock.h"
#include "settings/profile_settings.h"
#include "training/profile/recorder.h"

namespace megatron::training {

// Every rank of a run has one. It does nothing unless steps are traced, and observes only those.
class Profile {
 public:
  // world: the run's ranks, borrowed.
  Profile(const settings::ProfileSettings& settings, comm::Group& world);

  // The group of all ranks, whose calls, and those of groups split from it, can be traced.
  comm::Group& world() const { return observed_ ? *observed_ : world_; }
  // Call before the first step; collective. The run makes iterations first + 1 ... last. Opens the
  // file in `directory`; throws Error if that is not writable.
  void open(int64_t first, int64_t last, const std::string& directory, const FileSystem& files);

  // Called around each iteration; collective.
  void begin(int64_t iteration, TrainStep& step, Stream& stream);
  void end(int64_t iteration, TrainStep& step, Stream& stream);
  // Completes the file after the last iteration. other: written to the file besides the steps.
  // Returns a message for the user: the path of this rank's trace or, on rank 0, the reason why
  // there is none.
  std::string finish(Json::Object other);

  // Traces a section of the run, until the end of the enclosing block.
  class Scope {
   public:
    Scope(Recorder* recorder, Track track, std::string_view name)
        : recorder_(recorder), track_(track), name_(name), begin_(now_seconds()) {}
    ~Scope() {
      if (recorder_ != nullptr)
        recorder_->add(track_, std::string(name_), begin_, std::move(arguments));
    }
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

    bool on() const { return recorder_ != nullptr; }
    std::string arguments = "{}";  // a JSON object

   private:
    Recorder* recorder_;
    Track track_;
    std::string_view name_;
    double begin_;
  };
  Scope scope(Track track, std::string_view name) {
    return {recorder_ && recorder_->on() ? &*recorder_ : nullptr, track, name};
  }

 private:
  bool traced(int64_t iteration) const { return iteration >= begin_ && iteration <= end_; }

  const settings::ProfileSettings& settings_;
  comm::Group& world_;
  std::optional<Recorder> recorder_;  // none: this rank is not traced
  std::unique_ptr<comm::Group> observed_;
  std::optional<TraceFile> file_;
  int64_t begin_ = 0, end_ = -1;  // first and last iteration to trace in this run
  int64_t last_ = 0;              // last traced iteration; 0: none
  int64_t made_ = 0;              // last completed iteration
};

}  // namespace megatron::training
