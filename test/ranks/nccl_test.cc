// Gathers over NCCL. What needs a GPU skips where there is none; one GPU is one rank, so that what
// several ranks do is shown over MPI, with the same PartGather, and by the tests of the watch.
#include <moetap/cuda_device.h>
#include <moetap/error.h>
#include <moetap/host_device.h>
#include <moetap/nccl_collective.h>
#include <moetap/topk_ids.h>

#include <gtest/gtest.h>

#include <chrono>
#include <vector>

#include "test/gpu/devices.h"
#include "test/lib/throws.h"

namespace moetap::test {
namespace {

constexpr Milliseconds kPatience{60'000};

TEST(NcclWithoutGpu, RefusesOtherDevices) {
  const std::unique_ptr<Device> host = make_host_device();
  expect_throw<ArgumentError>([&] { (void)make_nccl_collective(*host, NcclId{}, 1, 0, kPatience); },
                              {"'host'", "NCCL"});
}

TEST(NcclWithoutGpu, RefusesNumbersThatMakeNoSense) {
  const std::unique_ptr<Device> host = make_host_device();
  const auto refused = [&](int size, int rank, Milliseconds timeout) {
    expect_throw<ArgumentError>(
        [&] { (void)make_nccl_collective(*host, NcclId{}, size, rank, timeout); }, {"ranks are 0"});
  };
  refused(0, 0, kPatience);
  refused(2, 2, kPatience);
  refused(2, -1, kPatience);
  refused(2, 0, Milliseconds(0));
  expect_throw<ArgumentError>([&] { (void)make_nccl_collective(*host, nullptr, kPatience); },
                              {"null communicator"});
}

class Nccl : public testing::Test {
 protected:
  void SetUp() override {
    if (const auto reason = why_no_cuda()) GTEST_SKIP() << "no GPU: " << *reason;
    device = make_cuda_device(0);
    stream = device->make_stream();
  }

  std::unique_ptr<Device> device;
  std::unique_ptr<Stream> stream;
};

TEST_F(Nccl, OneRankGathersItsOwnPart) {
  const auto ranks = make_nccl_collective(*device, make_nccl_id(), 1, 0, kPatience);
  EXPECT_EQ(ranks->size(), 1);
  EXPECT_EQ(ranks->rank(), 0);
  PartGather gather(*device, *ranks, 2, 8);
  const std::vector<std::int64_t> ids{1, 2, 3, 4, 5, 6};
  const Buffer memory = upload(*device, *stream, ids);
  const std::vector<std::int64_t> parts{3};
  const TopkIds whole = gather.gather({memory.data(), IdType::int64, 3, 2, 2}, parts, *stream);
  EXPECT_EQ(download<std::int32_t>(*device, *stream, whole.data, 6),
            (std::vector<std::int32_t>{1, 2, 3, 4, 5, 6}));
  EXPECT_NO_THROW(ranks->check());
}

TEST_F(Nccl, AGatherInsideAGraphIsReplayed) {
  const auto ranks = make_nccl_collective(*device, make_nccl_id(), 1, 0, kPatience);
  PartGather gather(*device, *ranks, 2, 8);
  const Buffer memory = upload(*device, *stream, std::vector<std::int32_t>{1, 2});
  const std::vector<std::int64_t> parts{1};
  const TopkIds part{memory.data(), IdType::int32, 1, 2, 2};
  (void)gather.gather(part, parts, *stream);
  stream->synchronize();
  stream->begin_capture();
  const TopkIds whole = gather.gather(part, parts, *stream);
  const std::unique_ptr<Graph> graph = stream->end_capture();
  for (int i = 0; i < 3; ++i) {
    const Buffer next = upload(*device, *stream, std::vector<std::int32_t>{i, i + 7});
    stream->copy(memory.data(), next.data(), 8);
    stream->launch(*graph);
    ranks->launched(*stream);
    EXPECT_EQ(download<std::int32_t>(*device, *stream, whole.data, 2),
              (std::vector<std::int32_t>{i, i + 7}));
  }
  EXPECT_NO_THROW(ranks->check());
}

TEST_F(Nccl, ARankThatNeverComesIsAnErrorWithinTheLimit) {
  const auto start = std::chrono::steady_clock::now();
  expect_throw<TimeoutError>(
      [&] { (void)make_nccl_collective(*device, make_nccl_id(), 2, 0, Milliseconds(2000)); },
      {"2000 ms", "some rank is missing"});
  EXPECT_LT(std::chrono::steady_clock::now() - start, kPatience);
}

}  // namespace
}  // namespace moetap::test
