// TensorBoard's event files: DIR/events.out.tfevents.<seconds>.<host>.<process>.0, read by
// TensorBoard and its Python package.
//
// A file is a sequence of records: u64 length | u32 masked CRC-32C of the length | data | u32
// masked CRC-32C of the data (little-endian; TFRecord). The data is a protobuf message Event:
// wall_time (1, double), step (2, int64), and one of file_version (3), summary (5), session_log
// (7).
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "report/log/append_file.h"
#include "report/log/record.h"

namespace megatron::report {

// CRC-32C (Castagnoli: polynomial 0x1EDC6F41, reflected, with initial value and final exclusive or
// of all ones).
uint32_t crc32c(std::string_view bytes);
// TFRecord's masked CRC: the CRC rotated right by 15 bits, plus 0xa282ead8.
uint32_t masked_crc32c(std::string_view bytes);

// One event file. Calls throw Error if it cannot be written.
class EventFile {
 public:
  // Begins with the version and a mark that voids the events of other files of the folder at
  // `first_step` and later. Its name sorts after theirs.
  EventFile(const std::string& folder, int64_t first_step, double time);

  using Scalars = std::vector<std::pair<std::string, double>>;  // tag and value, stored as f32
  void scalars(int64_t step, double time, const Scalars& values);
  void text(int64_t step, double time, const std::string& tag, const std::string& markdown);
  const std::string& path() const { return file_.path(); }

 private:
  void event(int64_t step, double time, int what, std::string_view message);

  AppendFile file_;
};

// A run's records under Megatron-LM's tags (docs/log.md). Curves over consumed samples have their
// own folder, DIR/vs_samples, since their steps are samples, so that a resumed run voids other
// steps there than here.
class TensorBoard {
 public:
  TensorBoard(const std::string& folder, const RunRecord& run, double time);

  void step(const StepRecord& record, double time);
  void validation(const ValidationRecord& record, double time);
  void sample(const SampleRecord& record, double time);

 private:
  // first_sample: the first sample whose points belong to this run.
  void over_samples(int64_t first_sample, double time, const EventFile::Scalars& values);

  std::string samples_folder_;
  EventFile file_;
  std::unique_ptr<EventFile> samples_file_;  // created with the first point
  int64_t consumed_samples_ = 0;             // by the end of the last step
};

}  // namespace megatron::report
