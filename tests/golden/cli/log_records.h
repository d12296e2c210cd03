// Records of a run's log.jsonl.
#pragma once

#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/files.h"
#include "base/json.h"

namespace megatron::testing {

// Those of one type ("step", "validation"), in order. run: the folder of --save.
inline std::vector<Json> log_records(const std::filesystem::path& run, std::string_view type) {
  std::vector<Json> all;
  const std::string text = read_file((run / "log.jsonl").string());
  for (size_t at = 0, end; (end = text.find('\n', at)) != text.npos; at = end + 1) {
    Json record = Json::parse(std::string_view(text).substr(at, end - at));
    if (record["type"].as_string() == type) all.push_back(std::move(record));
  }
  return all;
}

}  // namespace megatron::testing
