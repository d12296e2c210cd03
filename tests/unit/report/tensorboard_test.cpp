#include "report/log/tensorboard.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "unit/report/event_reader.h"
#include "unit/report/log_support.h"

namespace megatron::report {
namespace {

using namespace log_test;

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path().string());
  }
  std::sort(paths.begin(), paths.end());
  return paths;
}

// RFC 3720, appendix B.4, and the check value of the CRC catalogue.
TEST(Crc32c, KnownValues) {
  EXPECT_EQ(report::crc32c(""), 0u);
  EXPECT_EQ(report::crc32c("123456789"), 0xe3069283u);
  EXPECT_EQ(report::crc32c(std::string(32, '\0')), 0x8a9136aau);
  EXPECT_EQ(report::crc32c(std::string(32, '\xff')), 0x62a8ab43u);
  std::string up(32, 0);
  std::iota(up.begin(), up.end(), '\0');
  EXPECT_EQ(report::crc32c(up), 0x46dd794eu);
  EXPECT_EQ(report::crc32c(std::string(up.rbegin(), up.rend())), 0x113fdb5cu);
}

TEST(Crc32c, Masked) {
  const uint32_t crc = 0xe3069283u;
  EXPECT_EQ(report::masked_crc32c("123456789"), (crc >> 15 | crc << 17) + 0xa282ead8u);
}

// The first record of every TensorFlow event file byte by byte, except for its time.
TEST(EventFile, TheFirstRecordIsAsTensorFlowWritesIt) {
  const TemporaryDirectory folder;
  const report::EventFile file(folder.path(), 0, 0.0);
  const std::string bytes = read_file(file.path());
  const std::string data = std::string("\x09\0\0\0\0\0\0\0\0\x10\0\x1a\x0d", 13) + "brain.Event:2";
  ASSERT_EQ(bytes.substr(0, 8), std::string("\x1a\0\0\0\0\0\0\0", 8));
  EXPECT_EQ(bytes.substr(12, data.size()), data);
}

TEST(EventFile, NamesSortInOrderOfTheirBegin) {
  const TemporaryDirectory folder;
  const report::EventFile first(folder.path(), 0, 1700000000.9),
      second(folder.path(), 0, 1700000000.95), third(folder.path(), 0, 1600000000.0);
  EXPECT_NE(first.path().find("/events.out.tfevents.1700000000."), std::string::npos);
  EXPECT_NE(second.path().find("/events.out.tfevents.1700000001."), std::string::npos);
  EXPECT_NE(third.path().find("/events.out.tfevents.1700000002."), std::string::npos);
  EXPECT_TRUE(third.path().ends_with(".0"));
}

TEST(EventFile, ScalarsAndTextsReadBack) {
  const TemporaryDirectory folder;
  report::EventFile file(folder.path(), 41, 12.5);
  file.scalars(300, 13.5, {{"lm loss", 1.0 / 3}, {"b", -2e10}});
  file.text(1'000'000'000'000, 14.5, "sample", std::string(1000, 'x'));
  const std::vector<Event> events = read_events(read_file(file.path()));
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(events[0].version, "brain.Event:2");
  EXPECT_EQ(events[0].time, 12.5);
  EXPECT_TRUE(events[1].start);
  EXPECT_EQ(events[1].step, 41);
  EXPECT_EQ(events[2].step, 300);
  EXPECT_EQ(events[2].time, 13.5);
  EXPECT_EQ(events[2].scalars,
            (std::map<std::string, float>{{"lm loss", 1.0f / 3}, {"b", -2e10f}}));
  EXPECT_EQ(events[3].step, 1'000'000'000'000);
  EXPECT_EQ(events[3].texts.at("sample"), std::string(1000, 'x'));
}

TEST(TensorBoard, HasMetricsOfEachLayer) {
  const TemporaryDirectory folder;
  report::TensorBoard board(folder.path(), some_run(), 1);
  report::StepRecord r = some_step(1);
  r.metrics = {{"expert_load", 1.5, {{1, 1.25}, {4, 1.75}}}};
  board.step(r, 2);
  const std::vector<Event> events = read_events(read_file(event_files(folder.path()).at(0)));
  const auto& scalars = events.back().scalars;
  EXPECT_EQ(scalars.at("expert_load"), 1.5f);
  EXPECT_EQ(scalars.at("expert_load/layer_1"), 1.25f);
  EXPECT_EQ(scalars.at("expert_load/layer_4"), 1.75f);
}

TEST(TensorBoard, TagsOfMegatronOverIterationsAndOverSamples) {
  const TemporaryDirectory folder;
  report::TensorBoard board(folder.path(), some_run(), 1);
  board.step(some_step(1), 2);
  board.step(some_step(2), 3);
  board.validation({2, "valid", 2, 10}, 4);
  board.validation({2, "second", 3, 10}, 4);
  board.sample({2, "Once", " upon\na time"}, 5);

  const std::vector<Event> events = read_events(read_file(event_files(folder.path()).at(0)));
  ASSERT_EQ(events.size(), 8u);
  EXPECT_EQ(events[1].step, 0);
  const std::string& configuration = events[2].texts.at("configuration");
  EXPECT_NE(configuration.find("| --lr | 3e-3 |\n"), std::string::npos) << configuration;
  EXPECT_NE(configuration.find("| --data-path | a\\|b |\n"), std::string::npos) << configuration;
  EXPECT_NE(configuration.find("| num_layers | 4 |\n"), std::string::npos) << configuration;
  EXPECT_EQ(events[4].step, 2);
  EXPECT_EQ(events[4].scalars, (std::map<std::string, float>{{"lm loss", 2.5f},
                                                             {"learning-rate", 1e-3f},
                                                             {"batch-size", 8},
                                                             {"grad-norm", 0.3f},
                                                             {"weight-decay", 0.1f},
                                                             {"iteration-time", 0.25f},
                                                             {"throughput", 0.15f},
                                                             {"tokens-per-second", 512},
                                                             {"peak-share", 0.75f},
                                                             {"data-wait", 0.01f},
                                                             {"communication-wait", 0.02f},
                                                             {"save-wait", 0.03f},
                                                             {"mem-parameters-bytes", 1},
                                                             {"mem-gradients-bytes", 2},
                                                             {"mem-optimizer-bytes", 3},
                                                             {"mem-activations-bytes", 4},
                                                             {"mem-scratch-bytes", 5},
                                                             {"mem-communication-bytes", 6},
                                                             {"mem-process-bytes", 7}}));
  EXPECT_EQ(events[5].scalars.at("lm loss validation"), 2);
  EXPECT_EQ(events[5].scalars.at("lm loss validation ppl"), std::exp(2.0f));
  EXPECT_EQ(events[6].scalars.at("lm loss validation second"), 3);
  EXPECT_EQ(events[7].texts.at("sample"), "    Once upon\n    a time");

  const std::vector<Event> samples =
      read_events(read_file(event_files(folder / "vs_samples").at(0)));
  ASSERT_EQ(samples.size(), 6u);
  EXPECT_EQ(samples[1].step, 1);
  EXPECT_EQ(samples[3].step, 16);
  EXPECT_EQ(samples[3].scalars, (std::map<std::string, float>{{"lm loss vs samples", 2.5f},
                                                              {"learning-rate vs samples", 1e-3f},
                                                              {"batch-size vs samples", 8},
                                                              {"grad-norm vs samples", 0.3f}}));
  EXPECT_EQ(samples[4].step, 16);
  EXPECT_EQ(samples[4].scalars.at("lm loss validation vs samples"), 2);
}

TEST(TensorBoard, MetricsAreCurvesByTheirNames) {
  const TemporaryDirectory folder;
  report::StepRecord r = some_step(3);
  r.metrics = {{"z_loss", 0.25}};
  report::TensorBoard(folder.path(), some_run(), 1).step(r, 2);
  const std::vector<Event> events = read_events(read_file(event_files(folder.path()).at(0)));
  EXPECT_EQ(events.back().scalars.at("z_loss"), 0.25f);
}

TEST(TensorBoard, AResumedRunBeginsAFileThatVoidsWhatLiesBeyond) {
  const TemporaryDirectory folder;
  {
    report::TensorBoard board(folder.path(), some_run(), 1);
    for (int64_t i = 1; i <= 30; ++i) board.step(some_step(i), 2);
  }
  {
    report::TensorBoard board(folder.path(), some_run(20), 1);
    board.step(some_step(21), 2);
  }
  const std::vector<std::string> files = event_files(folder.path());
  ASSERT_EQ(files.size(), 2u);
  const std::vector<Event> events = read_events(read_file(files[1]));
  EXPECT_TRUE(events[1].start);
  EXPECT_EQ(events[1].step, 21);
  const std::vector<Event> samples =
      read_events(read_file(event_files(folder / "vs_samples").at(1)));
  EXPECT_TRUE(samples[1].start);
  EXPECT_EQ(samples[1].step, 8 * 20 + 1);
}

}  // namespace
}  // namespace megatron::report
