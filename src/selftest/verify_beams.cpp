#include "selftest/verify_beams.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <mutex>

#include "base/error.h"
#include "base/tolerances.h"
#include "comm/gpu/staged.h"
#include "comm/threads.h"
#include "inference/engine.h"
#include "inference/engine_groups.h"
#include "inference/follow.h"
#include "training/model_source.h"

namespace megatron::selftest {
namespace {

namespace fs = std::filesystem;
using inference::BeamOptions;
using inference::BeamResult;
using inference::EarlyStopping;

std::vector<std::string> files_with_beams(const std::string& directory) {
  std::vector<std::string> files;
  for (const auto& entry : fs::directory_iterator(directory)) {
    if (entry.path().extension() != ".json") continue;
    const Json json = Json::read(entry.path());
    if (!json.is_object() || !json.contains("cases") || !json["cases"].is_array()) continue;
    const Json::Array& cases = json["cases"].as_array();
    if (!cases.empty() && cases[0].is_object() && cases[0].contains("num_beams"))
      files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

EarlyStopping early_stopping_of(const Json& value) {
  if (value.is_string()) {
    MG_CHECK(value.as_string() == "never",
             "early_stopping is \"{}\"; it must be a bool or \"never\"", value.as_string());
    return EarlyStopping::never;
  }
  return value.as_bool() ? EarlyStopping::yes : EarlyStopping::no;
}

std::vector<int32_t> ids_of(const Json& list) {
  const std::vector<int64_t> ids = integers_of(list);
  return {ids.begin(), ids.end()};
}

// A request for each prompt of a case.
std::vector<inference::Request> requests_of(const Json& of_case) {
  std::vector<inference::Request> requests;
  const Json::Array& rows = of_case["input_ids"].as_array();
  for (size_t r = 0; r < rows.size(); ++r) {
    inference::Request request;
    request.number = r;
    request.prompt = ids_of(rows[r]);
    if (of_case.contains("attention_mask")) {
      const std::vector<int32_t> seen = ids_of(of_case["attention_mask"].as_array().at(r));
      MG_CHECK(seen.size() == request.prompt.size(),
               "attention_mask has {} values for {} tokens of input_ids", seen.size(),
               request.prompt.size());
      size_t kept = 0;
      for (size_t t = 0; t < seen.size(); ++t)
        if (seen[t] != 0) request.prompt[kept++] = request.prompt[t];
      request.prompt.resize(kept);
    }
    request.max_tokens = of_case["max_new_tokens"].as_integer();
    request.sampling.min_tokens = of_case["min_new_tokens"].as_integer();
    request.end_tokens = ids_of(of_case["eos_token_id"]);
    request.beams = BeamOptions{.beams = of_case["num_beams"].as_integer(),
                                .returned = of_case["num_return_sequences"].as_integer(),
                                .length_penalty = of_case["length_penalty"].as_number(),
                                .early_stopping = early_stopping_of(of_case["early_stopping"])};
    requests.push_back(std::move(request));
  }
  return requests;
}

// What the engine gives for a case: the texts of each prompt, and its passes.
struct Searched {
  std::vector<std::vector<BeamResult>> texts;
  int64_t steps = 0;
};

Searched search(inference::Engine& engine, std::vector<inference::Request> requests) {
  Searched searched;
  searched.texts.resize(requests.size());
  std::vector<inference::RequestId> ids;
  for (inference::Request& request : requests) ids.push_back(engine.submit(std::move(request)));
  const int64_t before = engine.statistics().steps;
  while (!engine.idle()) {
    for (inference::RequestUpdate& update : engine.step()) {
      MG_CHECK(update.finish != inference::Finish::failed, "{}", update.error);
      const auto row = std::ranges::find(ids, update.id) - ids.begin();
      if (update.finish) searched.texts[static_cast<size_t>(row)] = std::move(update.beams);
    }
  }
  searched.steps = engine.statistics().steps - before;
  return searched;
}

void compare_case(const Json& of_case, const Searched& searched, const std::string& name,
                  Report& report) {
  const int64_t steps = of_case["steps"].as_integer();
  report.expect("steps", name,
                steps == searched.steps ? std::string()
                                        : fmt::format("{}, expected {}", searched.steps, steps));
  const Json::Array& expected = of_case["result"].as_array();
  for (size_t r = 0; r < expected.size(); ++r) {
    const Json::Array& texts = expected[r].as_array();
    const std::vector<BeamResult>& own = searched.texts.at(r);
    report.expect("numbers of texts", fmt::format("{} prompt {}", name, r),
                  own.size() == texts.size()
                      ? std::string()
                      : fmt::format("{}, expected {}", own.size(), texts.size()));
    for (size_t i = 0; i < std::min(own.size(), texts.size()); ++i) {
      const std::string place = fmt::format("{} prompt {} text {}", name, r, i);
      std::vector<int64_t> tokens;
      for (const auto& token : own[i].tokens) tokens.push_back(token.draw.token);
      report.expect("tokens", place, first_difference(tokens, integers_of(texts[i]["tokens"])));
      const double score = texts[i]["score"].as_number();
      report.compare("scores", place, std::abs(own[i].score - score),
                     tolerance::kGoldenLogitsAbsolute * (1 + std::abs(score)));
    }
  }
}

std::vector<Searched> search_all(const std::string& model_directory, const Json::Array& cases,
                                 DeviceKind device, const VerifyOptions& options) {
  const checkpoint::ModelDirectory files(model_directory, options.reading);
  const models::Model model = models::model_of(files);
  models::require_generating_model(model, "beam search");
  std::vector<std::vector<inference::Request>> requests;
  int64_t width = 1, longest = 1;
  for (const Json& one : cases) {
    requests.push_back(requests_of(one));
    int64_t of_case = 0;
    for (const inference::Request& request : requests.back()) {
      request.check(model, model->vocab_size());
      longest = std::max(longest, request.longest_cached(model));
      of_case += request.width();
    }
    width = std::max(width, of_case);
  }
  std::vector<Searched> searched;
  comm::run_ranks(options.ranks(), [&](comm::Group& world) {
    std::unique_ptr<comm::Group> made;
    Runtime runtime({device, 0}, options.threads);
    const inference::EngineGroups groups({.tensor = options.tensor_parallel,
                                          .stages = options.pipeline_parallel,
                                          .experts = options.expert_parallel},
                                         comm::for_device(world, runtime.device(), made));
    const DType type = device == DeviceKind::reference ? DType::f64 : DType::f32;
    const auto stage = training::load_model(files, model, groups, runtime, type, 0);
    const inference::EngineRanks ranks = groups.ranks(true);
    if (!ranks.draws()) return inference::follow(*stage, runtime, ranks);
    const inference::Followers followers(ranks);
    // Nothing is shared between cases, so that each takes the passes that it would take alone.
    inference::Engine engine(
        *stage, runtime, {.max_requests = width, .max_length = longest, .prefix_caching = false},
        ranks);
    for (const auto& of_case : requests) searched.push_back(search(engine, of_case));
  });
  return searched;
}

}  // namespace

bool has_beams(const std::string& directory) {
  return !fs::exists(directory + "/config.json") && !files_with_beams(directory).empty();
}

std::vector<Report> verify_beams(const std::string& directory,
                                 const std::optional<std::string>& models,
                                 const VerifyOptions& options) {
  MG_CHECK(options.data_parallel == 1 && options.context_parallel == 1 &&
               options.expert_tensor_parallel <= 1,
           "{} has beam searches, which run in an engine: it is divided by "
           "--tensor-model-parallel-size, --pipeline-model-parallel-size and "
           "--expert-model-parallel-size only",
           directory);
  std::vector<Report> reports;
  for (const std::string& file : files_with_beams(directory)) {
    const Json::Array cases = Json::read(file)["cases"].as_array();
    const std::string name = fs::path(file).stem(),
                      model = models.value_or(directory + "/../hf") + "/" + name;
    for (const DeviceKind device : options.devices) {
      Report report(fmt::format("{}: beam search on {} in {}{}", file, megatron::name(device),
                                device == DeviceKind::reference ? "f64" : "f32", options.text()));
      try {
        MG_CHECK(fs::exists(model + "/config.json"),
                 "the model {} is not there; give the directory with the models as --models",
                 model);
        const std::vector<Searched> searched = search_all(model, cases, device, options);
        for (size_t i = 0; i < cases.size(); ++i)
          compare_case(cases[i], searched[i], fmt::format("case {}", i), report);
      } catch (const Error& error) {
        report.fail(error.what());
      }
      reports.push_back(std::move(report));
    }
  }
  return reports;
}

}  // namespace megatron::selftest
