// Files that a command writes for its user: checks that one may be written, and writes it
// atomically. No command replaces one of its inputs, or a file of another kind.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace megatron {

// A kind of file, recognised by its content.
struct FileKind {
  std::string_view name;  // noun in errors: "a report"
  // beginning: the first kRecognisedBytes of a non-empty file, or all of it.
  bool (*recognised)(std::string_view beginning);
};
constexpr size_t kRecognisedBytes = 64 << 10;

// First line of a text, without its end; for kinds that are recognised by it.
std::string_view first_line(std::string_view beginning);

// A file that a command is about to write.
struct CommandOutput {
  std::string path;
  std::string flag;  // the flag that gives it: "--output"
  FileKind kind;
  // false: an existing file of this kind is also refused, and the error names --overwrite. None:
  // the command has no such flag.
  std::optional<bool> overwrite = {};
};

// Throws Error, naming the flag, if `output` is one of `inputs` under any name or link (files only;
// a directory is compared as such), or exists and is not of its kind. Permitted outputs are a free
// name, an empty file, a file of the kind, and anything that holds no bytes (a pipe, a terminal,
// /dev/null).
void check_output(const CommandOutput& output, const std::vector<std::string>& inputs);

// The same for the inputs alone.
void check_not_input(const std::string& path, const std::string& flag,
                     const std::vector<std::string>& inputs);

// An output after check_output(). A regular file is written atomically at commit() (AtomicFile); a
// link is kept, and its target is replaced. Pipes, terminals, devices, and standard output under a
// file name (/dev/stdout, /dev/fd/1) are also written at commit().
class CommandOutputFile {
 public:
  explicit CommandOutputFile(const std::string& path);

  void write(std::string_view text);
  void commit();

 private:
  std::string path_;
  std::optional<AtomicFile> file_;
  std::string text_;  // used if the output is not a regular file
};

}  // namespace megatron
