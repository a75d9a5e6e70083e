#include "cpu/capability.h"

#include <posenc/version.h>

#include <c10/util/Exception.h>

#include <cstdlib>
#include <string_view>

namespace posenc {
namespace cpu {
namespace {

Capability host_capability() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
  return bf16     ? Capability::kAVX512BF16
         : avx512 ? Capability::kAVX512
         : avx2   ? Capability::kAVX2
                  : Capability::kDefault;
#else
  return Capability::kDefault;
#endif
}

Capability choose() {
  const Capability host = host_capability();
  const char* wanted = std::getenv("POSENC_CPU_CAPABILITY");
  if (wanted == nullptr || *wanted == '\0') {
    return host;
  }
  for (const Capability level :
       {Capability::kDefault, Capability::kAVX2, Capability::kAVX512, Capability::kAVX512BF16}) {
    if (std::string_view(wanted) == name(level)) {
      TORCH_CHECK_VALUE(level <= host, "POSENC_CPU_CAPABILITY=", wanted, " is beyond this CPU, which runs up to ",
                        name(host));
      return level;
    }
  }
  TORCH_CHECK_VALUE(false, "POSENC_CPU_CAPABILITY must be default, avx2, avx512 or avx512_bf16, but is '", wanted, "'");
}

}  // namespace

Capability capability() {
  static const Capability level = choose();
  return level;
}

const char* name(Capability level) {
  switch (level) {
    case Capability::kAVX512BF16:
      return "avx512_bf16";
    case Capability::kAVX512:
      return "avx512";
    case Capability::kAVX2:
      return "avx2";
    default:
      return "default";
  }
}

}  // namespace cpu

std::string cpu_capability() { return cpu::name(cpu::capability()); }

}  // namespace posenc
