#include "corpus/chat/text_pair_dataset.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "base/error.h"
#include "base/utf8.h"
#include "corpus/chat/record_blocks.h"

namespace megatron::corpus {
namespace {

constexpr int64_t kTogether = 1000;  // pairs that are packed together
constexpr std::array kKeys = {std::pair{"input", "target"}, std::pair{"inputs", "targets"},
                              std::pair{"prompt", "completion"}};

const std::string& text_under(const Json& record, const std::string& key,
                              const std::string& place) {
  const Json* value = record.find(key);
  MG_CHECK(value != nullptr, "{}: the record has no '{}'", place, key);
  MG_CHECK(value->is_string(), "{}: '{}' is not a text", place, key);
  check_utf8(value->as_string(), fmt::format("{}, '{}'", place, key));
  return value->as_string();
}

std::pair<std::string, std::string> keys_of(const Json& record, const std::string& place,
                                            const TextPairReading& reading) {
  std::pair keys(reading.input_key, reading.target_key);
  for (const auto& [key, flag] : {std::pair(keys.first, "input-key"), {keys.second, "target-key"}})
    MG_CHECK(key.empty() || record.contains(key), "{}: the record has no '{}' (--{})", place, key,
             flag);
  for (const auto& [input, target] : kKeys) {
    if (!keys.first.empty() && !keys.second.empty()) break;
    const bool fits = record.contains(keys.first.empty() ? input : keys.first) &&
                      record.contains(keys.second.empty() ? target : keys.second);
    if (fits)
      keys = {keys.first.empty() ? input : keys.first, keys.second.empty() ? target : keys.second};
  }
  MG_CHECK(keys.first.empty() == keys.second.empty(),
           "{}: beside '{}' the record has none of the usual keys of the other text; name it with "
           "--{}",
           place, keys.first.empty() ? keys.second : keys.first,
           keys.first.empty() ? "input-key" : "target-key");
  MG_CHECK(!keys.first.empty(),
           "{}: the record has none of 'input' and 'target', 'inputs' and 'targets', 'prompt' and "
           "'completion'; name its keys with --input-key and --target-key",
           place);
  return keys;
}

double share_of(int64_t tokens, int64_t length) {
  return static_cast<double>(tokens) / static_cast<double>(length);
}

std::vector<PackedRow> rows_of(const TextPairStore& store, const std::vector<int64_t>& examples,
                               bool packs) {
  std::vector<int64_t> inputs, targets;
  for (const int64_t example : examples) {
    inputs.push_back(std::ssize(store.input(example)));
    targets.push_back(std::ssize(store.target(example)));
  }
  const TextPairReading& reading = store.reading;
  if (packs)
    return pack_text_pairs(inputs, targets, reading.encoder_length, reading.decoder_length);
  std::vector<PackedRow> rows;
  for (size_t i = 0; i < targets.size(); ++i)
    rows.push_back({{static_cast<int64_t>(i), 0, targets[i]}});
  return rows;
}

}  // namespace

InputAndTarget text_pair_of(const Json& record, const std::string& place,
                            const TextPairReading& reading) {
  MG_CHECK(record.is_object(), "{}: a record is a JSON object", place);
  const auto [input, target] = keys_of(record, place, reading);
  return {text_under(record, input, place), text_under(record, target, place)};
}

TextPairTokens text_pair_tokens(const InputAndTarget& pair, const tokenizers::Tokenizer& tokenizer,
                                const TextPairReading& reading, const std::string& place) {
  TextPairTokens tokens{.input = tokenizer.encode(pair.input, reading.ends),
                        .target = tokenizer.encode(pair.target)};
  tokens.target.push_back(static_cast<int32_t>(reading.around.end));
  MG_CHECK(!tokens.input.empty(), "{}: the text for the encoder has no tokens", place);
  MG_CHECK(std::ssize(tokens.target) <= reading.decoder_length,
           "{}: the target has {} tokens with its end, and the decoder reads {} "
           "(--decoder-seq-length): raise it, or leave the record out",
           place, tokens.target.size(), reading.decoder_length);
  tokens.cut = std::ssize(tokens.input) > reading.encoder_length;
  if (tokens.cut)
    tokenizers::cut_text(tokens.input, reading.encoder_length, reading.keep_start,
                         reading.input_ends);
  return tokens;
}

TextPairStore read_text_pairs(const std::vector<std::string>& paths,
                              const tokenizers::Tokenizer& tokenizer,
                              const TextPairReading& reading, ThreadPool& pool,
                              const std::string& label) {
  struct Read {
    TextPairTokens tokens;
    std::string source;
  };
  MG_CHECK(reading.encoder_length >= 2,
           "--seq-length is {}; a text for the encoder needs at least 2 tokens",
           reading.encoder_length);
  TextPairStore store{.reading = reading};
  for_each_tokenized<Read>(
      paths, pool, label,
      [&](const Json& record, std::string place) {
        return Read{
            text_pair_tokens(text_pair_of(record, place, reading), tokenizer, reading, place),
            source_of(record, place)};
      },
      [&](Read& read) {
        const auto append = [](std::vector<int32_t>& all, std::vector<int64_t>& ends,
                               const std::vector<int32_t>& ids) {
          all.insert(all.end(), ids.begin(), ids.end());
          ends.push_back(std::ssize(all));
        };
        append(store.inputs, store.input_ends, read.tokens.input);
        append(store.targets, store.target_ends, read.tokens.target);
        store.cut += read.tokens.cut ? 1 : 0;
        store.sources.add(read.source);
      });
  MG_CHECK(store.size() > 0, "{} has no pairs of texts", paths[0]);
  return store;
}

std::vector<PackedRow> pack_text_pairs(std::span<const int64_t> inputs,
                                       std::span<const int64_t> targets, int64_t encoder_length,
                                       int64_t decoder_length) {
  struct Room {
    int64_t encoder, decoder;
  };
  const auto largest = [&](int64_t pair) {
    const auto at = static_cast<size_t>(pair);
    return std::max(share_of(inputs[at], encoder_length), share_of(targets[at], decoder_length));
  };
  std::vector<PackedRow> rows;
  for (int64_t first = 0; first < std::ssize(inputs); first += kTogether) {
    std::vector<int64_t> pairs(
        static_cast<size_t>(std::min(kTogether, std::ssize(inputs) - first)));
    std::iota(pairs.begin(), pairs.end(), first);
    std::ranges::stable_sort(pairs, std::greater(), largest);
    const size_t begin = rows.size();
    std::vector<Room> rooms;  // of rows from `begin` on
    for (const int64_t pair : pairs) {
      const int64_t input = inputs[static_cast<size_t>(pair)],
                    target = targets[static_cast<size_t>(pair)];
      size_t best = rooms.size();
      double least = 3;
      for (size_t r = 0; r < rooms.size(); ++r) {
        if (rooms[r].encoder < input || rooms[r].decoder < target) continue;
        const double left = share_of(rooms[r].encoder - input, encoder_length) +
                            share_of(rooms[r].decoder - target, decoder_length);
        if (left < least) least = left, best = r;
      }
      if (best == rooms.size()) {
        rooms.push_back({encoder_length, decoder_length});
        rows.emplace_back();
      }
      rooms[best].encoder -= input;
      rooms[best].decoder -= target;
      rows[begin + best].push_back({pair, 0, target});
    }
  }
  return rows;
}

TextPairDataset::TextPairDataset(std::shared_ptr<const TextPairStore> store,
                                 std::vector<int64_t> examples, std::optional<Packing> packing,
                                 int64_t encoder_length, int32_t padding,
                                 std::optional<int64_t> seed, std::optional<int64_t> samples)
    : ExampleDataset(examples,
                     PackedRows(rows_of(*store, examples, packing.has_value()),
                                store->reading.decoder_length, seed, samples),
                     store->reading.decoder_length, padding),
      store_(std::move(store)),
      padding_(padding) {
  MG_ASSERT(encoder_length == store_->reading.encoder_length);
}

std::string TextPairDataset::length_text() const {
  return fmt::format("{} + {} tokens", store_->reading.encoder_length,
                     store_->reading.decoder_length);
}

double TextPairDataset::filled() const {
  int64_t tokens = 0;
  for (int64_t r = 0; r < rows().rows(); ++r)
    for (const PackedPart& part : rows().row(r))
      tokens += part.length + std::ssize(store_->input(example_of(part)));
  return share_of(
      tokens, rows().rows() * (store_->reading.encoder_length + store_->reading.decoder_length));
}

void TextPairDataset::fill(const PackedRow& row, data::Sample& sample) const {
  const auto length = static_cast<size_t>(store_->reading.encoder_length);
  data::EncoderText& text = sample.encoder;
  text.tokens.assign(length, padding_);
  text.position_ids.assign(length, 0);
  text.segment_begin.resize(length);
  std::iota(text.segment_begin.begin(), text.segment_begin.end(), 0);
  sample.encoder_begin.assign(sample.tokens.size(), 0);
  sample.encoder_end.assign(sample.tokens.size(), 0);
  std::vector<int32_t> read;
  size_t at = 0, of_text = 0;
  for (const PackedPart& part : row) {
    const int64_t pair = example_of(part);
    const std::span<const int32_t> input = store_->input(pair), target = store_->target(pair);
    const size_t first = of_text;
    for (const int32_t id : input) {
      text.tokens[of_text] = id;
      text.position_ids[of_text] = static_cast<int64_t>(of_text - first);
      text.segment_begin[of_text++] = static_cast<int32_t>(first);
    }
    for (size_t t = 0; t < target.size(); ++t) {
      sample.labels[at + t] = target[t];
      sample.loss_mask[at + t] = 1;
      sample.encoder_begin[at + t] = static_cast<int32_t>(first);
      sample.encoder_end[at + t] = static_cast<int32_t>(of_text - 1);
    }
    read.assign(1, static_cast<int32_t>(store_->reading.around.begin));
    read.insert(read.end(), target.begin(), target.end() - 1);
    place(read, store_->sources.of(pair), at, sample);
  }
}

}  // namespace megatron::corpus
