#include "training/stored_reference.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <optional>

#include "base/divide.h"
#include "base/error.h"
#include "base/log.h"
#include "base/progress.h"
#include "checkpoint/safetensors.h"
#include "comm/values.h"
#include "corpus/chat/example_dataset.h"
#include "data/index_cache.h"
#include "data/source_facts.h"
#include "training/rank_sums.h"

namespace megatron::training {
namespace {

constexpr int64_t kVersion = 2;  // of how the values are made and stored
constexpr const char *kTensor = "log_probabilities", *kDigest = "digest";

// The rows of a set as its samples, in their own order.
class Rows final : public data::Dataset {
 public:
  explicit Rows(const corpus::ExampleDataset& set) : set_(set) {}
  int64_t size() const override { return set_.rows().rows(); }
  void read(int64_t k, data::Sample& sample) const override { set_.read_row(k, sample); }
  void read_filler(data::Sample& sample) const override { set_.read_filler(sample); }

 private:
  const corpus::ExampleDataset& set_;
};

template <class T>
std::string digest_of(const std::vector<T>& values) {
  return data::digest(std::as_bytes(std::span(values)));
}

struct StoredSet {
  const corpus::ExampleDataset* set = nullptr;
  std::vector<int64_t> begins = {0};  // index of each row's first value, then their number
  std::string path = {};              // of the file
  std::unique_ptr<const checkpoint::SafetensorsFile> file = {};
};

// Sets the places of the rows' values. Returns a digest of all rows.
std::string index_rows(StoredSet& stored) {
  const Rows rows(*stored.set);
  std::string digests;
  data::Sample sample;
  for (int64_t row = 0; row < rows.size(); ++row) {
    rows.read(row, sample);
    digests += digest_of(sample.tokens) + digest_of(sample.labels) +
               digest_of(sample.segment_begin) + digest_of(sample.loss_mask);
    const auto counted =
        std::ranges::count_if(sample.loss_mask, [](float weight) { return weight != 0; });
    stored.begins.push_back(stored.begins.back() + counted);
  }
  return data::digest(std::as_bytes(std::span(digests)));
}

std::string path_of(const RunPlan& plan, const std::string& rows) {
  const settings::TrainSettings& s = plan.settings;
  const settings::ParallelSettings& p = s.parallel;
  const Json made_from(
      Json::Object{{"version", kVersion},
                   {"weights", plan.reference->fingerprint},
                   {"model", plan.model->describe()},
                   {"precision", name(s.precision.type())},
                   {"device", name(s.runtime.device_kind())},
                   {"tensor_parallel", p.tensor_parallel},
                   {"sequence_parallel", p.sequence_parallel},
                   {"context_parallel", p.context_parallel},
                   {"expert_parallel", p.expert_parallel},
                   {"expert_tensor_parallel", p.expert_tensor_parallel.value_or(p.tensor_parallel)},
                   {"rows", rows}});
  const std::string text = made_from.dump();
  const std::string folder =
      data::index_cache_directory(corpus::example_paths(s.data).at(0), s.data.data_cache_path);
  return fmt::format("{}/reference_{}.safetensors", folder,
                     data::digest(std::as_bytes(std::span(text))));
}

std::vector<StoredSet> sets_of(const RunPlan& plan) {
  std::vector<const data::Dataset*> all;
  for (const auto& set : plan.corpus.sets) all.push_back(set.get());
  for (const corpus::NamedSet& named : plan.corpus.validation) all.push_back(named.set.get());
  std::vector<StoredSet> sets;
  for (const data::Dataset* set : all) {
    const auto* examples = dynamic_cast<const corpus::ExampleDataset*>(set);
    if (examples == nullptr || std::ranges::find(sets, examples, &StoredSet::set) != sets.end())
      continue;
    StoredSet& stored = sets.emplace_back(StoredSet{.set = examples});
    stored.path = path_of(plan, index_rows(stored));
  }
  return sets;
}

std::span<const std::byte> bytes_of(const checkpoint::SafetensorsFile& file,
                                    const StoredSet& stored) {
  const checkpoint::TensorInfo* const info = file.find(kTensor);
  MG_CHECK(
      info != nullptr && info->dtype == DType::f64 && info->shape == Shape({stored.begins.back()}),
      "{} has other values than this data set", stored.path);
  return file.bytes(*info);
}

// True if the file is there and whole.
bool is_stored(const StoredSet& stored) {
  if (!std::filesystem::exists(stored.path)) return false;
  try {
    const checkpoint::SafetensorsFile file(stored.path);
    const std::string sum = data::digest(bytes_of(file, stored));
    MG_CHECK(std::ranges::find(file.metadata(), std::pair<std::string, std::string>(
                                                    kDigest, sum)) != file.metadata().end(),
             "{} is damaged", stored.path);
    return true;
  } catch (const Error& error) {
    log::warning("{}: the reference log-probabilities are computed again", error.what());
    return false;
  }
}

void write(const StoredSet& stored, const std::vector<double>& values) {
  const std::span<const std::byte> bytes = std::as_bytes(std::span(values));
  const checkpoint::TensorToWrite tensor{
      .name = kTensor,
      .dtype = DType::f64,
      .shape = {std::ssize(values)},
      .data = [&](std::span<std::byte> out) { std::ranges::copy(bytes, out.begin()); }};
  const std::pair<std::string, std::string> sum(kDigest, data::digest(bytes));
  checkpoint::write_safetensors(stored.path, std::span(&tensor, 1), std::span(&sum, 1));
}

class StoredReference final : public ReferenceSource {
 public:
  explicit StoredReference(std::vector<StoredSet> sets) : sets_(std::move(sets)) {
    for (StoredSet& stored : sets_) {
      MG_CHECK(std::filesystem::exists(stored.path),
               "{}, which the first process of the run has written, is not visible here: "
               "--data-cache-path must name a folder that all machines share",
               stored.path);
      stored.file = std::make_unique<const checkpoint::SafetensorsFile>(stored.path);
      bytes_of(*stored.file, stored);
    }
  }

  void fill(const data::Dataset& set, std::span<corpus::HostBatch> micro_batches) override {
    const auto found =
        std::ranges::find_if(sets_, [&](const StoredSet& stored) { return stored.set == &set; });
    MG_ASSERT(found != sets_.end());
    const std::byte* const values = bytes_of(*found->file, *found).data();
    for (corpus::HostBatch& batch : micro_batches) {
      const corpus::HostBatch& whole = batch.whole();
      std::vector<double> reference(whole.loss_mask.size());
      const size_t length = reference.size() / batch.sample_ids.size();
      for (size_t i = 0; i < batch.sample_ids.size(); ++i) {
        const int64_t row = found->set->rows().row_of(batch.sample_ids[i]);
        auto at = static_cast<size_t>(found->begins[static_cast<size_t>(row)]);
        for (size_t t = i * length; t < (i + 1) * length; ++t)
          if (whole.loss_mask[t] != 0)
            std::memcpy(&reference[t], values + sizeof(double) * at++, sizeof(double));
      }
      corpus::set_reference(batch, std::move(reference));
    }
  }

 private:
  std::vector<StoredSet> sets_;
};

void compute(const RunPlan& plan, const std::vector<const StoredSet*>& sets, TrainedModel& model) {
  const settings::TrainSettings& s = plan.settings;
  const bool leads = model.ranks.world().rank() == 0;
  load_reference(*plan.reference, plan.whole, model.shards(), model.step.states(),
                 static_cast<uint64_t>(s.runtime.seed), model.runtime.stream(), leads);
  const models::HighPrecision plain(model.parts.chunks());
  model.step.data_parallel().parameters_changed();
  model.loss_pass.begin("reference log-probabilities");
  model.loss_pass.use_adapters(false);
  for (const StoredSet* stored : sets) {
    std::optional<Progress> progress;
    if (leads) progress.emplace("reference log-probabilities", stored->set->rows().rows(), "rows");
    const std::vector<double> values =
        values_of_rows(model.loss_pass, Rows(*stored->set), stored->begins,
                       *s.batch.micro_batch_size, *s.batch.seq_length, [&](int64_t done) {
                         if (progress) progress->update(done);
                       });
    if (leads) write(*stored, values);
  }
  model.loss_pass.use_adapters(true);
}

}  // namespace

std::vector<double> values_of_rows(LossPass& pass, const data::Dataset& rows,
                                   std::span<const int64_t> begins, int64_t micro_batch,
                                   int64_t seq_length,
                                   const std::function<void(int64_t)>& progress) {
  const int64_t count = std::ssize(begins) - 1;
  const comm::Group& samples = pass.ranks().samples();
  const int64_t stride = micro_batch * samples.size();
  std::vector<corpus::HostBatch> batches(pass.together());
  corpus::BatchReader reader(rows, pass.ranks().tokens(micro_batch, seq_length),
                             pass.model()->facts().two_sided);
  std::vector<double> all;
  const auto begin_of = [&](int64_t row) { return begins[static_cast<size_t>(row)]; };
  for (int64_t first = 0, end; first < count; first = end) {
    end = std::min(count, first + stride * std::ssize(batches));
    const auto turns = static_cast<size_t>(ceil_div(end - first, stride));
    std::vector<int64_t> own;  // the first row of each micro-batch of this rank
    for (size_t turn = 0; turn < turns; ++turn) {
      own.push_back(first + static_cast<int64_t>(turn) * stride + micro_batch * samples.rank());
      // A rank without rows in the last turn runs others, as in evaluate_samples().
      const int64_t begin = own.back() < count ? own.back() : 0;
      std::vector<int64_t> indices(static_cast<size_t>(std::min(micro_batch, count - begin)));
      std::iota(indices.begin(), indices.end(), begin);
      reader.read(indices, batches[turn]);
    }
    std::vector<double> mine(static_cast<size_t>(begin_of(end) - begin_of(first)));
    pass.run_values(std::span(batches).first(turns), [&](int i, std::vector<double> values) {
      const int64_t row = own[static_cast<size_t>(i)];
      if (row >= count || values.empty() || !leads_context(pass.ranks())) return;
      const std::vector<float>& mask = batches[static_cast<size_t>(i)].whole().loss_mask;
      auto at = static_cast<size_t>(begin_of(row) - begin_of(first));
      for (size_t t = 0; t < values.size(); ++t)
        if (mask[t] != 0) mine[at++] = values[t];
    });
    const std::vector<double> summed =
        sum_over_tokens(mine, pass.ranks(), pass.runtime(), "reference.values");
    if (pass.ranks().world().rank() == 0) all.insert(all.end(), summed.begin(), summed.end());
    if (progress) progress(end);
  }
  return all;
}

std::unique_ptr<ReferenceSource> stored_reference(const RunPlan& plan, TrainedModel& model) {
  comm::Group& world = model.ranks.world();
  Stream& stream = model.runtime.stream();
  std::vector<StoredSet> sets = sets_of(plan);
  std::vector<double> missing(sets.size());
  if (world.rank() == 0)
    std::ranges::transform(sets, missing.begin(),
                           [](const StoredSet& stored) { return is_stored(stored) ? 0 : 1; });
  comm::largest(world, stream, missing, "reference.missing");
  std::vector<const StoredSet*> to_compute;
  for (size_t i = 0; i < sets.size(); ++i)
    if (missing[i] != 0) to_compute.push_back(&sets[i]);
  if (!to_compute.empty()) compute(plan, to_compute, model);
  world.barrier("reference.stored");
  if (world.rank() == 0)
    for (const StoredSet& stored : sets)
      log::info("reference log-probabilities {} {}",
                std::ranges::find(to_compute, &stored) == to_compute.end() ? "are read from"
                                                                           : "are written to",
                stored.path);
  return std::make_unique<StoredReference>(std::move(sets));
}

}  // namespace megatron::training
