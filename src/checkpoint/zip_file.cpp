#include "checkpoint/zip_file.h"

#include <algorithm>
#include <bit>
#include <cstdint>
#include <cstring>

#include "base/error.h"

namespace megatron::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers of archives are little-endian");

// Records of an archive: their first four bytes, and their bytes without names and other fields of
// variable length.
constexpr uint32_t kLocalRecord = 0x04034b50, kCentralRecord = 0x02014b50, kEndRecord = 0x06054b50,
                   kEnd64Record = 0x06064b50, kLocator64 = 0x07064b50;
constexpr uint64_t kLocalBytes = 30, kCentralBytes = 46, kEndBytes = 22, kEnd64Bytes = 56,
                   kLocator64Bytes = 20;
constexpr uint64_t kLargestComment = 0xffff;
constexpr uint16_t kExtra64 = 1;          // the extra field with 64-bit numbers
constexpr uint32_t kIsIn64 = 0xffffffff;  // placeholder for a number in that field
constexpr uint16_t kEncrypted = 1 | 1 << 13;

class Archive {
 public:
  Archive(std::span<const std::byte> file, const std::string& path) : file_(file), path_(path) {}

  ZipEntries entries() {
    const Directory directory = find_directory();
    ZipEntries entries;
    uint64_t at = directory.begin;
    for (uint64_t i = 0; i < directory.entries; ++i) at = read_entry(at, directory, entries);
    require(at == directory.end, "its directory has more entries than its end record states");
    return entries;
  }

 private:
  struct Directory {
    uint64_t begin = 0, end = 0, entries = 0;
  };

  void require(bool condition, std::string_view what) const {
    MG_CHECK(condition, "'{}' is damaged: {}; it may have been copied or downloaded in part", path_,
             what);
  }

  template <class T>
  T number(uint64_t at) const {
    require(at <= file_.size() && sizeof(T) <= file_.size() - at,
            "a record extends beyond the end of the file");
    T value;
    std::memcpy(&value, file_.data() + at, sizeof value);
    return value;
  }

  std::string_view text(uint64_t at, uint64_t length) const {
    require(at <= file_.size() && length <= file_.size() - at,
            "a record extends beyond the end of the file");
    return {reinterpret_cast<const char*>(file_.data()) + at, length};
  }

  // The record that ends the archive; only a comment may follow it.
  uint64_t find_end() const {
    const uint64_t size = file_.size();
    for (uint64_t back = kEndBytes; back <= std::min(size, kEndBytes + kLargestComment); ++back) {
      const uint64_t at = size - back;
      if (number<uint32_t>(at) == kEndRecord && number<uint16_t>(at + 20) == back - kEndBytes)
        return at;
    }
    require(false, "the end record of a zip archive is missing");
    return 0;
  }

  Directory find_directory() const {
    uint64_t end = find_end();
    Directory directory{.begin = number<uint32_t>(end + 16), .entries = number<uint16_t>(end + 10)};
    uint64_t bytes = number<uint32_t>(end + 12);
    bool whole = number<uint16_t>(end + 4) == 0 && number<uint16_t>(end + 6) == 0;
    if (end >= kLocator64Bytes && number<uint32_t>(end - kLocator64Bytes) == kLocator64) {
      const uint64_t end64 = number<uint64_t>(end - kLocator64Bytes + 8);
      require(number<uint32_t>(end64) == kEnd64Record && end64 + kEnd64Bytes <= end,
              "its zip64 record is not at the stated position");
      whole = number<uint32_t>(end64 + 16) == 0 && number<uint32_t>(end64 + 20) == 0;
      directory.entries = number<uint64_t>(end64 + 32);
      bytes = number<uint64_t>(end64 + 40);
      directory.begin = number<uint64_t>(end64 + 48);
      end = end64;
    }
    MG_CHECK(whole,
             "'{}' is one part of a split zip archive; files of weights must be whole archives",
             path_);
    require(directory.begin <= end && bytes <= end - directory.begin,
            "its directory is not at the stated position");
    directory.end = directory.begin + bytes;
    return directory;
  }

  // Sizes and offset of the directory entry at `at`, read from its 64-bit field if present.
  struct Numbers {
    uint64_t bytes, stored, local;
  };
  Numbers numbers(uint64_t at, uint64_t extra, uint64_t extra_end) const {
    Numbers n{number<uint32_t>(at + 24), number<uint32_t>(at + 20), number<uint32_t>(at + 42)};
    while (extra_end - extra >= 4) {
      const uint16_t id = number<uint16_t>(extra), length = number<uint16_t>(extra + 2);
      extra += 4;
      require(length <= extra_end - extra, "an extra field extends beyond its record");
      uint64_t value = extra;
      extra += length;
      if (id != kExtra64) continue;
      for (uint64_t* const field : {&n.bytes, &n.stored, &n.local}) {
        if (*field != kIsIn64) continue;
        require(extra - value >= sizeof(uint64_t), "a zip64 field is too short");
        *field = number<uint64_t>(value);
        value += sizeof(uint64_t);
      }
      break;
    }
    return n;
  }

  // Returns the position of the next entry.
  uint64_t read_entry(uint64_t at, const Directory& directory, ZipEntries& entries) const {
    require(at <= directory.end && kCentralBytes <= directory.end - at &&
                number<uint32_t>(at) == kCentralRecord,
            "its directory has fewer entries than its end record states");
    const uint64_t name_bytes = number<uint16_t>(at + 28), extra_bytes = number<uint16_t>(at + 30);
    const uint64_t name_at = at + kCentralBytes, extra = name_at + name_bytes;
    const uint64_t next = extra + extra_bytes + number<uint16_t>(at + 32);
    require(next <= directory.end, "an entry extends beyond the directory");
    const std::string name(text(name_at, name_bytes));
    const uint16_t flags = number<uint16_t>(at + 8), method = number<uint16_t>(at + 10);
    MG_CHECK((flags & kEncrypted) == 0, "'{}': the entry '{}' is encrypted", path_, name);
    const Numbers n = numbers(at, extra, extra + extra_bytes);
    MG_CHECK(method == 0 && n.bytes == n.stored,
             "'{}': the entry '{}' is compressed (method {}), which torch.save does not do; load "
             "the file with torch and save it again",
             path_, name, method);
    const auto data = data_of(name, n, directory.begin);
    MG_CHECK(entries.emplace(name, data).second, "'{}' has two entries named '{}'", path_, name);
    return next;
  }

  std::span<const std::byte> data_of(const std::string& name, const Numbers& n,
                                     uint64_t limit) const {
    require(n.local <= limit && kLocalBytes <= limit - n.local &&
                number<uint32_t>(n.local) == kLocalRecord,
            "an entry is not at the position that the directory states");
    const uint64_t name_bytes = number<uint16_t>(n.local + 26);
    require(text(n.local + kLocalBytes, name_bytes) == name,
            "an entry has a different name than in the directory");
    const uint64_t begin = n.local + kLocalBytes + name_bytes + number<uint16_t>(n.local + 28);
    MG_CHECK(begin <= limit && n.bytes <= limit - begin,
             "'{}' is damaged: the entry '{}' of {} bytes at {} does not end before the directory "
             "at {}",
             path_, name, n.bytes, begin, limit);
    return file_.subspan(begin, n.bytes);
  }

  std::span<const std::byte> file_;
  const std::string& path_;
};

}  // namespace

bool is_zip(std::span<const std::byte> file) {
  return file.size() >= sizeof kLocalRecord &&
         std::memcmp(file.data(), &kLocalRecord, sizeof kLocalRecord) == 0;
}

ZipEntries zip_entries(std::span<const std::byte> file, const std::string& path) {
  return Archive(file, path).entries();
}

}  // namespace megatron::checkpoint
