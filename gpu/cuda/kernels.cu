// The library's kernels for GPUs.
#include <moetap/cuda_kernel.h>

#include <cstdint>

#include "../src/kernels.h"

MOETAP_CUDA_KERNEL(moetap::BeginStepKernel);
MOETAP_CUDA_KERNEL(moetap::CaptureKernel<std::uint8_t>);
MOETAP_CUDA_KERNEL(moetap::CaptureKernel<std::uint16_t>);
MOETAP_CUDA_KERNEL(moetap::CaptureKernel<std::int16_t>);
MOETAP_CUDA_KERNEL(moetap::CaptureKernel<std::int32_t>);
MOETAP_CUDA_KERNEL(moetap::CaptureKernel<std::int64_t>);
MOETAP_CUDA_KERNEL(moetap::SnapshotKernel<std::uint8_t>);
MOETAP_CUDA_KERNEL(moetap::SnapshotKernel<std::uint16_t>);
MOETAP_CUDA_KERNEL(moetap::ReportKernel);
