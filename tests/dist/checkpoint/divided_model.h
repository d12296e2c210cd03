// A model with optimizer state, divided among ranks as a layout says: tensor-parallel slices,
// stages, shards of any range, and replicas. Every bit is random.
#pragma once

#include <cstring>
#include <deque>
#include <random>

#include "checkpoint/checkpoint_directory.h"
#include "checkpoint/save.h"
#include "dist/ranks.h"
#include "unit/checkpoint/support.h"

namespace megatron::checkpoint {

struct TestLayout {
  int tp = 1, dp = 1, pp = 1;
  int instances = 1;  // replicas of the shards (hybrid sharding)
  bool shard_optimizer = false, shard_weights = false;
  uint64_t seed = 0;  // decides where stages and shards are cut

  int ranks() const { return tp * dp * pp; }
  std::string text() const {
    return fmt::format("tp {} dp {} pp {} instances {} optimizer {} weights {} seed {}", tp, dp, pp,
                       instances, shard_optimizer, shard_weights, seed);
  }

  static TestLayout any(int ranks, std::mt19937_64& random) {
    const auto divisor = [&](int n) {
      int d = 0;
      do d = 1 + static_cast<int>(random() % static_cast<uint64_t>(n));
      while (n % d != 0);
      return d;
    };
    TestLayout layout;
    layout.tp = divisor(ranks);
    layout.dp = divisor(ranks / layout.tp);
    layout.pp = ranks / layout.tp / layout.dp;
    layout.instances = divisor(layout.dp);
    layout.shard_optimizer = random() % 4 != 0;
    layout.shard_weights = layout.shard_optimizer && random() % 2 == 0;
    layout.seed = random();
    return layout;
  }
};

class WholeModel {
 public:
  struct Value {
    std::string prefix;
    DType type;
    std::string bits;
  };
  struct Parameter {
    parallel::Placement placement;
    Shape shape;
    std::optional<parallel::Division> division;
    std::vector<Value> values;  // weight first
  };

  WholeModel(DType type, bool tied, uint64_t seed) : type_(type), tied_(tied), random_(seed) {
    constexpr int64_t kVocabulary = 21, kPositions = 24, kHidden = 8, kInner = 12, kGroups = 2;
    using parallel::Division;
    const auto whole = [](const std::string& name, Shape shape, int64_t local = 0) {
      return parallel::CanonicalTensor{name, shape, {{0, {{0, local, shape[0]}}}}, false};
    };
    const auto transposed = [&](const std::string& name, Shape shape) {
      parallel::CanonicalTensor part = whole(name, shape);
      part.transposed = true;
      return part;
    };
    const Division rows{0, {kVocabulary}};
    add({whole("wte.weight", Shape{kVocabulary, kHidden})}, rows);
    add({whole("wpe.weight", Shape{kPositions, kHidden})}, {});
    for (int layer = 0; layer < 2; ++layer) {
      const std::string h = fmt::format("h.{}.", layer);
      add({whole(h + "ln.weight", Shape{kHidden})}, {});
      add({transposed(h + "c_attn.weight", Shape{3 * kHidden, kHidden})},
          Division{0, {kHidden, kHidden, kHidden}});
      add({whole(h + "q.bias", Shape{kHidden}), whole(h + "k.bias", Shape{kGroups}, kHidden),
           whole(h + "v.bias", Shape{kGroups}, kHidden + kGroups)},
          Division{0, {kHidden, kGroups, kGroups}});
      add({transposed(h + "c_proj.weight", Shape{kHidden, kInner})}, Division{1, {kInner}});
      add({whole(h + "gate.weight", Shape{kInner, kHidden}),
           whole(h + "up.weight", Shape{kInner, kHidden}, kInner)},
          Division{0, {kInner, kInner}});
      add({whole(h + "down.weight", Shape{kHidden, kInner})}, Division{1, {kInner}});
    }
    add({whole("ln_f.weight", Shape{kHidden})}, {});
    if (!tied) add({whole("lm_head.weight", Shape{kVocabulary, kHidden})}, rows);
  }

  const std::deque<Parameter>& parameters() const { return parameters_; }
  bool tied() const { return tied_; }

 private:
  void add(std::vector<parallel::CanonicalTensor> parts,
           std::optional<parallel::Division> division) {
    Parameter& p = parameters_.emplace_back();
    int64_t rows = 0;
    for (const parallel::CanonicalTensor& part : parts) rows += part.global[0];
    p.shape = parts.front().global;
    p.shape.set(0, rows);
    p.placement.tensors = std::move(parts);
    p.division = std::move(division);
    add_value(p, "", type_);
    if (type_ == DType::bf16) add_value(p, "remainder.", DType::i16);
    add_value(p, "exp_avg.", DType::f32);
    if (p.division) add_value(p, "exp_avg_sq.", DType::f32);  // states differ, as with Muon
  }
  void add_value(Parameter& p, const std::string& prefix, DType type) {
    std::string bits(static_cast<size_t>(p.shape.elements() * size_of(type)), '\0');
    for (char& c : bits) c = static_cast<char>(random_());
    p.values.push_back({prefix, type, std::move(bits)});
  }

  DType type_;
  bool tied_;
  std::mt19937_64 random_;
  std::deque<Parameter> parameters_;
};

// Tensors that one rank holds.
class DividedModel {
 public:
  DividedModel(const WholeModel& model, const TestLayout& layout, int rank, Runtime& runtime)
      : layout_(layout), rank_(rank), runtime_(runtime) {
    const int tensor = rank % layout.tp, stage = rank / (layout.tp * layout.dp);
    // Every stage and slice has its shards cut at other places.
    std::mt19937_64 cuts(layout.seed + static_cast<uint64_t>(stage * 97 + tensor));
    std::vector<const WholeModel::Parameter*> mine;
    int64_t elements = 0;
    for (const WholeModel::Parameter* p : of_stage(model, stage)) {
      mine.push_back(p);
      elements += p->shape.elements();
    }
    const int shards = layout.dp / layout.instances, shard = rank / layout.tp % layout.dp % shards;
    std::vector<int64_t> ends;
    for (int i = 1; i < shards; ++i)
      ends.push_back(static_cast<int64_t>(cuts() % static_cast<uint64_t>(elements)));
    std::sort(ends.begin(), ends.end());
    ends.insert(ends.begin(), 0);
    ends.push_back(INT64_MAX);
    begin_ = ends[static_cast<size_t>(shard)];
    end_ = ends[static_cast<size_t>(shard) + 1];
    int64_t at = 0;
    for (const WholeModel::Parameter* p : mine) at = hold(*p, at);
  }

  const std::vector<HeldTensor>& weights() const { return weights_; }
  const std::vector<HeldTensor>& optimizer() const { return optimizer_; }

  std::string bits() const {
    std::string text;
    for (const auto* list : {&weights_, &optimizer_}) {
      for (const HeldTensor& t : *list) {
        if (t.value.elements() > 0)
          text.append(static_cast<const char*>(t.value.raw()),
                      static_cast<size_t>(t.value.bytes()));
      }
    }
    return text;
  }
  void clear() {
    for (const auto* list : {&weights_, &optimizer_}) {
      for (const HeldTensor& t : *list) {
        if (t.value.elements() > 0)
          std::memset(t.value.raw(), 0x55, static_cast<size_t>(t.value.bytes()));
      }
    }
  }

 private:
  std::vector<const WholeModel::Parameter*> of_stage(const WholeModel& model, int stage) const {
    std::mt19937_64 random(layout_.seed);
    const size_t count = model.parameters().size();
    std::vector<size_t> ends = {0, count};
    for (int i = 1; i < layout_.pp; ++i) ends.push_back(random() % (count + 1));
    std::sort(ends.begin(), ends.end());
    std::vector<const WholeModel::Parameter*> mine;
    for (size_t i = ends[static_cast<size_t>(stage)]; i < ends[static_cast<size_t>(stage) + 1]; ++i)
      mine.push_back(&model.parameters()[i]);
    const bool again = model.tied() && stage > 0 && stage + 1 == layout_.pp &&
                       (mine.empty() || mine.front() != &model.parameters()[0]);
    if (again) mine.push_back(&model.parameters()[0]);  // its second use
    if (mine.empty()) mine.push_back(&model.parameters()[0]);
    return mine;
  }

  // `at` is the offset of the first element in the buffer that is cut into shards. Returns the
  // offset of the next parameter.
  int64_t hold(const WholeModel::Parameter& p, int64_t at) {
    std::vector<parallel::Slice> slices = {{0, 0, p.shape[0]}};
    int axis = 0;
    Shape shape = p.shape;
    const parallel::Placement* placement = &p.placement;
    if (p.division && layout_.tp > 1) {
      parallel::Division division = *p.division;
      division.ranks = layout_.tp;
      axis = division.axis;
      slices = division.slices(rank_ % layout_.tp);
      placement = &placements_.emplace_back(parallel::narrowed(p.placement, axis, slices));
      int64_t size = 0;
      for (const parallel::Slice& s : slices) size += s.size;
      shape.set(axis, size);
    }
    const int64_t n = shape.elements();
    const int64_t begin = std::clamp<int64_t>(begin_ - at, 0, n),
                  end = std::clamp<int64_t>(end_ - at, 0, n);
    for (const WholeModel::Value& value : p.values) {
      const bool weight = value.prefix.empty();
      const bool sharded = weight ? layout_.shard_weights : layout_.shard_optimizer;
      const int64_t first = sharded ? begin : 0, last = sharded ? end : n;
      if (first == last && at % 2 == 0) continue;  // an empty shard, or none at all
      const std::string bits = sliced(value, p.shape, axis, slices);
      const int64_t width = size_of(value.type);
      const Tensor t = Tensor::empty(runtime_.arena(MemoryClass::parameters),
                                     sharded ? Shape{last - first} : shape, value.type, "test");
      if (t.elements() > 0)
        std::memcpy(t.raw(), bits.data() + first * width, static_cast<size_t>(t.bytes()));
      (weight ? weights_ : optimizer_).push_back({value.prefix, placement, t, shape, first});
    }
    return at + n;
  }

  // Concatenates the slices of the axis, element by element.
  static std::string sliced(const WholeModel::Value& value, const Shape& shape, int axis,
                            std::span<const parallel::Slice> slices) {
    const auto width = static_cast<size_t>(size_of(value.type));
    const int64_t rows = shape[0], columns = shape.elements() / rows;
    std::string bits;
    const auto add = [&](int64_t row, int64_t column) {
      bits += value.bits.substr(static_cast<size_t>(row * columns + column) * width, width);
    };
    if (axis == 0) {
      for (const parallel::Slice& s : slices) {
        for (int64_t row = s.global_begin; row < s.global_begin + s.size; ++row) {
          for (int64_t column = 0; column < columns; ++column) add(row, column);
        }
      }
      return bits;
    }
    for (int64_t row = 0; row < rows; ++row) {
      for (const parallel::Slice& s : slices) {
        for (int64_t column = s.global_begin; column < s.global_begin + s.size; ++column)
          add(row, column);
      }
    }
    return bits;
  }

  TestLayout layout_;
  int rank_;
  Runtime& runtime_;
  int64_t begin_ = 0, end_ = 0;  // range of this rank's shard
  std::deque<parallel::Placement> placements_;
  std::vector<HeldTensor> weights_, optimizer_;
};

// The whole undivided model on meta: what a run provides besides the tensors that its ranks hold.
struct WholeLists {
  std::vector<WholeTensor> weights, optimizer;

  explicit WholeLists(const WholeModel& model) {
    const auto arena = Arena::make({DeviceKind::meta, 0}, MemoryClass::parameters);
    std::vector<HeldTensor> held[2];
    for (const WholeModel::Parameter& p : model.parameters()) {
      for (const WholeModel::Value& value : p.values)
        held[value.prefix.empty() ? 0 : 1].push_back(
            {value.prefix, &p.placement, Tensor::empty(*arena, p.shape, value.type, "test"),
             p.shape, 0});
    }
    weights = whole_tensors(held[0]);
    optimizer = whole_tensors(held[1]);
  }
};

// Splits the tensors among several files.
inline Contents contents_of(const DividedModel& held, const WholeLists& whole) {
  return {.config = Json(Json::Object{{"model_type", Json("test")}}),
          .model = held.weights(),
          .optimizer = held.optimizer(),
          .whole_model = whole.weights,
          .whole_optimizer = whole.optimizer,
          .shard_bytes = 3000,
          .trainer_state = Json(Json::Object{{"iteration", Json(3)}})};
}

}  // namespace megatron::checkpoint
