#include <moetap/cuda_kernel.h>

#include "test/gpu/picks_kernels.h"
#include "test/gpu/test_kernels.h"

MOETAP_CUDA_KERNEL(moetap::test::AddScaled);
MOETAP_CUDA_KERNEL(moetap::test::Append);
MOETAP_CUDA_KERNEL(moetap::test::Assign);
MOETAP_CUDA_KERNEL(moetap::test::CountVisits);
MOETAP_CUDA_KERNEL(moetap::test::OutputPicks);
MOETAP_CUDA_KERNEL(moetap::test::Set);
MOETAP_CUDA_KERNEL(moetap::test::SinkPicks);
MOETAP_CUDA_KERNEL(moetap::test::Spin);
MOETAP_CUDA_KERNEL(moetap::test::SpinFor);
