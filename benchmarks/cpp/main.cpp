/// Benchmarks of the C++ interface on one thread; --help lists Google Benchmark's options.

#include "rotary.h"

#include <posenc/version.h>

#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>

#include <exception>
#include <iostream>
#include <vector>

int main(int argc, char** argv) try {
  // What the user gives comes later and so wins.
  char repetitions[] = "--benchmark_repetitions=9";
  char interleave[] = "--benchmark_enable_random_interleaving=true";
  char seconds[] = "--benchmark_min_time=0.02";
  char aggregates[] = "--benchmark_display_aggregates_only=true";
  std::vector<char*> arguments = {argv[0], repetitions, interleave, seconds, aggregates};
  arguments.insert(arguments.end(), argv + 1, argv + argc);
  int count = static_cast<int>(arguments.size());
  benchmark::Initialize(&count, arguments.data());
  if (benchmark::ReportUnrecognizedArguments(count, arguments.data())) {
    return 1;
  }

  at::set_num_threads(1);
  benchmark::AddCustomContext("instruction set", "posenc " + posenc::cpu_capability());
  benchmark::AddCustomContext("threads", std::to_string(at::get_num_threads()));
  posenc::benchmarks::register_rotary();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
} catch (const std::exception& error) {
  std::cerr << "posenc_benchmarks: " << error.what() << '\n';
  return 1;
}
