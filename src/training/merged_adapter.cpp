#include "training/merged_adapter.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/divide.h"
#include "base/error.h"
#include "checkpoint/name_list.h"
#include "checkpoint/tensor_copy.h"
#include "models/adapters/adapter_directory.h"
#include "models/adapters/expert_modules.h"
#include "models/stage.h"
#include "tensor/element_types.h"

namespace megatron::training {
namespace {

using checkpoint::kAdapterConfig, checkpoint::kAdapterPrefix;
using checkpoint::TensorFiles, checkpoint::TensorInfo;
using models::AdapterPart, models::stored_name;

constexpr int64_t kBlockElements = int64_t{1} << 20;
constexpr std::string_view kWeight = ".weight", kBias = ".bias";

// The common type of both: that of computations for elements of type S.
template <class S>
using Wide = std::conditional_t<std::is_same_v<S, double>, double, float>;

template <class T>
std::vector<T> values(const TensorFiles& files, const std::string& name, int64_t begin,
                      int64_t count) {
  const std::vector<std::byte> bytes = files.read(name, begin, count);
  std::vector<T> values(static_cast<size_t>(count));
  for_floating_type(files.find(name)->dtype, [&]<class S>(S element) {
    for (size_t i = 0; i < values.size(); ++i) {
      std::memcpy(&element, bytes.data() + i * sizeof(S), sizeof(S));
      values[i] = static_cast<T>(static_cast<Wide<S>>(element));
    }
  });
  return values;
}

template <class T>
std::vector<T> values(const TensorFiles& files, const std::string& name) {
  return values<T>(files, name, 0, files.find(name)->shape.elements());
}

template <class T>
void store(std::span<const T> values, DType type, std::byte* out) {
  for_floating_type(type, [&]<class S>(S element) {
    for (size_t i = 0; i < values.size(); ++i) {
      element = static_cast<S>(static_cast<Wide<S>>(values[i]));
      std::memcpy(out + i * sizeof(S), &element, sizeof(S));
    }
  });
}

template <class T>
std::vector<T> transposed(const std::vector<T>& matrix, int64_t rows, int64_t columns) {
  std::vector<T> result(matrix.size());
  for (int64_t r = 0; r < rows; ++r)
    for (int64_t c = 0; c < columns; ++c)
      result[static_cast<size_t>(c * rows + r)] = matrix[static_cast<size_t>(r * columns + c)];
  return result;
}

// left [rows, rank] x right [rank, columns], added to rows of a matrix. With several matrices on
// top of each other, right is [matrices, rank, columns].
template <class T>
struct Product {
  std::vector<T> left, right;
  int64_t rank = 0;
  T scale = 0;
  int64_t rows = std::numeric_limits<int64_t>::max();  // of each matrix

  void add_to(std::span<T> row, int64_t number) const {
    std::vector<T> sum(row.size());
    for (int64_t k = 0; k < rank; ++k) {
      const T factor = left[static_cast<size_t>(number * rank + k)];
      const T* const with =
          right.data() + (number / rows * rank + k) * static_cast<int64_t>(row.size());
      for (size_t i = 0; i < row.size(); ++i) sum[i] += factor * with[i];
    }
    for (size_t i = 0; i < row.size(); ++i) row[i] += scale * sum[i];
  }
};

// rows, columns: of the tensor, in which all experts' matrices are on top of each other.
template <class T>
Product<T> product_of_experts(const MergedAdapter::Change& change, const TensorFiles& files,
                              int64_t rows, int64_t columns) {
  const models::ExpertLayout& layout = change.experts->layout;
  const std::vector<T> a = values<T>(files, change.a), b = values<T>(files, change.b);
  const auto value = [&](const models::StoredElement& element) {
    return (element.part == AdapterPart::a ? a : b)[static_cast<size_t>(element.index)];
  };
  Product<T> product{.rank = layout.rank,
                     .scale = static_cast<T>(change.scale),
                     .rows = rows / change.experts->count};
  for (int64_t row = 0; row < rows; ++row) {
    const int64_t expert = change.experts->first + row / product.rows,
                  of_matrix = row % product.rows;
    for (int64_t k = 0; k < layout.rank; ++k)
      product.left.push_back(value(change.transposed
                                       ? layout.a(expert, k, of_matrix)
                                       : layout.b(expert, change.experts->row + of_matrix, k)));
  }
  for (int64_t i = 0; i < change.experts->count * layout.rank; ++i) {
    const int64_t expert = change.experts->first + i / layout.rank, k = i % layout.rank;
    for (int64_t column = 0; column < columns; ++column)
      product.right.push_back(
          value(change.transposed ? layout.b(expert, column, k) : layout.a(expert, k, column)));
  }
  return product;
}

template <class T>
Product<T> product_of(const MergedAdapter::Change& change, const TensorFiles& files) {
  const Shape &a = files.find(change.a)->shape, &b = files.find(change.b)->shape;
  Product<T> product{.rank = a[0], .scale = static_cast<T>(change.scale)};
  std::vector<T> a_values = values<T>(files, change.a), b_values = values<T>(files, change.b);
  if (change.transposed) {
    product.left = transposed(a_values, a[0], a[1]);
    product.right = transposed(b_values, b[0], b[1]);
  } else {
    product.left = std::move(b_values);
    product.right = std::move(a_values);
  }
  return product;
}

template <class T>
double square_sum(std::span<const T> row) {
  double sum = 0;
  for (const T value : row) sum += static_cast<double>(value) * static_cast<double>(value);
  return sum;
}

template <class T>
T ratio_of_lengths(T wanted, double squares) {
  return squares > 0 ? static_cast<T>(static_cast<double>(wanted) / std::sqrt(squares)) : T{0};
}

// The computation of one tensor, block by block of rows, so that it does not depend on the number
// of threads.
template <class T>
class Merging {
 public:
  Merging(const MergedAdapter& merged, const MergedAdapter::Change& change, ThreadPool& pool)
      : change_(change),
        pool_(pool),
        info_(merged.info(change)),
        adapter_(merged.adapter().tensors()),
        replaced_(!change.replacement.empty()),
        source_(replaced_ ? adapter_ : merged.base().tensors()),
        columns_(info_.shape[info_.shape.rank() - 1]),
        rows_(columns_ == 0 ? 0 : info_.shape.elements() / columns_),
        block_rows_(std::max<int64_t>(1, kBlockElements / std::max<int64_t>(1, columns_))) {
    if (change.experts) product_ = product_of_experts<T>(change, adapter_, rows_, columns_);
    else if (!change.a.empty()) product_ = product_of<T>(change, adapter_);
    if (!change.bias.empty()) bias_ = values<T>(adapter_, change.bias);
    if (!change.magnitude.empty()) magnitude_ = values<T>(adapter_, change.magnitude);
    if (change.transposed && !magnitude_.empty()) column_factors_ = lengthening();
  }

  void write(std::span<std::byte> out) const {
    write_sums(out);
    if (change_.rows.empty()) return;
    const std::vector<T> rows = values<T>(adapter_, change_.rows);
    for (size_t i = 0; i < change_.row_numbers.size(); ++i)
      store(
          std::span(rows).subspan(i * static_cast<size_t>(columns_), static_cast<size_t>(columns_)),
          info_.dtype, out.data() + change_.row_numbers[i] * columns_ * size_of(info_.dtype));
  }

 private:
  void write_sums(std::span<std::byte> out) const {
    for_each_block([&](int64_t block, std::span<T> sums) {
      const int64_t first = block * block_rows_;
      for (int64_t r = 0; r < static_cast<int64_t>(sums.size()) / columns_; ++r)
        set_length(row_of(sums, r), first + r);
      store(std::span<const T>(sums), info_.dtype,
            out.data() + first * columns_ * size_of(info_.dtype));
    });
  }

  std::span<T> row_of(std::span<T> block, int64_t row) const {
    return block.subspan(static_cast<size_t>(row * columns_), static_cast<size_t>(columns_));
  }

  // Calls f(block, elements) with the sums, before DoRA's lengths.
  template <class F>
  void for_each_block(const F& f) const {
    pool_.parallel_for(ceil_div(rows_, block_rows_), [&](int64_t block, int) {
      const int64_t first = block * block_rows_, count = std::min(block_rows_, rows_ - first);
      std::vector<T> sums = values<T>(source_, replaced_ ? change_.replacement : change_.stored,
                                      first * columns_, count * columns_);
      for (int64_t r = 0; r < count; ++r) {
        const std::span<T> row = row_of(sums, r);
        if (product_) product_->add_to(row, first + r);
        for (size_t i = 0; i < bias_.size(); ++i)
          row[i] += static_cast<T>(change_.scale) * bias_[i];
      }
      f(block, std::span<T>(sums));
    });
  }

  // Factors that give each column its length.
  std::vector<T> lengthening() const {
    const auto width = static_cast<size_t>(columns_);
    std::vector<std::vector<double>> squares(static_cast<size_t>(ceil_div(rows_, block_rows_)));
    for_each_block([&](int64_t block, std::span<T> sums) {
      std::vector<double>& of_block = squares[static_cast<size_t>(block)];
      of_block.resize(width);
      for (size_t i = 0; i < sums.size(); ++i)
        of_block[i % width] += static_cast<double>(sums[i]) * static_cast<double>(sums[i]);
    });
    std::vector<T> factors(width);
    for (size_t c = 0; c < width; ++c) {
      double sum = 0;
      for (const std::vector<double>& of_block : squares) sum += of_block[c];
      factors[c] = ratio_of_lengths(magnitude_[c], sum);
    }
    return factors;
  }

  void set_length(std::span<T> row, int64_t number) const {
    for (size_t i = 0; i < column_factors_.size(); ++i) row[i] *= column_factors_[i];
    if (magnitude_.empty() || change_.transposed) return;
    const T factor = ratio_of_lengths(magnitude_[static_cast<size_t>(number)],
                                      square_sum(std::span<const T>(row)));
    for (T& value : row) value *= factor;
  }

  const MergedAdapter::Change& change_;
  ThreadPool& pool_;
  const TensorInfo& info_;
  const TensorFiles& adapter_;
  const bool replaced_;
  const TensorFiles& source_;
  const int64_t columns_, rows_, block_rows_;
  std::optional<Product<T>> product_;
  std::vector<T> bias_, magnitude_, column_factors_;
};

models::LoraConfig config_of(const checkpoint::ModelDirectory& directory) {
  const std::string file = fmt::format("{}/{}", directory.path(), kAdapterConfig);
  MG_CHECK(directory.is_adapter(), "'{}' is not the directory of an adapter: it needs {} and {}",
           directory.path(), kAdapterConfig, checkpoint::kAdapterFile);
  return models::lora_from_json(directory.config()[kAdapterConfig], file);
}

models::ModuleKind kind_of(parallel::Role role) {
  if (role == parallel::Role::embedding) return models::ModuleKind::embedding;
  return role == parallel::Role::output ? models::ModuleKind::output : models::ModuleKind::linear;
}

// The base model of an adapter's directory, with the head that the adapter brings.
models::Model base_of(const checkpoint::ModelDirectory& directory) {
  config_of(directory);  // throws Error if it is none
  return models::base_model_of(directory);
}

// A whole model without memory.
struct ShapesOnly {
  explicit ShapesOnly(const models::Model& model)
      : runtime({DeviceKind::meta, 0}, 1),
        stage(model.build(runtime, DType::f32, 0, {.layers = model->num_layers()}, {})) {}
  Runtime runtime;
  std::unique_ptr<models::Stage> stage;
};

// The whole model; new_head: its directory need not have its head.
WholeModel whole_of(const models::Stage& stage, bool new_head) {
  WholeModel whole = whole_model(stage);
  whole.new_head = new_head;
  return whole;
}

}  // namespace

MergedAdapter::MergedAdapter(const checkpoint::ModelDirectory& directory)
    : MergedAdapter(directory, *ShapesOnly(base_of(directory)).stage) {}

MergedAdapter::MergedAdapter(const checkpoint::ModelDirectory& directory,
                             const models::Stage& base_stage)
    : adapter_(directory),
      base_(directory.base_path(), {.ignore_surplus = directory.options().ignore_surplus}),
      config_(config_of(directory)),
      model_(base_stage.model()),
      whole_(whole_of(base_stage,
                      model_->score_labels() > 0 && models::model_of(base_)->score_labels() == 0)),
      names_(whole_, base_) {
  find_changes(base_stage);
  check_all_used();
  check_new_head();
}

bool MergedAdapter::is_of_new_head(const std::string& tensor) const {
  return whole_.new_head &&
         (tensor == whole_.head ||
          std::ranges::find(whole_.head_parts, tensor) != whole_.head_parts.end());
}

void MergedAdapter::check_new_head() const {
  for (const checkpoint::WholeTensor& tensor : whole_.weights)
    MG_CHECK(!is_of_new_head(tensor.name) || base_.find(names_.of(tensor.name)) != nullptr ||
                 std::ranges::find(changes_, tensor.name, &Change::name) != changes_.end(),
             "the adapter '{}' brings a head that the base model '{}' has not, and neither has "
             "its {}: train it with the adapter (modules_to_save)",
             adapter_.path(), base_.path(), tensor.name);
}

std::vector<MergedAdapter::Written> MergedAdapter::tensors() const {
  std::vector<Written> written;
  const auto add = [&](const std::string& name, const std::string& stored, const TensorInfo& info) {
    written.push_back({name, stored, info.shape,
                       info.foreign_type.empty() ? std::optional(info.dtype) : std::nullopt});
  };
  if (!brings_head()) {
    for (const std::string& name : base_.tensor_names()) add(name, name, *base_.find(name));
    return written;
  }
  for (const checkpoint::WholeTensor& tensor : whole_.weights) {
    const auto change = std::ranges::find(changes_, tensor.name, &Change::name);
    if (change != changes_.end() && change->is_new) {
      add(tensor.name, {}, info(*change));
      continue;
    }
    const std::string& stored = names_.of(tensor.name);
    MG_CHECK(base_.find(stored) != nullptr, "the base model '{}' has no tensor '{}'", base_.path(),
             stored);
    add(tensor.name, stored, *base_.find(stored));
  }
  return written;
}

void MergedAdapter::find_changes(const models::Stage& base_stage) {
  for (const parallel::ParameterSpec* spec : models::tensors_of(base_stage))
    for (const parallel::CanonicalTensor& tensor : spec->placement.tensors)
      add_change(*spec, tensor, names_.of(tensor.name));
  // The second copy of a matrix that is embedding and output layer.
  const auto tied = model_->tied_output();
  for (const StoredNames::LeftOut& copy : names_.left_out()) {
    if (!tied || !copy.name.ends_with(tied->output)) continue;
    const auto table = std::ranges::find(changes_, tied->table, &Change::name);
    if (table == changes_.end()) continue;
    changes_.push_back(*table);
    changes_.back().stored = copy.name;
  }
}

std::string MergedAdapter::take(const std::string& name) {
  if (adapter_.find(name) == nullptr) return {};
  used_.insert(name);
  return name;
}

void MergedAdapter::check_shape(const std::string& name, const Shape& shape,
                                const std::string& of) const {
  const TensorInfo& info = *adapter_.find(name);
  MG_CHECK(info.shape == shape,
           "the tensor '{}' of the adapter '{}' has shape {}; for '{}' of the base model '{}' it "
           "must have {}",
           name, adapter_.path(), info.shape.str(), of, base_.path(), shape.str());
  MG_CHECK(info.foreign_type.empty() && is_floating(info.dtype),
           "the tensor '{}' of the adapter '{}' has type {}; it must be f64, f32, bf16 or f16",
           name, adapter_.path(), type_name(info));
}

void MergedAdapter::add_matrices(Change& change, const std::string& module, double scale,
                                 int64_t rank, const Shape& shape) {
  change.scale = scale;
  change.a = take(stored_name(module, AdapterPart::a));
  change.b = take(stored_name(module, AdapterPart::b));
  int64_t out = shape[shape.rank() - 2], in = shape[shape.rank() - 1];
  if (change.a.empty()) {
    change.a = take(stored_name(module, AdapterPart::embedding_a));
    change.b = take(stored_name(module, AdapterPart::embedding_b));
    if (!change.a.empty()) {
      change.transposed = true;
      std::swap(in, out);  // an embedding is [in, out], as a matrix of one-hot rows
    }
  }
  MG_CHECK(!change.a.empty() && !change.b.empty(),
           "the adapter '{}' has no matrices A and B for {}, which {} says that it adapts",
           adapter_.path(), module, kAdapterConfig);
  check_shape(change.a, {rank, in}, change.name);
  check_shape(change.b, {out, rank}, change.name);
  if (!config_.weight_decomposed) return;
  change.magnitude = take(stored_name(module, AdapterPart::magnitude));
  MG_CHECK(!change.magnitude.empty(), "the adapter '{}' has no lora_magnitude_vector for {}",
           adapter_.path(), module);
  check_shape(change.magnitude, {out}, change.name);
}

void MergedAdapter::add_token_rows(Change& change, const std::string& module,
                                   models::ModuleKind kind, const Shape& shape) {
  if (kind == models::ModuleKind::linear) return;
  change.row_numbers = token_rows_of(config_, module, kind);
  if (change.row_numbers.empty()) return;
  change.rows = take(stored_name(module, AdapterPart::token_rows));
  MG_CHECK(!change.rows.empty(), "the adapter '{}' has no trainable_tokens_delta for {}",
           adapter_.path(), module);
  check_shape(change.rows, {std::ssize(change.row_numbers), shape[1]}, change.name);
  const int64_t largest = std::ranges::max(change.row_numbers);
  MG_CHECK(largest < shape[0],
           "the adapter '{}' trains the row of token {} of {} (trainable_token_indices), which has "
           "{} rows in '{}': ids must lie in [0, {})",
           adapter_.path(), largest, module, shape[0], base_.path(), shape[0]);
}

// The tensor of one expert, or of all experts of a layer.
void MergedAdapter::add_experts(Change& change, const parallel::CanonicalTensor& tensor) {
  const bool all = !tensor.name.ends_with(kWeight);
  const auto expert = models::expert_module(tensor.name.substr(0, tensor.name.rfind('.')));
  if (!all && !expert) return;
  const std::string parameter = all ? tensor.name : expert->parameter_name();
  const auto adapted = models::adapter_of_parameter(config_, parameter);
  if (!adapted) return;
  change.a = take(models::stored_parameter_name(config_, parameter, AdapterPart::a));
  change.b = take(models::stored_parameter_name(config_, parameter, AdapterPart::b));
  MG_CHECK(!change.a.empty() && !change.b.empty(),
           "the adapter '{}' has no matrices A and B for {}, which {} says that it adapts",
           adapter_.path(), parameter, kAdapterConfig);
  const auto sizes = [this](const std::string& name) {
    std::vector<int64_t> sizes;
    const Shape& stored = adapter_.find(name)->shape;
    for (int d = 0; d < stored.rank(); ++d) sizes.push_back(stored[d]);
    return sizes;
  };
  const Shape& shape = tensor.global;
  const int64_t rows = shape[shape.rank() - 2], experts = model_->facts().experts->count,
                halves = !all && expert->parameter == "gate_up_proj" ? 2 : 1;
  Change::Experts& of = change.experts.emplace();
  if (all) of.count = experts;
  else of.first = expert->number, of.row = expert->half * rows;
  of.layout = models::expert_layout({.name = parameter,
                                     .experts = experts,
                                     .in = shape[shape.rank() - 1],
                                     .out = halves * rows,
                                     .transposed = tensor.transposed,
                                     .shape_a = sizes(change.a),
                                     .shape_b = sizes(change.b),
                                     .peft_version = config_.peft_version});
  check_shape(change.a, adapter_.find(change.a)->shape, change.name);
  check_shape(change.b, adapter_.find(change.b)->shape, change.name);
  MG_CHECK(of.layout.rank == adapted->rank,
           "the adapter '{}' has the rank {} for {}, but {} says {}", adapter_.path(),
           of.layout.rank, parameter, kAdapterConfig, adapted->rank);
  change.scale = adapted->scale;
}

void MergedAdapter::add_change(const parallel::ParameterSpec& spec,
                               const parallel::CanonicalTensor& tensor, const std::string& stored) {
  const std::string &name = tensor.name, module = name.substr(0, name.rfind('.')),
                    leaf = name.substr(module.size());
  Change change{.name = name, .stored = stored, .transposed = tensor.transposed};
  if (leaf == kWeight) change.replacement = take(stored_name(module, AdapterPart::base_weight));
  if (leaf == kBias) change.replacement = take(stored_name(module, AdapterPart::base_bias));
  if (change.replacement.empty()) change.replacement = take(std::string(kAdapterPrefix) + name);
  const bool matrix = leaf == kWeight && tensor.stored_shape().rank() == 2;
  const auto adapted = matrix || (leaf == kBias && config_.lora_bias)
                           ? models::adapter_of(config_, module, kind_of(spec.role))
                           : std::nullopt;
  if (adapted && matrix) {
    const auto tied = model_->tied_output();
    MG_CHECK(!tied || tied->table != name,
             "'{}' adapts {}, which in '{}' is the output layer, too (tie_word_embeddings), but "
             "has no adapter there: they cannot be merged into one matrix",
             adapter_.path(), module, base_.path());
    add_matrices(change, module, adapted->scale, adapted->rank, tensor.global);
  } else if (matrix || tensor.stored_shape().rank() == 3) {
    add_experts(change, tensor);
  } else if (adapted) {
    change.scale = adapted->scale;
    change.bias = take(stored_name(module, AdapterPart::b_bias));
    MG_CHECK(!change.bias.empty(), "the adapter '{}' has no bias of B for {}", adapter_.path(),
             module);
    check_shape(change.bias, tensor.global, name);
  }
  if (leaf == kWeight) add_token_rows(change, module, kind_of(spec.role), tensor.global);
  if (change.replacement.empty() && change.a.empty() && change.bias.empty() && change.rows.empty())
    return;
  const TensorInfo* const info = base_.find(stored);
  if (info == nullptr && is_of_new_head(name) && !change.replacement.empty()) {
    check_shape(change.replacement, tensor.stored_shape(), name);
    change.stored = name;
    change.is_new = true;
    return changes_.push_back(std::move(change));
  }
  MG_CHECK(info != nullptr, "the base model '{}' has no tensor '{}', which '{}' changes",
           base_.path(), name, adapter_.path());
  MG_CHECK(info->shape == tensor.stored_shape() && info->foreign_type.empty() &&
               is_floating(info->dtype),
           "the tensor '{}' of '{}' has shape {} and type {}; to be merged it must have {} and be "
           "f64, f32, bf16 or f16",
           stored, base_.path(), info->shape.str(), type_name(*info), tensor.stored_shape().str());
  if (!change.replacement.empty()) check_shape(change.replacement, info->shape, name);
  changes_.push_back(std::move(change));
}

void MergedAdapter::check_all_used() const {
  std::vector<std::string> unused;
  for (const std::string& name : adapter_.tensor_names())
    if (name.starts_with(kAdapterPrefix) && !used_.contains(name)) unused.push_back(name);
  MG_CHECK(unused.empty(),
           "tensors of the adapter '{}' cannot be merged: {}; either the model '{}' has no such "
           "modules, or {} does not adapt them",
           adapter_.path(), checkpoint::counted(unused), base_.path(), kAdapterConfig);
  MG_CHECK(!changes_.empty(), "the adapter '{}' changes no tensor of the model '{}'",
           adapter_.path(), base_.path());
}

std::string MergedAdapter::text() const {
  int64_t matrices = 0, biases = 0, replaced = 0, added = 0, rows = 0;
  for (const Change& change : changes_) {
    matrices += !change.a.empty();
    biases += !change.bias.empty();
    added += change.is_new;
    replaced +=
        !change.replacement.empty() && change.a.empty() && change.bias.empty() && !change.is_new;
    rows += std::ssize(change.row_numbers);
  }
  std::string text;
  const auto add = [&text](int64_t count, std::string_view what) {
    if (count > 0) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", count, what);
  };
  add(matrices,
      config_.weight_decomposed ? "matrices with adapters (DoRA)" : "matrices with adapters");
  add(biases, "biases with adapters");
  add(replaced, "tensors replaced");
  add(added, "tensors of a new head");
  add(rows, "rows of tables replaced");
  return text;
}

std::vector<std::byte> MergedAdapter::merged(const Change& change, ThreadPool& pool) const {
  const TensorInfo& info = this->info(change);
  std::vector<std::byte> out(static_cast<size_t>(info.shape.elements() * size_of(info.dtype)));
  if (info.dtype == DType::f64) Merging<double>(*this, change, pool).write(out);
  else Merging<float>(*this, change, pool).write(out);
  return out;
}

void load_merged(const MergedAdapter& merged, const std::vector<checkpoint::HeldTensor>& held,
                 const WholeModel& whole, ThreadPool& pool) {
  WholeModel stored = whole;
  stored.new_head = merged.brings_head();
  std::vector<std::string> absent;
  for (const MergedAdapter::Change& change : merged.changes())
    if (change.is_new) absent.push_back(change.name);
  load_weights(merged.base(), held, stored, {.absent = absent, .tells = false});
  for (const MergedAdapter::Change& change : merged.changes()) {
    const std::vector<std::byte> bytes = merged.merged(change, pool);
    const DType type = merged.info(change).dtype;
    for (const checkpoint::HeldTensor& tensor : held) {
      for (const parallel::CanonicalTensor& part : tensor.placement->tensors) {
        if (part.name != change.name) continue;
        checkpoint::HeldTensor here = tensor;
        here.value = on_host(tensor.value);
        checkpoint::read_part(part, bytes, type, here);
        if (!tensor.value.device().is_host()) copy_bytes_from(tensor.value, bytes_of(here.value));
      }
    }
  }
}

}  // namespace megatron::training
