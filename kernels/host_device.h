// Marks functions that the C++ and the CUDA compiler both compile: the per-element logic of each
// kernel is such a function, so that what runs on a GPU is tested where there is none.
#ifndef RELIBRA_KERNELS_HOST_DEVICE_H_
#define RELIBRA_KERNELS_HOST_DEVICE_H_

#ifdef __CUDACC__
#define RELIBRA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define RELIBRA_HOST_DEVICE inline
#endif

// Before a loop over a fixed-size array, which must be unrolled to stay in registers on a GPU.
#ifdef __CUDA_ARCH__
#define RELIBRA_UNROLL _Pragma("unroll")
#else
#define RELIBRA_UNROLL
#endif

#endif  // RELIBRA_KERNELS_HOST_DEVICE_H_
