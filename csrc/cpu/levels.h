#pragma once

/// The instruction-set levels of the architecture that is compiled for: the one table from which follow the kernel
/// objects that CMake compiles, the choice at run time, the tables of kernels, messages and the levels that tests run.
///
/// POSENC_CPU_LEVELS(row, ...) expands to row(level, name, kernels, flags, bf16x2, runs, ...) for each level. Later
/// rows are preferred, so rows of one architecture stand from the plainest to the best; other architectures have lists
/// of their own, and no level is ever compared with one of another architecture.
///
///   level    its enumerator in cpu::Capability
///   name     as POSENC_CPU_CAPABILITY spells it. NAME_FEATURE is served by the kernels of NAME, and asks for the
///            feature at run time.
///   kernels  the set of kernel objects that serves it. They are compiled with CPU_CAPABILITY_<kernels> defined, by
///            which at::vec and cpu/vec.h choose their vectors.
///   flags    what the compiler needs for that set; "" if a row above compiles it already
///   bf16x2   whether kernels multiply pairs of bfloat16 with cpu::multiply_bf16x2()
///   runs     whether this machine runs it: an expression of POSENC_CPU_HAS("feature") and host_runs(Capability::kRow)
///
/// A new level is a row here and, for kernels of its own, a file in cpu/vec/. CMake reads this file through the
/// preprocessor: it includes nothing.

// clang-format off
#if defined(__x86_64__)

#define POSENC_CPU_LEVELS(row, ...)                                                                                   \
  row(kDefault, "default", DEFAULT, "", false,                                                                        \
      true, __VA_ARGS__)                                                                                              \
  row(kAVX2, "avx2", AVX2, "-mavx2 -mfma -mf16c", false,                                                              \
      POSENC_CPU_HAS("avx2") && POSENC_CPU_HAS("fma"), __VA_ARGS__)                                                   \
  row(kAVX512, "avx512", AVX512, "-mavx2 -mfma -mf16c -mavx512f -mavx512bw -mavx512vl -mavx512dq", false,             \
      host_runs(Capability::kAVX2) && POSENC_CPU_HAS("avx512f") && POSENC_CPU_HAS("avx512bw") &&                      \
      POSENC_CPU_HAS("avx512dq") && POSENC_CPU_HAS("avx512vl"), __VA_ARGS__)                                          \
  row(kAVX512BF16, "avx512_bf16", AVX512, "", true,                                                                   \
      host_runs(Capability::kAVX512) && POSENC_CPU_HAS("avx512bf16"), __VA_ARGS__)

#else

#define POSENC_CPU_LEVELS(row, ...) row(kDefault, "default", DEFAULT, "", false, true, __VA_ARGS__)

#endif
// clang-format on
