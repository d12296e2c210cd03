// Tokenizes records on all threads, and takes the results in the records' order.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "base/progress.h"
#include "base/thread_pool.h"
#include "corpus/chat/chat_reader.h"

namespace megatron::corpus {

// Calls tokenize(record, place) for each record of the files (read_records()), on the pool's
// threads, and take(result) in their order. Throws the error of the first record that has one.
// Shows its progress under `label`. Returns the number of records.
template <class Result>
int64_t for_each_tokenized(const std::vector<std::string>& paths, ThreadPool& pool,
                           const std::string& label,
                           const std::function<Result(const Json&, std::string)>& tokenize,
                           const std::function<void(Result&)>& take) {
  constexpr size_t kTogether = 512;
  std::vector<std::pair<Json, std::string>> records;
  const auto flush = [&] {
    std::vector<Result> results(records.size());
    std::vector<std::exception_ptr> failures(records.size());  // the first one in order is thrown
    pool.parallel_for(std::ssize(records), [&](int64_t i, int) {
      const auto at = static_cast<size_t>(i);
      try {
        results[at] = tokenize(records[at].first, std::move(records[at].second));
      } catch (...) {
        failures[at] = std::current_exception();
      }
    });
    for (size_t i = 0; i < results.size(); ++i) {
      if (failures[i] != nullptr) std::rethrow_exception(failures[i]);
      take(results[i]);
    }
    records.clear();
  };
  Progress progress(label, -1, "records");
  int64_t read = 0;
  read_records(paths, [&](Json record, std::string place) {
    records.emplace_back(std::move(record), std::move(place));
    ++read;
    if (records.size() < kTogether) return true;
    flush();
    progress.update(read);
    return true;
  });
  flush();
  progress.update(read);
  return read;
}

}  // namespace megatron::corpus
