#include "checkpoint/fingerprint.h"

#include <algorithm>
#include <filesystem>
#include <vector>

#include "base/files.h"
#include "checkpoint/file_list.h"

namespace megatron::checkpoint {
namespace {

namespace fs = std::filesystem;

std::string line_of(const fs::path& path, const std::string& name) {
  constexpr size_t kPieces = 64, kPiece = 64 << 10;
  const MappedFile file(path.string());
  const std::span<const std::byte> bytes = file.bytes();
  std::string sums;
  if (bytes.size() <= kPieces * kPiece) {
    sums = hexadecimal(checksum(bytes));
  } else {
    for (size_t i = 0; i < kPieces; ++i) {
      const size_t at = (bytes.size() - kPiece) * i / (kPieces - 1);
      sums += hexadecimal(checksum(bytes.subspan(at, kPiece)));
    }
  }
  return (name.empty() ? path.filename().string() : name) + " " + std::to_string(bytes.size()) +
         " " + sums + "\n";
}

}  // namespace

std::string fingerprint(const std::string& path, const std::string& name) {
  std::vector<fs::path> files;
  if (fs::is_directory(path)) {
    for (const auto& entry : fs::directory_iterator(path))
      if (entry.is_regular_file()) files.push_back(entry.path());
  } else {
    files.emplace_back(path);
  }
  std::ranges::sort(files);
  std::string lines;
  for (const fs::path& file : files) lines += line_of(file, name);
  return hexadecimal(checksum(lines));
}

}  // namespace megatron::checkpoint
