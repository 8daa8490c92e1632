#include "test/gpu/test_kernels.h"

#include "test/gpu/picks_kernels.h"

MOETAP_DEFINE_KERNEL(moetap::test::AddScaled);
MOETAP_DEFINE_KERNEL(moetap::test::Append);
MOETAP_DEFINE_KERNEL(moetap::test::Assign);
MOETAP_DEFINE_KERNEL(moetap::test::CountVisits);
MOETAP_DEFINE_KERNEL(moetap::test::OutputPicks);
MOETAP_DEFINE_KERNEL(moetap::test::Set);
MOETAP_DEFINE_KERNEL(moetap::test::SinkPicks);
MOETAP_DEFINE_KERNEL(moetap::test::Spin);
MOETAP_DEFINE_KERNEL(moetap::test::SpinFor);
