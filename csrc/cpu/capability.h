#pragma once

#include "cpu/levels.h"

#include <string_view>

namespace posenc::cpu {

#define POSENC_CPU_ENUMERATOR_(level, name, kernels, flags, bf16x2, runs, ...) level,
/// The levels of this architecture (see levels.h), the preferred one last.
enum class Capability { POSENC_CPU_LEVELS(POSENC_CPU_ENUMERATOR_) };
#undef POSENC_CPU_ENUMERATOR_

/// The best level that this machine runs, or the one that POSENC_CPU_CAPABILITY names. Read once per process.
Capability capability();

/// Whether kernels at the level in use multiply pairs of bfloat16.
bool has_bf16x2();

/// Whether this build holds a set of kernel objects: CMake's POSENC_LEVELS may leave some out.
constexpr bool is_compiled([[maybe_unused]] std::string_view kernels) {
#if defined(POSENC_COMPILED_KERNELS)
  std::string_view rest = POSENC_COMPILED_KERNELS;  // names with a space after each
  while (!rest.empty()) {
    const size_t end = rest.find(' ');
    if (rest.substr(0, end) == kernels) {
      return true;
    }
    rest.remove_prefix(end + 1);
  }
  return false;
#else
  return true;
#endif
}

}  // namespace posenc::cpu

/// Tables of kernels hold plain function pointers. A kernel file is compiled once per set of kernel objects and defines
/// its table there with POSENC_DEFINE_KERNELS; callers get that of the level in use with POSENC_SELECT_KERNELS.
#define POSENC_DECLARE_KERNELS(Table, prefix) POSENC_CPU_LEVELS(POSENC_DECLARE_KERNELS_, Table, prefix)
#define POSENC_DECLARE_KERNELS_(level, name, kernels, flags, bf16x2, runs, Table, prefix) \
  const Table& prefix##_##kernels();

#define POSENC_KERNELS_JOIN_(prefix, kernels) prefix##_##kernels
#define POSENC_KERNELS_JOIN(prefix, kernels) POSENC_KERNELS_JOIN_(prefix, kernels)
#define POSENC_DEFINE_KERNELS(Table, prefix, table) \
  const Table& POSENC_KERNELS_JOIN(prefix, CPU_CAPABILITY)() { return table; }

#define POSENC_SELECT_KERNELS(prefix)                                                          \
  ([]() -> decltype(auto) {                                                                    \
    switch (::posenc::cpu::capability()) { POSENC_CPU_LEVELS(POSENC_SELECT_KERNELS_, prefix) } \
    return prefix##_DEFAULT();                                                                 \
  }())
#define POSENC_SELECT_KERNELS_(level, name, kernels, flags, bf16x2, runs, prefix) \
  case ::posenc::cpu::Capability::level:                                          \
    if constexpr (::posenc::cpu::is_compiled(#kernels)) {                         \
      return prefix##_##kernels();                                                \
    }                                                                             \
    break;
