#pragma once

namespace posenc::cpu {

/// Instruction sets that kernels use, in rising order. They are compiled for the first three; those that multiply
/// bfloat16 find out at run time whether they may.
enum class Capability { kDefault = 0, kAVX2 = 1, kAVX512 = 2, kAVX512BF16 = 3 };

/// The best level that this machine runs, or the one that POSENC_CPU_CAPABILITY names. Read once per process.
Capability capability();

/// "default", "avx2", "avx512" or "avx512_bf16".
const char* name(Capability level);

}  // namespace posenc::cpu

/// Kernel tables. A kernel file is compiled once per instruction set and defines its table there with
/// POSENC_DEFINE_KERNELS; callers pick one with POSENC_SELECT_KERNELS. Tables hold plain function pointers.
#define POSENC_DECLARE_KERNELS(Table, prefix) \
  const Table& prefix##_DEFAULT();            \
  const Table& prefix##_AVX2();               \
  const Table& prefix##_AVX512()

#define POSENC_KERNELS_JOIN_(prefix, level) prefix##_##level
#define POSENC_KERNELS_JOIN(prefix, level) POSENC_KERNELS_JOIN_(prefix, level)
#define POSENC_DEFINE_KERNELS(Table, prefix, table) \
  const Table& POSENC_KERNELS_JOIN(prefix, CPU_CAPABILITY)() { return table; }

#if defined(__x86_64__)
#define POSENC_SELECT_KERNELS(prefix)                                                    \
  (::posenc::cpu::capability() >= ::posenc::cpu::Capability::kAVX512 ? prefix##_AVX512() \
   : ::posenc::cpu::capability() == ::posenc::cpu::Capability::kAVX2 ? prefix##_AVX2()   \
                                                                     : prefix##_DEFAULT())
#else
#define POSENC_SELECT_KERNELS(prefix) prefix##_DEFAULT()
#endif
