#include <langinfo.h>
#include <locale.h>

#include <cmath>
#include <string_view>

#include "base/error.h"
#include "base/log.h"
#include "cli/command.h"
#include "cli/missing_flags.h"
#include "plan/page.h"
#include "plan/plan_json.h"
#include "post_training/tasks.h"
#include "training/plan/make_plan.h"
#include "training/settle.h"

namespace megatron::cli {
namespace {

// True if the user's locale has the block characters with which bars are drawn.
bool writes_utf8() {
  const locale_t locale = newlocale(LC_CTYPE_MASK, "", nullptr);
  if (locale == nullptr) return false;
  const bool utf8 = std::string_view(nl_langinfo_l(CODESET, locale)) == "UTF-8";
  freelocale(locale);
  return utf8;
}

}  // namespace

int plan(const Arguments& arguments) {
  settings::TrainSettings settings;
  Fields fields = settings.fields();
  bool json = false;
  training::PlanOptions options{.time = true, .exchanges = true};
  std::optional<int64_t> ranks_here;
  const size_t of_train = fields.all().size();
  fields.begin_group("output");
  fields.add_switch("json", &json, true, "print the plan as JSON, at full precision");
  fields.begin_group("measurement");
  fields.add_switch("no-time", &options.time, false,
                    "do not estimate the step time, which takes a few seconds of running kernels");
  fields.add("moe-skew", &options.expert_skew,
             "expected load imbalance of experts: load of the fullest expert-parallel rank (on one "
             "rank: of the fullest expert) over the mean, as in the metric expert_load of a run; "
             "default 1, balanced. The plan also shows the worst case");
  fields.begin_group("device");
  fields.add("nproc-per-node", &ranks_here,
             "ranks (one process each) per machine of a multi-machine run, as in torchrun; "
             "default: 8 on GPUs, else all ranks as threads of one process");
  fields.add("device-memory", &options.device_memory,
             "GiB of memory per GPU, with --device cuda; default: this machine's GPUs, or an "
             "H200 if there is none");
  fields.common({"json", "no-time", "moe-skew", "nproc-per-node", "device-memory"});
  const auto take_ranks_here = [&] {
    if (ranks_here) settings.runtime.plan_for(*ranks_here);
  };
  const PrintConfig print{.check =
                              [&] {
                                settings.settle_task();
                                require_flags(settings, "plan", arguments);
                                take_ranks_here();
                                training::check_settings(settings, true);
                              },
                          .fields = of_train,
                          .recipe = &options.recipe};
  std::vector<std::string> notes;
  if (const auto code = parse_training(
          "megatron plan [flags of megatron train] [--json] [--no-time] [--moe-skew X] "
          "[--nproc-per-node N] [--device-memory GIB]",
          "Shows what a training run needs, without running it: parameters, memory by class, "
          "FLOPs, communication\nand the time of a step on this machine. Takes the flags of "
          "megatron train; the data need not exist,\nand --lr and --train-iters need not be given.",
          fields, arguments, notes, print)) {
    return *code;
  }
  MG_CHECK(options.device_memory.value_or(1) > 0 && options.device_memory.value_or(1) <= 1e6,
           "--device-memory is {}; it must lie in (0, 1e6] GiB", *options.device_memory);
  MG_CHECK(options.expert_skew.value_or(1) >= 1 && std::isfinite(options.expert_skew.value_or(1)),
           "--moe-skew is {}; it must be 1 (an even load) or more", *options.expert_skew);
  options.skew_given = options.expert_skew.has_value();
  if (!options.skew_given) options.expert_skew = 1;
  settings.settle_task();
  require_flags(settings, "plan", arguments);
  for (const std::string& note : notes) log::info("{}", note);
  const plan::Plan found = naming_places(fields, [&] {
    take_ranks_here();
    options.task = post_training::make_task(settings.data);
    options.rates = plan::user_rates(settings.runtime.measure_peak);
    return training::make_plan(settings, options);
  });
  fmt::print("{}", json ? plan::to_json(found).dump(2) + "\n"
                        : plan::page(found, {.blocks = writes_utf8()}));
  return 0;
}

}  // namespace megatron::cli
