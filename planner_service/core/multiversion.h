// One binary for any x86-64: the compiler builds each marked function for several instruction sets
// and the loader picks the best. All marked loops are integer sums or lane-wise float arithmetic
// without contraction, so every version gives the same bits. Elsewhere (aarch64) the mark is empty.
#ifndef RELIBRA_PLANNER_SERVICE_CORE_MULTIVERSION_H_
#define RELIBRA_PLANNER_SERVICE_CORE_MULTIVERSION_H_

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && \
    !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
#define RELIBRA_MULTIVERSION __attribute__((target_clones("arch=x86-64-v4", "avx2", "default")))
#else
#define RELIBRA_MULTIVERSION
#endif

#endif  // RELIBRA_PLANNER_SERVICE_CORE_MULTIVERSION_H_
