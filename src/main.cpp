#include "base/standard_streams.h"
#include "cli/command.h"

int main(int argc, char** argv) {
  megatron::occupy_standard_streams();
  return megatron::cli::run({argv + 1, argv + argc});
}
