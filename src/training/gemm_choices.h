// The algorithms that the GEMMs of a run take on CUDA (--gemm-tuning), as its --save folder
// (gemm_choices.json) and its checkpoints (trainer_state.json) keep them: {"device": "NVIDIA H200",
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

// All ranks follow the choices of rank 0, so that those that compute the same values get the same
// bits, and a GEMM that no choice is of takes what cuBLASLt proposes first.
class GemmChoices {
 public:
  // Before the first product. The choices of the checkpoint that the run begins with are used, and of
  // GEMMs that it does not name, those in the --save folder. Where some cannot be, or ranks differ in
  // GPU or cuBLASLt, which are not tuned, a warning says so. Throws Error for choices that are
  // damaged. Collective. settings, world, runtime and files are borrowed.
  GemmChoices(const settings::TrainSettings& settings, const resume::Beginning& beginning,
              comm::Group& world, Runtime& runtime, const FileSystem& files);

  // Whether choices are to be made, before the first step.
  bool tunes() const { return tunes_; }
  // Times what `rehearse` computes, as far as no choice is there yet, on each rank. Of a GEMM that
  // several ranks have, the one with the lowest number chooses. They are written to the --save
  // folder, and used from then on. Collective.
  void make(FunctionRef<void()> rehearse);

  // Null where the run does not tune.
  Json json() const;

 private:
  bool lead() const { return world_.rank() == 0; }
  std::string machine() const;
  std::string rank_of_another_machine();
  bool has_saved(const resume::Beginning& beginning) const;
  std::string path() const;
  void read_saved(const resume::Beginning& beginning);
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
