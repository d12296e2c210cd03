#include "base/resumable_lines.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/command_output.h"
#include "base/error.h"
#include "base/log.h"
#include "base/shorten.h"

namespace megatron {
namespace {

constexpr std::string_view kSettings = "settings of the lines below";

bool is_regular_or_absent(const std::string& path) {
  struct stat status;
  return ::stat(path.c_str(), &status) != 0 || S_ISREG(status.st_mode);
}

std::string shown(const Json* value) {
  return value == nullptr ? "not given" : shortened(value->dump(), 100);
}

}  // namespace

ResumableLines::ResumableLines(Options options)
    : options_(std::move(options)),
      partial_(options_.path + ".partial"),
      places_(static_cast<size_t>(options_.count)) {
  if (is_regular_or_absent(options_.path)) open();
}

ResumableLines::~ResumableLines() {
  if (file_ && done_ == 0) ::unlink(partial_.c_str());
}

void ResumableLines::open() {
  make_directories(folder_of(partial_));
  MG_CHECK(is_regular_or_absent(partial_),
           "{} {}: '{}', which holds the results until all are done, is not a regular file: choose "
           "another name",
           options_.flag, options_.path, partial_);
  file_ = std::make_unique<OutputFile>(partial_, O_RDWR | O_CREAT | O_APPEND, system_files());
  MG_CHECK(::flock(file_->number(), LOCK_EX | LOCK_NB) == 0,
           "'{}' is being written by another process: wait for it, or choose another {}", partial_,
           options_.flag);
  take_up();
  if (size_ == 0) begin();
}

void ResumableLines::take_up() {
  const MappedFile mapped(partial_);
  const std::string_view text(reinterpret_cast<const char*>(mapped.bytes().data()),
                              mapped.bytes().size());
  for (size_t at = 0, end = 0; (end = text.find('\n', at)) != text.npos; at = end + 1) {
    const std::string_view line = text.substr(at, end - at);
    if (at == 0) {
      const Json settings = settings_in(line);
      const auto lines = std::ranges::count(text, '\n') - 1;
      if (lines == 0) break;  // nothing would be lost
      compare(settings, lines);
    } else if (const auto number = number_in(line)) {
      places_[static_cast<size_t>(*number)] = {static_cast<int64_t>(at), std::ssize(line)};
      ++done_;
    } else {
      break;
    }
    size_ = static_cast<int64_t>(end) + 1;
  }
  if (size_ < std::ssize(text)) file_->resize(size_);
}

Json ResumableLines::settings_in(std::string_view line) const {
  try {
    return Json::parse(line)[kSettings];
  } catch (const Error&) {
    fail("'{}' exists and is not the unfinished output of {} {}: remove it, or choose another name",
         partial_, options_.flag, options_.path);
  }
}

std::optional<int64_t> ResumableLines::number_in(std::string_view line) const {
  try {
    const int64_t number = options_.number(Json::parse(line));
    if (number >= 0 && number < options_.count && !has(number)) return number;
  } catch (const Error&) {  // truncated or modified
  }
  log::warning("'{}': everything after the first {} results is damaged and is computed again",
               partial_, done_);
  return {};
}

void ResumableLines::compare(const Json& earlier, int64_t lines) const {
  std::string differences;
  const auto note = [&](const std::string& name, const Json* was, const Json* now) {
    differences += fmt::format("{}{} was {} and is now {}", differences.empty() ? "" : "; ", name,
                               shown(was), shown(now));
  };
  for (const auto& [name, value] : options_.settings.as_object()) {
    const Json* was = earlier.find(name);
    if (was == nullptr || !(*was == value)) note(name, was, &value);
  }
  for (const auto& [name, value] : earlier.as_object())
    if (!options_.settings.contains(name)) note(name, &value, nullptr);
  MG_CHECK(differences.empty(),
           "'{}' has {} lines of an earlier run with different settings: {}. Use the same settings "
           "to finish it, remove it to start over, or choose another {}",
           partial_, lines, differences, options_.flag);
}

void ResumableLines::begin() {
  const std::string text =
      Json(Json::Object{{std::string(kSettings), options_.settings}}).dump() + "\n";
  file_->write(std::as_bytes(std::span(text)));
  size_ = std::ssize(text);
  sync();
  sync_directory(folder_of(partial_));
}

void ResumableLines::sync() {
  file_->sync();
  synced_ = std::chrono::steady_clock::now();
}

std::string ResumableLines::line(int64_t number) const {
  const Place place = places_[static_cast<size_t>(number)].value();
  const auto begin = static_cast<size_t>(place.begin), size = static_cast<size_t>(place.size);
  if (!file_) return memory_.substr(begin, size);
  std::string text(size, '\0');
  for (size_t read = 0; read < size;) {
    const ssize_t n =
        ::pread(file_->number(), text.data() + read, size - read, static_cast<off_t>(begin + read));
    if (n < 0 && errno == EINTR) continue;
    MG_CHECK(n > 0, "cannot read '{}': {}", partial_,
             n < 0 ? std::strerror(errno) : "it was truncated in the meantime");
    read += static_cast<size_t>(n);
  }
  return text;
}

void ResumableLines::append(int64_t number, std::string_view line) {
  MG_ASSERT(!has(number) && line.find('\n') == line.npos);
  places_[static_cast<size_t>(number)] = {size_, std::ssize(line)};
  const std::string text = std::string(line) + "\n";
  size_ += std::ssize(text);
  ++done_;
  if (!file_) {
    memory_ += text;
    return;
  }
  file_->write(std::as_bytes(std::span(text)));
  if (std::chrono::steady_clock::now() - synced_ >= options_.sync_interval) sync();
}

void ResumableLines::commit() {
  MG_ASSERT(done_ == options_.count);
  CommandOutputFile out(options_.path);
  for (int64_t n = 0; n < options_.count; ++n) out.write(line(n) + "\n");
  out.commit();
  if (!file_) return;
  remove_tree(partial_);
  file_.reset();
}

}  // namespace megatron
