// Starts ranks as processes of the program, each with its own command line: connected over TCP, as
// torchrun starts them, or under mpirun.
#pragma once

#include "base/files.h"
#include "dist/launch.h"
#include "free_port.h"
#include "golden/cli/process.h"
#include "hang_limit.h"

namespace megatron::testing {

inline std::string shell_words(const Words& words) {
  std::string line;
  for (const std::string& word : words) line += " '" + word + "'";
  return line;
}

// Exit code and output of a script that runs in `place`.
inline Launched run_script(const Workplace& place, const std::string& script) {
  write_file(place / "script", "cd '" + place.path() + "'\n" + script);
  return run_line("sh " + (place / "script"), static_cast<int>(kHangSeconds));
}

// One command per rank. variables: additions to the environment, "A=1 B=2".
inline std::vector<Launched> over_tcp(const Workplace& place, const std::vector<Words>& ranks,
                                      const std::string& variables = "") {
  const std::string port = std::to_string(free_port()), size = std::to_string(ranks.size());
  std::string script;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::string rank = std::to_string(r);
    script += "(env " + variables + " TORCHELASTIC_RUN_ID=x RANK=" + rank + " WORLD_SIZE=" + size +
              " LOCAL_RANK=" + rank + " LOCAL_WORLD_SIZE=" + size +
              " MASTER_ADDR=127.0.0.1 MASTER_PORT=" + port + " " MEGATRON_BINARY +
              shell_words(ranks[r]) + " >out" + rank + " 2>&1; echo $? >code" + rank + ") &\n";
  }
  run_script(place, script + "wait\n");
  std::vector<Launched> all;
  for (size_t r = 0; r < ranks.size(); ++r) {
    const std::string rank = std::to_string(r);
    all.push_back(
        {std::stoi(read_file(place / ("code" + rank))), read_file(place / ("out" + rank))});
  }
  return all;
}

inline Launched over_mpi(const Workplace& place, const std::vector<Words>& ranks,
                         const std::string& variables = "") {
  std::string script = "exec env " + container_settings() + variables + " " MEGATRON_MPIEXEC;
  for (size_t r = 0; r < ranks.size(); ++r)
    script += (r == 0 ? "" : " :") + std::string(" -n 1 " MEGATRON_BINARY) + shell_words(ranks[r]);
  return run_script(place, script + "\n");
}

}  // namespace megatron::testing
