#include "selftest/verify_hidden.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "checkpoint/safetensors.h"

namespace megatron::selftest {
namespace {

constexpr const char *kLast = "last_hidden_state", *kPooled = "pooler_output";

std::vector<double> read_tensor(const checkpoint::ModelDirectory& files, const std::string& name,
                                const Shape& shape) {
  const checkpoint::TensorInfo& info = *files.find(name);
  MG_CHECK(info.shape == shape, "'{}' has {} with shape {}; it must be {}", files.path(), name,
           info.shape.str(), shape.str());
  return checkpoint::SafetensorsFile::doubles_of(files.tensors().read(name, 0, shape.elements()),
                                                 info.dtype);
}

std::vector<double> read_target(Expected& expected, const std::string& of, const Shape& shape) {
  const std::string name = "target." + of;
  if (!expected.contains(name)) return {};
  MG_CHECK(expected.shape(name) == shape, "{} has shape {}; it must be {}", name,
           expected.shape(name).str(), shape.str());
  return expected.doubles(name);
}

// Sequences are known by their sample ids, their numbers in the targets.
class SquaredDistance final : public training::Objective {
 public:
  SquaredDistance(std::vector<double> targets, std::vector<double> pooled,
                  std::optional<Pooler> pooler, int64_t length, int64_t hidden, double counted)
      : targets_(std::move(targets)),
        pooled_(std::move(pooled)),
        pooler_(std::move(pooler)),
        length_(static_cast<size_t>(length)),
        hidden_(static_cast<size_t>(hidden)),
        counted_(counted) {}

  training::ObjectiveTerms evaluate(const corpus::HostBatch& batch, std::span<const double> values,
                                    std::span<double> gradient) const override {
    training::ObjectiveTerms terms;
    const auto stride = static_cast<size_t>(batch.layout.length);
    std::vector<double> unused_w(hidden_ * hidden_), unused_b(hidden_);
    for (size_t s = 0; s < batch.sample_ids.size(); ++s) {
      if (batch.loss_mask[s * stride] == 0) continue;  // stands in for a missing sequence
      const auto number = static_cast<size_t>(batch.sample_ids[s]);
      const std::span<const double> x = values.subspan(s * stride * hidden_, length_ * hidden_);
      const std::span<double> dx = gradient.subspan(s * stride * hidden_, length_ * hidden_);
      if (!targets_.empty())
        terms.loss +=
            distance(x, std::span(targets_).subspan(number * length_ * hidden_, x.size()), dx);
      if (pooled_.empty()) continue;
      std::vector<double> dpooled(hidden_);
      terms.loss += distance(pooler_->pooled(x.first(hidden_)),
                             std::span(pooled_).subspan(number * hidden_, hidden_), dpooled);
      pooler_->backward(x.first(hidden_), dpooled, dx.first(hidden_), unused_w, unused_b);
    }
    // The step divides by what counts.
    terms.loss *= counted_;
    for (double& g : gradient) g *= counted_;
    return terms;
  }

 private:
  static double distance(std::span<const double> x, std::span<const double> target,
                         std::span<double> dx) {
    double sum = 0;
    for (size_t i = 0; i < x.size(); ++i) {
      const double difference = x[i] - target[i];
      sum += difference * difference;
      dx[i] += 2 * difference;
    }
    return sum;
  }

  std::vector<double> targets_, pooled_;
  std::optional<Pooler> pooler_;
  size_t length_, hidden_;
  double counted_;
};

}  // namespace

std::optional<Pooler> Pooler::read(const checkpoint::ModelDirectory& files,
                                   const models::Model& model) {
  for (const std::string& prefix : {std::string(model->base_prefix()), std::string()}) {
    Pooler pooler;
    pooler.weight_name_ = prefix + "pooler.dense.weight";
    pooler.bias_name_ = prefix + "pooler.dense.bias";
    if (files.find(pooler.weight_name_) == nullptr || files.find(pooler.bias_name_) == nullptr)
      continue;
    const int64_t hidden = model->hidden_size();
    pooler.weight_ = read_tensor(files, pooler.weight_name_, {hidden, hidden});
    pooler.bias_ = read_tensor(files, pooler.bias_name_, {hidden});
    return pooler;
  }
  return {};
}

std::vector<double> Pooler::pooled(std::span<const double> x) const {
  std::vector<double> y = bias_;
  for (size_t o = 0; o < y.size(); ++o) {
    for (size_t i = 0; i < x.size(); ++i) y[o] += weight_[o * x.size() + i] * x[i];
    y[o] = std::tanh(y[o]);
  }
  return y;
}

void Pooler::backward(std::span<const double> x, std::span<const double> gradient,
                      std::span<double> dx, std::span<double> dw, std::span<double> db) const {
  const std::vector<double> y = pooled(x);
  for (size_t o = 0; o < y.size(); ++o) {
    const double dy = gradient[o] * (1 - y[o] * y[o]);
    db[o] += dy;
    for (size_t i = 0; i < x.size(); ++i) {
      dw[o * x.size() + i] += dy * x[i];
      dx[i] += dy * weight_[o * x.size() + i];
    }
  }
}

HiddenStates::HiddenStates(Expected& expected, const checkpoint::ModelDirectory& files,
                           const models::Model& model, const ExpectedBatch& batch)
    : sequences_(batch.host.layout.sequences),
      length_(batch.host.layout.length),
      hidden_(model->hidden_size()) {
  MG_CHECK(
      expected.contains(kLast) || expected.contains(kPooled),
      "{}: the model has no head (its class in config.json), so expected.safetensors must have {} "
      "or {}, but it has neither",
      files.path(), kLast, kPooled);
  std::vector<double> targets = read_target(expected, kLast, {sequences_, length_, hidden_});
  pooled_targets_ = read_target(expected, kPooled, {sequences_, hidden_});
  if (expected.contains(kPooled) || !pooled_targets_.empty()) {
    pooler_ = Pooler::read(files, model);
    MG_CHECK(pooler_.has_value(),
             "expected.safetensors has {}, but '{}' has no pooler.dense.weight and "
             "pooler.dense.bias: leave it out, or save the model with its pooler",
             kPooled, files.path());
  }
  if (targets.empty() && pooled_targets_.empty()) {
    for (const std::string& name : expected.names())
      MG_CHECK(
          name != "loss" && !name.starts_with("grad."),
          "expected.safetensors has {}, but neither target.{} nor target.{}: a model without a "
          "head (its class in config.json) has no loss but the sum of squared differences from "
          "these; add them, or leave loss and gradients out",
          name, kLast, kPooled);
    return;
  }
  objective_ = std::make_shared<const SquaredDistance>(std::move(targets), pooled_targets_, pooler_,
                                                       length_, hidden_, batch.host.counted());
}

TensorMap HiddenStates::add_outputs(TensorMap& values) const {
  const std::vector<double>& last = values[kLast] = std::move(values.at("hidden.head"));
  values.erase("hidden.head");
  TensorMap gradients;
  if (!pooler_) return gradients;
  const auto width = static_cast<size_t>(hidden_);
  std::vector<double>& pooled = values[kPooled];
  std::vector<double> unused(width), dw(width * width), db(width);
  for (size_t s = 0; s < static_cast<size_t>(sequences_); ++s) {
    const auto first = std::span(last).subspan(s * static_cast<size_t>(length_) * width, width);
    const std::vector<double> y = pooler_->pooled(first);
    pooled.insert(pooled.end(), y.begin(), y.end());
    if (pooled_targets_.empty()) continue;
    std::vector<double> gradient(width);
    for (size_t i = 0; i < width; ++i) gradient[i] = 2 * (y[i] - pooled_targets_[s * width + i]);
    pooler_->backward(first, gradient, unused, dw, db);
  }
  if (!pooled_targets_.empty()) {
    gradients[pooler_->weight_name()] = std::move(dw);
    gradients[pooler_->bias_name()] = std::move(db);
  }
  return gradients;
}

}  // namespace megatron::selftest
