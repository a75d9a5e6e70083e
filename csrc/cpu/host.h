#pragma once

/// The table of levels as values, and what this machine runs. Includes no torch: CMake compiles a program with it to
/// learn which levels tests can run.

#include "cpu/capability.h"

namespace posenc::cpu {

struct Level {
  Capability capability;
  const char* name;
  bool bf16x2;
  /// Whether this build holds its kernels.
  bool compiled;
  /// Asks the processor.
  bool (*runs)();
};

inline bool host_runs(Capability level);

#define POSENC_CPU_HAS(feature) (__builtin_cpu_init(), __builtin_cpu_supports(feature) != 0)
#define POSENC_CPU_LEVEL_(level, name, kernels, flags, bf16x2, runs, ...) \
  {Capability::level, name, bf16x2, is_compiled(#kernels), [] { return static_cast<bool>(runs); }},
inline constexpr Level kLevels[] = {POSENC_CPU_LEVELS(POSENC_CPU_LEVEL_)};
#undef POSENC_CPU_LEVEL_
#undef POSENC_CPU_HAS

/// Whether this processor, and its operating system, run a level.
inline bool host_runs(Capability level) { return kLevels[static_cast<int>(level)].runs(); }

}  // namespace posenc::cpu
