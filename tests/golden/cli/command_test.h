// A test that runs commands in a folder of its own.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/json.h"
#include "golden/cli/log_records.h"
#include "golden/cli/process.h"

namespace megatron::testing {

class CommandTest : public ::testing::Test {
 protected:
  Outcome succeed(const Words& line) const {
    Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 0) << r.out << r.err;
    return r;
  }
  // Expects exit code 2 and an error that has all of these parts.
  void refused(const Words& line, const Words& parts) const {
    const Outcome r = place_.run(line);
    EXPECT_EQ(r.code, 2) << r.out << r.err;
    for (const std::string& part : parts)
      EXPECT_NE(r.err.find(part), std::string::npos) << part << " in\n" << r.err;
  }
  // The losses in the log of the run in a folder. type: of the records, "step" or "validation".
  std::vector<double> losses(const std::string& folder, const char* type = "step") const {
    std::vector<double> all;
    for (const Json& record : log_records(place_ / folder, type))
      all.push_back(record["loss"].as_number());
    return all;
  }

  Workplace place_;
};

}  // namespace megatron::testing
