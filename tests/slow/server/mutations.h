// Inputs with a few changes, and checks of the code that reads them.
#pragma once

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "base/philox.h"

namespace megatron::testing {

constexpr auto kLongestRead = std::chrono::seconds(10);
constexpr int64_t kMaxGrowth = int64_t{1} << 30;  // bytes, for all inputs of a kind together

// Texts and numbers that often break parsers.
inline constexpr std::array<std::string_view, 40> kFragments = {"0",
                                                                "-1",
                                                                "1e308",
                                                                "1e999",
                                                                "-0.0",
                                                                "18446744073709551616",
                                                                "9223372036854775807",
                                                                "2147483648",
                                                                "4294967295",
                                                                "null",
                                                                "true",
                                                                "[]",
                                                                "{}",
                                                                "\"\"",
                                                                "\"a\"",
                                                                "[[[[[[[[",
                                                                "{\"a\":",
                                                                "}}}}",
                                                                "]]]]",
                                                                ",",
                                                                ":",
                                                                "\"",
                                                                "\\",
                                                                "\\ud800",
                                                                "\\u0000",
                                                                "\xff",
                                                                "\xed\xa0\x80",
                                                                "\xf0\x9f\x98\x80",
                                                                "(a*)*",
                                                                "[^",
                                                                "{1,1000}",
                                                                "(?=",
                                                                "|",
                                                                "{{",
                                                                "}}",
                                                                "{%",
                                                                "%}",
                                                                " * 99999999",
                                                                "\r\n\r\n",
                                                                "\n"};

// Random choices for one kind of input, reproducible from its name.
class Mutator {
 public:
  explicit Mutator(std::string_view kind) : random_(7, kind) {}

  size_t below(size_t n) { return random_.bits(at_++) % std::max<size_t>(n, 1); }

  // Returns one of the seeds with one to six changes.
  std::string from(const std::vector<std::string>& seeds) {
    std::string text = seeds[below(seeds.size())];
    for (size_t changes = 1 + below(6); changes > 0; --changes) change(text, seeds);
    return text;
  }

 private:
  void change(std::string& text, const std::vector<std::string>& seeds) {
    const size_t place = below(text.size() + 1), length = 1 + below(16);
    switch (below(9)) {
      case 0:
        if (place < text.size()) text[place] = static_cast<char>(below(256));
        break;
      case 1:
        if (place < text.size()) text[place] ^= static_cast<char>(1 << below(8));
        break;
      case 2: text.erase(std::min(place, text.size()), length); break;
      case 3: text.insert(place, kFragments[below(kFragments.size())]); break;
      case 4: {
        const std::string part = text.substr(place, length);
        for (size_t times = 1 + below(50); times > 0; --times) text.insert(place, part);
        break;
      }
      case 5: {
        const std::string& other = seeds[below(seeds.size())];
        text.insert(place, other.substr(below(other.size()), 1 + below(64)));
        break;
      }
      case 6: text.resize(place); break;
      case 7: replace_number(text, place); break;
      default: {  // overwrites eight bytes with a binary number
        const std::array<uint64_t, 4> numbers = {0, ~uint64_t{0}, uint64_t{1} << 62,
                                                 below(1 << 20)};
        const uint64_t number = numbers[below(numbers.size())];
        if (place + sizeof number <= text.size())
          text.replace(place, sizeof number,
                       std::string(reinterpret_cast<const char*>(&number), sizeof number));
      }
    }
  }

  // Replaces the next decimal number after a position by one of kFragments.
  void replace_number(std::string& text, size_t place) {
    constexpr std::string_view kDigits = "0123456789";
    const size_t begin = text.find_first_of(kDigits, place);
    if (begin == text.npos) return;
    const size_t end = std::min(text.find_first_not_of(kDigits, begin), text.size());
    text.replace(begin, end - begin, kFragments[below(kFragments.size())]);
  }

  RandomStream random_;
  uint64_t at_ = 0;
};

// Ends the process if a read takes longer than kLongestRead, and saves its input to a file.
class Watch {
 public:
  explicit Watch(std::string kind)
      : kind_(std::move(kind)), thread_([this](std::stop_token stop) {
          while (!stop.stop_requested()) {
            std::this_thread::sleep_for(std::chrono::milliseconds(200));
            const int64_t began = began_;
            if (began != 0 && now() - began > std::chrono::nanoseconds(kLongestRead).count()) {
              write_file("hanging-" + kind_, input_);
              std::fprintf(stderr,
                           "an input of the kind '%s' is read for more than 10 s: hanging-%s\n",
                           kind_.c_str(), kind_.c_str());
              std::abort();
            }
          }
        }) {}

  void begin(const std::string& input) {
    input_ = input;
    began_ = now();
  }
  void end() { began_ = 0; }

 private:
  static int64_t now() { return std::chrono::steady_clock::now().time_since_epoch().count(); }

  std::string kind_, input_;
  std::atomic<int64_t> began_ = 0;
  std::jthread thread_;
};

inline int64_t peak_bytes() {
  rusage usage{};
  ::getrusage(RUSAGE_SELF, &usage);
  return int64_t{usage.ru_maxrss} << 10;
}

// Reads `count` inputs, each of which must be accepted or refused with an Error. Returns the number
// accepted.
inline int64_t read_all(const std::string& kind, int64_t count,
                        const std::vector<std::string>& seeds,
                        const std::function<void(const std::string&)>& read) {
  Mutator mutator(kind);
  Watch watch(kind);
  for (const std::string& seed : seeds) read(seed);  // throws if a seed itself is not accepted
  const int64_t before = peak_bytes();
  int64_t taken = 0;
  for (int64_t i = 0; i < count; ++i) {
    const std::string input = mutator.from(seeds);
    watch.begin(input);
    try {
      read(input);
      ++taken;
    } catch (const Error& error) {
      EXPECT_FALSE(std::string_view(error.what()).empty());
    } catch (const std::exception& error) {
      write_file("failing-" + kind, input);
      ADD_FAILURE() << kind << " " << i << " (failing-" << kind << "): " << error.what();
      return taken;
    }
    watch.end();
  }
  EXPECT_LT(peak_bytes() - before, kMaxGrowth) << kind;
  std::printf("%-24s %8ld inputs, %7ld of them taken, %5ld MB more memory\n", kind.c_str(), count,
              taken, (peak_bytes() - before) >> 20);
  EXPECT_GT(taken, 0) << kind;
  EXPECT_LT(taken, count) << kind;
  return taken;
}

}  // namespace megatron::testing
