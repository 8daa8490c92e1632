#include <moetap/cuda_kernel.h>

#include "busy.h"

MOETAP_CUDA_KERNEL(moetap::bench::Busy);
