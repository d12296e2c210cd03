#include "corpus/preprocess_pipeline.h"

#include <fmt/core.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <thread>

#include "base/error.h"
#include "base/progress.h"

namespace megatron::corpus {
namespace {

constexpr int64_t kBlocksAWorker = 4;
constexpr std::chrono::milliseconds kDisplayInterval{100};

}  // namespace

// Documents that are written after all those of the previous partitions.
struct PreprocessPipeline::Partition {
  explicit Partition(const std::string& folder)
      : tokens(folder), lengths(folder), sequences(folder) {}
  data::SpilledBytes tokens;
  data::SpilledList<int32_t> lengths, sequences;
};

struct PreprocessPipeline::Display {
  using Clock = std::chrono::steady_clock;

  Display(int64_t total, std::optional<int64_t> log_interval)
      : bar("tokenizing", total, "B"),
        total_bytes(total),
        interval(::isatty(STDERR_FILENO) == 1 ? 0 : log_interval.value_or(0)) {}

  void print_line(int64_t documents, int64_t tokens, int64_t bytes) {
    if (documents / interval == printed / interval) return;
    printed = documents;
    const double seconds = std::chrono::duration<double>(Clock::now() - begin).count();
    const double rate = static_cast<double>(bytes) / std::max(seconds, 1e-9);
    fmt::print(stderr, "processed {} documents, {} tokens: {} at {}/s, {} left\n", documents,
               format_count(static_cast<double>(tokens)), format_bytes(static_cast<double>(bytes)),
               format_bytes(rate),
               format_duration(static_cast<double>(total_bytes - bytes) / rate));
  }

  Progress bar;
  int64_t total_bytes, interval, printed = 0;
  Clock::time_point begin = Clock::now();
};

PreprocessPipeline::PreprocessPipeline(const DocumentRules& rules, const Vocabulary& vocabulary,
                                       data::TextBlocks& blocks,
                                       std::span<data::IndexedDatasetBuilder* const> outputs,
                                       PipelineOptions options)
    : rules_(rules),
      vocabulary_(vocabulary),
      blocks_(blocks),
      outputs_(outputs.begin(), outputs.end()),
      options_(options) {
  for (const data::IndexedDatasetBuilder* output : outputs_) {
    for (int64_t i = 1; i < rules_.partitions; ++i) partitions_.emplace_back(output->folder());
  }
}

PreprocessPipeline::~PreprocessPipeline() = default;

PipelineTotals PreprocessPipeline::run() {
  Display display(blocks_.total_bytes(), options_.log_interval);
  std::vector<std::thread> threads;
  try {
    for (int i = 0; i < options_.workers; ++i) {
      {
        const std::lock_guard lock(mutex_);
        ++running_;
      }
      threads.emplace_back([this] { work(); });
    }
  } catch (const std::exception& error) {
    {
      const std::lock_guard lock(mutex_);
      --running_;
    }
    stop(std::make_exception_ptr(
        Error(fmt::format("cannot start thread {} of {} ({}); use fewer --workers",
                          threads.size() + 1, options_.workers, error.what()))));
  }
  for (;;) {
    std::unique_lock lock(mutex_);
    if (changed_.wait_for(lock, kDisplayInterval, [this] { return running_ == 0; })) break;
    show(display);
  }
  for (std::thread& thread : threads) thread.join();
  if (failure_) std::rethrow_exception(failure_);
  for (size_t i = 0; i < partitions_.size(); ++i) {
    const Partition& part = partitions_[i];
    outputs_[i / static_cast<size_t>(rules_.partitions - 1)]->add_documents(
        part.tokens, part.lengths, part.sequences);
  }
  totals_.file_bytes = blocks_.total_bytes();
  display.bar.update(totals_.file_bytes);
  display.bar.finish(fmt::format("{} documents, {} tokens", totals_.documents,
                                 format_count(static_cast<double>(tokens_))));
  return totals_;
}

void PreprocessPipeline::work() {
  try {
    BlockTokenizer tokenizer(rules_, vocabulary_);
    data::TextBlock block;
    int64_t index = 0;
    while (read(block, index)) deliver(index, process(tokenizer, block));
  } catch (...) {
    stop(std::current_exception());
  }
  const std::lock_guard lock(mutex_);
  --running_;
  changed_.notify_all();
}

// A file that cannot be read is an error at the position of the missing block.
bool PreprocessPipeline::read(data::TextBlock& block, int64_t& index) {
  const std::lock_guard reading(reading_);
  {
    std::unique_lock lock(mutex_);
    const int64_t limit = kBlocksAWorker * options_.workers * options_.block_bytes;
    changed_.wait(lock, [&] {
      return stopping_ || ended_ ||
             (in_flight_ < limit && next_read_ - next_written_ < kBlocksAWorker * options_.workers);
    });
    if (stopping_ || ended_) return false;
  }
  bool any = false;
  TokenizedBlock missing;
  try {
    any = blocks_.next(block, static_cast<size_t>(options_.block_bytes));
  } catch (...) {
    missing.error = std::current_exception();
  }
  {
    const std::lock_guard lock(mutex_);
    ended_ = !any;
    if (ended_ && !missing.error) return false;
    index = next_read_++;
    bytes_read_ = blocks_.bytes_read();
    if (any) in_flight_ += block.text_bytes;
  }
  if (any) return true;
  deliver(index, std::move(missing));
  return false;
}

TokenizedBlock PreprocessPipeline::process(BlockTokenizer& tokenizer,
                                           const data::TextBlock& block) const {
  try {
    return tokenizer.tokenize(block);
  } catch (...) {
    TokenizedBlock failed;
    failed.error = std::current_exception();
    failed.text_bytes = block.text_bytes;
    return failed;
  }
}

// The thread that delivers the next block writes it and the queued ones after it.
void PreprocessPipeline::deliver(int64_t index, TokenizedBlock block) {
  std::unique_lock lock(mutex_);
  pending_.emplace(index, std::move(block));
  if (writing_) return;
  writing_ = true;
  while (!stopping_) {
    auto next = pending_.extract(next_written_);
    if (next.empty()) break;
    lock.unlock();
    write(next.mapped());  // an error ends the work, and writing_ keeps its value
    lock.lock();
    TokenizedBlock& done = next.mapped();
    totals_.documents += done.document_count;
    totals_.text_bytes += done.text_bytes;
    totals_.bad_count += done.bad_count;
    for (std::string& line : done.bad) {
      if (totals_.bad.size() < TokenizedBlock::kNamed) totals_.bad.push_back(std::move(line));
    }
    tokens_ += done.token_count;
    in_flight_ -= done.text_bytes;
    ++next_written_;
    changed_.notify_all();
  }
  writing_ = false;
}

void PreprocessPipeline::write(TokenizedBlock& block) {
  if (block.error) std::rethrow_exception(block.error);
  if (!rules_.skip_bad && !block.bad.empty()) {
    fail("{} (--on-bad-line skip skips such lines)", block.bad[0]);
  }
  const auto count = static_cast<size_t>(rules_.partitions);
  for (size_t i = 0; i < block.documents.size(); ++i) {
    const TokenizedDocuments& documents = block.documents[i];
    const size_t key = i / count, partition = i % count;
    if (partition == 0) {
      outputs_[key]->add_documents(documents.tokens, documents.lengths, documents.sequences);
    } else {
      Partition& part = partitions_[key * (count - 1) + partition - 1];
      part.tokens.append(documents.tokens);
      part.lengths.append(documents.lengths);
      part.sequences.append(documents.sequences);
    }
  }
}

void PreprocessPipeline::stop(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!failure_) failure_ = std::move(error);
  stopping_ = true;
  changed_.notify_all();
}

void PreprocessPipeline::show(Display& display) const {
  if (display.interval > 0) return display.print_line(totals_.documents, tokens_, bytes_read_);
  display.bar.update(bytes_read_, fmt::format("{} documents, {} tokens", totals_.documents,
                                              format_count(static_cast<double>(tokens_))));
}

}  // namespace megatron::corpus
