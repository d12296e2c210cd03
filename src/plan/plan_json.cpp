#include "plan/plan_json.h"

#include <cmath>

#include "plan/expert_rows.h"
#include "plan/known_gpus.h"
#include "plan/shortage.h"
#include "plan/speed.h"

namespace megatron::plan {
namespace {

// Writes an integer if the value is one.
Json whole(double value) {
  constexpr double kLargest = 9.2e18;
  if (std::abs(value) < kLargest && value == std::trunc(value)) return static_cast<int64_t>(value);
  return value;
}

Json or_null(const std::optional<double>& value) { return value ? Json(*value) : Json(); }

// Sums by class, in the order in which they first occur.
void add(Json& classes, const std::string& group, int64_t count) {
  const Json* before = classes.find(group);
  classes.set(group, count + (before != nullptr ? before->as_integer() : 0));
}

Json parameters(const Plan& plan) {
  Json by_class = Json::Object();
  Json::Array spans;
  for (const ParameterCount& p : plan.parameters) {
    add(by_class, p.group, p.count);
    if (spans.empty() || spans.back()["span"].as_string() != p.span)
      spans.push_back(Json::Object{{"span", p.span}, {"total", 0}, {"classes", Json::Object()}});
    Json& span = spans.back();
    span.set("total", span["total"].as_integer() + p.count);
    Json classes = span["classes"];
    add(classes, p.group, p.count);
    span.set("classes", std::move(classes));
  }
  return Json::Object{{"total", plan.parameter_count()},
                      {"trained", plan.trained.value_or(plan.parameter_count())},
                      {"reference", plan.reference ? plan.parameter_count() : 0},
                      {"by_class", std::move(by_class)},
                      {"by_span", std::move(spans)}};
}

Json memory_of(const MemoryUse& use) {
  Json rank = Json::Object();
  for (int i = 0; i < kMemoryClasses; ++i) {
    const auto memory_class = static_cast<MemoryClass>(i);
    const int64_t bytes = use.arenas[static_cast<size_t>(i)];
    if (bytes > 0 || memory_class != MemoryClass::offload) rank.set(name(memory_class), bytes);
  }
  rank.set("host", use.host);
  rank.set("total", use.arena_bytes() + use.host);
  return rank;
}

Json gpu(const Plan& plan) {
  if (!plan.gpu) return Json();
  return Json::Object{{"name", plan.gpu->name},
                      {"bytes", plan.gpu->bytes},
                      {"needed", plan.gpu_bytes()},
                      {"ranks", plan.gpu->ranks},
                      {"found", plan.gpu->assumed.empty()}};
}

Json memory(const Plan& plan) {
  Json::Array stages;
  for (const MemoryUse& stage : plan.stages) stages.push_back(memory_of(stage));
  Json::Array suggestions(plan.suggestions.begin(), plan.suggestions.end());
  Json megatron;
  if (plan.megatron) {
    megatron = Json::Object{{"weights_and_optimizer", plan.megatron->weights_and_optimizer},
                            {"activations", plan.megatron->activations}};
  }
  return Json::Object{{"rank", memory_of(plan.memory)},
                      {"stages", std::move(stages)},
                      {"exact", plan.exact},
                      {"program", plan.program},
                      {"process", plan.process_bytes()},
                      {"gpu", gpu(plan)},
                      {"machine", plan.machine > 0 ? Json(plan.machine) : Json()},
                      {"fits", plan.fits()},
                      {"cause", plan.fits() ? Json() : Json(cause_of_shortage(plan))},
                      {"suggestions", std::move(suggestions)},
                      {"megatron", std::move(megatron)}};
}

Json kernels(const Plan& plan) {
  Json::Array list;
  for (const KernelWork& k : plan.kernels)
    list.push_back(Json::Object{{"kernel", k.kernel},
                                {"type", name(k.type)},
                                {"calls", k.calls},
                                {"flops", whole(k.cost.flops)},
                                {"bytes", whole(k.cost.bytes)},
                                {"seconds", or_null(k.seconds)}});
  return list;
}

Json traffic(const Plan& plan) {
  Json::Array list;
  for (const TrafficWork& t : plan.traffic)
    list.push_back(Json::Object{{"collective", t.collective},
                                {"call", t.call},
                                {"ranks", t.ranks},
                                {"calls", t.calls},
                                {"bytes", whole(t.bytes)},
                                {"sent", whole(t.sent)}});
  return list;
}

Json context_exchanges(const Plan& plan) {
  if (!plan.exchanges) return Json();
  Json::Array all;
  for (const ContextExchange& e : plan.exchanges->all) {
    const bool runs = e.refused.empty();
    all.push_back(Json::Object{{"exchange", e.name},
                               {"calls", runs ? Json(e.calls) : Json()},
                               {"sent", runs ? Json(whole(e.sent)) : Json()},
                               {"overlapped", runs ? Json(whole(e.overlapped)) : Json()},
                               {"activations", runs ? Json(e.activations) : Json()},
                               {"refused", runs ? Json() : Json(e.refused)}});
  }
  const ContextExchange* cheapest = plan.exchanges->cheapest();
  return Json::Object{{"layers", plan.exchanges->layers},
                      {"all", std::move(all)},
                      {"cheapest", cheapest == nullptr ? Json() : Json(cheapest->name)}};
}

std::string_view bound_name(ExpertRows::Bound bound) {
  switch (bound) {
    case ExpertRows::Bound::expert_capacity: return "expert_capacity";
    case ExpertRows::Bound::rank_capacity: return "rank_capacity";
    case ExpertRows::Bound::any_load: break;
  }
  return "any_load";
}

Json experts(const Plan& plan) {
  if (!plan.experts) return Json();
  const ExpertRows& rows = *plan.experts;
  Json::Array loads;
  for (const ExpertLoad& load : plan.loads)
    loads.push_back(Json::Object{{"load", load.load},
                                 {"rows", load.rows},
                                 {"rank_bytes", load.bytes},
                                 {"step_seconds", or_null(load.seconds)}});
  return Json::Object{
      {"rows", rows.room},
      {"even_rows", rows_at(rows, 1)},
      {"bound", bound_name(rows.bound)},
      {"factor", rows.bound == ExpertRows::Bound::any_load ? Json() : Json(rows.factor)},
      {"fixed", rows.fixed},
      {"loads", std::move(loads)}};
}

Json derived(const Plan& plan) {
  Json::Array list;
  for (const SettingNote& note : plan.derived)
    list.push_back(Json::Object{{"flag", note.flag}, {"value", note.value}, {"cause", note.cause}});
  return list;
}

Json assumed_item(const AssumedItem& item) {
  return Json::Object{{"item", item.name},
                      {"seconds", item.seconds},
                      {"flops_per_second", or_null(item.flops_per_second)},
                      {"bytes_per_second", or_null(item.bytes_per_second)}};
}

Json assumed(const Plan& plan) {
  if (!plan.assumed) return Json();
  Json::Array items;
  for (const AssumedItem& item : plan.assumed->items) items.push_back(assumed_item(item));
  const Speed speed = assumed_speed(plan);
  return Json::Object{{"gpu", kPlannedGpu},
                      {"items", std::move(items)},
                      {"optimizer", assumed_item(plan.assumed->optimizer)},
                      {"micro_batch_seconds", plan.assumed->micro_batch_seconds},
                      {"step_seconds", plan.assumed->step_seconds},
                      {"tokens_per_second", or_null(speed.tokens_per_second)},
                      {"peak_share", or_null(speed.peak_share)}};
}

Json time(const Plan& plan) {
  const Speed speed = speed_of(plan);
  return Json::Object{{"step_seconds", or_null(plan.step_seconds)},
                      {"tokens_per_second", or_null(speed.tokens_per_second)},
                      {"flops_per_second", or_null(speed.flops_per_second)},
                      {"peak_flops_per_second", plan.peak > 0 ? Json(plan.peak) : Json()},
                      {"peak_origin", plan.peak_origin.empty() ? Json() : Json(plan.peak_origin)},
                      {"peak_share", or_null(speed.peak_share)},
                      {"run_seconds", or_null(speed.run_seconds)},
                      {"assumed", assumed(plan)}};
}

Json generation(const Plan& plan) {
  if (!plan.generation) return {};
  return Json::Object{{"token_bytes", plan.generation->token_bytes},
                      {"sequence_bytes", plan.generation->sequence_bytes}};
}

}  // namespace

Json to_json(const Plan& plan) {
  Json flops = Json::Object();
  for (const FlopCount& f : plan.flops) flops.set(f.formula, whole(f.flops));
  return Json::Object{{"version", 3},
                      {"model", plan.model},
                      {"device", plan.device},
                      {"precision", name(plan.type)},
                      {"low_precision", plan.low_precision},
                      {"ranks", plan.ranks},
                      {"ranks_here", plan.ranks_here},
                      {"threads", plan.threads},
                      {"batch", Json::Object{{"sequences", plan.sequences},
                                             {"length", plan.length},
                                             {"encoder_length", plan.encoder_length},
                                             {"tokens", plan.tokens()},
                                             {"micro_batches", plan.micro_batches},
                                             {"micro_batch_size", plan.micro_batch_size}}},
                      {"iterations", plan.iterations},
                      {"generation", generation(plan)},
                      {"parameters", parameters(plan)},
                      {"memory", memory(plan)},
                      {"experts", experts(plan)},
                      {"flops", std::move(flops)},
                      {"traffic", traffic(plan)},
                      {"context_exchanges", context_exchanges(plan)},
                      {"kernels", kernels(plan)},
                      {"time", time(plan)},
                      {"derived", derived(plan)}};
}

}  // namespace megatron::plan
