// GEMM algorithms of a run on CUDA (--gemm-tuning), as stored in its --save folder
// (gemm_choices.json) and its checkpoints (trainer_state.json): {"device": "NVIDIA H200",
// "library": "cuBLASLt 130100", "products": {"<product>": "<words in hex>"}}.
#pragma once

#include <map>
#include <string>

#include "base/file_system.h"
#include "base/function_ref.h"
#include "base/json.h"
#include "comm/group.h"
#include "device/stream.h"
#include "resume/resume.h"
#include "settings/settings.h"

namespace megatron::training {

// All ranks use the choices of rank 0, so that ranks that compute the same values get the same
// bits. A GEMM without a choice uses cuBLASLt's first proposal.
class GemmChoices {
 public:
  // Construct before the first product. Uses the choices of the checkpoint with which the run
  // begins and, for GEMMs that it does not list, those in the --save folder. Warns if some cannot
  // be used, or if ranks differ in GPU or cuBLASLt and are therefore not tuned. Throws Error for
  // damaged choices. Collective. settings, world, runtime and files are borrowed.
  GemmChoices(const settings::TrainSettings& settings, const resume::StartingPoint& start,
              comm::Group& world, Runtime& runtime, const FileSystem& files);

  // True if choices must be made before the first step.
  bool tunes() const { return tunes_; }
  // Times the GEMMs that `rehearse` computes and that have no choice yet, on each rank. For a GEMM
  // of several ranks, the lowest rank chooses. The choices are written to the --save folder and
  // used from then on. Collective.
  void make(FunctionRef<void()> rehearse);

  // Null if the run does not tune.
  Json json() const;

 private:
  bool lead() const { return world_.rank() == 0; }
  std::string machine() const;
  std::string rank_of_another_machine();
  bool has_saved(const resume::StartingPoint& start) const;
  std::string path() const;
  void read_saved(const resume::StartingPoint& start);
  void add(const Json& saved, const std::string& origin);
  void use_of_lead();
  void write() const;

  const settings::TrainSettings& settings_;
  comm::Group& world_;
  Runtime& runtime_;
  const FileSystem& files_;
  bool tunes_ = false;
  std::map<std::string, std::string> products_;  // as in json()
};

}  // namespace megatron::training
