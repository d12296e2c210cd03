// Files that a command writes for its user: what stands in the way of one, and the one written
// whole or not at all. No command replaces one of its inputs, or a file of another kind.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace megatron {

// A kind of file, recognised by its content.
struct FileKind {
  std::string_view name;  // as errors say it: "a report"
  // beginning: the first kRecognisedBytes of a file that is not empty, or all of it.
  bool (*recognised)(std::string_view beginning);
};
constexpr size_t kRecognisedBytes = 64 << 10;

// The first line of a text, without its end; for kinds that are known by it.
std::string_view first_line(std::string_view beginning);

// What a command is about to write.
struct CommandOutput {
  std::string path;
  std::string flag;  // that names it: "--output"
  FileKind kind;
  // false: a file of this kind that exists is refused, too, and --overwrite named. None: the
  // command has no such flag.
  std::optional<bool> overwrite = {};
};

// Throws Error, which names the flag, when `output` is one of `inputs`, by whatever name or link
// (files; a directory is compared by itself), or exists and is not of its kind. What may be written:
// a name that is free, an empty file, one of the kind, and what holds no bytes (a pipe, a terminal,
// /dev/null).
void check_output(const CommandOutput& output, const std::vector<std::string>& inputs);

// The same of the inputs alone.
void check_not_input(const std::string& path, const std::string& flag,
                     const std::vector<std::string>& inputs);

// An output after check_output(). A regular file appears whole, at commit() (AtomicFile); a link
// stays one, and what it leads to is replaced. Pipes, terminals, devices, and standard output under
// a name of its own (/dev/stdout, /dev/fd/1) are written at commit(), too.
class CommandOutputFile {
 public:
  explicit CommandOutputFile(const std::string& path);

  void write(std::string_view text);
  void commit();

 private:
  std::string path_;
  std::optional<AtomicFile> file_;
  std::string text_;  // for what is not a regular file
};

}  // namespace megatron
