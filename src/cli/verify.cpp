#include <fmt/core.h>

#include <filesystem>

#include "base/error.h"
#include "base/tolerances.h"
#include "cli/command.h"
#include "selftest/compare_directories.h"
#include "selftest/trajectory.h"
#include "selftest/verify_beams.h"
#include "selftest/verify_bert.h"
#include "selftest/verify_chats.h"
#include "selftest/verify_fim_data.h"
#include "selftest/verify_low_precision.h"
#include "selftest/verify_preferences.h"
#include "selftest/verify_rewards.h"
#include "selftest/verify_t5_data.h"
#include "settings/reading_flags.h"
#include "settings/rules.h"
#include "settings/settings.h"

namespace megatron::cli {
namespace {

namespace fs = std::filesystem;

std::vector<DeviceKind> devices_named(const std::string& name) {
  if (name == "cpu") return {DeviceKind::cpu};
  if (name == "reference") return {DeviceKind::reference};
  if (name == "cuda") return {DeviceKind::cuda};
  return {DeviceKind::cpu, DeviceKind::reference};
}

std::vector<selftest::Report> verify_directory(const std::string& directory,
                                               const std::optional<std::string>& models,
                                               const selftest::VerifyOptions& options) {
  MG_CHECK(fs::is_directory(directory), "{} is not a directory", directory);
  if (fs::exists(directory + "/case.json") && !checkpoint::is_adapter(directory))
    return selftest::verify_trajectory(directory, options);
  if (selftest::has_chats(directory)) return {selftest::verify_chats(directory)};
  if (selftest::has_packing(directory)) {
    std::vector<selftest::Report> reports = {selftest::verify_packing(directory)};
    if (fs::exists(directory + "/packed.safetensors"))
      for (selftest::Report& report : selftest::verify_packed(directory, options))
        reports.push_back(std::move(report));
    return reports;
  }
  if (selftest::has_bert_dataset(directory)) return {selftest::verify_bert_dataset(directory)};
  if (selftest::has_t5_dataset(directory)) return {selftest::verify_t5_dataset(directory)};
  if (selftest::has_fim_dataset(directory)) return {selftest::verify_fim_dataset(directory)};
  if (selftest::has_low_precision(directory))
    return selftest::verify_low_precision(directory, options);
  if (selftest::has_rewards(directory)) return selftest::verify_rewards(directory, options);
  if (selftest::has_preferences(directory)) return selftest::verify_preferences(directory, options);
  if (selftest::has_beams(directory)) return selftest::verify_beams(directory, models, options);
  MG_CHECK(fs::exists(directory + "/expected.safetensors"),
           "{} has none of expected.safetensors (a model with expected values), case.json (a "
           "training trajectory), expected.json with chat_template.jinja (chats as tokens), "
           "packing.json (packed rows), data/index.json with cases (data sets), pairs.json with "
           "cases.json (rewards, or losses of preferences), "
           "decode_FORMAT.npy and others (formats of 4 and 8 bits) and MODEL.json with cases (beam "
           "search)",
           directory);
  return selftest::verify(directory, options);
}

// Adds one report per device. Returns false if one of several directories cannot be verified; the
// reason is printed, and the others continue.
bool verify_one(const std::string& directory, bool alone, const std::optional<std::string>& models,
                const selftest::VerifyOptions& options, std::vector<selftest::Report>& reports) {
  try {
    for (selftest::Report& report : verify_directory(directory, models, options)) {
      fmt::print("{}", report.text());
      reports.push_back(std::move(report));
    }
    return true;
  } catch (const Error& error) {
    if (alone) throw;
    fmt::print("{}: not verified: {}\n", directory, error.what());
    return false;
  }
}

}  // namespace

int verify(const Arguments& arguments) {
  std::vector<std::string> directories;
  std::optional<std::string> rewrite;
  std::string device = "both";
  settings::RuntimeSettings runtime;
  Fields fields;
  fields.add("rewrite", &rewrite,
             "load the model or adapter, save it to this new directory (in safetensors), and "
             "compare every byte of every tensor");
  std::optional<std::string> against;
  fields.add("against", &against,
             "compare the weights and config.json with those of this directory, tensor by tensor");
  std::optional<std::string> models;
  fields.add("models", &models,
             "for a folder of beam searches: directory that contains their models, by name; "
             "default: hf next to that folder");
  std::optional<double> tolerance;
  fields.add("tolerance", &tolerance,
             fmt::format("with --against: max relative difference of a tensor, |a - b| / |b| "
                         "(2-norms); 0: equal values; default {:g} if both are fp32 or fp64, since "
                         "different layouts of one run may differ that much, else 0",
                         tolerance::kLayoutFp32));
  fields.add("device", &device, {"cpu", "reference", "both", "cuda"},
             "cpu and cuda compute in fp32, reference in fp64 with plain loops; both: cpu and "
             "reference");
  runtime.add_instruction_set(fields);
  fields.add("threads", &runtime.threads, "CPU threads per rank; default: cores / ranks");
  settings::ParallelSizes sizes;
  sizes.size_fields(fields, settings::ParallelSizes::Of::verify);
  int64_t data_parallel = 1;
  fields
      .add("data-parallel-size", &data_parallel,
           "data-parallel size: ranks that divide the sequences, or the micro-batches of each step")
      .within(1, 64);
  parallel::Sharding sharding = parallel::Sharding::none;
  fields.add_enum<parallel::Sharding>("data-parallel-sharding-strategy", &sharding,
                                      {{"no_shard", parallel::Sharding::none},
                                       {"optim", parallel::Sharding::optimizer},
                                       {"optim_grads", parallel::Sharding::gradients},
                                       {"optim_grads_params", parallel::Sharding::parameters}},
                                      "what is sharded over the data-parallel ranks");
  checkpoint::ReadingOptions reading;
  settings::add_reading_flags(fields, reading);
  const std::vector<Positional> positional = {
      {"DIR",
       "Hugging Face directories of models or adapters with expected.safetensors, folders with "
       "case.json (a run), expected.json (chats), packing.json (packed rows), data/index.json "
       "with cases (data sets of sentences for BERT or T5, or with fill in the middle), pairs.json "
       "(rewards, losses of preferences), decode_FORMAT.npy, encode_*.npy, mx_*.npy or nvfp4_*.npy "
       "(formats of 4 and 8 bits) or MODEL.json with cases (beam search)",
       &directories}};
  const auto done =
      parse("megatron verify DIR [DIR ...] [flags]",
            "Compares models and training runs with values that another system computed for them. "
            "Ranks are threads; the layers need not divide evenly among stages.",
            fields, positional, arguments);
  if (done) return *done;
  fields.check();
  const int64_t tensor = sizes.tensor_parallel;
  MG_CHECK(!sizes.sequence_parallel || tensor > 1,
           "--sequence-parallel divides tokens among tensor-parallel ranks: give "
           "--tensor-model-parallel-size, too");
  settings::TrainSettings divided;
  static_cast<settings::ParallelSizes&>(divided.parallel) = sizes;
  check_rules(settings::RuleScope::sizes, divided);
  const int64_t expert_tensor = sizes.expert_tensor_parallel.value_or(tensor),
                dense = tensor * sizes.context_parallel * data_parallel,
                all = dense * sizes.pipeline_parallel;
  MG_CHECK(dense % sizes.expert_ranks() == 0,
           "--expert-model-parallel-size {} times --expert-tensor-parallel-size {} does not divide "
           "the {} ranks of --tensor-model-parallel-size {} times --context-parallel-size {} times "
           "--data-parallel-size {}: change one of them",
           sizes.expert_parallel, expert_tensor, dense, tensor, sizes.context_parallel,
           data_parallel);
  MG_CHECK(all <= 1024,
           "--tensor-model-parallel-size {} times --context-parallel-size {} times "
           "--pipeline-model-parallel-size {} times --data-parallel-size {} makes {} ranks; as "
           "threads of one process at most 1024 are possible: lower one of them",
           tensor, sizes.context_parallel, sizes.pipeline_parallel, data_parallel, all);
  MG_CHECK(!tolerance || (against && *tolerance >= 0),
           "--tolerance {} needs --against DIR, and cannot be negative", tolerance.value_or(0));
  runtime.ranks = all;
  runtime.check();
  runtime.limit_instruction_set();
  MG_CHECK(!rewrite || directories.size() == 1, "--rewrite takes one directory, but {} are given",
           directories.size());
  MG_CHECK(!against || directories.size() == 1, "--against takes one directory, but {} are given",
           directories.size());
  MG_CHECK(!against || !rewrite, "--against and --rewrite are mutually exclusive");
  for (std::string& directory : directories)
    while (directory.size() > 1 && directory.ends_with('/')) directory.pop_back();
  std::vector<selftest::Report> reports;
  if (rewrite) {
    reports.push_back(selftest::verify_rewrite(directories[0], *rewrite, reading));
    fmt::print("{}", reports.back().text());
  }
  if (against) {
    reports.push_back(selftest::compare_directories(directories[0], *against, tolerance));
    fmt::print("{}", reports.back().text());
    directories.clear();
  }
  const bool only_rewrite = rewrite && !fs::exists(directories[0] + "/expected.safetensors");
  const selftest::VerifyOptions options = {
      .devices = devices_named(device),
      .threads = runtime.threads_per_rank(),
      .tensor_parallel = static_cast<int>(tensor),
      .pipeline_parallel = static_cast<int>(sizes.pipeline_parallel),
      .data_parallel = static_cast<int>(data_parallel),
      .context_parallel = static_cast<int>(sizes.context_parallel),
      .context_exchange = sizes.context_exchanges(),
      .context_levels = sizes.context_levels(),
      .expert_parallel = static_cast<int>(sizes.expert_parallel),
      .expert_tensor_parallel = static_cast<int>(sizes.expert_tensor_parallel.value_or(0)),
      .sharding = sharding,
      .sequence_parallel = sizes.sequence_parallel,
      .reading = reading};
  parallel::rank_lists(options.layout().ranks.layout, static_cast<int>(all), parallel::Axis::cp);
  size_t refused = 0;
  for (const std::string& directory : only_rewrite ? std::vector<std::string>() : directories)
    refused += !verify_one(directory, directories.size() == 1, models, options, reports);
  size_t failed = 0;
  for (const selftest::Report& report : reports) failed += !report.passed();
  fmt::print("{} passed, {} failed{}\n", reports.size() - failed, failed,
             refused > 0 ? fmt::format(", {} not verified", refused) : "");
  if (failed > 0) return 1;
  return refused > 0 ? 2 : 0;
}

}  // namespace megatron::cli
