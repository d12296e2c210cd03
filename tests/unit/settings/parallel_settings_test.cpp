#include "settings/parallel_settings.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace megatron::settings {
namespace {

using parallel::ScheduleKind;
using parallel::Sharding;

// Parses settings from flags, such as "--tensor-model-parallel-size 2 --sequence-parallel".
settings::ParallelSettings of(const std::string& flags) {
  settings::ParallelSettings settings;
  Fields fields;
  settings.fields(fields);
  std::vector<std::string> words;
  for (size_t at = 0; at < flags.size();) {
    const size_t end = std::min(flags.find(' ', at), flags.size());
    if (end > at) words.push_back(flags.substr(at, end - at));
    at = end + 1;
  }
  for (size_t i = 0; i < words.size();) {
    Field* field = fields.find(words[i].substr(2));
    EXPECT_NE(field, nullptr) << words[i];
    std::vector<std::string> values;
    for (++i; i < words.size() && words[i].substr(0, 2) != "--"; ++i) values.push_back(words[i]);
    if (field != nullptr) field->assign(values);
  }
  return settings;
}

struct Run {
  int ranks = 4;
  int64_t layers = 8, micro_batches = 8, seq_length = 32;
};

// Returns the notes, one per line, as "flag value: cause".
std::string notes_of(const std::string& flags, const Run& run = {}) {
  std::vector<SettingNote> notes;
  of(flags).check(run.ranks, run.layers, run.micro_batches, run.seq_length, notes);
  std::string text;
  for (const SettingNote& note : notes)
    text += note.flag + " " + note.value + ": " + note.cause + "\n";
  return text;
}

std::string refusal_of_flags(const std::string& flags, const Run& run = {}) {
  try {
    return "(taken; notes: " + notes_of(flags, run) + ")";
  } catch (const Error& error) {
    return error.what();
  }
}

void expect_in(const std::string& text, std::initializer_list<std::string_view> parts) {
  for (const auto part : parts)
    EXPECT_NE(text.find(part), std::string::npos) << "'" << part << "' in: " << text;
}

TEST(ParallelSettings, OneRankIsTheDefault) {
  EXPECT_EQ(notes_of("", {.ranks = 1}), "");
  const parallel::RanksOptions options = settings::ParallelSettings().ranks_options(8);
  EXPECT_EQ(settings::ParallelSettings().model_ranks(), 1);
  EXPECT_EQ(options.pipeline.virtual_stages(), 1);
  EXPECT_FALSE(options.async || options.sequence);
  EXPECT_EQ(options.sharding, Sharding::none);
}

TEST(ParallelSettings, Mesh) {
  const parallel::Layout layout =
      of("--tensor-model-parallel-size 2 --pipeline-model-parallel-size 3 "
         "--num-distributed-optimizer-instances 5 --use-tp-pp-dp-mapping")
          .mesh_layout();
  EXPECT_EQ(layout.tp, 2);
  EXPECT_EQ(layout.pp, 3);
  EXPECT_EQ(layout.instances, 5);
  EXPECT_EQ(layout.order, "tp-cp-ep-pp-dp");
  EXPECT_EQ(settings::ParallelSettings().mesh_layout().order, "tp-cp-ep-dp-pp");
  expect_in(refusal_of_flags("--tensor-model-parallel-size 3"),
            {"4 ranks", "--tensor-model-parallel-size 3"});
  expect_in(refusal_of_flags("--pipeline-model-parallel-size 0"), {"-size is 0", "[1, "});
  expect_in(refusal_of_flags("--tensor-model-parallel-size 9223372036854775807"), {"[1, "});
  EXPECT_GT(of("--tensor-model-parallel-size 9223372036854775807 --pipeline-model-parallel-size "
               "9223372036854775807")
                .model_ranks(),
            0);
}

TEST(ParallelSettings, UndividedSequencesAndExpertsAreRefusedByName) {
  const auto error = [](const auto& set) {
    settings::ParallelSettings settings;
    set(settings);
    std::vector<SettingNote> notes;
    try {
      settings.check(4, 8, 8, 32, notes);
    } catch (const Error& e) {
      return std::string(e.what());
    }
    return std::string();
  };
  using Settings = settings::ParallelSettings;
  EXPECT_EQ(error([](Settings& s) { s.context_parallel = 4; }), "");
  expect_in(error([](Settings& s) { s.context_parallel = 3; }),
            {"--context-parallel-size 3", "4 ranks"});
  expect_in(error([](Settings& s) { s.context_exchange = {"ring"}; }),
            {"--cp-comm-type is 'ring'", "p2p, all_gather, a2a, a2a+p2p"});
  const auto levels = [&](std::vector<std::string> sizes, std::string exchange = "a2a+p2p") {
    return error([&](Settings& s) {
      s.context_parallel = 4;
      s.context_exchange = {std::move(exchange)};
      s.hierarchical_context = std::move(sizes);
    });
  };
  EXPECT_EQ(levels({"2", "2"}), "");
  expect_in(levels({}), {"a2a+p2p needs --hierarchical-context-parallel-sizes"});
  expect_in(levels({"2", "2"}, "p2p"), {"sizes 2 2 are the levels of --cp-comm-type a2a+p2p"});
  expect_in(levels({"2", "4"}), {"2 x 4 must equal --context-parallel-size 4"});
  expect_in(levels({"4"}), {"has 1 sizes; give two"});
  expect_in(levels({"two", "2"}), {"has 'two'"});
  expect_in(
      error([](Settings& s) { s.tensor_parallel = s.expert_parallel = 2; }),
      {"--expert-model-parallel-size 2", "--tensor-model-parallel-size 2", "--sequence-parallel"});
  expect_in(
      error([](Settings& s) { s.tensor_parallel = 2, s.expert_tensor_parallel = 1; }),
      {"--expert-tensor-parallel-size 1", "--tensor-model-parallel-size 2", "--sequence-parallel"});
  for (const auto& [ep, etp] : {std::pair{1, 1}, {2, 2}, {4, 1}})
    EXPECT_EQ(error([ep = ep, etp = etp](Settings& s) {
                s.expert_parallel = ep;
                s.expert_tensor_parallel = etp;
              }),
              "");
}

TEST(ParallelSettings, SequenceParallelism) {
  EXPECT_TRUE(of("--tensor-model-parallel-size 2 --sequence-parallel").ranks_options(8).sequence);
  EXPECT_FALSE(of("--sequence-parallel").ranks_options(8).sequence);
  expect_in(notes_of("--sequence-parallel"),
            {"sequence-parallel false: --tensor-model-parallel-size 1"});
  expect_in(
      refusal_of_flags("--sequence-parallel --tensor-model-parallel-size 4", {.seq_length = 30}),
      {"--seq-length 30", "--tensor-model-parallel-size 4"});
}

TEST(ParallelSettings, Chunks) {
  const std::string pipeline = "--pipeline-model-parallel-size 2 ";
  const auto chunks = [&](const std::string& flags) {
    const parallel::PipelineShape shape = of(pipeline + flags).pipeline(8);
    EXPECT_EQ(shape.kind, shape.chunks > 1 ? ScheduleKind::interleaved : ScheduleKind::one_f_one_b);
    return shape.chunks;
  };
  EXPECT_EQ(chunks(""), 1);
  EXPECT_EQ(chunks("--num-layers-per-virtual-pipeline-stage 1"), 4);
  EXPECT_EQ(chunks("--num-layers-per-virtual-pipeline-stage 4"), 1);
  EXPECT_EQ(chunks("--num-virtual-stages-per-pipeline-rank 2"), 2);
  EXPECT_EQ(chunks("--pipeline-model-parallel-layout Ett|tt|tt|ttL"), 2);
  EXPECT_EQ(of(pipeline + "--num-layers-per-virtual-pipeline-stage 1 "
                          "--account-for-embedding-in-pipeline-split "
                          "--account-for-loss-in-pipeline-split")
                .pipeline(6)
                .chunks,
            4);
  expect_in(refusal_of_flags(pipeline + "--num-layers-per-virtual-pipeline-stage 3"),
            {"--num-layers 8", "stage 3"});
  expect_in(refusal_of_flags(pipeline + "--num-virtual-stages-per-pipeline-rank 3"),
            {"the 4 layers", "3 virtual stages"});
  expect_in(refusal_of_flags(pipeline + "--num-virtual-stages-per-pipeline-rank 2 "
                                        "--num-layers-per-virtual-pipeline-stage 2"),
            {"--num-layers-per-virtual-pipeline-stage and --num-virtual", "drop one"});
  expect_in(refusal_of_flags(pipeline + "--num-layers-per-virtual-pipeline-stage 2 "
                                        "--decoder-last-pipeline-num-layers 2"),
            {"--decoder-last-pipeline-num-layers", "use --num-virtual-stages"});
  expect_in(refusal_of_flags(pipeline + "--pipeline-model-parallel-layout Ett|ttt|tttL"),
            {"3 virtual stages", "--pipeline-model-parallel-size 2"});
  // Megatron-LM: "pipeline-model-parallel size should be greater than 1 with interleaved schedule".
  expect_in(refusal_of_flags("--num-virtual-stages-per-pipeline-rank 2"),
            {"2 chunks per stage", "--pipeline-model-parallel-size above 1"});
}

TEST(ParallelSettings, GroupsOfMicroBatchesFit) {
  const std::string flags =
      "--pipeline-model-parallel-size 4 --num-virtual-stages-per-pipeline-rank 2 "
      "--microbatch-group-size-per-virtual-pipeline-stage ";
  EXPECT_EQ(of(flags + "5").pipeline(8).group, 5);
  EXPECT_EQ(notes_of(flags + "4"), "");
  EXPECT_NE(refusal_of_flags(flags + "3").substr(0, 6), "(taken");
  EXPECT_NE(refusal_of_flags(flags + "9").substr(0, 6), "(taken");
  EXPECT_NE(refusal_of_flags(flags + "5").substr(0, 6), "(taken");  // 8 % 5 is less than the stages
  EXPECT_EQ(notes_of(flags + "5", {.micro_batches = 9}), "");
  expect_in(notes_of("--microbatch-group-size-per-virtual-pipeline-stage 4"),
            {"microbatch-group-size-per-virtual-pipeline-stage none", "1f1b"});
}

TEST(ParallelSettings, Schedules) {
  const std::string pipeline = "--pipeline-model-parallel-size 2 --pipeline-schedule ";
  EXPECT_EQ(of(pipeline + "zb-h1").pipeline(8).kind, ScheduleKind::zero_bubble_h1);
  EXPECT_EQ(of(pipeline + "zb-v").pipeline(8).chunks, 2);
  EXPECT_EQ(notes_of(pipeline + "zb-v"), "");
  EXPECT_EQ(notes_of(pipeline + "zb-v --pipeline-model-parallel-layout Et|ttt|ttt|tL"), "");
  EXPECT_EQ(notes_of(pipeline + "interleaved --num-virtual-stages-per-pipeline-rank 2"), "");
  expect_in(refusal_of_flags(pipeline + "zb"), {"'zb'", "1f1b, interleaved, zb-h1, zb-v"});
  expect_in(refusal_of_flags(pipeline + "interleaved"), {"several chunks"});
  expect_in(refusal_of_flags(pipeline + "1f1b --num-virtual-stages-per-pipeline-rank 2"),
            {"1f1b needs one chunk", "2 are given"});
  expect_in(refusal_of_flags(pipeline + "zb-v --num-virtual-stages-per-pipeline-rank 4"),
            {"zb-v needs two chunks", "4 are given"});
  expect_in(refusal_of_flags("--pipeline-schedule zb-h1"), {"zb-h1 needs", "above 1"});
  expect_in(refusal_of_flags("--pipeline-schedule zb-v"), {"zb-v", "above 1"});
}

TEST(ParallelSettings, PlacementOfLayers) {
  const parallel::LayerPlacement placement =
      of("--decoder-first-pipeline-num-layers 3 --decoder-last-pipeline-num-layers 5 "
         "--account-for-embedding-in-pipeline-split --account-for-loss-in-pipeline-split "
         "--pipeline-model-parallel-layout Et|tL")
          .placement();
  EXPECT_EQ(placement.first_stage_layers, 3);
  EXPECT_EQ(placement.last_stage_layers, 5);
  EXPECT_TRUE(placement.count_embedding && placement.count_loss);
  EXPECT_EQ(placement.layout, "Et|tL");
  expect_in(refusal_of_flags("--pipeline-model-parallel-size 4", {.layers = 9}),
            {"--num-layers 9", "--decoder-first-pipeline-num-layers"});
  EXPECT_EQ(notes_of("--pipeline-model-parallel-size 4 --decoder-last-pipeline-num-layers 3",
                     {.layers = 9}),
            "");
}

TEST(ParallelSettings, Sharding) {
  const std::string strategy = "--data-parallel-sharding-strategy ";
  EXPECT_EQ(of("--use-distributed-optimizer").sharding(), Sharding::optimizer);
  EXPECT_EQ(of(strategy + "optim_grads").sharding(), Sharding::gradients);
  EXPECT_EQ(of("--use-distributed-optimizer " + strategy + "optim_grads").sharding(),
            Sharding::gradients);
  EXPECT_EQ(of("--use-torch-fsdp2").sharding(), Sharding::parameters);
  for (const std::string fsdp : {"--use-megatron-fsdp", "--use-custom-fsdp"}) {
    EXPECT_EQ(of(fsdp).sharding(), Sharding::parameters);
    EXPECT_EQ(of(fsdp + " " + strategy + "no_shard").sharding(), Sharding::none);
    expect_in(notes_of(fsdp + " --use-distributed-optimizer"),
              {"data-parallel-sharding-strategy optim_grads_params: " + fsdp});
  }
  expect_in(notes_of("--use-torch-fsdp2"), {"optim_grads_params: --use-torch-fsdp2"});
  expect_in(notes_of("--use-distributed-optimizer"), {"strategy optim: --use-distributed"});
  expect_in(notes_of(strategy + "optim"), {"only with --use-megatron-fsdp"});
  expect_in(refusal_of_flags(strategy + "all"),
            {"'all'", "no_shard, optim, optim_grads, optim_grads_"});
  expect_in(refusal_of_flags("--use-distributed-optimizer " + strategy + "no_shard"),
            {"contradict"});
  expect_in(refusal_of_flags("--num-distributed-optimizer-instances 3 --use-distributed-optimizer"),
            {"instances 3 does not divide the 4 data"});
}

TEST(ParallelSettings, Overlap) {
  const settings::ParallelSettings settings =
      of("--overlap-param-gather --use-distributed-optimizer --overlap-grad-reduce");
  const parallel::DataParallelOptions options = settings.data_parallel(1000);
  EXPECT_TRUE(options.overlap_gather && options.overlap_reduce);
  EXPECT_EQ(options.bucket_elements, 0);
  EXPECT_TRUE(settings.ranks_options(8).async);
  EXPECT_TRUE(of("--pipeline-model-parallel-size 2").ranks_options(8).async);
  const settings::ParallelSettings waiting =
      of("--pipeline-model-parallel-size 2 --no-overlap-p2p-communication");
  EXPECT_FALSE(waiting.ranks_options(8).async);
  EXPECT_FALSE(waiting.pipeline_options().overlap);
  expect_in(notes_of("--no-overlap-p2p-communication"), {"no other stages"});
}

TEST(ParallelSettings, CallsToRanksOfExperts) {
  const std::string experts = "--expert-model-parallel-size 2 ",
                    beside = experts + "--overlap-moe-expert-parallel-comm ";
  EXPECT_EQ(of(experts).pipeline(8).parts, 1);
  EXPECT_EQ(of("--overlap-moe-expert-parallel-comm").pipeline(8).parts, 1);
  EXPECT_EQ(of(beside).pipeline(8).parts, 17);
  EXPECT_EQ(of(beside + "--pipeline-model-parallel-size 2").pipeline(8).parts, 9);
  EXPECT_FALSE(of(experts).ranks_options(8).async_experts);
  EXPECT_TRUE(of(beside).ranks_options(8).async_experts);
  EXPECT_TRUE(of(experts + "--moe-shared-expert-overlap").ranks_options(8).async_experts);
  EXPECT_EQ(of("--moe-token-dispatcher-type alltoall").ranks_options(8).dispatcher,
            parallel::TokenDispatcher::alltoall);
  expect_in(refusal_of_flags("--moe-token-dispatcher-type flex"), {"flex", "DeepEP", "alltoall"});
  expect_in(notes_of("--overlap-moe-expert-parallel-comm"), {"no tokens are sent"});
  const std::string tensor = "--overlap-moe-expert-parallel-comm --tensor-model-parallel-size 2 ";
  EXPECT_EQ(of(tensor).pipeline(8).parts, 1);  // all of which have the same tokens
  EXPECT_EQ(of(tensor + "--sequence-parallel").pipeline(8).parts, 17);
}

TEST(ParallelSettings, Buckets) {
  EXPECT_EQ(of("--overlap-grad-reduce --ddp-bucket-size 7").data_parallel(100).bucket_elements, 7);
  EXPECT_EQ(of("--overlap-grad-reduce --ddp-num-buckets 3").data_parallel(100).bucket_elements, 34);
  EXPECT_EQ(of("--overlap-grad-reduce --ddp-num-buckets 3").data_parallel(0).bucket_elements, 1);
  EXPECT_EQ(of("--ddp-bucket-size 7").data_parallel(100).bucket_elements, 0);
  expect_in(notes_of("--ddp-bucket-size 7"), {"ddp-bucket-size none", "--overlap-grad-reduce"});
  expect_in(refusal_of_flags("--ddp-num-buckets 0"), {"--ddp-num-buckets is 0"});
}

}  // namespace
}  // namespace megatron::settings
