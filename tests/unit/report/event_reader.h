// Reads TensorBoard's event files by the documented format, and checks every length and checksum.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "report/log/tensorboard.h"

namespace megatron::report::log_test {

class MessageFields {
 public:
  // The fields of a protobuf message: number -> values. Numbers are stored as bits.
  explicit MessageFields(std::string_view bytes) {
    size_t at = 0;
    const auto varint = [&] {
      uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        const auto byte = static_cast<unsigned char>(bytes.at(at++));
        value |= static_cast<uint64_t>(byte & 0x7f) << shift;
        if (byte < 0x80) return value;
      }
    };
    while (at < bytes.size()) {
      const uint64_t key = varint();
      const int field = static_cast<int>(key >> 3);
      size_t size = 0;
      switch (key & 7) {
        case 0: numbers[field].push_back(varint()); continue;
        case 1: size = 8; break;
        case 5: size = 4; break;
        case 2: size = varint(); break;
        default: throw std::runtime_error("wire type");
      }
      if (size > bytes.size() - at) throw std::runtime_error("length");
      texts[field].push_back(std::string(bytes.substr(at, size)));
      at += size;
    }
  }
  std::string text(int field) const { return texts.at(field).at(0); }
  MessageFields message(int field) const { return MessageFields(text(field)); }
  uint64_t number(int field) const { return numbers.at(field).at(0); }

  std::map<int, std::vector<uint64_t>> numbers;
  std::map<int, std::vector<std::string>> texts;
};

template <class T>
T value_of(std::string_view bytes) {
  T value;
  if (bytes.size() < sizeof(T)) throw std::runtime_error("short");
  std::memcpy(&value, bytes.data(), sizeof(T));
  return value;
}

struct Event {
  double time = 0;
  int64_t step = 0;
  std::string version;
  bool start = false;
  std::map<std::string, float> scalars;
  std::map<std::string, std::string> texts;
};

inline Event parse_event(std::string_view data) {
  const MessageFields fields(data);
  Event event{.time = value_of<double>(fields.text(1)),
              .step = static_cast<int64_t>(fields.number(2))};
  if (fields.texts.contains(3)) event.version = fields.text(3);
  if (fields.texts.contains(7)) event.start = fields.message(7).number(1) == 1;
  if (!fields.texts.contains(5)) return event;
  const MessageFields summary = fields.message(5);
  for (const std::string& bytes : summary.texts.at(1)) {
    const MessageFields value(bytes);
    const std::string plugin = value.message(9).message(1).text(1);
    if (plugin == "scalars") {
      event.scalars[value.text(1)] = value_of<float>(value.text(2));
    } else {
      event.texts[value.text(1)] = value.message(8).text(8);
    }
  }
  return event;
}

inline std::vector<Event> read_events(std::string_view bytes) {
  std::vector<Event> events;
  while (!bytes.empty()) {
    const auto size = value_of<uint64_t>(bytes);
    if (value_of<uint32_t>(bytes.substr(8)) != report::masked_crc32c(bytes.substr(0, 8)) ||
        size > bytes.size() - 16 ||
        value_of<uint32_t>(bytes.substr(12 + size)) !=
            report::masked_crc32c(bytes.substr(12, size)))
      throw std::runtime_error("a broken record");
    events.push_back(parse_event(bytes.substr(12, size)));
    bytes.remove_prefix(16 + size);
  }
  return events;
}

}  // namespace megatron::report::log_test
