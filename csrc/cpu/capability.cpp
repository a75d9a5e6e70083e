#include "cpu/capability.h"

#include "cpu/host.h"

#include <posenc/version.h>

#include <c10/util/Exception.h>

#include <cstdlib>
#include <iterator>

namespace posenc {
namespace cpu {
namespace {

/// "default, avx2, avx512 or avx512_bf16"
std::string all_names() {
  std::string names;
  for (size_t i = 0; i < std::size(kLevels); ++i) {
    names += i == 0 ? "" : i + 1 < std::size(kLevels) ? ", " : " or ";
    names += kLevels[i].name;
  }
  return names;
}

const Level& choose() {
  const Level *best = nullptr, *best_of_host = nullptr;
  for (const Level& level : kLevels) {
    if (level.runs()) {
      best_of_host = &level;
      best = level.compiled ? &level : best;
    }
  }
  const char* wanted = std::getenv("POSENC_CPU_CAPABILITY");
  if (wanted == nullptr || *wanted == '\0') {
    return *best;
  }
  for (const Level& level : kLevels) {
    if (std::string_view(wanted) == level.name) {
      TORCH_CHECK_VALUE(level.runs(), "POSENC_CPU_CAPABILITY=", wanted, " is beyond this CPU, which runs up to ",
                        best_of_host->name);
      TORCH_CHECK_VALUE(level.compiled, "POSENC_CPU_CAPABILITY=", wanted,
                        " has no kernels in this build, which has up to ", best->name,
                        ": build without POSENC_LEVELS to have all");
      return level;
    }
  }
  TORCH_CHECK_VALUE(false, "POSENC_CPU_CAPABILITY must be ", all_names(), ", but is '", wanted, "'");
}

const Level& level_in_use() {
  static const Level& level = choose();
  return level;
}

}  // namespace

Capability capability() { return level_in_use().capability; }

bool has_bf16x2() { return level_in_use().bf16x2; }

}  // namespace cpu

std::string cpu_capability() { return cpu::level_in_use().name; }

std::vector<std::string> cpu_capabilities() {
  std::vector<std::string> names;
  for (const cpu::Level& level : cpu::kLevels) {
    if (level.compiled && level.runs()) {
      names.emplace_back(level.name);
    }
  }
  return names;
}

}  // namespace posenc
