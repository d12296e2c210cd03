// Folders of data sets' vectors in which a test changes a value.
#pragma once

#include <filesystem>
#include <functional>
#include <string>

#include "base/error.h"
#include "base/files.h"
#include "base/json.h"
#include "selftest/report.h"
#include "support.h"

namespace megatron::selftest {

// The first failure of verify() after a change of one JSON file of a copy of the folder.
inline std::string first_failure_after(const std::string& folder, const std::string& file,
                                       const std::function<void(Json&)>& change,
                                       Report (*verify)(const std::string& directory)) {
  const testing::TemporaryDirectory place;
  std::filesystem::copy(folder, place / "v", std::filesystem::copy_options::recursive);
  Json json = Json::read(place / "v/" + file);
  change(json);
  write_file(place / "v/" + file, json.dump());
  const Report report = verify(place / "v");
  return report.passed() ? "passed" : report.failures()[0];
}

// An object's value, to be changed; it must exist.
inline Json& member(Json& object, const std::string& key) {
  for (auto& [name, value] : object.as_object())
    if (name == key) return value;
  fail("there is no {}", key);
}

inline Json& first_sample(Json& json, const std::string& split) {
  return member(member(member(json, "splits"), split), "samples").as_array()[0];
}

}  // namespace megatron::selftest
