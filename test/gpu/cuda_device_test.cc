// What only a GPU does; and, where there is none, what is said about that.
#include <moetap/cuda_device.h>
#include <moetap/error.h>

#include <string>

#include "test/gpu/device_test.h"
#include "test/ipc/message_of.h"
#if defined(MOETAP_WITH_CUDA)
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include <thread>
#endif

namespace moetap::test {
namespace {

#define SKIP_WITHOUT_GPU() \
  if (const auto why = why_no_cuda()) GTEST_SKIP() << "no GPU: " << *why

// The visible sign of the tests that a machine without a GPU leaves out.
TEST(Cuda, RunsTheTestsOfEveryDevice) {
  SKIP_WITHOUT_GPU();
  EXPECT_TRUE(expect_gpu());
  EXPECT_EQ(open_device()->name(), "cuda:0");
  EXPECT_EQ(open_device("cuda:0")->name(), "cuda:0");
}

TEST(Cuda, IsNeitherChosenNorHadWhereThereIsNone) {
  const auto why = why_no_cuda();
  if (!why) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(open_device()->name(), "host");
  for (const char* name : {"cuda", "cuda:0", "cuda:15"}) {
    const std::string message = message_of<ArgumentError>([&] { (void)open_device(name); });
    EXPECT_TRUE(contains(message, *why)) << message;
  }
}

TEST(Cuda, TakesNoHostDevicesStreamForItsOwn) {
  const auto host = make_host_device();
  EXPECT_THROW((void)wrap_stream(*host, nullptr), ArgumentError);
}

#if defined(MOETAP_WITH_CUDA)
TEST(Cuda, NamesTheGpusThatThereAre) {
  SKIP_WITHOUT_GPU();
  const std::string message = message_of<ArgumentError>([] { (void)open_device("cuda:1000"); });
  EXPECT_TRUE(contains(message, "no GPU 1000: CUDA shows ")) << message;
}

TEST(Cuda, SaysWhichCallFailedAndWhy) {
  SKIP_WITHOUT_GPU();
  const auto device = open_device("cuda");
  const std::string message =
      message_of<DeviceError>([&] { device->allocate(std::size_t{1} << 60); });
  EXPECT_TRUE(contains(message, "cudaMalloc of ")) << message;
  EXPECT_TRUE(contains(message, "cudaErrorMemoryAllocation (")) << message;
  device->allocate(256);  // and the error is not found again
}

TEST(Cuda, WorksOnAnEnginesOwnStream) {
  SKIP_WITHOUT_GPU();
  const auto device = open_device("cuda");
  cudaStream_t engine = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&engine, cudaStreamNonBlocking), cudaSuccess);
  Buffer memory = device->allocate_pinned(64);
  auto* const x = memory.as<std::int64_t>();
  {
    const auto stream = wrap_stream(*device, engine);
    stream->launch(Set{x, 7}, 1);
    ASSERT_EQ(cudaStreamSynchronize(engine), cudaSuccess);
    EXPECT_EQ(*x, 7);
  }
  EXPECT_EQ(cudaStreamQuery(engine), cudaSuccess);  // the view's end is not the stream's
  EXPECT_EQ(cudaStreamDestroy(engine), cudaSuccess);
}

TEST(Cuda, BecomesPartOfAGraphThatTheEngineRecords) {
  SKIP_WITHOUT_GPU();
  const auto device = open_device("cuda");
  cudaStream_t engine = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&engine, cudaStreamNonBlocking), cudaSuccess);
  const auto stream = wrap_stream(*device, engine);
  const auto event = device->make_event();
  Buffer memory = device->allocate_pinned(64);
  auto* const x = memory.as<std::int64_t>();
  *x = 0;
  ASSERT_EQ(cudaStreamBeginCapture(engine, cudaStreamCaptureModeGlobal), cudaSuccess);
  stream->launch(Append{x, 1}, 1);
  EXPECT_THROW(stream->record(*event), StateError);
  EXPECT_THROW(stream->synchronize(), StateError);
  EXPECT_THROW(stream->end_capture(), StateError);  // it is the engine's to end
  device->allocate(256);                            // in no one's way
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(engine, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(*x, 0);
  for (int i = 0; i < 2; ++i) ASSERT_EQ(cudaGraphLaunch(executable, engine), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(engine), cudaSuccess);
  EXPECT_EQ(*x, 32);
  cudaGraphExecDestroy(executable);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(engine);
}

// It would wait for the stream that records, and so end the recording.
TEST(Cuda, RefusesWorkOnTheLegacyStreamWhileAnotherStreamRecordsAGraph) {
  SKIP_WITHOUT_GPU();
  const auto device = open_device("cuda");
  cudaStream_t engine = nullptr;
  ASSERT_EQ(cudaStreamCreate(&engine), cudaSuccess);  // that the legacy stream waits for
  const auto recording = wrap_stream(*device, engine);
  const auto event = device->make_event();
  Buffer memory = device->allocate_pinned(64);
  auto* const x = memory.as<std::int64_t>();
  for (cudaStream_t name : {cudaStream_t{nullptr}, cudaStreamLegacy}) {
    const auto legacy = wrap_stream(*device, name);
    *x = 0;
    recording->begin_capture();
    recording->launch(Append{x, 1}, 1);
    const std::string message = message_of<StateError>([&] { legacy->launch(Append{x, 2}, 1); });
    EXPECT_TRUE(contains(message, "legacy default stream")) << message;
    EXPECT_TRUE(contains(message, "cudaStreamNonBlocking")) << message;
    EXPECT_THROW(legacy->copy(x + 1, x, 8), StateError);
    EXPECT_THROW(legacy->fill(x + 1, 0, 8), StateError);
    EXPECT_THROW(legacy->call([](void*) {}, nullptr), StateError);
    EXPECT_THROW(legacy->record(*event), StateError);
    EXPECT_THROW(legacy->wait(*event), StateError);
    EXPECT_THROW(legacy->idle(), StateError);
    EXPECT_THROW(legacy->synchronize(), StateError);
    EXPECT_THROW(legacy->begin_capture(), StateError);
    // The recording goes on as if nothing had been asked for, and the stream works after it.
    recording->launch(Append{x, 3}, 1);
    const auto graph = recording->end_capture();
    legacy->launch(*graph);
    legacy->launch(Append{x, 4}, 1);
    legacy->synchronize();
    EXPECT_EQ(*x, (1 * 31 + 3) * 31 + 4);
  }
  EXPECT_EQ(cudaStreamDestroy(engine), cudaSuccess);
}

TEST(Cuda, LeavesTheThreadsSelectedGpuAlone) {
  SKIP_WITHOUT_GPU();
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "there is one GPU only";
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const auto device = open_device("cuda:0");
  const auto stream = device->make_stream();
  const Buffer memory = device->allocate(64);
  stream->fill(memory.data(), 0, 64);
  stream->synchronize();
  int selected = -1;
  ASSERT_EQ(cudaGetDevice(&selected), cudaSuccess);
  EXPECT_EQ(selected, 1);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
}

// A function of the driver's, to which nothing here is linked.
template <class Function>
Function driver(const char* name, unsigned version) {
  void* found = nullptr;
  cudaDriverEntryPointQueryResult result{};
  EXPECT_EQ(cudaGetDriverEntryPointByVersion(name, &found, version, cudaEnableDefault, &result),
            cudaSuccess);
  EXPECT_EQ(result, cudaDriverEntryPointSuccess) << name;
  return reinterpret_cast<Function>(found);
}

CUcontext current_context() {
  CUcontext context = nullptr;
  const auto get = driver<PFN_cuCtxGetCurrent_v4000>("cuCtxGetCurrent", 4000);
  EXPECT_EQ(get(&context), CUDA_SUCCESS);
  return context;
}

// Calls of every kind, and the ends of all that they made.
void use(Device& device) {
  const auto stream = device.make_stream();
  const auto event = device.make_event();
  const Buffer memory = device.allocate(64);
  const Buffer pinned = device.allocate_pinned(64);
  stream->begin_capture();
  stream->fill(memory.data(), 0, 64);
  const auto graph = stream->end_capture();
  stream->launch(*graph);
  stream->copy(pinned.data(), memory.data(), 64);
  stream->record(*event);
  event->synchronize();
  EXPECT_TRUE(event->done());
  const auto abandoned = device.make_stream();
  abandoned->begin_capture();
}

// The watch of gathers is such a thread; a context that CUDA makes for it takes hundreds of MB.
TEST(Cuda, LeavesAThreadWithoutAContextWithoutOne) {
  SKIP_WITHOUT_GPU();
  std::thread([] {
    ASSERT_EQ(current_context(), nullptr);
    const auto device = open_device("cuda");
    EXPECT_EQ(current_context(), nullptr);
    use(*device);
    EXPECT_EQ(current_context(), nullptr);
  }).join();
}

TEST(Cuda, LeavesAnEnginesOwnContextCurrent) {
  SKIP_WITHOUT_GPU();
  std::thread([] {
    const auto create = driver<PFN_cuCtxCreate_v12050>("cuCtxCreate", 12050);
    const auto destroy = driver<PFN_cuCtxDestroy_v4000>("cuCtxDestroy", 4000);
    CUcontext engine = nullptr;
    ASSERT_EQ(create(&engine, nullptr, 0, 0), CUDA_SUCCESS);
    ASSERT_EQ(current_context(), engine);
    {
      const auto device = open_device("cuda");
      use(*device);
    }
    EXPECT_EQ(current_context(), engine);
    EXPECT_EQ(destroy(engine), CUDA_SUCCESS);
  }).join();
}
#endif

}  // namespace
}  // namespace moetap::test
