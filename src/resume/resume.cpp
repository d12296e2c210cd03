#include "resume/resume.h"

#include <algorithm>
#include <filesystem>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "checkpoint/agreement.h"
#include "resume/found_checkpoints.h"

namespace megatron::resume {
namespace {

namespace fs = std::filesystem;
using checkpoint::CheckpointDirectory;

// The checkpoint of one step, verified by all processes; null, with a warning, if it is not intact.
std::shared_ptr<const CheckpointDirectory> open_whole(const std::string& path,
                                                      const std::string& base,
                                                      comm::Group& processes, Runtime& runtime) {
  std::shared_ptr<const CheckpointDirectory> directory;
  std::string problem;
  try {
    directory = std::make_shared<const CheckpointDirectory>(path, base);
    directory->verify(runtime.pool(), processes.rank(), processes.size());
  } catch (const Error& error) {
    problem = error.what();
  }
  try {
    checkpoint::agree(processes, runtime.stream(), problem, 0, "resume.whole");
    return directory;
  } catch (const checkpoint::AgreedError& error) {
    log::warning("the checkpoint {} cannot be used: {}", path, error.what());
    return nullptr;
  }
}

// A checkpoint of a newer program is not damage that may be skipped.
void refuse_newer(const std::string& path) {
  try {
    const Json state = Json::read(path + "/" + std::string(checkpoint::kTrainerState));
    const Json* format = state.is_object() ? state.find("format") : nullptr;
    if (format == nullptr || !format->is_integer() || format->as_integer() <= checkpoint::kFormat)
      return;
  } catch (const Error&) {
    return;
  }
  CheckpointDirectory directory(path);  // throws Error that names the program that wrote it
}

// A tracker that names a step means that a run was here: it must not be restarted from step 0 by
// accident.
void check_tracked(const SaveDirectory& folder, const std::vector<int64_t>& saved,
                   int64_t tracked) {
  if (std::ranges::binary_search(saved, tracked)) return;
  const std::string tracker = folder.tracker_path(), path = folder.iteration_path(tracked);
  MG_CHECK(!saved.empty(),
           "{} names step {}, but there are no checkpoints in {}; restore {}, or remove the "
           "tracker file to start from scratch",
           tracker, tracked, folder.path(), path);
  MG_CHECK(saved.front() < tracked,
           "{} names step {}, but the existing checkpoints are from later steps, {} to {}; write "
           "the step to resume from into it, or remove it to use the newest",
           tracker, tracked, saved.front(), saved.back());
  log::warning("{} names step {}, but {} does not exist: using an earlier checkpoint", tracker,
               tracked, path);
}

// Only the checkpoint of --ckpt-step, or all candidates.
std::vector<int64_t> candidates(const SaveDirectory& folder,
                                const settings::CheckpointSettings& s) {
  if (!s.ckpt_step) return steps_to_try(folder);
  const std::vector<int64_t> saved = folder.iterations();
  MG_CHECK(std::ranges::binary_search(saved, *s.ckpt_step), "--ckpt-step {}: {} does not exist; {}",
           *s.ckpt_step, folder.iteration_path(*s.ckpt_step),
           saved.empty() ? "there are no checkpoints"
                         : fmt::format("the newest is from step {}", saved.back()));
  return {*s.ckpt_step};
}

std::string folder_around(const std::string& path) {
  fs::path whole = fs::absolute(path).lexically_normal();
  if (!whole.has_filename()) whole = whole.parent_path();  // path ended in '/'
  return whole.parent_path().string();
}

}  // namespace

std::vector<int64_t> steps_to_try(const SaveDirectory& folder) {
  std::vector<int64_t> saved = folder.iterations();
  std::string invalid;
  const std::optional<int64_t> tracked = folder.tracked_if_valid(&invalid);
  if (!invalid.empty()) log::warning("{}: using the newest checkpoint", invalid);
  if (tracked) {
    check_tracked(folder, saved, *tracked);
    std::erase_if(saved, [&](int64_t step) { return step > *tracked; });
  }
  std::ranges::reverse(saved);
  return saved;
}

StartingPoint find_starting_point(const settings::CheckpointSettings& s, bool weights_only,
                                  comm::Group& processes, int threads, const std::string& base) {
  if (!s.load) return {};
  const std::string& path = *s.load;
  if (weights_only && is_model(path)) {
    ThreadPool pool(threads);
    require_whole_model(path, pool);
    return {.weights = std::make_shared<const checkpoint::ModelDirectory>(path, s.reading)};
  }
  std::error_code error;
  const bool exists = fs::exists(path, error);
  MG_CHECK(exists || !weights_only,
           "{} {} does not exist; give a Hugging Face directory, or a folder of checkpoints",
           s.load_flag, path);
  MG_CHECK(!exists || fs::is_directory(path, error), "{} {} is a file; give {}", s.load_flag, path,
           weights_only ? "a Hugging Face directory, or a folder of checkpoints"
                        : "a folder of checkpoints");
  const bool one = is_model(path) && checkpoint::is_checkpoint(path);
  const std::string_view weights =
      s.finetune
          ? "drop --load to start from the weights of --model, or drop --model to start from its "
            "weights"
          : "add --finetune to start from its weights";
  MG_CHECK(!one,
           "--load {} is a single checkpoint; give the folder that contains it, {}, and its step "
           "with --ckpt-step, or {}",
           path, folder_around(path), weights);
  MG_CHECK(!is_model(path),
           "--load {} is a Hugging Face model without {}: a run cannot resume from it; {}", path,
           checkpoint::kTrainerState, weights);
  const SaveDirectory folder(path);
  const std::vector<int64_t> steps = candidates(folder, s);
  if (steps.empty()) {
    MG_CHECK(!s.exit_on_missing_checkpoint,
             "--load {} contains no checkpoint, and --exit-on-missing-checkpoint is given", path);
    MG_CHECK(!weights_only, "{} {} contains neither a checkpoint nor a model", s.load_flag, path);
    log::info("--load {} contains no checkpoint yet: training starts from scratch", path);
    return {};
  }
  Runtime runtime({DeviceKind::cpu, 0}, threads);
  StartingPoint start;
  for (const int64_t step : steps) {
    const double begin = now_seconds();
    const std::string directory = folder.iteration_path(step);
    refuse_newer(directory);
    const auto checkpoint = open_whole(directory, base, processes, runtime);
    if (checkpoint == nullptr) continue;
    if (step != steps.front())
      log::warning("the run resumes from step {}, not from step {}", step, steps.front());
    const TrainerState state = TrainerState::from_json(checkpoint->trainer_state(), directory);
    start.weights =
        std::shared_ptr<const checkpoint::ModelDirectory>(checkpoint, &checkpoint->model());
    if (!weights_only) {
      start.checkpoint = checkpoint;
      start.state = state;
    }
    log::info("{} {} (checksums verified in {:.2f} s)",
              weights_only ? "weights of" : "resuming from", directory, now_seconds() - begin);
    return start;
  }
  fail(
      "none of the {} checkpoints in {} is intact: {}; restore one, or remove them all to start "
      "from scratch",
      steps.size(), path,
      s.ckpt_step ? "only the one of --ckpt-step was tried" : "see the warnings above");
}

}  // namespace megatron::resume
