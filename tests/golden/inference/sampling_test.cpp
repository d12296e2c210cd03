// The distribution from which tokens are drawn, compared with transformers' logits processors.
#include "inference/sampling.h"

#include <gtest/gtest.h>

#include <fstream>
#include <limits>

#include "base/json.h"

namespace megatron::inference {
namespace {

std::vector<Json> lines_of(const std::string& name) {
  std::ifstream file(std::string(MEGATRON_GOLDEN) + "/sampling/" + name);
  std::vector<Json> all;
  for (std::string text; std::getline(file, text);) all.push_back(Json::parse(text, name));
  return all;
}

std::vector<std::vector<float>> all_logits() {
  std::vector<std::vector<float>> rows;
  for (const Json& line : lines_of("logits.jsonl")) {
    std::vector<float>& row = rows.emplace_back();
    for (const Json& logit : line.as_array()) {
      row.push_back(logit.is_null() ? -std::numeric_limits<float>::infinity()
                                    : static_cast<float>(logit.as_number()));
    }
  }
  return rows;
}

std::vector<int32_t> ids_of(const Json& json) {
  std::vector<int32_t> ids;
  for (const Json& id : json.as_array()) ids.push_back(static_cast<int32_t>(id.as_integer()));
  return ids;
}

SamplingOptions options_of(const Json& line) {
  SamplingOptions o;
  const auto number = [&](const char* name, double& value) {
    if (const Json* given = line.find(name)) value = given->as_number();
  };
  const auto integer = [&](const char* name, int64_t& value) {
    if (const Json* given = line.find(name)) value = given->as_integer();
  };
  number("temperature", o.temperature);
  integer("top_k", o.top_k);
  number("top_p", o.top_p);
  number("min_p", o.min_p);
  number("repetition_penalty", o.repetition_penalty);
  number("presence_penalty", o.presence_penalty);
  number("frequency_penalty", o.frequency_penalty);
  integer("min_tokens", o.min_tokens);
  if (const Json* bias = line.find("logit_bias")) {
    for (const auto& [id, value] : bias->as_object())
      o.logit_bias[std::stoi(id)] = value.as_number();
  }
  o.check();
  return o;
}

TEST(Probabilities, EqualTransformers) {
  const std::vector<std::vector<float>> rows = all_logits();
  const std::vector<Json> cases = lines_of("cases.jsonl");
  EXPECT_GT(cases.size(), 200u);
  for (const Json& line : cases) {
    SCOPED_TRACE(line.dump().substr(0, 500));
    const std::vector<float>& logits = rows.at(static_cast<size_t>(line["logits"].as_integer()));
    std::vector<int32_t> tokens = ids_of(line["prompt"]);
    const size_t prompt = tokens.size();
    for (const int32_t id : ids_of(line["generated"])) tokens.push_back(id);
    const std::vector<int32_t> end_tokens = ids_of(line["end_tokens"]);
    std::vector<uint64_t> allowed;
    if (const Json* given = line.find("allowed")) {
      allowed.resize((logits.size() + 63) / 64);
      for (const int32_t id : ids_of(*given))
        allowed[static_cast<size_t>(id) / 64] |= uint64_t{1} << (id % 64);
    }
    const std::vector<double> found = probabilities(
        logits, {.tokens = tokens, .prompt = prompt, .end_tokens = end_tokens, .allowed = allowed},
        options_of(line));

    std::vector<double> expected(logits.size());
    const std::vector<int32_t> ids = ids_of(line["ids"]);
    for (size_t i = 0; i < ids.size(); ++i)
      expected[static_cast<size_t>(ids[i])] = line["probabilities"].as_array()[i].as_number();
    for (size_t id = 0; id < logits.size(); ++id)
      EXPECT_NEAR(found[id], expected[id], 1e-12 * expected[id]) << "token " << id;
  }
}

}  // namespace
}  // namespace megatron::inference
