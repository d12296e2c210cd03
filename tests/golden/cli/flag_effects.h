// The observable effect of each flag: every supported flag has a row, and one test flips them all.
#pragma once

#include <map>
#include <string>
#include <vector>

namespace megatron::testing {

// Each string is part of a `megatron train` command line, with words separated by spaces. `base`
// and then `flip` follow the command that all rows share (tiny_run() in flag_effects.cpp). A flag
// given twice takes its last value, and "!name" removes a flag of the shared command. {w} is the
// run's own folder, {data} a folder with the files that prepare() makes, and {vectors} the folder
// of golden vectors. "!disk" means that checkpoints cannot be written.
struct FlagRow {
  std::string flag;        // without dashes
  std::string observable;  // name of the value in Observed that changes
  std::string flip;        // arguments that set the flag
  std::string base;        // arguments of both runs
  // Arguments that set the flag to its default, which must change nothing. If empty, the default
  // that its field lists is used, if there is one.
  std::string same;
  // Arguments of a run made before each of the two, in the same folder.
  std::string before;
  // For a flag that depends on a mode (Field::idle): flags used instead of `base` to switch the
  // mode off, so that the flag has no effect.
  std::string idle;
};

std::vector<FlagRow> model_flags();
std::vector<FlagRow> step_flags();  // batch, precision, optimizer and machine
std::vector<FlagRow> adapter_flags();
std::vector<FlagRow> parallel_flags();    // ranks and recompute
std::vector<FlagRow> data_flags();        // data and evaluation
std::vector<FlagRow> checkpoint_flags();  // checkpoints and logs

// Observables of a run by name, each as text that stays equal if nothing changes:
//   shape       the model's sizes and number of parameters
//   loss        loss and gradient norm of each step, bit for bit
//   batch       iteration, batch and samples consumed of each step
//   schedule    learning rate and weight decay of each step
//   memory      high-water marks of the arenas
//   validation  set, loss and tokens of each evaluation
//   log         the records of log.jsonl, without times and the command line
//   tensorboard sizes of the event files
//   console     the printed output, without figures of speed
//   files       names of the files in {w}
//   index       sizes of the files in {w}/cache
//   writers     the threads that write checkpoints: the rank's, or others
//   threads     number of threads that the run starts
//   maps        whether a .bin file is mapped during the run
//   trace       number of events in the traces of --profile
//   resumed     steps done before the run, and the weights it begins with
//   tokenizer   ids of a text, and the ids of its special tokens
//   end         the reason for the run's end; only the run without the flag may fail
//   error       the error of the run with the flag, for flags that cause one
//   plan        planned operations and memory, including those by Megatron-LM's formulas
//   gpu         nothing without a GPU; tests/cuda/cli/flags_test.cpp covers GPUs
//   note        the line that says that the flag changes nothing on any machine
struct Observed {
  std::map<std::string, std::string> values;
  std::string error;  // error of a run that was refused or failed
  std::string idle;   // message of the row's Field::idle
};

// Runs rows, and makes their input files once.
class FlagBench {
 public:
  FlagBench();
  ~FlagBench();
  FlagBench(const FlagBench&) = delete;
  FlagBench& operator=(const FlagBench&) = delete;

  Observed run(const FlagRow& row, const std::string& more);
  // Runs without the flag, once for all rows with the same arguments.
  const Observed& without(const FlagRow& row);
  // Default of the row's flag as words, or "" if it has none.
  std::string usual(const FlagRow& row) const;
  bool has_mode(const FlagRow& row) const;  // Field::idle

 private:
  std::vector<std::string> words(const FlagRow& row, const std::string& more,
                                 const std::string& folder) const;
  void prepare();

  std::string folder_;
  int runs_ = 0;
  std::map<std::string, Observed> without_;
};

}  // namespace megatron::testing
