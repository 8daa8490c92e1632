#include <moetap/cuda_kernel.h>

#include "bench/gpu_check/busy.h"

MOETAP_CUDA_KERNEL(moetap::bench::Busy);
