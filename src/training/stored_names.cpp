#include "training/stored_names.h"

#include <algorithm>
#include <set>
#include <unordered_set>

#include "base/error.h"
#include "checkpoint/safetensors.h"
#include "models/absent_keys.h"
#include "models/prediction_names.h"

namespace megatron::training {
namespace {

using checkpoint::ModelDirectory;
using TiedOutput = models::ModelDefinition::TiedOutput;

// Returns a tensor's name without the components that wrappers of modules add to it: data-parallel
// and sharded modules, compiled ones, those that recompute. Norms of BERT's first files have gamma
// and beta.
std::string without_wrappers(std::string_view name) {
  constexpr std::string_view kWrappers[] = {"module.", "_orig_mod.", "_fsdp_wrapped_module.",
                                            "_checkpoint_wrapped_module."};
  std::string plain;
  while (!name.empty()) {
    const size_t end = std::min(name.find('.'), name.size() - 1) + 1;
    const std::string_view component = name.substr(0, end);
    if (std::ranges::find(kWrappers, component) == std::end(kWrappers)) plain += component;
    name.remove_prefix(end);
  }
  for (const auto& [old, now] : {std::pair{"LayerNorm.gamma", ".weight"},
                                 {"LayerNorm.beta", ".bias"},
                                 {"layer_norm.gamma", ".weight"},
                                 {"layer_norm.beta", ".bias"}})
    if (plain.ends_with(old)) plain.replace(plain.rfind('.'), plain.npos, now);
  return plain;
}

// Finds the tensors of a model among the names of a directory.
class NameSearch {
 public:
  NameSearch(const WholeModel& whole, const ModelDirectory& directory)
      : directory_(directory), family_prefix_(whole.model->base_prefix()) {
    for (const std::string& name : directory.tensor_names()) {
      const auto [place, is_new] = by_plain_.emplace(without_wrappers(name), name);
      if (!is_new && place->first == name) place->second = name;
    }
    prefix_ = find_prefix(whole);
  }

  const std::string& prefix() const { return prefix_; }

  // Returns "" if the directory has no name for the tensor.
  std::string find(const std::string& tensor) const {
    std::vector<std::string> names = {tensor};
    if (!family_prefix_.empty() && tensor.starts_with(family_prefix_)) {
      const std::string rest = tensor.substr(family_prefix_.size());
      names.insert(names.end(), {prefix_ + rest, rest});
    } else {
      // The head is a sibling of the base model, not a part of it.
      if (prefix_.ends_with(family_prefix_))
        names.push_back(prefix_.substr(0, prefix_.size() - family_prefix_.size()) + tensor);
      names.push_back(prefix_ + tensor);
    }
    names.push_back(family_prefix_ + tensor);
    for (const std::string& name : names)
      if (const auto found = by_plain_.find(name); found != by_plain_.end()) return found->second;
    for (const std::string& name : names)
      if (directory_.trouble(name) != nullptr) return name;
    return {};
  }

  bool has(const std::string& tensor) const { return directory_.find(find(tensor)) != nullptr; }

  // Returns the name that the family gives to a tensor of the directory.
  std::string family_name(const std::string& stored) const {
    const std::string plain = without_wrappers(stored);
    return plain.starts_with(prefix_) ? family_prefix_ + plain.substr(prefix_.size()) : plain;
  }

 private:
  // Returns the prefix of most tensors of the base model, preferably the family's prefix.
  std::string find_prefix(const WholeModel& whole) const {
    std::unordered_set<std::string_view> base;
    for (const checkpoint::WholeTensor& tensor : whole.weights)
      if (tensor.name.starts_with(family_prefix_))
        base.insert(std::string_view(tensor.name).substr(family_prefix_.size()));
    std::map<std::string_view, int64_t> counts;
    for (const auto& [plain, name] : by_plain_) {
      const std::string_view view = plain;
      for (size_t at = 0; at < view.size(); at = std::min(view.find('.', at), view.size() - 1) + 1)
        if (base.contains(view.substr(at))) ++counts[view.substr(0, at)];
    }
    std::string_view best = family_prefix_;
    for (const auto& [prefix, count] : counts)
      if (count > counts[best]) best = prefix;
    return std::string(best);
  }

  const ModelDirectory& directory_;
  const std::string family_prefix_;
  std::string prefix_;
  std::map<std::string, std::string, std::less<>> by_plain_;  // names without wrappers
};

// otherwise: a predicate of two tensors that differ.
void check_equal(const ModelDirectory& directory, const std::string& output,
                 const std::string& table, std::string_view otherwise) {
  const checkpoint::TensorInfo &a = *directory.find(output), &b = *directory.find(table);
  // Copies of different types are equal if their values are.
  const auto same_values = [&] {
    constexpr int64_t kElementsAtOnce = 1 << 20;
    const auto values = [&](const std::string& name, DType type, int64_t begin, int64_t count) {
      return checkpoint::SafetensorsFile::doubles_of(directory.tensors().read(name, begin, count),
                                                     type);
    };
    for (int64_t begin = 0; begin < a.shape.elements(); begin += kElementsAtOnce) {
      const int64_t count = std::min(kElementsAtOnce, a.shape.elements() - begin);
      if (values(output, a.dtype, begin, count) != values(table, b.dtype, begin, count))
        return false;
    }
    return true;
  };
  const bool packed =
      directory.tensors().packed(output) != nullptr || directory.tensors().packed(table) != nullptr;
  const bool comparable =
      a.foreign_type.empty() && b.foreign_type.empty() && (a.dtype != b.dtype || packed);
  const bool equal =
      a.shape == b.shape &&
      (comparable ? same_values()
                  : std::ranges::equal(directory.bytes(output), directory.bytes(table)));
  MG_CHECK(equal, "'{}' has {} and {}, which {}", directory.path(), output, table, otherwise);
}

// name: a stored tensor that the model does not need. If it is a copy in a multi-token-prediction
// layer, returns the name of the tensor that it copies; otherwise "".
std::string original_of(std::string_view name, const WholeModel& whole) {
  if (name.ends_with(models::kPredictionHead)) return whole.head.empty() ? whole.table : whole.head;
  const bool of_layer = name.find("layers.") != name.npos;
  return of_layer && name.ends_with(models::kPredictionEmbedding) ? whole.table : std::string();
}

// Throws Error: the directory is a base model saved without its head.
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

// The name under which an adapter's directory has a tensor of the base model that it trains; "" if
// it has none.
std::string name_in_adapter(const ModelDirectory& directory, const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  const std::string prefix(checkpoint::kAdapterPrefix);
  for (const std::string& name :
       {prefix + tensor, prefix + tensor.substr(0, dot) + ".base_layer" + tensor.substr(dot)})
    if (directory.find(name) != nullptr) return name;
  return {};
}

}  // namespace

StoredNames::StoredNames(const WholeModel& whole, const ModelDirectory& directory) {
  const models::Model& model = whole.model;
  const NameSearch search(whole, directory);
  prefix_ = search.prefix();
  const std::optional<TiedOutput> tied = model->tied_output();
  const std::string output = tied ? search.find(tied->output) : std::string();
  for (const checkpoint::WholeTensor& tensor : whole.weights) {
    std::string found = search.find(tensor.name);
    if (directory.is_adapter()) {
      if (std::string own = name_in_adapter(directory, tensor.name); !own.empty()) {
        if (!found.empty()) left_out_.push_back({found, "is replaced by " + own});
        found = std::move(own);
      }
    }
    if (tied && tensor.name == tied->table && !output.empty()) {
      if (found.empty()) {
        found = output;
      } else if (directory.find(output) != nullptr && directory.find(found) != nullptr) {
        check_equal(directory, output, found,
                    "differ, although its config.json ties them (tie_word_embeddings); set that to "
                    "false");
        left_out_.push_back({output, "is " + found});
      }
    }
    if (tensor.name == whole.head && found.empty() && !whole.new_head &&
        directory.find(of(whole.table)) != nullptr)
      fail_without_head(whole, directory);
    if (!found.empty() && found != tensor.name) stored_.emplace(tensor.name, std::move(found));
  }
  std::set<std::string_view> needed;
  for (const checkpoint::WholeTensor& tensor : whole.weights) needed.insert(of(tensor.name));
  for (const std::string& stored : directory.tensor_names()) {
    if (needed.contains(stored)) continue;
    const std::string name = search.family_name(stored);
    const std::string layer = model->prediction_layer(name);
    if (const std::string original = of(original_of(name, whole));
        model->is_surplus(name) && directory.find(original) != nullptr) {
      check_equal(directory, stored, original,
                  "differ, but a layer of multi-token prediction shares the model's own; give "
                  "--mtp-num-layers 0 to train without that layer");
      left_out_.push_back({stored, "is " + original});
    } else if (const std::string block = of(model->original_of_copy(name));
               directory.find(block) != nullptr) {
      check_equal(directory, stored, block,
                  "differ, but both are weights of one block that layers share (num_mem_blocks in "
                  "config.json says how many blocks there are)");
      left_out_.push_back({stored, "is " + block});
    } else if (model->is_surplus(name)) {
      left_out_.push_back({stored, "is not needed"});
    } else if (!layer.empty() && search.has(layer + ".eh_proj.weight")) {
      left_out_.push_back({stored, "predicts tokens beyond the next", layer});
    } else if (const auto key = models::absent_key(model, directory.config(), name); !key.empty()) {
      left_out_.push_back({.name = stored,
                           .reason = fmt::format("is not used, as config.json has no {}", key),
                           .absent_key = std::string(key)});
    }
  }
}

const std::string& StoredNames::of(const std::string& tensor) const {
  const auto found = stored_.find(tensor);
  return found == stored_.end() ? tensor : found->second;
}

}  // namespace megatron::training
