#include "training/stored_names.h"

#include <algorithm>

#include "base/error.h"

namespace megatron::training {
namespace {

using checkpoint::ModelDirectory;
using TiedOutput = models::ModelDefinition::TiedOutput;

// Names under which files may have a tensor, in the order in which they are looked for.
std::vector<std::string> candidates(const std::string& tensor, const std::string& prefix) {
  std::vector<std::string> names = {tensor};
  if (prefix.empty()) return names;
  if (tensor.starts_with(prefix)) names.push_back(tensor.substr(prefix.size()));
  names.push_back(prefix + tensor);
  return names;
}

// Returns "" if none of them is there.
std::string find_any(const ModelDirectory& directory, const std::vector<std::string>& names) {
  for (const std::string& name : names)
    if (directory.find(name) != nullptr) return name;
  for (const std::string& name : names)
    if (directory.trouble(name) != nullptr) return name;
  return {};
}

void check_equal(const ModelDirectory& directory, const std::string& output,
                 const std::string& table) {
  MG_CHECK(std::ranges::equal(directory.bytes(output), directory.bytes(table)),
           "'{}' has {} and {}, which differ, although its config.json ties them "
           "(tie_word_embeddings); set that to false",
           directory.path(), output, table);
}

// A base model saved alone.
[[noreturn]] void fail_without_head(const WholeModel& whole, const ModelDirectory& directory) {
  const bool scores = whole.model->score_labels() > 0;
  fail(
      "'{}' has no {}: it was saved without the model's head. Use a directory of the whole model{}",
      directory.path(), whole.head,
      scores
          ? ""
          : fmt::format(", or set tie_word_embeddings to true in its config.json if the head is {}",
                        whole.table));
}

}  // namespace

StoredNames::StoredNames(const WholeModel& whole, const ModelDirectory& directory) {
  const models::Model& model = whole.model;
  const std::string prefix(model->base_prefix());
  const std::optional<TiedOutput> tied = model->tied_output();
  const std::string output =
      tied ? find_any(directory, candidates(tied->output, prefix)) : std::string();
  for (const checkpoint::WholeTensor& tensor : whole.weights) {
    std::string found = find_any(directory, candidates(tensor.name, prefix));
    if (tied && tensor.name == tied->table && !output.empty()) {
      if (found.empty()) {
        found = output;
      } else if (directory.find(output) != nullptr && directory.find(found) != nullptr) {
        check_equal(directory, output, found);
        left_out_.push_back({output, "is " + found});
      }
    }
    if (tensor.name == whole.head && found.empty() && directory.find(of(whole.table)) != nullptr)
      fail_without_head(whole, directory);
    if (!found.empty() && found != tensor.name) stored_.emplace(tensor.name, std::move(found));
  }
  for (const std::string& name : directory.tensor_names()) {
    const std::string layer = model->prediction_layer(name);
    if (model->is_surplus(name)) {
      left_out_.push_back({name, "is not needed"});
    } else if (!layer.empty() && directory.find(layer + ".eh_proj.weight") != nullptr) {
      left_out_.push_back({name, "predicts tokens beyond the next", layer});
    }
  }
}

const std::string& StoredNames::of(const std::string& tensor) const {
  const auto found = stored_.find(tensor);
  return found == stored_.end() ? tensor : found->second;
}

}  // namespace megatron::training
