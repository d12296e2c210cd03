#include "cli/command.h"

int main(int argc, char** argv) { return megatron::cli::run({argv + 1, argv + argc}); }
