#include "report/log/progress_file.h"

#include <fmt/chrono.h>
#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <ctime>
#include <optional>
#include <string_view>

#include "base/files.h"
#include "base/text_parts.h"
#include "report/log/append_file.h"
#include "report/log/machine.h"

namespace megatron::report {
namespace {

constexpr std::string_view kStart = "Starting job", kSaved = "Saved checkpoint";
constexpr const char* kTime = "%Y-%m-%d %H:%M:%S";  // local time, as Megatron-LM writes it

// Parses the number after "name: ".
std::optional<double> number_of(std::string_view field) {
  const size_t colon = field.find(": ");
  if (colon == field.npos) return std::nullopt;
  field.remove_prefix(colon + 2);
  double value = 0;
  const auto [end, error] = std::from_chars(field.data(), field.data() + field.size(), value);
  return error == std::errc() ? std::optional(value) : std::nullopt;
}

std::optional<double> time_of(std::string_view text) {
  std::tm time{};
  if (::strptime(std::string(text).c_str(), kTime, &time) == nullptr) return std::nullopt;
  time.tm_isdst = -1;
  return static_cast<double>(std::mktime(&time));
}

std::string local_time(double seconds) {
  const auto whole = static_cast<std::time_t>(seconds);
  std::tm time{};
  ::localtime_r(&whole, &time);
  return fmt::format("{:%Y-%m-%d %H:%M:%S}", time);
}

}  // namespace

ProgressStart progress_start(const std::string& text, int ranks) {
  ProgressStart start;
  double flops = 0;
  for (std::string_view rest = text; !rest.empty();) {
    const auto fields = split_text(take_until(rest, '\n'), '\t');
    if (fields.size() < 4) continue;
    if (fields[3] == kSaved && fields.size() > 7) flops = number_of(fields[7]).value_or(flops);
    if (number_of(fields[2]) != ranks) {
      start.found = false;
    } else if (fields[3] == kStart && !start.found) {
      const std::optional<double> time = time_of(fields[0]);
      if (time) start = {true, *time, flops};
    }
  }
  return start;
}

ProgressFile::ProgressFile(const std::string& save_directory, int ranks, double flops)
    : path_(save_directory + "/progress.txt"),
      ranks_(ranks),
      job_begin_(seconds_since_1970()),
      job_flops_(flops) {
  append(std::string(kStart));
  const ProgressStart start = progress_start(read_file(path_), ranks);
  begin_ = start.found ? start.time : job_begin_;
  flops_ = start.found ? start.flops : job_flops_;
}

void ProgressFile::saved(int64_t iteration, double flops, double tokens) {
  const double now = seconds_since_1970();
  const auto rate = [&](double begin, double before) {
    const double seconds = std::max(now - begin, 1e-3);
    return (flops - before) / seconds / ranks_ * 1e-12;
  };
  append(fmt::format(
      "{}\tIteration: {}\tJob throughput: {:.1f} TFLOP/s/GPU\tCumulative "
      "throughput: {:.1f} TFLOP/s/GPU\tFloating-point operations: {:.2e}\tTokens "
      "(in billions): {:.2f}",
      kSaved, iteration, rate(job_begin_, job_flops_), rate(begin_, flops_), flops, tokens * 1e-9));
}

void ProgressFile::append(const std::string& text) const {
  const char* const job = std::getenv("SLURM_JOB_ID");
  AppendFile(path_, AppendFile::Open::append)
      .write(fmt::format("{}\tJob ID: {}\t# GPUs: {}\t{}\n", local_time(seconds_since_1970()),
                         job == nullptr ? "" : job, ranks_, text));
}

}  // namespace megatron::report
