#include "router_kernel.h"

#include <moetap/cuda_kernel.h>

MOETAP_CUDA_KERNEL(demo::RouterKernel);
