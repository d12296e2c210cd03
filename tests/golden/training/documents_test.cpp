// Attention confined to documents: a packed sequence equals its documents as separate sequences.
#include <gtest/gtest.h>

#include "base/error.h"
#include "base/philox.h"
#include "base/tolerances.h"
#include "corpus/corpus.h"
#include "data/gpt_dataset.h"
#include "data/indexed_dataset.h"
#include "golden/training/support.h"
#include "training/trained_model.h"

namespace megatron::training {
namespace {

constexpr int64_t kVocabulary = 97, kEod = 96, kLength = 200;

// Writes a data set of documents of random tokens, each ending with the end-of-document token.
std::string write_documents(const TemporaryDirectory& folder, const std::vector<int64_t>& lengths) {
  const std::string prefix = folder / "documents";
  data::IndexedDatasetBuilder builder(prefix, DType::u16);
  for (size_t d = 0; d < lengths.size(); ++d) {
    const RandomStream random(4, "document " + std::to_string(d));
    std::vector<int32_t> tokens;
    for (int64_t i = 0; i + 1 < lengths[d]; ++i)
      tokens.push_back(static_cast<int32_t>(random.bits(static_cast<uint64_t>(i)) % kEod));
    tokens.push_back(static_cast<int32_t>(kEod));
    builder.add_item(std::span<const int32_t>(tokens));
    builder.end_document();
  }
  builder.finalize();
  return prefix;
}

struct Resets {
  bool positions = false, attention = false, borders = false;
};

// A sample that consists of three documents.
corpus::HostBatch packed(const Resets& resets, bool two_sided = false) {
  const TemporaryDirectory folder;
  const std::string prefix = write_documents(folder, {130, 1, kLength - 130});
  data::GptDatasetConfig config;
  config.sequence_length = kLength;
  config.reset_position_ids = resets.positions;
  config.reset_attention_mask = resets.attention;
  config.inter_document_masking = resets.borders;
  config.eod = kEod;
  config.vocabulary_size = kVocabulary;
  config.cache = false;
  const data::GptDataset set(std::make_shared<const data::IndexedDataset>(prefix), config,
                             data::Split::train, std::nullopt);
  const int64_t first = 0;
  corpus::HostBatch batch;
  corpus::BatchReader(set, {.length = kLength}, two_sided).read(std::span(&first, 1), batch);
  return batch;
}

// Returns each document of a packed sequence as a sequence from position 0, with the same labels.
std::vector<corpus::HostBatch> apart(const corpus::HostBatch& batch) {
  std::vector<corpus::HostBatch> parts;
  for (size_t i = 0; i < batch.tokens.size(); ++i) {
    if (i == 0 || batch.tokens[i - 1] == kEod)
      parts.push_back(
          {.layout = {.sequences = 1}, .sample_ids = {static_cast<int64_t>(parts.size())}});
    corpus::HostBatch& part = parts.back();
    part.tokens.push_back(batch.tokens[i]);
    part.labels.push_back(batch.labels[i]);
    part.loss_mask.push_back(batch.loss_mask[i]);
    part.positions.push_back(static_cast<int32_t>(part.layout.length++));
  }
  return parts;
}

class Model {
 public:
  Model(settings::TrainSettings settings, DeviceKind device, bool recompute = false)
      : type_(device == DeviceKind::reference ? DType::f64 : DType::f32), runtime_({device, 0}, 2) {
    settings.shape.init_method_std = 0.3;
    definition_ = models::model_from_flags(settings.shape, kLength);
    trained_.emplace(
        definition_, type_, 1, ModelLayout(), *group_, runtime_,
        StepOptions{.recompute = recompute ? recomputed_layers() : models::RecomputeOptions()});
    trained_->initialize(1);
    trained_->step.begin(settings.optimizer.config);
    model_ = &trained_->parts.whole();
  }

  // Returns the losses of all tokens in order.
  std::vector<double> losses(const std::vector<corpus::HostBatch>& batches) {
    std::vector<double> losses;
    for (const corpus::HostBatch& host : batches) {
      corpus::DeviceBatch device(runtime_, type_);
      const nn::Batch& batch = device.fill(host, definition_, settings::LossScope::token);
      Tape tape(runtime_, Tape::Mode::infer);
      const Bundle out = models::forward(*model_, tape, {}, batch, models::Phase::evaluate);
      for (const double loss : to_doubles(models::head_loss(*model_, tape, out, batch)))
        losses.push_back(loss);
    }
    return losses;
  }

  std::vector<std::vector<double>> gradients(const std::vector<corpus::HostBatch>& batches) {
    double divisor = 1;
    trained_->step.accumulate(batches, divisor);
    std::vector<std::vector<double>> gradients;
    for (parallel::ParameterSpec* placed : model_->parameters())
      gradients.push_back(to_doubles(placed->parameter.uses[0].grad));
    return gradients;
  }

  std::string name(size_t parameter) { return model_->parameters()[parameter]->parameter.name; }

 private:
  DType type_;
  models::Model definition_;
  Runtime runtime_;
  std::unique_ptr<comm::Group> group_ = comm::single();
  std::optional<TrainedModel> trained_;
  const models::Stage* model_ = nullptr;
};

double norm(const std::vector<double>& values) {
  double sum = 0;
  for (const double v : values) sum += v * v;
  return std::sqrt(sum);
}

void expect_equal(Model& model, const std::vector<std::vector<double>>& got,
                  const std::vector<std::vector<double>>& want, double tolerance) {
  double squares = 0, elements = 0;
  for (const auto& tensor : want) {
    squares += norm(tensor) * norm(tensor);
    elements += static_cast<double>(tensor.size());
  }
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) {
    std::vector<double> difference = got[i];
    for (size_t j = 0; j < difference.size(); ++j) difference[j] -= want[i][j];
    EXPECT_LE(
        tolerance::tensor_metric(norm(difference), norm(want[i]), std::sqrt(squares / elements),
                                 static_cast<int64_t>(want[i].size())),
        tolerance)
        << model.name(i);
  }
}

TEST(Documents, PackedAndConfinedAreTheDocumentsApart) {
  for (const auto& [device, tolerance] : {std::pair{DeviceKind::reference, tolerance::kLayoutFp64},
                                          {DeviceKind::cpu, tolerance::kLayoutFp32}}) {
    for (const settings::TrainSettings& settings : {tiny_llama(), tiny_gpt2()}) {
      Model model(settings, device);
      const corpus::HostBatch batch = packed({.positions = true, .attention = true});
      const std::vector<corpus::HostBatch> parts = apart(batch);
      ASSERT_EQ(parts.size(), 3u);
      EXPECT_LE(distance(model.losses({batch}), model.losses(parts)), tolerance);
      expect_equal(model, model.gradients({batch}), model.gradients(parts), tolerance);
    }
  }
}

TEST(Documents, RecomputeGivesTheSameBits) {
  const corpus::HostBatch batch = packed({.positions = true, .attention = true});
  for (const settings::TrainSettings& settings : {tiny_llama(), tiny_gpt2()}) {
    EXPECT_EQ(Model(settings, DeviceKind::cpu, true).gradients({batch}),
              Model(settings, DeviceKind::cpu, false).gradients({batch}));
  }
}

// Masking at the borders of stored sequences equals both resets if each sequence ends with the
// end-of-document token.
TEST(Documents, BordersOfStoredSequencesAreBothResets) {
  const corpus::HostBatch both = packed({.positions = true, .attention = true}),
                          borders = packed({.borders = true});
  EXPECT_EQ(borders.segment_starts, both.segment_starts);
  EXPECT_EQ(borders.positions, both.positions);
  EXPECT_EQ(borders.segment_starts.size(), static_cast<size_t>(kLength));
}

// Change of the last document's losses after one token of the first document has changed.
double change_of_last_document(const Resets& resets) {
  Model model(tiny_llama(), DeviceKind::cpu);
  corpus::HostBatch batch = packed(resets);
  const std::vector<double> before = model.losses({batch});
  batch.tokens[3] = (batch.tokens[3] + 1) % static_cast<int32_t>(kEod);
  const std::vector<double> after = model.losses({batch});
  size_t begin = batch.tokens.size() - 1;
  while (batch.tokens[begin - 1] != kEod) --begin;
  double change = 0;
  for (size_t i = begin; i < after.size(); ++i) change += std::abs(after[i] - before[i]);
  return change;
}

TEST(Documents, PositionsThatBeginAgainDoNotConfineAttention) {
  EXPECT_TRUE(packed({.positions = true}).segment_starts.empty());
  EXPECT_GT(change_of_last_document({.positions = true}), 1e-3);
  EXPECT_GT(change_of_last_document({}), 1e-3);
  EXPECT_EQ(change_of_last_document({.attention = true}), 0);
  EXPECT_EQ(change_of_last_document({.positions = true, .attention = true}), 0);
}

TEST(Documents, ASegmentThatBeginsBehindItsTokenIsRefused) {
  Model model(tiny_llama(), DeviceKind::cpu);
  corpus::HostBatch batch = packed({.attention = true});
  ASSERT_EQ(batch.segment_starts.size(), batch.tokens.size());
  batch.segment_starts[5] = 6;
  EXPECT_THROW(model.losses({batch}), Error);
  batch.segment_starts.pop_back();
  EXPECT_THROW(model.losses({batch}), Error);
}

// Documents of 130 tokens, of one, and of the rest.
TEST(Documents, HaveEndsForTwoSidedAttention) {
  EXPECT_TRUE(packed({.attention = true}).segment_ends.empty());
  EXPECT_TRUE(packed({}, true).segment_ends.empty()) << "without documents";
  const corpus::HostBatch batch = packed({.attention = true}, true);
  std::vector<int32_t> ends(130, 129);
  ends.push_back(130);
  ends.resize(kLength, static_cast<int32_t>(kLength - 1));
  EXPECT_EQ(batch.segment_ends, ends);
}

// Each flag affects attention in a whole run.
TEST(Documents, FlagsOfARun) {
  const TemporaryDirectory folder;
  const std::string prefix = write_documents(folder, std::vector<int64_t>(40, 11));
  const auto losses_of = [&](bool positions, bool attention, bool borders) {
    settings::TrainSettings s = tiny_llama();
    s.batch.train_iters = 3;
    s.data.mock_data = false;
    s.data.data_path = {prefix};
    s.data.split = "1,0,0";
    s.data.reset_position_ids = positions;
    s.data.reset_attention_mask = attention;
    s.data.inter_document_masking = borders;
    return train_losses(s);
  };
  const std::vector<double> plain = losses_of(false, false, false),
                            both = losses_of(true, true, false);
  EXPECT_GT(distance(losses_of(true, false, false), both), 1e-6);
  EXPECT_GT(distance(losses_of(false, true, false), plain), 1e-6);
  EXPECT_TRUE(same_bits(losses_of(false, false, true), both));
}

}  // namespace
}  // namespace megatron::training
