#pragma once

#include <posenc/export.h>

#include <string>
#include <vector>

namespace posenc {

/// Version of this library, e.g. "0.1.0".
POSENC_API std::string version();
/// Version of the torch that this library was built against, e.g. "2.13.0".
POSENC_API std::string torch_version();
/// Instruction set of the CPU kernels in use: "default", "avx2", "avx512" or "avx512_bf16" (POSENC_CPU_CAPABILITY
/// overrides).
POSENC_API std::string cpu_capability();
/// The values of POSENC_CPU_CAPABILITY that this machine runs, the best one last.
POSENC_API std::vector<std::string> cpu_capabilities();
/// How this library was built: compiler, flags, build type, instruction sets, CUDA (no).
POSENC_API std::string build_info();

}  // namespace posenc
