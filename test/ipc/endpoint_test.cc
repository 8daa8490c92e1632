#include <moetap/endpoint.h>
#include <moetap/error.h>

#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <string>

#include "message_of.h"
#include "names.h"
#include "temporary_directory.h"
#include "test_endpoint.h"

namespace moetap {
namespace {

using test::contains;
using test::message_of;
using test::ScopedVariable;

namespace fs = std::filesystem;

void expect_refused(const std::function<void(Endpoint&)>& spoil, const std::string& named) {
  Endpoint endpoint = test::test_endpoint();
  endpoint.validate();
  spoil(endpoint);
  const std::string message = message_of<ArgumentError>([&] { endpoint.validate(); });
  EXPECT_TRUE(contains(message, named)) << message << "\n  does not name " << named;
}

TEST(Endpoint, RefusesFieldsThatCannotBeAndNamesThem) {
  expect_refused([](Endpoint& e) { e.instance = ""; }, "instance is ''");
  expect_refused([](Endpoint& e) { e.instance = "a/b"; }, "'a/b'");
  expect_refused([](Endpoint& e) { e.instance = std::string(65, 'x'); }, "1 to 64");
  expect_refused([](Endpoint& e) { e.dp_rank = -1; }, "dp_rank is -1");
  expect_refused([](Endpoint& e) { e.num_slots = 0; }, "num_slots is 0");
  expect_refused([](Endpoint& e) { e.num_slots = std::int64_t{1} << 40; }, "num_slots");
  expect_refused([](Endpoint& e) { e.max_tokens = 0; }, "max_tokens is 0");
  expect_refused([](Endpoint& e) { e.max_tokens = std::int64_t{1} << 40; }, "max_tokens");
  expect_refused([](Endpoint& e) { e.ring_depth = 0; }, "ring_depth is 0");
  expect_refused([](Endpoint& e) { e.ring_depth = 1'000'000; }, "ring_depth");
  expect_refused([](Endpoint& e) { e.layout = static_cast<ShmLayout>(7); }, "layout is 7");
}

TEST(Endpoint, TakesAnInstanceOfEveryAllowedCharacter) {
  Endpoint endpoint = test::test_endpoint();
  endpoint.instance = "Az09-_." + std::string(57, 'x');
  endpoint.validate();
}

TEST(Names, H22HoldInstanceRankAndKind) {
  Endpoint endpoint = test::test_endpoint();
  endpoint.instance = "a";
  endpoint.dp_rank = 7;
  EXPECT_EQ(buffer_name(endpoint), "/moetap_a_7");
  EXPECT_EQ(ring_name(endpoint), "/moetap_a_7_ring");
  endpoint.layout = ShmLayout::wire;
  EXPECT_EQ(buffer_name(endpoint), "/vllm_routed_experts_buffer_a_7");
}

class LockPath : public testing::Test {
 protected:
  test::TemporaryDirectory directory;
  ScopedVariable tmpdir{"TMPDIR", directory.path()};
  ScopedVariable runtime{"XDG_RUNTIME_DIR", std::nullopt};
  Endpoint endpoint = test::test_endpoint();

  std::string native_file() const { return "moetap_" + endpoint.instance + "_0.lock"; }
  fs::path own_directory() const {
    return directory.path() / ("moetap-" + std::to_string(geteuid()));
  }
};

TEST_F(LockPath, OfTheWireLayoutIsWherePythonsTempfileLooks) {
  endpoint.layout = ShmLayout::wire;
  endpoint.dp_rank = 3;
  const std::string file = "vllm_routed_experts_" + endpoint.instance + "_3.lock";
  EXPECT_EQ(lock_path(endpoint), directory.path() / file);
  const test::TemporaryDirectory second;
  const ScopedVariable unset("TMPDIR", "/no/such/directory");
  const ScopedVariable temp("TEMP", second.path());
  EXPECT_EQ(lock_path(endpoint), second.path() / file);
}

TEST_F(LockPath, OfTheNativeLayoutIsInTheRuntimeDirectory) {
  const test::TemporaryDirectory second;
  const ScopedVariable set("XDG_RUNTIME_DIR", second.path());
  EXPECT_EQ(lock_path(endpoint), second.path() / native_file());
}

TEST_F(LockPath, IsInAPrivateDirectoryWhereThereIsNoUsableRuntimeDirectory) {
  const fs::path expected = own_directory() / native_file();
  EXPECT_EQ(lock_path(endpoint), expected);
  struct stat status {};
  ASSERT_EQ(stat(own_directory().c_str(), &status), 0);
  EXPECT_EQ(status.st_mode & 0777, 0700u);
  const test::TemporaryDirectory open_to_all;
  ASSERT_EQ(chmod(open_to_all.path().c_str(), 0777), 0);
  for (const std::string& unusable :
       {std::string("/no/such/directory"), std::string("relative"), open_to_all.path().string()}) {
    const ScopedVariable set("XDG_RUNTIME_DIR", unusable);
    EXPECT_EQ(lock_path(endpoint), expected) << unusable;
  }
}

TEST_F(LockPath, IsNeverInADirectoryThatAnotherUserPreparedOrCanWriteTo) {
  const fs::path elsewhere = directory.path() / "elsewhere";
  fs::create_directory(elsewhere);
  fs::create_directory_symlink(elsewhere, own_directory());
  EXPECT_THROW(lock_path(endpoint), MismatchError);
  fs::remove(own_directory());
  fs::create_directory(own_directory());
  ASSERT_EQ(chmod(own_directory().c_str(), 0777), 0);
  EXPECT_THROW(lock_path(endpoint), MismatchError);
  ASSERT_EQ(chmod(own_directory().c_str(), 0700), 0);
  EXPECT_EQ(lock_path(endpoint), own_directory() / native_file());
  if (geteuid() != 0) return;  // only root can give a directory away
  ASSERT_EQ(chown(own_directory().c_str(), 65534, 65534), 0);
  EXPECT_THROW(lock_path(endpoint), MismatchError);
}

}  // namespace
}  // namespace moetap
