// Builder::add_adapter(): the parameters of an adapter and their parts on each rank.
#include <gtest/gtest.h>

#include <map>

#include "base/philox.h"
#include "comm/traffic.h"
#include "nn/builder.h"

namespace megatron::nn::adapters_test {
namespace {

using parallel::CanonicalTensor, parallel::Division, parallel::Placement, parallel::Slice;

constexpr int64_t kIn = 6;

struct Matrix {
  std::string name;
  Placement placement;
  std::vector<int64_t> rows = {};  // blocks that are divided; none: its columns, if they are
  bool divides_columns = false;
  Shape whole = {};
};

// Query, key and value: a tensor each, of 8, 4 and 4 rows.
Matrix apart() {
  Matrix m{.name = "apart", .rows = {8, 4, 4}};
  int64_t begin = 0;
  for (const auto& [name, rows] : {std::pair{"q", int64_t{8}}, {"k", 4}, {"v", 4}}) {
    m.placement.tensors.push_back(
        {std::string(name) + ".weight", {rows, kIn}, {{0, {{0, begin, rows}}}}});
    begin += rows;
  }
  return m;
}

// One tensor [in, out], as in GPT-2.
Matrix fused() {
  return {.name = "fused",
          .placement = {{{"qkv.weight", {12, kIn}, {{0, {{0, 0, 12}}}}, true}}},
          .rows = {4, 4, 4}};
}

// One tensor with query, key and value of each of two heads after each other, as in GPT-NeoX.
Matrix by_head() {
  std::vector<Slice> slices;
  for (int64_t kind = 0; kind < 3; ++kind)
    for (int64_t head = 0; head < 2; ++head)
      slices.push_back({(head * 3 + kind) * 2, kind * 4 + head * 2, 2});
  return {.name = "by_head",
          .placement = {{{"query_key_value.weight", {12, kIn}, {{0, std::move(slices)}}}}},
          .rows = {4, 4, 4}};
}

Matrix columns() {
  return {.name = "columns",
          .placement = {{{"down.weight", {5, kIn}, {{0, {{0, 0, 5}}}}}}},
          .divides_columns = true};
}

Matrix undivided() {
  return {.name = "undivided", .placement = {{{"proj.weight", {5, kIn}, {{0, {{0, 0, 5}}}}}}}};
}

using Ranks = std::map<std::string, AdapterRules::Adapter>;  // by module

AdapterRules rules_of(const Ranks& ranks) {
  return {.adapter_of = [ranks](const std::string& module,
                                AdaptedKind) -> std::optional<AdapterRules::Adapter> {
            const auto found = ranks.find(module);
            return found == ranks.end() ? std::nullopt : std::optional(found->second);
          },
          .stored_name =
              [](const std::string& module, AdapterTensor tensor) {
                return module + (tensor == AdapterTensor::a   ? ".a"
                                 : tensor == AdapterTensor::b ? ".b"
                                                              : ".b_bias");
              },
          .trains = [](const std::string&) { return false; },
          .random_b = true};
}

// A matrix with its adapters on one of several ranks, filled with initial values.
struct Rank {
  Rank(const Matrix& m, const AdapterRules& rules, int rank, int ranks, bool sequence = false)
      : group(comm::simulated(rank, ranks)),
        builder(
            runtime, DType::f64, [&m](const std::string&, const Shape&) { return m.placement; },
            {.tensor = {.group = group.get(), .sequence = sequence}}, &rules) {
    Shape whole = {0, kIn};
    for (const CanonicalTensor& tensor : m.placement.tensors)
      whole.set(0, whole[0] + tensor.global[0]);
    Builder::Options options;
    if (!m.rows.empty()) options.divisions = {{.axis = 0, .blocks = m.rows}};
    if (m.divides_columns) options.divisions = {{.axis = 1, .blocks = {kIn}}};
    const Parameter& w = *builder.add(m.name, whole, zeros(), options).parameter;
    adapter = builder.add_adapter(w);
    placed = builder.take();
    std::vector<parallel::ParameterSpec*> all;
    for (const auto& one : placed) all.push_back(one.get());
    parallel::allocate(all, runtime);
    for (parallel::ParameterSpec* one : all) parallel::initialize(*one, 5, runtime.stream());
  }

  // What the adapter adds to row i and column j of this rank's part of the matrix.
  double added(int64_t i, int64_t j) const {
    double sum = 0;
    for (const ops::LowRank::Block& block : adapter.blocks) {
      const Tensor& a = block.a.value();
      for (const ops::LowRank::Part& part : block.parts) {
        const Tensor& b = part.b.value();
        if (i < part.row || i >= part.row + b.size(0)) continue;
        for (int64_t k = 0; k < b.size(1); ++k)
          sum += block.scale * to_doubles(b.slice(0, i - part.row, 1))[static_cast<size_t>(k)] *
                 to_doubles(a.slice(0, part.first + k, 1))[static_cast<size_t>(j)];
      }
    }
    return sum;
  }

  Runtime runtime{{DeviceKind::reference, 0}, 1};
  std::unique_ptr<comm::Group> group;
  Builder builder;
  ops::LowRank adapter;
  std::vector<std::unique_ptr<parallel::ParameterSpec>> placed;
};

using Elements = std::map<std::pair<std::string, int64_t>, double>;  // by tensor and index

// Elements of the adapters' tensors; each rank that has one has the same.
void gather(const Rank& rank, Elements& elements) {
  for (size_t p = 1; p < rank.placed.size(); ++p) {
    const std::vector<double> values = to_doubles(rank.placed[p]->parameter.value);
    for_each_run(*rank.placed[p], [&](const CanonicalTensor& part, int64_t canonical, int64_t local,
                                      int64_t size) {
      for (int64_t i = 0; i < size; ++i) {
        const double value = values[static_cast<size_t>(local + i)];
        const auto [place, is_new] = elements.try_emplace({part.name, canonical + i}, value);
        EXPECT_EQ(place->second, value) << part.name << " " << canonical + i;
      }
    });
  }
}

// Expects each element of a rank's matrix to grow by scale * b a of the tensor that it belongs to.
void expect_products(const Rank& rank, const Elements& elements, const Ranks& adapters) {
  const int64_t width = rank.placed[0]->parameter.value.size(1);
  int64_t seen = 0;
  for_each_run(*rank.placed[0],
               [&](const CanonicalTensor& part, int64_t canonical, int64_t local, int64_t size) {
                 const std::string module = part.name.substr(0, part.name.find(".weight"));
                 const auto adapter = adapters.find(module);
                 for (int64_t n = 0; n < size; ++n, ++seen) {
                   double sum = 0;
                   const int64_t row = (canonical + n) / kIn, column = (canonical + n) % kIn;
                   if (adapter != adapters.end())
                     for (int64_t k = 0; k < adapter->second.rank; ++k)
                       sum += adapter->second.scale *
                              elements.at({module + ".b", row * adapter->second.rank + k}) *
                              elements.at({module + ".a", k * kIn + column});
                   EXPECT_NEAR(rank.added((local + n) / width, (local + n) % width), sum, 1e-14)
                       << part.name << " " << row << " " << column;
                 }
               });
  EXPECT_EQ(seen, rank.placed[0]->parameter.value.elements());
}

struct Case {
  Matrix matrix;
  Ranks adapters;
  size_t blocks = 1;
};

std::vector<Case> cases() {
  return {{apart(), {{"q", {2, 0.5}}, {"k", {3, 0.5}}, {"v", {2, 0.5}}}, 1},
          {apart(), {{"q", {2, 0.5}}, {"v", {4, 0.5}}}, 1},
          {apart(), {{"q", {2, 0.5}}, {"k", {2, 3}}, {"v", {2, 3}}}, 2},
          {apart(), {{"q", {2, 0.5}}, {"k", {1, 3}}, {"v", {2, 0.5}}}, 3},
          {apart(), {{"k", {3, 0.5, true}}}, 1},
          {fused(), {{"qkv", {2, 0.5}}}, 1},
          {by_head(), {{"query_key_value", {3, 2}}}, 1},
          {columns(), {{"down", {2, 0.5}}}, 1},
          {undivided(), {{"proj", {2, 0.5}}}, 1}};
}

TEST(AddAdapter, PlacesItsPartsByTheMatrixInAnyLayout) {
  for (const auto& [matrix, adapters, blocks] : cases()) {
    SCOPED_TRACE(matrix.name);
    const AdapterRules rules = rules_of(adapters);
    const Rank whole(matrix, rules, 0, 1);
    EXPECT_EQ(whole.adapter.blocks.size(), blocks);
    Elements expected;
    gather(whole, expected);
    size_t elements = 0;
    for (const auto& [module, adapter] : adapters) {
      const auto tensor =
          std::ranges::find(matrix.placement.tensors, module + ".weight", &CanonicalTensor::name);
      elements += static_cast<size_t>((tensor->global[0] + kIn) * adapter.rank +
                                      (adapter.b_bias ? tensor->global[0] : 0));
    }
    EXPECT_EQ(expected.size(), elements);
    expect_products(whole, expected, adapters);
    Elements of_two;
    for (int rank = 0; rank < 2; ++rank) {
      const Rank half(matrix, rules, rank, 2);
      gather(half, of_two);
      expect_products(half, expected, adapters);
    }
    EXPECT_EQ(of_two, expected);
  }
}

// Muon updates each of them by itself.
TEST(AddAdapter, MatricesAThatAreStackedAreKnown) {
  const Rank rank(apart(), rules_of({{"q", {2, 0.5}}, {"k", {3, 0.5}}, {"v", {1, 0.5}}}), 0, 1);
  ASSERT_EQ(rank.placed[1]->parameter.name, "apart.lora_a.0");
  EXPECT_EQ(rank.placed[1]->matrices, (std::vector<int64_t>{2, 3, 1}));
}

TEST(AddAdapter, TrainsNothingElse) {
  const AdapterRules rules = rules_of({{"q", {2, 1}}});
  const Rank rank(apart(), rules, 0, 1);
  ASSERT_EQ(rank.placed.size(), 3u);
  for (const auto& placed : rank.placed)
    EXPECT_EQ(placed->parameter.trainable, placed != rank.placed[0]) << placed->parameter.name;
  EXPECT_EQ(rank.placed[1]->parameter.name, "apart.lora_a.0");
  EXPECT_EQ(rank.placed[2]->parameter.name, "apart.lora_b.0");
  EXPECT_FALSE(Rank(fused(), rules, 0, 1).adapter) << "it has no q";
}

// Where a rank has only a part of the products, its gradient of what all ranks hold is a part, too.
TEST(AddAdapter, GradientsOfWhatIsReplicatedAreParts) {
  using parallel::RankGroup;
  const auto parts = [](const Matrix& matrix, const Ranks& adapters, bool sequence) {
    const AdapterRules rules = rules_of(adapters);
    const Rank rank(matrix, rules, 1, 2, sequence);
    std::vector<bool> partial;
    for (size_t p = 1; p < rank.placed.size(); ++p) {
      EXPECT_NE(rank.placed[p]->is_divided(), rank.placed[p]->divisions.empty());
      EXPECT_EQ(rank.placed[p]->counted, rank.placed[p]->is_divided()) << "by the first rank";
      partial.push_back(rank.placed[p]->partial.has_value());
    }
    return partial;
  };
  for (const bool sequence : {false, true}) {
    EXPECT_EQ(parts(apart(), {{"q", {2, 1}}, {"v", {2, 1}}}, sequence),
              (std::vector<bool>{true, false, false}));
    EXPECT_EQ(parts(columns(), {{"down", {2, 1}}}, sequence), (std::vector<bool>{false, true}));
    EXPECT_EQ(parts(undivided(), {{"proj", {2, 1}}}, sequence),
              (std::vector<bool>{sequence, sequence}));
  }
}

// The bias of a product whose results are summed over ranks is added once.
TEST(AddAdapter, OneOfTheRanksWhoseResultsAreSummedAddsTheBias) {
  const AdapterRules of_columns = rules_of({{"down", {2, 1, true}}}),
                     of_rows = rules_of({{"k", {2, 1, true}}});
  for (const int rank : {0, 1}) {
    const Rank summed(columns(), of_columns, rank, 2), divided(apart(), of_rows, rank, 2);
    EXPECT_EQ(summed.adapter.blocks.at(0).parts.at(0).adds_bias, rank == 0);
    EXPECT_TRUE(divided.adapter.blocks.at(0).parts.at(0).adds_bias);
    EXPECT_EQ(divided.adapter.blocks[0].parts[0].bias.value().shape(), (Shape{2}));
  }
}

TEST(AddAdapter, InitialValuesAreThoseOfEachTensor) {
  const Ranks adapters = {{"q", {2, 1}}, {"k", {4, 1}}};
  AdapterRules rules = rules_of(adapters);
  rules.gaussian_a = true;
  rules.random_b = false;
  Elements values;
  gather(Rank(apart(), rules, 0, 1), values);
  for (const auto& [at, value] : values) {
    const auto& [name, i] = at;
    const double deviation = name == "q.a" ? 0.5 : name == "k.a" ? 0.25 : 0;
    EXPECT_NEAR(value, deviation * RandomStream(5, name).normal(static_cast<uint64_t>(i)), 1e-15)
        << name << " " << i;
  }
  rules = rules_of(adapters);
  Elements uniform;
  gather(Rank(apart(), rules, 0, 1), uniform);
  std::map<std::string, double> largest;
  for (const auto& [at, value] : uniform)
    largest[at.first] = std::max(largest[at.first], std::abs(value));
  for (const auto& [name, bound] : {std::pair{"q.a", 1 / std::sqrt(6.0)},
                                    {"k.a", 1 / std::sqrt(6.0)},
                                    {"q.b", 1 / std::sqrt(2.0)},
                                    {"k.b", 0.5}}) {
    EXPECT_LE(largest.at(name), bound) << name;
    EXPECT_GT(largest.at(name), 0.7 * bound) << name;
  }
}

}  // namespace
}  // namespace megatron::nn::adapters_test
