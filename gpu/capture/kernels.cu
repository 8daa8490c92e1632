// The library's kernels for GPUs.
#include <moetap/cuda_kernel.h>

#include <cstdint>

#include "gpu/capture/kernels.h"
#include "gpu/capture/snapshot_kernel.h"
#include "gpu/capture/weight_kernels.h"
#include "gpu/collective/pack_kernel.h"
#include "gpu/internal/router_kernel.h"

MOETAP_CUDA_KERNEL(moetap::BeginStepKernel);
MOETAP_CUDA_KERNEL(moetap::CheckLayersKernel);
MOETAP_CUDA_KERNEL(moetap::ClearLayersKernel);
MOETAP_CUDA_KERNEL(moetap::CaptureKernel<std::uint8_t>);
MOETAP_CUDA_KERNEL(moetap::CaptureKernel<std::uint16_t>);
MOETAP_CUDA_KERNEL(moetap::CaptureKernel<std::int16_t>);
MOETAP_CUDA_KERNEL(moetap::CaptureKernel<std::int32_t>);
MOETAP_CUDA_KERNEL(moetap::CaptureKernel<std::int64_t>);
MOETAP_CUDA_KERNEL(moetap::SnapshotKernel<std::uint8_t>);
MOETAP_CUDA_KERNEL(moetap::SnapshotKernel<std::uint16_t>);
MOETAP_CUDA_KERNEL(moetap::PackKernel<std::uint8_t>);
MOETAP_CUDA_KERNEL(moetap::PackKernel<std::uint16_t>);
MOETAP_CUDA_KERNEL(moetap::PackKernel<std::int16_t>);
MOETAP_CUDA_KERNEL(moetap::PackKernel<std::int32_t>);
MOETAP_CUDA_KERNEL(moetap::PackKernel<std::int64_t>);
MOETAP_CUDA_KERNEL(moetap::RouterKernel);
MOETAP_CUDA_KERNEL(moetap::CapturingRouterKernel);
MOETAP_CUDA_KERNEL(moetap::WeightedCaptureKernel<std::uint8_t>);
MOETAP_CUDA_KERNEL(moetap::WeightedCaptureKernel<std::uint16_t>);
MOETAP_CUDA_KERNEL(moetap::WeightedCaptureKernel<std::int16_t>);
MOETAP_CUDA_KERNEL(moetap::WeightedCaptureKernel<std::int32_t>);
MOETAP_CUDA_KERNEL(moetap::WeightedCaptureKernel<std::int64_t>);
MOETAP_CUDA_KERNEL(moetap::WeightedSnapshotKernel<std::uint8_t>);
MOETAP_CUDA_KERNEL(moetap::WeightedSnapshotKernel<std::uint16_t>);
