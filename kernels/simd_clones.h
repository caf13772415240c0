// Marks a function that the compiler builds for several x86 instruction sets; the program picks one
// when it starts. For loops that vectorise by themselves. Sanitizers do not work that early; other
// processors (Arm) have SIMD in their baseline.
#ifndef RELIBRA_KERNELS_SIMD_CLONES_H_
#define RELIBRA_KERNELS_SIMD_CLONES_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define RELIBRA_SIMD_CLONES __attribute__((target_clones("default", "avx2", "arch=skylake-avx512")))
#else
#define RELIBRA_SIMD_CLONES
#endif

#endif  // RELIBRA_KERNELS_SIMD_CLONES_H_
