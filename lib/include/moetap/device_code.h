// Functions that both the host compiler and nvcc compile. C++17, so that an engine's CUDA code can
// include it.
#pragma once

#if defined(__CUDACC__)
#define MOETAP_DEVICE __host__ __device__
#else
#define MOETAP_DEVICE
#endif
