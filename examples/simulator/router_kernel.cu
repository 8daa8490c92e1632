#include <moetap/cuda_kernel.h>

#include "examples/simulator/router_kernel.h"

MOETAP_CUDA_KERNEL(demo::RouterKernel);
