#include "bench/bench.h"

#include "cli/command.h"

namespace megatron::cli {
namespace {

template <int (*measure)(const bench::ReadFlags&)>
int measured(const Arguments& arguments) {
  return measure([&](const std::string& usage, const std::string& description, Fields& fields) {
    return parse(usage, description, fields, {}, arguments);
  });
}

constexpr Subcommand kBenches[] = {
    {"step", "time a training step, compared with the machine's peak", bench_step},
    {"gemm", "measure the machine's peak GEMM rate", measured<bench::measure_gemm>},
    {"tokenize", "measure tokenization speed, in memory", measured<bench::measure_tokenize>},
    {"preprocess",
     "measure preprocessing of JSON lines to token files, with one worker and with two",
     measured<bench::measure_preprocess>},
    {"index", "time sample indices: built from scratch, stored, reopened",
     measured<bench::measure_index>},
    {"kernels", "measure each kernel, compared with the resource that limits it",
     measured<bench::measure_kernels>},
    {"parallel", "measure each kind of parallelism on two ranks, compared with one",
     measured<bench::measure_parallel>},
    {"generate", "measure text generation: tokens/s, compared with memory bandwidth",
     measured<bench::measure_generate>},
    {"serve", "measure a server under load: tokens/s, time to the first token and between tokens",
     measured<bench::measure_serve>},
};

}  // namespace

int bench(const Arguments& arguments) {
  return dispatch("megatron bench", "Measures speed on this machine.", kBenches, arguments);
}

}  // namespace megatron::cli
