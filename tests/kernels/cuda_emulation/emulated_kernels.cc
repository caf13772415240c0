// The CUDA side of the kernels, compiled as C++ against the headers of this folder.
#include "kernels/accumulate.cu"
#include "kernels/checksum.cu"
#include "kernels/cuda_device.cu"
#include "kernels/destination_order.cu"
#include "kernels/instance_map.cu"
#include "kernels/load_histogram.cu"
#include "kernels/permute.cu"
